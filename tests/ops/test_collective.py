"""Named collectives in manual regions: their values, derivatives and lines in the plan."""

import numpy as np
import pytest

import namedmesh as nm
from tests.checks import (
    Case,
    assert_same,
    assert_sharded_same,
    evaluated,
    expected_of,
    function_of,
    uniform,
)

P, A, C, M, T = nm.dims("shard=8 all=8 code=3 model=4 iteration=3")


def region(function, over=P):
    return lambda *tensors: nm.manual(function, *tensors, over=over)


def weigh(x):
    """Softmax over shards and their rows."""
    powers = nm.exp(nm.sort(x, M))
    return powers / nm.collective.sum(nm.sum(powers, M), P)


def weigh_numpy(x):
    powers = np.exp(np.sort(x, -1))
    return powers / powers.sum()


def attend(x, y):
    """Every shard with every other."""
    others = nm.collective.gather(nm.tanh(y), P, A)
    return nm.einsum([x, nm.softmax(nm.einsum([x, others], [P, A]), A), others], [P, M])


def attend_numpy(x, y):
    others = np.tanh(y)
    logits = np.exp(x @ others.T)
    return x * (logits / logits.sum(-1, keepdims=True) @ others)


def dispatch(z):
    """There, a function of what came, and back."""
    there = nm.collective.all_to_all(nm.sin(z), P, A)
    return nm.collective.all_to_all(
        there * there * nm.cast(nm.collective.index(P), "float32"), P, A
    )


def ring(x):
    """A loop with a permutation in it."""

    def iteration(carry, _):
        total, passing = carry
        return (total * nm.tanh(passing), nm.collective.permute(passing, P, by=1)), None

    (total, _), _ = nm.scan(iteration, (nm.ones([P, M]), x), over=T)
    return total


SOURCES = [1, 0, None, 2, 4, 3, 7, 6]


def permuted(x):
    rows = [x[i] if i is not None else 0 * x[0] for i in SOURCES]
    return np.stack(rows)


CASES = {
    "sum": Case(region(weigh), weigh_numpy, "x"),
    "gather": Case(region(attend), attend_numpy, ("x", "y")),
    "scatter_sum": Case(
        region(lambda z: nm.sin(nm.collective.scatter_sum(nm.tanh(z), P, A))),
        lambda z: np.sin(np.tanh(z).sum(0)),
        "z",
    ),
    "all_to_all": Case(
        region(dispatch), lambda z: np.sin(z) ** 2 * np.arange(8)[None, :, None], "z"
    ),
    "permute": Case(
        region(lambda x: nm.sin(nm.collective.permute(nm.sin(x), P, by=3))),
        lambda x: np.sin(np.sin(np.roll(x, 3, 0))),
    ),
    "listed": Case(
        region(lambda x: nm.sin(nm.collective.permute(nm.sin(x), P, sources=SOURCES))),
        lambda x: np.sin(np.sin(permuted(x))),
    ),
    "loop": Case(
        region(ring),
        lambda x: np.tanh(x) * np.tanh(np.roll(x, 1, 0)) * np.tanh(np.roll(x, 2, 0)),
    ),
}
INPUTS = {"x": [P, M], "y": [P, M], "z": [P, A, M]}


SPECS = {key: nm.spec(dims) for key, dims in INPUTS.items()}
ARRAYS = {
    key: uniform(i, *(dim.size for dim in dims)) for i, (key, dims) in enumerate(INPUTS.items())
}


def test_values_and_derivatives_are_those_of_numpy():
    program = nm.trace(function_of(CASES), **SPECS)
    assert_same(evaluated(program, ARRAYS), expected_of(CASES, ARRAYS))


@pytest.mark.parametrize(
    ("layout", "partitioner"),
    [
        ("shard:b", "gspmd"),
        ("shard:a+b", "shardy"),
        ("shard:b, model:a", "shardy"),
        ("model:b, all:a", "gspmd"),
    ],
)
def test_every_layout_makes_the_same(layout, partitioner):
    assert_sharded_same(function_of(CASES), SPECS, ARRAYS, layout, partitioner=partitioner)


def plan_of(function, *specs, layout="shard:data"):
    program = nm.trace(region(function), *specs)
    return nm.plan(program, nm.Mesh(data=8), layout).collectives


