"""Streams of batches: each batch comes with the position after it, from which to continue."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from namedmesh.errors.errors import NamedMeshError

Item = TypeVar("Item")


class Stream(Protocol):
    """The batches of a Trainer: any object with these two members, whatever its class.

    Example:
        >>> from namedmesh.training import Stream
        >>> class Lines:
        ...     digest = "three lines"
        ...     def read_from(self, position):
        ...         for number in range(position or 0, 3):
        ...             yield {"line": number}, number + 1
        >>> stream: Stream = Lines()
        >>> list(stream.read_from(1))
        [({'line': 1}, 2), ({'line': 2}, 3)]
    """

    @property
    def digest(self) -> str:
        """A name of the data; a run only continues with data of the same digest."""
        ...

    def read_from(self, position: Any) -> Iterator[tuple[Any, Any]]:
        """Iterate over pairs of a batch and the position after it.

        Args:
            position: A position that came with a batch, a JSON value; None for the beginning.

        Returns:
            An iterator over the pairs.
        """
        ...


class NumberedBatches:
    """A stream whose batches are a function of their number.

    Args:
        make_batch: The batch of each number, from 0.
        digest: A name of the data.

    Example:
        >>> from namedmesh.training import NumberedBatches
        >>> stream = NumberedBatches(lambda number: {"x": number * 10})
        >>> next(stream.read_from(2))
        ({'x': 20}, 3)
    """

    def __init__(self, make_batch: Callable[[int], Any], digest: str = ""):
        self.make_batch, self.digest = make_batch, digest

    def read_from(self, position: int | None) -> Iterator[tuple[Any, int]]:
        """Iterate over pairs of a batch and the number of the next one.

        Args:
            position: The number of the first batch; None for 0.

        Yields:
            The pairs.
        """
        number = position or 0
        while True:
            yield self.make_batch(number), number + 1
            number += 1


def prefetch(items: Iterable[Item], depth: int = 2) -> Generator[Item, None, None]:
    """Make items ahead of time in a thread, which ends when the iterator is closed or dropped.

    Args:
        items: The items; an error in making one is raised in its place.
        depth: How many items to make ahead, at least 1.

    Yields:
        The same items.

    >>> from namedmesh.training import prefetch
    >>> list(prefetch(range(4)))
    [0, 1, 2, 3]
    """
    if depth < 1:  # no item would ever be made
        raise NamedMeshError(f"depth={depth!r}", fix="make at least one item ahead")
    ready: queue.SimpleQueue = queue.SimpleQueue()
    room, closed = threading.Semaphore(depth), threading.Event()

    def work() -> None:
        try:
            iterator = iter(items)
            while room.acquire() and not closed.is_set():
                ready.put((next(iterator), None))
        except BaseException as error:
            ready.put((None, error))

    thread = threading.Thread(target=work, name="prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            room.release()
            yield item
    finally:
        closed.set()
        room.release()
        thread.join()
