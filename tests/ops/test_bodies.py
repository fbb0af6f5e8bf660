"""Gradients through and inside bodies: manual regions, loops, branches."""

import numpy as np
import pytest

import namedmesh as nm
from tests.checks import assert_sharded_same, uniform

B, M, T = nm.dims("batch=8 model=4 time=3")
X = uniform(0, 8, 4)
POSITIVE = uniform(1, 8, low=0.5)


def test_a_scan_over_the_regions_own_dimension_is_an_error():
    def region(x):
        return nm.scan(lambda total, row: (total + row, total + row), 0.0, x, over=B)[1]

    with pytest.raises(nm.NamedMeshError, match="scan: mixes elements of dimension batch"):
        nm.trace(lambda x: nm.manual(region, x, over=B), x=nm.spec([B]))


def test_a_scan_over_another_dimension_runs_in_a_region():
    def region(x):
        return nm.scan(lambda total, row: (total + row, None), nm.zeros([B]), x, over=M)[0]

    assert_sharded_same(
        lambda x: nm.manual(region, x, over=B), {"x": nm.spec([B, M])}, {"x": X}, "batch:b"
    )


def grad_in_scan(x):
    y = x * x
    body = lambda total, row: (total + nm.grad(nm.sum(y * x * row), x), None)
    return nm.scan(body, nm.zeros([B]), nm.range(T, "float32"), over=T)[0]


def grad_in_cond(x):
    loss = nm.sum(x * x * x)
    return nm.cond(nm.sum(x) > -1e9, lambda: nm.grad(loss * 2.0, x), lambda: x)


def grad_in_manual(x):
    y = x * x * x
    return nm.manual(lambda z: nm.grad(y, x, cotangent=z), x, over=B)


def grad_in_cond_in_scan(x):
    y = x * x

    def body(iteration, _):
        z = y * iteration
        return iteration + 1.0, nm.cond(
            iteration > 0.5, lambda: nm.grad(nm.sum(z * z), x), lambda: x
        )

    return nm.scan(body, 0.0, None, over=T)[1]


def grad_of_an_outer_scan(x):
    last, ys = nm.scan(lambda carry, row: (carry * row, carry), nm.sum(x), x, over=B)
    return nm.cond(last > -1e9, lambda: nm.grad(last + nm.sum(ys), x), lambda: x)


def total_and_sums(x):
    """The gradient that grad_of_an_outer_scan takes, by finite differences."""

    def loss(x):
        carry, total = x.sum(), 0.0
        for row in x:
            total, carry = total + carry, carry * row
        return carry + total

    steps = 1e-6 * np.eye(len(x))
    return np.array([(loss(x + step) - loss(x - step)) / 2e-6 for step in steps])


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (grad_in_scan, lambda x: 9 * x * x),
        (grad_in_cond, lambda x: 6 * x * x),
        (grad_in_manual, lambda x: 3 * x**3),
        (grad_in_cond_in_scan, lambda x: np.stack([x, 4 * x**3, 16 * x**3])),
        (grad_of_an_outer_scan, total_and_sums),
    ],
)
def test_a_gradient_inside_a_body_crosses_ops_outside(function, expected):
    found = nm.evaluate(function, x=([B], POSITIVE))
    np.testing.assert_allclose(found, expected(POSITIVE.astype(np.float64)), rtol=1e-4)


@pytest.mark.parametrize("function", [grad_in_scan, grad_in_cond, grad_in_manual])
def test_a_gradient_inside_a_body_is_planned(function):
    assert_sharded_same(function, {"x": nm.spec([B])}, {"x": POSITIVE}, "batch:b")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: nm.scan(lambda c, row: (c + nm.sum(nm.grad(row * row, x)), None), 0.0, x, over=B),
        lambda x: nm.scan(lambda c, _: (nm.grad(nm.sum(c * x), x), None), x, None, over=T),
        lambda x: nm.manual(lambda z: z + nm.grad(nm.sum(z * z), x), x, over=()),
        lambda x: nm.while_loop(lambda c: nm.sum(c) < 9.0, lambda c: nm.grad(nm.sum(c * x), x), x),
    ],
)
def test_a_path_through_a_bodys_argument_is_an_error(function):
    with pytest.raises(nm.NamedMeshError, match="the loss depends on x through an argument"):
        nm.trace(function, x=nm.spec([B]))


def region_with(derivative):
    def program(x):
        w = nm.param("w", [M], init=nm.constant_init(1.5))
        y = nm.manual(lambda x: x * derivative(w), x, over=B)
        return nm.grad(nm.sum(y), w)

    return program


CLIPPED = nm.custom_vjp(lambda w: (w, None), lambda _, dy: nm.clip(dy, -1.0, 1.0))
DECAYED = nm.custom_vjp(lambda w: (w, w), lambda w, dy: dy + 0.1 * w)
CONSTANT = nm.custom_vjp(lambda w: (w, w), lambda w, dy: 0.1 * w)
LINEAR = nm.custom_vjp(lambda w: (w * w, w), lambda w, dy: dy * w * 2.0)


