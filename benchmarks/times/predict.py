"""The seconds, memory and exposed communication of a published step, from a plan and its cost."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass

import namedmesh as nm
from benchmarks.times.model import Model
from benchmarks.times.paper import estimate_paper
from benchmarks.times.systems import (
    GROUPED,
    HALF_OF_PRODUCTS,
    HIDDEN_EXCHANGES,
    constant_of,
    describe_hardware,
)
from benchmarks.times.table import Inexpressible, Step
from namedmesh.cost.fusion import is_product
from namedmesh.errors.errors import NamedMeshError
from namedmesh.hardware.chips import CHIPS

# What exceeds the memory by more than this does not fit without recomputation: our plans keep
# copies of weights and gradients that these systems do not, of which sharded weights leave little.
ROOM, ROOM_OF_SHARDED = 2.0, 1.5


@dataclass(frozen=True)
class Prediction:
    """What a step is predicted to take, by parts, in seconds.

    Attributes:
        compute: All ops of a device, as the hardware's table has them, without the constant.
        exposed: Collectives that nothing hides.
        bubble: Waiting of a pipeline's stages as a share of a microbatch's time.
        constant: The system's factor of the ops' time.
        memory: Bytes of a device at the peak.
        remat: What was assumed to be stored for the backward pass.
    """

    compute: float
    exposed: float
    bubble: float
    constant: float
    memory: int
    remat: str

    @property
    def seconds(self) -> float:
        """The predicted seconds of a step."""
        return (self.compute * self.constant + self.exposed) * (1.0 + self.bubble)


def predict(step: Step, constant: float | None = None) -> Prediction:
    """Predict a step; its measured time is not looked at."""
    if step.tokens:
        cost, constant = estimate_paper(step), constant_of(step)
        seconds = cost.compute_seconds, cost.exposed_seconds
        return Prediction(*seconds, 0.0, constant, cost.memory.peak_bytes, step.remat or "none")
    cost, remat = _choose_remat(step)
    rounds = _count_rounds(step)
    bubble = (step.stages - 1) / (rounds * step.microbatches) if step.stages > 1 else 0.0
    return Prediction(
        cost.compute_seconds
        - _count_saved(step, cost)
        - _count_unseen(step, cost)
        + _count_again(step, cost, remat)
        + _count_grouped(step, cost),
        cost.exposed_seconds - _count_repeated(step, cost),
        bubble,
        constant_of(step) if constant is None else constant,
        cost.memory.peak_bytes,
        remat,
    )


def plan_step(step: Step) -> nm.Plan:
    """Plan the train step of one pipeline stage, the slowest."""
    layers, dense_layers, ends = step.layers - step.dense_layers, step.dense_layers, True
    if step.stages > 1:
        # Stages are equal where layers divide, and the last scores the vocabulary too; otherwise
        # systems give the first and last stage a layer less.
        ends = step.layers % step.stages == 0
        layers, dense_layers = -(-step.layers // step.stages), 0
    if step.microbatches == 1 and step.zero and step.micro % 2 == 0:
        step = dataclasses.replace(step, micro=step.micro // 2)  # weights are gathered once
    model = Model(step, step.micro * step.data, layers, dense_layers, ends=ends)
    program = model.trace()
    mesh, layout, params = lay_out(step)
    # These systems gather a weight whole, however large it is.
    known = nm.Layout(f"{layout}, slices=1024TiB" if layout else "").only(program.dims)
    return nm.plan(program, mesh, known, params)


def lay_out(step: Step) -> tuple[nm.Mesh, str, str | None]:
    """Return the mesh of a stage, its layout, and that of weights at rest."""
    within = step.data // step.slices
    expert = max(1, step.expert // step.tensor) if step.experts else 1
    if step.data % step.slices or within % expert:
        raise Inexpressible(
            f"{step.data} replicas over {step.slices} slices, experts over {expert}"
        )
    sizes = {
        "slice": step.slices, "data": within // expert, "expert": expert,
        "context": step.context, "tensor": step.tensor,
    }  # fmt: skip
    axes = {axis: size for axis, size in sizes.items() if size > 1} or {"data": 1}

    def join(*names: str) -> str:
        return "+".join(name for name in names if name in axes)

    experts = join("tensor", "expert") if step.expert > 1 else ""  # shared axes come last
    layout = {
        "batch": join("slice", "data", "expert"),
        "ring": join("context"), "row": join("tensor"),
        "heads": join("tensor"), "hidden": join("tensor"), "vocab": join("tensor"),
        "expert": experts, "expert_hidden": "" if experts else join("tensor"),
    }  # fmt: skip
    text = ", ".join(f"{dim}:{names}" for dim, names in layout.items() if names)
    rest = join(*(["slice"] if step.slices_sharded else []), "data", "expert")
    slices = {"slices": step.slices} if step.slices > 1 else {}
    params = f"model:{rest}" if rest and (step.sharded or step.zero) else None
    return nm.Mesh(None, **axes, **slices), text, params


def estimate(step: Step) -> nm.Cost:
    """Return the cost of a step's plan, without what these systems do not compute."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # small weights leave axes idle
        try:
            plan = plan_step(step)
            cost = nm.cost(plan, describe_hardware(step))
        except NamedMeshError as error:
            raise Inexpressible(str(error).splitlines()[0]) from error
    if step.microbatches == 1:
        return cost
    # Systems keep a copy of weights in bfloat16, and add gradients up inside the products that
    # make them.
    weights = plan.program.parameters
    loops = step.microbatches

    def is_done(one: nm.cost.OpCost) -> bool:
        if one.times < loops:
            return True
        reads = [x.label for x in one.op.inputs]
        casts = one.op.kind == "cast" and any(name in weights for name in reads)
        adds = one.op.kind == "add" and any(name.removeprefix("d_") in weights for name in reads)
        return not (casts or adds)

    return dataclasses.replace(cost, ops=tuple(one for one in cost.ops if is_done(one)))


