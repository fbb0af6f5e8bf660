"""Streams of batches: each batch comes with the position after it, from which to continue."""

from __future__ import annotations

import base64
import os
import pathlib
import queue
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from namedmesh.errors.errors import NamedMeshError

Item = TypeVar("Item")
_BYTES = "base64 of the state"
_SECONDS = 5.0  # for the thread to end: what makes items may wait for ever


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


class IteratorBatches:
    """A stream of any iterator that tells its state and takes one: a run goes on where it was.

    The state is what `get_state()` returns (grain), `state_dict()` (torchdata), or what
    tf.train.Checkpoint writes of an iterator of tf.data. Where every process iterates over whole
    batches, as here, it is the same in all of them, and exact with other processes.

    Args:
        make_iterator: Makes the iterator, at its beginning.
        digest: A name of the data.

    Example:
        >>> from namedmesh.training import IteratorBatches
        >>> class Count:
        ...     number = 0
        ...     def __iter__(self): return self
        ...     def __next__(self):
        ...         self.number += 1
        ...         return {"x": self.number}
        ...     def get_state(self): return {"number": self.number}
        ...     def set_state(self, state): self.number = state["number"]
        >>> _, position = next(IteratorBatches(Count).read_from(None))
        >>> next(IteratorBatches(Count).read_from(position))
        ({'x': 2}, {'number': 2})
    """

    def __init__(self, make_iterator: Callable[[], Iterator[Any]], digest: str = ""):
        self.make_iterator, self.digest = make_iterator, digest

    def read_from(self, position: Any) -> Iterator[tuple[Any, Any]]:
        """Iterate over pairs of a batch and the state of the iterator after it.

        Args:
            position: A state that came with a batch; None for the beginning.

        Yields:
            The pairs.
        """
        iterator = self.make_iterator()
        read, write = _find_state(iterator)
        if position is not None:
            write(_from_json(position))
        for batch in iterator:
            yield batch, _to_json(read())


def _find_state(iterator: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """Return the functions that read and write the state of an iterator."""
    for names in (("get_state", "set_state"), ("state_dict", "load_state_dict")):
        read, write = (getattr(iterator, name, None) for name in names)
        if callable(read) and callable(write):
            return read, write
    if type(iterator).__module__.startswith("tensorflow."):
        tensorflow: Any = sys.modules["tensorflow"]  # whoever made the iterator has imported it
        checkpoint = tensorflow.train.Checkpoint(iterator=iterator)
        return lambda: _write_files(checkpoint), lambda files: _read_files(checkpoint, files)
    raise NamedMeshError(
        f"a {type(iterator).__name__} does not tell its state",
        fix="give an iterator with get_state() and set_state(), one of tf.data, or use "
        "NumberedBatches",
    )


def _write_files(checkpoint: Any) -> dict[str, bytes]:
    """Return the files of a checkpoint of TensorFlow."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.write(os.path.join(folder, "state"))
        return {one.name: one.read_bytes() for one in pathlib.Path(folder).iterdir()}


def _read_files(checkpoint: Any, files: dict[str, bytes]) -> None:
    """Restore a checkpoint of TensorFlow from its files."""
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            pathlib.Path(folder, os.path.basename(name)).write_bytes(data)
        checkpoint.read(os.path.join(folder, "state")).assert_consumed()


def _to_json(state: Any) -> Any:
    """Return a state as values that JSON has: bytes in base64."""
    if isinstance(state, bytes):
        return {_BYTES: base64.b64encode(state).decode()}
    if isinstance(state, dict):
        return {name: _to_json(value) for name, value in state.items()}
    return [_to_json(one) for one in state] if isinstance(state, list) else state


def _from_json(value: Any) -> Any:
    """Return the state that `_to_json` was given."""
    if isinstance(value, dict):
        if [*value] == [_BYTES]:
            return base64.b64decode(value[_BYTES])
        return {name: _from_json(one) for name, one in value.items()}
    return [_from_json(one) for one in value] if isinstance(value, list) else value


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
        thread.join(_SECONDS)
