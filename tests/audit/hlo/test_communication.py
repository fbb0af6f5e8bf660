"""Collectives in the terms of a plan."""

import importlib.util
import pathlib
import re

import ml_dtypes
import numpy as np
import pytest

import namedmesh as nm
from namedmesh.audit.hlo import Instruction, find_collectives, parse_module, parse_type
from namedmesh.audit.hlo.communication import classify
from namedmesh.records.collective import count_wire_bytes
from tests.audit.hlo.text import module_of

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
        ("{{0,1,2,3}}", None),
        ("{{0,1,2,3},{0,1,2,3}}", None),
        ("{{0,4}}", None),
        ("{{0,5},{1,4},{2,7},{3,6}}", None),
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
  %t = (f32[2,2]{1,0}, f32[2,2]{1,0}, f32[2,2]{1,0}, /*index=3*/f32[2,2]{1,0}) all-to-all(%p, %p), \
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


DTYPES = {
    "pred": "bool", "s2": "int2", "s4": "int4", "s8": "int8", "s16": "int16", "s32": "int32",
    "s64": "int64", "u2": "uint2", "u4": "uint4", "u8": "uint8", "u16": "uint16", "u32": "uint32",
    "u64": "uint64", "f8e4m3": "float8_e4m3", "f8e4m3b11fnuz": "float8_e4m3b11fnuz",
    "f8e4m3fn": "float8_e4m3fn", "f8e4m3fnuz": "float8_e4m3fnuz", "f8e5m2": "float8_e5m2",
    "f8e5m2fnuz": "float8_e5m2fnuz", "f8e3m4": "float8_e3m4", "f8e8m0fnu": "float8_e8m0fnu",
    "f4e2m1fn": "float4_e2m1fn", "f16": "float16", "bf16": "bfloat16", "f32": "float32",
    "f64": "float64", "c64": "complex64", "c128": "complex128",
}  # fmt: skip


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_is_seen(name):
    line = f"  %r = {name}[4,8]{{1,0}} all-gather(%p), replica_groups=[2,4]<=[8], dimensions={{0}}"
    assert facts(line) == [("AllGather", ("model",), 32, DTYPES[name])]
    (one,) = find_collectives(module_of(line), MESH)
    assert one.bytes == 32 * max(1, np.dtype(getattr(ml_dtypes, one.dtype, one.dtype)).itemsize)


def test_a_dtype_that_nobody_knows_is_an_error():
    with pytest.raises(nm.NamedMeshError, match="the element type 'f6e3m2fn' is unknown"):
        facts("  %r = f6e3m2fn[4,8]{1,0} all-gather(%p), replica_groups=[2,4]<=[8]")


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("%s = (f32[4,8]{1,0}, u32[], token[]) send(%p, %t), channel_id=2",
         ("Send", None, 32, "float32")),
        ("%s = (bf16[4]{0}, u32[], token[]) recv(%t), channel_id=2", ("Recv", None, 4, "bfloat16")),
        ("%s = ((f32[3]{0}), token[]) infeed(%t)", ("Infeed", None, 3, "float32")),
        ("%s = token[] outfeed(%p, %t)", ("Outfeed", None, 32, "float32")),
        ("%s = f32[4,8]{1,0} collective-broadcast(%p), replica_groups=[2,4]<=[8]",
         ("CollectiveBroadcast", ("model",), 32, "float32")),
        ("%s = f32[4,8]{1,0} collective-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add",
         ("CollectiveReduce", ("model",), 32, "float32")),
        ("%s = f32[4,8]{1,0} ragged-all-to-all(%p, %p, %i, %i, %i, %i), replica_groups=[2,4]<=[8]",
         ("RaggedAllToAll", ("model",), 32, "float32")),
        ('%s = f32[4,8]{1,0} custom-call(%p), custom_call_target="mpi_allreduce"',
         ("CustomCall", None, 32, "float32")),
        ('%s = ((f32[4,8]{1,0}), f32[2]{0}, s32[]) custom-call-start(%p), '
         'custom_call_target="ring"', ("CustomCall", None, 2, "float32")),
        ("%s = ((f32[4,8]{1,0}), f32[4,2]{1,0}, u32[]) reduce-scatter-start(%p), "
         "replica_groups=[2,4]<=[8], dimensions={1}, to_apply=%add",
         ("ReduceScatter", ("model",), 32, "float32")),
        ("%s = ((f32[4,8]{1,0}), f32[4,8]{1,0}, u32[]) all-to-all-start(%p), "
         "replica_groups=[2,4]<=[8], dimensions={0}", ("AllToAll", ("model",), 32, "float32")),
        ("%s = ((f32[4,8]{1,0}), f32[4,8]{1,0}) collective-broadcast-start(%p), "
         "replica_groups=[4,2]<=[2,4]T(1,0)", ("CollectiveBroadcast", ("data",), 32, "float32")),
    ],
)  # fmt: skip
def test_everything_that_communicates_is_seen(line, fact):
    assert facts(f"  {line}") == [fact]


