"""What memory is made of, read from compiled modules and from compilers' messages."""

import dataclasses
import re

import pytest

import namedmesh as nm
from namedmesh.aot.memory import (
    Memory,
    attribute_memory,
    find_levers,
    largest_buffers,
    read_exhaustion,
)
from namedmesh.audit.hlo import count_cycles, parse_module, parse_type
from namedmesh.audit.hlo.trip_counts import scheduled_runs
from namedmesh.runtime import Report
from tests.aot.refusals import BRIEF, FULL

B, M, H, L = nm.dims("batch=16 model=8 hidden=32 layer=4")


@pytest.fixture(scope="module")
def artifact():
    def train(x):
        w = nm.param("w", [M, H])
        slot = nm.state("slot", [M, H], of=w)
        nm.assign(slot, slot + nm.grad(nm.sum(nm.square(nm.einsum([x, w], [B, H]))), w))
        nm.assign(w, w - slot * 0.1)

    return nm.export(
        nm.trace(train, x=nm.spec([B, M])), nm.Mesh(data=2, model=4), "batch:data, hidden:model"
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("f32[]", 4),
        ("f32[3,5]{1,0}", 60),
        ("pred[7]", 7),
        ("f32[10,100]{1,0:T(8,128)}", 16 * 128 * 4),
        ("f32[10,100]{0,1:T(8,128)}", 128 * 104 * 4),
        ("bf16[64,100]{1,0:T(8,128)(2,1)}", 64 * 128 * 2),
        ("f32[300]{0:T(256)}", 512 * 4),
        ("s32[]{:T(256)}", 256 * 4),
        ("f32[8,128]{1,0:T(8,128)S(1)}", 0),  # in a core's own fast memory
        ("(f32[2]{0}, /*index=1*/s32[3]{0})", 20),
    ],
)
def test_bytes_of_a_shape_have_its_tiles_padding(text, size):
    assert parse_type(text).bytes == size


MODULE = """HloModule jit_step, is_scheduled=true, \
entry_computation_layout={(f32[8,8]{1,0:T(8,128)}, f32[8,8]{1,0:T(8,128)}, \
f32[8,8]{1,0:T(8,128)})->(f32[8,8]{1,0:T(8,128)}, f32[8,8]{1,0:T(8,128)})}

%fused (p: f32[64,1024]) -> f32[64,1024] {
  %p = f32[64,1024]{1,0} parameter(0)
  ROOT %inner = f32[64,1024]{1,0} negate(%p)
}

%cond (t: (s32[], f32[64,128])) -> pred[] {
  %t = (s32[], f32[64,128]) parameter(0)
  %limit = s32[]{:T(128)} constant(4)
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

%body (t: (s32[], f32[64,128])) -> (s32[], f32[64,128]) {
  %t = (s32[], f32[64,128]) parameter(0)
  %h = f32[64,128]{1,0:T(8,128)} fusion(%g), kind=kLoop, calls=%fused, \
metadata={op_name="jit(f)/namedmesh/nm.tanh.7/Tanh"}, \
backend_config={"window_config":{"estimated_cycles":"100"}}
  ROOT %r = (s32[], f32[64,128]) tuple(%i, %h)
}

ENTRY %main (x: f32[8,8], w: f32[8,8], slot: f32[8,8]) -> (f32[8,8], f32[8,8]) {
  %x = f32[8,8]{1,0:T(8,128)} parameter(0)
  %loop = (s32[], f32[64,128]) while(%t), condition=%cond, body=%body
  %big = f32[64,128]{1,0:T(8,128)} fusion(%x), kind=kLoop, calls=%fused, \
metadata={op_name="jit(f)/namedmesh/nm.einsum.3/Dot"}, \
backend_config={"window_config":{"estimated_cycles":"50"}}
  %other = f32[64,128]{1,0:T(8,128)} copy(%x), \
metadata={op_name="jit(f)/namedmesh/nm.einsum.3/XlaDot"}
  %same = f32[16,128]{1,0:T(8,128)} copy(%x), metadata={op_name="arguments[2]"}
  ROOT %out = (f32[8,8], f32[8,8]) tuple(%big, %big)
}
"""


