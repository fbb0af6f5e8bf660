"""Memory of a compiled step: bytes by use, largest buffers, and advice when it does not fit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from namedmesh.artifacts.artifact import Artifact
from namedmesh.artifacts.description import TensorSpec, VariableSpec
from namedmesh.audit.hlo.array_types import ArrayType, parse_type
from namedmesh.audit.hlo.communication import COMMUNICATING
from namedmesh.audit.hlo.module import Module
from namedmesh.audit.hlo.values import find_allocations
from namedmesh.display.html import html_block, html_table
from namedmesh.display.text import human
from namedmesh.errors.errors import NamedMeshError
from namedmesh.errors.mistakes import Explained
from namedmesh.runtime.executable import Report

_ENTRY = re.compile(r"arguments\[(\d+)\]$")  # what jax calls an argument of a step
_OP = re.compile(r"nm\.(\w+\.\d+)")  # what namedmesh calls the scope of an op


@dataclass(frozen=True)
class Buffer:
    """A value that takes memory on a core.

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
    """Return the bytes that each entry of a step takes on a core."""
    entries = [*artifact.inputs, *artifact.variables]
    return [(spec, type.bytes) for spec, type in zip(entries, module.parameters, strict=True)]


def largest_buffers(artifact: Artifact, module: Module, count: int = 8) -> list[Buffer]:
    """Return the largest values of a compiled step that need memory of their own."""
    alike: Counter[tuple[int, str, str]] = Counter()
    for (spec, size), type in zip(entry_bytes(artifact, module), module.parameters, strict=True):
        alike[size, str(type), spec.name] += 1
    for value in find_allocations(module):
        opcode, op_name = value.instruction.opcode, value.instruction.op_name
        together = len(value.arrays) > 1 and opcode in COMMUNICATING
        for array in value.arrays:
            origin = f"one of {len(value.arrays)} in an {opcode}"
            origin = origin if together else find_origin(op_name, array, artifact)
            alike[array.bytes, str(array), origin] += 1
    buffers = [Buffer(size, shape, origin, n) for (size, shape, origin), n in alike.items()]
    return _largest(buffers, count)


def known_buffers(artifact: Artifact, count: int = 8) -> list[Buffer]:
    """Return the largest tensors of the manifest: entries, and operands of collectives."""
    sizes = _planned_bytes(artifact)
    buffers = [Buffer(size, spec.sharded_text, spec.name) for spec, size in sizes]
    for one in artifact.collectives:
        shape = f"{one.dtype}[{one.elements}]"
        buffers.append(Buffer(one.bytes, shape, _result_texts(one.op, artifact)[0]))
    return _largest(buffers, count)


def find_origin(op_name: str, array: ArrayType | None, artifact: Artifact) -> str:
    """Find the entry or tensor of a buffer, or the op that gathers it."""
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
    """Return an op's results, a line each; its name if the manifest does not have it."""
    record = artifact.ops.get(op)
    return record.texts if record and record.results else [op]


def _above_one(sizes: tuple[int, ...]) -> list[int]:
    """Return the sizes above one: compilers add and drop sizes of one."""
    return [size for size in sizes if size > 1]


def _largest(buffers: list[Buffer], count: int) -> list[Buffer]:
    """Return the largest buffers, those of equal size by name."""
    return sorted(buffers, key=lambda buffer: (-buffer.bytes, buffer.origin))[:count]


