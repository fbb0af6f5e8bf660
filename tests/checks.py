"""What ops are checked with: NumPy for values, finite differences for gradients, a mesh."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import namedmesh as nm
from namedmesh.signature.nest import flatten

MESH = nm.Mesh(a=2, b=4)


@dataclass(frozen=True)
class Case:
    """One op: how it is written in names, and the same in NumPy on float64 arrays.

    inputs names the arguments of both; wrt those whose gradient is checked (by finite differences
    of the reference).
    """

    named: Callable[..., nm.Tensor]
    reference: Callable[..., Any]
    inputs: Sequence[str] = ("x",)
    wrt: Sequence[str] | None = None

    @property
    def differentiated(self) -> Sequence[str]:
        return self.inputs if self.wrt is None else self.wrt


def cotangent(dims: Sequence[nm.Dimension]) -> nm.Tensor:
    """A tensor of unremarkable numbers, the same as cotangent_array."""
    angle = nm.full([], 0.3)
    for i, dim in enumerate(dims):
        angle = angle + nm.replicate(nm.range(dim, "float32")) * (0.17 + 0.23 * i)
    return nm.broadcast(nm.cos(angle), dims)


def cotangent_array(sizes: Sequence[int]) -> np.ndarray:
    """cotangent in float64."""
    angle = np.full(sizes, 0.3)
    for i, index in enumerate(np.indices(sizes)):
        angle = angle + index * (0.17 + 0.23 * i)
    return np.cos(angle)


def function_of(cases: Mapping[str, Case]) -> Callable[..., dict[str, nm.Tensor]]:
    """The function that makes every case's values, first, to count as forward, and gradients."""

    def everything(**given: nm.Tensor) -> dict[str, nm.Tensor]:
        made = {
            name: case.named(*(given[key] for key in case.inputs)) for name, case in cases.items()
        }
        results = dict(made)
        for name, case in cases.items():
            if case.differentiated:
                y = made[name]
                wrt = {key: given[key] for key in case.differentiated}
                grads = nm.grad(y, wrt, cotangent=cotangent(y.shape))
                results |= {f"{name}/d{key}": grad for key, grad in grads.items()}
        return results

    return everything


