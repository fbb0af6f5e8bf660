"""Pipelines: layers on different devices, which work on different microbatches at one time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from namedmesh.dims.dimension import Dimension
from namedmesh.errors.errors import NamedMeshError, check_word
from namedmesh.ir.literal import as_tensor
from namedmesh.ir.operands import check_callable, check_dimension, check_has_dims
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import Deal, current
from namedmesh.ops.constants import constant, zeros
from namedmesh.ops.constants import range as count
from namedmesh.ops.control import match_structure
from namedmesh.ops.indexing import take
from namedmesh.ops.join import pad
from namedmesh.ops.logic import equal, where
from namedmesh.ops.pipeline_passes import run_both_passes, sum_sizes
from namedmesh.ops.pipeline_schedule import Schedule
from namedmesh.ops.reduce import mean
from namedmesh.ops.scan import scan
from namedmesh.ops.shape import rename, reshape, transpose
from namedmesh.ops.slices import shift, slice
from namedmesh.ops.variables import view_from
from namedmesh.ops.vmap import vmap
from namedmesh.signature.nest import flatten, unflatten

NUMBER = "layer/number"  # of the layers that stages have, among what is dealt to them
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero_bubble")


def pipeline(
    function: Callable[..., Any],
    x: Any,
    *,
    stages: Dimension,
    batches: Dimension,
    layers: Dimension | None = None,
    schedule: str = "gpipe",
    first: Callable[[Any], Any] | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
    rounds: Dimension | None = None,
    remat: str | float = "full",
    gather_once: bool = False,
) -> Any:
    """Return what stages, all of which work at one time, make of microbatches, or their mean loss.

    In each iteration every stage works on what the one before it made in the last, and the first on
    the next microbatch. Map `stages` to a mesh axis: each device then has the weights of its own
    stages alone, and an iteration takes one CollectivePermute. For m microbatches and s stages
    there are m + s - 1 iterations, of which a stage is idle in s - 1, as `print(plan)` states.

    With `loss`, one loop can hold both passes: a microbatch goes back through the stages as soon as
    its loss is known, so that what a device keeps does not grow with the microbatches. `nm.grad`
    of the result, or of what is made of it, scales the gradients that this loop added up.

    Args:
        function: One stage: takes a microbatch and returns another of the same structure,
            dimensions and dtypes. Variables made in it have a slice for each stage, along `stages`;
            it may have loops over layers of its own.
        x: The microbatches: tensors with the dimension `batches`, nested as you like.
        stages: The dimension of stages.
        batches: The dimension of microbatches.
        layers: The dimension of layers, where the function is one layer and not one stage: it takes
            the number of the layer besides, and each stage loops over as many layers. Variables
            then have a slice for each layer, as in the plain loop
            `nm.scan(..., over=layers, stack=True)`, so that checkpoints fit any number of stages.
            Where stages do not divide the layers, the last stages have fewer.
        schedule: `"gpipe"`: all microbatches forward, then all of them back. `"1f1b"`: one forward
            and one back in turn; needs `loss`. `"interleaved"`: the same, with a stage of every
            round on each device, which divides the idle time by the rounds. `"zero_bubble"`: 1F1B
            with the gradients of weights apart, which devices compute while they would be idle.
        first: Makes what the first stage takes, of the row of `x` of a microbatch: embeddings. By
            default the row itself.
        loss: Takes what the last stage returns and the row of `x`, and returns a scalar, or a pair
            of one and anything else. The pipeline then returns the mean of the scalars, or a pair
            of it and the rest, stacked along `batches`.
        rounds: The dimension of rounds, for `"interleaved"`: a microbatch passes all stages in
            each. Variables have a slice for each round and stage.
        remat: What is stored for the backward pass, as for `nm.scan`: "full" keeps what enters each
            stage, and computes the stage again. Schedules other than `"gpipe"` take this alone.
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
        >>> for note in plan.to_json()["notes"][0].split(": "):
        ...     print(note)
        pipeline (gpipe), stage=4, micro=8
        idle in 3 of 11 iterations (27%), 11 inputs of 48 bytes kept
    """
    check_callable("pipeline", function)
    check_dimension("pipeline", stages)
    check_word("schedule", schedule, SCHEDULES)
    leaves = [as_tensor("pipeline", leaf) for leaf in flatten(x)]
    for leaf in leaves:
        check_has_dims("pipeline", leaf, batches)
        if leaf.shape.named(stages.name):
            raise NamedMeshError(
                f"pipeline: {leaf.label} has the dimension of stages",
                str(leaf),
                fix="give microbatches alone; stages take their weights by nm.param",
            )
    _check_schedule(schedule, rounds, remat, loss)
    x = unflatten(x, iter(leaves))
    trace, deal = current("pipeline"), None
    if layers is not None:
        deal = _deal_layers(layers, [*([rounds] if rounds else []), stages])
        function = _loop_over_layers(function, deal)
    with trace.change(deal=deal):
        if schedule == "gpipe":
            # Microbatch by microbatch, so that no more is stored of embeddings and logits than of
            # stages.
            each: Any = dict(over=batches, remat="full", gather_once=gather_once)
            taken = x if first is None else scan(lambda _, row: ([], first(row)), [], x, **each)[1]
            options = {"remat": remat, "gather_once": gather_once}
            y = _pass_stages(function, taken, stages, batches, **options)
            if loss is None:
                return y
            results = scan(lambda _, row: ([], loss(*row)), [], (y, x), **each)[1]
            if isinstance(results, tuple):
                return mean(results[0], batches), results[1]
            return mean(results, batches)
        assert loss is not None
        plan = Schedule(schedule, stages, batches, 1 if rounds is None else rounds.size)
        parts = first or (lambda row: row), function, loss
        return run_both_passes(parts, x, plan, rounds, gather_once)


def _deal_layers(layers: Dimension, chunks: Sequence[Dimension]) -> Deal:
    """Deal layers to the stages of all rounds: as many to each, the last of which are padding."""
    count = math.prod(dim.size for dim in chunks)
    own = Dimension(f"{layers.name}_of_stage", -(-layers.size // count))
    missing = count * own.size - layers.size
    dims = (*chunks, own)

    def split(x: Tensor) -> Tensor:
        padded = pad(x, layers, high=missing) if missing else x
        return reshape(padded, layers.resized(layers.size + missing), dims)

    home = current("pipeline")
    numbers = np.array([*range(layers.size), *[-1] * missing], "int32")
    shape = [dim.size for dim in dims]
    return Deal(home, layers, dims, split, {NUMBER: constant(numbers.reshape(shape), dims)})


def _loop_over_layers(layer: Callable[..., Any], deal: Deal) -> Callable[[Any], Any]:
    """Return one stage: a loop over its layers, which passes over padding."""
    own, padded = deal.dims[-1], math.prod(dim.size for dim in deal.dims) > deal.layers.size

    def iteration(h: Any, _: Any) -> tuple[Any, None]:
        number = view_from(current("pipeline"), NUMBER, deal.tensors[NUMBER])
        made = layer(h, number)
        if padded:
            taken = flatten(h)
            leaves = match_structure("pipeline: a layer's result", made, h, "what it takes")
            pairs = zip(leaves, taken, strict=True)
            made = unflatten(h, (where(number >= 0, new, old) for new, old in pairs))
        return made, None

    return lambda h: scan(iteration, h, over=own, stack=True)[0]


def _check_schedule(
    schedule: str,
    rounds: Dimension | None,
    remat: str | float,
    loss: Callable[..., Any] | None,
) -> None:
    """Raise for options that do not go together."""
    what = f"pipeline: schedule={schedule!r}"
    if schedule != "gpipe" and loss is None:
        raise NamedMeshError(
            f"{what} without loss=: no microbatch can go back before its loss is known",
            fix="give loss=, a function of what the last stage returns and the microbatch's row "
            "of x, or use schedule='gpipe'",
        )
    if schedule != "gpipe" and remat != "full":
        raise NamedMeshError(
            f"{what} keeps what enters a stage and computes the stage again, not remat={remat!r}",
            fix="leave remat out, or use schedule='gpipe'",
        )
    if rounds is not None:
        check_dimension("pipeline", rounds)
    if (schedule == "interleaved") != (rounds is not None):
        raise NamedMeshError(
            f"{what} with rounds={rounds}",
            fix="give rounds=, a dimension, with schedule='interleaved' and with no other",
        )


def _pass_stages(
    function: Callable[[Any], Any], x: Any, stages: Dimension, batches: Dimension, **options: Any
) -> Any:
    """Return what the last stage makes of all microbatches, by a loop with some options."""
    leaves: list[Tensor] = flatten(x)
    schedule = Schedule("gpipe", stages, batches)
    schedule.note(sum_sizes(leaves) // batches.size)
    iterations = Dimension(f"{stages.name}_iteration", schedule.ticks)
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

    _, history = scan(iteration, idle, rows, over=iterations, **options)
    kept = iterations.resized(batches.size)
    ends = [slice(one, iterations, stages.size - 1, batches.size) for one in history]
    ends = [rename(take(one, stages, -1), kept, batches) for one in ends]
    return unflatten(x, map(transpose, ends, (leaf.shape for leaf in leaves)))
