"""The schedule in reports of `aot`, in files, and between two reports."""

import dataclasses
import json

import pytest

import namedmesh as nm
from namedmesh.aot import compilation, compile_for
from namedmesh.cli.main import main
from namedmesh.hardware.hardware import Hardware, write_hardware
from namedmesh.runtime.compiling import compile_lowered, lower_step
from tests.aot import stack
from tests.aot.refusals import FULL


@pytest.fixture(scope="module")
def artifact():
    program = nm.trace(stack.train, x=nm.spec([stack.B, stack.M]))
    return nm.export(program, nm.Mesh(data=4, tensor=2), "batch:data, hidden:tensor")


def test_a_report_says_what_is_exposed(artifact):
    report = compile_for(artifact, "cpu:8")
    timeline, audit = report.timeline, report.audit
    assert timeline is not None and audit is not None
    # On CPUs nothing runs beside a collective; how often each runs is counted by another reader.
    assert timeline.exposed_seconds == pytest.approx(timeline.collective_seconds)
    assert sum(one.times for one in timeline.exposures) == sum(one.times for one in audit.compiled)
    lines = {one.line for one in timeline.exposures if one.collective.phase != "unplanned"}
    assert all(line.startswith("stack.py:") for line in lines), lines
    row = report.row()
    assert sum(row["exposed_by_kind"].values()) == pytest.approx(row["exposed_seconds"])
    assert "by its schedule a step takes" in str(report) and "exposed by axes" in str(report)


def test_seconds_are_those_of_a_file_of_hardware(artifact, tmp_path):
    path, file, out = (tmp_path / name for name in ("a.nmesh", "slow.yaml", "out.json"))
    artifact.save(path)
    plain = Hardware.parse("cpu")
    bandwidth = plain.memory_bandwidth / 100
    file.write_text(write_hardware(dataclasses.replace(plain, memory_bandwidth=bandwidth)))
    words = ["aot", str(path), "--target", "cpu:8", "--json", str(out), "--hardware"]
    assert main([*words, str(file)]) == 0
    timeline = compile_for(artifact, "cpu:8").timeline
    (row,) = json.loads(out.read_text())
    assert timeline is not None and row["scheduled_seconds"] > 2 * timeline.seconds
    assert row["exposed_seconds"] == pytest.approx(timeline.exposed_seconds)
    assert main([*words, str(tmp_path / "none.yaml")]) == 2


def test_what_a_compiler_tried_in_vain_has_no_timeline(artifact, monkeypatch):
    made = compile_lowered(lower_step(artifact, nm.runtime.Executable(artifact).mesh)).as_text()

    def refuse(*_):
        raise RuntimeError(FULL)

    monkeypatch.setattr(compilation, "_compile", refuse)
    monkeypatch.setattr(compilation, "_dump_last_try", lambda *_: made)
    report = compile_for(artifact, "cpu:8")
    assert report.audit is not None and not report.fits
    assert report.timeline is None and "by its schedule" not in str(report)


def test_a_change_of_what_is_exposed_is_said(artifact, tmp_path):
    row = compile_for(artifact, "cpu:8").row()
    files = []
    for name, seconds in (("before", 0.003), ("after", 0.017)):
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps([{**row, "exposed_by_kind": {"AllGather": seconds}}]))
    change = nm.diff(*files)
    assert "this change exposes 14 ms of AllGather" in str(change)
    assert change.totals["exposed_seconds"] == (0.003, 0.017)
    assert "hides or saves 14 ms of AllGather" in str(nm.diff(*files[::-1]))


def test_the_command_writes_a_page_or_a_trace(artifact, tmp_path, capsys):
    path, page, trace = (tmp_path / name for name in ("a.nmesh", "step.html", "step.json"))
    artifact.save(path)
    for out in (page, trace):
        assert main(["aot", str(path), "--target", "cpu:8", "--trace", str(out)]) == 0
        assert f"timeline in {out}" in capsys.readouterr().out
    assert page.read_text().startswith("<!doctype html>")
    assert {one["ph"] for one in json.loads(trace.read_text())["traceEvents"]} == {"M", "X"}
    twice = ["aot", str(path), str(path), "--target", "cpu:8", "--trace", str(page)]
    assert main(twice) == 2
    assert "--trace writes one artifact, and 2 were given" in capsys.readouterr().err
