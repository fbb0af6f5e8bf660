"""Comparing, counting, finding, statistics: the same as numpy's, also at the edges."""

import numpy as np
import pytest

import namedmesh as nm

S, K = nm.dims("seq=7 found=4")
INF, NAN = float("inf"), float("nan")


def run(function, *arrays, dims=(S,)):
    given = {f"x{i}": (dims[: np.ndim(array)], array) for i, array in enumerate(arrays)}
    return nm.evaluate(lambda **tensors: function(*tensors.values()), **given)


@pytest.mark.parametrize("equal_nan", [False, True])
def test_close_is_what_numpy_says(equal_nan):
    x = np.array([1.0, INF, -INF, NAN, 1.0, 0.0, 1e-9], "float32")
    y = np.array([1.000001, INF, INF, NAN, INF, 1e-9, 1.0], "float32")
    close = run(lambda x, y: nm.isclose(x, y, equal_nan=equal_nan), x, y)
    np.testing.assert_array_equal(close, np.isclose(x, y, equal_nan=equal_nan))


@pytest.mark.parametrize("q", [0.0, 0.1, 0.5, 0.77, 1.0])
def test_quantiles_are_those_of_numpy(q):
    x = np.array([3.0, -1.0, INF, 2.0, 9.0, INF, 2.0], "float32")
    finite = np.where(np.isinf(x), 50.0, x).astype("float32")
    found = run(lambda x: nm.quantile(x, q, S), finite)
    np.testing.assert_allclose(found, np.quantile(finite, q), rtol=1e-6)
    if q in (0.0, 0.5, 1.0):
        assert run(lambda x: nm.quantile(x, q, S), x) == np.sort(x)[round(q * 6)]


def test_a_quantile_with_nan_is_nan():
    x = np.array([3.0, NAN, 1.0, 2.0, 9.0, 5.0, 2.0], "float32")
    assert np.isnan(run(lambda x: nm.median(x, S), x))


@pytest.mark.parametrize("order", [0, 1, 2, 3, 0.5, INF, -INF])
def test_norms_are_those_of_numpy(order):
    x = np.array([3.0, 0.0, -4.0, 1.0, 2.0, -6.0, 0.5], "float32")
    expected = np.linalg.norm(x.astype(np.float64), order)
    np.testing.assert_allclose(run(lambda x: nm.norm(x, order=order), x), expected, rtol=1e-6)


def test_the_norm_of_zeros_has_the_gradient_zero():
    x = np.zeros(7, "float32")
    np.testing.assert_array_equal(run(lambda x: nm.grad(nm.norm(x), x), x), x)


@pytest.mark.parametrize("name", ["nansum", "nanmean", "nanmax", "nanmin", "nanstd", "nanprod"])
def test_what_is_not_a_number_is_left_out(name):
    x = np.array([3.0, NAN, -4.0, 1.0, NAN, 2.0, 0.5], "float32")
    expected = getattr(np, name)(x)
    np.testing.assert_allclose(run(getattr(nm, name), x), expected, rtol=1e-6)
    gradient = run(lambda x: nm.grad(getattr(nm, name)(x), x), x)
    assert np.isfinite(gradient).all() and (gradient[np.isnan(x)] == 0).all()


def test_nothing_but_nan_has_no_maximum():
    x = np.full(7, NAN, "float32")
    assert np.isnan(run(nm.nanmax, x)) and np.isnan(run(nm.nanmin, x))
    assert run(nm.nansum, x) == 0


def test_a_histogram_counts_the_upper_edge_of_the_last_bin():
    x = np.array([0.0, 0.1, 0.5, 1.0, 1.0, 1.1, NAN], "float32")
    counts, edges = run(lambda x: nm.histogram(x, K, 0.0, 1.0), x)
    expected, expected_edges = np.histogram(x[:-1], 4, (0.0, 1.0))
    np.testing.assert_array_equal(counts, expected)
    np.testing.assert_array_equal(edges, expected_edges)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("size", [7, 64, 65, 200])
def test_values_are_found_where_numpy_finds_them(side, size):
    rng = np.random.default_rng(size)
    D, V = nm.Dimension("table", size), nm.Dimension("value", 50)
    x, v = np.sort(rng.integers(0, 60, size)), rng.integers(-2, 63, 50)
    x, v = x.astype("int32"), v.astype("int32")
    found = nm.evaluate(lambda x, v: nm.searchsorted(x, v, D, side), x=([D], x), v=([V], v))
    np.testing.assert_array_equal(found, np.searchsorted(x, v, side))


def test_different_elements_and_how_often_they_occur():
    x = np.array([5, -1, 5, 7, 0, 7, 7], "int32")
    values, counts = run(lambda x: nm.unique(x, S, K), x)
    expected, times = np.unique(x, return_counts=True)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(counts, times)


