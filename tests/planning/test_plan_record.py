"""Saved plans: what is written, what is read back, and what is refused."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import namedmesh as nm
from namedmesh.records import plan as plan_record
from tests.diff.models import PLANS, plan

PLAN = PLANS["data"]


@pytest.fixture
def saved(tmp_path):
    """A saved plan, and its document."""
    path = tmp_path / "plan.json"
    PLAN.save(path)
    return path, json.loads(path.read_text())


def test_a_plan_comes_back_with_all_that_is_compared(saved):
    record = nm.load_plan(saved[0])
    assert (record.program, record.mesh, record.layout) == ("step", {"data": 4}, "batch:data")
    assert record.flops == PLAN.program.flops()
    assert [
        (one.kind, one.axes, one.tensor, one.total_bytes, one.total_wire_bytes, one.phase)
        for one in record.collectives
    ] == [
        (one.kind, one.axes, one.tensor, one.total_bytes, one.total_wire_bytes, one.phase)
        for one in PLAN.collectives
    ]
    rows = sorted((row.tensor, row.place, row.bytes_per_device) for row in PLAN.tensor_rows)
    assert rows == sorted((one.tensor, one.place, one.bytes_per_device) for one in record.tensors)
    scopes = {one.tensor: (one.scope, one.function) for one in record.tensors}
    assert scopes["h"] == ("network", "step") and scopes["wi"] == ("", "step")


def test_the_file_has_a_line_for_each_row_and_none_with_a_number_unless_asked(tmp_path):
    PLAN.save(tmp_path / "with.json")
    PLAN.save(tmp_path / "without.json", lines=False)
    numbered, plain = ((tmp_path / f"{name}.json").read_text() for name in ("with", "without"))
    assert "models.py:" in numbered and "models.py:" not in plain and '"models.py"' in plain
    rows = len(json.loads(numbered)["tensors"]["rows"]) + len(PLAN.collectives)
    assert len(numbered.splitlines()) == rows + len(json.loads(numbered)) + 4
    again = tmp_path / "again.json"
    plan("data").save(again)
    assert again.read_text() == numbered  # the same plan, the same text


def test_columns_and_fields_of_later_versions_are_left_out(saved):
    path, document = saved
    document["later"] = {"more": 1}
    document["tensors"]["columns"].append("colour")
    for row in document["tensors"]["rows"]:
        row.append("red")
    path.write_text(json.dumps(document))
    assert nm.diff(path, PLAN).same


def change(document, *path, value):
    """Changes one value of a document."""
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = value


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("format",), "other", "is not a saved plan"),
        (("version",), 2, "has version 2 of namedmesh-plan; this namedmesh reads version 1"),
        (("mesh",), [4], r"mesh is \[4\], expected an object"),
        (("mesh",), {"data": 0}, "mesh axis data has size 0"),
        (("mesh",), {"a b": 2}, "'a b' is not an identifier"),
        (("layout",), None, "layout is null, expected text"),
        (("flops",), -1, "flops is -1, expected a non-negative number"),
        (("tensors",), 3, "tensors is 3, expected an object"),
        (("tensors", "columns"), ["tensor"], "tensors has no column place"),
        (("tensors", "rows", 0), [], r"tensors\[0\] is not a list of 9 cells"),
        (("tensors", "rows", 0, 2), "many", r"tensors\[0\].bytes_per_device is \"many\", expected"),
        (("tensors", "rows", 0, 3), float("nan"), "expected a non-negative number"),
        (("tensors", "rows", 0, 8), 10**9, "more than 4,194,304 of them"),
        (("collectives", "rows", 0, 0), "sideways", "expected one of forward, backward"),
        (("collectives", "rows", 0, 7), 123, "as its collectives add up to"),
        (("bytes_per_device", "update"), 9, "bytes_per_device.update is 9, expected 0"),
        (("cost",), {"seconds": 1}, "cost.memory is missing"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_a_fix(saved, path, value, problem):
    file, document = saved
    change(document, *path, value=value)
    file.write_text(json.dumps(document))
    with pytest.raises(nm.NamedMeshError, match=problem) as raised:
        nm.load_plan(file)
    assert "write it again" in raised.value.fix and "plan.json" in raised.value.problem


def test_every_problem_of_a_file_is_named(saved):
    file, document = saved
    for key in ("program", "layout", "params", "flops"):
        del document[key]
    file.write_text(json.dumps(document))
    with pytest.raises(nm.NamedMeshError) as raised:
        nm.load_plan(file)
    assert len(raised.value.details) == 4


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b"3", b"[" * 100_000])
def test_what_is_not_a_plan_is_refused(tmp_path, data):
    path = tmp_path / "plan.json"
    path.write_bytes(data)
    with pytest.raises(nm.NamedMeshError, match="is not a saved plan"):
        nm.load_plan(path)


def test_folders_missing_files_and_files_too_large_are_refused(tmp_path, monkeypatch):
    with pytest.raises(nm.NamedMeshError, match="Is a directory"):
        nm.load_plan(tmp_path)
    with pytest.raises(nm.NamedMeshError, match="No such file"):
        nm.load_plan(tmp_path / "none.json")
    PLAN.save(tmp_path / "plan.json")
    monkeypatch.setattr(plan_record, "LARGEST_FILE", 100)
    with pytest.raises(nm.NamedMeshError, match="more than 100"):
        nm.load_plan(tmp_path / "plan.json")
    with pytest.raises(nm.NamedMeshError, match="expected a path"):
        nm.load_plan(3)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_file_with_any_value_changed_is_read_or_refused_in_words(data):
    document = json.loads(plan_record.write_plan(PLAN.to_json()))
    place = document
    while True:
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(keys))
        inner = place[key]
        if not isinstance(inner, (dict, list)) or not inner or data.draw(st.integers(0, 9)) == 0:
            break
        place = inner
    values = st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.just([]), st.just({}))
    place[key] = data.draw(values)
    try:
        record = plan_record.read_plan(json.dumps(document), "plan.json")
    except nm.NamedMeshError as error:
        assert error.fix
    else:
        assert nm.diff(record, record).same
