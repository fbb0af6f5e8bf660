"""What differs between two plans, against counts made by hand."""

# pyright: reportOptionalOperand=false, reportOperatorIssue=false

import json
import textwrap
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import namedmesh as nm
from namedmesh.diff.pairing import pair_items
from namedmesh.records.plan import PlanRecord
from tests.diff.models import LAYOUTS, B, H, M, plan

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def program_of(text, name="step"):
    """The program of a function that is written as text, at its own lines of a file."""
    module = types.ModuleType("written")
    exec(compile(textwrap.dedent(text), "written.py", "exec"), module.__dict__)
    return getattr(module, name)()


def test_totals_are_those_of_the_plans():
    before, after = plan("data"), plan("fsdp")
    totals = nm.diff(before, after).totals
    for name, count in (("bytes", nm.Plan.total_bytes), ("wire_bytes", nm.Plan.total_wire_bytes)):
        assert totals[name] == (count(before), count(after))
        for phase in ("forward", "backward"):
            assert totals[f"{name}.{phase}"] == (count(before, [phase]), count(after, [phase]))
    for kind in ("AllGather", "AllReduce", "ReduceScatter"):
        assert totals[kind] == (before.count(kind), after.count(kind))
    assert totals["flops"] == (before.program.flops(), after.program.flops())
    assert totals["seconds"] == totals["memory"] == (None, None)


