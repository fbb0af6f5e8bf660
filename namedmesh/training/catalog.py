"""The checkpoints in a folder as all processes know them, and the lock that makes it one run's."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import pathlib
import platform
import re
import secrets
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from namedmesh.errors.errors import NamedMeshError, join_names
from namedmesh.files import NO_LINK, UnsafeFileError, open_file, read_bytes
from namedmesh.processes.processes import AGREEMENT_SECONDS, Processes
from namedmesh.training.checkpoint_files import CheckpointFolder, Record
from namedmesh.training.saving import run_on_first

WRITER = ".writer"  # names the process that saves in the folder, and is locked while it runs
_LARGEST = 10_000  # bytes
_WRITTEN = re.compile(r"process [0-9]+ on .* [0-9a-f]{16}")
_LOCKED = (errno.EACCES, errno.EAGAIN)
_TRIES = 10  # to lock a file that its owner may be removing, or to see what process 0 has written


@dataclass(eq=False)
class CheckpointCatalog:
    """The complete checkpoints in a folder; process 0 reads and changes it for all processes."""

    files: CheckpointFolder
    processes: Processes
    keep: int | None
    metric: str
    rank: Callable[..., Any]

    def __post_init__(self) -> None:
        self._lock: WriterLock | None = None
        self._tokens = 0
        self.processes.agree("the folder of the checkpoints", str(self.files.path))
        try:
            self._metrics: dict[int, float | None] = {}
            writer, self._token, rows = self._on_first("opening", self._open)
            self._metrics = dict(rows)
            if self.processes.count > 1:
                self._check_shared(writer)
        except BaseException:
            self.close()
            raise

    def _open(self) -> tuple[str, str, list[tuple[int, float | None]]]:
        """Lock and clean the folder; return its writer, a token, and each step with its metric."""
        if self.keep is not None:
            self.files.path.mkdir(parents=True, exist_ok=True)
            self._lock = WriterLock(self.files.path)
            if self._lock.first:  # another user of this process may be writing one of them
                self.files.remove_leftovers()
        text = self._lock.text if self._lock is not None else ""
        return text, secrets.token_hex(8), self._list()

    def _list(self) -> list[tuple[int, float | None]]:
        """Return each step in the folder with its metric, which is read once."""
        return [
            (step, self._metrics[step] if step in self._metrics else self._read_metric(step))
            for step in self.files.list_steps()
        ]

    def refresh(self, together: bool = False) -> None:
        """List the folder again, where others may save; of many processes, if all call this."""
        # Each of many processes would see another list by itself, and restore another step.
        if together or self.processes.count == 1:
            self._metrics = dict(self._on_first("listing", self._list))

    def next_token(self) -> str:
        """Return a text that no other checkpoint has; all processes get the same."""
        self._tokens += 1
        return f"{self._token}-{self._tokens}"

    def close(self) -> None:
        """Release the folder."""
        if self._lock is not None:
            self._lock.release()

    def _read_metric(self, step: int) -> float | None:
        """Return the metric of a checkpoint; None if it has none, or is damaged."""
        try:
            value = self.files.read_record(step).metrics.get(self.metric)
        except NamedMeshError:
            return None
        return value if isinstance(value, int | float) and math.isfinite(value) else None

    def _check_shared(self, writer: str) -> None:
        """Raise on every process if one does not see the folder that process 0 sees."""
        text = "all"
        for _ in range(_TRIES):
            seen = self.files.list_steps()
            absent = [str(step) for step in self._metrics if step not in seen]
            text = f"no step {join_names(absent)}" if absent else "all"
            if not absent and writer and read_writer(self.files.path) != writer:
                text = "another folder than process 0"
            if text == "all":
                break
            time.sleep(0.5)  # a network file system may be late
        texts = self.processes.exchange(f"what is in {self.files.path}", text)
        others = [f"process {one} sees {text}" for one, text in enumerate(texts) if text != "all"]
        if others:
            raise NamedMeshError(
                f"{self.files.path} is not the same folder for all processes",
                *others[:8],
                fix="name a folder on a file system that all processes share",
            )

    def _on_first(self, what: str, action: Callable[[], Any]) -> Any:
        """Run a function on process 0 and return its result on all."""
        fix = "check that the folder is there and that you may write to it"
        what = f"{what} {self.files.path}"
        return run_on_first(self.processes, what, action, fix=fix, timeout=AGREEMENT_SECONDS)

    @property
    def steps(self) -> list[int]:
        """The steps in order."""
        self.refresh()
        return sorted(self._metrics)

    @property
    def best(self) -> int | None:
        """The step with the best metric; the newest if none was measured."""
        self.refresh()
        best = best_step(self._metrics, self.rank)
        return max(self._metrics, default=None) if best is None else best

    def prune(self, record: Record) -> None:
        """Delete what is not kept beside a new checkpoint; on process 0, from any thread."""
        self.refresh()
        for step in self._find_old(record):
            with contextlib.suppress(OSError):  # open in a reader; the next start removes it
                self.files.delete(step)

    def add(self, record: Record) -> None:
        """Add a new checkpoint, and remove those that are not kept beside it."""
        old = self._find_old(record)
        self._metrics[record.step] = record.metrics.get(self.metric)
        for step in old:
            self._metrics.pop(step, None)

    def _find_old(self, record: Record) -> list[int]:
        """Return the steps that are not kept beside a new checkpoint."""
        metrics = self._metrics | {record.step: record.metrics.get(self.metric)}
        newest = sorted(metrics)[-(self.keep or len(metrics)) :]
        best = best_step(metrics, self.rank)
        return [step for step in sorted(metrics) if step not in newest and step != best]

    def delete(self, step: int) -> None:
        """Delete a checkpoint, unless it is the only one."""
        if step in self._metrics and len(self._metrics) > 1:
            self._on_first("deleting from", lambda: self.files.delete(step))
            self._metrics.pop(step, None)

    def set_aside(self, step: int) -> str:
        """Rename a damaged checkpoint, so that its step can be saved again."""
        name = self._on_first("setting aside in", lambda: self.files.rename(step, "damaged").name)
        self._metrics.pop(step, None)
        return name


def best_step(metrics: dict[int, float | None], rank: Callable[..., Any]) -> int | None:
    """Return the step with the best metric, the newest of equals."""
    measured = {step: value for step, value in metrics.items() if value is not None}
    best = rank(measured.values(), default=None)
    return max((step for step, value in measured.items() if value == best), default=None)


@dataclass
class _Lock:
    """A locked file: path, descriptor, contents, users in this process, and its owner's pid."""

    path: pathlib.Path
    number: int
    text: str = ""
    users: int = 1
    process: int = 0

    @property
    def is_there(self) -> bool:
        """Check that it is still the file of that name, and that this process is its owner."""
        with contextlib.suppress(OSError):
            same = os.path.samestat(os.fstat(self.number), os.lstat(self.path))
            return same and self.process == os.getpid()
        return False

    def release(self) -> None:
        """Remove the file once the last user is done."""
        self.users -= 1
        if self.users or self.process != os.getpid():
            return
        if self.is_there:
            with contextlib.suppress(OSError):
                self.path.unlink()
        with contextlib.suppress(OSError):
            os.close(self.number)
        if _locks.get(self.path) is self:
            del _locks[self.path]


