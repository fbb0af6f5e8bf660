"""Calls as the traced function is written: dict arguments, names, named tuples and keys."""

import collections
import enum
from typing import Any, NamedTuple

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.runtime import Artifact, Executable

B = nm.Dimension("batch", 4)
MESH = nm.Mesh(data=1)
X = np.arange(4, dtype=np.float32)
Y = X + 10


def weigh(batch, rate, *more):
    return nm.sum((batch["x"] - batch["y"]) * rate) + sum(nm.sum(one) for one in more)


BATCH = {"x": nm.spec([B]), "y": nm.spec([B])}
EXPECTED = float(np.sum((X - Y) * 2) + np.sum(X) + np.sum(Y))


@pytest.fixture(scope="module", params=["compiled", "loaded"])
def step(request):
    program = nm.trace(weigh, BATCH, nm.spec([]), nm.spec([B]), nm.spec([B]))
    if request.param == "compiled":
        return nm.compile(program, mesh=MESH)
    return Executable(Artifact.from_bytes(nm.export(program, MESH).to_bytes()))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ((X, Y, 2.0, X, Y), {}),
        (({"y": Y, "x": X}, 2.0, X, Y), {}),
        (({"y": Y, "x": X},), {"rate": 2.0, "more": (X, Y)}),
        ((), {"batch": {"y": Y, "x": X}, "rate": 2.0, "more_0": X, "more_1": Y}),
        ((), {"x": X, "y": Y, "rate": 2.0, "more": [X, Y]}),
    ],
)
def test_inputs_nested_or_flat(step, values, named):
    assert float(step(None, *values, **named)[1]) == EXPECTED


def test_nested_inputs_are_put_and_evaluated(step):
    inputs = step.put(batch={"x": X, "y": Y}, rate=2.0, more=[X, Y])
    assert list(inputs) == ["x", "y", "rate", "more_0", "more_1"]
    assert float(step(None, **inputs)[1]) == EXPECTED
    program = nm.trace(weigh, BATCH, nm.spec([]), nm.spec([B]), nm.spec([B]))
    _, total = program.evaluate({}, batch={"x": X, "y": Y}, rate=2.0, more=[X, Y])
    assert float(total) == EXPECTED


@pytest.mark.parametrize(
    ("values", "named", "problem"),
    [
        (({"x": X}, 2.0, X, Y), {}, "argument batch of weigh lacks y"),
        (({"x": X, "y": Y, "z": X}, 2.0, X, Y), {}, "argument batch of weigh has 'z' besides"),
        (({"x": X, 3: Y},), {}, "argument batch of weigh lacks y, and has '3' besides"),
        (({"x": X, "y": Y}, 2.0, X, Y), {"x": X}, "input x was given twice"),
        ((X,), {"batch": {"x": X, "y": Y}}, "input x was given twice"),
        (({"x": X, "y": Y}, 2.0, X, Y, X), {}, "5 inputs were given, weigh takes 5"),
    ],
)
def test_a_dict_that_does_not_fit(step, values, named, problem):
    with pytest.raises(nm.NamedMeshError) as error:
        step(None, *values, **named)
    assert error.value.problem == problem


def test_a_dict_argument_with_a_key_of_its_own_name():
    def f(batch, x):
        return nm.sum(batch["batch"] * x)

    step = nm.compile(f, {"batch": nm.spec([B])}, nm.spec([B]), mesh=MESH)
    for values in ((X, Y), ({"batch": X}, Y)):
        assert float(step(None, *values)[1]) == float(X @ Y)
    for batch in (X, {"batch": X}):
        assert float(step(None, batch=batch, x=Y)[1]) == float(X @ Y)


def test_an_input_may_be_called_state():
    program = nm.trace(lambda state, self: nm.sum(state * self), nm.spec([B]), nm.spec([B]))
    assert float(program.evaluate({}, state=X, self=Y)[1]) == float(X @ Y)
    step = nm.compile(program, mesh=MESH)
    assert float(step(None, state=X, self=Y)[1]) == float(X @ Y)


def test_an_input_and_a_variable_of_one_name():
    with pytest.raises(nm.NamedMeshError) as error:
        nm.trace(lambda x: x * nm.param("x", [B]), x=nm.spec([B]))
    assert error.value.problem == "x of <lambda> is an input and a variable at once"
    assert error.value.details == ("x: float32[batch=4]",)


class Losses(NamedTuple):
    total: nm.Tensor
    parts: list[Any]


Pair = collections.namedtuple("Pair", "first second")
RESULTS = lambda x: Losses(nm.sum(x), [x, Pair(x * 2.0, {"a": Pair(x, None)})])


def test_named_tuples_come_back_as_they_were_written():
    _, results = nm.compile(RESULTS, nm.spec([B]), mesh=MESH)(None, X)
    assert type(results) is Losses and type(results.parts[1]) is Pair
    assert float(results.total) == 6
    np.testing.assert_array_equal(results.parts[1].second["a"].first, X)


def test_named_tuples_of_an_artifact_have_the_same_name_and_fields():
    artifact = nm.export(nm.trace(RESULTS, nm.spec([B])), MESH)
    loaded = Artifact.from_bytes(artifact.to_bytes())
    assert loaded == artifact
    _, results = Executable(loaded)(None, X)
    assert type(results).__name__ == "Losses" and results._fields == ("total", "parts")
    assert float(results.total) == 6
    np.testing.assert_array_equal(results.parts[1].first, 2 * X)
    again = Executable(loaded)(None, X)[1]
    assert type(again) is type(results)


def test_keys_survive_an_artifact():
    keys = ["a", 3, 1.5, None, ("a", 1), B, (B, ("x",)), True]
    program = nm.trace(lambda x: {key: x + i for i, key in enumerate(keys)}, nm.spec([B]))
    artifact = nm.export(program, MESH)
    _, results = Executable(Artifact.from_bytes(artifact.to_bytes()))(None, X)
    assert list(results) == keys
    for i, key in enumerate(keys):
        np.testing.assert_array_equal(results[key], X + i)


class Color(enum.Enum):
    RED = 1


@pytest.mark.parametrize("key", [Color.RED, frozenset("a"), b"a", ("a", Color.RED), np.int32(3)])
def test_other_keys_run_but_are_not_exported(key):
    program = nm.trace(lambda x: {key: x}, nm.spec([B]))
    with pytest.raises(nm.NamedMeshError, match="which an Artifact cannot keep"):
        nm.export(program, MESH)
    step = nm.compile(program, mesh=MESH)
    np.testing.assert_array_equal(step(None, X)[1][key], X)
    with pytest.raises(nm.NamedMeshError, match="which an Artifact cannot keep"):
        step.artifact.to_bytes()