@dataclass(frozen=True)
class Memory(Explained):
    """A core's bytes by use.

    Attributes:
        weights: Trained variables.
        state: Optimizer slots, counters and other state.
        inputs: The other inputs of a step.
        results: Results that are not donated state.
        activations: Values that loops of the forward pass store for the backward pass, as planned.
        temporaries: Other values within a step.
        code: The program.

    Example:
        >>> from namedmesh.aot import Memory
        >>> memory = Memory(weights=400, state=800, inputs=64, results=4, activations=128,
        ...                 temporaries=32, code=0)
        >>> memory.total
        1428
    """

    weights: int
    state: int
    inputs: int
    results: int
    activations: int
    temporaries: int
    code: int

    @property
    def total(self) -> int:
        """The sum of all."""
        return sum(vars(self).values())

    @property
    def rows(self) -> list[tuple[str, str]]:
        """The rows of a table for people."""
        labels = {"state": "optimizer and other state"}
        labels["activations"] = "activations that loops keep, as planned"
        return [(labels.get(name, name), human(size)) for name, size in vars(self).items()]

    def _repr_html_(self) -> str:
        table = html_table(("use", "bytes"), self.rows, ("bytes",))
        return html_block(f"memory of a core: {human(self.total)}", table)


def attribute_memory(artifact: Artifact, report: Report, module: Module) -> Memory:
    """Divide a compiled step's bytes by use."""
    used = report.argument_bytes, report.temporary_bytes
    results = report.output_bytes - report.aliased_bytes
    return _divide(artifact, entry_bytes(artifact, module), *used, results, report.code_bytes)


def estimate_memory(artifact: Artifact, needed: int) -> Memory:
    """Divide a total by use as the manifest has it, without padding and results."""
    sizes = _planned_bytes(artifact)
    between = sum(size for _, size in sizes)
    return _divide(artifact, sizes, between, max(needed - between, 0))


Sizes = Sequence[tuple[TensorSpec, int]]


def _planned_bytes(artifact: Artifact) -> Sizes:
    """Return the bytes that each entry of a step takes on a core, by the manifest."""
    entries = (*artifact.inputs, *artifact.variables)
    return [(spec, spec.bytes_per_device(artifact.mesh)) for spec in entries]


def _divide(
    artifact: Artifact, sizes: Sizes, between: int, within: int, results: int = 0, code: int = 0
) -> Memory:
    """Divide the bytes that are allocated between steps and within one by use."""
    variables = [(spec, size) for spec, size in sizes if isinstance(spec, VariableSpec)]
    weights = sum(size for spec, size in variables if spec.parameter)
    inputs = sum(size for spec, size in sizes if not isinstance(spec, VariableSpec))
    state = between - weights - inputs
    activations = min(artifact.activation_bytes, within)
    return Memory(weights, state, inputs, results, activations, within - activations, code)


_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)i?B?"
_FIRST_SIZE = re.compile(_SIZE)
# The needed and the available bytes, in the forms that compilers write them.
_TOTALS = (
    re.compile(rf"Used {_SIZE} of {_SIZE}"),
    re.compile(rf"Requires {_SIZE}, has {_SIZE} available"),
    re.compile(rf"temporaries \({_SIZE}\) exceeds available \w+ \({_SIZE}\)"),
)
_ALLOCATION = re.compile(r"\n\s*\d+\. Size: ")
_OPERATOR = re.compile(r'op_name="([^"]*)"')
_SHAPE = re.compile(r"Shape: (\S+\])")
_PARAMETER = re.compile(r"parameter\((\d+)\)")


@dataclass(frozen=True)
class Exhausted:
    """A compiler's message that a program does not fit: needed and available bytes, buffers."""

    needed: int
    available: int
    buffers: tuple[Buffer, ...] = ()


def read_exhaustion(message: str, artifact: Artifact) -> Exhausted | None:
    """Read a compiler's out-of-memory message."""
    # What the brief form calls temporaries is everything: a model that is a little too deep has, by
    # that number, the memory that shallower ones grow towards, weights and all.
    if "RESOURCE_EXHAUSTED" not in message and "CompileTimeHbmOom" not in message:
        return None
    totals = read_totals(message)
    return Exhausted(*totals, tuple(_allocations(message, artifact))) if totals else None


