"""Hosts in what a plan prints, saves and compares."""

import json

import pytest

import namedmesh as nm
from namedmesh.cli.main import main
from namedmesh.diff.conditions import Condition
from tests.diff.models import trace_step

LAYOUT = "batch:data, hidden:model"


def plan_on(mesh: str) -> nm.Plan:
    return nm.plan(trace_step(), nm.Mesh.parse(mesh), LAYOUT)


PLANS = [
    plan_on(f"data=4 model=2 {hosts}") for hosts in ("hosts=2", "slices=2", "hosts=4 slices=2")
]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: str(plan.mesh))
def test_a_saved_plan_keeps_its_hosts_and_their_bytes(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    record = nm.load_plan(tmp_path / "plan.json")
    assert nm.Mesh(None, **record.mesh) == plan.mesh
    assert [(one.host_bytes, one.slice_bytes) for one in record.collectives] == [
        (one.host_bytes, one.slice_bytes) for one in plan.collectives
    ]
    assert nm.diff(plan, tmp_path / "plan.json").same


def test_a_plan_without_hosts_has_no_columns_for_them(tmp_path):
    plan_on("data=4 model=2").save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    assert "host" not in text and "slice" not in text
    assert "leaves" not in str(plan_on("data=4 model=2"))


def test_totals_that_do_not_add_up_are_refused(tmp_path):
    path = tmp_path / "plan.json"
    PLANS[0].save(path)
    document = json.loads(path.read_text())
    document["bytes_leaving_a_host"]["backward"] += 1
    path.write_text(json.dumps(document))
    with pytest.raises(nm.NamedMeshError, match=r"bytes_leaving_a_host\.backward is"):
        nm.load_plan(path)


def test_a_plan_prints_what_leaves_a_host():
    text = PLANS[0].communication
    (gradient,) = [one for one in PLANS[0].collectives if one.tensor == "d_wi"]
    # 32 x 64 floats on 4 x 2 devices: a host sends half of both groups' sums, twice.
    assert gradient.host_bytes == 2 * 2 * 32 * 64 * 4 // 2
    (line,) = [line for line in text.splitlines() if " d_wi " in line]
    assert "leaves a host" in text and "16.0 KiB" in line
    assert "of a host's" in text and "go to other hosts" in text
    assert "leaves a host" in PLANS[0]._repr_html_()


def test_a_build_can_fail_on_bytes_between_hosts():
    inside, across = plan_on("model=2 data=4 hosts=2"), plan_on("data=4 model=2 hosts=2")
    difference = nm.diff(inside, across)
    assert difference.totals["host_bytes"] == (
        inside.total_host_bytes(),
        across.total_host_bytes(),
    )
    assert difference.totals["wire_bytes"][0] == difference.totals["wire_bytes"][1]
    assert across.total_host_bytes() != inside.total_host_bytes()
    less, more = sorted([inside, across], key=lambda plan: plan.total_host_bytes())
    worse = nm.diff(less, more)
    assert Condition.parse("host_bytes > +5%").explain(worse)
    assert Condition.parse("host_bytes > +5%").explain(nm.diff(more, less)) is None
    assert Condition.parse("slice_bytes > 0").explain(worse) is None
    assert "leaves a host" in str(worse)


def test_the_commands_know_hosts(tmp_path, capsys):
    before, after = str(tmp_path / "before.json"), str(tmp_path / "after.json")
    words = ["plan", "tests.diff.models:trace_step", "--layout", LAYOUT, "--communication"]
    assert main([*words, "--mesh", "model=2,data=4,hosts=2", "--save", before]) == 0
    assert main([*words, "--mesh", "data=4,model=2,hosts=2", "--save", after]) == 0
    assert capsys.readouterr().out.count("leaves a host") == 2
    less, more = sorted([before, after], key=lambda path: _host_bytes(path))
    assert main(["diff", less, more, "--fail-if", "host_bytes > +5%"]) == 1
    assert main(["diff", more, less, "--fail-if", "host_bytes > +5%"]) == 0


def _host_bytes(path: str) -> int:
    return sum(one.total_host_bytes for one in nm.load_plan(path).collectives)


def test_an_artifact_and_its_audit_keep_what_crosses(tmp_path):
    plan = PLANS[0]
    artifact = nm.export(trace_step(), plan.mesh, LAYOUT)
    assert nm.diff(artifact, plan).totals["host_bytes"] == (plan.total_host_bytes(),) * 2
    step = nm.compile(trace_step(), mesh=plan.mesh, layout=LAYOUT)
    made, planned = nm.diff(step, plan).totals["host_bytes"]
    assert made == planned == plan.total_host_bytes()
