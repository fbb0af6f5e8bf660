"""A checkpoint on its way to disk: held or copied at once, written by a thread, then committed."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import pathlib
import queue
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from namedmesh.errors.errors import NamedMeshError, name_all
from namedmesh.files import NO_LINK
from namedmesh.processes.launched import abandoned, tell_launcher
from namedmesh.processes.processes import Processes
from namedmesh.training.checkpoint_files import CheckpointFolder, Record, shorten_error
from namedmesh.training.chunks import Bounds, ChunkWriter, choose_chunk, shards_to_write

PIECE_CHUNKS = 2  # copied at once: a step starts between two pieces, and each takes time to start
BATCH_BYTES = 64 * 2**20  # written and synchronized together
PEER_SECONDS = 600.0  # for a process that has written or read its part to wait for the others
_LONGEST_PAUSE = 0.05  # seconds between two pieces from a device
_READERS = 4  # threads: one does not use all of a device's link
_LOWEST = 19  # priority: what the step leaves is enough for files
_NO_SPACE = ("no space left", "quota", "file too large", "resource_exhausted")

DeviceShard = tuple[str, Bounds, jax.Array]
HostShard = tuple[str, Bounds, np.ndarray]


@dataclass(eq=False)
class BackgroundSave:
    """One checkpoint, saved by a thread in each process."""

    folder: CheckpointFolder
    record: Record
    processes: Processes
    memory: HostMemory
    finish: Callable[[Record], None]

    def __post_init__(self) -> None:
        self.step, self.error = self.record.step, None
        self._queue: queue.SimpleQueue[HostShard | None] = queue.SimpleQueue()
        self._interrupted, self._started = "", False
        # Alone, a process finishes its checkpoint before it exits. One of several must not: it
        # would wait for others that are gone.
        self._thread = threading.Thread(
            target=self._run, name=f"checkpoint {self.step}", daemon=self.processes.count > 1
        )

    def start(self, arrays: Mapping[str, jax.Array]) -> None:
        """Read this process's shards while the thread writes them, as memory allows."""
        try:
            shards = list(shards_to_write(arrays))
            late = self.memory.copy_on_devices(shards)
        except BaseException as error:
            self._interrupt(error)
            self._queue.put(None)  # what the thread would wait for
            raise
        finally:
            self._thread.start()  # only now: it takes turns with the thread that takes steps
        if late is None:
            self._read(self.memory.read_all, shards)
        else:
            parts = self.memory.read_late, late
            threading.Thread(target=self._read, args=parts, daemon=True).start()

    def _read(self, read: Callable[..., None], shards: list[DeviceShard]) -> None:
        """Read shards and pass them on."""
        try:
            read(shards, self._queue.put)
        except BaseException as error:
            self._interrupt(error)
            raise
        finally:
            self._queue.put(None)

    def _interrupt(self, error: BaseException) -> None:
        """Note why not all shards are passed on."""
        self._interrupted = f"the state could not be copied: {shorten_error(error)}"

    def wait(self) -> None:
        """Wait until the checkpoint is complete, on every process."""
        self._thread.join()
        if self.error is not None:  # raised again: the thread has no line of the user's
            raise NamedMeshError(self.error.problem, *self.error.details, fix=self.error.fix)

    def _run(self) -> None:
        """Write, agree with the others, commit."""
        try:
            self._agree(self._write_all())
            self._run_on_first("commit of checkpoints", self._commit)
            tell_launcher(saved=self.step)
        except NamedMeshError as error:
            self.error = error
        except BaseException as error:  # reported by `wait`
            self.error = self._failure(shorten_error(error))
        lower_pool_priority()  # of threads that the commit started

    def _commit(self) -> None:
        """Complete the checkpoint, or remove its files; on process 0."""
        try:
            self.folder.commit(self.record, self.processes.count)
        except (OSError, ValueError) as error:
            self._remove_part()
            raise self._failure(shorten_error(error)) from None
        self.finish(self.record)

    def _agree(self, problem: str) -> None:
        """Raise on every process if one could not write its part."""
        what = f"outcome of saving to {self.folder.path}"
        texts = self.processes.exchange(what, f"{problem}.", timeout=PEER_SECONDS)
        failed = {index: text[:-1] for index, text in enumerate(texts) if text != "."}
        if not failed:
            return
        self._run_on_first("clearing up", self._remove_part)
        if self.processes.count == 1:
            raise self._failure(problem)
        details = [f"process {index}: {text}" for index, text in failed.items()]
        who = name_all("process", [str(index) for index in failed], "processes")
        raise self._failure(f"{who} could not write", *details[:8])

    def _run_on_first(self, what: str, action: Callable[[], None]) -> None:
        """Run a function on process 0 while the others wait."""
        what, advice = f"{what} in {self.folder.path}", self._advice("")
        run_on_first(self.processes, what, action, fix=advice, timeout=PEER_SECONDS)

    def _remove_part(self) -> None:
        """Remove what was written, so that the step can be saved again."""
        if self._started:
            self.folder.remove_part(self.record)

    def _write_all(self) -> str:
        """Write every shard that is read; return what went wrong, or an empty string."""
        own = self.folder.process_path(self.step, self.processes.index)
        problems: list[str] = []
        under_way: deque[tuple[Any, list[HostShard]]] = deque()
        with contextlib.ExitStack() as stack:
            with _collect(problems):
                own = self.folder.start(self.record, self.processes.index)
                self._started = True
                is_there = stack.enter_context(_hold(own))
            writer = ChunkWriter(own, self.record.variables, declares=self.processes.first)
            for batch in self._batches():
                written = None
                if abandoned.is_set():
                    problems.append("the program is left")
                if not problems:
                    with _collect(problems):
                        written = writer.write(batch)
                        lower_pool_priority()
                under_way.append((written, batch))
                # One batch is written while the next is collected, unless there is none yet: the
                # one being written may be all that memory allows.
                while len(under_way) > 1 or (under_way and self._queue.empty()):
                    written, batch = under_way.popleft()
                    with _collect(problems):
                        if written is not None:
                            written.result()
                    count = sum(values.nbytes for _, _, values in batch)
                    batch.clear()
                    self.memory.release(count)
            if not problems and not is_there():
                problems.append(f"{own} vanished while it was written")
        return self._interrupted or "".join(problems[:1])

    def _batches(self) -> Iterator[list[HostShard]]:
        """Yield the shards in batches; at least one, which may be empty."""
        ended = False
        while not ended:
            batch, size = list[HostShard](), 0
            with contextlib.suppress(queue.Empty):
                while size < BATCH_BYTES and not ended:
                    shard = self._queue.get(block=not batch)
                    ended = shard is None
                    if shard is not None:
                        batch.append(shard)
                        size += shard[2].nbytes
            yield batch

    def _failure(self, problem: str, *details: str) -> NamedMeshError:
        """Make the error of a save that failed."""
        return NamedMeshError(
            f"step {self.step} could not be saved in {self.folder.path}: {problem}",
            *details,
            fix=self._advice(" ".join([problem, *details])),
        )

    def _advice(self, problem: str) -> str:
        """Return what to do about a problem."""
        if any(words in problem.lower() for words in _NO_SPACE):
            return "free space on that disk or raise the quota, and save again"
        if "does not see" in problem:
            return "name a folder on a file system that all processes share"
        return "check that the folder is there and that you may write to it, and save again"


