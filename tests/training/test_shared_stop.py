"""One stop for all processes: threads stand for processes, and a barrier for the collectives."""

from __future__ import annotations

import random
import threading
import time

import pytest

from namedmesh.errors.errors import NamedMeshError
from namedmesh.processes.processes import Processes
from namedmesh.training import stopping
from namedmesh.training.stopping import SharedStop, StopRequest


@pytest.fixture
def store(monkeypatch) -> dict[str, str]:
    """What the coordinator stores; every process gives its runs the same numbers."""
    texts: dict[str, str] = {}

    def read(folder: str) -> dict[str, str]:
        return {
            name.rpartition("/")[2]: text
            for name, text in list(texts.items())
            if name.startswith(f"{folder}/")
        }

    monkeypatch.setattr(stopping, "store_text", texts.__setitem__)
    monkeypatch.setattr(stopping, "read_texts", read)
    monkeypatch.setattr(stopping, "next_round", lambda _what: 7)
    monkeypatch.setattr(stopping, "_PAUSE", 0.01)
    return texts


def train(
    count: int, asked: dict[int, int], steps: int, seed: int = 0, number: int = 15
) -> list[tuple[int, bool]]:
    """The last step of each of some processes that take steps together, and if it was interrupted.

    A step needs all of them: a barrier that breaks stands for a collective that hangs. Process i
    gets a signal at the step that `asked` has for it, or reaches its time limit if that is 0.
    """
    barrier, results = threading.Barrier(count), [(-1, False)] * count

    def work(index: int) -> None:
        rng, request = random.Random(f"{seed}/{index}"), StopRequest()
        stop, taken = SharedStop(request, Processes(count, index, "here:1")), 0
        try:
            while taken < steps and stop.allows(taken + 1):
                if asked.get(index) == taken:
                    request.note(number) if number else stop.ask()
                time.sleep(rng.uniform(0, 0.004))
                barrier.wait(10)
                taken += 1
        finally:
            stop.close()
        results[index] = taken, stop.interrupted
        assert bool(request) >= stop.interrupted

    threads = [threading.Thread(target=work, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return results


@pytest.mark.parametrize("seed", range(8))
def test_all_stop_after_the_same_step_whoever_was_asked(store, seed):
    rng = random.Random(seed)
    count, when = rng.randint(2, 6), rng.randint(0, 40)
    results = train(count, {rng.randrange(count): when}, 5000, seed)
    ((last, interrupted),) = set(results)
    assert when <= last < 5000 and interrupted


def test_several_may_be_asked_at_once(store):
    assert len(set(train(4, {0: 10, 2: 11, 3: 10}, 5000))) == 1


def test_a_time_limit_of_one_is_that_of_all_and_no_signal(store):
    ((last, interrupted),) = set(train(3, {1: 10}, 5000, number=0))
    assert 10 <= last < 5000 and not interrupted


@pytest.mark.parametrize("when", range(4))
def test_who_is_asked_at_the_end_waits_for_nobody(store, when):
    start = time.monotonic()
    ((last, interrupted),) = set(train(3, {1: 30 - when}, 30))
    assert 30 - when <= last <= 30 and interrupted == (last < 30)
    assert time.monotonic() - start < 20


def test_without_a_signal_nobody_stops(store):
    assert train(3, {}, 50) == [(50, False)] * 3


def test_a_time_limit_is_no_signal(store):
    request = StopRequest()
    stop = SharedStop(request, Processes(1, 0))
    assert stop.allows(1)
    stop.ask()
    assert not stop.allows(2) and not request
    stop.close()


def test_a_process_that_does_not_answer_is_an_error(store, monkeypatch):
    monkeypatch.setattr(stopping, "_PATIENCE", 0.05)
    request = StopRequest()
    stop = SharedStop(request, Processes(2, 0, "here:1"))
    request.note(15)
    with pytest.raises(NamedMeshError, match="process 1 did not answer within"):
        for step in range(1, 1000):
            stop.allows(step)
            time.sleep(0.01)
    stop.close()
