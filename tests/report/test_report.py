"""nm.report: what is in the file, and what is refused."""

import json
import re

import pytest

import namedmesh as nm
from namedmesh.audit.hlo import CompiledCollective
from namedmesh.audit.matching import Difference
from namedmesh.records.collective import Collective
from namedmesh.report.page_data import describe_audit
from namedmesh.report.report import SCRIPTS, STYLES, build_document, read_static
from namedmesh.runtime import Audit
from tests.report.models import LAYOUT, MESH, small_plan, small_program
from tests.report.page import Scripts, read_page


def test_the_page_has_the_data_and_nothing_from_elsewhere(tmp_path):
    small_plan().report(tmp_path / "plan.html", target="h200")
    page, (data,) = read_page(tmp_path / "plan.html")
    assert len(page.scripts) == 3, "data, library and our own"
    assert page.addresses == ["data:,"]
    assert not re.search(r"@import|url\((?!#)", "".join(map(read_static, STYLES)))
    assert data["program"] == "train_step"
    lines = [line for file in data["files"] for line in file["lines"]]
    assert any("</script><!--" in line for line in lines), "the source is there as it is written"


def test_the_estimate_is_that_of_cost(tmp_path):
    plan = small_plan()
    cost = nm.cost(plan, "h200")
    nm.report(plan, tmp_path / "plan.html", target="h200")
    _, (data,) = read_page(tmp_path / "plan.html")
    seconds = data["cost"]["ops"]["seconds"]
    totals = [a * b for a, b in zip(seconds, data["cost"]["ops"]["times"], strict=True)]
    assert sum(totals) == pytest.approx(cost.compute_seconds)
    times = data["collectives"]["times"]
    sent = [a * b for a, b in zip(data["cost"]["collectives"], times, strict=False)]
    assert sum(sent) == pytest.approx(cost.collective_seconds)
    names = [data["texts"][data["ops"]["name"][op]] for op in data["cost"]["ops"]["op"]]
    assert names == [one.name for one in cost.ops]
    memory = data["cost"]["memory"]
    assert max(memory["timeline"]["bytes"]) == memory["peak"] == cost.memory.peak_bytes
    assert data["cost"]["capacity"] == cost.hardware.memory_bytes
    for row, alive in zip(memory["alive"], cost.memory.alive, strict=True):
        assert (row["label"], row["bytes"]) == (alive.label, alive.bytes)
        if row["tensor"] >= 0:
            assert data["texts"][data["tensors"]["label"][row["tensor"]]] == alive.label
    assert any(row["tensor"] >= 0 for row in memory["alive"])


def test_an_audit_says_of_every_collective_that_it_was_made(tmp_path):
    plan = small_plan()
    step = nm.compile(small_program(), mesh=MESH, layout=LAYOUT)
    nm.report(plan, tmp_path / "plan.html", audit=step.audit)
    _, (data,) = read_page(tmp_path / "plan.html")
    statuses = [status for status, _ in data["audit"]["statuses"]]
    made = len(plan.collectives)
    assert made and set(statuses[:made]) <= {"made", "merged"}
    assert data["audit"]["exact"] and not data["audit"]["unplanned"]


def test_an_audit_says_what_was_not_made_and_what_was_made_otherwise():
    first, *_, second, third = small_plan("batch:data+tensor").collectives
    other = CompiledCollective("AllReduce", ("data",), 7, "float32", "nm.sum.1", "r", times=9)
    audit = Audit(
        matched=[(first, other)],
        missing=[second],
        differences=[Difference(third, other)],
        unplanned=[other],
    )
    unknown = Collective(
        "AllGather", ("data",), 1, "float32", 4, 1, "x", "y.1", "forward", first.source, 2
    )
    told = describe_audit(audit, [first, second, third, unknown])
    assert [status for status, _ in told["statuses"]] == ["made", "missing", "different", ""]
    assert "7 elements for" in told["statuses"][2][1]
    assert not told["exact"]
    assert told["unplanned"][0]["bytes"] == 28 and told["unplanned"][0]["times"] == 9


def test_two_plans_are_in_one_page(tmp_path):
    other = small_plan("batch:data+tensor")
    nm.report(small_plan(), tmp_path / "plans.html", beside=other)
    _, plans = read_page(tmp_path / "plans.html")
    assert [data["layout"] for data in plans] == [LAYOUT, "batch:data+tensor"]


def test_text_that_looks_like_a_place_in_the_template_stays_as_it_is():
    text = "{{script}} \\1 \\g<0> </script>"
    page = Scripts(build_document("<b> & {{data}}", {"text": text}))
    assert json.loads(page.scripts[0]) == {"text": text}


def test_scripts_share_one_scope_without_a_name_twice():
    pattern = r"^(?:const|let|function|class)\s+(?:\{([^}]*)\}|(\w+))"
    names = []
    for script in SCRIPTS:
        for several, one in re.findall(pattern, read_static(script), re.MULTILINE):
            names += [name.strip() for name in several.split(",")] if several else [one]
    assert len(names) == len(set(names)) > 80


def test_what_is_not_a_plan_or_an_audit_or_a_path_is_refused(tmp_path):
    path = tmp_path / "plan.html"
    with pytest.raises(nm.NamedMeshError, match="is not a plan"):
        nm.report(small_program(), path)  # pyright: ignore[reportArgumentType]
    with pytest.raises(nm.NamedMeshError, match="expected an Audit"):
        nm.report(small_plan(), path, audit="yes")  # pyright: ignore[reportArgumentType]
    with pytest.raises(nm.NamedMeshError, match="'tpu-v33'"):
        nm.report(small_plan(), path, target="tpu-v33")
    with pytest.raises(nm.NamedMeshError, match="expected a path"):
        nm.report(small_plan(), 3)  # pyright: ignore[reportArgumentType]
    assert not path.exists()
    with pytest.raises(nm.NamedMeshError, match="cannot write the report"):
        nm.report(small_plan(), tmp_path / "none" / "plan.html")
