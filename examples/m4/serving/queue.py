"""The queue of a service: requests wait, are translated several at a time, and get their answer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any


class QueueFull(Exception):
    """So many questions wait that no more are taken."""


class QueueClosed(Exception):
    """The service stops, and takes no more questions."""


@dataclass
class Waiting:
    """A question that waits, since when, and where its answer goes."""

    question: Any
    answer: asyncio.Future[Any]
    since: float = field(default_factory=time.monotonic)


class Batcher:
    """Hands questions of many requests to one function together, a batch after the other.

    A batch starts when it is full, or when its first question has waited for `patience` seconds
    while nothing else ran.

    Args:
        work: Answers questions, in order; it runs in a thread of its own.
        most: The questions of a batch, at most.
        waiting: The questions that may wait, at most.
        patience: How long a batch that is not full waits for more, in seconds.
    """

    def __init__(
        self,
        work: Callable[[list[Any]], Sequence[Any]],
        *,
        most: int,
        waiting: int,
        patience: float = 0.01,
    ):
        self.work, self.most, self.waiting, self.patience = work, most, waiting, patience
        self.answered = self.batches = 0
        self._queue: list[Waiting] = []
        self._arrived = asyncio.Event()
        self._closed = False
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="translate")

    @property
    def length(self) -> int:
        """Return the number of questions wait."""
        return len(self._queue)

    @property
    def closed(self) -> bool:
        """Return whether the queue takes no more questions."""
        return self._closed

    def start(self) -> None:
        """Begin to answer; called in the loop that serves."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def answer(self, questions: Sequence[Any]) -> list[Any]:
        """Wait for the answers to questions.

        Raises:
            QueueFull: If there is no room for all of them.
            QueueClosed: If the service stops.
        """
        if self._closed:
            raise QueueClosed
        if len(self._queue) + len(questions) > self.waiting:
            raise QueueFull
        loop = asyncio.get_running_loop()
        mine = [Waiting(question, loop.create_future()) for question in questions]
        self._queue += mine
        self._arrived.set()
        try:
            return list(await asyncio.gather(*(one.answer for one in mine)))
        except asyncio.CancelledError:  # the client has gone: nobody waits for these
            gone = {id(one) for one in mine}
            self._queue = [one for one in self._queue if id(one) not in gone]
            raise

    async def close(self) -> None:
        """Take no more questions, answer those that wait, and stop."""
        self._closed = True
        self._arrived.set()
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._thread.shutdown()

    async def _run(self) -> None:
        """Answer batches until the queue is closed and empty."""
        loop = asyncio.get_running_loop()
        while not self._closed or self._queue:
            if not self._queue:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            if len(self._queue) < self.most and not self._closed:
                left = self._queue[0].since + self.patience - time.monotonic()
                if left > 0:
                    await asyncio.sleep(left)
            batch, self._queue = self._queue[: self.most], self._queue[self.most :]
            batch = [one for one in batch if not one.answer.done()]
            if not batch:
                continue
            try:
                answers = await loop.run_in_executor(
                    self._thread, self.work, [one.question for one in batch]
                )
            except Exception as error:  # every one of them is told
                for one in batch:
                    if not one.answer.done():
                        one.answer.set_exception(error)
                continue
            self.batches += 1
            for one, found in zip(batch, answers, strict=True):
                if not one.answer.done():
                    one.answer.set_result(found)
                    self.answered += 1
