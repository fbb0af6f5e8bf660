"""Sections 1 to 3, A.3 and A.4: gating, annotations and partitioned operators, planned now."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import namedmesh as nm
from benchmarks.operator_cases import CASES, trace_in_slices
from benchmarks.paper.performance import COMPILE, FAMILY, grow, models
from benchmarks.paper.rows import Row, compare_growth, holds
from namedmesh.aot import Target, Torus
from namedmesh.hardware.assignment import assign_devices, mean_hops
from namedmesh.layers import (
    EinsumDispatch,
    Transformer,
    batch_of,
    config,
    expert_capacity,
    moe,
    top_k_gating,
)
from tests.layers.algorithm1 import softmax, top2_gating

EINSUM = ("namedmesh/ops/einsum.py", "tests/ops/test_einsum.py")
HALO = ("namedmesh/ops/halo.py", "tests/ops/test_neighbours.py", "docs/guides/space.md")
CONV = ("namedmesh/ops/conv.py", "tests/ops/test_conv.py", "docs/guides/space.md")
GATING = ("namedmesh/layers/gating.py", "tests/layers/test_gating.py")
MOVES = ("namedmesh/ops/move.py", "tests/ops/test_placement.py", "docs/guides/layouts.md")
SPACE = nm.Mesh(space=4)


def describe(plan: nm.Plan) -> str:
    """Return the kinds of a plan's collectives, and how many elements each sends."""
    sent = [f"{one.kind} of {one.elements:,}" for one in plan.collectives]
    return (
        ", ".join(f"{n} {one}" if n > 1 else one for one, n in Counter(sent).items()) or "nothing"
    )


def kinds_of(plan: nm.Plan) -> set[str]:
    """Return the kinds of a plan's collectives."""
    return {one.kind for one in plan.collectives}


def plan_squares(
    function: Callable[..., nm.Tensor], *specs: Any, mesh: nm.Mesh = SPACE, layout: str = "x:space"
) -> nm.Plan:
    """Plan an op and the square of its result, so that the result stays as the op leaves it."""
    program = nm.trace(lambda *operands: nm.sum(nm.square(function(*operands))), *specs)
    return nm.plan(program, mesh, layout)


def row_of_halo(claim: str, paper: str, plan: nm.Plan, where: tuple[str, ...]) -> Row:
    """Return a row of an op that sends to neighbours, and nothing else but the sum of squares."""
    moves = [one for one in plan.collectives if one.kind != "AllReduce"]
    sent = ", ".join(f"{one.kind} of {one.elements:,}" for one in moves) or "nothing"
    gathered = "the whole dimension is gathered"
    status = holds({one.kind for one in moves} <= {"CollectivePermute"}, gathered)
    return Row(claim, paper, sent, status, where)