def test_started_collectives_of_several_tensors_count_each():
    lines = """
  %g = ((f32[4,8]{1,0}, bf16[4]{0}), (f32[16,8]{1,0}, bf16[16]{0})) all-gather-start(%p, %q), \
replica_groups=[2,4]<=[8], dimensions={0}
  %h = (f32[16,8]{1,0}, bf16[16]{0}) all-gather-done(%g)
  %r = (f32[4,8]{1,0}, bf16[4]{0}) all-reduce-start(%p, %q), replica_groups=[1,8]<=[8]
  %s = (f32[4,8]{1,0}, bf16[4]{0}) all-reduce-done(%r)
"""
    assert facts(lines) == [
        ("AllGather", ("model",), 128, "float32"),
        ("AllGather", ("model",), 16, "bfloat16"),
        ("AllReduce", ("data", "model"), 32, "float32"),
        ("AllReduce", ("data", "model"), 4, "bfloat16"),
    ]
    assert all(one.combined for one in find_collectives(module_of(lines), MESH))


def test_an_async_start_is_looked_into():
    text = """HloModule m

%wrapped (p: f32[4,8]) -> f32[4,2] {
  %p = f32[4,8]{1,0} parameter(0)
  ROOT %s = f32[4,2]{1,0} reduce-scatter(%p), replica_groups=[2,4]<=[8], dimensions={1}
}

ENTRY %main (p: f32[4,8]) -> f32[4,2] {
  %p = f32[4,8]{1,0} parameter(0)
  %a = ((f32[4,8]{1,0}), f32[4,2]{1,0}, u32[]) async-start(%p), calls=%wrapped
  %b = ((f32[4,8]{1,0}), f32[4,2]{1,0}, u32[]) async-update(%a), calls=%wrapped
  ROOT %d = f32[4,2]{1,0} async-done(%b), calls=%wrapped
}
"""
    (one,) = find_collectives(parse_module(text), MESH)
    assert (one.kind, one.axes, one.elements, one.times) == ("ReduceScatter", ("model",), 32, 1)
    assert not one.open_ended
    with pytest.raises(nm.NamedMeshError, match="'gone', which may communicate, is missing"):
        find_collectives(parse_module(text.replace("calls=%wrapped", "calls=%gone")), MESH)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("%s = f32[4,8] all-scatter(%p)", "the opcode 'all-scatter' is unknown"),
        ("%s = f32[4,8] all-gather-v2(%p)", "the opcode 'all-gather-v2' is unknown"),
        ("%s = f32[4,8] put-start(%p)", "the opcode 'put-start' is unknown"),
        ("%s = f32[4,8] add(%p, %p), replica_groups=[2,4]<=[8]", "'add' has replica_groups"),
        ("%s = f32[4,8] all-gather-start(%p), replica_groups=[2,4]<=[8]",
         "all-gather-start does not have operands and results"),
        ("%s = f32[4,8] collective-permute(%p)", "has no source_target_pairs"),
        ("%s = f32[4,8] fusion(%p), kind=kLoop, calls=%gone", "'gone', which may communicate"),
    ],
)  # fmt: skip
def test_what_may_communicate_and_nobody_knows_is_an_error(line, problem):
    with pytest.raises(nm.NamedMeshError, match=problem):
        facts(f"  {line}")


@pytest.mark.parametrize(
    "target", ["TopK", "lapack_spotrf_ffi", "__onednn$matmul", "__cublas$gemm", "Sharding"]
)
def test_custom_calls_that_work_on_one_device_are_no_communication(target):
    assert facts(f'  %s = f32[4] custom-call(%p), custom_call_target="{target}"') == []


def test_every_opcode_of_xla_is_known():
    """Those of the list that TensorFlow's copy of XLA has in its headers."""
    package = importlib.util.find_spec("tensorflow")
    if package is None or package.origin is None:
        pytest.skip("TensorFlow, which has XLA's headers, is not here")
    header = pathlib.Path(package.origin).parent / "include/xla/hlo/ir/hlo_opcode.h"
    opcodes = re.findall(r'V\(k\w+, "([^"]+)"', header.read_text())
    assert len(opcodes) > 100
    scalar = parse_type("f32[]")
    kinds = {opcode: classify(Instruction("x", opcode, scalar)) for opcode in opcodes}
    assert {opcode for opcode, kind in kinds.items() if kind} == {
        "all-gather", "all-gather-start", "all-reduce", "all-reduce-start", "all-to-all",
        "collective-broadcast", "collective-permute", "collective-permute-start", "custom-call",
        "infeed", "outfeed", "ragged-all-to-all", "recv", "reduce-scatter", "send",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("AllGather", 96),
        ("ReduceScatter", 96),
        ("AllToAll", 96),
        ("AllReduce", 192),
        ("CollectivePermute", 128),
    ],
)
def test_bytes_on_the_wire_are_those_of_the_usual_algorithm(kind, sent):
    """Of a ring of 4 devices and a buffer of 128 bytes: three of four shards, or twice three."""
    assert count_wire_bytes(kind, 128, 4) == sent
    assert count_wire_bytes(kind, 128, 1) == (128 if kind == "CollectivePermute" else 0)
