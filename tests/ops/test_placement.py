import numpy as np
import pytest

import namedmesh as nm
from tests.checks import (
    MESH,
    Case,
    assert_same,
    assert_sharded_same,
    evaluated,
    expected_of,
    function_of,
    uniform,
)

G, E, M, H = nm.dims("group=8 expert=4 model=10 hidden=6")


def scaled(move):
    """A move with something on either side of it, so that its gradient goes through it too."""
    return lambda x: nm.sin(move(nm.square(x)))


CASES = {
    "reshard": Case(scaled(lambda x: nm.reshard(x, E)), lambda x: np.sin(x**2)),
    "there_and_back": Case(
        scaled(lambda x: nm.reshard(nm.reshard(x, E) * 2.0, G)), lambda x: np.sin(2 * x**2)
    ),
    "replicate": Case(scaled(nm.replicate), lambda x: np.sin(x**2)),
    "replicate_one": Case(scaled(lambda x: nm.replicate(x, G)), lambda x: np.sin(x**2)),
    "split": Case(scaled(lambda x: nm.split(x, E)), lambda x: np.sin(x**2)),
    "shard": Case(scaled(lambda x: nm.shard(x, {E: "a", M: "b"})), lambda x: np.sin(x**2)),
    "shard_both": Case(scaled(lambda x: nm.shard(x, {G: ("b", "a")})), lambda x: np.sin(x**2)),
    "split_in_parts": Case(scaled(lambda x: nm.split(x, G, 8)), lambda x: np.sin(x**2)),
    "on_devices": Case(
        scaled(lambda x: nm.shard(x, np.arange(8).reshape(2, 4).T[..., None])),
        lambda x: np.sin(x**2),
    ),
    "shard_none": Case(scaled(lambda x: nm.shard(x, {})), lambda x: np.sin(x**2)),
}
SPECS = {"x": nm.spec([G, E, M], whole=[E])}
ARRAYS = {"x": uniform(1, 8, 4, 10)}


def test_values_and_gradients():
    """Without a mesh a move is the identity."""
    program = nm.trace(function_of(CASES), **SPECS)
    assert_same(evaluated(program, ARRAYS), expected_of(CASES, ARRAYS))


@pytest.mark.parametrize(
    "layout", ["group:a+b, expert:b", "group:b+a, expert:b", "model:b, group:a"]
)
def test_sharded(layout):
    assert_sharded_same(function_of(CASES), SPECS, ARRAYS, layout)


def counts(function, layout, **specs):
    plan = nm.plan(nm.trace(function, **specs), MESH, layout)
    kinds = ("AllToAll", "AllGather", "AllReduce", "CollectivePermute")
    return {kind: plan.count(kind) for kind in kinds if plan.count(kind)}


def test_what_each_move_costs():
    """An AllToAll from another holder, a free slice without one, nothing where unmapped."""
    x = nm.spec([G, E, H], whole=[E])
    whole = nm.spec([G, E, H], whole=[G, E])
    assert counts(lambda x: nm.reshard(x, E), "group:b, expert:b", x=x) == {"AllToAll": 1}
    assert counts(lambda x: nm.reshard(x, E), "expert:b", x=whole) == {}
    assert counts(lambda x: nm.reshard(x, E), "group:b", x=x) == {}
    assert counts(lambda x: nm.replicate(x), "group:b", x=x) == {"AllGather": 1}
    assert counts(lambda x: nm.split(x, E), "group:a, expert:b", x=x) == {"AllGather": 1}
    assert counts(lambda x: nm.shard(x, {E: "b"}), "group:b", x=x) == {"AllToAll": 1}
    assert counts(lambda x: nm.shard(x, {G: "b"}), "group:b", x=x) == {}