def introduction() -> Iterator[Row]:
    """Figure 2, and compilation that does not grow with the devices."""
    M, K, N = nm.dims("m=64 k=64 n=64")
    program = nm.trace(lambda x, y: nm.einsum([x, y], [M, N]), nm.spec([M, K]), nm.spec([K, N]))
    plan = nm.plan(program, nm.Mesh(all=4), "k:all")
    yield Row(
        "A Dot partitioned along K on 4 devices is one program with an AllReduce (Figure 2)",
        "AllReduce of [M, N]", describe(plan),
        holds([(one.kind, one.elements) for one in plan.collectives] == [("AllReduce", 4096)]),
        (*EINSUM, "docs/guides/layouts.md"),
    )  # fmt: skip
    plans = [CASES["dispatch"].plan(count) for count in (8, 2048)]
    sizes = [(len(one.program.ops), len(one.collectives)) for one in plans]
    yield Row(
        "The program does not grow with the devices",
        "O(1) nodes", f"{sizes[0][0]} ops and {sizes[0][1]} collective on 8 devices, "
        f"{sizes[1][0]} and {sizes[1][1]} on 2,048", holds(sizes[0] == sizes[1]),
        ("benchmarks/lowering.py", "docs/architecture.md"),
    )  # fmt: skip
    exponent = grow("code_bytes")
    yield Row(
        "The compiled program does not grow with the devices", "O(1)",
        f"O(D^{exponent:.2f}) from 128 to 2,048 cores", compare_growth(0, exponent),
        FAMILY, COMPILE,
    )  # fmt: skip
    exponent = grow("compile_seconds")
    seconds = [row["compile_seconds"] for row in models("scaling").values()]
    yield Row(
        "Compilation takes as long for any number of devices", "O(1)",
        f"O(D^{exponent:.2f}): {seconds[0]:.0f} s for 128 cores, {seconds[-1]:.0f} s for 2,048",
        compare_growth(0, exponent), FAMILY, COMPILE,
    )  # fmt: skip
    model = Transformer(config("tiny"), group=8, source=8, target=8)

    def train(batch: dict[str, Any], seed: nm.Tensor) -> Any:
        loss, _ = model.loss(batch_of(batch), nm.random.key_from_seed(seed))
        return nm.grad(loss)

    program = nm.trace(train, batch=model.specs(), seed=nm.spec([], "int32"))
    layouts = {
        "group:all, expert:all": nm.Mesh(all=8),
        "group:data, hidden:model, heads:model": nm.Mesh(data=2, model=4),
        "group:all": nm.Mesh(all=8),
    }
    sent = [nm.plan(program, mesh, text).total_wire_bytes() for text, mesh in layouts.items()]
    yield Row(
        "A model is written once; how it is partitioned is said apart from it",
        "annotations on a few tensors",
        f"{len(set(sent))} plans of one traced program by {len(layouts)} lines of layout",
        holds(len(set(sent)) == len(layouts)),
        ("docs/guides/layouts.md", "tests/test_every_layout.py"),
    )  # fmt: skip


def program_of(model: Transformer) -> nm.Program:
    """Trace the loss of a model."""
    return nm.trace(lambda batch: model.loss(batch_of(batch), None)[0], batch=model.specs())


