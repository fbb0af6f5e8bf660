"""The plans of examples, presets and benchmarks are those of the files in tests/golden."""

import json
import pathlib
import re

import pytest

import namedmesh as nm
from tests.diff.golden_plans import FOLDER, PLANS, make_plan

RENEW = "if that is meant, run `make golden` and commit what it writes"


def check_plan(path, plan, tmp_path):
    """Raises where a plan is not that of its file, and says what it costs now."""
    fresh = tmp_path / path.name
    plan.save(fresh, lines=False)
    if not path.exists():
        raise AssertionError(f"there is no {path.name}: {RENEW}")
    if fresh.read_text() == path.read_text():
        return
    difference = nm.diff(path, fresh)
    costs = "it costs the same: only names of functions and files differ" if difference.same else ""
    raise AssertionError(f"{path.name} is no longer the plan\n{difference}\n{costs}\n{RENEW}")


@pytest.mark.parametrize("name", PLANS)
def test_the_plan_is_that_of_its_file(name, tmp_path):
    check_plan(FOLDER / f"{name}.json", make_plan(name), tmp_path)


def test_every_file_is_of_a_plan_and_they_are_small():
    files = {path.stem: path.stat().st_size for path in FOLDER.glob("*.json")}
    assert files.keys() == PLANS.keys()
    assert max(files.values()) < 2**18
    assert sum(files.values()) < 1.25 * 2**20


def test_files_name_no_private_function_of_the_package():
    """So that renaming a helper of ours changes no file."""
    ours = {path.name for path in pathlib.Path(nm.__file__).parent.rglob("*.py")}
    theirs = {path.name for path in (FOLDER.parents[1] / "examples").rglob("*.py")}
    for path in FOLDER.glob("*.json"):
        plan = json.loads(path.read_text())
        for table in (plan["tensors"], plan["collectives"]):
            file, function = (table["columns"].index(name) for name in ("source", "function"))
            for row in table["rows"]:
                if row[file] in ours - theirs:
                    parts = row[function].split(".")
                    assert not [part for part in parts if re.match("_[a-z]|<", part)], row


def test_another_plan_fails_with_what_it_costs_and_how_to_renew_the_file(tmp_path):
    B, M = nm.dims("batch=8 model=4")
    program = nm.trace(lambda x: nm.sum(x, over=B), x=nm.spec([B, M]))
    mesh, path = nm.Mesh(data=4), tmp_path / "golden" / "sum.json"
    path.parent.mkdir()
    with pytest.raises(AssertionError, match=r"there is no sum\.json: .* `make golden`"):
        check_plan(path, nm.plan(program, mesh, "model:data"), tmp_path)
    nm.plan(program, mesh, "model:data").save(path, lines=False)
    check_plan(path, nm.plan(program, mesh, "model:data"), tmp_path)
    with pytest.raises(AssertionError) as raised:
        check_plan(path, nm.plan(program, mesh, "batch:data"), tmp_path)
    text = str(raised.value)
    assert "wire_bytes   0 B     24 B   new" in text and "make golden" in text
    assert "+ forward AllReduce of program over data: 24 B on the wire" in text
