"""Advice: what would make a step that does not fit smaller."""

from __future__ import annotations

from namedmesh.aot.memory import Memory
from namedmesh.artifacts.artifact import Artifact


def find_levers(artifact: Artifact, memory: Memory) -> list[str]:
    """What would make a step smaller, with the numbers that show it."""
    within = memory.activations + memory.temporaries + memory.results
    kept = memory.activations if artifact.activation_bytes else within
    waste, example = _unsplit(artifact)
    moved = max((one.bytes for one in artifact.collectives if one.kind == "AllToAll"), default=0)
    several = _several_pieces(artifact)
    levers: list[tuple[float, str]] = []
    if example:  # gradients lie as their weights do, hence twice
        text = f"layout: keep weights, slots and gradients in shards with params=; {example}"
        levers.append((2 * waste, text))
    if memory.state > memory.weights:
        text = (
            "optimizer: its state is larger than the weights; a factored one (Adafactor) keeps less"
        )
        levers.append((memory.state / 2, text))
    text = (
        "remat: compute activations again in the backward pass, "
        "remat='full' in nm.scan or the model's Config"
    )
    levers.append((kept, text))
    if not _uses_bfloat16(artifact):
        text = (
            "dtype: activations in bfloat16 take half the memory, "
            "dtype='bfloat16' in the model's Config"
        )
        levers.append((within / 2, text))
    if several:
        levers.append((within / 2, several))
    text = (
        f"capacity: one buffer of dispatched tokens is {moved:,} bytes; lower the capacity factor"
    )
    levers.append((2.0 * moved, text))
    levers.sort(key=lambda lever: -lever[0])
    return [text for saved, text in levers if saved > 0.02 * memory.total]


def _uses_bfloat16(artifact: Artifact) -> bool:
    """Whether the step computes anything in bfloat16."""
    return any(
        spec.dtype == "bfloat16" for record in artifact.ops.values() for spec in record.results
    )


def _unsplit(artifact: Artifact) -> tuple[float, str]:
    """The bytes that splitting variables over every axis would save, and the largest such one."""
    waste, largest, example = 0.0, 0, ""
    mesh = artifact.mesh
    for spec in artifact.variables:
        idle = [
            axis for axis, size in mesh.axes.items() if size > 1 and axis not in spec.sharding.used
        ]
        if idle and spec.shape:
            size = spec.bytes_per_device(mesh)
            waste += size * (1 - 1 / mesh.size(idle))
            text = f"{spec.name} is {spec.sharded_text}, not split over {'+'.join(idle)}"
            largest, example = max((largest, example), (size, text))
    return waste, example


def _several_pieces(artifact: Artifact) -> str:
    """The first split dimension of the inputs of which a core has several; empty if none."""
    for spec in artifact.inputs:
        shards = spec.sharding.local_sizes(spec.shape, artifact.mesh)
        for dim, here in zip(spec.shape, shards, strict=True):
            if spec.sharding.axes(dim.name) and here > 1:
                return f"group size: a core has {here} of {dim}; activations shrink with it"
    return ""