def test_fully_sharded_weights_against_copied_ones_by_hand():
    # Copied weights: an AllReduce of each gradient, twice (n - 1)/n of it on the wire. In shards:
    # each weight is gathered once, its gradient scattered, (n - 1)/n each.
    weight = 4 * M.size * H.size
    difference = nm.diff(plan("data"), plan("fsdp"))
    changed = {new.tensor: (old.kind, new.kind) for old, new in difference.collectives.changed}
    assert changed == {name: ("AllReduce", "ReduceScatter") for name in ("d_wi", "d_wo")}
    came = {one.tensor: (one.kind, one.total_wire_bytes) for one in difference.collectives.came}
    assert came == {name: ("AllGather", weight * 3 // 4) for name in ("wi", "wo")}
    assert difference.collectives.went == () and difference.collectives.equal == 1  # the loss
    assert difference.totals["wire_bytes.backward"] == (2 * weight * 3 // 2, 2 * weight * 3 // 4)


def test_a_tensor_that_moved_has_both_places_and_bytes():
    changed = nm.diff(plan("data"), plan("fsdp")).tensors.changed
    moved = {old.tensor: (old, new) for old, new in changed}
    old, new = moved["wi"]
    assert old.place == "float32[model=32, hidden=128]"
    assert new.place == "float32[model=32/data, hidden=128]"
    assert (old.bytes_per_device, new.bytes_per_device) == (4 * 32 * 128, 4 * 8 * 128)
    assert "x" not in moved and "h" not in moved


def test_more_devices_change_bytes_and_no_place():
    difference = nm.diff(plan("data", 4), plan("data", 8))
    (x,) = (pair for pair in difference.tensors.changed if pair[0].tensor == "x")
    assert x[0].place == x[1].place and x[0].bytes_per_device == 2 * x[1].bytes_per_device
    assert "mesh: Mesh(data=4) -> Mesh(data=8)" in str(difference)


EDITED = """
import namedmesh as nm
B, M = nm.dims("batch=8 model=4")
{above}
def step():
    def body(x):
        w = nm.param("w", [M])
        {inside}
        y = nm.sum(x * w, over=M)
        return nm.sum(y * y)
    return nm.trace(body, x=nm.spec([B, M]))
"""


@pytest.mark.parametrize(
    ("above", "inside", "came"),
    [
        ("# a comment\n\n\nother = 3", "pass", []),
        ("", "nm.tanh(x)  # nothing needs it, so it is left out\n", []),
        ("", "x = nm.tanh(x)\n", ["tanh"]),
    ],
)
def test_an_edit_above_changes_nothing_but_what_it_adds(above, inside, came):
    programs = [
        program_of(EDITED.format(above=one, inside=other))
        for one, other in (("", "pass"), (above, inside))
    ]
    plans = [nm.plan(program, nm.Mesh(data=4), "batch:data") for program in programs]
    assert str(plans[0]) != str(plans[1])  # the lines
    difference = nm.diff(*plans)
    assert [one.tensor for one in difference.tensors.came] == came
    assert not difference.tensors.went and not difference.tensors.changed
    assert not difference.collectives
    assert difference.same is (not came)


def test_a_function_or_scope_that_is_renamed_is_matched():
    text = EDITED.format(above="", inside="pass")
    inner = "with nm.scope('s'):\n            y = nm.sum"
    texts = (text, text.replace("body", "forward").replace("y = nm.sum", inner))
    plans = [nm.plan(program_of(one), nm.Mesh(data=4), "batch:data") for one in texts]
    assert nm.diff(*plans).same


def test_one_of_several_equal_ops_that_went_leaves_the_others():
    def stack(layers):
        def body(x):
            for _ in range(layers):
                x = nm.tanh(x) + 1.0
            return x

        return nm.plan(nm.trace(body, x=nm.spec([B, M])), nm.Mesh(data=4), "batch:data")

    difference = nm.diff(stack(5), stack(4))
    assert len(difference.tensors.went) == 2 and not difference.tensors.came
    assert not difference.tensors.changed and difference.tensors.equal == 9


def test_items_of_one_key_pair_up_by_their_neighbours():
    before = ["a", "x", "b", "c", "x", "d"]
    pairs, went, came = pair_items(before, ["c", "x", "d"], [lambda one: one])
    assert went == ["a", "x", "b"] and came == [] and [one for one, _ in pairs] == ["c", "x", "d"]


def test_the_text_is_totals_first_then_the_largest_changes():
    text = str(nm.diff(plan("data"), plan("hidden")))
    lines = text.splitlines()
    assert lines[0] == "step on Mesh(data=4)"
    assert lines[1] == "  layout: 'batch:data' -> 'hidden:data'"
    assert lines[3].split() == ["total", "before", "after", "change"]
    assert "wire_bytes   48.0 KiB  3.0 KiB  -93.8%" in text
    gone = text.index("- backward AllReduce of d_wi")
    assert gone < text.index("+ forward AllReduce of z in network") and "and " in lines[-1]
    everything = nm.diff(plan("data"), plan("hidden")).describe(None)
    assert len(everything.splitlines()) > len(lines) and " more" not in everything


def test_the_json_has_every_change_and_adds_up():
    document = json.loads(json.dumps(nm.diff(plan("data"), plan("fsdp")).to_json()))
    collectives = document["collectives"]
    before = [one["before"] for one in collectives["changed"]] + collectives["went"]
    after = [one["after"] for one in collectives["changed"]] + collectives["came"]
    change = sum(one["wire_bytes"] * one["times"] for one in after) - sum(
        one["wire_bytes"] * one["times"] for one in before
    )
    total = document["totals"]["wire_bytes"]
    assert total["after"] - total["before"] == change and not document["same"]
    assert document["before"]["layout"] == "batch:data"
    assert document["after"]["params"] == "model:data"


def test_files_plans_and_records_compare_alike(tmp_path):
    before, after = plan("data"), plan("fsdp")
    before.save(tmp_path / "a.json")
    after.save(tmp_path / "b.json", lines=False)
    expected = str(nm.diff(before, after))
    assert str(nm.diff(tmp_path / "a.json", str(tmp_path / "b.json"))) == expected
    assert str(nm.diff(nm.load_plan(tmp_path / "a.json"), after)) == expected
    assert nm.diff(tmp_path / "a.json", before).same
    assert nm.diff(tmp_path / "b.json", after).same


def test_artifacts_audits_and_steps_compare_with_plans(tmp_path):
    step = nm.Step(plan("data"))
    other = nm.Step(plan("fsdp"))
    step.artifact.save(tmp_path / "step.nmesh")
    assert nm.diff(tmp_path / "step.nmesh", step.artifact).same
    assert nm.diff(step.plan, step.artifact).same  # though an artifact lists more tensors
    assert nm.diff(step.plan, step).same and nm.diff(step.audit, step).same
    difference = nm.diff(step, other)
    planned = nm.diff(step.plan, other.plan)
    assert difference.totals["AllGather"] == planned.totals["AllGather"] == (0, 2)
    assert difference.tensors.equal == 0 and "tensors:" not in str(difference)
    artifacts = nm.diff(step.artifact, other.artifact)
    assert artifacts.totals["wire_bytes"] == planned.totals["wire_bytes"]
    assert "wi" in {new.tensor for _, new in artifacts.tensors.changed}


def test_reports_of_ahead_of_time_compilation_compare(tmp_path):
    report = nm.aot.compile_for(nm.export(plan("data").program, nm.Mesh(data=1), ""), "cpu:1")
    assert nm.diff(report, report.row()).same
    (tmp_path / "row.json").write_text(json.dumps([report.row()]))
    assert nm.diff(tmp_path / "row.json", report).same
    more = {
        "kind": "AllReduce", "axes": ["data"], "dtype": "float32", "sent_as": "bfloat16",
        "planned": 3, "made": 3, "planned_bytes": 100, "made_bytes": 50,
        "planned_wire_bytes": 70, "made_wire_bytes": 35,
    }  # fmt: skip
    changed = {**report.row(), "collectives": [more], "peak_bytes": report.peak_bytes + 8}
    difference = nm.diff(report, changed)
    assert difference.totals["wire_bytes"] == (0, 35) and difference.totals["AllReduce"] == (0, 3)
    assert difference.totals["memory"] == (report.peak_bytes, report.peak_bytes + 8)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (3, "a int cannot be compared"),
        (None, "a NoneType cannot be compared"),
        ({"model": "x"}, "neither a saved plan nor a report"),
        ({"error": "out of luck"}, "the report of an artifact that did not compile"),
        ("not there.json", "cannot read the plan 'not there.json': No such file"),
        (b"bytes", "a bytes cannot be compared"),
        ("", "expected a path"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_a_fix(value, problem):
    with pytest.raises(nm.NamedMeshError, match=problem) as raised:
        nm.diff(plan("data"), value)
    assert raised.value.fix


names = st.sampled_from(sorted(LAYOUTS))


@settings(max_examples=12, deadline=None)
@given(names, st.sampled_from([1, 2, 4]))
def test_a_plan_is_the_same_as_itself(name, devices):
    one = plan(name, devices)
    difference = nm.diff(one, one)
    assert difference.same and difference.collectives.equal == len(one.collectives)
    assert nm.diff(PlanRecord.of_plan(one), plan(name, devices)).same


@settings(max_examples=20, deadline=None)
@given(names, names, st.sampled_from([2, 4]), st.sampled_from([2, 4]))
def test_changes_add_up_to_the_totals_both_ways(a, b, devices, others):
    before, after = plan(a, devices), plan(b, others)
    for one, other in ((before, after), (after, before)):
        difference = nm.diff(one, other)
        for sort, size, total in (
            (difference.tensors, "bytes_per_device", None),
            (difference.collectives, "total_wire_bytes", "wire_bytes"),
            (difference.collectives, "total_bytes", "bytes"),
        ):
            change = sum(getattr(x, size) for x in sort.came)
            change -= sum(getattr(x, size) for x in sort.went)
            change += sum(getattr(y, size) - getattr(x, size) for x, y in sort.changed)
            if total:
                assert change == difference.totals[total][1] - difference.totals[total][0]
            else:
                rows = [
                    sum(row.bytes_per_device for row in each.tensor_rows) for each in (one, other)
                ]
                assert change == rows[1] - rows[0]


@pytest.mark.parametrize("most", ["x", 1.5, -1])
def test_a_wrong_number_of_changes(most):
    plan = nm.plan(nm.trace(lambda x: nm.exp(x), nm.spec([nm.Dimension("b", 4)])), nm.Mesh(a=2))
    with pytest.raises(nm.NamedMeshError, match="not a number of changes"):
        nm.diff(plan, plan).describe(most)
