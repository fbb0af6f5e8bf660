"""Code of one of two TPU slices against a plan for both, in the form that its compiler writes."""

import dataclasses

import pytest

import namedmesh as nm
from namedmesh.audit.audit import Audit, audit
from namedmesh.audit.backend_rules import BETWEEN_SLICES
from namedmesh.errors.source import Source
from namedmesh.records.collective import Collective
from tests.audit.hlo.text import module_of

MESH = nm.Mesh(data=4, model=2, slices=2)  # a slice has two devices along both axes
INSIDE = Collective(
    "AllReduce", ("model",), 32, "float32", 128, 1, "y", "einsum.9", "forward",
    Source("stack.py", 11), devices=2,
)  # fmt: skip
ACROSS = Collective(
    "AllReduce", ("data",), 32, "float32", 128, 1, "d_w", "einsum.35", "backward",
    Source("stack.py", 11), devices=4, host_bytes=256, slice_bytes=256,
)  # fmt: skip
SUM = """
  %s = f32[4,8]{1,0} all-reduce(%p), replica_groups={{0,1},{2,3}}, to_apply=%add, \
metadata={op_name="jit(f)/namedmesh/nm.einsum.9/XlaDot"}
"""
SCATTER = """
  %scatter = f32[2,8]{1,0} reduce-scatter(%p), replica_groups={{0,2},{1,3}}, dimensions={0}, \
to_apply=%add
"""
GATHER = """
  %gather = f32[4,8]{1,0} all-gather(%scatter), replica_groups={{0,2},{1,3}}, dimensions={0}
"""
SEND = """
  %token = token[] after-all()
  %send = (f32[2,8]{1,0}, u32[], token[]) send(%scatter, %token), channel_id=5, \
is_host_transfer=true, frontend_attributes={_xla_megascale_transfer_type="ALL_REDUCE"}
"""
RECV = """
  %recv = (f32[2,8]{1,0}, u32[], token[]) recv(%token), channel_id=6, \
is_host_transfer=true, frontend_attributes={_xla_megascale_transfer_type="ALL_REDUCE"}
"""
CODE = SUM + SCATTER + SEND + RECV + GATHER


def audit_of(lines: str, *planned: Collective, mesh: nm.Mesh = MESH) -> Audit:
    return audit(module_of(lines), mesh, planned, backend="tpu")


def test_a_sum_over_slices_is_scattered_sent_received_and_gathered():
    found = audit_of(CODE, INSIDE, ACROSS)
    assert found.exact, str(found)
    assert found.rules == {BETWEEN_SLICES.name: 1}
    assert [(plan.tensor, one.kind) for plan, one in found.matched] == [
        ("y", "AllReduce"),
        ("d_w", "Send"),
    ]


def test_sums_may_share_a_send():
    small = dataclasses.replace(ACROSS, elements=1, bytes=4, tensor="loss", op="sum.11")
    wide = CODE.replace("[4,8]", "[8,8]").replace("[2,8]", "[4,8]")
    inside = dataclasses.replace(INSIDE, elements=64, bytes=256)
    found = audit_of(wide, inside, ACROSS, small)
    assert found.exact, str(found)
    assert [plan.tensor for plan in found.merged] == ["loss"]


@pytest.mark.parametrize(
    "code",
    [
        CODE.replace(RECV, ""),
        CODE.replace(GATHER, ""),
        SUM + GATHER.replace("%scatter", "%p"),
        CODE.replace(SCATTER, "  %scatter = f32[2,8]{1,0} slice(%p), slice={[0:2], [0:8]}\n"),
        CODE.replace("f32[2,8]{1,0}, u32", "f32[1,8]{1,0}, u32"),
        CODE.replace("{{0,2},{1,3}}", "{{0,1},{2,3}}"),
        CODE.replace("ALL_REDUCE", "ALL_GATHER"),
        SUM,
    ],
    ids=[
        "nothing received",
        "not gathered",
        "not sent",
        "not added",
        "too little",
        "axes",
        "not a sum",
        "none",
    ],
)
def test_what_does_less_or_otherwise_is_not_as_planned(code):
    found = audit_of(code, INSIDE, ACROSS)
    assert not found.exact
    assert [plan.tensor for plan in found.missing] == ["d_w"]


def test_more_than_is_planned_is_unplanned():
    found = audit_of(CODE, INSIDE)
    assert [one.kind for one in found.unplanned] == ["ReduceScatter", "AllGather", "Send", "Recv"]
    twice = CODE + SEND.replace("%token = token[] after-all()", "").replace("%send", "%send.2")
    twice += RECV.replace("%recv", "%recv.2")
    assert [one.kind for one in audit_of(twice, INSIDE, ACROSS).unplanned] == ["Send"]


def test_other_collectives_over_slices_are_not_known_to_be_right():
    gather = dataclasses.replace(ACROSS, kind="AllGather")
    assert [plan.kind for plan in audit_of(CODE, INSIDE, gather).missing] == ["AllGather"]


def test_groups_inside_a_slice_are_checked():
    wrong = CODE.replace("{{0,1},{2,3}}", "{{0,3},{1,2}}")
    found = audit_of(wrong, INSIDE, ACROSS)
    assert not found.exact and found.differences