def test_numbers_of_parts_and_of_devices():
    """As the paper has them: `split(t, D, n)` and `shard(t, device_assignment)`."""
    x = nm.spec([G, E, H], whole=[E, H])
    wide = lambda ids: np.reshape(ids, (-1, 1, 1))
    assert counts(lambda x: nm.split(x, G, 8), "group:a+b", x=x) == {}
    assert counts(lambda x: nm.split(x, G, 8), "group:b+a", x=x) == {}
    assert counts(lambda x: nm.split(x, G, 2), "group:a", x=x) == {}
    assert counts(lambda x: nm.split(x, E, 4), "group:b", x=x) == {"AllToAll": 1}
    assert counts(lambda x: nm.split(x, G, 1), "group:b", x=x) == {"AllGather": 1}
    assert counts(lambda x: nm.shard(x, wide(range(8))), "group:a+b", x=x) == {}
    assert counts(lambda x: nm.shard(x, wide([0, 4])), "group:a", x=x) == {}
    other = wide([0, 4, 1, 5, 2, 6, 3, 7])
    assert counts(lambda x: nm.shard(x, other), "group:a+b", x=x) == {"CollectivePermute": 1}
    for wrong in (
        lambda x: nm.split(x, G, 3),
        lambda x: nm.shard(x, wide([1, 0])),
        lambda x: nm.shard(x, wide([4, 5, 6, 7])),
        lambda x: nm.shard(x, wide([0, 1, 2, 3, 4, 5, 7, 6])),
    ):
        with pytest.raises(nm.NamedMeshError, match="no axes of the mesh split x into"):
            counts(wrong, "group:a", x=x)


def test_the_gradient_of_a_reshard_is_the_reshard_back():
    def loss(x):
        return nm.grad(nm.sum(nm.sin(nm.reshard(x * 2.0, E))), x)

    x = nm.spec([G, E, H], whole=[E])
    assert counts(loss, "group:b, expert:b", x=x) == {"AllToAll": 2}


def region(x, w, v):
    """Captures a weight, takes another, and sorts along a dimension that is whole inside."""
    scale = nm.exp(v)

    def inside(x, w):
        h = nm.einsum([x, w], [G, E, H])
        return nm.sort(nm.tanh(h) * scale, H), nm.cumsum(x, M)

    y, z = nm.manual(inside, x, w, over=G)
    return {"y": y, "z": z} | nm.grad(
        nm.sum(nm.square(y)) + nm.sum(y) + nm.sum(z * z), {"dx": x, "dw": w, "dv": v}
    )


def plain_region(x, w, v):
    h = np.tanh(np.einsum("gem,mh->geh", x, w)) * np.exp(v)[:, None]
    return np.sort(h, 2), np.cumsum(x, 2)


REGION_SPECS = {"x": nm.spec([G, E, M]), "w": nm.spec([M, H]), "v": nm.spec([E])}
REGION_ARRAYS = {"x": uniform(2, 8, 4, 10) / 4, "w": uniform(3, 10, 6) / 4, "v": uniform(4, 4) / 4}


