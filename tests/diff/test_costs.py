"""Time and memory beside the bytes: in files, in comparisons and on the command line."""

import json
import pathlib

import pytest

import namedmesh as nm
from namedmesh.cli.main import main
from tests.diff.models import plan

TARGET = "h200"
ROOT = pathlib.Path(__file__).parent.parent.parent
STEP = "tests.diff.models:PROGRAM"


def figures(name):
    """What `nm.cost` says of a plan, by the names of a comparison."""
    cost = nm.cost(plan(name), TARGET)
    return {
        "seconds": cost.seconds,
        "least_seconds": cost.least_seconds,
        "compute_seconds": cost.compute_seconds,
        "collective_seconds": cost.collective_seconds,
        "memory": cost.memory.peak_bytes,
    }


def test_a_comparison_with_a_target_has_the_costs_of_both():
    totals = nm.diff(plan("data"), plan("fsdp"), target=TARGET).totals
    before, after = figures("data"), figures("fsdp")
    assert {name: totals[name] for name in before} == {
        name: (before[name], after[name]) for name in before
    }


def test_a_file_keeps_the_cost_it_was_saved_with(tmp_path):
    path = tmp_path / "plan.json"
    plan("data").save(path, target=TARGET)
    text = path.read_text()
    plan("data").save(path, target=TARGET)
    assert path.read_text() == text  # the same plan and target, the same text
    record = nm.load_plan(path)
    assert {**record.seconds, "memory": record.memory} == figures("data")
    assert record.target == TARGET
    assert nm.diff(path, plan("data"), target=TARGET).same
    assert nm.diff(path, plan("data")).same  # of which only one has a cost
    assert "unknown" in str(nm.diff(path, plan("fsdp")))


def test_commands_price_plans_and_fail_on_what_they_take(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    options = [STEP, "--mesh", "data=4", "--layout", "batch:data", "--target", TARGET]
    assert main(["cost", *options]) == 0
    assert capsys.readouterr().out.strip() == str(nm.cost(plan("data"), TARGET)).strip()
    assert main(["cost", *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seconds"] == figures("data")["seconds"]
    assert main(["plan", *options]) == 0
    assert "collectives" in capsys.readouterr().out
    assert main(["plan", *options, "--json", "--save", str(tmp_path / "a.json")]) == 0
    assert json.loads(capsys.readouterr().out)["cost"]["memory"] == figures("data")["memory"]
    hidden = [*options[:3], "--layout", "hidden:data", "--target", TARGET]
    assert main(["diff", str(tmp_path / "a.json"), *hidden, "--fail-if", "seconds < 1x"]) == 1
    said = capsys.readouterr()
    assert "failed: seconds < 1x" in said.err and f", target {TARGET}" in said.out


@pytest.mark.parametrize("words", [["plan"], ["diff", "--layout", ""], ["cost"]])
def test_a_target_that_there_is_not_is_refused(words, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    options = [STEP, "--mesh", "data=4", "--layout", "batch:data", "--target", "h2000"]
    assert main([*words, *options]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "h2000" in said.err and "fix: " in said.err
