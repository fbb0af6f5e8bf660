"""Dimensions by their names, known indices, and what else takes texts, lists and arrays."""

# pyright: reportArgumentType=false, reportCallIssue=false

import dataclasses
from typing import Any

import numpy as np
import pytest

import namedmesh as nm

B, R, C = nm.dims("batch=2 row=3 column=3")
X = np.arange(9.0, dtype=np.float32).reshape(3, 3) + 1
AT = np.array([-1, 4], np.int32)


@pytest.mark.parametrize(
    "named, expected",
    [
        (lambda x: nm.sum(x, over="row column"), X.sum()),
        (lambda x: x.mean("row"), X.mean(0)),
        (lambda x: x["row", -1], X[-1]),
        (lambda x: x.at["row", 0].set(0.0)["row", 0], np.zeros(3)),
        (lambda x: nm.einsum([x, nm.ones("column k=2")], "row k"), X @ np.ones((3, 2))),
        (lambda x: nm.rename(x, "row", "height").sum("height"), X.sum(0)),
        (lambda x: nm.rename(x, {"row": "column", "column": "row"}).sum("row"), X.sum(1)),
        (lambda x: nm.transpose(x, ["column", ...]), X.T),
        (lambda x: nm.transpose(x, [..., R]), X.T),
        (lambda x: nm.gather(x, -1, R), X[-1]),
        (lambda x: nm.gather(x, [0, -1], "row"), X[[0, -1]]),
        (lambda x: nm.scatter(x, 0.0, -1, R), np.where(np.arange(3)[:, None] == 2, 0, X)),
        (lambda x: nm.einsum([x], [R], same={C: R}), np.diagonal(X)),
        (lambda x: nm.einsum([x], [C], same={C: R}), np.diagonal(X)),
        (lambda x: nm.einsum([x], over=R, same={C: R}), np.trace(X)),
        (
            lambda x: nm.einsum([x, nm.sum(x, R)], [R, C], same={C: R}),
            np.diag(np.diagonal(X) * X.sum(0)),
        ),
        (lambda x: x * nm.named(np.array([1.0, 0, 2]), "row"), X * [[1], [0], [2]]),
        (lambda x: x + nm.constant(X, "row column"), 2 * X),
        (lambda x: x * nm.param("w", "row", init=[1.0, 2.0, 3.0]), X * [[1], [2], [3]]),
    ],
)
def test_texts_lists_and_arrays(named, expected):
    np.testing.assert_allclose(nm.evaluate(named, x=([R, C], X)), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, np.zeros((2, 3))),
        ({"fill": 7.0}, np.full((2, 3), 7.0)),
        ({"mode": "clip"}, X[[0, 2]]),
        ({"mode": "wrap"}, X[[2, 1]]),
    ],
)
def test_indices_outside(options, expected):
    read = nm.evaluate(lambda x, i: nm.gather(x, i, R, **options), x=([R, C], X), i=([B], AT))
    np.testing.assert_array_equal(read, expected)


def test_several_dimensions_at_once():
    i, j = np.array([0, 2], np.int32), np.array([1, 2], np.int32)
    given = {"x": ([R, C], X), "i": ([B], i), "j": ([B], j)}
    read = nm.evaluate(lambda x, i, j: nm.gather(x, [i, j], [R, C]), **given)
    np.testing.assert_array_equal(read, X[i, j])
    changed = nm.evaluate(lambda x, i, j: nm.scatter(x, 9.0, [i, j], "row column", "add"), **given)
    expected = X.copy()
    expected[i, j] += 9
    np.testing.assert_array_equal(changed, expected)


@dataclasses.dataclass
class Pair:
    first: Any
    rest: Any


def test_nested_inputs_and_results_in_dataclasses(tmp_path):
    def swap(pair, scales):
        return Pair(pair.rest["deep"]["z"] * scales[1], [pair.first * scales[0]])

    specs = Pair(nm.spec([B]), {"deep": {"z": nm.spec([B])}}), [nm.spec([]), nm.spec([])]
    step = nm.compile(swap, *specs, mesh=nm.Mesh(data=2), layout="batch:data", strict=True)
    assert [*step.inputs] == ["first", "rest_deep_z", "scales_0", "scales_1"]
    x, z = np.float32([1, 2]), np.float32([3, 4])
    arrays = Pair(x, {"deep": {"z": z}}), [np.float32(10), np.float32(100)]
    _, made = step(None, *arrays)
    assert type(made) is Pair
    np.testing.assert_array_equal(made.first, z * 100)
    np.testing.assert_array_equal(made.rest[0], x * 10)
    step.artifact.save(tmp_path / "swap.nmesh")
    _, loaded = nm.runtime.load(tmp_path / "swap.nmesh")(None, pair=arrays[0], scales=arrays[1])
    np.testing.assert_array_equal(loaded.rest[0], x * 10)