class HostMemory:
    """Shards on their way to disk: at most so many bytes at once, or one that is larger."""

    def __init__(self, limit: int | None):
        self._limit, self._held, self._changed = limit, 0, threading.Condition()
        self._spare: dict[Any, int] = {}  # bytes that devices have had for copies
        self.stepped = False  # whether the devices' peaks count a step

    def copy_on_devices(self, shards: list[DeviceShard]) -> list[DeviceShard] | None:
        """Copy shards, in pieces, on their devices, whose steps go on; None without memory."""
        # Free is what no step has used so far: before the first save there may have been none.
        needed: Counter[Any] = Counter()
        for _, _, data in shards:
            needed[data.device] += data.nbytes
        stepped, self.stepped = self.stepped, True
        for device, count in needed.items():
            if not stepped or count > max(unused_bytes(device), self._spare.get(device, 0)):
                return None
        try:
            copies = cut_on_devices(shards)
        except jax.errors.JaxRuntimeError:
            return None
        self._spare = dict(needed)
        return copies

    def read_all(self, shards: list[DeviceShard], put: Callable[[HostShard], object]) -> None:
        """Read shards, some at once, and pass each on; the list gets empty, so that they can go."""

        def read_one(name: str, bounds: Bounds, data: jax.Array) -> None:
            put((name, bounds, self.read(data)))

        while shards and shards[-1][2].device.platform == "cpu":  # no copy: threads take longer
            read_one(*shards.pop())
        with ThreadPoolExecutor(_READERS) as pool:
            results = [pool.submit(read_one, *shards.pop()) for _ in range(len(shards))]
        for one in results:
            one.result()

    def read_late(self, pieces: list[DeviceShard], put: Callable[[HostShard], object]) -> None:
        """Read pieces from devices one by one, with pauses, and pass each on."""
        # jax holds Python's lock while it copies, and the devices' own: steps start in between.
        while pieces:
            name, bounds, data = pieces.pop(0)
            jax.block_until_ready(data)
            start = time.perf_counter()
            put((name, bounds, self.read(data)))
            time.sleep(min(time.perf_counter() - start, _LONGEST_PAUSE))

    def read(self, data: jax.Array) -> np.ndarray:
        """Wait until so much may be held, and return the values, which no later step changes."""
        with self._changed:
            self._changed.wait_for(lambda: self._may_hold(data.nbytes))
            self._held += data.nbytes
        # In the host's memory this is a view, not a copy: as long as it is there, jax lets no step
        # overwrite what it shows, and gives other memory to what would. jax keeps it with the
        # array that was read: that is another one of the same data, so that both can go.
        data = jax.make_array_from_single_device_arrays(data.shape, data.sharding, [data])
        return np.asarray(data)

    def _may_hold(self, count: int) -> bool:
        """Return whether so many more bytes may be held."""
        return self._limit is None or not self._held or self._held + count <= self._limit

    def release(self, count: int) -> None:
        """Stop to count bytes that are written."""
        with self._changed:
            self._held -= count
            self._changed.notify_all()