def _choose_remat(step: Step) -> tuple[nm.Cost, str]:
    """Return the cost with the row's recomputation, or the least with which the step fits."""
    if step.remat:
        return estimate(step), step.remat
    for remat in ("none", "full"):
        cost = estimate(dataclasses.replace(step, remat=remat))
        room = ROOM_OF_SHARDED if step.sharded else ROOM
        if cost.memory.peak_bytes < room * cost.hardware.memory_bytes:
            break
    return cost, remat


def _count_rounds(step: Step) -> int:
    """Return how many stages each device of a pipeline has."""
    if step.rounds > 1 or step.stages == 1:
        return step.rounds
    # Megatron and its kin interleave unless they say otherwise, if microbatches allow it.
    if step.system in ("Meta",) or (step.system == "Megatron" and step.chip != "a100"):
        return max(1, step.layers // step.stages)
    return 1


def _count_saved(step: Step, cost: nm.Cost) -> float:
    """Return the seconds of ops whose results full recomputation stores after all."""
    seconds = 0.0
    for one in cost.ops:
        if one.phase != "forward":
            continue
        names = [x.label.rpartition("/")[2] for x in one.op.inputs] if is_product(one.op) else []
        kernel = one.op.offers_kernel and "attention" in step.saved
        if kernel or any(name in step.saved for name in names):
            seconds += one.total_seconds
    return seconds


def _count_again(step: Step, cost: nm.Cost, remat: str) -> float:
    """Return the seconds of what selective recomputation computes again."""
    if remat == "dots" and step.system in HALF_OF_PRODUCTS:
        return 0.5 * sum(
            one.total_seconds
            for one in cost.ops
            if one.phase == "forward" and is_product(one.op) and "layer" in one.scope
        )
    if remat == "core" and not step.flash:  # attention without its projections
        return sum(
            one.total_seconds
            for one in cost.ops
            if one.phase == "forward"
            and one.scope.endswith("attention")
            and not (is_product(one.op) and any("/w" in x.label for x in one.op.inputs))
        )
    return 0.0


def _count_unseen(step: Step, cost: nm.Cost) -> float:
    """Return the seconds of attention to what is outside the windows of local layers."""
    if not step.window or step.window >= step.length or not step.flash:
        return 0.0
    seen = step.window / step.length
    attention = sum(one.total_seconds for one in cost.ops if one.op.offers_kernel)
    return attention * step.local * (1.0 - seen * (2.0 - seen))  # of a causal half


def _count_grouped(step: Step, cost: nm.Cost) -> float:
    """Return the further seconds of products in groups of uneven sizes, if no token is dropped."""
    if not step.dropless:
        return 0.0
    mixed = (one for one in cost.ops if "network" in one.scope and "shared" not in one.scope)
    grouped = (one for one in mixed if is_product(one.op) and "dense_layer" not in one.scope)
    return (GROUPED - 1.0) * sum(one.total_seconds for one in grouped)


def _count_repeated(step: Step, cost: nm.Cost) -> float:
    """Return the seconds of AllToAlls that systems save, or hide behind another microbatch.

    They send a row once to a node, to however many of its experts it goes (DeepEP and the like);
    the plan sends it to each.
    """
    if step.expert == 1:
        return 0.0
    sent = sum(one.total_seconds for one in cost.collectives if one.collective.kind == "AllToAll")
    nodes, share = step.expert / CHIPS[step.chip].node, 1.0
    if nodes > 1 and not step.chip.startswith("tpu"):
        reached = nodes * (1.0 - (1.0 - 1.0 / nodes) ** step.choices)
        if step.latent:  # DeepSeek's routing keeps a row within four nodes
            reached = min(reached, 4.0)
        share = min(1.0, reached / step.choices)
    hidden = HIDDEN_EXCHANGES.get(step.system, 0.0) if step.microbatches > 1 else 0.0
    return sent * (1.0 - share * (1.0 - hidden))
