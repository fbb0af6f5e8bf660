"""Paths and files: every file of ours is opened here, read up to a size, written whole or not.

What is not a regular file is refused: a pipe would be waited for, and a device never ends.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
import stat
import time
from collections.abc import Iterator
from typing import Any

from namedmesh.errors.errors import NamedMeshError

# Without waiting for another process, should it be a pipe; no child process inherits it.
_SAFELY = getattr(os, "O_NONBLOCK", 0) | os.O_CLOEXEC | getattr(os, "O_NOCTTY", 0)
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_MOST_NESTED = 32  # brackets of YAML
_PATIENCE = 10.0  # seconds that a pipe may have no reader


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


class UnsafeFileError(OSError):
    """A file that is not opened, because it is not a regular one or is too large."""


def open_file(path: str | os.PathLike[str], largest: int, flags: int = os.O_RDONLY) -> int:
    """Open a regular file of at most so many bytes; return its descriptor."""
    descriptor = os.open(path, flags | _SAFELY, 0o666)
    status = os.fstat(descriptor)
    problem = ""
    if not stat.S_ISREG(status.st_mode):
        folder = stat.S_ISDIR(status.st_mode)
        problem = os.strerror(errno.EISDIR) if folder else "it is not a file"
    elif status.st_size > largest:
        problem = f"it has {status.st_size:,} bytes, more than {largest:,}"
    if problem:
        os.close(descriptor)
        raise UnsafeFileError(None, problem, os.fspath(path))
    return descriptor


def read_bytes(path: str | os.PathLike[str], largest: int, flags: int = os.O_RDONLY) -> bytes:
    """Read a regular file of at most so many bytes, which may raise an OSError."""
    with open(open_file(path, largest, flags), "rb") as file:
        # No more than it had, should it grow while it is read.
        return file.read(os.fstat(file.fileno()).st_size)


def read_file(path: str, what: str, largest: int) -> bytes:
    """Read a regular file of at most so many bytes; raise an error that names it."""
    try:
        return read_bytes(path, largest)
    except (OSError, ValueError) as error:
        problem = describe_os_error(error)
    raise NamedMeshError(f"cannot read {what} {path!r}: {problem}", fix="check the path")


def parse_yaml(text: str | bytes, what: str, fix: str) -> tuple[Any, Any]:
    """Parse YAML without aliases, which make a few bytes large; return the root node and value."""
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("it has an alias")
            return super().compose_node(parent, index)

    signs = {**dict.fromkeys(b"[{", 1), **dict.fromkeys(b"]}", -1)}
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    try:
        # What is open while a key may come is looked at again for every token.
        if max(itertools.accumulate(signs.get(one, 0) for one in data), default=0) > _MOST_NESTED:
            raise RecursionError
        loader = Loader(text)
        root = loader.get_single_node()
        return root, None if root is None else loader.construct_document(root)
    except RecursionError:
        reason = "it is nested too deeply"
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # also of dates and long numbers
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        reason = f"{' '.join(str(getattr(error, 'problem', error)).split())[:200]}{place}"
    raise NamedMeshError(f"{what} is not YAML: {reason}", fix=fix)


def check_tree(folder: str | os.PathLike[str]) -> None:
    """Raise if a folder has anything but folders and regular files, or links to such files."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                check_tree(entry.path)
            elif not entry.is_file():
                raise UnsafeFileError(None, "it is not a file", entry.path)


def write_file(path: str, data: bytes, what: str) -> None:
    """Write a file that survives a crash at any moment: the old one or the new one, whole."""
    try:
        # A link stays a link, to the new contents; a pipe or a device is written to.
        if os.path.exists(path) and not os.path.isfile(path):
            with open(_open_stream(path), "wb") as stream:
                stream.write(data)
        else:
            with replace_file(path) as temporary, open(temporary, "wb") as file:
                file.write(data)
    except (OSError, ValueError) as error:
        raise NamedMeshError(
            f"cannot write {what} {path!r}: {describe_os_error(error)}",
            fix="check the path, that you may write there, and the space that is left",
        ) from None


def _open_stream(path: str) -> int:
    """Open a pipe or a device to write to; wait a while for who reads the pipe, not for ever."""
    for left in reversed(range(100)):
        try:
            descriptor = os.open(path, os.O_WRONLY | _SAFELY)
            os.set_blocking(descriptor, True)
            return descriptor
        except OSError as error:
            if error.errno != errno.ENXIO or not left:
                raise
            time.sleep(_PATIENCE / 100)
    raise AssertionError("the last try raises")


@contextlib.contextmanager
def replace_file(path: str) -> Iterator[str]:
    """Yield the name of an empty file beside another, and put it in its place at the end."""
    path = os.path.realpath(path)
    if os.path.exists(path) and not os.path.isfile(path):  # a device would be gone
        raise UnsafeFileError(None, "it is not a file", path)
    # Nobody can have put a link there: the name is random, and the file is made by this call.
    folder = os.path.dirname(path)
    temporary = os.path.join(folder, f".{secrets.token_hex(8)}.partial")
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK, 0o666))
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise
    sync_folder(folder)


def sync_folder(folder: str) -> None:
    """Flush a rename in a folder to disk; some file systems cannot, and need not."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder or ".", os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
