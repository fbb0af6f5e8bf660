"""The files of a checkpoint: the folder it appears in by a rename, and its record in JSON.

A checkpoint of step 10 is the folder `10`. `10.part` is being written, `10.deleted` is being
deleted, `10.damaged` was set aside. The newest is that of the largest step, whatever times say.
Each of them has a file `namedmesh`, written first and deleted last: nothing else is deleted."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import pathlib
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from namedmesh.errors.errors import NamedMeshError
from namedmesh.files import NO_LINK, UnsafeFileError, read_bytes, sync_folder, write_file
from namedmesh.records.codec import read_value
from namedmesh.training.chunks import LARGEST_FILE, StoredArray, join_databases

ARRAYS = "arrays"
RECORD = "record.json"
MARK = "namedmesh"
LARGEST_CHUNK = 2**32  # bytes of one chunk, which is read and verified as a whole
_MOST_PADDING = 2**20  # padding is less than the number of shards
_MARK_TEXT = "a checkpoint of namedmesh, token "
_NUMBER = "(?:0|[1-9][0-9]*)"
_LEFTOVER = re.compile(
    rf"{_NUMBER}\.(?:part|deleted(?:-{_NUMBER})?)|\.{_NUMBER}\.part-[0-9a-f]{{16}}"
)
# The files that we and tensorstore write, by their paths in the folder of a checkpoint.
_OWN = re.compile(
    rf"{re.escape(RECORD)}|\.[0-9a-f]{{16}}\.partial"
    rf"|{ARRAYS}/(?:process_{_NUMBER}/)?(?:manifest\.ocdbt|d/[0-9a-f]{{32}})(?:\.__lock)?"
)
_HEAD, _MIDDLE = b'{"sha256": "', b'", "record": '
_UNREACHABLE = ("PERMISSION_DENIED", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")


class DamagedCheckpoint(NamedMeshError):
    """A checkpoint whose files are missing, torn or changed."""


@dataclass(frozen=True)
class Record:
    """Everything in a checkpoint but the values of its variables."""

    step: int
    variables: Mapping[str, StoredArray]
    metrics: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    token: str = ""  # is in the database too: arrays of another checkpoint have another one


class CheckpointFolder:
    """The checkpoints in a folder."""

    def __init__(self, path: pathlib.Path):
        self.path = path

    def list_steps(self) -> list[int]:
        """Return the steps of the complete checkpoints, in order."""
        return [step for step in self.list_numbers() if self._is_checkpoint(self.step_path(step))]

    def list_numbers(self) -> list[int]:
        """Return the names that are numbers, in order: steps, and what else is called so."""
        names = os.listdir(self.path) if self.path.is_dir() else []
        return sorted(int(name) for name in names if re.fullmatch(_NUMBER, name))

    def _is_checkpoint(self, path: pathlib.Path) -> bool:
        """Return whether a folder has something of a checkpoint, damaged or not."""
        return any(os.path.lexists(path / name) for name in (RECORD, ARRAYS, MARK))

    def step_path(self, step: int) -> pathlib.Path:
        """Return the path of a complete checkpoint."""
        return self.path / str(step)

    def part_path(self, step: int) -> pathlib.Path:
        """Return the path of a checkpoint while it is written."""
        return self.path / f"{step}.part"

    def process_path(self, step: int, process: int) -> pathlib.Path:
        """Return the path where one process writes its arrays."""
        return self.part_path(step) / ARRAYS / f"process_{process}"

    def read_record(self, step: int) -> Record:
        """Read and verify the record of a checkpoint."""
        path = self.step_path(step)
        with report_damage(path):
            record = decode_record(read_bytes(path / RECORD, LARGEST_FILE))
            if record.step != step:
                raise ValueError(f"{RECORD} is that of step {record.step}")
            return record

    def start(self, record: Record, process: int) -> pathlib.Path:
        """Make the folder of a checkpoint, unless another process has; return a process's part."""
        part = self.part_path(record.step)
        if self._read_mark(part) != record.token:
            self._make_part(part, record.token)
        own = self.process_path(record.step, process)
        if (part / ARRAYS).is_symlink():
            raise UnsafeFileError(None, "it is a link", str(part / ARRAYS))
        own.mkdir(parents=True, exist_ok=True)
        return own

    def _make_part(self, part: pathlib.Path, token: str) -> None:
        """Make a folder with its mark by a rename, so that it never exists without."""
        fresh = self.path / f".{part.name}-{secrets.token_hex(8)}"
        os.mkdir(fresh)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK
            with open(os.open(fresh / MARK, flags, 0o666), "w", encoding="utf-8") as file:
                file.write(f"{_MARK_TEXT}{token}\n")
                file.flush()
                os.fsync(file.fileno())
            sync_folder(str(fresh))
            os.rename(fresh, part)  # fails if there is a link, a file, or a folder with files
        except OSError as error:
            _remove_own_files(fresh)
            if self._read_mark(part) == token:
                return  # another process was faster
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                problem = "it is in the way, and was not written by this run"
                raise UnsafeFileError(None, problem, str(part)) from None
            raise

    def _read_mark(self, path: pathlib.Path) -> str | None:
        """Return the token in the mark of a folder, which is no link; None without one."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if not path.is_symlink():
                text = read_bytes(path / MARK, 1000, os.O_RDONLY | NO_LINK).decode()
                if text.startswith(_MARK_TEXT):
                    return text.removeprefix(_MARK_TEXT).strip()
        return None

    def commit(self, record: Record, processes: int) -> None:
        """Make a checkpoint of what all processes have written."""
        part = self.part_path(record.step)
        folders = [self.process_path(record.step, index) for index in range(processes)]
        absent = [index for index, folder in enumerate(folders) if not folder.is_dir()]
        if absent:
            raise FileNotFoundError(f"process 0 does not see what process {absent[0]} wrote")
        join_databases(part / ARRAYS, folders, record.token)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part / RECORD)  # a link would be followed, and a pipe waited for
        write_file(str(part / RECORD), encode_record(record), "the record")
        # All files must be on disk before the rename that makes the checkpoint complete.
        for folder, _, _ in os.walk(part):
            sync_folder(folder)
        os.rename(part, self.step_path(record.step))
        sync_folder(str(self.path))

    def delete(self, step: int) -> None:
        """Delete a checkpoint: rename it first, so that it is never there in part."""
        path = self.step_path(step)
        if self._read_mark(path) is None or path.is_symlink():
            raise UnsafeFileError(None, "namedmesh has not written it, so it stays", str(path))
        _remove_own_files(self.rename(step, "deleted"))

    def rename(self, step: int, suffix: str) -> pathlib.Path:
        """Rename a checkpoint to a name that is free, so that its step can be saved again."""
        number, target = 1, self.path / f"{step}.{suffix}"
        while os.path.lexists(target):
            number += 1
            target = self.path / f"{step}.{suffix}-{number}"
        os.rename(self.step_path(step), target)
        return target

    def remove_leftovers(self) -> None:
        """Remove what was being written or deleted when a process was killed."""
        for path in self.path.iterdir():
            if not _LEFTOVER.fullmatch(path.name) or path.is_symlink():
                continue
            if self._read_mark(path) is not None:
                _remove_own_files(path)
            else:
                with contextlib.suppress(OSError):  # an empty folder is all that is left
                    path.rmdir()

    def remove_part(self, record: Record) -> None:
        """Remove what was written of a checkpoint that was started, and failed."""
        # Without a mark it was deleted meanwhile, and made again by what tensorstore writes.
        part = self.part_path(record.step)
        if self._read_mark(part) in (record.token, None) and not part.is_symlink():
            _remove_own_files(part)


def _remove_own_files(path: pathlib.Path) -> None:
    """Remove the files that we write to the folder of a checkpoint; what else is there stays."""
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            file = pathlib.Path(folder, name)
            if _OWN.fullmatch(file.relative_to(path).as_posix()) and not file.is_symlink():
                with contextlib.suppress(OSError):
                    file.unlink()
        if folder != str(path):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
    with contextlib.suppress(OSError):
        if os.listdir(path) == [MARK]:  # the last file: until then this is known to be ours
            (path / MARK).unlink()
        path.rmdir()


def encode_record(record: Record) -> bytes:
    """Encode a record as JSON that begins with the checksum of the rest."""
    body = json.dumps(vars(record), default=vars).encode()
    if len(body) > LARGEST_FILE - 100:
        raise NamedMeshError(
            f"extra takes {len(json.dumps(record.extra)):,} bytes as JSON, and all of a "
            f"checkpoint's JSON may take {LARGEST_FILE:,}",
            fix="save what is large in a file of its own, and its name in extra",
        )
    return b"".join([_HEAD, hashlib.sha256(body).hexdigest().encode(), _MIDDLE, body, b"}"])


def decode_record(data: bytes) -> Record:
    """Decode the contents of a record's file."""
    start = len(_HEAD) + 64 + len(_MIDDLE)
    body = data[start:-1]
    if data[:start] != _HEAD + hashlib.sha256(body).hexdigest().encode() + _MIDDLE:
        raise ValueError(f"the checksum of {RECORD} differs from its contents")
    # The checksum keeps accidents out. Whoever wrote the file on purpose can make one that fits.
    try:
        content = json.loads(body)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    variables = read_value(content["variables"], dict[str, StoredArray])
    for name, stored in variables.items():
        _check_sizes(name, stored)
    metrics = {name: float(value) for name, value in content["metrics"].items()}
    token = read_value(content["token"], str)
    return Record(int(content["step"]), variables, metrics, dict(content["extra"]), token)


