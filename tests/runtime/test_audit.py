"""Holding the collectives of compiled HLO against a plan."""

import dataclasses
import re

import pytest

import namedmesh as nm
from namedmesh.dims.collective import Collective
from namedmesh.dims.source import Source
from namedmesh.hlo import parse_module
from namedmesh.runtime import Audit
from namedmesh.runtime.audit import audit
from tests.hlo.text import module_of

MESH = nm.Mesh(data=2, model=4)
PLANNED = Collective(
    kind="AllReduce",
    axes=("model",),
    elements=32,
    dtype="float32",
    bytes=128,
    times=1,
    tensor="y",
    op="einsum.3",
    phase="forward",
    source=Source("model.py", 3),
)
LINE = """
  %r = f32[4,8]{1,0} all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add, \
metadata={op_name="jit(f)/namedmesh/nm.einsum.3/XlaDot"}
"""


def planned(**changes) -> Collective:
    return dataclasses.replace(PLANNED, **changes)


def audit_of(lines: str, *collectives: Collective) -> Audit:
    """The audit of a module of these lines against planned collectives."""
    return audit(module_of(lines), MESH, collectives)


def test_what_was_planned_and_found_matches():
    result = audit_of(LINE, planned())
    assert result.exact and result.notes == []
    ((plan, one),) = result.matched
    assert plan == PLANNED and one.name == "r" and one.times == 1


@pytest.mark.parametrize(
    "change", [{"axes": ("data",)}, {"elements": 31}, {"kind": "AllToAll"}, {"dtype": "int32"}]
)
def test_anything_else_is_unplanned_and_missing(change):
    result = audit_of(LINE, planned(**change))
    assert [one.op_name for one in result.unplanned] == ["jit(f)/namedmesh/nm.einsum.3/XlaDot"]
    assert len(result.missing) == 1
    with pytest.raises(
        nm.NamedMeshError, match="the compiler made 1 collective that the plan does not have"
    ):
        result.enforce(strict=True)
    with pytest.warns(UserWarning, match=re.escape("AllReduce over model of 32 float32 elements")):
        result.enforce(strict=False)


def test_a_backend_may_reduce_and_slice_or_change_the_precision():
    scatter = audit_of(LINE, planned(kind="ReduceScatter"))
    assert scatter.exact and scatter.notes == [
        "planned ReduceScatter made as AllReduce followed by a slice"
    ]
    half = "  %h = bf16[4,8]{1,0} convert(%p)" + LINE.replace("f32", "bf16").replace("%p", "%h")
    halved = audit_of(half, planned())
    assert halved.exact and halved.notes == ["planned AllReduce of float32 sent as bfloat16"]


def test_metadata_decides_between_equal_collectives():
    two = LINE + "\n" + LINE.replace("einsum.3", "einsum.33").replace("%r", "%s")
    result = audit_of(two, planned(op="einsum.33"), planned(op="einsum.3"))
    assert result.exact
    assert all(f"nm.{plan.op}/" in one.op_name for plan, one in result.matched)


def test_sums_one_after_the_other_may_be_made_as_one():
    """As the TPU compiler does; of different tensors they may not."""
    both = LINE.replace("[2,4]<=[8]", "[1,8]<=[8]")
    result = audit_of(both, planned(), planned(axes=("data",)))
    assert result.exact and result.count("AllReduce") == 1
    assert result.notes == ["2 planned AllReduces of float32, one after the other, made as one"]
    other = audit_of(both, planned(), planned(axes=("data",), op="sum.9"))
    assert len(other.unplanned) == 1 and len(other.missing) == 2


def test_parts_of_one_gradient_may_be_added_up_before_they_are_summed_over_devices():
    """As the TPU compiler does if a weight is used twice; parts of other gradients may not be."""
    part = planned(tensor="d_w", phase="backward")
    other = dataclasses.replace(part, op="take.7")
    result = audit_of(LINE, part, other)
    assert result.exact and result.merged == [other]
    assert result.notes == [
        "planned AllReduces of d_w, which are added up, made as one of their sum"
    ]
    for change in ({"tensor": "d_v"}, {"phase": "forward"}, {"times": 3}, {"elements": 16}):
        assert audit_of(LINE, part, dataclasses.replace(other, **change)).missing
    twice = audit_of(LINE, planned(), planned(op="sum.7"))
    assert twice.exact, "one line of a layer that is called twice"
    elsewhere = planned(op="sum.7", source=Source("model.py", 4))
    assert audit_of(LINE, planned(), elsewhere).missing == [elsewhere]


def test_a_tensor_without_a_collective_goes_before_the_second_of_another():
    """Combined AllReduces have the metadata of one: here of the second part of d_w's gradient."""
    two = (
        LINE.replace("einsum.3", "take.7")
        + "\n"
        + LINE.replace("einsum.3", "take.7").replace("%r", "%s")
    )
    parts = [planned(tensor="d_w", phase="backward", op=op) for op in ("einsum.3", "take.7")]
    result = audit_of(two, *parts, planned(tensor="d_v", phase="backward", op="take.9"))
    assert result.exact and result.merged == parts[:1]


def test_a_gather_may_be_made_as_a_sum_of_pieces():
    gather = audit_of(LINE, planned(kind="AllGather"))
    assert gather.exact and gather.notes == [
        "planned AllGather made as AllReduce of pieces that are zero elsewhere"
    ]
    both = audit_of(LINE, planned(kind="AllGather"), planned())
    assert [one.kind for one in both.missing] == ["AllGather"], (
        "an AllReduce that was planned comes first"
    )


def test_an_unplanned_collective_in_a_loop_is_told_with_how_often_it_runs():
    text = """HloModule m

%body (t: f32[4,8]) -> f32[4,8] {
  %t = f32[4,8]{1,0} parameter(0)
  ROOT %r = f32[4,8]{1,0} all-reduce(%t), replica_groups=[2,4]<=[8], to_apply=%add
}

ENTRY %main (p: f32[4,8]) -> f32[4,8] {
  %p = f32[4,8]{1,0} parameter(0)
  ROOT %w = f32[4,8]{1,0} while(%p), condition=%c, body=%body, \
backend_config={"known_trip_count":{"n":"6"}}
}
"""
    (one,) = audit(parse_module(text), MESH, []).unplanned
    assert one.times == 6
