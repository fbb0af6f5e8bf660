"""Pipelines: layers on different devices, which work on different microbatches at one time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from namedmesh.dims.dimension import Dimension
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.literal import as_tensor
from namedmesh.ir.operands import check_callable, check_dimension, check_has_dims
from namedmesh.ir.trace import current
from namedmesh.ops.constants import range as count
from namedmesh.ops.constants import zeros
from namedmesh.ops.indexing import take
from namedmesh.ops.logic import equal, where
from namedmesh.ops.scan import scan
from namedmesh.ops.shape import rename, transpose
from namedmesh.ops.slices import pad, shift, slice
from namedmesh.ops.vmap import vmap
from namedmesh.signature.nest import flatten, unflatten


def pipeline(
    function: Callable[[Any], Any],
    x: Any,
    *,
    stages: Dimension,
    batches: Dimension,
    remat: str = "full",
    gather_once: bool = False,
) -> Any:
    """Return what stages, all of which work at one time, make of microbatches (GPipe).

    In each iteration every stage works on what the one before it made in the last, and the first on
    the next microbatch. Map `stages` to a mesh axis: each device then has the weights of its own
    stages alone, and an iteration takes one CollectivePermute. For m microbatches and s stages
    there are m + s - 1 iterations, of which a stage is idle in s - 1, as `print(plan)` states.

    Args:
        function: One stage: takes a microbatch and returns another of the same structure,
            dimensions and dtypes. Variables made in it have a slice for each stage, along `stages`;
            it may have loops over layers of its own.
        x: The microbatches: tensors with the dimension `batches`, nested as you like.
        stages: The dimension of stages.
        batches: The dimension of microbatches.
        remat: What is stored for the backward pass, as for `nm.scan`: "full" keeps what enters each
            stage, and computes the stage again.
        gather_once: Whether weights at rest of a stage's layers are gathered once, before all
            iterations, as for `nm.scan`.

    Example:
        >>> S, N, B, M = nm.dims("stage=4 micro=8 batch=2 model=6")
        >>> def stage(x):
        ...     return nm.tanh(x * nm.param("w", [M]))
        >>> def model(x):
        ...     return nm.pipeline(stage, x, stages=S, batches=N)
        >>> program = nm.trace(model, nm.spec([N, B, M]))
        >>> program.outputs[0].shape, program.parameters["w"].shape
        ([micro=8, batch=2, model=6], [stage=4, model=6])
        >>> plan = nm.plan(program, nm.Mesh(stage=4), "stage:stage")
        >>> [(one.kind, one.times) for one in plan.collectives]
        [('CollectivePermute', 11), ('AllReduce', 1)]
        >>> plan.to_json()["notes"]
        ['pipeline, stage=4, micro=8: each stage is idle in 3 of 11 iterations (27%)']
    """
    check_callable("pipeline", function)
    check_dimension("pipeline", stages)
    leaves = [as_tensor("pipeline", leaf) for leaf in flatten(x)]
    for leaf in leaves:
        check_has_dims("pipeline", leaf, batches)
        if leaf.shape.named(stages.name):
            raise NamedMeshError(
                f"pipeline: {leaf.label} has the dimension of stages",
                str(leaf),
                fix="give microbatches alone; stages take their weights by nm.param",
            )
    iterations = Dimension(f"{stages.name}_iteration", batches.size + stages.size - 1)
    current("pipeline").root.notes[describe_bubbles(stages, batches)] = None
    padded = [pad(leaf, batches, high=stages.size - 1) for leaf in leaves]
    rows = [rename(one, batches.resized(iterations.size), iterations) for one in padded]
    idle = [zeros([stages, *x.shape.without(batches.name)], x.dtype) for x in leaves]
    stage = vmap(function, stages, stack=True)

    def iteration(made: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
        first = equal(count(stages), 0)
        moved = [shift(old, stages, 1) if stages.size > 1 else old for old in made]
        pairs = zip(row, moved, strict=True)
        taken = [transpose(where(first, new, old), old.shape) for new, old in pairs]
        results = flatten(stage(unflatten(x, iter(taken))))
        return results, results

    _, history = scan(iteration, idle, rows, over=iterations, remat=remat, gather_once=gather_once)
    kept = iterations.resized(batches.size)
    ends = [slice(one, iterations, stages.size - 1, batches.size) for one in history]
    ends = [rename(take(one, stages, -1), kept, batches) for one in ends]
    return unflatten(x, map(transpose, ends, (leaf.shape for leaf in leaves)))


def describe_bubbles(stages: Dimension, batches: Dimension) -> str:
    """Describe how long a stage of a pipeline waits for the first microbatch and after the last."""
    idle, iterations = stages.size - 1, batches.size + stages.size - 1
    share = f"{idle} of {iterations} iterations ({idle / iterations:.0%})"
    return f"pipeline, {stages}, {batches}: each stage is idle in {share}"
