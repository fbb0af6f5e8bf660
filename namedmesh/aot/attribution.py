"""Buffers: the largest values that a core holds, by the names of the plan."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from namedmesh.artifacts.artifact import Artifact
from namedmesh.artifacts.description import TensorSpec
from namedmesh.audit.hlo.array_types import ArrayType
from namedmesh.audit.hlo.module import Module
from namedmesh.audit.hlo.opcodes import COMMUNICATING
from namedmesh.audit.hlo.values import find_allocations

_ENTRY = re.compile(r"arguments\[(\d+)\]$")  # what jax calls an argument of a step
_OP = re.compile(r"nm\.(\w+\.\d+)")  # what namedmesh calls the scope of an op


@dataclass(frozen=True)
class Buffer:
    """Memory that a value takes on a core.

    Attributes:
        bytes: How much.
        shape: Its shape there, as text.
        origin: The tensor, entry or op it belongs to.
        count: How many are alike.

    Example:
        >>> from namedmesh.aot import Buffer
        >>> buffer = Buffer(4096, "f32[32,32]", "w", count=3)
        >>> buffer.bytes * buffer.count
        12288
    """

    bytes: int
    shape: str
    origin: str
    count: int = 1


def entry_bytes(artifact: Artifact, module: Module) -> list[tuple[TensorSpec, int]]:
    """The bytes that each entry of a step takes on a core."""
    entries = [*artifact.inputs, *artifact.variables]
    return [(spec, type.bytes) for spec, type in zip(entries, module.parameters, strict=True)]


def largest_buffers(artifact: Artifact, module: Module, count: int = 8) -> list[Buffer]:
    """The largest values of a compiled step that need memory of their own."""
    alike: Counter[tuple[int, str, str]] = Counter()
    for (spec, size), type in zip(entry_bytes(artifact, module), module.parameters, strict=True):
        alike[size, str(type), spec.name] += 1
    for value in find_allocations(module):
        opcode, op_name = value.instruction.opcode, value.instruction.op_name
        together = len(value.arrays) > 1 and opcode in COMMUNICATING
        for array in value.arrays:
            if together:
                origin = f"one of {len(value.arrays)} in an {opcode}"
            else:
                origin = find_origin(op_name, array, artifact)
            alike[array.bytes, str(array), origin] += 1
    buffers = [Buffer(size, shape, origin, n) for (size, shape, origin), n in alike.items()]
    return _largest(buffers, count)


def known_buffers(artifact: Artifact, count: int = 8) -> list[Buffer]:
    """The largest tensors that the manifest knows: entries, and whatever is communicated."""
    buffers = [
        Buffer(spec.bytes_per_device(artifact.mesh), spec.sharded_text, spec.name)
        for spec in (*artifact.inputs, *artifact.variables)
    ]
    for one in artifact.collectives:
        shape = f"{one.dtype}[{one.elements}]"
        buffers.append(Buffer(one.bytes, shape, _result_texts(one.op, artifact)[0]))
    return _largest(buffers, count)


def find_origin(op_name: str, array: ArrayType | None, artifact: Artifact) -> str:
    """The entry or tensor that a buffer holds, or for which an op gathers another."""
    entry = _ENTRY.search(op_name)
    if entry:
        return [*artifact.inputs, *artifact.variables][int(entry[1])].name
    ops = _OP.findall(op_name)
    if not ops:
        return "the compiler"
    op, texts = ops[-1], _result_texts(ops[-1], artifact)
    sizes = _above_one(array.sizes) if array else []
    record = artifact.ops.get(op)
    for spec, text in zip(record.results, texts, strict=True) if record else ():
        if _above_one(spec.sharding.local_sizes(spec.shape, artifact.mesh)) == sizes:
            return text
    for one in artifact.collectives:
        if array and one.op == op and one.elements == array.elements:
            return f"{one.tensor}, moved for {texts[0]}"
    return texts[0]


def _result_texts(op: str, artifact: Artifact) -> list[str]:
    """What an op makes, a line for each result; its name if the manifest does not know it."""
    record = artifact.ops.get(op)
    return record.texts if record and record.results else [op]


def _above_one(sizes: tuple[int, ...]) -> list[int]:
    """The sizes that count when shapes are compared: compilers add and drop sizes of one."""
    return [size for size in sizes if size > 1]


def _largest(buffers: list[Buffer], count: int) -> list[Buffer]:
    """The largest buffers, those of equal size by name."""
    return sorted(buffers, key=lambda buffer: (-buffer.bytes, buffer.origin))[:count]
