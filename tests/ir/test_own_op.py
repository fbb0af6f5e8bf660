"""An op of a user's own: one class, no edit of ours; and what its author may get wrong."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import namedmesh as nm

B, M, L = nm.dims("batch=8 model=4 layer=3")
X = np.linspace(-2, 2, 32, dtype=np.float32).reshape(8, 4)


class Gated(nm.Op):
    """x times a scaled sigmoid of itself, with a derivative of its own."""

    elementwise = True
    slope: float

    def results(self):
        return [(self.inputs[0].shape, self.inputs[0].dtype)]

    def lower(self, context, x):
        return x * context.tf.sigmoid(x * self.slope)

    def vjp(self, dy):
        (x,) = self.inputs
        share = nm.sigmoid(x * self.slope)
        return [dy * share * (1.0 + x * self.slope * (1.0 - share))]

    def flops(self):
        return 5 * self.output.shape.elements


class Extremes(nm.Op):
    """The smallest and the largest element along a dimension."""

    dim: nm.Dimension

    def results(self):
        (x,) = self.inputs
        return [(x.shape.without(self.dim.name), x.dtype)] * 2

    def lower(self, context, x):
        at = self.inputs[0].shape.position(self.dim.name)
        return [context.tf.reduce_min(x, at), context.tf.reduce_max(x, at)]

    def placement(self):
        return nm.Placement(whole=[self.dim.name])


def gated(x: np.ndarray, slope: float) -> np.ndarray:
    return x / (1 + np.exp(-slope * x))


@pytest.mark.parametrize("layout", ["", "batch:data", "batch:data, model:tensor"])
def test_it_runs_and_differentiates_under_layouts(layout):
    def step(x):
        first = nm.grad(nm.sum(Gated((x,), 1.5).output), x)
        return Gated((x,), 1.5).output, first, nm.grad(nm.sum(first), x)

    mesh = nm.Mesh(data=4, tensor=2)
    _, (y, dy, ddy) = nm.compile(step, nm.spec([B, M]), mesh=mesh, layout=layout, strict=True)(
        None, X
    )
    wide = X.astype(np.float64)
    numeric = functools.partial(gated, slope=1.5)
    np.testing.assert_allclose(y, numeric(wide), atol=1e-6)
    slope = (numeric(wide + 1e-4) - numeric(wide - 1e-4)) / 2e-4
    curve = (numeric(wide + 1e-4) - 2 * numeric(wide) + numeric(wide - 1e-4)) / 1e-8
    np.testing.assert_allclose(dy, slope, atol=1e-5)
    np.testing.assert_allclose(ddy, curve, atol=1e-4)


@pytest.mark.parametrize("remat", ["none", "dots", "full"])
def test_it_runs_inside_a_loop(remat):
    def step(x):
        last, _ = nm.scan(lambda h, _: (Gated((h,), 1.0).output, None), x, over=L, remat=remat)
        return nm.grad(nm.sum(last), x)

    program = nm.trace(step, x=nm.spec([B, M]))
    compiled = nm.compile(program, mesh=nm.Mesh(data=4), layout="batch:data", strict=True)
    _, expected = program.evaluate({}, x=X)
    np.testing.assert_allclose(compiled(None, X)[1], expected, atol=1e-5)


def test_flops_and_several_results_count():
    program = nm.trace(lambda x: Gated((x,), 1.0).output, x=nm.spec([B, M]))
    assert program.flops() == 5 * 32
    low, high = nm.evaluate(lambda x: Extremes((x,), M).outputs, x=([B, M], X))
    np.testing.assert_array_equal(low, X.min(1))
    np.testing.assert_array_equal(high, X.max(1))
    plan = nm.plan(
        nm.trace(lambda x: Extremes((x,), M).outputs, x=nm.spec([B, M])),
        nm.Mesh(t=4),
        {"model": "t"},
    )
    assert plan.count("AllGather") == 1


@pytest.mark.parametrize("asked", [{"whole": ["modle"]}, {"renames": {"batch": "modle"}}])
def test_a_placement_of_a_dimension_that_is_not_there_is_an_error(asked):
    op: Any = broken(placement=lambda self: nm.Placement(**asked))
    program = nm.trace(lambda x: op((x,), 1.0).output, x=nm.spec([B, M]))
    with pytest.raises(nm.NamedMeshError) as caught:
        nm.plan(program, nm.Mesh(data=2), "batch:data")
    assert "placement() names dimension 'modle'" in caught.value.problem
    assert caught.value.fix == "did you mean 'model'?"


def test_a_placement_takes_lists_of_names():
    assert nm.Placement(whole=["batch", "batch"]).whole == {"batch"}
    with pytest.raises(nm.NamedMeshError, match="write whole=\\['batch'\\]"):
        nm.Placement(whole="batch")


def broken(**methods: Any) -> type[nm.Op]:
    """A class like Gated with some methods replaced."""
    return type("Broken", (Gated,), methods)


WRONG = {
    "no list of pairs": (
        {"results": lambda self: self.inputs[0].shape},
        "results",
    ),
    "an unknown dtype": (
        {"results": lambda self: [(self.inputs[0].shape, "f3")]},
        "results",
    ),
    "another shape": ({"lower": lambda self, c, x: c.tf.reduce_sum(x, 0)}, "lowering returned"),
    "another dtype": ({"lower": lambda self, c, x: c.tf.cast(x, "int32")}, "lowering returned"),
    "no value": ({"lower": lambda self, c, x: None}, "lowering returned None"),
    "two values": ({"lower": lambda self, c, x: [x, x]}, "2 values for 1 results"),
    "an exception": ({"lower": lambda self, c, x: {}["absent"]}, "lowering failed: KeyError"),
    "a cotangent of another shape": (
        {"vjp": lambda self, dy: [nm.sum(dy, over=B)]},
        "derivative returned",
    ),
    "a cotangent of another dtype": (
        {"vjp": lambda self, dy: [nm.cast(dy, "bfloat16")]},
        "derivative returned",
    ),
    "a bare cotangent": ({"vjp": lambda self, dy: dy}, "derivative returned"),
    "two cotangents": ({"vjp": lambda self, dy: [dy, dy]}, "derivative returned"),
    "no cotangents": ({"vjp": lambda self, dy: None}, "derivative returned None"),
    "a number for a cotangent": ({"vjp": lambda self, dy: [1.0]}, "derivative returned"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_of_the_author_names_op_line_and_fix(name):
    methods, message = WRONG[name]
    cls = broken(**methods)

    def run(x):
        loss = nm.sum(cls((x,), 1.0).output)  # type: ignore[call-arg]
        return loss, nm.grad(loss, x)

    with pytest.raises(nm.NamedMeshError, match=message) as caught:
        nm.evaluate(run, x=([B, M], X))
    assert str(caught.value).startswith("broken: ")
    assert "test_own_op.py" in str(caught.value) and "fix: " in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: Gated(x, 1.0), "expected a tuple of tensors"),
        (lambda x: Gated((x, 2.0), 1.0), "expected a tuple of tensors"),  # pyright: ignore
        (lambda x: Gated((X,), 1.0), "expected a tuple of tensors"),  # pyright: ignore
    ],
)
def test_wrong_operands_are_named(make, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(lambda x: make(x).output, x=nm.spec([B, M]))


def test_questions_to_a_plan_are_checked_for_typos():
    program = nm.trace(lambda x: nm.sum(x), x=nm.spec([B, M]))
    plan = nm.plan(program, nm.Mesh(data=4), "batch:data")
    for ask in (
        lambda: plan.count("Allreduce"),
        lambda: plan.of_phase("fwd"),
        lambda: plan.total_bytes(["updates"]),
        lambda: program.flops("backwards"),
    ):
        with pytest.raises(nm.NamedMeshError, match=r"did you mean|use one of"):
            ask()
    with pytest.raises(AttributeError, match="did you mean 'tanh'"):
        nm.tanhh  # type: ignore[attr-defined]  # noqa: B018