def test_loops_count_as_often_as_they_iteration():
    module = parse_module(MODULE)
    assert scheduled_runs(module) == {"main": 1, "cond": 4, "body": 4}
    assert count_cycles(module) == 50 + 4 * 100
    known = MODULE.replace(
        "body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"9"}}'
    )
    assert count_cycles(parse_module(known)) == 50 + 9 * 100


def test_the_largest_buffers_have_names(artifact):
    found = [
        (one.bytes, one.shape, re.sub(r":\d+$", "", one.origin), one.count)
        for one in largest_buffers(artifact, parse_module(MODULE), 5)
    ]
    assert found == [
        (
            32768,
            "f32[64,128]",
            "einsum float32[batch=16/data, hidden=32/model] at test_memory.py",
            2,
        ),
        (32768, "f32[64,128]", "tanh.7", 1),
        (8192, "f32[16,128]", "slot", 1),
        (4096, "f32[8,8]", "slot", 1),
        (4096, "f32[8,8]", "w", 1),
    ]


def test_memory_adds_up_to_what_the_compiler_says(artifact):
    report = Report(
        1.0,
        argument_bytes=3 * 4096,
        output_bytes=2 * 4096 + 8,
        temporary_bytes=5000,
        aliased_bytes=8192,
        code_bytes=7,
    )
    memory = attribute_memory(artifact, report, parse_module(MODULE))
    assert dataclasses.asdict(memory) == {
        "weights": 4096,
        "state": 4096,
        "inputs": 4096,
        "results": 8,
        "activations": 0,
        "temporaries": 5000,
        "code": 7,
    }
    assert memory.total == report.peak_bytes + 7


EARLY = "RESOURCE_EXHAUSTED: Compilation failure: Aborting compilation early \
because it's unlikely to have enough device memory. \
Requires 40.00G, has 15.48G available."


def test_messages_of_missing_memory_are_read(artifact):
    brief, full, early = (read_exhaustion(text, artifact) for text in (BRIEF, FULL, EARLY))
    assert brief and full and early
    assert (brief.needed, brief.available) == (int(22.3 * 2**30), int(15.48 * 2**30))
    assert full.needed == 20 * 2**30
    assert [(one.bytes, one.shape, one.origin) for one in full.buffers] == [
        (8 * 2**30, "f32[16384,131072]", "einsum.5"),
        (int(512.5 * 2**20), "f32[8,8]", "slot"),
    ]
    assert early.needed == 40 * 2**30


@pytest.mark.parametrize(
    "text", ["INVALID_ARGUMENT: no", "RESOURCE_EXHAUSTED: quota", "UNIMPLEMENTED: custom call foo"]
)
def test_other_messages_are_not(artifact, text):
    assert read_exhaustion(text, artifact) is None


def test_levers_follow_from_what_is_large(artifact):
    def first(**parts: int) -> list[str]:
        empty = dict.fromkeys(
            ("weights", "state", "inputs", "results", "activations", "temporaries", "code"), 0
        )
        return [text.split(":")[0] for text in find_levers(artifact, Memory(**empty | parts))]

    assert first(temporaries=10**6) == ["remat", "dtype", "group size"]
    assert first(activations=10**6, temporaries=10**3)[0] == "remat"
    assert first(weights=256, state=256)[0] == "layout"
    assert "optimizer" in first(weights=10**6, state=2 * 10**6)


def test_levers_name_the_variable_that_could_be_split(artifact):
    (text,) = (
        one
        for one in find_levers(artifact, Memory(256, 256, 0, 0, 0, 0, 0))
        if one.startswith("layout")
    )
    assert text.endswith("w is float32[model=8, hidden=32/model], not split over data")
