"""Reading collectives out of HLO text, and holding them against a plan."""

import re

import pytest

import namedmesh as nm
from namedmesh.hlo.collectives import collectives
from namedmesh.runtime.audit import audit

MESH = nm.Mesh(data=2, model=4)
ADD = 'to_apply=%add, metadata={op_name="jit(f)/namedmesh/nm.einsum.3/XlaDot"}'


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", ("model",)),
        ("{{0,4},{1,5},{2,6},{3,7}}", ("data",)),
        ("{{0,1,2,3,4,5,6,7}}", ("data", "model")),
        ("{{0,1},{2,3},{4,5},{6,7}}", None),
        ("[2,4]<=[8]", ("model",)),
        ("[4,2]<=[2,4]T(1,0)", ("data",)),
        ("[1,8]<=[8]", ("data", "model")),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", ("model",)),
        ("mesh['axis_0'=8,'axis_1'=1] {'axis_0'}", ("data", "model")),
        ("mesh['axis_0'=4,'axis_1'=1,'axis_2'=2], device_ids=([2,4]T(1,0)) {'axis_2'}", ("data",)),
        ("mesh['axis_0'=8] {'axis_0':(1)2}", ("data",)),
        ("mesh['axis_0'=8] {'axis_0':(2)4}", ("model",)),
    ],
)
def test_replica_groups_become_axes(groups, axes):
    text = f"  %p = f32[4,8]{{1,0}} parameter(0)\n  %r = f32[4,8]{{1,0}} all-reduce(%p), replica_groups={groups}, {ADD}"
    (found,) = collectives(text, MESH)
    assert (found.kind, found.axes, found.elements, found.dtype) == (
        "AllReduce",
        axes,
        32,
        "float32",
    )


def test_every_kind_counts_its_larger_side():
    text = """
  %p = f32[2,8]{1,0} parameter(0)
  %q = bf16[4]{0} parameter(1)
  %g = f32[8,8]{1,0} all-gather(%p), replica_groups=[2,4]<=[8], dimensions={0}
  %s = f32[2,2]{1,0} reduce-scatter(%p), replica_groups=[2,4]<=[8], dimensions={1}, to_apply=%add
  %t = (f32[2,2]{1,0}, f32[2,2]{1,0}, f32[2,2]{1,0}, /*index=3*/f32[2,2]{1,0}) all-to-all(%a, %b), replica_groups=[2,4]<=[8]
  %c = f32[2,8]{1,0} collective-permute(%p), source_target_pairs={{0,4},{4,0},{1,5},{5,1},{2,6},{6,2},{3,7},{7,3}}
  ROOT %r = (f32[2,8]{1,0}, bf16[4]{0}) all-reduce(%p, %q), replica_groups=[2,4]<=[8], to_apply=%add
  %x = f32[2,8]{1,0} add(%p, %c), metadata={op_name="all-reduce(%p)"}
"""
    found = [(one.kind, one.axes, one.elements, one.dtype) for one in collectives(text, MESH)]
    assert found == [
        ("AllGather", ("model",), 64, "float32"),
        ("ReduceScatter", ("model",), 16, "float32"),
        ("AllToAll", ("model",), 16, "float32"),
        ("CollectivePermute", ("data",), 16, "float32"),
        ("AllReduce", ("model",), 16, "float32"),
        ("AllReduce", ("model",), 4, "bfloat16"),
    ]


def planned(**changes):
    base = {
        "kind": "AllReduce",
        "axes": ["model"],
        "elements": 32,
        "dtype": "float32",
        "op": "einsum.3",
        "tensor": "y",
    }
    return base | {"times": 1, "phase": "forward", "source": "model.py:3"} | changes


LINE = f"  %p = f32[4,8]{{1,0}} parameter(0)\n  %r = f32[4,8]{{1,0}} all-reduce(%p), replica_groups=[2,4]<=[8], {ADD}"


def test_what_was_planned_and_found_matches():
    result = audit(LINE, MESH, [planned()])
    assert result.exact and result.notes == []


