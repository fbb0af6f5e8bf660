"""Ops written outside the package, one of each kind, in every transformation, against jax."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import namedmesh as nm
from tests.checks import assert_same, assert_sharded_same, number_leaves, uniform

E, B, M, T = nm.dims("expert=4 batch=8 model=4 time=3")
ORDER = (2, 0, 3, 1)


class Cube(nm.Op):
    """Elementwise and not linear."""

    elementwise = True

    def results(self):
        return [(self.inputs[0].shape, self.inputs[0].dtype)]

    def lower(self, context, x):
        return x * x * x

    def vjp(self, dy):
        return [dy * self.inputs[0] * self.inputs[0] * 3.0]


class Mirror(nm.Op):
    """Linear: the elements along a dimension from last to first."""

    by_name = True
    linear_in = ((0,),)
    dim: nm.Dimension

    def results(self):
        return [(self.inputs[0].shape, self.inputs[0].dtype)]

    def lower(self, context, x):
        return context.tf.reverse(x, [self.inputs[0].shape.position(self.dim.name)])

    def vjp(self, dy):
        return [Mirror((dy,), self.dim).output]

    def placement(self):
        return nm.Placement(whole=[self.dim.name])


class SquareSum(nm.Op):
    """Reduces over a dimension: the sum of squares, of which devices may have partial sums."""

    by_name = True
    sums = True
    dim: nm.Dimension

    def results(self):
        return [(self.inputs[0].shape.without(self.dim.name), self.inputs[0].dtype)]

    def lower(self, context, x):
        return context.tf.reduce_sum(x * x, self.inputs[0].shape.position(self.dim.name))

    def vjp(self, dy):
        (x,) = self.inputs
        return [nm.transpose(2.0 * dy * x, x.shape)]

    def placement(self):
        return nm.Placement(reduced=[self.dim.name])


class RunningSum(nm.Op):
    """Manual: lowered on each device's shard."""

    manual = True
    by_name = True
    linear_in = ((0,),)
    dim: nm.Dimension
    back: bool = False

    def results(self):
        return [(self.inputs[0].shape, self.inputs[0].dtype)]

    def lower(self, context, x):
        return context.tf.cumsum(x, self.inputs[0].shape.position(self.dim.name), reverse=self.back)

    def vjp(self, dy):
        return [RunningSum((dy,), self.dim, not self.back).output]

    def placement(self):
        return nm.Placement(whole=[self.dim.name])


class Shuffle(nm.Op):
    """Positional: the elements of one axis, by its number, in a fixed random order."""

    linear_in = ((0,),)
    axis: int
    order: tuple[int, ...]

    def results(self):
        return [(self.inputs[0].shape, self.inputs[0].dtype)]

    def lower(self, context, x):
        return context.tf.gather(x, self.order, axis=self.axis)

    def vjp(self, dy):
        back = tuple(self.order.index(i) for i in range(len(self.order)))
        return [Shuffle((dy,), self.axis, back).output]

    def placement(self):
        return nm.Placement(whole=[self.inputs[0].shape.names[self.axis]])


# Of a tensor whose last dimension is M; and in jax.
KINDS = {
    "cube": (lambda x: Cube((x,)).output, lambda x: x**3),
    "mirror": (lambda x: Mirror((x,), M).output, lambda x: x[..., ::-1]),
    "square sum": (
        lambda x: nm.broadcast(SquareSum((x,), M).output, x.shape),
        lambda x: jnp.broadcast_to(jnp.sum(x * x, -1, keepdims=True), x.shape),
    ),
    "running sum": (lambda x: RunningSum((x,), M).output, lambda x: jnp.cumsum(x, -1)),
    "shuffle": (
        lambda x: Shuffle((x,), len(x.shape) - 1, ORDER).output,
        lambda x: x[..., jnp.array(ORDER)],
    ),
}
X, W = 0.5 * uniform(0, 8, 4), 0.5 * uniform(1, 4)
every_kind = pytest.mark.parametrize("kind", KINDS)


def check(function, reference, arrays, dims, layout):
    """Values and gradients are those of jax, and of devices under a layout."""

    def step(**tensors):
        y = function(*tensors.values())
        return y, nm.grad(nm.sum(nm.sin(y)), list(tensors.values()))

    def loss(*values):
        return jnp.sum(jnp.sin(reference(*values)))

    two = functools.partial(lambda x, w: step(x=x, w=w))
    one = functools.partial(lambda x: step(x=x))
    specs = {name: nm.spec(dims[name]) for name in arrays}
    program = nm.trace(two if len(arrays) == 2 else one, **specs)
    _, found = program.evaluate({}, **arrays)
    values = tuple(map(jnp.asarray, arrays.values()))
    gradients = jax.grad(loss, tuple(range(len(values))))(*values)
    expected = number_leaves((reference(*values), list(gradients)))
    assert_same(number_leaves(found), expected, rtol=1e-4, atol=1e-4)
    assert_sharded_same(program, specs, arrays, layout)


