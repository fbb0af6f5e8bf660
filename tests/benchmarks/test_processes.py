"""The benchmark of processes: its programs, its comparison, and one small run."""

import json
import pathlib

import numpy as np
import pytest

import namedmesh as nm
from benchmarks import processes

RESULTS = pathlib.Path(processes.__file__).parent / "results" / "processes" / "processes.json"


def test_every_program_sends_along_every_axis():
    for trace, mesh, layout in processes.CASES.values():
        plan = nm.plan(trace(), mesh, layout)
        axes = {axis for collective in plan.collectives for axis in collective.axes}
        assert axes == set(mesh.axes)


def test_results_are_compared_by_the_largest_number_of_each_array(tmp_path):
    np.savez(
        tmp_path / "out0_1.npz", a=np.array([1, -4], np.float32), b=np.array([0.5], np.float32)
    )
    np.savez(
        tmp_path / "out0_2.npz", a=np.array([2, -4], np.float32), b=np.array([0.5], np.float32)
    )
    assert processes.compare(tmp_path, 0, 1) == 0
    assert processes.compare(tmp_path, 0, 2) == 0.25


@pytest.mark.slow
def test_two_processes_have_the_results_of_one(monkeypatch):
    monkeypatch.setattr(processes, "SHAPES", ((1, 8), (2, 4)))
    rows = processes.measure(steps=2, rounds=1)["rows"]
    assert len(rows) == 2 * len(processes.CASES)
    assert all(row["audit_exact"] and row["apart"] <= processes.MOST_APART for row in rows)


def test_the_recorded_results_are_as_they_should_be():
    result = json.loads(RESULTS.read_text())
    shapes = {(row["processes"], row["devices"]) for row in result["rows"]}
    assert shapes == set(processes.SHAPES)
    assert len(result["rows"]) == len(shapes) * len(processes.CASES)
    assert all(
        row["audit_exact"] and row["apart"] <= processes.MOST_APART for row in result["rows"]
    )
