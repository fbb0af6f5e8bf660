"""Whole numbers, cut normal numbers, orders and matrices: their distributions, under layouts."""

import math

import numpy as np
import pytest

import namedmesh as nm
from tests.checks import assert_sharded_same

B, M = nm.dims("batch=8 model=10")
N = nm.Dimension("draws", 200_000)


def test_whole_numbers_are_all_as_likely():
    """A chi-square of ten faces; the ends of a dtype and of its negative half come."""
    drawn = nm.evaluate(lambda: nm.random.randint(nm.random.key(3), [N], -4, 6))
    counts = np.bincount(drawn + 4, minlength=10)
    assert len(counts) == 10
    assert np.sum((counts - 20_000) ** 2 / 20_000) < 27.9  # one in a thousand of chi-square, 9
    wide = nm.evaluate(lambda: nm.random.randint(nm.random.key(1), [N], -(2**30), 2**30))
    assert wide.min() < -(2**30) + 2**18 and wide.max() > 2**30 - 2**18
    byte = nm.evaluate(lambda: nm.random.randint(nm.random.key(1), [N], 0, 256, "uint8"))
    assert (byte.min(), byte.max()) == (0, 255)


def test_truncated_normal_numbers_have_their_distribution():
    """The share below every point is that of the cut normal distribution."""
    low, high = -1.0, 2.5
    drawn = nm.evaluate(lambda: nm.random.truncated_normal(nm.random.key(2), [N], low, high))

    def below(x):
        return 0.5 * (1 + math.erf(x / math.sqrt(2)))

    for x in np.linspace(low, high, 15):
        wanted = (below(x) - below(low)) / (below(high) - below(low))
        assert abs(np.mean(drawn <= x) - wanted) < 0.006
    assert low <= drawn.min() and drawn.max() <= high


def test_permutations_are_all_as_likely():
    """Of three elements, six orders by 1,200 keys."""
    three = nm.Dimension("three", 3)
    program = nm.trace(
        lambda seed: nm.random.permutation(nm.random.key_from_seed(seed), three),
        seed=nm.spec([], "int32"),
    )
    step = nm.compile(program, mesh=nm.Mesh(all=1), layout="")
    state = step.init(0)
    found = {}
    for seed in range(1200):
        order = tuple(np.asarray(step(state, seed=seed)[1]).tolist())
        found[order] = found.get(order, 0) + 1
    assert len(found) == 6 and min(found.values()) > 150


@pytest.mark.parametrize("layout", ["model:b", "batch:a, model:b"])
def test_draws_and_initializers_do_not_depend_on_the_layout(layout):
    def draw():
        key = nm.random.key(5)
        return {
            "randint": nm.random.randint(key, [B, M], 0, 100),
            "truncated": nm.random.truncated_normal(key, [B, M]),
            "order": nm.random.permutation(key, M),
            "orthogonal": nm.orthogonal_init(B, M, 2.0)(key, nm.Shape([B, M]), "float32"),
        }

    step = assert_sharded_same(draw, {}, {}, layout)
    matrix = np.asarray(step(step.init(0))[1]["orthogonal"])
    np.testing.assert_allclose(matrix @ matrix.T, 4 * np.eye(8), atol=1e-4)


def test_layers_that_are_stacked_have_orthogonal_matrices_each():
    E, Q, W = nm.dims("expert=3 rows=8 columns=6")

    def one(x):
        return x * nm.param("w", [Q, W], init=nm.orthogonal_init(Q, W))

    program = nm.trace(nm.vmap(one, E, stack=True), nm.spec([E]))
    for matrix in np.asarray(program.initial_state(0)["w"]):
        np.testing.assert_allclose(matrix.T @ matrix, np.eye(6), atol=1e-5)


def test_ends_of_tails_are_refused():
    with pytest.raises(nm.NamedMeshError, match="the end of a tail"):
        nm.evaluate(lambda: nm.random.truncated_normal(nm.random.key(0), [M], 5.0, 6.0))
