"""Two partitioners, one plan: the same Artifact, the same numbers, the same collectives."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.runtime import Executable
from namedmesh.runtime.compiling import lower_init, lower_step
from namedmesh.runtime.partitioner import choose_partitioner
from tests.artifacts.partitioned import CASES, make_inputs
from tests.checks import number_leaves
from tests.fuzz import check
from tests.programs import make_case

SLOW = ("transformer", "transformer on two axes")
MEMORY = ("argument_bytes", "output_bytes", "aliased_bytes")


def list_collectives(step: Executable) -> list[tuple[Any, ...]]:
    """What a compiled step sends, in an order of its own."""
    return sorted(
        (one.kind, one.axes or (), one.elements, one.dtype, one.times)
        for _, one in step.audit.matched
    )


def assert_close(values: dict[str, Any], expected: dict[str, Any], partitioner: str) -> None:
    for key, value in expected.items():
        np.testing.assert_allclose(
            values[key], value, rtol=1e-4, atol=1e-5, err_msg=f"{partitioner}: {key}"
        )


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in CASES]
)
def test_both_partitioners_make_what_is_planned(name):
    program = CASES[name].trace()
    artifact, inputs = CASES[name].export(program), make_inputs(program)
    state = {key: np.asarray(value) for key, value in program.initial_state(1).items()}
    updated, expected = program.evaluate(state, **inputs)
    steps, results, first = {}, {}, {}
    for partitioner in ("gspmd", "shardy"):
        step = Executable(artifact, strict=True, partitioner=partitioner)
        assert step.partitioner == partitioner
        assert step.audit.exact, f"{partitioner}: {step.audit}"
        new_state, outputs = step(step.place(state), **inputs)
        results[partitioner] = number_leaves(outputs)
        assert_close(results[partitioner], number_leaves(expected), partitioner)
        assert_close({key: new_state[key] for key in updated}, updated, partitioner)
        steps[partitioner], first[partitioner] = step, step.init(3)
    assert list_collectives(steps["gspmd"]) == list_collectives(steps["shardy"])
    memory = [[getattr(step.report, field) for field in MEMORY] for step in steps.values()]
    assert memory[0] == memory[1]
    for values in (results, first):
        for key, value in values["gspmd"].items():
            np.testing.assert_array_equal(values["shardy"][key], value)


@pytest.mark.parametrize("name", ["looked up", "layer on two axes"])
def test_modules_carry_the_annotations_of_one_partitioner_alone(name):
    case = CASES[name]
    artifact = case.export(case.trace())
    devices = Executable(artifact).mesh
    old, new = ("mhlo.sharding", "@Sharding", "FullToShardShape"), "sdy."
    for lower in (lower_step, lower_init):
        shardy = lower(artifact, devices, "shardy").lowered.as_text()
        assert not [text for text in old if text in shardy]
        gspmd = lower(artifact, devices, "gspmd").lowered.as_text()
        assert "mhlo.sharding" in gspmd and new not in gspmd
    text = lower_step(artifact, devices, "shardy").lowered.as_text()
    axes = ", ".join(f'"{axis}"={size}' for axis, size in case.mesh.axes.items())
    assert f"sdy.mesh @mesh = <[{axes}]>" in text
    assert "sdy.sharding_constraint" in text and "sdy.manual_computation" in text


def test_a_device_assignment_holds_for_both():
    case = CASES["moved"]
    program = case.trace()
    inputs = make_inputs(program)
    artifact = case.export(program).with_device_assignment([3, 1, 0, 2, 7, 6, 5, 4])
    for partitioner in ("gspmd", "shardy"):
        step = Executable(artifact, strict=True, partitioner=partitioner)
        _, result = step(None, **inputs)
        assert step.audit.exact, f"{partitioner}: {step.audit}"
        np.testing.assert_array_equal(result, inputs["x"] * 2)


def test_one_device_needs_no_partitioner():
    case = dataclasses.replace(CASES["looked up"], mesh=nm.Mesh(a=1, b=1))
    program = case.trace()
    inputs, artifact = make_inputs(program), case.export(program)
    results = []
    for partitioner in ("gspmd", "shardy"):
        step = Executable(artifact, strict=True, partitioner=partitioner)
        results.append(number_leaves(step(step.init(0), **inputs)[1]))
    for key, value in results[0].items():
        np.testing.assert_array_equal(results[1][key], value)


@pytest.mark.parametrize("number", range(15))
def test_shardy_makes_what_is_planned_of_random_programs(monkeypatch, number):
    """The other partitioner runs hundreds in test_every_layout.py."""
    monkeypatch.setenv("NAMEDMESH_PARTITIONER", "shardy")
    check(make_case(20260301, number))


def test_the_choice_is_the_callers_then_the_environments(monkeypatch):
    monkeypatch.setenv("NAMEDMESH_PARTITIONER", "gspmd")
    assert choose_partitioner() == "gspmd" and choose_partitioner("shardy") == "shardy"
    monkeypatch.setenv("NAMEDMESH_PARTITIONER", "shardy")
    assert choose_partitioner() == "shardy" and choose_partitioner("gspmd") == "gspmd"


def test_an_unknown_partitioner_is_an_error(monkeypatch):
    (B,) = nm.dims("batch=8")
    exponential = nm.trace(lambda x: nm.exp(x), x=nm.spec([B]))
    with pytest.raises(nm.NamedMeshError) as raised:
        nm.compile(exponential, mesh=nm.Mesh(a=1), partitioner="shardi")
    assert raised.value.problem == "partitioner='shardi' is not a partitioner"
    assert raised.value.details == ("partitioners: gspmd, shardy",)
    assert raised.value.fix == "did you mean 'shardy'?"
    monkeypatch.setenv("NAMEDMESH_PARTITIONER", "none")
    with pytest.raises(nm.NamedMeshError, match="NAMEDMESH_PARTITIONER='none' is not a"):
        choose_partitioner()
