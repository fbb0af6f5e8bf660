"""A search that is interrupted goes on where it was, in one process or in several."""

import contextlib
import json
import os
import signal

import pytest

import namedmesh as nm
from namedmesh.search import measure
from namedmesh.search import search as searching
from namedmesh.search.search import search
from tests.search.models import trace_step

OPTIONS = {"progress": False, "plans": 60}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> str:
    """The journal of a search that has ended."""
    path = tmp_path_factory.mktemp("finished") / "search.json"
    search(trace_step(), 4, "tpu-v3", processes=1, resume=path, progress=False)
    return path.read_text()


def test_two_processes_find_what_one_finds():
    program = trace_step(layers=2)
    assert search(program, 64, "tpu-v3", processes=2, **OPTIONS) == search(
        program, 64, "tpu-v3", processes=1, **OPTIONS
    )


def test_a_process_that_is_killed_ends_the_search(monkeypatch):
    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(measure, "measure_candidate", die)
    with pytest.raises(nm.NamedMeshError, match="was killed") as error:
        search(trace_step(), 8, "tpu-v3", processes=2, **OPTIONS)
    assert "processes=1" in error.value.fix


def test_an_interrupted_search_goes_on(tmp_path, monkeypatch):
    program, path = trace_step(layers=2), tmp_path / "search.json"
    undisturbed = search(program, 64, "tpu-v3", processes=1, **OPTIONS)

    def interrupt(exploration):
        raise KeyboardInterrupt

    monkeypatch.setattr(searching, "show_progress", lambda *_: contextlib.nullcontext(interrupt))
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
    monkeypatch.setattr(measure, "plan_cheapest", None)
    assert search(program, 8, "tpu-v3", processes=1, resume=path, progress=False) == found


@pytest.mark.parametrize("change", ["program", "devices", "target", "pin"])
def test_the_journal_of_another_search_is_refused(tmp_path, finished, change):
    path = tmp_path / "search.json"
    path.write_text(finished)
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


def trace_move(to):
    """A program of which only the options of an op, or of a parameter, say where things lie."""
    B, S, M = nm.dims("batch=16 seq=16 model=16")

    def move(x):
        w = nm.param("w", [M], whole=[M] if to == "whole" else [])
        return nm.sum(nm.reshard(nm.exp(x), S if to == "seq" else B) * w)

    return nm.trace(move, nm.spec([B, S, M]))


@pytest.mark.parametrize("to", ["seq", "whole"])
def test_the_journal_of_a_program_that_moves_otherwise_is_refused(tmp_path, to):
    path = tmp_path / "search.json"
    search(trace_move("batch"), 4, "tpu-v3", processes=1, resume=path, progress=False)
    again = search(trace_move("batch"), 4, "tpu-v3", processes=1, resume=path, progress=False)
    assert again.front
    with pytest.raises(nm.NamedMeshError, match="belongs to another search"):
        search(trace_move(to), 4, "tpu-v3", processes=1, resume=path, progress=False)


def test_the_journal_of_a_hardware_file_that_has_changed_is_refused(tmp_path):
    path, file = tmp_path / "search.json", tmp_path / "mine.yaml"
    text = (
        "name: mine\nflops: {float32: 2e14}\nvector_flops: 3e13\nmemory_bytes: 80e9\n"
        "memory_bandwidth: 3e12\nnetwork: {kind: host, bandwidth: 50e9}\n"
    )
    file.write_text(text)
    search(trace_step(), 4, file, processes=1, resume=path, progress=False)
    file.write_text(text.replace("3e12", "3e9"))
    with pytest.raises(nm.NamedMeshError, match="belongs to another search"):
        search(trace_step(), 4, file, processes=1, resume=path, progress=False)


@pytest.mark.parametrize(
    "field, value",
    [("seconds", "1"), ("seconds", None), ("seconds", float("nan")), ("memory_bytes", [1])],
)
def test_a_journal_with_wrong_values_is_refused(tmp_path, finished, field, value):
    path, document = tmp_path / "search.json", json.loads(finished)
    next(iter(document["measures"].values()))[field] = value
    path.write_text(json.dumps(document))
    with pytest.raises(nm.NamedMeshError, match=r"cannot read .* as the journal of a search"):
        search(trace_step(), 4, "tpu-v3", resume=path, progress=False)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"measures": {"a": {"b": 1}}}', "[" * 100_000], ids=range(5)
)
def test_what_is_not_a_journal_is_refused(tmp_path, text):
    path = tmp_path / "search.json"
    path.write_text(text)
    with pytest.raises(nm.NamedMeshError, match=r"cannot read .* as the journal of a search"):
        search(trace_step(), 4, "tpu-v3", resume=path, progress=False)
    assert path.read_text() == text


def test_a_journal_of_another_version_is_refused(tmp_path, finished):
    path = tmp_path / "search.json"
    path.write_text(json.dumps({**json.loads(finished), "version": "0.0.0"}))
    with pytest.raises(nm.NamedMeshError, match="another version of namedmesh"):
        search(trace_step(), 4, "tpu-v3", resume=path, progress=False)
