"""Paths and files: checked before use, read up to a size, written whole or not at all."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat

from namedmesh.errors.errors import NamedMeshError

_counter = itertools.count()
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)


def check_path(path: object, what: str) -> str:
    """Return a path as a string; raise if it is something else."""
    name = os.fspath(path) if isinstance(path, os.PathLike) else path
    if isinstance(name, str) and name and "\0" not in name and _encodes(name):
        return name
    shown = f"{path!r}" if isinstance(path, (str, bytes)) else f"a {type(path).__name__}"
    raise NamedMeshError(
        f"{what} is {shown}, expected a path", fix="give a string or a pathlib.Path"
    )


def _encodes(name: str) -> bool:
    """Return whether the file system can have a name; it has no lone surrogates."""
    try:
        os.fsencode(name)
    except UnicodeError:
        return False
    return True


def describe_os_error(error: Exception) -> str:
    """Return what the operating system says, without the path."""
    return getattr(error, "strerror", None) or str(error)


def read_file(path: str, what: str, largest: int) -> bytes:
    """Read a regular file of at most so many bytes."""
    try:
        # Without waiting for another process to write, should it be a pipe.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NO_WAIT)) as file:
            status = os.fstat(file.fileno())
            problem = ""
            if not stat.S_ISREG(status.st_mode):
                problem = "it is not a file"
            elif status.st_size > largest:
                problem = f"it has {status.st_size} bytes, more than {largest}"
            else:
                return file.read(status.st_size + 1)
    except (OSError, ValueError) as error:
        problem = describe_os_error(error)
    raise NamedMeshError(f"cannot read {what} {path!r}: {problem}", fix="check the path")


def write_file(path: str, data: bytes, what: str) -> None:
    """Write a file that survives a crash at any moment: the old one or the new one, whole."""
    try:
        # A link stays a link, to the new contents; a pipe or a device is written to.
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "wb") as stream:
                stream.write(data)
        else:
            _replace_file(os.path.realpath(path), data)
    except (OSError, ValueError) as error:
        raise NamedMeshError(
            f"cannot write {what} {path!r}: {describe_os_error(error)}",
            fix="check the path, that you may write there, and the space that is left",
        ) from None


def _replace_file(path: str, data: bytes) -> None:
    """Write a file beside another, then put it in its place."""
    temporary = f"{path}.{os.getpid()}.{next(_counter)}.partial"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise
    sync_folder(os.path.dirname(path))


def sync_file(path: str | os.PathLike[str]) -> None:
    """Flush a file to disk, so that it survives a crash of the machine."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: str) -> None:
    """Flush a rename in a folder to disk; some file systems cannot, and need not."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
