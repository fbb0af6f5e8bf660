"""nm.cost against figures worked out by hand, on hardware of round numbers."""

import dataclasses
import json
from typing import Any

import pytest

import namedmesh as nm
from benchmarks.operators import count_flops
from namedmesh.layers import Adam
from tests.cost.round_hardware import FUSING, ROUND

A, B, C = nm.dims("a=64 b=32 c=16")
FLOAT = 4


def cost(
    function: Any,
    hardware: nm.Hardware = ROUND,
    mesh: nm.Mesh | None = None,
    layout: str = "",
    **specs: Any,
) -> nm.Cost:
    plan = nm.plan(nm.trace(function, **specs), mesh or nm.Mesh(all=1), layout)
    return nm.cost(plan, hardware)


def product(x, y):
    return nm.einsum([x, y], [A, C])


def test_a_product_takes_its_traffic_or_its_arithmetic():
    specs: dict[str, Any] = {"x": nm.spec([A, B]), "y": nm.spec([B, C])}
    (one,) = cost(product, **specs).ops
    assert one.flops == 2 * 64 * 32 * 16
    assert one.bytes == FLOAT * (64 * 32 + 32 * 16 + 64 * 16)
    assert (one.bound, one.seconds) == ("memory", one.bytes / 1e6)
    fast = dataclasses.replace(ROUND, memory_bandwidth=1e12)
    (one,) = cost(product, fast, **specs).ops
    assert (one.bound, one.seconds) == ("compute", one.flops / 1e9)
    half = dataclasses.replace(fast, product_share=0.5)
    assert cost(product, half, **specs).seconds == pytest.approx(2 * one.seconds)


def test_products_take_the_rate_of_their_dtype():
    fast = dataclasses.replace(ROUND, memory_bandwidth=1e12)
    narrow: dict[str, Any] = {"x": nm.spec([A, B], "bfloat16"), "y": nm.spec([B, C], "bfloat16")}
    assert cost(product, fast, **narrow).ops[0].seconds == 2 * 64 * 32 * 16 / 2e9


def test_work_is_divided_along_the_axes_that_tensors_hold():
    specs: dict[str, Any] = {"x": nm.spec([A, B]), "y": nm.spec([B, C])}
    (one,) = cost(product, mesh=nm.Mesh(all=4), layout="a:all", **specs).ops
    assert one.flops == 2 * 16 * 32 * 16
    assert one.bytes == FLOAT * (16 * 32 + 32 * 16 + 16 * 16)


def test_work_that_is_not_divided_is_counted_on_every_device():
    program = nm.trace(lambda x: nm.replicate(x) + 1.0, nm.spec([A]))
    plan = nm.plan(program, nm.Mesh(all=4), "a:all")
    assert count_flops(plan, program.ops) == 64 == program.flops()


def test_a_chain_of_elementwise_ops_reads_and_writes_once():
    found = cost(lambda x: nm.exp(x * 2.0 + 1.0) - 3.0, x=nm.spec([A, B]))
    (one,) = found.ops
    assert one.bytes == 2 * FLOAT * 64 * 32
    assert one.flops == 4 * 64 * 32
    assert found.flops == 4 * 64 * 32


def test_a_reduction_makes_what_it_reads():
    (one,) = cost(lambda x: nm.sum(x * x, over=B), x=nm.spec([A, B])).ops
    assert (one.op.kind, one.bytes) == ("sum", FLOAT * (64 * 32 + 64))


def test_operands_of_a_product_are_written_unless_the_compiler_makes_them_within():
    def scaled(x, y):
        return nm.einsum([x * 2.0, y], [A, C]) + 1.0

    specs: dict[str, Any] = {"x": nm.spec([A, B]), "y": nm.spec([B, C])}
    x, y, z = FLOAT * 64 * 32, FLOAT * 32 * 16, FLOAT * 64 * 16
    found = cost(scaled, **specs)
    assert [one.op.kind for one in found.ops] == ["multiply", "einsum", "add"]
    assert [one.bytes for one in found.ops] == [2 * x, x + y + z, 2 * z]
    fused = cost(scaled, FUSING, **specs)
    assert [one.op.kind for one in fused.ops] == ["einsum", "add"]
    assert [one.bytes for one in fused.ops] == [x + y, z]


