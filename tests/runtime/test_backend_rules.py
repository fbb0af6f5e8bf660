"""What backends may do otherwise than planned, and what they may not."""

import pytest

from namedmesh.runtime.backend_rules import AXES_IN_ONE, RULES, SUM_IN_ONE, find_rules
from tests.runtime.test_audit import LINE, MESH, UNNAMED, audit_of, planned

HALF = "  %h = bf16[4,8]{1,0} convert(%p)" + LINE.replace("f32", "bf16").replace("%p", "%h")
GATHER = LINE.replace("all-reduce", "all-gather").replace("to_apply=%add", "dimensions={0}")
GATHER = GATHER.replace("f32[4,8]", "bf16[4,8]")
ALL_AXES = LINE.replace("[2,4]<=[8]", "[1,8]<=[8]")


def test_every_rule_says_what_it_is():
    rules = (*RULES, AXES_IN_ONE, SUM_IN_ONE)
    assert len({rule.name for rule in rules}) == len(rules)
    for rule in rules:
        assert {*rule.backends} <= {"cpu", "gpu", "tpu"} and rule.backends
        assert all((rule.condition, rule.bound, rule.bytes, rule.evidence))
    assert find_rules("another", "default") == ()


def test_cpu_reduces_and_slices():
    plan = planned(kind="ReduceScatter")
    result = audit_of(LINE, plan)
    assert result.exact
    assert result.notes == ["ReduceScatter made as AllReduce and slice"]
    for other in (audit_of(LINE, plan, backend="gpu"), audit_of(UNNAMED, plan)):
        assert not other.exact, "on another backend, or of who knows which op"


def test_cpu_sends_bfloat16_as_float32():
    plan = planned(dtype="bfloat16", bytes=64)
    result = audit_of(LINE, plan)
    assert result.exact and result.rules == {"bfloat16 sent as float32": 1}
    both = audit_of(LINE, planned(dtype="bfloat16", bytes=64, kind="ReduceScatter"))
    assert both.exact and len(both.rules) == 2, "and one rule after the other"
    for backend in ("gpu", "tpu"):
        assert audit_of(LINE, plan, backend=backend).differences
    assert audit_of(HALF, planned()).differences, "not the other way round"
    assert audit_of(LINE, planned(dtype="float16", bytes=64)).differences, "float16 stays"


def test_tpu_sends_what_matrix_products_read_as_bfloat16():
    plan = planned(kind="AllGather")
    result = audit_of(GATHER, plan, backend="tpu")
    assert result.exact and result.rules == {"float32 sent as bfloat16": 1}
    assert audit_of(GATHER, plan, backend="tpu", precision="highest").differences
    assert audit_of(GATHER, plan, backend="cpu").differences
    assert audit_of(HALF, planned(), backend="tpu").differences, "sums keep their precision"


def test_tpu_makes_small_gathers_as_sums_of_pieces():
    plan = planned(kind="AllGather")
    result = audit_of(LINE, plan, backend="tpu")
    assert result.exact and result.notes == [
        "small AllGather made as AllReduce of pieces that are zero elsewhere"
    ]
    assert not audit_of(UNNAMED, plan, backend="tpu").exact, "in an unrelated AllReduce"
    assert not audit_of(LINE.replace("einsum.3", "sum.4"), plan, backend="tpu").exact
    assert not audit_of(LINE, plan, backend="cpu").exact
    large = LINE.replace("f32[4,8]", "f32[4,800]")
    assert not audit_of(
        large, planned(kind="AllGather", elements=3200, bytes=12800), backend="tpu"
    ).exact
    both = audit_of(LINE, plan, planned(), backend="tpu")
    assert [one.kind for one in both.missing] == ["AllGather"], "a planned AllReduce comes first"


def test_tpu_sums_over_one_axis_after_the_other_at_once():
    parts = (planned(), planned(axes=("data",), devices=2))
    result = audit_of(ALL_AXES, *parts, backend="tpu")
    assert result.exact and result.count("AllReduce") == 1
    assert result.rules == {AXES_IN_ONE.name: 1}
    assert not audit_of(ALL_AXES, *parts, backend="cpu").exact
    other = audit_of(ALL_AXES, parts[0], planned(axes=("data",), op="sum.9"), backend="tpu")
    assert not other.exact, "of different ops"
    twice = audit_of(ALL_AXES, planned(), planned(), backend="tpu")
    assert not twice.exact, "over the same axis"


def test_tpu_sums_the_parts_of_a_gradient_before_the_devices():
    part = planned(tensor="d_w", phase="backward")
    other = planned(tensor="d_w", phase="backward", op="take.7")
    result = audit_of(LINE, part, other, backend="tpu")
    assert result.exact and result.merged == [other]
    assert result.notes == ["AllReduces of a gradient's parts made as one of their sum"]
    assert audit_of(LINE, part, other, backend="cpu").missing == [other]
    for change in (
        {"tensor": "d_v"},
        {"phase": "forward"},
        {"times": 3},
        {"elements": 16, "bytes": 64},
        {"axes": ("data",)},
        {"dtype": "int32"},
    ):
        changed = planned(**{"tensor": "d_w", "phase": "backward", "op": "take.7", **change})
        assert audit_of(LINE, part, changed, backend="tpu").missing == [changed]


@pytest.mark.parametrize("backend", ["cpu", "gpu", "tpu"])
def test_an_unplanned_collective_is_unplanned_everywhere(backend):
    for line in (LINE, UNNAMED, GATHER):
        assert len(audit_of(line, backend=backend).unplanned) == 1
    assert MESH.devices == 8
