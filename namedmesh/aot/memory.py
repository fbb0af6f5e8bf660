"""Memory: what a core's bytes are made of, which buffers are the largest, and what a compiler says when they do not fit."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass

from namedmesh.hlo.collectives import KINDS
from namedmesh.hlo.schedule import Schedule, plain_shape, shape_bytes
from namedmesh.runtime.artifact import Artifact, TensorSpec
from namedmesh.runtime.bridge import dtype_of
from namedmesh.runtime.executable import Report

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)i?B?"


@dataclass(frozen=True)
class Buffer:
    """Memory that a value takes on a core: its bytes and shape there, the named op or entry it is of, how many are alike."""

    bytes: int
    shape: str
    origin: str
    count: int = 1


@dataclass(frozen=True)
class Memory:
    """A core's bytes by what they hold."""

    weights: int
    state: int  # optimizer slots, counters and whatever else lives from step to step
    inputs: int
    results: int  # beyond what takes the place of old state
    activations: int  # kept of the forward pass's loops for the backward pass, as planned
    temporaries: int  # whatever else lives within a step
    code: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(vars(self).values())


@dataclass(frozen=True)
class Exhausted:
    """A compiler's message that a program does not fit: the bytes it needs and has, and the buffers it lists."""

    needed: int
    available: int
    buffers: tuple[Buffer, ...]


def attributed(artifact: Artifact, report: Report, schedule: Schedule) -> Memory:
    """A compiled step's bytes by what they hold; report has the compiler's totals."""
    return Memory(
        **_between(_named(artifact, schedule), report.argument_bytes),
        results=report.output_bytes - report.aliased_bytes,
        **_within(artifact, report.temporary_bytes),
        code=report.code_bytes,
    )


def presumed(artifact: Artifact, lack: Exhausted) -> Memory:
    """A step's bytes as the manifest and a message of missing memory have them, padding and results left out."""
    sizes = [(spec, _piece(spec, artifact)) for spec in (*artifact.inputs, *artifact.variables)]
    kept = sum(size for _, size in sizes)
    return Memory(
        **_between(sizes, kept), results=0, **_within(artifact, max(lack.needed - kept, 0)), code=0
    )


def _between(sizes: list[tuple[TensorSpec, int]], bytes: int) -> dict[str, int]:
    """What is there between steps: weights, inputs, and all else as state."""
    weights = sum(size for spec, size in sizes if getattr(spec, "trainable", False))
    inputs = sum(size for spec, size in sizes if not hasattr(spec, "trainable"))
    return {"weights": weights, "state": bytes - weights - inputs, "inputs": inputs}


def _within(artifact: Artifact, bytes: int) -> dict[str, int]:
    """What lives within a step: activations and other temporaries."""
    activations = min(artifact.activation_bytes, bytes)
    return {"activations": activations, "temporaries": bytes - activations}


def known_buffers(artifact: Artifact, count: int = 8) -> list[Buffer]:
    """The largest tensors that the manifest knows: entries, and whatever is communicated."""
    found = [
        Buffer(_piece(spec, artifact), spec.sharded_text, spec.name)
        for spec in (*artifact.inputs, *artifact.variables)
    ]
    found += [
        Buffer(
            one["bytes"],
            f"{one['dtype']}[{one['elements']}]",
            artifact.ops.get(one["op"], [one["op"]])[0],
        )
        for one in artifact.collectives
    ]
    return sorted(found, key=lambda buffer: (-buffer.bytes, buffer.origin))[:count]


def _piece(spec: TensorSpec, artifact: Artifact) -> int:
    """The bytes of one device's piece of an entry."""
    held = [axis for axes in spec.held.values() for axis in axes]
    return (
        math.prod(spec.padded(artifact.mesh))
        // artifact.mesh.size(held)
        * dtype_of(spec.dtype).itemsize
    )


def _named(artifact: Artifact, schedule: Schedule) -> list[tuple[TensorSpec, int]]:
    """Every entry with the bytes it takes on a core."""
    return [
        (spec, shape_bytes(type))
        for spec, type in zip(
            [*artifact.inputs, *artifact.variables], schedule.entries, strict=True
        )
    ]


def origin(op_name: str, shape: str, artifact: Artifact) -> str:
    """The entry or tensor that a buffer of some op and shape holds, or for which the op gathers another.

    Of all that a loop makes it is the one of that shape.
    """
    entry = re.search(r"arguments\[(\d+)\]$", op_name)
    if entry:
        return [*artifact.inputs, *artifact.variables][int(entry[1])].name
    found = re.findall(r"nm\.(\w+\.\d+)", op_name)
    if not found:
        return "the compiler"
    made = artifact.ops.get(found[-1]) or [found[-1]]
    sizes = [
        int(size)
        for size in re.findall(r"\d+", shape.partition("[")[2].partition("]")[0])
        if int(size) > 1
    ]
    for text in made:
        if _local_sizes(text, artifact) == sizes:
            return text
    for one in artifact.collectives:
        if one["op"] == found[-1] and one["elements"] == math.prod(sizes):
            return f"{one['tensor']}, moved for {made[0]}"
    return made[0]