@pytest.mark.parametrize(
    ("function", "kind", "elements", "times"),
    [
        (weigh, "AllReduce", 1, 1),
        (lambda x: nm.collective.gather(x, P, A) * x, "AllGather", 8 * 4, 1),
        (lambda x: nm.collective.permute(x, P, by=2), "CollectivePermute", 4, 1),
        (lambda x: nm.collective.permute(x, P, sources=SOURCES), "CollectivePermute", 4, 1),
        (ring, "CollectivePermute", 4, 3),
    ],
)
def test_each_is_one_line_of_the_plan(function, kind, elements, times):
    (one,) = plan_of(function, nm.spec([P, M]))
    assert (one.kind, one.elements, one.times) == (kind, elements, times)


@pytest.mark.parametrize(
    ("function", "kind"),
    [(nm.collective.scatter_sum, "ReduceScatter"), (nm.collective.all_to_all, "AllToAll")],
)
def test_what_every_shard_sends_to_every_other_is_one_line_of_the_plan(function, kind):
    (one,) = plan_of(lambda z: nm.sin(function(z, P, A)), nm.spec([P, A, M]))
    assert (one.kind, one.elements) == (kind, 8 * 4)


def test_outside_of_regions_they_are_the_ops_they_are_made_of():
    program = nm.trace(lambda x: nm.collective.sum(x, P), nm.spec([P, M]))
    assert [op.kind for op in program.ops if not op.given] == ["sum"]


def test_a_derivative_may_be_taken_in_the_region():
    def slope(x):
        return nm.grad(nm.collective.sum(nm.sin(x), P), [x], cotangent=nm.ones([M]))[0]

    step = nm.compile(
        region(slope), nm.spec([P, M]), mesh=nm.Mesh(data=8), layout="shard:data", strict=True
    )
    _, found = step(step.init(0), ARRAYS["x"])
    np.testing.assert_allclose(found, np.cos(ARRAYS["x"]), rtol=1e-5)


def test_mixing_without_a_collective_is_refused_and_says_so():
    with pytest.raises(nm.NamedMeshError, match=r"(?s)mixes elements .* or use nm\.collective"):
        nm.trace(region(lambda x: x - nm.sum(x, P)), nm.spec([P, M]))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: nm.collective.sum(x, M), "split over shard, not model"),
        (lambda x: nm.collective.gather(x, P, C), "code=3 cannot stand for shard=8"),
        (lambda x: nm.collective.permute(x, P), "say who sends to whom once"),
        (lambda x: nm.collective.permute(x, P, sources=[0] * 8), "not the senders of 8 shards"),
        (lambda x: nm.collective.permute(x, P, sources=[None, 8]), "not the senders of 8 shards"),
        (
            lambda x: nm.manual(lambda x: nm.collective.sum(x, P), x, over=P),
            "inside another region",
        ),
        (lambda x: None, "the function returned no tensor"),
        (lambda x: nm.collective.all_to_all(x, P, A), "no dimension all"),
    ],
)
def test_mistakes_are_named(function, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(region(function), nm.spec([P, M]))


def assert_exact(function):
    """Values and gradient of a function of x are the same on one device and on eight."""

    def both(x):
        y = function(x)
        return {"y": y, "dx": nm.grad(nm.sum(nm.sin(y)), x)}

    given = {"x": SPECS["x"]}, {"x": ARRAYS["x"]}
    for layout in ("shard:a+b", "shard:b, model:a"):
        assert_sharded_same(both, *given, layout)


def test_in_branches():
    def function(x):
        return nm.cond(
            nm.collective.sum(nm.sum(x, M), P) > 0,
            lambda: x * nm.collective.sum(x, P),
            lambda: nm.collective.permute(x, P, by=1),
        )

    assert_exact(region(function))
    assert_exact(lambda x: region(function)(-x))


def test_derivatives_of_their_own_may_use_collectives():
    scale = nm.custom_vjp(
        lambda x: (x * nm.collective.sum(x, P), x),
        lambda x, dy: dy * nm.collective.sum(x, P) + nm.collective.sum(dy * x, P),
    )
    assert_exact(region(lambda x: nm.sin(scale(nm.sin(x)))))


def test_checkpoints_stand_around_regions():
    def inside(x):
        return nm.sin(nm.collective.permute(nm.sin(x), P, by=1))

    assert_exact(nm.checkpoint(region(inside)))
    with pytest.raises(nm.NamedMeshError, match=r"put nm\.checkpoint around nm\.manual"):
        nm.trace(region(nm.checkpoint(inside)), SPECS["x"])
