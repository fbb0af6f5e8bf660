"""Accepted deviations from the plan: every rule, with its condition, bound and evidence.

To add a rule, write its `alter` function and its `BackendRule` in RULES here; nothing else changes.
Only a rule that joins or splits collectives also needs a step in `matching.py`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from namedmesh.audit.hlo.array_types import ELEMENT_TYPES, count_bytes
from namedmesh.records.collective import Collective

_FLOATS8 = [one.dtype for one in ELEMENT_TYPES.values() if one.dtype.startswith("float8")]
_KINDS = ("AllGather", "AllReduce", "AllToAll", "CollectivePermute", "ReduceScatter")
SMALL_SHARD_BYTES = 256 * 1024


@dataclass(frozen=True)
class BackendRule:
    """A deviation from the plan that is accepted on some backends."""

    name: str  # in reports
    backends: tuple[str, ...]  # cpu, gpu or tpu
    condition: str  # the planned collectives that it concerns
    bound: str  # what is not accepted
    bytes: str  # what it does to the bytes that are sent
    evidence: str  # where a compiler was seen to do it
    # Returns the collective that the compiler makes of a planned one; None if it is not concerned.
    alter: Callable[[Collective], Collective | None] = lambda plan: None
    precisions: tuple[str, ...] = ()  # of matrix products, under which it holds; () for all


def _send_as(
    dtypes: Collection[str], other: str, kinds: Collection[str]
) -> Callable[..., Collective | None]:
    """Make a function that alters the dtype of some kinds of collectives."""

    def alter(plan: Collective) -> Collective | None:
        if plan.dtype not in dtypes or plan.kind not in kinds:
            return None
        return replace(plan, dtype=other, bytes=count_bytes(other, plan.elements))

    return alter


def _reduce_and_slice(plan: Collective) -> Collective | None:
    """Make an AllReduce of the same buffer of a ReduceScatter."""
    if plan.kind != "ReduceScatter":
        return None
    return replace(plan, kind="AllReduce", order=())


def _sum_of_shards(plan: Collective) -> Collective | None:
    """Make an AllReduce of the whole buffer of an AllGather of small shards."""
    small = plan.kind == "AllGather" and plan.bytes <= SMALL_SHARD_BYTES * plan.devices
    reduction = "or" if plan.dtype == "bool" else "add"
    return replace(plan, kind="AllReduce", reduction=reduction, order=()) if small else None


def _move_out_of_loop(plan: Collective) -> Collective | None:
    """Run a collective that never changes in a loop once before it."""
    return replace(plan, times=plan.times_outside) if plan.times_outside else None


def _name_after_producer(plan: Collective) -> Collective | None:
    """Name an AllGather after the op that makes its tensor, not the one that reads it."""
    return replace(plan, op=plan.producer) if plan.kind == "AllGather" and plan.producer else None


IN_HALF = BackendRule(
    name="float32 sent as bfloat16",
    backends=("tpu",),
    condition="an AllToAll, AllGather or CollectivePermute of float32 that matrix products of "
    "default precision read, which round their operands to bfloat16",
    bound="never an AllReduce or ReduceScatter, and not under precision high or highest",
    bytes="half as many",
    evidence="benchmarks/results/tpu_v3: AllToAlls of all models, AllGathers of some; "
    "CollectivePermutes of products in a loop (benchmarks/operator_cases.py)",
    alter=_send_as(["float32"], "bfloat16", ("AllGather", "AllToAll", "CollectivePermute")),
    precisions=("default",),
)
ZEROS = BackendRule(
    name="AllGather of small shards made as AllReduce, zero elsewhere",
    backends=("tpu",),
    condition=f"an AllGather of at most {SMALL_SHARD_BYTES:,} bytes from each device",
    bound="one AllReduce of the same axes, dtype, elements and times, of the planned op, or of "
    "what is zero but for one shard",
    bytes="twice as many on the wire",
    evidence="benchmarks/results/tpu_v3: 44 gathers of 4,096 bytes in the models in shards; "
    "benchmarks/results/operators: shards of 8 KiB on 128 to 2,048 cores, of 64 KiB on 128; "
    "benchmarks/results/search: shards of 256 KiB of two weights at once on 64",
    alter=_sum_of_shards,
)
# Rules that alter one collective. Where several apply, they apply one after the other, in order.
RULES = (
    BackendRule(
        name="bfloat16 sent as float32",
        backends=("cpu",),
        condition="any collective of bfloat16",
        bound="the same kind, axes, elements and times; no other dtype",
        bytes="twice as many",
        evidence="XLA's CPU compiler computes and sends in float32; float16 stays float16",
        alter=_send_as(["bfloat16"], "float32", _KINDS),
    ),
    BackendRule(
        name="float8 sent as float16",
        backends=("cpu",),
        condition="any collective of float8",
        bound="the same kind, axes, elements and times; no other dtype",
        bytes="twice as many",
        evidence="XLA's CPU compiler stores float8, and sends it in float16, which has its numbers",
        alter=_send_as(_FLOATS8, "float16", _KINDS),
    ),
    IN_HALF,
    BackendRule(
        name="ReduceScatter made as AllReduce and slice",
        backends=("cpu", "gpu", "tpu"),
        condition="any ReduceScatter",
        bound="one AllReduce of the same axes, dtype, elements and times, of the planned op",
        bytes="twice as many on the wire",
        evidence="XLA's CPU compiler does not join an AllReduce and a slice; TPU's does not where "
        "it combines AllReduces, as of two weights in shards over all of 8 cores; GPU's not where "
        "it concatenates small tensors of a loop (random programs on 8 H100s, jax 0.10.2)",
        alter=_reduce_and_slice,
    ),
    BackendRule(
        name="collective that never changes in a loop made before it",
        backends=("cpu", "gpu", "tpu"),
        condition="a collective of what every iteration of a loop makes alike, too large to be "
        "planned before the loop",
        bound="the same kind, axes, dtype and elements, as often as the loop itself runs",
        bytes="those of one iteration",
        evidence="XLA moves what never changes out of loops: noise of one key on CPU",
        alter=_move_out_of_loop,
    ),
    BackendRule(
        name="AllGather named after the op that makes its tensor",
        backends=("cpu", "gpu", "tpu"),
        condition="an AllGather of what one op makes, for another op that reads it",
        bound="the same axes, dtype, elements and times; the name is that op's, no other's",
        bytes="the same",
        evidence="TPU v3's compiler gathers a cast weight before or after the cast as it likes, "
        "and names the AllGather after the cast; XLA of jax 0.11 names that of a weight's slice, "
        "in a loop over layers, after the loop",
        alter=_name_after_producer,
    ),
    ZEROS,
)
# A rule that rounds the result of a sum.
ROUNDED = BackendRule(
    name="float32 sum received as bfloat16",
    backends=("tpu",),
    condition="an AllReduce of float32 whose result matrix products of default precision read",
    bound="what is added up and how is float32, and all that reads the result reads bfloat16; not "
    "under precision high or highest",
    bytes="at most as many; counted as float32",
    evidence="rows looked up in tables of a recommender, on 512 and 2,048 cores of TPU v3",
    precisions=("default",),
)
# A rule that makes one collective of several.
AXES_IN_ONE = BackendRule(
    name="AllReduces over one axis after the other made as one over all",
    backends=("gpu", "tpu"),
    condition="AllReduces of one op's result, each over other axes",
    bound="exactly those axes, the same dtype, elements and times",
    bytes="those of one AllReduce",
    evidence="layers on three axes compiled for TPU v3; sums of random programs over dimensions "
    "that do not divide, compiled for 8 H100s (jax 0.10.2)",
)
# A rule that makes several collectives of one.
TILED_SCATTER = BackendRule(
    name="ReduceScatter in shards of whole tiles, and CollectivePermutes of the rest",
    backends=("tpu",),
    condition="a ReduceScatter of shards that the tiles of TPU's memory do not divide",
    bound="at most an eighth more elements, and CollectivePermutes to the next device, the one "
    "after it, and so on, of just what the padding of all shards before moves out of each",
    bytes="at most a quarter more",
    evidence="8,192 rows over 4 devices, in shards of 2,080 on TPU v3: 96 rows are sent on; over "
    "64, in shards of 144 for 128: seven devices on",
)
MOST_PADDING = 1.125
# Rules for programs of several slices.
ACROSS_SLICES = BackendRule(
    name="collectives over slices made as Sends and Recvs, and inside a slice",
    backends=("tpu",),
    condition="a collective along axes that go across slices",
    bound="of the same kind between the planned devices, in their order; a gather may be completed "
    "by one inside the slice of all that is received, in bfloat16 where matrix products may round "
    "it, and a permutation by the pairs that stay there, of the same tensor",
    bytes="the same",
    evidence="AllGathers, AllToAlls and CollectivePermutes over 2 to 64 devices, and "
    "ReduceScatters over 2, on 2 and 4 slices of TPU v5e; sums of small shards, zero elsewhere",
)
BETWEEN_SLICES = BackendRule(
    name="sums over slices made as Sends and Recvs of what each slice adds up",
    backends=("tpu",),
    condition="an AllReduce along axes that go across slices, or a ReduceScatter of several "
    "devices in a slice, which is a sum and a slice",
    bound="what is sent is what the slice adds up along the planned axes, or what an op makes if a "
    "slice has one device, followed through concatenations and through loops that carry it on; "
    "all shards of what is received are gathered, as often, along the same axes",
    bytes="shards are padded to whole tiles, and gathered where a ReduceScatter is planned",
    evidence="train steps of 8 to 128 cores on 2 and 4 slices of TPU v5e, replicated and sharded, "
    "where a loop sends what its last iteration has added up",
)
# A rule that makes one collective of several that are equal.
EQUAL_ONCE = BackendRule(
    name="CollectivePermutes of the same rows of a tensor made as one",
    backends=("tpu",),
    condition="two CollectivePermutes of one tensor along the same way, as of a convolution's "
    "input and its filter's derivative",
    bound="exactly the same tensor, devices, dtype, elements and times",
    bytes="those of one",
    evidence="benchmarks/results/search: the image of a U-Net on 2,048 cores",
)
# A rule that makes one collective of a tensor that joins several.
CONCATENATED = BackendRule(
    name="small tensors concatenated into one AllReduce",
    backends=("gpu", "tpu"),
    condition="AllReduces of the same axes, dtype, reduction and times",
    bound="every part of what is concatenated is one of them",
    bytes="the same",
    evidence="data parallel layers, and gradients of a mixture, compiled for 8 H100s (jax 0.10.2); "
    "losses and gradients summed over slices of TPU v5e, each padded to the size of all",
)
# A rule that makes one collective of the terms of a sum.
ADDED = BackendRule(
    name="AllReduces of one tensor's terms made as one of their sum",
    backends=("gpu",),
    condition="AllReduces over the same axes, whose results are added",
    bound="one AllReduce of the same axes, elements, reduction and times, of one of their ops, "
    "whose operand is a sum of what their ops make; or of one tensor, where in float32 it may be "
    "of two or more in bfloat16 or float16, and may have the name of what adds as many terms",
    bytes="no more",
    evidence="the derivative of an embedding that the logits read too, in bfloat16, compiled for "
    "512 H100s; a mixture's second derivative in float32 for 8 (jax 0.10.2: "
    "all-reduce-reassociate)",
)
# A rule that moves a cast or a broadcast across a collective.
SMALLER = BackendRule(
    name="tensor sent while it is smaller: before it is broadcast, or in the dtype of a cast",
    backends=("gpu",),
    condition="an AllGather, AllToAll or CollectivePermute of what is cast or broadcast",
    bound="the same kind, axes and times; the code makes the planned dtype and elements of what is "
    "received, or casts what it sends from the planned dtype",
    bytes="fewer",
    evidence="gradients and activations in bfloat16, masks and broadcast gradients of random "
    "programs, compiled for 8 H100s (jax 0.10.2: collective-quantizer, "
    "all-gather-broadcast-reorder); a slice of what is cast, of ring attention on 8 H200s",
)
# A rule that makes several collectives of one in a loop.
UNROLLED = BackendRule(
    name="collective of a loop made by copies of its body, in the loop or beside it",
    backends=("gpu", "tpu"),
    condition="a collective in a loop, which the compiler unrolls, peels or pipelines",
    bound="the same kind, axes, dtype and elements, or what another rule makes of it; all copies "
    "together run as often as planned",
    bytes="the same",
    evidence="fully sharded layers compiled for 8 H100s with double buffering, unrolling and "
    "pipelined AllGathers (jax 0.10.2); layers of which TPU v3 and v5e peel an iteration, as their "
    "activations wait in the host's memory; ReduceScatters may be AllReduces there",
)
# A rule that moves a sum out of a loop.
AFTER_LOOP = BackendRule(
    name="AllReduces of a loop's iterations made as one after it",
    backends=("gpu", "tpu"),
    condition="an AllReduce in a loop that adds up, or stacks, what it makes",
    bound="the operand is what the loop has added up of the planned op's results, or stacked; as "
    "often as the loop itself runs",
    bytes="those of one iteration, or the same where they are stacked",
    evidence="gradients of weights that layers in a loop share, in random programs compiled for 8 "
    "H100s (jax 0.10.2: while-loop-all-reduce-code-motion); attention's in a scan, stacked, on "
    "2,048 cores of TPU v3",
)
# A rule that makes a ReduceScatter of an AllReduce.
SCATTERED = BackendRule(
    name="AllReduce made as ReduceScatter, with an AllGather unless only a slice is read",
    backends=("gpu", "tpu"),
    condition="an AllReduce, whose result may be sliced along some of its axes",
    bound="a ReduceScatter of the same op, or without a name, of what ops make, devices in the "
    "order of some dimension's shards, and of the same dtype, elements and times over those axes, "
    "an AllReduce of its shards over the others, and at most one AllGather of all its shards",
    bytes="at most as many",
    evidence="sums of random programs that are resharded, compiled for 8 H100s (jax 0.10.2: "
    "reduce-scatter-creator); derivatives of a graph's nodes on 512 cores of TPU v3",
)
# A rule that leaves out what the op's code does not need.
NEEDLESS = BackendRule(
    name="collective left out, of a constant or for a function that is computed in shards",
    backends=("gpu",),
    condition="of what is constant, or AllGathers for functions of jax's or TensorFlow's",
    bound="all that is left of the op is constants, one with as many elements; or what is left of "
    "the function reads or makes one shard, and nothing as large as what would be gathered",
    bytes="none",
    evidence="the places of a mixture's first choices among one token, which are zero, and the "
    "product of two tensors by TensorFlow, in random programs for 8 H100s (jax 0.10.2)",
)
FUNCTIONS = ("call_jax", "call_tf", "call_tf_vjp")  # the kinds of ops that call functions of users
_COMBINING = (
    ROUNDED, AXES_IN_ONE, TILED_SCATTER, EQUAL_ONCE, ACROSS_SLICES, BETWEEN_SLICES, CONCATENATED,
    ADDED, SMALLER, UNROLLED, AFTER_LOOP, SCATTERED, NEEDLESS,
)  # fmt: skip


def find_rules(backend: str, precision: str) -> tuple[BackendRule, ...]:
    """Return the rules of a backend."""
    return tuple(
        rule
        for rule in (*RULES, *_COMBINING)
        if backend in rule.backends and (not rule.precisions or precision in rule.precisions)
    )


def alter(
    plan: Collective, rules: Iterable[BackendRule]
) -> list[tuple[Collective, tuple[BackendRule, ...]]]:
    """Return all forms that a planned collective may take, each with the rules it needs."""
    forms: list[tuple[Collective, tuple[BackendRule, ...]]] = [(plan, ())]
    for rule in rules:
        for form, used in list(forms):
            altered = rule.alter(form)
            if altered is not None:
                forms.append((altered, (*used, rule)))
    return forms[1:]