def model() -> Iterator[Row]:
    """2: the mixture and Algorithm 1."""
    rng = np.random.default_rng(0)
    G, S, E, C = nm.dims("group=16 seq=64 expert=8 capacity=16")
    logits = rng.normal(size=(16, 64, 8)).astype(np.float32) * 2
    draws = rng.uniform(size=(16, 64)).astype(np.float32)

    def gate(logits: nm.Tensor, draws: nm.Tensor) -> dict[str, nm.Tensor]:
        routing = top_k_gating(logits, S, E, C, draws=[draws])
        combine = nm.transpose(EinsumDispatch(routing).combine_weights, [G, S, E, C])
        return {"combine": combine, "aux": routing.aux_loss, "left_out": routing.left_out}

    program = nm.trace(gate, logits=nm.spec([G, S, E]), draws=nm.spec([G, S]))
    found = program.evaluate({}, logits=logits, draws=draws)[1]
    expected = [top2_gating(logits[g], C.size, draws[g]) for g in range(16)]
    apart = float(np.abs(found["combine"] - np.stack([one[0] for one in expected])).max())
    yield Row(
        "Algorithm 1: combine weights of top-2 gating with capacity", "the loop as printed",
        f"at most {apart:.0e} from the loop, 1,024 tokens", holds(apart < 1e-5),
        (*GATING, "tests/layers/algorithm1.py"),
    )  # fmt: skip
    apart = abs(float(found["aux"]) / float(np.mean([one[1] for one in expected])) - 1)
    yield Row(
        "Algorithm 1, line 13: the auxiliary loss, the mean of (c_e / S) m_e",
        "the line as printed", f"within {apart:.0e} of it", holds(apart < 1e-5), GATING,
    )  # fmt: skip
    ordered = np.sort(softmax(logits), -1)
    share = 2 * ordered[..., -2] / (ordered[..., -1] + ordered[..., -2])
    left_out = 1 - np.minimum(share, 1).mean()
    drawn = float((share <= draws).mean())
    yield Row(
        "Random routing: the second expert is taken with probability 2 g2",
        f"{left_out:.1%} left out, on average", f"{float(found['left_out'][1]):.1%} of 1,024 draws",
        holds(abs(float(found["left_out"][1]) - drawn) < 1e-6 and abs(drawn - left_out) < 0.05),
        (*GATING, "docs/guides/mixtures.md#capacity-and-what-is-not-served"),
    )  # fmt: skip
    capacity = expert_capacity(nm.Dimension("seq", 1024), nm.Dimension("expert", 128)).size
    yield Row(
        "Expert capacity of a group of 1,024 tokens and 128 experts: 2 N / (G E)", "16",
        f"{capacity}", holds(capacity == 16), (*GATING, "docs/guides/mixtures.md"),
    )  # fmt: skip
    plan = nm.plan(program, nm.Mesh(all=4), "group:all")
    sent = [one for one in plan.collectives if one.elements > E.size]
    yield Row(
        "Groups are gated independently of each other", "no communication",
        f"{len(sent)} collectives of combine weights; {describe(plan)} for means of metrics",
        holds(not sent), (*GATING, "tests/layers/test_routing_groups.py"),
    )  # fmt: skip
    tiny = Transformer(config("tiny").but(layers=8), group=8, source=8, target=8)
    names = program_of(tiny).parameters
    mixtures = {name: one for name, one in names.items() if name.endswith("moe/wi")}
    layers = sum(one.shape.sizes[0] for one in mixtures.values())
    yield Row(
        "A mixture replaces every other feed-forward network, in encoder and decoder (Figure 3)",
        "4 of 8 layers", f"{layers} of 8 layers, on {len(mixtures)} sides",
        holds((layers, len(mixtures)) == (4, 2)),
        ("namedmesh/layers/transformer.py", "docs/guides/transformer.md"),
    )  # fmt: skip
    plan = nm.plan(program_of(tiny), nm.Mesh(all=8), "group:all, expert:all")
    places = {row.tensor: row.place for row in plan.tensor_rows if row.tensor in names}
    split = sorted(name for name, place in places.items() if "/all" in place)
    yield Row(
        "The experts are sharded, and all other weights are on every device (Figure 3c)",
        "wi and wo of experts",
        f"{len(split)} of {len(places)} weights: {', '.join(sorted({n[-2:] for n in split}))} of "
        "the mixtures",
        holds(bool(split) and all(name.endswith(("moe/wi", "moe/wo")) for name in split)),
        ("namedmesh/layers/mixture.py", "docs/guides/mixtures.md#on-devices"),
    )  # fmt: skip


def plan_layer(devices: int, gradient: bool = False) -> nm.Plan:
    """Plan Algorithm 2 with as many groups and experts as devices."""
    G, S, E, C, M, H = nm.dims(
        f"group={devices} seq=2048 expert={devices} capacity={4096 // devices} model=64 hidden=256"
    )

    def layer(x: nm.Tensor) -> Any:
        gate = lambda logits: top_k_gating(logits, S, E, C, second="all")
        y, _ = moe(x, gate, (G, S, E, C, M, H), form="einsum")
        return nm.grad(nm.sum(nm.square(y)), x) if gradient else y

    program = nm.trace(layer, nm.spec([G, S, M]))
    return nm.plan(program, nm.Mesh(all=devices), "group:all, expert:all")


def linear_algebra() -> Iterator[Row]:
    """3.1: Algorithm 2."""
    where = ("namedmesh/layers/mixture.py", "tests/layers/test_dispatch.py",
             "docs/guides/mixtures.md#on-devices")  # fmt: skip
    plan = plan_layer(16)
    kinds = Counter(one.kind for one in plan.collectives)
    yield Row(
        "Algorithm 2, forward: tokens go to their experts and back", "2 AllToAlls",
        ", ".join(f"{n} {kind}s" for kind, n in kinds.items()), holds(kinds == {"AllToAll": 2}),
        where,
    )  # fmt: skip
    flops = [plan_layer(count).program.flops() / count for count in (16, 256)]
    exponent = math.log(flops[1] / flops[0]) / math.log(16)
    yield Row(
        "Algorithm 2: a device's FLOPs as D devices and experts grow", "O(1) + a small O(D)",
        f"O(D^{exponent:.2f}) from 16 to 256 devices", compare_growth(0, exponent), where,
    )  # fmt: skip