def test_of_what_several_ops_make_of_a_product_the_narrowest_is_written():
    """The product in bfloat16, of which both readers make exponentials in float32."""

    def sums(x, y):
        wide = nm.exp(nm.cast(nm.einsum([x, y], [A, C]), "float32"))
        return nm.sum(wide, over=C), nm.sum(wide, over=A)

    narrow: dict[str, Any] = {"x": nm.spec([A, B], "bfloat16"), "y": nm.spec([B, C], "bfloat16")}
    found = cost(sums, FUSING, **narrow)
    product = 2 * 64 * 16
    assert [one.op.kind for one in found.ops] == ["einsum", "sum", "sum"]
    assert [one.bytes for one in found.ops[1:]] == [product + FLOAT * 64, product + FLOAT * 16]
    assert found.memory.peak_bytes - found.memory.kept_bytes == product + FLOAT * (64 + 16)
    wide: dict[str, Any] = {"x": nm.spec([A, B]), "y": nm.spec([B, C])}
    kinds = [one.op.kind for one in cost(sums, FUSING, **wide).ops]
    assert kinds == ["einsum", "exp", "sum", "sum"]


def test_a_barrier_takes_neither_time_nor_memory():
    def twice(x):
        y = nm.cumsum(x, A)
        return nm.cumsum(nm.compute_once(y), A) + y

    found = cost(twice, x=nm.spec([A, B]))
    assert [one.op.kind for one in found.ops] == ["cumsum", "cumsum", "add"]
    assert found.memory.peak_bytes - found.memory.kept_bytes == 2 * FLOAT * 64 * 32


def test_a_product_ends_in_relu_where_the_compiler_has_such_products():
    def layer(x, y):
        return nm.relu(nm.einsum([x, y], [A, C]))

    specs: dict[str, Any] = {"x": nm.spec([A, B]), "y": nm.spec([B, C])}
    assert [one.op.kind for one in cost(layer, **specs).ops] == ["einsum", "relu"]
    (one,) = cost(layer, dataclasses.replace(ROUND, fuses_relu=True), **specs).ops
    assert one.bytes == FLOAT * (64 * 32 + 32 * 16 + 64 * 16)


def test_sums_over_the_same_dimensions_read_what_they_share_once():
    def sums(x, y):
        return nm.sum(x, over=B), nm.sum(x * y, over=B), nm.sum(x, over=A)

    merging = dataclasses.replace(ROUND, merges_sums=True)
    specs: dict[str, Any] = {"x": nm.spec([A, B]), "y": nm.spec([A, B])}
    rows, columns = cost(sums, merging, **specs).ops
    assert rows.bytes == FLOAT * (2 * 64 * 32 + 2 * 64)
    assert columns.bytes == FLOAT * (64 * 32 + 32)


def test_a_sum_that_needs_another_comes_after_it():
    def variance(x):
        return nm.sum(nm.square(x - nm.sum(x, over=B)), over=B)

    found = cost(variance, dataclasses.replace(ROUND, merges_sums=True), x=nm.spec([A, B]))
    assert [one.op.kind for one in found.ops] == ["sum", "sum"]


def test_what_several_ops_read_is_written_where_that_is_less():
    def sums(x, y, z, v):
        total = x + y + z + v
        return nm.sum(total, over=B), nm.sum(total * total, over=A), nm.max(total)

    names: dict[str, Any] = {name: nm.spec([A, B]) for name in "xyzv"}
    size = FLOAT * 64 * 32
    found = cost(sums, **names)
    assert found.ops[0].bytes == 5 * size  # four are read, their sum is written
    cheap = cost(lambda x: (nm.sum(x + 1.0, over=B), nm.sum(x + 1.0, over=A)), x=nm.spec([A, B]))
    assert [one.op.kind for one in cheap.ops] == ["sum", "sum"]


def test_equal_ops_are_made_once_unless_a_barrier_is_between():
    def twice(x, y, barrier):
        again = nm.compute_once(x) if barrier else x
        return nm.einsum([x, y], [A, C]), nm.einsum([again, y], [A, C]) * 2.0

    specs: dict[str, Any] = {"x": nm.spec([A, B]), "y": nm.spec([B, C])}
    found = cost(lambda x, y: twice(x, y, False), **specs)
    assert [one.op.kind for one in found.ops] == ["einsum", "multiply"]
    kept = cost(lambda x, y: twice(x, y, True), **specs)
    assert [one.op.kind for one in kept.ops].count("einsum") == 2


def test_a_gather_reads_as_much_as_it_makes():
    R = nm.Dimension("rows", 1000)
    (one,) = cost(
        lambda table, at: nm.gather(table, at, R), table=nm.spec([R, B]), at=nm.spec([C], "int32")
    ).ops
    assert one.bytes == FLOAT * (2 * 16 * 32 + 16)


def test_ops_in_loops_count_with_their_iterations():
    T = nm.Dimension("iteration", 5)

    K = nm.Dimension("k", 32)

    def step(x, w):
        def iteration(x, w):
            return nm.rename(nm.einsum([x, w], [A, K]), K, B), None

        return nm.scan(iteration, x, w, over=T)[0]

    found = cost(step, x=nm.spec([A, B]), w=nm.spec([T, B, K]))
    (one,) = [one for one in found.ops if one.op.kind == "einsum"]
    assert (one.times, one.flops) == (5, 2 * 64 * 32 * 32)
    assert found.flops == 5 * one.flops
    assert one.total_seconds == 5 * one.seconds


