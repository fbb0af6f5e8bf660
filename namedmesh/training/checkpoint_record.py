"""The record of a checkpoint: what it holds, as JSON with a checksum, read within limits."""

from __future__ import annotations

import hashlib
import json
import math
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from namedmesh.errors.errors import NamedMeshError
from namedmesh.training.saved_variables import SavedVariable

RECORD = "record.json"
LARGEST_RECORD = 64 * 2**20  # bytes of JSON that are read; what is larger is not ours
LARGEST_CHUNK = 2**32  # bytes of one chunk, which is read and checked as a whole
_MOST_PADDING = 2**20  # padding is less than the number of shards
_HEAD, _MIDDLE = b'{"sha256": "', b'", "record": '


@dataclass(frozen=True)
class StoredArray:
    """An array as a checkpoint has it.

    Attributes:
        sizes: The variable's sizes.
        dtype: Its dtype.
        shape: The sizes with the padding that the layout added.
        chunk: The sizes of the chunks that the array is cut into, each with its checksum.
    """

    sizes: tuple[int, ...]
    dtype: str
    shape: tuple[int, ...]
    chunk: tuple[int, ...]

    @property
    def variable(self) -> SavedVariable:
        """Size and dtype without padding."""
        return SavedVariable(self.sizes, self.dtype)


@dataclass(frozen=True)
class Record:
    """What a checkpoint holds: everything but the values of its variables."""

    step: int
    variables: Mapping[str, StoredArray]
    metrics: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


def encode_record(record: Record) -> bytes:
    """Encode a record as JSON that begins with the checksum of the rest.

    >>> encode_record(Record(10, {}))[:12], decode_record(encode_record(Record(10, {}))).step
    (b'{"sha256": "', 10)
    """
    content = {
        "step": record.step,
        "metrics": dict(record.metrics),
        "variables": {name: vars(stored) for name, stored in record.variables.items()},
        "extra": dict(record.extra),
    }
    body = json.dumps(content).encode()
    if len(body) > LARGEST_RECORD - 100:
        raise NamedMeshError(
            f"extra takes {len(json.dumps(content['extra'])):,} bytes as JSON, and all of a "
            f"checkpoint's JSON may take {LARGEST_RECORD:,}",
            fix="save what is large in a file of its own, and its name in extra",
        )
    return b"".join([_HEAD, hashlib.sha256(body).hexdigest().encode(), _MIDDLE, body, b"}"])


def decode_record(data: bytes) -> Record:
    """Decode the contents of a record's file."""
    start = len(_HEAD) + 64 + len(_MIDDLE)
    body = data[start:-1]
    if data[:start] != _HEAD + hashlib.sha256(body).hexdigest().encode() + _MIDDLE:
        raise ValueError(f"the checksum of {RECORD} differs from its contents")
    content = parse_content(body)
    if not isinstance(content, dict):
        raise ValueError(f"{RECORD} has no object")
    variables = {
        str(name): _decode_array(name, stored)
        for name, stored in _mapping(content, "variables").items()
    }
    metrics = {
        name: float(value)
        for name, value in _mapping(content, "metrics").items()
        if isinstance(value, int | float)
    }
    return Record(int(content["step"]), variables, metrics, _mapping(content, "extra"))


def read_limited(path: pathlib.Path) -> bytes:
    """Read a file of JSON unless it is too large to be one of ours."""
    check_file_size(path)
    return path.read_bytes()


def check_file_size(path: pathlib.Path) -> None:
    """Raise if a file that is read as a whole is too large to be one of ours."""
    size = path.stat().st_size
    if size > LARGEST_RECORD:
        raise ValueError(f"{path.name} has {size:,} bytes, more than {LARGEST_RECORD:,}")


def parse_content(data: bytes) -> Any:
    """Parse JSON that anybody may have written."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def _mapping(content: Mapping[str, Any], key: str) -> dict[str, Any]:
    """An object of the record."""
    value = content.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"{key} is a {type(value).__name__}, expected an object")
    return value


def _decode_array(name: str, stored: object) -> StoredArray:
    """A variable of the record, with sizes that fit each other."""
    if not isinstance(stored, dict):
        raise ValueError(f"{name} is a {type(stored).__name__}, expected an object")
    sizes, shape, chunk = (_sizes(name, stored.get(key)) for key in ("sizes", "shape", "chunk"))
    dtype = stored.get("dtype")
    if not isinstance(dtype, str):
        raise ValueError(f"{name} has no dtype")
    padded = len(sizes) == len(shape) == len(chunk) and all(
        size <= whole < size + _MOST_PADDING and part <= whole
        for size, whole, part in zip(sizes, shape, chunk, strict=True)
    )
    if not padded or math.prod(chunk) * jnp.dtype(dtype).itemsize > LARGEST_CHUNK:
        raise ValueError(f"{name} has sizes {sizes}, shape {shape} and chunks of {chunk}")
    return StoredArray(sizes, dtype, shape, chunk)


def _sizes(name: str, values: object) -> tuple[int, ...]:
    """A list of sizes."""
    if not isinstance(values, list) or len(values) > 32:
        raise ValueError(f"{name} has sizes {str(values)[:80]}")
    if not all(type(one) is int and 0 < one < 2**62 for one in values):
        raise ValueError(f"{name} has sizes {str(values)[:80]}")
    return tuple(values)