def sharding_api() -> Iterator[Row]:
    """3.2: replicate, split, shard, propagation, and manual partitions."""
    B, M = nm.dims("batch=8 model=4")
    mesh = nm.Mesh(data=8)
    plan = nm.plan(nm.trace(nm.replicate, nm.spec([B, M])), mesh, "batch:data")
    yield Row(
        "replicate(tensor)", "annotates, AllGather if it was split", describe(plan),
        holds(kinds_of(plan) == {"AllGather"}), MOVES,
    )  # fmt: skip
    has = "num_partitions" in inspect.signature(nm.split).parameters
    yield Row(
        "split(tensor, split_dimension, num_partitions)", "three arguments",
        str(inspect.signature(nm.split)).replace("'", ""),
        holds(has, "the layout says over which axis a dimension is split, and so into how many"),
        MOVES,
    )  # fmt: skip
    try:
        nm.trace(lambda x: nm.shard(x, np.arange(8).reshape(8, 1)), nm.spec([B, M]))
        accepted, why = "ids of devices for one tensor", ""
    except nm.NamedMeshError:
        accepted, why = (
            "mesh axes for each dimension",
            ("ids of devices are given for a mesh (device_assignment=), not for one tensor"),
        )
    yield Row(
        "shard(tensor, device_assignment)", "ids of devices for one tensor", accepted,
        holds(not why, why), (*MOVES, "namedmesh/dims/mesh.py"),
    )  # fmt: skip
    plan = plan_layer(16)
    stated = sum(op.states_place for op in plan.program.ops)
    yield Row(
        "Annotations in Algorithm 2; all other tensors follow", "3 (two split, one replicate)",
        f"{stated} (reshard), and a line of layout", "better" if stated < 3 else "equal",
        ("namedmesh/layers/mixture.py", "namedmesh/planning/planner.py"),
    )  # fmt: skip
    gradient = plan_layer(16, gradient=True)
    backward = gradient.count("AllToAll", "backward")
    yield Row(
        "Tensors of the backward pass are partitioned without annotations", "inferred",
        f"{backward} AllToAlls of gradients", holds(backward == 2),
        ("namedmesh/ir/differentiate.py", "tests/planning/test_least_communication.py"),
    )  # fmt: skip
    G, S, E, C, M = nm.dims("group=8 seq=16 expert=4 capacity=3 model=8")

    def dispatch(x: nm.Tensor, indices: nm.Tensor) -> nm.Tensor:
        return nm.manual(lambda x, i: nm.gather(x, i, S), x, indices, over=G)

    program = nm.trace(dispatch, nm.spec([G, S, M]), nm.spec([E, G, C], "int32"))
    plan = nm.plan(program, mesh, "group:data")
    yield Row(
        "Manual and automatic partitions mixed: a local Gather dispatches tokens",
        "no communication", describe(plan), holds(not plan.collectives),
        ("namedmesh/ops/manual.py", "docs/guides/by-hand.md"),
    )  # fmt: skip


def primitives() -> Iterator[Row]:
    """3.3.1: the collectives."""
    uses = {
        "CollectivePermute": ("moves shards to other devices, and halos", "collective_permute"),
        "AllGather": ("makes a sharded tensor whole", "all_gather"),
        "AllReduce": ("adds partial results", "all_reduce"),
        "AllToAll": ("moves the sharding to another dimension", "all_to_all"),
    }
    for kind, (use, name) in uses.items():
        plan = CASES[name].plan(16)
        yield Row(
            f"{kind} {use}", f"1 {kind}", describe(plan),
            holds([one.kind for one in plan.collectives] == [kind]),
            ("namedmesh/records/collective.py", "benchmarks/operator_cases.py"),
        )  # fmt: skip