def test_of_two_branches_the_dearer_counts():
    def choose(x, flag):
        return nm.cond(nm.sum(flag) > 0, lambda x: nm.exp(nm.cumsum(x, A)), lambda x: x, x)

    found = cost(choose, x=nm.spec([A, B]), flag=nm.spec([C]))
    assert "cumsum" in {one.op.kind for one in found.ops}


def test_collectives_and_both_ends_of_overlap():
    specs: dict[str, Any] = {"x": nm.spec([A, B]), "y": nm.spec([B, C])}
    found = cost(product, mesh=nm.Mesh(all=4), layout="b:all", **specs)
    (one,) = found.collectives
    # Four devices on a ring: twice three quarters of the buffer at 1 MB/s.
    assert one.seconds == pytest.approx(2 * 0.75 * FLOAT * 64 * 16 / 1e6)
    assert found.collective_seconds == one.total_seconds
    assert found.serial_seconds == found.compute_seconds + found.collective_seconds
    assert found.seconds == found.compute_seconds + found.exposed_seconds
    assert found.least_seconds == max(found.compute_seconds, found.collective_seconds)


def test_flops_of_a_step_are_those_of_the_program():
    program = nm.trace(train, x=nm.spec([A, B]))
    plan = nm.plan(program, nm.Mesh(all=4), "a:all")
    found = nm.cost(plan, "tpu-v3")
    assert found.flops == pytest.approx(count_flops(plan, program.ops), rel=0.1)


def train(x):
    w = nm.param("w", [B, C])
    loss = nm.mean(nm.square(nm.einsum([x, w], [A, C])))
    Adam(1e-3).apply(nm.grad(loss))
    return loss


@pytest.mark.parametrize("name", ["tpu-v2", "tpu-v4", "tpu-v5e", "tpu-v6e", "h100", "a100", "cpu"])
def test_every_hardware_has_a_cost_that_prints_and_is_json(name):
    plan = nm.plan(nm.trace(train, x=nm.spec([A, B])), nm.Mesh(data=4, model=2), "a:data, c:model")
    found = nm.cost(plan, name)
    assert 0 < found.least_seconds <= found.seconds <= found.serial_seconds and 0 < found.mfu < 1
    document = json.loads(json.dumps(found.to_json()))
    assert document["seconds"] == found.seconds
    assert sum(one["seconds"] * one["times"] for one in document["ops"]) == pytest.approx(
        found.compute_seconds
    )
    text = str(found)
    assert "if all communication overlaps" in text and "at the peak" in text
    assert "AllReduce" in text and "test_estimate.py" in text


def test_devices_of_one_host_share_its_cores():
    program = nm.trace(product, x=nm.spec([A, B]), y=nm.spec([B, C]))
    shared = dataclasses.replace(ROUND, shared=True)
    alone = nm.cost(nm.plan(program, nm.Mesh(all=1), ""), shared).seconds
    with pytest.warns(UserWarning):
        plan = nm.plan(program, nm.Mesh(all=4), "")
    assert nm.cost(plan, shared).seconds == pytest.approx(4 * alone)


def test_what_is_not_a_plan_or_a_precision_is_said():
    with pytest.raises(nm.NamedMeshError, match="not a plan"):
        nm.cost("plan", "h200")  # type: ignore[arg-type]
    plan = nm.plan(nm.trace(train, x=nm.spec([A, B])), nm.Mesh(all=4), "a:all")
    with pytest.raises(nm.NamedMeshError, match="precision"):
        nm.cost(plan, "h200", precision="hihg")
    slow = nm.cost(plan, "tpu-v3", precision="highest").compute_seconds
    assert slow >= nm.cost(plan, "tpu-v3").compute_seconds


def test_kernels_take_the_place_of_the_named_ops_they_replace():
    Q, K, D, H = nm.dims("queries=256 keys=256 depth=64 heads=4")

    def attend(q, k, v):
        return nm.attention(q, k, v, K, D)

    plan = nm.plan(
        nm.trace(
            attend,
            q=nm.spec([H, Q, D], "bfloat16"),
            k=nm.spec([H, K, D], "bfloat16"),
            v=nm.spec([H, K, D], "bfloat16"),
        ),
        nm.Mesh(all=1),
        "",
    )
    (one,) = [one for one in nm.cost(plan, "h200").ops if one.op.offers_kernel]
    products, logits = 2 * (2 * 4 * 256 * 256 * 64), 4 * 256 * 256
    # Beside two products, a few operations for each logit: a difference, an exponential, a sum.
    assert products + 3 * logits <= one.flops <= products + 12 * logits
    # That of TPUs takes whole tiles.
    tpu = nm.Hardware.parse("tpu-v3")
    for tile, products in ((256, 0), (512, 2)):
        found = nm.cost(plan, dataclasses.replace(tpu, kernel_tile=tile))
        assert [one.op.kind for one in found.ops].count("einsum") == products


