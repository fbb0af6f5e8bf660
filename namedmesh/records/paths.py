"""Paths and files: checked before use, written whole or not at all."""

from __future__ import annotations

import contextlib
import itertools
import os

from namedmesh.errors.errors import NamedMeshError

_counter = itertools.count()


def check_path(path: object, what: str) -> str:
    """Return a path as a string, or raises if it is something else."""
    name = os.fspath(path) if isinstance(path, os.PathLike) else path
    if isinstance(name, str) and name and "\0" not in name and _encodes(name):
        return name
    shown = f"{path!r}" if isinstance(path, (str, bytes)) else f"a {type(path).__name__}"
    raise NamedMeshError(
        f"{what} is {shown}, expected a path", fix="give a string or a pathlib.Path"
    )


def _encodes(name: str) -> bool:
    """Whether the file system can have a name: lone surrogates it cannot."""
    try:
        os.fsencode(name)
    except UnicodeError:
        return False
    return True


def describe_os_error(error: Exception) -> str:
    """What the operating system says, without the path."""
    return getattr(error, "strerror", None) or str(error)


def write_file(path: str, data: bytes, what: str) -> None:
    """Write a file that survives a crash at any moment: the old one or the new one, whole.

    A link stays a link, to the new contents. A pipe or a device is written to, not replaced.
    """
    try:
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
    """Write a file beside another, and then puts it in its place."""
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
    """Make what was written to a file last, through a crash of the machine too."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: str) -> None:
    """Make a rename in a folder last; some file systems cannot, and need not."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
