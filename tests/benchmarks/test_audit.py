"""The benchmark of the audit, in small: every edit is noticed, and nothing else."""

import pytest

from benchmarks.audit import CASES, audit_text, measure
from benchmarks.tampering import TAMPERINGS, Edit, Text, keep_meaning
from namedmesh.errors.errors import NamedMeshError
from tests.audit.compiled_texts import audit_kept, read


def test_every_tampering_is_noticed_and_nothing_else():
    result = measure(["data parallel layers in a loop", "axes in another order"], every=15)
    assert result["false_alarms"] == 0, result["alarmed_at"]
    assert result["tampered"] == result["noticed"] > 50, result["missed"]
    unreadable = {kind for kind, row in result["by_kind"].items() if row["errors"]}
    assert unreadable <= {
        "extra unknown opcode", "extra unknown dtype", "extra local opcode with groups",
        "extra unknown asynchronous opcode", "kind changed",
        "extra all-gather-start",  # its type lacks the operand's
    }  # fmt: skip


@pytest.mark.parametrize("name", ["experts", "permutes", "combined", "double_buffered"])
def test_every_tampering_with_a_module_for_gpus_is_noticed_and_nothing_else(name):
    """Collectives that are started and done, of several tensors, in loops with copies."""
    record = read(name)
    text = Text(record["text"], record["mesh"])
    assert any(site.kind != site.match["opcode"] for site in text.sites)

    def is_noticed(edit: Edit) -> bool:
        try:
            return not audit_kept(record, edit.text).exact
        except NamedMeshError:
            return True

    assert [edit.kind for edit in keep_meaning(text) if is_noticed(edit)] == []
    edits = [edit for tampering in TAMPERINGS for edit in tampering(text)][::17]
    assert [edit.kind for edit in edits if not is_noticed(edit)] == []


@pytest.fixture(scope="module")
def step():
    import namedmesh as nm

    case = CASES["tensor parallel layers in a loop"]
    return nm.compile(case.program(), mesh=case.mesh, layout=case.layout, strict=True)


def test_an_edit_changes_one_thing(step):
    """What the audit objects to is the edit, not the editing."""
    text = Text(step.text, step.artifact.mesh)
    edits = [edit for tampering in TAMPERINGS for edit in tampering(text)]

    def first(kind: str) -> Edit:
        return next(edit for edit in edits if edit.kind == kind)

    (extra,) = audit_text(step, first("extra all-gather").text).unplanned
    assert (extra.kind, extra.name) == ("AllGather", "tamper")
    assert audit_text(step, first("extra send").text).unplanned[0].kind == "Send"
    gone = audit_text(step, first("one taken out").text)
    assert gone.missing and not gone.unplanned and not gone.differences
    looped = audit_text(step, first("one moved into a loop").text)
    assert {one.compiled.times for one in looped.differences} <= {7, 35}
    counted = audit_text(step, first("trip count changed").text)
    assert not counted.unplanned and (counted.differences or counted.missing)
    edited = [edit for edit in edits if edit.kind.startswith("limit of a loop changed")]
    assert edited and not any(audit_text(step, edit.text).exact for edit in edited)
    assert audit_text(step, first("dtype changed").text).differences
    assert audit_text(step, first("devices changed").text).differences
