"""A user's ops from a module named my_custom.py, in every transformation, against jax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import namedmesh as nm
from tests.checks import assert_same, assert_sharded_same, uniform
from tests.ir import my_custom

# As large as each other: what meets the wrong dimension is not noticed by its size.
E, B, M, T = nm.dims("expert=4 batch=4 model=4 time=3")
X, W = 0.5 * uniform(0, 4, 4), 0.5 * uniform(1, 4)

# Functions of x[batch, model] and w[model], and the same in jax.
KINDS = {
    "cube": (lambda x, w: my_custom.Cube((x,)).output * w, lambda x, w: x**3 * w),
    "triple": (lambda x, w: my_custom.Triple((x * w,)).output, lambda x, w: 3.0 * x * w),
    "blend": (
        lambda x, w: my_custom.Blend((x, x * w)).output,
        lambda x, w: 2.0 * x + 3.0 * x * w,
    ),
    "product": (
        lambda x, w: my_custom.Product((nm.sin(x), x * w)).output,
        lambda x, w: jnp.sin(x) * x * w,
    ),
    "offset": (lambda x, w: nm.sin(my_custom.Offset((x, w)).output), lambda x, w: jnp.sin(x + w)),
    "first softmax": (
        lambda x, w: my_custom.FirstSoftmax((x * w,)).output,
        lambda x, w: jax.nn.softmax(x * w, 0),
    ),
    "last flip": (lambda x, w: my_custom.LastFlip((x * w,)).output, lambda x, w: (x * w)[:, ::-1]),
    "closed sum": (
        lambda x, w: nm.sin(x) + my_custom.ClosedSum((x * w,), B).output,
        lambda x, w: jnp.sin(x) + jnp.sum(x * w, 0),
    ),
    "manual cubes": (
        lambda x, w: nm.sin(x) + my_custom.ManualCubes((x * w,), B).output,
        lambda x, w: jnp.sin(x) + jnp.sum((x * w) ** 3, 0),
    ),
}
SPECS, ARRAYS = {"x": nm.spec([B, M]), "w": nm.spec([M])}, {"x": X, "w": W}


def check_all(wrap_ours, wrap_jaxs, specs, arrays, layout, kinds=tuple(KINDS), mesh=None):
    """Values and gradients of all kinds are those of jax, and of devices under a layout."""
    order = tuple(arrays)

    def step(**tensors):
        found = {}
        for kind in kinds:
            y = wrap_ours(KINDS[kind][0])(*(tensors[name] for name in order))
            grads = nm.grad(nm.sum(nm.sin(y)), [tensors[name] for name in order])
            found |= {kind: y} | {
                f"{kind}/{name}": dy for name, dy in zip(order, grads, strict=True)
            }
        return found

    expected = {}
    values = tuple(jnp.asarray(arrays[name]) for name in order)
    for kind in kinds:
        reference = wrap_jaxs(KINDS[kind][1])
        loss = lambda *values, reference=reference: jnp.sum(jnp.sin(reference(*values)))
        grads = jax.grad(loss, tuple(range(len(values))))(*values)
        expected |= {kind: reference(*values)}
        expected |= {f"{kind}/{name}": dy for name, dy in zip(order, grads, strict=True)}
    program = nm.trace(step, **specs)
    assert_same(program.evaluate({}, **arrays)[1], expected, rtol=1e-4, atol=1e-4)
    options = {} if mesh is None else {"mesh": mesh}
    assert_sharded_same(program, specs, arrays, layout, **options)


def same(function):
    return function


@pytest.mark.parametrize("layout", ["batch:b", "model:b"])
def test_under_layouts(layout):
    check_all(same, same, SPECS, ARRAYS, layout)


def test_vmap_of_both_operands_and_of_one():
    x, w = 0.5 * uniform(2, 4, 4, 4), 0.5 * uniform(3, 4, 4)
    check_all(
        lambda f: nm.vmap(f, E), jax.vmap,
        {"x": nm.spec([E, B, M]), "w": nm.spec([E, M])}, {"x": x, "w": w}, "expert:a",
    )  # fmt: skip
    check_all(
        lambda f: nm.vmap(f, E), lambda f: jax.vmap(f, (0, None)),
        {"x": nm.spec([E, B, M]), "w": nm.spec([M])}, {"x": x, "w": W}, "batch:b",
    )  # fmt: skip


def test_vmap_in_vmap():
    F = nm.Dimension("fold", 4)
    x, w = 0.5 * uniform(2, 4, 4, 4, 4), 0.5 * uniform(3, 4, 4)
    check_all(
        lambda f: nm.vmap(lambda x, w: nm.vmap(lambda x: f(x, w), F)(x), E),
        lambda f: jax.vmap(jax.vmap(f, (0, None))),
        {"x": nm.spec([E, F, B, M]), "w": nm.spec([E, M])}, {"x": x, "w": w}, "fold:b",
        kinds=("cube", "offset", "first softmax", "last flip"),
    )  # fmt: skip


def loop_of(f, remat):
    def run(x, w):
        body = lambda c, _: (0.5 * f(nm.sin(c), w), nm.sum(c, M))
        last, rows = nm.scan(body, x, over=T, remat=remat)
        return last + nm.sum(rows, T)

    return run


def loop_in_jax(f):
    def run(x, w):
        total = jnp.zeros(x.shape[0])
        for _ in range(T.size):
            total = total + x.sum(1)
            x = 0.5 * f(jnp.sin(x), w)
        return x + total[:, None]

    return run


@pytest.mark.parametrize("remat", ["none", "full", "dots"])
def test_loops(remat):
    check_all(lambda f: loop_of(f, remat), loop_in_jax, SPECS, ARRAYS, "batch:b")


def test_branches():
    check_all(
        lambda f: lambda x, w: nm.cond(nm.sum(w) > 0.0, lambda: f(x, w), lambda: f(-x, w)),
        lambda f: lambda x, w: jax.lax.cond(w.sum() > 0, lambda: f(x, w), lambda: f(-x, w)),
        SPECS, ARRAYS, "batch:b",
    )  # fmt: skip


def test_loops_of_unknown_length():
    def step(x, w):
        def run(f):
            return nm.while_loop(lambda c: nm.max(nm.absolute(c)) > 0.2, lambda c: 0.3 * f(c, w), x)

        return {kind: run(ours) for kind, (ours, _) in KINDS.items() if kind in bounded}

    bounded = ("cube", "triple", "first softmax", "last flip")
    expected = {}
    for kind in bounded:
        c = jnp.asarray(X)
        while jnp.abs(c).max() > 0.2:
            c = 0.3 * KINDS[kind][1](c, W)
        expected[kind] = c
    program = nm.trace(step, **SPECS)
    assert_same(program.evaluate({}, **ARRAYS)[1], expected)
    assert_sharded_same(program, SPECS, ARRAYS, "batch:b")


@pytest.mark.parametrize("policy", ["full", "dots"])
def test_checkpoint(policy):
    check_all(lambda f: nm.checkpoint(f, policy), same, SPECS, ARRAYS, "batch:b")


@pytest.mark.parametrize(
    "inside, reference",
    [(same, same), (lambda f: loop_of(f, "full"), loop_in_jax), (nm.checkpoint, same)],
    ids=["plain", "loop", "checkpoint"],
)
def test_manual_regions(inside, reference):
    """The gradient of w, which lacks the batch, is a partial sum inside."""
    kinds = ("cube", "triple", "blend", "product", "last flip")
    check_all(
        lambda f: lambda x, w: nm.manual(lambda x: inside(f)(x, nm.sin(w)), x, over=B),
        lambda f: lambda x, w: reference(f)(x, jnp.sin(w)),
        SPECS, ARRAYS, "batch:b", kinds,
    )  # fmt: skip


def test_what_mixes_shards_is_refused_in_a_manual_region():
    for kind in ("first softmax", "closed sum", "manual cubes"):
        ours = KINDS[kind][0]
        with pytest.raises(nm.NamedMeshError, match="mixes elements of dimension batch"):
            nm.trace(lambda x, w, f=ours: nm.manual(lambda x: f(x, w), x, over=B), **SPECS)


def test_vmap_in_a_manual_region():
    x, w = 0.5 * uniform(2, 4, 4, 4), 0.5 * uniform(3, 4, 4)
    check_all(
        lambda f: lambda x, w: nm.manual(lambda x: nm.vmap(f, E)(x, nm.sin(w)), x, over=B),
        lambda f: lambda x, w: jax.vmap(f)(x, jnp.sin(w)),
        {"x": nm.spec([E, B, M]), "w": nm.spec([E, M])}, {"x": x, "w": w}, "batch:b",
        kinds=("cube", "triple", "blend", "product", "last flip"),
    )  # fmt: skip


def test_second_derivatives_in_a_manual_region():
    def twice(f, sum, sin, grad):
        return lambda x, w: x * grad(lambda w: sum(sin(f(x, sin(w)))), w)

    check_all(
        lambda f: twice(
            lambda x, w: nm.manual(lambda x: f(x, w), x, over=B), nm.sum, nm.sin,
            lambda g, w: nm.grad(g(w), w),
        ),
        lambda f: twice(f, jnp.sum, jnp.sin, lambda g, w: jax.grad(g)(w)),
        SPECS, ARRAYS, "batch:b", kinds=("cube", "triple", "product", "last flip"),
    )  # fmt: skip


def test_partial_sums_of_a_plan():
    """The operand is a sum over a split dimension, added up before the op or after it."""
    kinds = ("cube", "triple", "blend", "product")
    check_all(
        lambda f: lambda x, w: f(nm.sum(x, B), w), lambda f: lambda x, w: f(x.sum(0), w),
        SPECS, ARRAYS, "batch:b", kinds,
    )  # fmt: skip


@pytest.mark.parametrize("op", [my_custom.ClosedMax, my_custom.ClosedSum])
def test_closed_ops_reduce_over_all_shards(op):
    function = lambda x: op((x,), B).output
    step = assert_sharded_same(function, {"x": nm.spec([B, M])}, {"x": X}, "batch:b")
    assert step.plan.count("AllReduce") == 1
    expected = X.max(0) if op is my_custom.ClosedMax else X.sum(0)
    np.testing.assert_allclose(nm.evaluate(function, x=([B, M], X)), expected, rtol=1e-5)


def test_bools_of_shards_are_not_added_up():
    methods = {"results": lambda self: [(self.inputs[0].shape.without("batch"), "bool")]}
    cls = type("Mine", (my_custom.ManualCubes,), methods)
    program = nm.trace(lambda x: cls((x,), B).output, x=nm.spec([B, M]))
    with pytest.raises(nm.NamedMeshError, match="makes a bool on each device's own shard"):
        nm.plan(program, nm.Mesh(data=4), "batch:data")


@pytest.mark.parametrize("groups", [(0,), 0, ((1,),), (("x",),), [(0,)]])
def test_groups_of_operands_are_checked(groups):
    cls = type("Mine", (my_custom.Cube,), {"linear_in": groups})
    with pytest.raises(nm.NamedMeshError, match="expected groups of the positions") as caught:
        nm.trace(lambda x: cls((x,)).output, x=nm.spec([B, M]))
    assert "((0,),)" in caught.value.fix


def clipped_in_jax(a):
    @jax.custom_vjp
    def same(a):
        return a

    same.defvjp(lambda a: (a, None), lambda _, d: (jnp.clip(d, -1.0, 1.0),))
    return same(a)


def clipped_by_tensorflow(a):
    import tensorflow as tf

    @tf.custom_gradient
    def same(a):
        return tf.identity(a), lambda d: tf.clip_by_value(d, -1.0, 1.0)

    return same(a)


@pytest.mark.parametrize("function", [clipped_in_jax, clipped_by_tensorflow])
def test_a_derivative_inside_of_foreign_code_is_not_linear(function):
    call = nm.call_jax if function is clipped_in_jax else nm.call_tf

    def step(x, w):
        y = nm.manual(lambda x: x * call(function, w, result=nm.spec([M])), x, over=B)
        return nm.grad(nm.sum(y), w)

    with pytest.raises(nm.NamedMeshError, match="is not linear in a sum over dimension batch"):
        nm.trace(step, **SPECS)