def cut_on_devices(shards: list[DeviceShard]) -> list[DeviceShard]:
    """Copy shards on their devices, cut into whole chunks of their files: one program for each."""
    pieces: list[DeviceShard] = []
    for device, own in group_by_device(shards).items():
        made = iter(compile_cut(device, own)(*(data for _, _, data in own)))
        for name, bounds, data in own:
            starts = [start for start, _ in bounds]
            for box in _list_boxes(data.shape, data.dtype):
                ends = zip(starts, box, strict=True)
                place = tuple((start + low, start + high) for start, (low, high) in ends)
                pieces.append((name, place, next(made)))
    return pieces


def group_by_device(shards: Iterable[DeviceShard]) -> dict[Any, list[DeviceShard]]:
    """Return the shards of each device."""
    own: dict[Any, list[DeviceShard]] = defaultdict(list)
    for shard in shards:
        own[shard[2].device].append(shard)
    return own


def compile_cut(device: Any, shards: Iterable[DeviceShard]) -> jax.stages.Compiled:
    """Compile what copies and cuts shards on their device, or find it."""
    return _compile_cut(device, tuple((data.shape, data.dtype) for _, _, data in shards))


@functools.lru_cache(maxsize=64)
def _compile_cut(
    device: Any, kinds: tuple[tuple[tuple[int, ...], np.dtype], ...]
) -> jax.stages.Compiled:
    """Compile what copies and cuts arrays of some shapes and dtypes."""
    place = jax.sharding.SingleDeviceSharding(device)

    def cut(*arrays: jax.Array) -> list[jax.Array]:
        return [
            jnp.copy(data[tuple(slice(*ends) for ends in box)])
            for data in arrays
            for box in _list_boxes(data.shape, data.dtype)
        ]

    arrays = (jax.ShapeDtypeStruct(*kind, sharding=place) for kind in kinds)
    return jax.jit(cut).lower(*arrays).compile()


def _list_boxes(shape: tuple[int, ...], dtype: np.dtype) -> list[Bounds]:
    """Return the pieces that an array is cut into: chunks, or a few neighbours at once."""
    piece = [*choose_chunk(shape, dtype.itemsize)]
    cut = [axis for axis, size in enumerate(shape) if size > piece[axis]]
    if cut and shape[cut[-1]] // piece[cut[-1]] % PIECE_CHUNKS == 0:
        piece[cut[-1]] *= PIECE_CHUNKS
    sides = zip(shape, piece, strict=True)
    spans = ([(i, i + part) for i in range(0, size, max(part, 1))] for size, part in sides)
    return list(itertools.product(*spans))


def unused_bytes(device: Any) -> int:
    """Return the bytes of a device that nothing has used so far; 0 where that is not known."""
    usage = device.memory_stats() or {}
    return usage.get("bytes_limit", 0) - usage.get("peak_bytes_in_use", 0)


def lower_pool_priority() -> None:
    """Let tensorstore's threads, which encode and write, yield to the step (Linux only)."""
    # They take after whoever used tensorstore first, such as a restore before the steps. A thread
    # that runs Python keeps its priority: it may hold the lock that the next step waits for.
    for thread in pathlib.Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):  # it has just ended
            if (thread / "comm").read_text().startswith("ts_pool"):
                os.setpriority(os.PRIO_PROCESS, int(thread.name), _LOWEST)


@contextlib.contextmanager
def _collect(problems: list[str]) -> Iterator[None]:
    """Note what goes wrong and continue: everything read must be taken from the queue."""
    try:
        yield
    except Exception as error:
        problems.append(shorten_error(error))


@contextlib.contextmanager
def _hold(folder: pathlib.Path) -> Iterator[Callable[[], bool]]:
    """Keep a folder open, and yield a check that it is still the one at its path."""
    # A folder that was removed and made again is another one, and has lost its files.
    descriptor = os.open(folder, os.O_RDONLY | NO_LINK)

    def is_there() -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(folder))
        except OSError:
            return False

    try:
        yield is_there
    finally:
        os.close(descriptor)


def run_on_first(
    processes: Processes, what: str, action: Callable[[], Any], *, fix: str, timeout: float
) -> Any:
    """Run a function on process 0 and return its result on all processes; all must call it."""
    answer: dict[str, Any] = {}
    if processes.first:
        try:
            answer["result"] = action()
        except NamedMeshError as error:
            answer |= {"problem": error.problem, "details": error.details, "fix": error.fix}
        except (OSError, ValueError) as error:
            answer |= {"problem": shorten_error(error), "details": [], "fix": fix}
    texts = processes.exchange(what, json.dumps(answer), timeout=timeout)
    answer = json.loads(texts[0])
    if "problem" in answer:
        raise NamedMeshError(answer["problem"], *answer["details"], fix=answer["fix"])
    return answer["result"]
