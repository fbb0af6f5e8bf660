"""Findings: what a compiled step sends or holds without need, its line, what it costs, the fix."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from namedmesh.audit.hlo.communication import CASTABLE, CompiledCollective
from namedmesh.audit.hlo.origins import RESHAPING, HloValue, array_dtype, follow_back
from namedmesh.dims.mesh import Mesh
from namedmesh.display.text import human
from namedmesh.errors.source import Source
from namedmesh.inspect.attribution import Attribution, is_carried
from namedmesh.records.collective import Collective
from namedmesh.records.tensor import UNKNOWN, TensorRecord

SMALLEST = 2**10  # bytes sent in one step that are worth a finding
LARGEST_WHOLE = 2**20  # bytes of an argument that may be whole on every device
_SLICES = ("dynamic-slice", "slice")
_CAST = (*RESHAPING, "convert")
# What readers do with each element by itself: of a slice, they would read a slice.
_ELEMENTWISE = (
    "abs", "add", "divide", "exponential", "log", "logistic", "maximum", "minimum", "multiply",
    "negate", "power", "rsqrt", "select", "sqrt", "subtract", "tanh",
)  # fmt: skip
_MOST = 100  # readers of a tensor
_CONSTRAIN = "jax.lax.with_sharding_constraint"
Pair = tuple[CompiledCollective, Collective]  # as compiled, and as plans have it


@dataclass(frozen=True)
class StepFinding:
    """One thing to fix in a step."""

    kind: str  # such as `gathered twice`
    message: str
    fix: str
    bytes: int  # that a device sends, or holds, in vain
    source: Source = UNKNOWN  # the user's line, if one causes it

    def __str__(self) -> str:
        at = f" at {self.source}: {self.source.code}" if self.source.line else ""
        return f"{self.kind}: {self.message}, {human(self.bytes)} in vain{at}; fix: {self.fix}"


def find_all(
    pairs: Sequence[Pair], tensors: Sequence[TensorRecord], mesh: Mesh, attribution: Attribution
) -> tuple[StepFinding, ...]:
    """Return everything that is found, the most bytes first."""
    found = [*_find_whole(tensors, mesh), *_find_unused(pairs, tensors, mesh)]
    gathered: set[object] = set()
    opcodes = {one.opcode for _, one in attribution.module.instructions()}
    accelerated = any(opcode.startswith("all-") and opcode[-6:] == "-start" for opcode in opcodes)
    for compiled, one in pairs:
        tensor = attribution.tensor_of(compiled)
        source = follow_back(tensor, _CAST)
        readers = [] if compiled.combined else _find_readers(compiled, attribution)
        opcodes = {value.instruction.opcode for value in readers}
        kind, what, fix, share = "", "", "", 1.0
        key = (source.key, one.kind, one.axes, one.phase)
        if one.kind in ("AllGather", "AllReduce") and opcodes and opcodes <= {*_SLICES}:
            largest = max(value.instruction.type.arrays[0].elements for value in readers)
            # CPUs have no ReduceScatter: there, all sums of shards are such.
            if largest * one.devices <= one.elements and (accelerated or one.kind == "AllGather"):
                kind, what = "whole, then sliced", "makes whole of what each device keeps a slice"
                fix, share = f"constrain it to its reader's sharding: {_CONSTRAIN}", 0.5
        if one.times > 1 and _is_constant(source, attribution):
            kind, what = "repeated in a loop", f"runs {one.times} times on what never changes"
            fix, share = f"gather it before the loop: {_CONSTRAIN}", 1 - 1 / one.times
        # CPUs send bfloat16 as float32.
        narrow = opcodes == {"convert"} and {*map(array_dtype, readers)} == {"bfloat16"}
        if accelerated and one.dtype == "float32" and one.kind in CASTABLE and narrow:
            kind, what = "sent as float32", "sends float32 of which all is read as bfloat16"
            fix, share = "cast it to bfloat16 where it is still split", 0.5
        if one.kind == "AllGather" and key in gathered:
            kind, what = "gathered twice", "gathers what was gathered before"
            fix = f"gather it once, and give both readers that: {_CONSTRAIN}"
        gathered.add(key)
        size = int(one.total_wire_bytes * share)
        if kind and size >= SMALLEST:
            of = f"the {one.kind} of {one.tensor} over {'+'.join(one.axes)}"
            found.append(StepFinding(kind, f"{of} {what}", fix, size, one.source))
    return tuple(sorted(found, key=lambda one: -one.bytes))


def _find_readers(compiled: CompiledCollective, attribution: Attribution) -> list[HloValue]:
    """Return what reads the tensor that is received, past what keeps its elements."""
    left, found = [compiled.value], []
    while left and len(found) < _MOST:
        value = left.pop()
        for reader, _ in value.readers(attribution.readers) if value is not None else ():
            opcode = reader.instruction.opcode
            keeps = opcode in ("parameter", *RESHAPING, *_ELEMENTWISE) or opcode.endswith("-done")
            (left if keeps else found).append(reader)
    return found


def _is_constant(value: HloValue, attribution: Attribution) -> bool:
    """Return whether a value is one that the loop around it never changes."""
    index = int(value.instruction.attributes.get("index", -1))
    return is_carried(value) and (value.computation.name, index) in attribution.constants


def _find_whole(tensors: Sequence[TensorRecord], mesh: Mesh) -> Iterator[StepFinding]:
    """Find large arguments that are whole, where an axis splits those beside them."""
    for one in tensors:
        family = re.split(r"[\[.]", one.tensor)[0]
        beside = [other for other in tensors if re.split(r"[\[.]", other.tensor)[0] == family]
        split = [other for other in beside if "/" in other.place]
        least = max([LARGEST_WHOLE, *(other.bytes_per_device for other in split)])
        if split and "/" not in one.place and one.bytes_per_device >= least:
            axis = re.findall(r"/(\w+)", split[0].place)[0]
            size = one.bytes_per_device * (mesh.axes.get(axis, 1) - 1) // mesh.axes.get(axis, 1)
            message = f"{one.tensor} {one.place} is on every device, and {split[0].tensor} is split"
            fix = f"split it over {axis} too; a rename may have broken the rule that names it"
            yield StepFinding("whole", message, fix, size)


def _find_unused(
    pairs: Sequence[Pair], tensors: Sequence[TensorRecord], mesh: Mesh
) -> Iterator[StepFinding]:
    """Find mesh axes along which everything is the same."""
    used = {axis for one in tensors for axis in re.findall(r"[/+](\w+|\?)", one.place)}
    used |= {axis for _, one in pairs for axis in one.axes}
    for axis, size in mesh.axes.items():
        if size > 1 and axis not in used and "?" not in used:
            message = f"all {size} devices along {axis} hold and compute the same"
            fix = f"split a dimension over {axis}, or leave the axis out"
            yield StepFinding("unused axis", message, fix, 0)