@pytest.mark.parametrize("block", [None, 64])
def test_kernels_take_the_place_of_attention_by_blocks_too(block):
    Q, K, D, H = nm.dims("queries=256 keys=256 depth=64 heads=4")

    def attend(q, k, v):
        return nm.sum(nm.cast(nm.attention(q, k, v, K, D, block=block), "float32"))

    def train():
        sizes = {"q": [H, Q, D], "k": [H, K, D], "v": [H, K, D]}
        loss = attend(*(nm.cast(nm.param(name, dims), "bfloat16") for name, dims in sizes.items()))
        for name, gradient in nm.grad(loss).items():
            nm.assign(nm.parameters()[name], gradient)
        return loss

    ops = nm.cost(nm.plan(nm.trace(train), nm.Mesh(all=1), ""), "h200").ops
    kernels = [one for one in ops if one.op.offers_kernel]
    assert "einsum" not in [one.op.kind for one in ops]
    logits, products = 4 * 256 * 256, [4 * 64, 10 * 64]  # for each logit, forward and backward
    for one, each in zip(kernels, products, strict=True):
        assert (each + 3) * logits <= one.flops <= (each + 14) * logits


def test_memory_of_cpus_is_not_estimated_and_the_cost_says_so():
    """Their compiler takes another order and copies: it reserved 0.8 to 1.5 of the tensors."""
    B = nm.Dimension("batch", 64)
    plan = nm.plan(nm.trace(lambda x: nm.sum(x * x), x=nm.spec([B])), nm.Mesh(data=4), "batch:data")
    found, other = nm.cost(plan, "cpu"), nm.cost(plan, "h200")
    assert not found.memory.estimated and other.memory.estimated
    assert "memory not estimated" in repr(found) and "not estimated" not in repr(other)
    assert "not estimated, step.report has it; the plan's tensors take " in str(found)
    assert found.summary()["memory"] is None and other.summary()["memory"] > 64
    assert found.to_json()["memory"]["estimated"] is False
    assert "not estimated" in repr(found.memory)


def test_collectives_of_weights_hide_behind_ops_and_others_wait():
    def step(x):
        w, v = nm.param("w", [A, B]), nm.param("v", [B, C])
        h = nm.einsum([x, w], [nm.Dimension("rows", 8), B])
        return nm.sum(nm.einsum([h, v], [nm.Dimension("rows", 8), C]))

    program = nm.trace(step, x=nm.spec([nm.Dimension("rows", 8), A]))
    plan = nm.plan(program, nm.Mesh(all=2, rest=2), "b:all, rows:rest", params="a:rest")
    half = dataclasses.replace(ROUND, overlap=0.5, product_overlap=0.25)
    found = nm.cost(plan, half)
    of_weights = sum(one.total_seconds for one in found.collectives if one.collective.tensor == "w")
    others = found.collective_seconds - of_weights
    hidden = min(0.5 * of_weights, found.compute_seconds)
    assert others > 0 and of_weights > 0
    assert found.exposed_seconds == pytest.approx(0.75 * others + of_weights - hidden)
    assert found.seconds == found.compute_seconds + found.exposed_seconds
    assert found.least_seconds <= found.seconds <= found.serial_seconds
    alone = nm.cost(plan, dataclasses.replace(half, overlap=0.0, product_overlap=0.0))
    assert alone.exposed_seconds == pytest.approx(found.collective_seconds)


def test_an_attention_kernel_takes_something_for_each_row_of_queries_of_a_device():
    B, S, T, N, K = nm.dims("batch=4 seq=256 memory=256 heads=8 key=64")

    def step(q, k, v):
        y = nm.attention(q, k, v, T, K)
        return nm.grad(nm.sum(y), [q, k, v])

    like = nm.spec([B, T, N, K], "bfloat16")
    program = nm.trace(step, nm.spec([B, S, N, K], "bfloat16"), like, like)
    plain = dataclasses.replace(nm.Hardware.parse("h200"), memory_bandwidth=1e30)
    slow = dataclasses.replace(plain, kernel_row=1e-3)
    for layout, devices in (("", 1), ("batch:a", 4), ("heads:a", 4)):
        plan = nm.plan(program, nm.Mesh(a=devices), layout)
        rows = 4 * 256 * 8 / devices
        more = nm.cost(plan, slow).seconds - nm.cost(plan, plain).seconds
        assert more == pytest.approx(rows * (1 + 2.5) * 1e-3, rel=1e-6)