_locks: dict[pathlib.Path, _Lock] = {}  # those of this process


class WriterLock:
    """The right to save checkpoints in a folder, for all users in one process."""

    # The operating system releases the lock when the process ends, however it ends. On a file
    # system without locks, other processes are not kept away.

    def __init__(self, folder: pathlib.Path):
        path = folder.resolve() / WRITER
        lock = _locks.get(path)
        if lock is not None and lock.is_there:
            lock.users += 1
            self.first = False
        else:
            lock, self.first = _take(path), True
        self.text = lock.text if lock is not None else ""
        self.release = weakref.finalize(self, lock.release) if lock is not None else lambda: None


def _take(path: pathlib.Path) -> _Lock | None:
    """Lock the file and write the owner to it; return None where that is not possible."""
    lock = None
    with contextlib.suppress(OSError):  # a full disk shows when something is saved
        for _ in range(_TRIES):
            _check_own(path)
            number = open_file(path, _LARGEST, os.O_RDWR | os.O_CREAT | NO_LINK)
            lock = _Lock(path, number, process=os.getpid())
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _LOCKED:
                    os.close(number)
                    raise _refuse(path) from None
            if lock.is_there:
                break
            os.close(number)  # its owner has just removed it
            lock = None
    if lock is None:
        return None
    _locks[path] = lock
    text = f"process {os.getpid()} on {platform.node()} {secrets.token_hex(8)}"
    with contextlib.suppress(OSError):
        os.ftruncate(lock.number, 0)
        os.pwrite(lock.number, text.encode(), 0)
        os.fsync(lock.number)
        lock.text = text
    return lock


def _check_own(path: pathlib.Path) -> None:
    """Raise if there is something else of the lock's name, which must not be written to."""
    try:
        text = read_bytes(path, _LARGEST, os.O_RDONLY | NO_LINK).decode(errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        # A link is refused by an error number that differs between systems.
        if not isinstance(error, UnsafeFileError) and not path.is_symlink():
            raise
        text = "another"
    if text and not _WRITTEN.fullmatch(text):
        raise NamedMeshError(
            f"{path} is not the lock of a run, and nothing is written to it",
            fix="rename it, or use another folder",
        )


def _refuse(path: pathlib.Path) -> NamedMeshError:
    """Make the error for a folder in which another process saves."""
    other = read_writer(path.parent).rpartition(" ")[0] or "another process"
    return NamedMeshError(
        f"{path.parent} is in use: {other} saves checkpoints there",
        fix=f"wait until it has ended, stop it, or use another folder; if its machine is gone, "
        f"remove {WRITER} there",
    )


def read_writer(folder: pathlib.Path) -> str:
    """Return who saves in a folder, as its file says; empty if there is none."""
    with contextlib.suppress(OSError):
        data = read_bytes(folder / WRITER, _LARGEST, os.O_RDONLY | NO_LINK)
        return data.decode(errors="replace")[:300]
    return ""