def _local_sizes(text: str, artifact: Artifact) -> list[int]:
    """The sizes above one of a device's piece of a tensor described as name float32[dim=size/axes, ...]."""
    dims = re.findall(r"\w+=(\d+)(?:/([\w+]+))?", text.partition("[")[2])
    sizes = [
        -(-int(size) // artifact.mesh.size(axes.split("+") if axes else ())) for size, axes in dims
    ]
    return [size for size in sizes if size > 1]


def largest(artifact: Artifact, schedule: Schedule, count: int = 8) -> list[Buffer]:
    """The largest values of a compiled module that need memory of their own, entries by name."""
    found: Counter[tuple[int, str, str]] = Counter()
    for (spec, size), type in zip(_named(artifact, schedule), schedule.entries, strict=True):
        found[size, plain_shape(type), spec.name] += 1
    for value in schedule.values():
        parts = value.parts
        for part in parts:
            shape = plain_shape(part)
            together = len(parts) > 1 and value.kind in KINDS
            name = (
                f"one of {len(parts)} in an {value.kind}"
                if together
                else origin(value.op_name, shape, artifact)
            )
            found[shape_bytes(part), shape, name] += 1
    buffers = [Buffer(size, shape, name, times) for (size, shape, name), times in found.items()]
    return sorted(buffers, key=lambda buffer: (-buffer.bytes, buffer.origin))[:count]


def exhausted(message: str, artifact: Artifact) -> Exhausted | None:
    """A compiler's out-of-memory message read; None for any other message.

    What the brief form calls temporaries is everything: a model that is a little too deep has, by that number, the
    memory that shallower ones grow towards, weights and all.
    """
    if "RESOURCE_EXHAUSTED" not in message and "CompileTimeHbmOom" not in message:
        return None
    used = re.search(rf"Used {_SIZE} of {_SIZE}", message) or re.search(
        rf"Requires {_SIZE}, has {_SIZE} available", message
    )
    brief = re.search(rf"temporaries \({_SIZE}\) exceeds available \w+ \({_SIZE}\)", message)
    match = used or brief
    if not match:
        return None
    return Exhausted(
        _bytes(match[1], match[2]), _bytes(match[3], match[4]), tuple(_listed(message, artifact))
    )


def _listed(message: str, artifact: Artifact) -> list[Buffer]:
    """The allocations a message lists, those of entries under the entry's name."""
    entries, buffers = [*artifact.inputs, *artifact.variables], []
    for block in re.split(r"\n\s*\d+\. Size: ", message)[1:]:
        size = re.match(_SIZE, block)
        operator = re.search(r'op_name="([^"]*)"', block)
        shape = re.search(r"Shape: (.*)", block)
        number = re.search(r"parameter\((\d+)\)", block)
        plain = plain_shape(shape[1]) if shape else ""
        name = origin(operator[1] if operator else "", plain, artifact)
        if number and int(number[1]) < len(entries):
            name = entries[int(number[1])].name
        buffers.append(Buffer(_bytes(size[1], size[2]) if size else 0, plain, name))
    return buffers


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit])


def levers(artifact: Artifact, memory: Memory) -> list[str]:
    """What would make a step smaller, the most promising first, with the numbers that say so."""
    within = memory.activations + memory.temporaries + memory.results
    advice: list[tuple[float, str]] = []
    waste, example = _unsplit(artifact)
    if example:  # gradients lie as their weights do
        advice.append(
            (
                2 * waste,
                f"layout: keep weights, slots and gradients in pieces with params=; {example}",
            )
        )
    if memory.state > memory.weights:
        advice.append(
            (
                memory.state / 2,
                "optimizer: its state is larger than the weights; a factored one (Adafactor) keeps less",
            )
        )
    kept = memory.activations if artifact.activation_bytes else within
    advice.append(
        (
            kept,
            "remat: compute activations again in the backward pass, remat='full' in nm.scan or the model's Config",
        )
    )
    if not any("bfloat16[" in text for made in artifact.ops.values() for text in made):
        advice.append(
            (
                within / 2,
                "dtype: activations in bfloat16 take half the memory, dtype='bfloat16' in the model's Config",
            )
        )
    advice += [(within / 2, text) for text in _several(artifact)]
    moved = max(
        (one["bytes"] for one in artifact.collectives if one["kind"] == "AllToAll"), default=0
    )
    advice.append(
        (
            2.0 * moved,
            f"capacity: one buffer of dispatched tokens is {moved:,} bytes; lower the capacity factor",
        )
    )
    return [
        text
        for size, text in sorted(advice, key=lambda pair: -pair[0])
        if size > 0.02 * memory.total
    ]


def _unsplit(artifact: Artifact) -> tuple[float, str]:
    """The bytes that variables would not take were they split over every axis, and the largest such variable."""
    waste, worst = 0.0, (0, "")
    for spec in artifact.variables:
        held = [axis for axes in spec.held.values() for axis in axes]
        idle = [axis for axis, size in artifact.mesh.axes.items() if axis not in held and size > 1]
        if idle and spec.dims:
            size = _piece(spec, artifact)
            waste += size * (1 - 1 / artifact.mesh.size(idle))
            worst = max(
                worst,
                (size, f"{spec.name} is {spec.sharded_text}, not split over {'+'.join(idle)}"),
            )
    return waste, worst[1]


def _several(artifact: Artifact) -> list[str]:
    """The first dimension of the inputs of which a core has several pieces."""
    for spec in artifact.inputs:
        for name, size in spec.dims:
            here = -(-size // artifact.mesh.size(spec.held.get(name, ())))
            if spec.held.get(name) and here > 1:
                return [
                    f"group size: a core has {here} of {name}={size}; activations shrink with it"
                ]
    return []