@pytest.mark.parametrize(
    ("derivative", "problem"),
    [
        (CLIPPED, "maximum: is not linear in a sum over dimension batch"),
        (DECAYED, "add: is not linear in a sum over dimension batch"),
        (CONSTANT, "the gradient d_w is no sum over dimension batch"),
    ],
)
def test_a_derivative_that_is_not_linear_in_partial_sums_is_an_error(derivative, problem):
    with pytest.raises(nm.NamedMeshError, match=problem):
        nm.trace(region_with(derivative), x=nm.spec([B, M]))


def test_a_linear_derivative_in_a_region_is_added_up():
    assert_sharded_same(region_with(LINEAR), {"x": nm.spec([B, M])}, {"x": X}, "batch:b")


def test_derivatives_of_loops_and_branches_in_a_region():
    V, H = nm.dims("vocab=5 hidden=3")

    def program(x):
        w, t = nm.param("w", [M, H]), nm.param("t", [V, M])

        def iteration(c, _):
            best = nm.gather(t, nm.argmax(c, M), V)
            mixed = nm.einsum([nm.einsum([c, w], [B, H]), w], [B, M])
            return nm.softmax(mixed, over=M) + nm.max(c * w, over=H), nm.sum(best * c, over=M)

        def region(x):
            c, ys = nm.scan(iteration, x, None, over=T)
            scaled = nm.cond(nm.sum(t) > 0.0, lambda c: c * nm.sum(t, over=V), lambda c: c * 2.0, c)
            return scaled, nm.transpose(ys, [B, T])

        first, second = nm.manual(region, x, over=B)
        loss = nm.sum(first * first) + nm.sum(second * second)
        return nm.grad(loss, {"w": w, "t": t, "x": x})

    assert_sharded_same(program, {"x": nm.spec([B, M])}, {"x": X}, "batch:b")


def unread_parameter(x):
    w, v = nm.param("w", [M]), nm.param("v", [M], init=nm.constant_init(2.0))
    y = nm.manual(lambda x: x * v + nm.stop_gradient(w), x, over=B)
    return nm.grad(nm.sum(y), {"w": w, "v": v, "x": x})


def unread_operand(x):
    y = nm.manual(lambda x, z: x * 2.0, x, x * x, over=B)
    return nm.grad(nm.sum(y), x)


def constant_result(x):
    return nm.manual(lambda x: nm.ones([B, M]) * 2.0, x, over=B)


def unread_values(x):
    _values, indices = nm.top_k(x, M, nm.Dimension("best", 2))
    order = nm.cast(nm.argsort(x, M), "float32")
    return nm.grad(nm.sum(nm.cast(indices, "float32")) + nm.sum(order * x), x)


@pytest.mark.parametrize(
    "function", [unread_parameter, unread_operand, constant_result, unread_values]
)
def test_a_region_with_an_operand_that_gets_no_gradient(function):
    assert_sharded_same(function, {"x": nm.spec([B, M])}, {"x": X}, "batch:b")


@pytest.mark.parametrize("layout", ["model:b", "vocab:b", "batch:a"])
def test_a_region_of_two_gathers_one_of_which_is_not_read(layout):
    """XLA aborted the process where all that a region returned was a constant."""
    V = nm.Dimension("vocab", 8)

    def program(x):
        t, u = nm.param("t", [V]), nm.param("u", [V])

        def region(x):
            indices = nm.cast(x, "int32")
            return nm.gather(t, indices, V), nm.gather(u, indices, V)

        read, _ = nm.manual(region, x, over=B)
        return nm.grad(nm.sum(read), {"t": t, "u": u, "x": x})

    assert_sharded_same(program, {"x": nm.spec([B, M])}, {"x": X}, layout)


def test_an_operand_that_gets_no_gradient_costs_nothing():
    plan = nm.plan(nm.trace(unread_parameter, x=nm.spec([B, M])), nm.Mesh(b=4), "batch:b")
    assert [one.tensor for one in plan.collectives if one.phase == "backward"] == ["d_v"]


@pytest.mark.parametrize("remat", ["none", "full", "dots"])
def test_a_body_may_read_all_of_the_loops_own_dimension(remat):
    """As attention does, a row at a time."""

    def program(x):
        def iteration(total, row):
            score = nm.softmax(x * row, over=B)
            return total + nm.sum(score * x), nm.sum(score * score)

        total, ys = nm.scan(iteration, 0.0, x, over=B, remat=remat)
        return nm.grad(total + nm.sum(ys), x)

    def loss(x):
        score = np.exp(np.outer(x, x))
        score = score / score.sum(1, keepdims=True)
        return (score @ x).sum() + (score * score).sum()

    x = POSITIVE.astype(np.float64)
    steps = 1e-6 * np.eye(8)
    expected = [(loss(x + step) - loss(x - step)) / 2e-6 for step in steps]
    np.testing.assert_allclose(nm.evaluate(program, x=([B], POSITIVE)), expected, rtol=1e-3)
    assert_sharded_same(program, {"x": nm.spec([B])}, {"x": POSITIVE}, "batch:b")