def read_totals(message: str) -> tuple[int, int] | None:
    """Return the needed and the available bytes of an out-of-memory message."""
    for pattern in _TOTALS:
        if match := pattern.search(message):
            return _bytes(match[1], match[2]), _bytes(match[3], match[4])
    return None


def _allocations(message: str, artifact: Artifact) -> list[Buffer]:
    """Return the allocations a message lists, those of entries under the entry's name."""
    entries, buffers = [*artifact.inputs, *artifact.variables], []
    for block in _ALLOCATION.split(message)[1:]:
        size = _FIRST_SIZE.match(block)
        operator = _OPERATOR.search(block)
        array = _array(block)
        number = _PARAMETER.search(block)
        origin = find_origin(operator[1] if operator else "", array, artifact)
        if number and int(number[1]) < len(entries):
            origin = entries[int(number[1])].name
        shape = "" if array is None else str(array)
        buffers.append(Buffer(_bytes(size[1], size[2]) if size else 0, shape, origin))
    return buffers


def _array(block: str) -> ArrayType | None:
    """Return the first array of an allocation's shape; None if it cannot be read."""
    match = _SHAPE.search(block)
    try:
        return parse_type(match[1].lstrip("(")).arrays[0] if match else None
    except NamedMeshError:
        return None


def _bytes(number: str, unit: str) -> int:
    """Return a size in bytes."""
    return int(float(number) * _UNITS[unit])


def find_levers(artifact: Artifact, memory: Memory) -> list[str]:
    """Return advice that would make a step smaller, the most effective first."""
    within = memory.activations + memory.temporaries + memory.results
    kept = memory.activations if artifact.activation_bytes else within
    waste, example = _find_replicated(artifact)
    moved = max((one.bytes for one in artifact.collectives if one.kind == "AllToAll"), default=0)
    results = (spec for record in artifact.ops.values() for spec in record.results)
    narrow = any(spec.dtype == "bfloat16" for spec in results)
    several = _find_several(artifact)
    levers = {
        # Gradients are sharded as their weights are, hence twice.
        f"layout: keep weights, slots and gradients in shards with params=; {example}": 2 * waste,
        "optimizer: its state is larger than the weights; a factored one (Adafactor) keeps less":
        memory.state / 2 if memory.state > memory.weights else 0,
        "remat: compute activations again in the backward pass, "
        "remat='full' in nm.scan or the model's Config": kept,
        "dtype: activations in bfloat16 take half the memory, "
        "dtype='bfloat16' in the model's Config": 0 if narrow else within / 2,
        several: within / 2 if several else 0,
        f"capacity: one buffer of dispatched tokens is {moved:,} bytes; lower the capacity factor":
        2 * moved,
    }  # fmt: skip
    ranked = sorted(levers, key=lambda text: -levers[text])
    return [text for text in ranked if levers[text] > 0.02 * memory.total]


def _find_replicated(artifact: Artifact) -> tuple[float, str]:
    """Find the bytes that sharding variables over every axis would save, and an example."""
    waste, largest, example = 0.0, 0, ""
    mesh = artifact.mesh
    for spec in artifact.variables:
        wide = [axis for axis, size in mesh.axes.items() if size > 1]
        idle = [axis for axis in wide if axis not in spec.sharding.used]
        if idle and spec.shape:
            size = spec.bytes_per_device(mesh)
            waste += size * (1 - 1 / mesh.size(idle))
            text = f"{spec.name} is {spec.sharded_text}, not split over {'+'.join(idle)}"
            largest, example = max((largest, example), (size, text))
    return waste, example


def _find_several(artifact: Artifact) -> str:
    """Describe the first sharded dimension of the inputs of which a core has several."""
    for spec in artifact.inputs:
        shards = spec.sharding.local_sizes(spec.shape, artifact.mesh)
        for dim, here in zip(spec.shape, shards, strict=True):
            if spec.sharding.axes(dim.name) and here > 1:
                return f"group size: a core has {here} of {dim}; activations shrink with it"
    return ""