def test_manual_region():
    found = evaluated(nm.trace(region, **REGION_SPECS), REGION_ARRAYS)
    given = [REGION_ARRAYS[key].astype(np.float64) for key in "xwv"]

    def loss(*arrays):
        y, z = plain_region(*arrays)
        return np.sum(y**2) + np.sum(y) + np.sum(z**2)

    expected = dict(zip("yz", plain_region(*given), strict=True))
    for at, name in enumerate("xwv"):
        slope = np.zeros(given[at].shape)
        for index in np.ndindex(*slope.shape):
            nudge = np.zeros(slope.shape)
            nudge[index] = 1e-6
            more, less = (
                [*given[:at], given[at] + sign * nudge, *given[at + 1 :]] for sign in (1, -1)
            )
            slope[index] = (loss(*more) - loss(*less)) / 2e-6
        expected[f"d{name}"] = slope
    assert_same(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("layout", ["group:a+b", "group:b, expert:a", "group:a, model:b"])
def test_manual_region_sharded(layout):
    assert_sharded_same(region, REGION_SPECS, REGION_ARRAYS, layout)


def test_manual_region_over_a_size_that_does_not_divide():
    tens = nm.Dimension("tens", 10)

    def inside(x):
        y = nm.manual(lambda x: nm.sort(x, M.resized(4)), x, over=tens)
        return y, nm.grad(nm.sum(nm.square(y)), x)

    specs = {"x": nm.spec([tens, M.resized(4)])}
    with pytest.warns(UserWarning, match="keeps it whole"):
        nm.plan(
            nm.trace(
                lambda x: nm.manual(nm.tanh, nm.replicate(x), over=tens),
                x=nm.spec([tens], whole=[tens]),
            ),
            MESH,
            "tens:b",
        )
    assert_sharded_same(inside, specs, {"x": uniform(5, 10, 4)}, "tens:b")


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_a_manual_region_may_return_constants(partitioner):
    """XLA has no local value from which they would follow."""

    def function(x):
        first, second = nm.manual(lambda x: (nm.ones([G, M]), nm.sort(x, M)), x, over=G)
        return first, second, nm.manual(lambda x: nm.zeros([G, M]) + 3.0, x, over=G)

    specs = {"x": nm.spec([G, M])}
    arrays = {"x": uniform(0, G.size, M.size)}
    assert_sharded_same(function, specs, arrays, "group:b", partitioner=partitioner)


def test_scan_random_and_batched_gather_inside_a_manual_region():
    """Ops that ask for the size of a dimension get that of the device's own shard."""

    def inside(x, i):
        picked = nm.gather(x, i, M)
        total, steps = nm.scan(
            lambda c, row: (c + row, c * row), nm.zeros([G]), nm.transpose(x, [M, G]), over=M
        )
        noise = nm.random.uniform(nm.random.key(3), [G, H])
        return picked, total, steps, noise, nm.one_hot(i, H)

    def outside(x, i):
        made = nm.manual(inside, x, i, over=G)
        return [*made, nm.grad(nm.sum(made[0]) + nm.sum(nm.square(made[2])), x)]

    specs = {"x": nm.spec([G, M]), "i": nm.spec([G], "int32")}
    arrays = {"x": uniform(6, 8, 10), "i": np.arange(8, dtype=np.int32)}
    step = assert_sharded_same(outside, specs, arrays, "group:b")
    assert step.plan.total_bytes() == 0


def test_second_derivative_through_a_manual_region():
    def twice(function):
        def loss(x, w):
            first = nm.grad(nm.sum(nm.square(function(x, w))), w)
            return {"first": first} | nm.grad(nm.sum(nm.square(first)), {"x": x, "w": w})

        return loss

    layer = lambda x, w: nm.tanh(nm.einsum([x, w], [G, H]))
    specs = {"x": nm.spec([G, M]), "w": nm.spec([M, H])}
    arrays = {"x": uniform(7, 8, 10) / 2, "w": uniform(8, 10, 6) / 2}
    inside = twice(lambda x, w: nm.manual(lambda x: layer(x, w), x, over=G))
    assert_same(
        evaluated(nm.trace(inside, **specs), arrays),
        evaluated(nm.trace(twice(layer), **specs), arrays),
    )
    assert_sharded_same(inside, specs, arrays, "group:a+b", precision="highest")


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda x: nm.split(x, 2), "not a Dimension"),  # pyright: ignore[reportArgumentType]
        (lambda x: nm.reshard(x), "no dimension given"),
        (lambda x: nm.shard(x, [0, 1]), "does not map dimensions"),
        (lambda x: nm.shard(x, [[[0]], [[0]]]), "does not map dimensions"),
        (lambda x: nm.shard(x, [[0], [0, 1]]), "does not map dimensions"),
        (lambda x: nm.shard(x, {G: "a", E: "a"}), "given to two dimensions"),
        (
            lambda x: nm.manual(lambda x: nm.sum(x, over=G), x, over=G),
            "mixes elements of dimension group",
        ),
        (
            lambda x: nm.manual(lambda x: nm.cumsum(x, G), x, over=G),
            "mixes elements of dimension group",
        ),
        (lambda x: nm.manual(lambda x: nm.replicate(x), x, over=G), "nothing moves"),
        (lambda x: nm.manual(lambda x: (x, nm.range(E)), x, over=G), "lacks dimension group"),
    ],
)
def test_misuse_is_explained(wrong, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(wrong, x=SPECS["x"])


def test_an_axis_the_mesh_does_not_have():
    with pytest.raises(nm.NamedMeshError, match="no axis 'c'"):
        nm.plan(nm.trace(lambda x: nm.shard(x, {G: "c"}), **SPECS), MESH, "")
