"""What nobody reads is not planned: XLA drops it, and strict would refuse a right program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.layers import decode
from namedmesh.signature.nest import flatten
from tests.checks import assert_all_near

B, M, T, V = nm.dims("batch=8 model=16 time=3 vocab=16")
MESH = nm.Mesh(x=8)
LAYOUT = "batch:x, model:x"


def a_carry_of_a_while_loop(x, y):
    def body(i, kept, dead):
        return i + 1, nm.tanh(kept), dead + nm.sum(kept) * nm.sum(dead)

    return nm.while_loop(lambda i, *_: i < 3, body, 0, x, y)[1]


def a_carry_of_a_while_loop_that_never_changes(x, y):
    def body(i, total, same):
        return i + 1, total + nm.tanh(nm.reshard(same, M) * 2.0), same

    return nm.while_loop(lambda i, *_: i < 3, body, 0, nm.zeros([B, M]), y * x)[1]


def carries_of_loops_in_loops(x, y):
    def inner(carry, row):
        kept, dead = carry
        return (nm.tanh(kept) + row, dead + nm.sum(kept)), nm.sum(dead)

    def outer(carry, row):
        kept, dead, more = carry
        (kept, dead), rows = nm.scan(inner, (kept, dead), row, over=T)
        return (kept, dead, more + nm.sum(rows)), None

    L = nm.Dimension("layer", 2)
    rows = nm.broadcast(y, [L, T, B, M])
    return nm.scan(outer, (x, 0.0, 0.0), rows, over=L)[0][0]


def a_result_of_a_branch(x, y):
    yes, no = (lambda: (x * 2.0, nm.sum(y))), (lambda: (x, nm.sum(x * y)))
    return nm.cond(nm.max(nm.range(B)) > 3, yes, no)[0]


def a_result_of_a_checkpointed_function(x, y):
    return nm.checkpoint(lambda x, y: (x * 2.0, nm.sum(y * 3.0, over=B)))(x, y)[0]


def what_a_checkpoint_would_keep(x, y):
    def function(x):
        return nm.tanh(x), nm.sum(nm.einsum([x, y], [B]))

    return nm.checkpoint(function, policy="dots")(x)[0]


def a_residual_of_a_derivative(x, y):
    forward = lambda x, y: (x * 2.0, nm.sum(y, over=B))
    function = nm.custom_vjp(forward, lambda residual, dy: (dy * 2.0, None))
    return function(x, nm.reshard(y, M))


def an_operand_of_a_maximum(x, y):
    return nm.max(nm.reshard(x, M), over=B) * 2.0  # its derivative alone reads x


def a_result_of_a_region(x, y):
    return nm.manual(lambda x, y: (x * 2.0, nm.sum(y, over=M)), x, y * nm.sum(y), over=B)[0]


def a_region_of_constants(x, y):
    numbers = lambda x: (x * 2.0, nm.broadcast(nm.range(B, "float32"), [B, M]))
    return nm.manual(numbers, y * nm.sum(y), over=B)[1] + x


def a_choice_that_is_known(x, y):
    return nm.where(nm.full([B], 1.0) > 0.5, x, nm.sum(y, over=B))


def a_choice_that_is_known_in_a_loop(x, y):
    def body(carry, _):
        kept, flag = carry
        return (nm.where(flag, nm.tanh(kept), nm.sum(kept)), flag), None

    return nm.scan(body, (x, nm.full([], True, "bool")), over=T)[0][0]


def a_choice_between_equals(x, y):
    return nm.where(nm.sum(y) > 0.0, x, x)


def a_branch_that_is_known(x, y):
    return nm.cond(nm.full([], False, "bool"), lambda: x + nm.sum(y), lambda: x * 2.0)


def nothing_times_a_count(x, y):
    count = nm.sum(nm.cast(y > 0.0, "int32"), over=B) * 0
    return x + nm.cast(count, "float32")


def a_condition_that_cannot_hold(x, y):
    return nm.where((nm.sum(y, over=B) > 0.0) & False, x, -x)


def a_choice_by_numbers_that_follow(x, y):
    """Each condition is known though it is computed, and y is never chosen."""
    heavy = y * nm.sum(y)
    positive = nm.sum(y, over=B) > 0.0
    counts = nm.sum(nm.cast(y > 0.0, "int32"), over=B)
    conditions = [
        (x > 9.0) & nm.full([B], False, "bool") | True,
        nm.ones([M]) + 1.0 > 1.5,
        nm.cast(nm.full([M], -3.0), "bool"),
        nm.cast(nm.full([], 2.75), "int32") < 3,
        nm.any(nm.full([B, M], True, "bool"), over=M),
        nm.max(nm.full([M], 5, "int32")) > 4,
        nm.maximum(nm.full([], 2.0), -1.0) / 4.0 > 0.4,
        nm.equal(counts, counts),
        nm.equal(counts - counts, 0),
        nm.equal(counts & 0, nm.bitwise_xor(counts, counts)),
        (counts | -1) < 0,
        ~nm.logical_xor(positive, positive),
    ]
    for condition in conditions:
        x = nm.where(condition, x, heavy)
    return x


def a_row_of_a_stack(x, y):
    pair = nm.Dimension("pair", 2)
    stacked = nm.stack([x, x * nm.sum(y)], pair)
    return nm.take(stacked, pair, 0) + nm.unstack(stacked, pair)[0]


def some_of_what_is_joined(x, y):
    joined = nm.concat([x * nm.sum(y), nm.tanh(x), x + nm.sum(y)], "model")
    return nm.slice(joined, joined.shape[joined.shape.position("model")], 18, 12)


def an_argument_that_jax_ignores(x, y):
    return call_ignoring(nm.call_jax, x, y)


def an_argument_that_tensorflow_ignores(x, y):
    return call_ignoring(nm.call_tf, x, y)


def call_ignoring(call, x, y):
    """In a loop too, with a result that is not read."""
    both = [nm.spec([B, M]), nm.spec([B, M])]

    def body(carry, _):
        heavy = y * nm.sum(carry)
        kept, _ = call(lambda x, heavy: (x * x * 0.5, heavy), carry, heavy, result=both, batch=[B])
        return kept, None

    ignoring = lambda heavy, x, _: x * 2.0
    kept = call(ignoring, y * nm.sum(y), x, nm.softmax(y, B), result=both[0], batch=[B])
    return kept + nm.scan(body, x, over=T)[0]


DEAD = (
    a_carry_of_a_while_loop, carries_of_loops_in_loops, a_result_of_a_branch,
    a_result_of_a_checkpointed_function, what_a_checkpoint_would_keep,
    a_residual_of_a_derivative, a_result_of_a_region, a_region_of_constants,
    a_row_of_a_stack, a_choice_that_is_known, a_choice_that_is_known_in_a_loop,
    a_choice_between_equals, a_choice_by_numbers_that_follow,
    a_branch_that_is_known, nothing_times_a_count, a_condition_that_cannot_hold,
    an_argument_that_jax_ignores, an_argument_that_tensorflow_ignores,
)  # fmt: skip
SPECS = {"x": nm.spec([B, M]), "y": nm.spec([B, M])}


@pytest.mark.parametrize("function", DEAD, ids=lambda function: function.__name__)
def test_no_collective_is_planned_for_what_nobody_reads(function):
    assert nm.plan(nm.trace(function, **SPECS), MESH, LAYOUT).collectives == ()


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_the_compiler_makes_what_is_left(partitioner):
    every = (
        *DEAD,
        some_of_what_is_joined,
        a_carry_of_a_while_loop_that_never_changes,
        an_operand_of_a_maximum,
    )

    def function(x, y):
        results = {one.__name__: one(x, y) for one in every}
        live = {
            name: nm.grad(nm.sum(value * value), [x, y])
            for name, value in results.items()
            if "while" not in name
        }
        return results, live

    check(function, SPECS, MESH, LAYOUT, partitioner)


def check(function, specs, mesh, layout, partitioner) -> nm.Step:
    """Compile strictly, and compare with one device."""
    program = nm.trace(function, **specs)
    step = nm.Step(nm.plan(program, mesh, layout), strict=True, partitioner=partitioner)
    rng = np.random.default_rng(0)
    arrays = {}
    for name, spec in specs.items():
        numbers = rng.uniform(0.5, 1.5, spec.shape.sizes)
        arrays[name] = numbers.astype(spec.dtype if spec.dtype != "bfloat16" else "float32")
    _, wanted = program.evaluate({}, **arrays)
    _, got = step(None, **arrays)
    assert_all_near(got, wanted, 1e-5)
    return step


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "float16"])
def test_products_of_narrow_numbers_are_reduced_in_32_bits(dtype, partitioner):
    x = nm.spec([B, M], dtype)
    program = nm.trace(lambda x: (nm.prod(x, over=B), nm.prod(x, over=[B, M])), x=x)
    step = nm.Step(nm.plan(program, MESH, "batch:x"), strict=True, partitioner=partitioner)
    assert {one.bytes // one.elements for one in step.plan.collectives} == {4}
    array = np.random.default_rng(0).integers(1, 3, (8, 16))
    array[:, 4:] = 1
    for one, axes in zip(step(None, x=array.astype(dtype))[1], (0, (0, 1)), strict=True):
        np.testing.assert_array_equal(one, array.prod(axes).astype(dtype))


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_attention_without_a_derivative_needs_no_sums_of_its_rows(partitioner):
    Q, K, N, D = nm.dims("query=6 memory=8 heads=2 key=8")
    specs = {"q": nm.spec([Q, N, D]), "k": nm.spec([K, N, D]), "v": nm.spec([K, N, D])}
    function = lambda q, k, v: nm.attention(q, k, v, K, D)
    step = check(function, specs, nm.Mesh(x=4, y=2), "key:y, query:x+y", partitioner)
    assert not [one for one in step.plan.collectives if one.tensor in ("log", "stopgradient")]


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("layout", ["vocab:x", "batch:x, vocab:x"])
def test_decoding_returns_sequences_alone(layout, partitioner):
    def function(first, table, output):
        def step(tokens, state):
            state = nm.tanh(nm.einsum([nm.one_hot(tokens, V), table], [B, M]) + state)
            return nm.einsum([state, output], [B, V]), state

        return decode(step, nm.zeros([B, M]), first, T, end=3)["sequences"]

    specs: dict[str, Any] = {
        "first": nm.spec([B], "int32"), "table": nm.spec([V, M]), "output": nm.spec([M, V])
    }  # fmt: skip
    program = nm.trace(function, **specs)
    plan = nm.plan(program, MESH, layout, conflicts="cheapest")
    step = nm.Step(plan, strict=True, partitioner=partitioner)
    assert not [one for one in plan.collectives if one.tensor == "score"]
    rng = np.random.default_rng(0)
    table, output = rng.normal(size=(2, 16, 16)).astype(np.float32)
    inputs = {"first": np.arange(8, dtype=np.int32), "table": table, "output": output}
    np.testing.assert_array_equal(step(None, **inputs)[1], program.evaluate({}, **inputs)[1])


def test_random_bits_stay_when_their_neighbours_go():
    """Bits follow from the key and the place in the tensor, not from what was drawn before."""

    def function(drop: bool):
        def draw(x):
            def body(carry, number):
                first, second = (
                    nm.random.normal(nm.random.fold_in(nm.random.key(3), number * 2 + i), [B])
                    for i in (0, 1)
                )
                return (carry[0] + second, carry[1] + nm.sum(first)), None

            kept, dead = nm.scan(body, (x, 0.0), nm.range(T), over=T)[0]
            return kept if drop else (kept, dead)

        return nm.trace(draw, nm.spec([B]))

    x = np.zeros(8, np.float32)
    alone = nm.Step(nm.plan(function(True), MESH, "batch:x"), strict=True)(None, x)[1]
    both = nm.Step(nm.plan(function(False), MESH, "batch:x"), strict=True)(None, x)[1]
    np.testing.assert_array_equal(alone, flatten(both)[0])


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("layout", ["batch:x, hidden:x", "batch:x, model:x, hidden:x"])
def test_cotangents_of_a_sum_over_microbatches_are_moved_once(layout, partitioner):
    """Every iteration of a second derivative reads the same one: XLA moves it before the loop."""
    N, H, W = nm.dims("micro=8 hidden=8 model=8")

    def function(x, w):
        def add(total, x):
            loss = nm.sum(nm.tanh(nm.einsum([x, nm.reshard(w, H)], [B, H])))
            return total + loss, None

        total, _ = nm.scan(add, nm.zeros([]), x, over=N)
        gradient = nm.grad(total, w)
        return nm.grad(nm.sum(gradient * gradient), [w, x])

    program = nm.trace(function, x=nm.spec([N, B, W]), w=nm.spec([W, H]))
    plan = nm.plan(program, MESH, layout, conflicts="cheapest")
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((8, 8, 8), (8, 8)))
    got = nm.Step(plan, strict=True, partitioner=partitioner)(None, x=x, w=w)[1]
    assert_all_near(got, program.evaluate({}, x=x, w=w)[1], 1e-4)


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_no_gradient_flows_through_what_a_branch_makes_for_nobody(partitioner):
    """That of the attention was computed from zeros, with an AllToAll that was not planned."""
    S, K, H, D = nm.dims("seq=8 memory=8 heads=4 key=8")

    def step(q, k, v):
        y = nm.attention(q, k, v, K, D, block=2)
        first = lambda: (nm.tanh(q), nm.sum(y))
        kept, _ = nm.cond(nm.mean(q) > 0.0, first, lambda: (nm.sin(q), nm.sum(q)))
        return nm.grad(nm.sum(nm.square(kept)), [q, k, v])

    memory = nm.spec([K, H, D])
    program = nm.trace(step, q=nm.spec([S, H, D]), k=memory, v=memory)
    plan = nm.plan(program, nm.Mesh(x=4, y=2), "seq:x, heads:x", conflicts="cheapest")
    assert [one.kind for one in plan.collectives] == ["AllReduce"]  # of the mean
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=(8, 4, 8)).astype(np.float32) for name in "qkv"}
    _, found = nm.Step(plan, strict=True, partitioner=partitioner)(None, **arrays)
    assert_all_near(found, program.evaluate({}, **arrays)[1], 1e-5)


@pytest.mark.parametrize("layout", ["a:z, e:x", "e:x, memory:z"])
def test_a_partial_sum_that_a_loop_captures_as_such_is_not_added_up(layout):
    rows, inner, memory = nm.dims("a=4 e=2 memory=4")
    mesh = nm.Mesh(x=2, z=4)

    def function(x):
        w, k = nm.param("w", [rows, inner]), nm.param("k", [memory, inner])
        y = nm.attention(x * w, k * 2.0, nm.param("v", [memory, inner]), memory, inner, block=2)
        return nm.grad(nm.sum(y * y), nm.parameters()["w"])

    results = []
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)
    for one, on in ((mesh, layout), (nm.Mesh(x=1), "")):
        step = nm.compile(function, nm.spec([rows, inner]), mesh=one, layout=on, strict=True)
        results.append(np.asarray(step(step.init(seed=0), x)[1]))
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-6)


def test_the_second_derivative_of_attention_in_a_branch():
    """Of a branch that is taken and does not read all that it captures."""
    Q, N = nm.dims("query=4 key=4")

    def twice(loss, q):
        return nm.grad(nm.sum(nm.square(nm.grad(loss, q))), q)

    def attend(q, k):
        return nm.sum(nm.square(nm.attention(q, k, k, T, N, block=1)))

    def step(q, k, flag):
        return twice(nm.cond(flag > 0.0, lambda: attend(q, k), lambda: nm.sum(q * q * q)), q)

    specs = {"q": nm.spec([B, Q, N]), "k": nm.spec([B, T, N])}
    random = np.random.default_rng(0)
    inputs = {name: random.normal(size=one.shape.sizes).astype("f4") for name, one in specs.items()}
    plain = nm.trace(lambda q, k: twice(attend(q, k), q), **specs)
    compiled = nm.compile(
        nm.trace(step, **specs, flag=nm.spec([])), mesh=MESH, layout="batch:x", strict=True
    )
    for flag in (1.0, 0.0):
        _, found = compiled(None, **inputs, flag=np.float32(flag))
        other = 36.0 * inputs["q"] ** 3
        # The gradient of the sum of squares of 3 q^2 is 36 q^3.
        expected = plain.evaluate({}, **inputs)[1] if flag else other
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
