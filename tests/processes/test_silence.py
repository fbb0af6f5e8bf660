"""Which processes count as gone: by their silence, and sooner if their connection is closed."""

import socket
import time

import pytest

from namedmesh.processes.meeting import Connections
from namedmesh.processes.watch import Silence
from namedmesh.runtime import Processes


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 0.0

    monkeypatch.setattr(time, "monotonic", lambda: Clock.now)
    return Clock


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Connections({1: ours}, ("127.0.0.1", 9)), theirs


def listen(silence, clock, seconds, beats, every=1.0):
    """Looks every second at what a process tells."""
    end = clock.now + seconds
    while clock.now < end:
        clock.now += every
        silence.listen({0: {"beat": 1}, 1: {"beat": beats(clock.now)}})


def test_a_process_that_goes_on_is_there(clock):
    silence = Silence(Processes(2, 0), None)
    listen(silence, clock, 100, beats=int)
    assert silence.longer_than(1) == {}


def test_seconds_without_a_new_record_are_counted_until_one_comes(clock):
    silence = Silence(Processes(2, 0), None)
    listen(silence, clock, 6, beats=lambda now: 7)
    assert silence.longer_than(5) == {1: 5} and silence.longer_than(6) == {}
    listen(silence, clock, 1, beats=lambda now: 8)
    assert silence.longer_than(1) == {}


def test_only_who_is_silent_and_not_connected_is_gone(clock, pair):
    connections, theirs = pair
    silence = Silence(Processes(2, 0), connections)
    listen(silence, clock, 100, beats=lambda now: 7)
    assert silence.gone == set()  # it may hold Python's lock
    theirs.close()
    listen(silence, clock, 1, beats=lambda now: 8)  # told just before it died
    assert silence.gone == set()
    listen(silence, clock, 3, beats=lambda now: 8)
    assert silence.gone == {1}


def test_a_process_that_goes_on_after_its_connection_was_closed_is_not_gone(clock, pair):
    connections, theirs = pair
    silence = Silence(Processes(2, 0), connections)
    theirs.close()
    listen(silence, clock, 10, beats=int)
    listen(silence, clock, 100, beats=lambda now: 7)
    assert silence.gone == set()  # a network has closed it


def test_one_that_dies_before_its_first_record_is_gone(clock, pair):
    connections, theirs = pair
    silence = Silence(Processes(2, 0), connections)
    theirs.close()
    for clock.now in (1, 2, 3):
        silence.listen({0: {"beat": 1}})
    assert silence.gone == {1}


def test_while_this_process_stood_still_the_others_were_not_silent(clock):
    silence = Silence(Processes(2, 0), None)
    listen(silence, clock, 2, beats=lambda now: 7)
    listen(silence, clock, 60, beats=lambda now: 7, every=60)
    assert silence.longer_than(5) == {}


def test_an_end_is_noticed_at_once_and_an_open_connection_is_not_one(pair):
    connections, theirs = pair
    assert connections.closed() == set()
    theirs.close()
    connections.wait_for_end(1)
    assert connections.closed() == {1}


def test_whether_the_coordinator_answers():
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen()
        connections = Connections({}, door.getsockname())
        assert connections.coordinator_answers()
    assert not connections.coordinator_answers()
