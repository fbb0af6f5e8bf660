"""Partial sums in manual regions: only what is linear in them passes, under every layout alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import namedmesh as nm
from tests.checks import assert_same
from tests.ops.partial_chains import ARRAYS, SPECS, STEPS, gradient, make_chain


def accepted(derivatives: Mapping[str, Any]) -> dict[str, Any]:
    """The derivatives that are accepted in a region; the others are refused with a fix."""
    passing = {}
    for name, derivative in derivatives.items():
        try:
            nm.trace(lambda x, w, derivative=derivative: gradient(derivative, x, w), **SPECS)
        except nm.NamedMeshError as error:
            known = ("linear in a sum over", "not by a sum", "is no sum over", "mixes elements of")
            assert any(one in error.problem for one in known), error
            assert error.fix and error.source
        else:
            passing[name] = derivative
    return passing


def check_layouts(derivatives: Mapping[str, Any]) -> None:
    """Accepted derivatives make the same numbers split over devices as on one."""

    def step(x, w):
        return {name: gradient(one, x, w) for name, one in derivatives.items()}

    program = nm.trace(step, **SPECS)
    _, expected = program.evaluate({}, **ARRAYS)
    mesh = nm.Mesh(x=8)
    split = nm.compile(program, mesh=mesh, layout="piece:x", strict=True)(None, **ARRAYS)[1]
    scale = {name: max(1.0, float(np.abs(value).max())) for name, value in expected.items()}
    assert_same(
        {name: value / scale[name] for name, value in split.items()},
        {name: value / scale[name] for name, value in expected.items()},
    )


def single(name: str) -> Any:
    return lambda d, w, x: STEPS[name](d, d, w, x)


# By hand, of a cotangent that is a partial sum (as both operands), w and x.
LINEAR = {
    "add", "bfloat16", "branch", "branch or zero", "concat", "convolve", "count", "cumsum",
    "derivative", "derivative by jax", "derivative of it",
    "divide by a weight",
    "gather", "hide", "histogram", "loop", "loop of a length",
    "loop that adds", "loop that adds another", "mean", "mean of x", "negate", "noise", "of each",
    "own blend", "own cubes", "own flip", "own triple", "own two results", "pad", "read and write",
    "reverse", "roll", "scatter", "scatter x", "set", "set to another", "shift", "sort others",
    "squares of x",
    "subtract", "sum of x", "total", "vjp", "weigh", "where by a weight", "where or zero",
}  # fmt: skip


def test_what_is_linear_passes_and_nothing_else():
    assert {*accepted({name: single(name) for name in STEPS})} == LINEAR


def test_what_passes_is_the_same_on_devices():
    check_layouts({name: single(name) for name in LINEAR})


@pytest.mark.parametrize("first", [0, 60])
def test_random_chains_are_the_same_on_devices_or_refused(first):
    chains = dict(make_chain(seed) for seed in range(first, first + 60))
    passing = accepted(chains)
    assert 5 <= len(passing) <= 55
    check_layouts(passing)
