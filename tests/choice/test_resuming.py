"""A search that is interrupted goes on where it was, in one process or in several."""

import json

import pytest

import namedmesh as nm
from namedmesh.choice import searching
from namedmesh.choice.searching import search
from tests.choice.models import trace_step

OPTIONS = {"progress": False, "plans": 60}


def test_two_processes_find_what_one_finds():
    program = trace_step(layers=2)
    assert search(program, 64, "tpu-v3", processes=2, **OPTIONS) == search(
        program, 64, "tpu-v3", processes=1, **OPTIONS
    )


def test_an_interrupted_search_goes_on(tmp_path, monkeypatch):
    program, path = trace_step(layers=2), tmp_path / "search.json"
    undisturbed = search(program, 64, "tpu-v3", processes=1, **OPTIONS)
    explore = searching.explore

    def interrupted(exploration, candidates, measure_all, report):
        def report_once(exploration):
            raise KeyboardInterrupt

        explore(exploration, candidates, measure_all, report_once)

    monkeypatch.setattr(searching, "explore", interrupted)
    with pytest.raises(KeyboardInterrupt):
        search(program, 64, "tpu-v3", processes=2, resume=path, **OPTIONS)
    monkeypatch.undo()
    before = json.loads(path.read_text())["measures"]
    assert len(before) == 16
    found = search(program, 64, "tpu-v3", processes=1, resume=path, **OPTIONS)
    assert found == undisturbed
    after = json.loads(path.read_text())["measures"]
    assert {key: after[key] for key in before} == before and len(after) == 60


def test_a_finished_journal_answers_at_once(tmp_path, monkeypatch):
    program, path = trace_step(), tmp_path / "search.json"
    found = search(program, 8, "tpu-v3", processes=1, resume=path, progress=False)
    monkeypatch.setattr("namedmesh.choice.measure.plan_step", None)
    assert search(program, 8, "tpu-v3", processes=1, resume=path, progress=False) == found


@pytest.mark.parametrize("change", ["program", "devices", "target", "pin"])
def test_the_journal_of_another_search_is_refused(tmp_path, change):
    path = tmp_path / "search.json"
    search(trace_step(), 4, "tpu-v3", processes=1, resume=path, progress=False)
    program = trace_step(layers=2) if change == "program" else trace_step()
    with pytest.raises(nm.NamedMeshError, match="belongs to another search") as error:
        search(
            program,
            8 if change == "devices" else 4,
            "h200" if change == "target" else "tpu-v3",
            pin="batch:data" if change == "pin" else "",
            processes=1,
            resume=path,
            progress=False,
        )
    assert "name another file" in error.value.fix


@pytest.mark.parametrize("text", ["", "[]", "{", '{"measures": {"a": {"b": 1}}}'])
def test_what_is_not_a_journal_is_refused(tmp_path, text):
    path = tmp_path / "search.json"
    path.write_text(text)
    with pytest.raises(nm.NamedMeshError, match=r"cannot read .* as the journal of a search"):
        search(trace_step(), 4, "tpu-v3", resume=path, progress=False)
    assert path.read_text() == text


def test_a_journal_of_another_version_is_refused(tmp_path):
    path = tmp_path / "search.json"
    search(trace_step(), 4, "tpu-v3", processes=1, resume=path, progress=False)
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": "0.0.0"}))
    with pytest.raises(nm.NamedMeshError, match="another version of namedmesh"):
        search(trace_step(), 4, "tpu-v3", resume=path, progress=False)
