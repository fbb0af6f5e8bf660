"""A folder of checkpoints belongs to one run at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import platform
import secrets

from namedmesh.dims.errors import NamedMeshError

WRITER = ".writer"  # names who saves in the folder, and is locked as long as that one runs
_HELD = (errno.EACCES, errno.EAGAIN)


class WriterLock:
    """Says who saves checkpoints in a folder, and keeps others from it.

    The operating system gives the lock back when the process ends, however it ends. Where a file
    system has no locks, nobody is kept away.

    Args:
        folder: The folder, which exists.

    Raises:
        NamedMeshError: If another process saves there.
    """

    def __init__(self, folder: pathlib.Path):
        self.text, self._path, self._number = "", folder / WRITER, None
        with contextlib.suppress(OSError):  # a full disk shows when something is saved
            while self._number is None:
                self._number = self._try()
            self._sign()

    def _try(self) -> int | None:
        """Open and lock the file; None if whoever had it has just removed it."""
        number = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _HELD:
                os.close(number)
                raise self._refuse() from None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(number), os.stat(self._path)):
                return number
        os.close(number)
        return None

    def _refuse(self) -> NamedMeshError:
        """The error for a folder in which another process saves."""
        other = read_writer(self._path.parent).rpartition(" ")[0] or "another process"
        return NamedMeshError(
            f"{self._path.parent} is in use: {other} saves checkpoints there",
            fix="wait until it has ended, stop it, or use another folder",
        )

    def _sign(self) -> None:
        """Write who has the lock, so that others can name it and know the folder by it."""
        assert self._number is not None
        text = f"process {os.getpid()} on {platform.node()} {secrets.token_hex(8)}"
        os.ftruncate(self._number, 0)
        os.pwrite(self._number, text.encode(), 0)
        os.fsync(self._number)
        self.text = text

    def release(self) -> None:
        """Let others save there."""
        if self._number is not None:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(self._number), os.stat(self._path)):
                    self._path.unlink()
            os.close(self._number)
            self._number = None


def read_writer(folder: pathlib.Path) -> str:
    """Who saves in a folder, as its file says; empty if there is none.

    Args:
        folder: The folder.

    Returns:
        The text.
    """
    with contextlib.suppress(OSError):
        return (folder / WRITER).read_text(errors="replace")[:300]
    return ""