def test_dataclasses_are_carried():
    def body(carry, x):
        return Pair(carry.first + x, [carry.rest[0] * x]), carry

    start = Pair(nm.named(0.0, ""), [nm.named(1.0, "")])
    last, _ = nm.evaluate(
        lambda x, s, p: nm.scan(body, Pair(s, [p]), x, over=x.shape[0]),
        x=nm.named(np.float32([2, 3, 4]), "time"),
        s=start.first,
        p=start.rest[0],
    )
    assert (float(last.first), float(last.rest[0])) == (9.0, 24.0)


def test_a_step_for_every_size():
    def total(batch):
        w = nm.param("w", [batch["x"].shape.named("column")], init=nm.constant_init(2.0))
        return nm.sum(batch["x"] * w)

    step = nm.compile(total, mesh=nm.Mesh(data=2), layout="batch:data", strict=True)
    with pytest.raises(nm.NamedMeshError, match="have no names"):
        step(None, {"x": np.ones((4, 3), np.float32)})
    state = step.init({"x": nm.named(np.ones((4, 3), np.float32), "batch column")})
    assert float(step(state, {"x": np.ones((4, 3), np.float32)})[1]) == 24
    assert float(step(state, batch={"x": np.ones((8, 3), np.float32)})[1]) == 48
    assert float(step(state, {"x": np.ones((4, 3), np.float32)})[1]) == 24
    assert len(step.steps) == 2
    assert step.audit.exact


@pytest.mark.parametrize("remat", ["none", "full"])
def test_state_that_changes_in_stacked_layers(remat):
    L = nm.Dimension("layer", 3)
    M = nm.Dimension("model", 4)

    def train(x):
        def layer(x, _):
            mean = nm.state("mean", [M])
            nm.assign(mean, mean * 0.5 + nm.mean(x, over=B))
            return nm.tanh(x * nm.param("w", [M], init=nm.constant_init(0.5))), None

        y, _ = nm.scan(layer, x, over=L, stack=True, remat=remat)
        w = nm.parameters()["w"]
        nm.assign(w, w - nm.grad(nm.sum(y), w))
        return nm.sum(y)

    x = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    step = nm.compile(
        train, nm.spec([B, M]), mesh=nm.Mesh(data=2), layout="batch:data", strict=True
    )
    state, _ = step(step.init(0), x)
    expected, h = [], x
    for _ in range(3):
        expected.append(h.mean(0))
        h = np.tanh(h * np.float32(0.5))
    np.testing.assert_allclose(np.asarray(state["mean"]), expected, rtol=1e-5)
    nested = nm.trace(
        lambda x: nm.scan(
            lambda x, _: (nm.vmap(lambda x: _remember(x), over=B, stack=True)(x), None),
            x,
            over=L,
            stack=True,
        )[0],
        nm.spec([B]),
    )
    state, _ = nested.evaluate(nested.initial_state(), x=np.float32([1, 2]))
    np.testing.assert_array_equal(np.asarray(state["seen"]), [[1, 2], [2, 4], [4, 8]])


def _remember(x):
    nm.assign(nm.state("seen", []), x)
    return x * 2.0


def test_bounds_of_random_numbers_that_are_tensors():
    low, N = np.array([0, 100, -50], np.int32), nm.Dimension("sample", 2000)

    def draw(low, wide):
        key = nm.random.key(1)
        return (
            nm.random.randint(key, [R, N], low, low + wide),
            nm.random.uniform(key, [R, N], low.cast("float32"), 2.0 * (low + wide).cast("float32")),
        )

    wide = np.array([3, 10, 1000], np.int32)
    whole, real = nm.evaluate(draw, low=([R], low), wide=([R], wide))
    for i in range(3):
        assert {low[i], low[i] + wide[i] - 1} <= {*whole[i]} or wide[i] == 1000
        assert low[i] <= whole[i].min() and whole[i].max() < low[i] + wide[i]
        middle = (low[i] + wide[i] - 1 + low[i]) / 2
        assert abs(whole[i].mean() - middle) < wide[i] / np.sqrt(12 * 2000) * 5
        end = 2 * (low[i] + wide[i])
        assert low[i] <= real[i].min() and real[i].max() <= end
        assert abs(real[i].mean() - (low[i] + end) / 2) < (end - low[i]) / np.sqrt(12 * 2000) * 5