def operators() -> Iterator[Row]:
    """3.3.2: the cases of Einsum."""
    G, M, H = nm.dims("group=16 model=8 hidden=8")
    program = nm.trace(lambda x, w: nm.einsum([x, w], [G, M]), nm.spec([G, M, H]), nm.spec([G, H]))
    plan = nm.plan(program, nm.Mesh(all=16), "group:all")
    yield Row(
        "Batch dimensions: each partition computes its own", "no communication", describe(plan),
        holds(not plan.collectives), EINSUM,
    )  # fmt: skip
    plan = CASES["dispatch"].plan(16)
    yield Row(
        "Resharding: [G]SEC,[G]SM->[E]GCM (Figure 4a)", "a local Einsum, then AllToAll",
        describe(plan), holds([one.kind for one in plan.collectives] == ["AllToAll"]), EINSUM,
    )  # fmt: skip
    plan = CASES["matmul_sum"].plan(16)
    yield Row(
        "Contraction over a split dimension (Figure 4b)", "AllReduce of partial results",
        describe(plan), holds([one.kind for one in plan.collectives] == ["AllReduce"]), EINSUM,
    )  # fmt: skip
    cases = {
        "Slicing in a loop where a whole operand would be too large (Figure 4c)":
            (False, "a:all, c:all", "CollectivePermute, no full-sized tensor"),
        "The same of a result that would be too large before it is added up":
            (True, "b:all, a:all", "not in the paper: ReduceScatter in slices"),
    }  # fmt: skip
    for claim, (sums, layout, paper) in cases.items():
        plan = nm.plan(trace_in_slices(sums)(16), nm.Mesh(all=16), f"{layout}, slices=64KiB")
        largest = max(one.elements for one in plan.collectives)
        A, B, C = nm.dims("a=262144 b=8192 c=262144")  # more than 4 GiB whole: no slices= needed
        program = nm.trace(
            lambda x, y, dims=(A, C): nm.einsum([x, y], dims), nm.spec([A, B]), nm.spec([B, C])
        )
        large = kinds_of(nm.plan(program, nm.Mesh(all=16), layout))
        yield Row(
            claim, paper,
            f"{plan.collectives[0].kind} of {largest:,}, {plan.count('CollectivePermute')} times; "
            f"chosen by itself for more than 4 GiB: {', '.join(sorted(large))}",
            holds(kinds_of(plan) == large == {"CollectivePermute"}),
            ("namedmesh/planning/planner.py", "tests/ops/test_slices.py",
             "docs/guides/layouts.md#products-in-slices"),
        )  # fmt: skip


def complete_set() -> Iterator[Row]:
    """3.3.3: uneven partitions and halo exchange."""
    (X,) = nm.dims("x=15")
    program = nm.trace(lambda x: nm.sum(x), x=nm.spec([X]))
    plan = nm.plan(program, nm.Mesh(space=2), "x:space")
    size = plan.shardings[program.ops[0].outputs[0]].local_elements(
        program.ops[0].outputs[0].shape, plan.mesh
    )
    yield Row(
        "Uneven partitions: 15 on 2 devices, the padding masked by zero in a sum",
        "shards of 8", f"shards of {size}, {describe(plan)}",
        holds(size == 8 and kinds_of(plan) == {"AllReduce"}),
        ("namedmesh/dims/sharding.py", "tests/ops/test_reduce.py", "docs/guides/faq.md"),
    )  # fmt: skip
    X, I = nm.dims("x=15 i=2")  # noqa: E741
    spec = nm.spec([X, I])
    pad = plan_squares(lambda x: nm.pad(x, X, 1, 1), spec)
    yield row_of_halo("Halo exchange of Pad (Figure 5b)", "CollectivePermute", pad, HALO)
    part = plan_squares(lambda x: nm.slice(x, X, 1, 13), spec)
    yield row_of_halo("Halo exchange of Slice", "CollectivePermute", part, HALO)
    for devices in (2, 4):
        mesh = nm.Mesh(space=devices)
        plan = plan_squares(lambda x: nm.reverse(x, X), spec, mesh=mesh)
        yield row_of_halo(
            f"Reverse of 15 on {devices} devices shifts data across partitions",
            "halo exchange", plan, HALO,
        )  # fmt: skip
    A, B, C = nm.dims("a=3 b=2 c=6")
    plan = plan_squares(
        lambda x: nm.reshape(x, [A, B], C), nm.spec([A, B]),
        mesh=nm.Mesh(space=2), layout="a:space, c:space",
    )  # fmt: skip
    shape = ("namedmesh/ops/shape.py", "tests/ops/test_uneven_shards.py")
    yield row_of_halo(
        "Reshape [3, 2] to [6] on 2 devices (Figure 5c)", "halo exchange", plan, shape
    )
    plan = nm.plan(nm.trace(lambda x: nm.pad(x, X, 1, 1), spec), SPACE, "x:space")
    yield Row(
        "A result of uneven size stays partitioned", "padded to a multiple", describe(plan),
        holds("AllGather" not in kinds_of(plan), "the result of a program is gathered at its end"),
        ("namedmesh/planning/planner.py",),
    )  # fmt: skip