def _check_sizes(name: str, stored: StoredArray) -> None:
    """Raise if the sizes of a variable do not fit each other."""
    sizes, shape, chunk = stored.sizes, stored.shape, stored.chunk
    fits = len(sizes) == len(shape) == len(chunk) <= 32 and all(
        0 < size <= padded < min(size + _MOST_PADDING, 2**62) and 0 < part <= padded
        for size, padded, part in zip(sizes, shape, chunk, strict=True)
    )
    if not fits or math.prod(chunk) * jnp.dtype(stored.dtype).itemsize > LARGEST_CHUNK:
        texts = (str(one)[:80] for one in (sizes, shape, chunk))
        raise ValueError(f"{name} has sizes, shape and chunks {', '.join(texts)}")


@contextlib.contextmanager
def report_damage(path: pathlib.Path) -> Iterator[None]:
    """Turn whatever reading a checkpoint raises into a NamedMeshError."""
    where = f"the checkpoint of step {path.name} in {path.parent}"
    try:
        yield
    except NamedMeshError:
        raise
    except Exception as error:  # tensorstore raises many kinds, Exception itself too
        unreachable = any(word in str(error) for word in _UNREACHABLE)
        if unreachable or isinstance(error, PermissionError | MemoryError):
            fix = "check that you may read the files, and that the machine has memory left"
            raise NamedMeshError(f"{where} cannot be read", shorten_error(error), fix=fix) from None
        raise DamagedCheckpoint(
            f"{where} is damaged",
            shorten_error(error),
            fix=f"delete {path} to continue from an older one, or train again",
        ) from None


def shorten_error(error: BaseException) -> str:
    """Describe in one line what went wrong with a file."""
    if isinstance(error, NamedMeshError):
        return error.problem
    if isinstance(error, OSError) and error.strerror:
        place = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{place}"
    # tensorstore appends its whole configuration to a message.
    text = str(error).split(" [tensorstore_spec=")[0].split(" [source locations=")[0]
    return f"{type(error).__name__}: {text[:400]}"
