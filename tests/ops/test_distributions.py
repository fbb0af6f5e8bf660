"""Random numbers of many distributions, held against those of scipy."""

import numpy as np
import pytest
from scipy import stats

import namedmesh as nm

N = nm.Dimension("sample", 20_000)
CONTINUOUS = {
    "exponential": ((), stats.expon),
    "laplace": ((), stats.laplace),
    "logistic": ((), stats.logistic),
    "cauchy": ((), stats.cauchy),
    "gamma, small": ((0.2,), stats.gamma(0.2)),
    "gamma": ((1.0,), stats.gamma(1.0)),
    "gamma, large": ((30.0,), stats.gamma(30.0)),
    "beta": ((0.5, 3.0), stats.beta(0.5, 3.0)),
    "student_t": ((3.0,), stats.t(3.0)),
}


def draw(name, *parameters, seed=3):
    function = getattr(nm.random, name)
    return nm.evaluate(lambda: function(nm.random.key(seed), [N], *parameters))


@pytest.mark.parametrize("name", CONTINUOUS)
def test_numbers_are_distributed_as_they_should_be(name):
    parameters, distribution = CONTINUOUS[name]
    numbers = draw(name.partition(",")[0], *parameters).astype(np.float64)
    assert np.isfinite(numbers).all()
    assert stats.kstest(numbers, distribution.cdf).pvalue > 0.01


def test_a_distribution_is_told_from_another():
    numbers = draw("gamma", 1.1).astype(np.float64)
    assert stats.kstest(numbers, stats.gamma(1.0).cdf).pvalue < 1e-6


@pytest.mark.parametrize("rate", [0.5, 9.9, 10.0, 300.0])
def test_events_come_as_often_as_they_should(rate):
    events = draw("poisson", rate)
    low, high = stats.poisson(rate).ppf([0.02, 0.98]).astype(int)
    edges = np.arange(low, high + 1)
    found = np.array([(events <= edge).sum() for edge in edges])
    counts = np.diff(found, prepend=0, append=len(events))
    chances = np.diff(stats.poisson(rate).cdf(edges), prepend=0, append=1)
    assert stats.chisquare(counts, chances * len(events)).pvalue > 0.01


def test_shares_sum_to_one_and_have_their_weights_means():
    K = nm.Dimension("share", 3)
    weights = np.array([0.5, 1.0, 2.5], "float32")

    def shares(w):
        return nm.random.dirichlet(nm.random.key(1), [N, K], w, over=K)

    found = nm.evaluate(shares, w=([K], weights)).astype(np.float64)
    np.testing.assert_allclose(found.sum(1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(found.mean(0), weights / weights.sum(), atol=0.01)
    assert stats.kstest(found[:, 0], stats.beta(0.5, 3.5).cdf).pvalue > 0.01


def test_signs_are_equally_likely():
    signs = draw("rademacher")
    assert set(signs) == {-1.0, 1.0}
    assert abs(signs.mean()) < 0.03


def test_bounds_of_each_element():
    B = nm.Dimension("batch", 2)

    def between(low, high):
        return nm.random.uniform(nm.random.key(0), [B, N], low, high)

    low, high = np.array([0.0, -5.0], "float32"), np.array([1.0, 5.0], "float32")
    numbers = nm.evaluate(between, low=([B], low), high=([B], high)).astype(np.float64)
    for row, least, bound in zip(numbers, low, high, strict=True):
        assert stats.kstest(row, stats.uniform(least, bound - least).cdf).pvalue > 0.01


def test_whole_numbers_and_narrow_ones_are_parameters():
    wide, narrow = draw("gamma", 2.0), draw("gamma", 2)
    np.testing.assert_array_equal(wide, narrow)
    np.testing.assert_array_equal(draw("poisson", 3), draw("poisson", 3.0))
    halves = nm.evaluate(
        lambda r: nm.random.student_t(nm.random.key(3), [N], nm.cast(r, "bfloat16")), r=([], 3.0)
    )
    np.testing.assert_array_equal(halves, draw("student_t", 3))


@pytest.mark.parametrize("name", ["gamma", "student_t", "poisson"])
def test_parameters_without_a_meaning_are_refused(name):
    with pytest.raises(nm.NamedMeshError, match=f"random.{name}: -1.0 is no parameter"):
        draw(name, -1.0)
    if name != "poisson":
        with pytest.raises(nm.NamedMeshError, match="give a number above 0"):
            draw(name, 0)