def device_assignments() -> Iterator[Row]:
    """A.3: shard with a device assignment, and topology."""
    A, B, C = nm.dims("a=3 b=16 c=64")
    program = nm.trace(lambda x: nm.shard(x, {B: "rows", C: "columns"}), nm.spec([A, B, C]))
    plan = nm.plan(program, nm.Mesh(rows=2, columns=4))
    output = program.outputs[0]
    count = plan.shardings[output].local_elements(output.shape, plan.mesh)
    yield Row(
        "[3, 16, 64] with a device assignment of [1, 2, 4]", "partitions of [3, 8, 16]",
        f"{plan.shardings[output].text(output.shape)}: {count} elements, as 3 x 8 x 16",
        holds(count == 3 * 8 * 16), MOVES,
    )  # fmt: skip
    torus = Torus.of_target(Target.parse("tpu-v3:2x2"))
    assert torus is not None
    mesh, traffic = nm.Mesh(rows=2, columns=4), {"rows": 1.0}
    found = assign_devices(mesh, torus, traffic)
    assert found.order is not None
    worst = mean_hops(mesh, torus, traffic)
    best = mean_hops(mesh, torus, traffic, found.order)
    yield Row(
        "2 x 4 partitions placed by topology, so that those which communicate are near (Figure 10)",
        "ids by topology", f"{best:.1f} hops between them, {worst:.1f} in the order of ids",
        holds(best < worst), ("namedmesh/hardware/assignment.py", "tests/aot/test_topology.py"),
    )  # fmt: skip


def plan_conv(size: int, window: int, **options: Any) -> nm.Plan:
    """Plan a convolution along a dimension that is split over four devices."""
    X, W, I, O = nm.dims(f"x={size} w={window} in=2 out=3")  # noqa: E741
    return plan_squares(
        lambda x, w: nm.conv(x, w, {X: W}, **options), nm.spec([X, I]), nm.spec([W, I, O])
    )


def convolutions() -> Iterator[Row]:
    """A.4: windows of every configuration."""
    exchange = "CollectivePermute"
    yield row_of_halo(
        "A spatially split convolution with a whole kernel (Figure 5a)",
        "CollectivePermute with both neighbours", plan_conv(16, 3), CONV,
    )  # fmt: skip
    yield row_of_halo("Stride 2", exchange, plan_conv(16, 3, stride=2), CONV)
    yield row_of_halo(
        "Low padding 1, high padding 3", exchange, plan_conv(16, 5, padding=(1, 3)), CONV
    )
    yield row_of_halo("Window dilation 2", exchange, plan_conv(16, 3, dilation=2), CONV)
    yield row_of_halo(
        "Halos of 1, 2, 3 and 4 elements: their largest is exchanged (Figures 11 and 12)",
        "CollectivePermute of the largest halo", plan_conv(12, 2, stride=2, padding=(0, 4)), CONV,
    )  # fmt: skip
    cases = (
        ("stride times windows divisible by dilation", plan_conv(8, 3, base_dilation=2)),
        ("stride 1, not divisible", plan_conv(8, 3, base_dilation=4, padding=(0, 0))),
        ("stride 3, not divisible",
         plan_conv(16, 3, base_dilation=2, stride=3, padding=(1, 1))),
    )  # fmt: skip
    for case, plan in cases:
        yield row_of_halo(f"Base dilation, {case} (Figure 13)", exchange, plan, CONV)
