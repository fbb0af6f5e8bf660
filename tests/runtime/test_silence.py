"""Which processes count as gone: by their silence, and sooner if their connection is closed."""

import socket
import time

import pytest

from namedmesh.runtime import Processes
from namedmesh.runtime.connections import Connections
from namedmesh.runtime.silence import Silence


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


def watch(silence, clock, seconds, beats, every=1.0):
    """What is found when one looks every second at a process that tells its last beat."""
    found = {}
    end = clock.now + seconds
    while clock.now < end:
        clock.now += every
        found = silence.find({0: {"beat": 1}, 1: {"beat": beats(clock.now)}})
    return found


def test_a_process_that_goes_on_is_there(clock):
    silence = Silence(Processes(2, 0), None, heartbeat=5)
    assert watch(silence, clock, 100, beats=int) == {}


def test_a_silent_one_is_gone_after_the_heartbeat_and_not_before(clock):
    silence = Silence(Processes(2, 0), None, heartbeat=5)
    assert watch(silence, clock, 5, beats=lambda now: 7) == {}
    assert watch(silence, clock, 1, beats=lambda now: 7) == {
        1: "it has given no sign of life for 5 s"
    }


def test_a_closed_connection_shortens_the_wait_and_proves_nothing(clock, pair):
    connections, theirs = pair
    silence = Silence(Processes(2, 0), connections, heartbeat=50)
    assert watch(silence, clock, 10, beats=lambda now: 7) == {}
    theirs.close()
    assert connections.closed() == {1}
    assert watch(silence, clock, 10, beats=int) == {}  # its records still come
    assert watch(silence, clock, 4, beats=lambda now: 7) == {
        1: "it was killed, or its machine is gone"
    }


def test_while_this_process_stood_still_the_others_were_not_silent(clock):
    silence = Silence(Processes(2, 0), None, heartbeat=5)
    assert watch(silence, clock, 2, beats=lambda now: 7) == {}
    assert watch(silence, clock, 60, beats=lambda now: 7, every=60) == {}


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