def expected_of(
    cases: Mapping[str, Case], arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """What function_of must make, by NumPy and central differences alone."""
    results = {}
    for name, case in cases.items():
        given = [as_float64(arrays[key]) for key in case.inputs]
        results[name] = np.asarray(case.reference(*given))
        for key in case.differentiated:
            at = list(case.inputs).index(key)
            results[f"{name}/d{key}"] = numeric_gradient(case.reference, given, at)
    return results


def as_float64(array: np.ndarray) -> np.ndarray:
    """Floating point arrays in float64, others as they are."""
    array = np.asarray(array)
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def numeric_gradient(
    function: Callable[..., Any], given: Sequence[np.ndarray], at: int, step: float = 1e-6
) -> np.ndarray:
    """The gradient of sum(function(*given) * cotangent) in one argument, by central differences."""

    def loss(argument: np.ndarray) -> float:
        value = np.asarray(function(*given[:at], argument, *given[at + 1 :]))
        return float(np.sum(value * cotangent_array(value.shape)))

    found = np.zeros(given[at].shape)
    for index in np.ndindex(*given[at].shape):
        nudge = np.zeros(given[at].shape)
        nudge[index] = step
        found[index] = (loss(given[at] + nudge) - loss(given[at] - nudge)) / (2 * step)
    return found


def evaluated(
    program: nm.Program, arrays: Mapping[str, Any], state: Mapping[str, Any] | None = None
) -> Any:
    """The results of an unsharded run."""
    _, results = program.evaluate(program.initial_state() if state is None else state, **arrays)
    return results


def assert_same(
    found: Mapping[str, Any], expected: Mapping[str, Any], rtol: float = 1e-5, atol: float = 1e-5
) -> None:
    """Every entry has the expected shape and values; all that differ are named."""
    assert set(found) == set(expected)
    problems = []
    for name, want in expected.items():
        got, want = np.asarray(found[name]), np.asarray(want)
        if got.shape != want.shape:
            problems.append(f"{name}: shape {got.shape}, not {want.shape}")
        elif got.dtype.kind in "biu":
            if not np.array_equal(got, want):
                problems.append(f"{name}: {got.ravel()[:8]} not {want.ravel()[:8]}")
        elif not np.allclose(
            as_float64(got), as_float64(want), rtol=rtol, atol=atol, equal_nan=True
        ):
            worst = np.nanmax(np.abs(as_float64(got) - as_float64(want)))
            problems.append(f"{name}: off by {worst:.3g}; {got.ravel()[:6]} not {want.ravel()[:6]}")
    assert not problems, "\n".join(problems)


def assert_near(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Every entry is the same to a share of its largest number."""
    scale = {name: np.abs(np.asarray(value)).max() for name, value in wanted.items()}
    assert_same(
        {name: np.asarray(found[name]) / scale[name] for name in wanted},
        {name: np.asarray(value) / scale[name] for name, value in wanted.items()},
        rtol=0, atol=3e-6,
    )  # fmt: skip


def assert_sharded_same(
    function: Callable[..., Any] | nm.Program,
    specs: Mapping[str, Any],
    arrays: Mapping[str, Any],
    layout: str,
    **options: Any,
) -> nm.Step:
    """A compiled run makes what an unsharded one makes, with planned collectives alone."""
    program = function if isinstance(function, nm.Program) else nm.trace(function, **specs)
    step = nm.compile(
        program, mesh=options.pop("mesh", MESH), layout=layout, strict=True, **options
    )
    state, results = step(step.init(0), **arrays)
    updated, expected = program.evaluate(program.initial_state(0), **arrays)
    if not isinstance(expected, dict):
        results, expected = number_leaves(results), number_leaves(expected)
    assert_same(results, expected)
    if updated:
        assert_same({name: state[name] for name in updated}, updated)
    return step


def assert_all_near(found: Any, expected: Any, tolerance: float, path: str = "") -> None:
    """Nested results are near each other, relative to the largest element of each array."""
    if isinstance(expected, dict):
        assert expected.keys() == found.keys()
        for key in expected:
            assert_all_near(found[key], expected[key], tolerance, f"{path}/{key}")
    elif isinstance(expected, (list, tuple)):
        for i, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_all_near(one, other, tolerance, f"{path}/{i}")
    else:
        if np.asarray(found).dtype.kind in "biu":
            tolerance = 0.0
        found, expected = (np.asarray(one).astype(np.float64) for one in (found, expected))
        # What is summed in another order differs by the size of the largest, not of each.
        scale = max(1.0, float(np.max(np.abs(expected), initial=0)))
        np.testing.assert_allclose(
            found, expected, rtol=tolerance, atol=tolerance * scale, err_msg=path
        )


def plan_anyway(
    program: nm.Program, mesh: nm.Mesh, layout: nm.Layout, params: nm.Layout | None = None
) -> tuple[nm.Plan, nm.LayoutConflict | None]:
    """Plans a program; where operands disagree, by the cheapest fix. Returns the conflict too."""
    rests = None if params is None else params.only(program.resting_dims)
    where = program, mesh, layout.only(program.dims), rests
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            return nm.plan(*where), None
        except nm.LayoutConflict as error:
            assert error.fixes, f"a conflict without a fix: {error}"
            return nm.plan(*where, conflicts="cheapest"), error


def number_leaves(results: Any) -> dict[str, Any]:
    """The leaves of nested results by their number."""
    return {str(i): leaf for i, leaf in enumerate(flatten(results))}


def moved_bytes(plan: nm.Plan, *phases: str) -> int:
    """Bytes a plan moves for the program itself, not for the cotangents made here."""
    return sum(
        one.total_bytes
        for one in plan.collectives
        if one.phase in phases and "checks.py" not in str(one.source)
    )


def uniform(seed: int, *sizes: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    """float32 numbers between two bounds, the same every time."""
    return np.random.default_rng(seed).uniform(low, high, sizes).astype(np.float32)


def distinct(seed: int, *sizes: int) -> np.ndarray:
    """float32 numbers of which no two are near each other, shuffled."""
    count = int(np.prod(sizes))
    return (
        np.random.default_rng(seed).permutation(count).reshape(sizes) * 0.17 - count * 0.08 + 0.011
    ).astype(np.float32)