@every_kind
def test_vmap(kind):
    ours, jaxs = KINDS[kind]
    x = 0.5 * uniform(2, 4, 8, 4)
    check(nm.vmap(ours, E), jax.vmap(jaxs), {"x": x}, {"x": [E, B, M]}, "expert:a, batch:b")


@every_kind
def test_manual_regions_and_their_partial_sums(kind):
    """The gradient of w, which lacks the batch, is a partial sum inside of the region."""
    ours, jaxs = KINDS[kind]

    def function(x, w):
        return nm.manual(lambda x: ours(x) * ours(w), x, over=B)

    arrays, dims = {"x": X, "w": W}, {"x": [B, M], "w": [M]}
    check(function, lambda x, w: jaxs(x) * jaxs(w), arrays, dims, "batch:b")


@every_kind
def test_partial_sums_of_a_plan(kind):
    """The operand is a sum over a split dimension, added up before the op or after it."""
    ours, jaxs = KINDS[kind]
    arrays, dims = {"x": X, "w": W}, {"x": [B, M], "w": [M]}
    check(
        lambda x, w: ours(nm.sum(x, B) * w),
        lambda x, w: jaxs(jnp.sum(x, 0) * w),
        arrays, dims, "batch:b",
    )  # fmt: skip


@every_kind
@pytest.mark.parametrize("policy", ["full", "dots"])
def test_checkpoint(kind, policy):
    ours, jaxs = KINDS[kind]
    check(nm.checkpoint(ours, policy), jaxs, {"x": X}, {"x": [B, M]}, "batch:b")


@every_kind
@pytest.mark.parametrize("remat", ["none", "full"])
def test_loops(kind, remat):
    ours, jaxs = KINDS[kind]

    def function(x):
        def iteration(c, _):
            return 0.3 * ours(nm.sin(c)), None

        return nm.scan(iteration, x, over=T, remat=remat)[0]

    def reference(x):
        for _ in range(T.size):
            x = 0.3 * jaxs(jnp.sin(x))
        return x

    check(function, reference, {"x": X}, {"x": [B, M]}, "batch:b")


@pytest.mark.parametrize("cube", [lambda d: d * d * d, lambda d: Cube((d,)).output])
def test_an_op_that_is_not_linear_is_refused_on_partial_sums(cube):
    """As a derivative inside of a region: accepted, it would differ from layout to layout."""
    bent = nm.custom_vjp(lambda w: (w, None), lambda _, d: cube(d))

    def step(x, w):
        y = nm.manual(lambda x: x * bent(w), x, over=B)
        return nm.grad(nm.sum(y), w)

    with pytest.raises(nm.NamedMeshError, match="is not linear in a sum over dimension batch"):
        nm.trace(step, x=nm.spec([B, M]), w=nm.spec([M]))


def test_an_integer_sum_is_a_partial_sum():
    """A count over a split dimension, by which a derivative divides, is not the whole count."""
    shared = nm.custom_vjp(
        lambda w, x: (w, x),
        lambda x, d: (d / nm.cast(nm.sum(nm.cast(x > 0.0, "int32"), B), "float32"), None),
    )

    def step(x, w):
        y = nm.manual(lambda x: x * shared(w, x), x, over=B)
        return nm.grad(nm.sum(y), w)

    with pytest.raises(nm.NamedMeshError, match="divide: is not linear in a sum over"):
        nm.trace(step, x=nm.spec([B, M]), w=nm.spec([M]))


@pytest.mark.parametrize("module", ["my_custom", "my_random_bits", "my_ops"])
def test_the_name_of_the_module_does_not_matter(module):
    cls = type("Mine", (Cube,), {"__module__": module})
    found = nm.evaluate(nm.vmap(lambda x: cls((x,)).output, E), x=([E, M], np.ones((4, 4))))
    np.testing.assert_array_equal(found, np.ones((4, 4)))


def test_an_op_that_vmap_repeats_is_told_of():
    with pytest.warns(UserWarning, match="runs shuffle in a loop.* expert=4: set by_name = True"):
        nm.trace(nm.vmap(KINDS["shuffle"][0], E), x=nm.spec([E, B, M]))


def test_results_of_a_vmap_rule_are_checked():
    cls = type("Mine", (Mirror,), {"vmap": lambda self, inputs, over: [nm.sum(inputs[0], M)]})
    with pytest.raises(nm.NamedMeshError, match=r"its vmap\(\) over expert=4 returned"):
        nm.evaluate(nm.vmap(lambda x: cls((x,), M).output, E), x=([E, M], np.ones((4, 4))))
