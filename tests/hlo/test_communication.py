"""Collectives in the terms of a plan."""

import pytest

import namedmesh as nm
from namedmesh.hlo import find_collectives
from tests.hlo.text import module_of

MESH = nm.Mesh(data=2, model=4)


def facts(lines: str) -> list[tuple]:
    """Kind, axes, elements and dtype of each collective."""
    collectives = find_collectives(module_of(lines), MESH)
    return [(one.kind, one.axes, one.elements, one.dtype) for one in collectives]


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", ("model",)),
        ("{{0,4},{1,5},{2,6},{3,7}}", ("data",)),
        ("{{0,1,2,3,4,5,6,7}}", ("data", "model")),
        ("{}", ("data", "model")),
        ("{{0},{1},{2},{3},{4},{5},{6},{7}}", ()),
        ("{{0,1},{2,3},{4,5},{6,7}}", None),
        ("{{0,1,2},{3,4,5,6,7}}", None),
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
    line = f"  %r = f32[4,8]{{1,0}} all-reduce(%p), replica_groups={groups}, to_apply=%add"
    assert facts(line) == [("AllReduce", axes, 32, "float32")]


def test_every_kind_counts_its_larger_side():
    lines = """
  %g = f32[16,8]{1,0} all-gather(%p), replica_groups=[2,4]<=[8], dimensions={0}
  %s = f32[4,2]{1,0} reduce-scatter(%p), replica_groups=[2,4]<=[8], dimensions={1}, to_apply=%add
  %t = (f32[2,2]{1,0}, f32[2,2]{1,0}, f32[2,2]{1,0}, /*index=3*/f32[2,2]{1,0}) all-to-all(%a, %b), \
replica_groups=[2,4]<=[8]
  %c = f32[4,8]{1,0} collective-permute(%p), \
source_target_pairs={{0,4},{4,0},{1,5},{5,1},{2,6},{6,2},{3,7},{7,3}}
  %r = (f32[4,8]{1,0}, bf16[4]{0}) all-reduce(%p, %q), replica_groups=[2,4]<=[8], to_apply=%add
  %x = f32[4,8]{1,0} add(%p, %c), metadata={op_name="all-reduce(%p)"}
"""
    assert facts(lines) == [
        ("AllGather", ("model",), 128, "float32"),
        ("ReduceScatter", ("model",), 32, "float32"),
        ("AllToAll", ("model",), 16, "float32"),
        ("CollectivePermute", ("data",), 32, "float32"),
        ("AllReduce", ("model",), 32, "float32"),
        ("AllReduce", ("model",), 4, "bfloat16"),
    ]


def test_what_starts_a_collective_counts_and_what_ends_it_does_not():
    lines = """
  %g = (f32[4,8]{1,0}, f32[16,8]{1,0}) all-gather-start(%p), \
replica_groups=[2,4]<=[8], dimensions={0}
  %h = f32[16,8]{1,0} all-gather-done(%g)
  %r = f32[4,8]{1,0} all-reduce-start(%p), replica_groups=[1,8]<=[8], to_apply=%add
  %s = f32[4,8]{1,0} all-reduce-done(%r)
  %c = (bf16[4]{0}, bf16[4]{0}, u32[], u32[]) collective-permute-start(%q), \
source_target_pairs={{0,1},{1,0}}
  %d = bf16[4]{0} collective-permute-done(%c)
"""
    assert facts(lines) == [
        ("AllGather", ("model",), 128, "float32"),
        ("AllReduce", ("data", "model"), 32, "float32"),
        ("CollectivePermute", ("model",), 4, "bfloat16"),
    ]


def test_a_collective_has_its_op_and_its_name():
    line = (
        "  %all-reduce.5 = f32[4,8]{1,0} all-reduce(%p), replica_groups=[2,4]<=[8], "
        'to_apply=%add, metadata={op_name="jit(f)/namedmesh/nm.einsum.3/XlaDot" stack_frame_id=7}'
    )
    (one,) = find_collectives(module_of(line), MESH)
    assert one.op_name == "jit(f)/namedmesh/nm.einsum.3/XlaDot"
    assert (one.name, one.times) == ("all-reduce.5", 1)
