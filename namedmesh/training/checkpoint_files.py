"""The files of a checkpoint: the folder it appears in by a rename, and its record in JSON.

A checkpoint of step 10 is the folder `10`. `10.part` is being written, `10.deleted` is being
deleted, `10.damaged` was set aside. The newest is that of the largest step, whatever times say."""

from __future__ import annotations

import hashlib
import json
import math
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from namedmesh.errors.errors import NamedMeshError
from namedmesh.records.codec import read_value
from namedmesh.records.paths import sync_folder, write_file
from namedmesh.training.chunks import LARGEST_FILE, StoredArray, check_file_size, join_databases

ARRAYS = "arrays"
RECORD = "record.json"
LARGEST_CHUNK = 2**32  # bytes of one chunk, which is read and verified as a whole
_MOST_PADDING = 2**20  # padding is less than the number of shards
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


class CheckpointFolder:
    """The checkpoints in a folder."""

    def __init__(self, path: pathlib.Path):
        self.path = path

    def list_steps(self) -> list[int]:
        """Return the steps of the complete checkpoints, in order."""
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if name.isdecimal() and str(int(name)) == name)

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
            record = decode_record(read_limited(path / RECORD))
            if record.step != step:
                raise ValueError(f"{RECORD} is that of step {record.step}")
            return record

    def commit(self, record: Record, processes: int) -> None:
        """Make a checkpoint of what all processes have written."""
        part = self.part_path(record.step)
        folders = [self.process_path(record.step, index) for index in range(processes)]
        absent = [index for index, folder in enumerate(folders) if not folder.is_dir()]
        if absent:
            raise FileNotFoundError(f"process 0 does not see what process {absent[0]} wrote")
        join_databases(part / ARRAYS, folders)
        write_file(str(part / RECORD), encode_record(record), "the record")
        # All files must be on disk before the rename that makes the checkpoint complete.
        for folder, _, _ in os.walk(part):
            sync_folder(folder)
        os.rename(part, self.step_path(record.step))
        sync_folder(str(self.path))

    def delete(self, step: int) -> None:
        """Delete a checkpoint: rename it first, so that it is never there in part."""
        shutil.rmtree(self._rename(step, "deleted"), ignore_errors=True)

    def set_aside(self, step: int) -> pathlib.Path:
        """Rename a damaged checkpoint, so that its step can be saved again."""
        return self._rename(step, "damaged")

    def _rename(self, step: int, suffix: str) -> pathlib.Path:
        """Rename a checkpoint to a name that is free."""
        number, target = 1, self.path / f"{step}.{suffix}"
        while target.exists():
            number += 1
            target = self.path / f"{step}.{suffix}-{number}"
        os.rename(self.step_path(step), target)
        return target

    def remove_leftovers(self) -> None:
        """Remove what was being written or deleted when a process was killed."""
        for path in self.path.iterdir():
            step, _, suffix = path.name.partition(".")
            if step.isdecimal() and suffix.startswith(("part", "deleted")):
                shutil.rmtree(path, ignore_errors=True)


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
    return Record(int(content["step"]), variables, metrics, dict(content["extra"]))


def read_limited(path: pathlib.Path) -> bytes:
    """Read a file unless it is too large to be one of ours."""
    check_file_size(path)
    return path.read_bytes()


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


@contextmanager
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
