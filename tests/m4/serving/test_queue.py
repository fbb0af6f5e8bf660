"""The queue of the service: batches, patience, a bound, errors, clients that go, and the end."""

import asyncio
import threading
import time

import pytest

from examples.m4.serving.queue import Batcher, QueueClosed, QueueFull


class Work:
    """Doubles numbers; remembers its batches, and waits for leave to go on."""

    def __init__(self, held=False):
        self.batches, self.leave = [], threading.Event()
        if not held:
            self.leave.set()

    def __call__(self, items):
        assert self.leave.wait(10)
        self.batches.append(list(items))
        return [item * 2 for item in items]


def run(work, test, **options):
    """Run a test with a batcher that is closed at the end."""

    async def go():
        batcher = Batcher(work, **{"most": 4, "waiting": 100, "patience": 0.05, **options})
        batcher.start()
        try:
            return await asyncio.wait_for(test(batcher), 10)
        finally:
            work.leave.set()
            await batcher.close()

    return asyncio.run(go())


def test_answers_come_in_the_order_of_the_question():
    work = Work()
    assert run(work, lambda batcher: batcher.answer([*range(10)])) == [*range(0, 20, 2)]
    assert [len(batch) for batch in work.batches] == [4, 4, 2]


def test_requests_that_come_together_share_a_batch():
    work = Work()

    async def several(batcher):
        return await asyncio.gather(*(batcher.answer([number]) for number in range(3)))

    assert run(work, several) == [[0], [2], [4]]
    assert work.batches == [[0, 1, 2]]


def test_a_full_batch_does_not_wait():
    async def timed(batcher):
        before = time.monotonic()
        await batcher.answer([1, 2, 3, 4])
        return time.monotonic() - before

    assert run(Work(), timed, patience=5.0) < 1.0
    assert run(Work(), lambda batcher: batcher.answer([1]), patience=0.2) == [2]


def test_no_more_wait_than_there_is_room_for():
    work = Work(held=True)

    async def overfill(batcher):
        first = asyncio.create_task(batcher.answer([1, 2, 3, 4]))
        await asyncio.sleep(0.1)  # taken out of the queue, and held
        second = asyncio.create_task(batcher.answer([5, 6, 7]))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await batcher.answer([8, 9])
        assert batcher.length == 3
        work.leave.set()
        return await first, await second, await batcher.answer([8, 9])

    assert run(work, overfill, waiting=4) == ([2, 4, 6, 8], [10, 12, 14], [16, 18])


def test_an_error_is_told_to_those_whose_batch_it_was():
    def work(items):
        if 13 in items:
            raise ValueError("thirteen")
        return [*items]

    work.leave = threading.Event()

    async def both(batcher):
        with pytest.raises(ValueError, match="thirteen"):
            await batcher.answer([12, 13])
        return await batcher.answer([14])

    assert run(work, both) == [14]


def test_a_client_that_goes_leaves_nothing_behind():
    work = Work(held=True)

    async def leave(batcher):
        held = asyncio.create_task(batcher.answer([1, 2, 3, 4]))
        await asyncio.sleep(0.1)
        gone = asyncio.create_task(batcher.answer([5, 6]))
        stays = asyncio.create_task(batcher.answer([7]))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0.01)
        assert batcher.length == 1
        work.leave.set()
        return await held, await stays

    assert run(work, leave) == ([2, 4, 6, 8], [14])
    assert work.batches == [[1, 2, 3, 4], [7]]


def test_closing_answers_those_that_wait_and_takes_no_more():
    work = Work(held=True)

    async def close(batcher):
        tasks = [asyncio.create_task(batcher.answer([number])) for number in range(9)]
        await asyncio.sleep(0.1)
        closing = asyncio.create_task(batcher.close())
        await asyncio.sleep(0)
        with pytest.raises(QueueClosed):
            await batcher.answer([1])
        work.leave.set()
        await closing
        return [await task for task in tasks]

    assert run(work, close) == [[2 * number] for number in range(9)]
