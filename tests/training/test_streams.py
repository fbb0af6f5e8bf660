"""Streams: positions to continue from, and items made ahead in a thread."""

import itertools
import threading
import time

import pytest

from namedmesh.errors.errors import NamedMeshError
from namedmesh.training import NumberedBatches, prefetch, streams


def test_a_stream_continues_from_any_position():
    stream = NumberedBatches(lambda number: {"x": number**2}, "squares")
    whole = list(itertools.islice(stream.read_from(None), 7))
    assert [item["x"] for item, _ in whole] == [0, 1, 4, 9, 16, 25, 36]
    for index, (_, position) in enumerate(whole[:-1]):
        assert next(stream.read_from(position)) == whole[index + 1]
    assert stream.digest == "squares"


def test_prefetching_changes_nothing():
    assert list(prefetch(range(100), 1)) == list(range(100))
    assert list(prefetch([])) == []


def test_prefetching_raises_errors_after_the_items_before_them():
    def items():
        yield 1
        yield 2
        raise KeyError("lost")

    received = []
    with pytest.raises(KeyError, match="lost"):
        for item in prefetch(items()):
            received.append(item)
    assert received == [1, 2]


def test_prefetching_stays_within_its_depth_and_ends_when_closed():
    made = []
    items = prefetch((made.append(number) or number for number in itertools.count()), 3)
    assert next(items) == 0
    deadline = time.monotonic() + 10
    while len(made) < 4 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.05)
    assert made == [0, 1, 2, 3]
    assert any(thread.name == "prefetch" for thread in threading.enumerate())
    items.close()
    assert not any(thread.name == "prefetch" for thread in threading.enumerate())


def test_prefetching_ends_though_an_item_never_comes(monkeypatch):
    monkeypatch.setattr(streams, "_SECONDS", 0.2)
    never = threading.Event()

    def items():
        yield 1
        never.wait()

    made = prefetch(items())
    assert next(made) == 1
    start = time.monotonic()
    made.close()
    assert time.monotonic() - start < 5
    never.set()


def test_a_depth_of_zero_is_an_error():
    with pytest.raises(NamedMeshError, match="depth=0"):
        next(prefetch([], 0))