@pytest.mark.parametrize(
    "change", [{"axes": ["data"]}, {"elements": 31}, {"kind": "AllToAll"}, {"dtype": "int32"}]
)
def test_anything_else_is_unplanned_and_missing(change):
    result = audit(LINE, MESH, [planned(**change)])
    assert [one.op for one in result.unplanned] == ["jit(f)/namedmesh/nm.einsum.3/XlaDot"]
    assert len(result.missing) == 1
    with pytest.raises(
        nm.NamedMeshError, match="the compiler made 1 collective that the plan does not have"
    ):
        result.enforce(strict=True)
    with pytest.warns(UserWarning, match=re.escape("AllReduce over model of 32 float32 elements")):
        result.enforce(strict=False)


def test_a_backend_may_reduce_and_slice_or_change_the_precision():
    scatter = audit(LINE, MESH, [planned(kind="ReduceScatter")])
    assert scatter.exact and scatter.notes == [
        "planned ReduceScatter made as AllReduce followed by a slice"
    ]
    halved = audit(LINE.replace("f32", "bf16"), MESH, [planned()])
    assert halved.exact and halved.notes == ["planned AllReduce of float32 sent as bfloat16"]


def test_metadata_decides_between_equal_collectives():
    two = LINE + "\n" + LINE.replace("einsum.3", "einsum.33").replace("%r", "%s")
    result = audit(two, MESH, [planned(op="einsum.33"), planned(op="einsum.3")])
    assert all(f"nm.{plan['op']}/" in found.op for plan, found in result.matched) and result.exact


def test_sums_one_after_the_other_may_be_made_as_one():
    """As the TPU compiler does; of different tensors they may not."""
    both = LINE.replace("[2,4]<=[8]", "[1,8]<=[8]")
    result = audit(both, MESH, [planned(), planned(axes=["data"])])
    assert result.exact and result.count("AllReduce") == 1
    assert result.notes == ["2 planned AllReduces of float32, one after the other, made as one"]
    other = audit(both, MESH, [planned(), planned(axes=["data"], op="sum.9")])
    assert len(other.unplanned) == 1 and len(other.missing) == 2


def test_parts_of_one_gradient_may_be_added_up_before_they_are_summed_over_devices():
    """As the TPU compiler does where a weight is used twice; parts of different gradients may not be."""
    part = planned(tensor="d_w", phase="backward")
    result = audit(LINE, MESH, [part, {**part, "op": "take.7"}])
    assert result.exact and result.merged == [{**part, "op": "take.7"}]
    assert result.notes == [
        "planned AllReduces of d_w, which are added up, made as one of their sum"
    ]
    for other in ({"tensor": "d_v"}, {"phase": "forward"}, {"times": 3}, {"elements": 16}):
        assert audit(LINE, MESH, [part, {**part, "op": "take.7", **other}]).missing
    assert audit(LINE, MESH, [planned(), planned(op="sum.7")]).exact, (
        "one line of a layer that is called twice"
    )
    assert audit(LINE, MESH, [planned(), planned(op="sum.7", source="model.py:4")]).missing


def test_a_tensor_without_a_collective_goes_before_the_second_of_another():
    """Combined AllReduces have the metadata of one: here of the second part of d_w's gradient."""
    two = (
        LINE.replace("einsum.3", "take.7")
        + "\n"
        + LINE.replace("einsum.3", "take.7").replace("%r", "%s")
    )
    parts = [planned(tensor="d_w", phase="backward", op=op) for op in ("einsum.3", "take.7")]
    result = audit(two, MESH, [*parts, planned(tensor="d_v", phase="backward", op="take.9")])
    assert result.exact and result.merged == parts[:1]


def test_a_gather_may_be_made_as_a_sum_of_pieces():
    gather = audit(LINE, MESH, [planned(kind="AllGather")])
    assert gather.exact and gather.notes == [
        "planned AllGather made as AllReduce of pieces that are zero elsewhere"
    ]
    both = audit(LINE, MESH, [planned(kind="AllGather"), planned()])
    assert [one["kind"] for one in both.missing] == ["AllGather"], (
        "an AllReduce that was planned comes first"
    )