def test_zero_is_different_from_the_element_before_the_first():
    values, counts = run(lambda x: nm.unique(x, S, K), np.zeros(7, "int32"))
    assert values.tolist() == [0, 0, 0, 0] and counts.tolist() == [7, 0, 0, 0]


def test_a_switch_runs_the_nearest_of_its_functions():
    branches = [lambda x: x + 1.0, lambda x: x * 10.0, lambda x: -x, lambda x: x * x, lambda x: x]
    for index, expected in (
        (-3, 4.0),
        (0, 4.0),
        (1, 30.0),
        (2, -3.0),
        (3, 9.0),
        (4, 3.0),
        (9, 3.0),
    ):
        found = nm.evaluate(lambda i, x: nm.switch(i, branches, x), i=([], index), x=([], 3.0))
        assert found == expected


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32"])
def test_sums_means_and_places_of_what_is_not_floating_point(dtype):
    x = np.array([0, 1, 1, 0, 1, 1, 0], dtype)
    total, mean, place = run(lambda x: (nm.sum(x), nm.mean(x), nm.argmax(x, S)), x)
    assert (total, place) == (4, 1) and mean == np.float32(4 / 7)
    assert total.dtype == ("int32" if dtype == "bool" else dtype) and mean.dtype == "float32"


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap", "symmetric"])
@pytest.mark.parametrize("amounts", [(0, 2), (3, 0), (2, 5)])
def test_padding_is_that_of_numpy(mode, amounts):
    x = np.arange(7, dtype="float32")
    low, high = amounts
    found = run(lambda x: nm.pad(x, S, low, high, mode=mode), x)
    np.testing.assert_array_equal(found, np.pad(x, amounts, mode))


def test_mistakes_are_explained():
    with pytest.raises(nm.NamedMeshError, match="no function to run"):
        nm.evaluate(lambda i: nm.switch(i, []), i=([], 0))
    with pytest.raises(nm.NamedMeshError, match="both seq"):
        nm.evaluate(lambda: nm.eye(S, S))
    with pytest.raises(nm.NamedMeshError, match="are no range"):
        run(lambda x: nm.histogram(x, K, 1.0, 1.0), np.zeros(7, "float32"))
    with pytest.raises(nm.NamedMeshError, match="not between 0 and 1"):
        run(lambda x: nm.quantile(x, 2.0, S), np.zeros(7, "float32"))
    with pytest.raises(nm.NamedMeshError, match="has no more than 7"):
        run(lambda x: nm.pad(x, S, 8, mode="wrap"), np.zeros(7, "float32"))
    with pytest.raises(nm.NamedMeshError, match="summed over"):
        run(lambda x: nm.softmax(x, S, extra=x), np.zeros(7, "float32"))


def test_values_that_are_nan_belong_where_sorting_puts_them():
    x = np.array([0, 1, np.nan, np.nan], np.float32)
    values = np.array([np.nan, 0.5, np.inf], np.float32)
    S, V = nm.dims("seq=4 values=3")
    for side in ("left", "right"):
        found = nm.evaluate(
            lambda x, v, side=side: nm.searchsorted(x, v, S, side), x=([S], x), v=([V], values)
        )
        np.testing.assert_array_equal(found, np.searchsorted(x, values, side))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_extremes_of_segments_with_nan_are_nan(dtype):
    E, N, M = nm.dims("edge=6 node=4 model=2")
    x = np.array([[1, -INF], [NAN, 2], [3, -0.0], [0, 5], [-4, INF], [7, 7]], "float32")
    segments = np.array([0, 1, 1, 2, 2, -1], "int32")

    def extremes(x, s):
        x = nm.cast(x, dtype)
        at = nm.zeros([N, M], dtype).at[N, s]
        results = nm.segment_max(x, s, N), nm.segment_min(x, s, N), at.max(x), at.min(x)
        return [nm.cast(one, "float32") for one in results]

    expected = []
    for start in (False, True):
        for best, least in ((np.fmax, -INF), (np.fmin, INF)):
            found = np.full((4, 2), 0.0 if start else least, "float32")
            for row, segment in zip(x[:5], segments[:5], strict=True):
                pair = np.stack([found[segment], row])
                found[segment] = np.where(np.isnan(pair).any(0), NAN, best(*pair))
            expected.append(found)
    found = nm.evaluate(extremes, x=([E, M], x), s=([E], segments))
    step = nm.compile(
        extremes, nm.spec([E, M]), nm.spec([E], "int32"), mesh=nm.Mesh(a=2, b=2),
        layout="edge:a, model:b", strict=True,
    )  # fmt: skip
    for results in (found, step(None, x, segments)[1]):
        for one, other in zip(results, expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_errors_name_the_function_that_was_called():
    for name in ("nansum", "nanmax", "median"):
        with pytest.raises(nm.NamedMeshError, match=f"{name}"):
            run(lambda x, name=name: getattr(nm, name)(x, S), np.arange(7))
