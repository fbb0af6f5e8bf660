"""Sums with zeros and carries that never change are left out, and the numbers stay."""

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.ir.op import every_op

T, B, M = nm.dims("time=3 batch=8 model=10")
MESH = nm.Mesh(data=8)


def kinds_of(program: nm.Program) -> list[str]:
    return [op.kind for op in every_op(program.ops) if not op.given]


@pytest.mark.parametrize(
    "function, kinds",
    [
        (lambda x: x + nm.zeros([B, M]), []),
        (lambda x: nm.zeros([B, M]) + x, []),
        (lambda x: x - nm.zeros([B, M]), []),
        (lambda x: nm.zeros([B, M]) - x, ["zeros", "subtract"]),
        (lambda x: x * nm.zeros([B, M]), ["zeros", "multiply"]),
        (lambda x: x + nm.sum(nm.zeros([B, M, T]), over=T), []),
        (lambda x: nm.sum(x, over=M) + nm.zeros([B, M]), ["sum", "zeros", "add"]),
        (lambda x: x + 1e-30, ["fill", "add"]),
    ],
)
def test_only_what_changes_nothing_is_left_out(function, kinds):
    program = nm.trace(function, x=nm.spec([B, M]))
    assert kinds_of(program) == kinds
    x = np.random.default_rng(0).normal(size=(8, 10)).astype(np.float32)
    wanted = {
        "zeros-subtract": -x,
        "zeros-multiply": x * 0,
        "sum-zeros-add": np.broadcast_to(x.sum(1)[:, None], x.shape),
    }.get("-".join(kinds), x)
    _, got = program.evaluate({}, x=x)
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


def test_a_carry_that_never_changes_is_captured():
    def function(x, start):
        def iteration(carry, row):
            kept, total = carry
            return (kept + nm.zeros([B]), total + row * kept), kept

        return nm.scan(iteration, (start, nm.zeros([B])), x, over=T)

    program = nm.trace(function, x=nm.spec([T, B]), start=nm.spec([B]))
    (loop,) = (op for op in program.ops if op.kind == "scan")
    assert loop.carries == 1 and len(loop.body.captures) == 1
    rng = np.random.default_rng(0)
    x, start = (rng.normal(size=s).astype(np.float32) for s in ((3, 8), (8,)))
    step = nm.compile(program, mesh=MESH, layout="batch:data", strict=True)
    for (kept, total), rows in (
        program.evaluate({}, x=x, start=start)[1],
        step(None, x=x, start=start)[1],
    ):
        np.testing.assert_array_equal(kept, start)
        np.testing.assert_array_equal(rows, np.broadcast_to(start, (3, 8)))
        np.testing.assert_allclose(total, (x * start).sum(0), rtol=1e-5)


def test_a_gradient_that_is_zero_takes_no_collective():
    """The accumulated gradient of a weight that the loss does not depend on used to be gathered."""

    def function(x):
        weight = nm.param("weight", [M])

        def iteration(total, row):
            loss = nm.mean(row * row) + 0.0 * nm.stop_gradient(nm.sum(weight))
            return total + nm.grad(loss, weight), None

        grad, _ = nm.scan(iteration, nm.zeros([M]), x, over=T)
        nm.assign(weight, weight - grad)
        return grad

    program = nm.trace(function, x=nm.spec([T, B]))
    plan = nm.plan(program, nm.Mesh(data=4), "batch:data, model:data")
    assert not [one for one in plan.collectives if one.tensor == "scan"]
    step = nm.Step(plan, strict=True)
    _, grad = step(step.init(0), x=np.ones((3, 8), np.float32))
    np.testing.assert_array_equal(grad, np.zeros(10))


def test_what_forward_and_backward_hoist_is_done_once():
    """A backward loop computes its forward loop again, and what never changes in both alike."""

    def function(x, mask):
        weight = nm.param("weight", [T, M], nm.normal_init(1.0))

        def layer(y, w):
            count = nm.sum(mask)
            return nm.tanh(y * w) / count, None

        y, _ = nm.scan(layer, x, weight, over=T, remat="full")
        loss = nm.sum(y)
        return loss, nm.grad(loss, weight)

    program = nm.trace(function, x=nm.spec([B, M]), mask=nm.spec([B]))
    assert sum(op.kind == "sum" and op.inputs[0].label == "mask" for op in program.ops) == 1
    step = nm.compile(program, mesh=MESH, layout="batch:data", strict=True)
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.uniform(0.5, 1, size=spec.shape.sizes).astype(np.float32)
        for name, spec in program.specs.items()
    }
    state = program.initial_state(0)
    _, wanted = program.evaluate(state, **inputs)
    _, got = step(step.place({name: np.asarray(v) for name, v in state.items()}), **inputs)
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_number_times_a_scalar_is_computed_once():
    """XLA does so and moves nothing of it; a plan permuted what an optimizer made of zeros."""

    def function(x, s):
        return x * 2.0 + (nm.square(nm.zeros([B, M])) + 0.5) * s

    program = nm.trace(function, x=nm.spec([B, M]), s=nm.spec([]))
    assert [len(op.output.shape) for op in program.ops if op.kind == "multiply"] == [2, 0]
    x = np.ones([dim.size for dim in (B, M)], np.float32)
    _, found = program.evaluate({}, x=x, s=np.float32(3.0))
    np.testing.assert_allclose(found, np.full(x.shape, 3.5))
