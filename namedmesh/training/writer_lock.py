"""A folder of checkpoints belongs to one run at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import platform
import secrets
import weakref
from dataclasses import dataclass

from namedmesh.errors.errors import NamedMeshError

WRITER = ".writer"  # names who saves in the folder, and is locked as long as that one runs
_HELD = (errno.EACCES, errno.EAGAIN)
_TRIES = 10  # at a file that its owner removes at the same moment


@dataclass
class _Lock:
    """A locked file: its path and descriptor, who it names, and the users in this process."""

    path: pathlib.Path
    number: int
    text: str = ""
    users: int = 1
    process: int = 0

    @property
    def is_there(self) -> bool:
        """Whether it is still the file of that name, and this is not a child of its owner."""
        with contextlib.suppress(OSError):
            same = os.path.samestat(os.fstat(self.number), os.stat(self.path))
            return same and self.process == os.getpid()
        return False

    def release(self) -> None:
        """Let others have the folder once the last user is done."""
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
    """Says who saves checkpoints in a folder, and keeps other processes from it.

    The operating system gives the lock back when the process ends, however it ends. Where a file
    system has no locks, nobody is kept away.

    Attributes:
        text: What the file says; empty if it could not be written.
    """

    def __init__(self, folder: pathlib.Path):
        path = folder.resolve() / WRITER
        lock = _locks.get(path)
        if lock is not None and lock.is_there:
            lock.users += 1
        else:
            lock = _take(path)
        self.text = lock.text if lock is not None else ""
        self.release = weakref.finalize(self, lock.release) if lock is not None else lambda: None


def _take(path: pathlib.Path) -> _Lock | None:
    """Lock and sign the file; None where that is not possible."""
    lock = None
    with contextlib.suppress(OSError):  # a full disk shows when something is saved
        for _ in range(_TRIES):
            number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            lock = _Lock(path, number, process=os.getpid())
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _HELD:
                    os.close(number)
                    raise _refuse(path) from None
            if lock.is_there:
                break
            os.close(number)  # whoever had it has just removed it
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


def _refuse(path: pathlib.Path) -> NamedMeshError:
    """The error for a folder in which another process saves."""
    other = read_writer(path.parent).rpartition(" ")[0] or "another process"
    return NamedMeshError(
        f"{path.parent} is in use: {other} saves checkpoints there",
        fix=f"wait until it has ended, stop it, or use another folder; if its machine is gone, "
        f"remove {WRITER} there",
    )


def read_writer(folder: pathlib.Path) -> str:
    """Who saves in a folder, as its file says; empty if there is none."""
    with contextlib.suppress(OSError):
        return (folder / WRITER).read_text(errors="replace")[:300]
    return ""
