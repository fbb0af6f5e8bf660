"""What backends may do otherwise than planned, and what they may not."""

from dataclasses import replace

import pytest

from namedmesh.audit.audit import audit
from namedmesh.audit.backend_rules import (
    ADDED,
    AXES_IN_ONE,
    EQUAL_ONCE,
    RULES,
    SCATTERED,
    TILED_SCATTER,
    UNROLLED,
    ZEROS,
    find_rules,
)
from namedmesh.audit.hlo.module import Module, parse_module
from namedmesh.dims.hop import Hop
from namedmesh.runtime import Audit
from tests.audit.cases import LINE, MESH, UNNAMED, audit_of, planned
from tests.audit.hlo.text import module_of

AS_SUM = "ReduceScatter made as AllReduce and slice"
HALF = "  %h = bf16[4,8]{1,0} convert(%p)" + LINE.replace("f32", "bf16").replace("%p", "%h")
GATHER = LINE.replace("all-reduce", "all-gather").replace("to_apply=%add", "dimensions={0}")
GATHER = GATHER.replace("f32[4,8]", "bf16[4,8]").replace("%p", "%q")
ALL_AXES = LINE.replace("[2,4]<=[8]", "[1,8]<=[8]")


def test_every_rule_says_what_it_is():
    rules = {rule: None for name in ("cpu", "gpu", "tpu") for rule in find_rules(name, "default")}
    assert {*RULES} <= {*rules}
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
    assert audit_of(LINE, plan, backend="gpu").exact, "where it concatenates small tensors"
    for other in (audit_of(LINE, plan, backend="another"), audit_of(UNNAMED, plan)):
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


def test_tpu_sends_the_same_rows_once():
    ring = "{0,1},{1,2},{2,3},{3,0},{4,5},{5,6},{6,7},{7,4}"
    line = LINE.replace("all-reduce", "collective-permute").replace("to_apply=%add, ", "")
    line = line.replace("replica_groups=[2,4]<=[8]", f"source_target_pairs={{{ring}}}")
    hop = Hop(-1, 0, 3, cyclic=True, axes=("model",))
    plan = planned(kind="CollectivePermute", hop=hop)
    again = replace(plan, op="conv_window.9")
    result = audit_of(line, plan, again, backend="tpu")
    assert result.exact and result.rules == {EQUAL_ONCE.name: 1}
    assert not audit_of(line, plan, again, backend="cpu").exact
    other = replace(again, tensor="another")
    assert [one.tensor for one in audit_of(line, plan, other, backend="tpu").missing] == ["another"]
    back = replace(again, hop=replace(hop, by=1))
    assert len(audit_of(line, plan, back, backend="tpu").missing) == 1, "the other way"


def test_tpu_passes_on_operands_of_products_in_bfloat16():
    ring = "{0,1},{1,2},{2,3},{3,0},{4,5},{5,6},{6,7},{7,4}"
    line = HALF.replace("all-reduce", "collective-permute").replace("to_apply=%add, ", "")
    line = line.replace("replica_groups=[2,4]<=[8]", f"source_target_pairs={{{ring}}}")
    hop = Hop(-1, 0, 3, cyclic=True, axes=("model",))
    plan = planned(kind="CollectivePermute", hop=hop)
    result = audit_of(line, plan, backend="tpu")
    assert result.exact and result.rules == {"float32 sent as bfloat16": 1}
    assert not audit_of(line, plan, backend="tpu", precision="highest").exact
    other = line.replace("{3,0}", "{3,1}")
    assert not audit_of(other, plan, backend="tpu").exact, "to another device"


def test_tpu_makes_small_gathers_as_sums_of_shards():
    plan = planned(kind="AllGather")
    result = audit_of(LINE, plan, backend="tpu")
    assert result.exact and result.notes == [
        "AllGather of small shards made as AllReduce, zero elsewhere"
    ]
    assert not audit_of(UNNAMED, plan, backend="tpu").exact, "in an unrelated AllReduce"
    assert not audit_of(LINE.replace("einsum.3", "sum.4"), plan, backend="tpu").exact
    assert not audit_of(LINE, plan, backend="cpu").exact
    large = LINE.replace("f32[4,8]", "f32[4,80000]")
    assert not audit_of(
        large, planned(kind="AllGather", elements=320_000, bytes=1_280_000), backend="tpu"
    ).exact
    named = planned(kind="AllGather", op="replicate.4", producer="einsum.3")
    assert audit_of(LINE, named, backend="tpu").exact, "after the op that makes the tensor"
    both = audit_of(LINE, plan, planned(), backend="tpu")
    assert [one.kind for one in both.missing] == ["AllGather"], "a planned AllReduce comes first"


def test_small_gathers_and_sums_of_loops_may_be_made_alike():
    """Copies of a loop's body send both as sums, some of them in one, named after either."""
    gather = planned(kind="AllGather", times=2)
    scatter = planned(kind="ReduceScatter", op="sum.4", times=2, reduction="add")
    other = LINE.replace("einsum.3", "sum.4")
    made = [LINE, *(other.replace("%r", f"%r{i}") for i in range(4))]
    result = audit_of("".join(made[:4]), gather, scatter, backend="tpu")
    assert result.exact
    assert result.rules == {UNROLLED.name: 2, AS_SUM: 1, ZEROS.name: 1}
    for lines in (made[:3], made):  # too few and too many
        assert not audit_of("".join(lines), gather, scatter, backend="tpu").exact
    assert not audit_of("".join(made[:4]), gather, scatter, backend="cpu").exact


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


TILED = """
%all-reduce-scatter.1 (p: bf16[8192,16]) -> bf16[2080,16] {
  %p = bf16[8192,16]{1,0} parameter(0)
  %z = bf16[] constant(0)
  %w = bf16[8320,16]{1,0} pad(%p, %z), padding=0_128x0_0
  ROOT %a = bf16[8320,16]{1,0} all-reduce(%w), replica_groups=[2,4]<=[8], to_apply=%add
}
ENTRY %main (x: bf16[8192,16]) -> bf16[2080,16] {
  %x = bf16[8192,16]{1,0} parameter(0)
  %f = bf16[2080,16]{1,0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1, \
metadata={op_name="nm.einsum.3/x"}
  %s = bf16[ROWS,16]{1,0} slice(%f), slice={[0:ROWS], [0:16]}
  ROOT %c = bf16[ROWS,16]{1,0} collective-permute(%s), source_target_pairs=PAIRS
}
"""


def tiled(rows: int = 96, pairs: str = "{{0,1},{1,2},{2,3},{4,5},{5,6},{6,7}}") -> Module:
    """What TPU makes of a ReduceScatter of 8,192 rows over four devices."""
    text = TILED.replace("GROUPS", "{{0,1,2,3},{4,5,6,7}}").replace("ROWS", str(rows))
    return parse_module("HloModule tiled\n" + text.replace("PAIRS", pairs))


def test_tpu_scatters_whole_tiles_and_sends_the_rest_on():
    plan = planned(kind="ReduceScatter", elements=8192 * 16, dtype="bfloat16", bytes=2 * 8192 * 16)
    result = audit(tiled(), MESH, [plan], backend="tpu")
    assert result.exact and result.rules == {TILED_SCATTER.name: 1}
    assert [one.kind for one in result.helpers] == ["CollectivePermute"]
    wire = 2 * (8320 * 16 * 3 // 4 + 96 * 16)
    assert result.wire_bytes == wire, "what completes it is sent too"
    for other in (
        audit(tiled(), MESH, [plan], backend="gpu"),
        audit(tiled(rows=200), MESH, [plan], backend="tpu"),
        audit(tiled(pairs="{{0,4},{1,5},{2,6},{3,7}}"), MESH, [plan], backend="tpu"),
        audit(tiled(), MESH, [replace(plan, op="sum.9")], backend="tpu"),
        audit(tiled(), MESH, [replace(plan, elements=7800 * 16, bytes=0)], backend="tpu"),
    ):
        assert not other.exact


def test_a_gather_may_be_named_after_what_makes_its_tensor():
    gather = planned(kind="AllGather", op="einsum.9", producer="einsum.3")
    line = GATHER.replace("bf16", "f32").replace("%q", "%p")
    for backend in ("cpu", "gpu", "tpu"):
        assert audit_of(line, gather, backend=backend).exact
    assert not audit_of(line, replace(gather, producer="einsum.4"), backend="cpu").exact
    assert not audit_of(line, replace(gather, producer="cast.1"), backend="tpu").exact
    assert not audit_of(line, replace(gather, producer=""), backend="tpu").exact


def test_what_never_changes_in_a_loop_may_be_made_before_it():
    plan = planned(times=6, times_outside=2)
    once = replace(plan, times=2, times_outside=0)
    for backend in ("cpu", "gpu", "tpu"):
        assert audit_of(LINE, replace(plan, times_outside=1), backend=backend).exact
        assert not audit_of(LINE, plan, backend=backend).exact, "made once, planned twice"
        assert not audit_of(LINE, once, backend=backend).exact
        assert not audit_of(LINE, planned(times=6), backend=backend).exact


@pytest.mark.parametrize("backend", ["cpu", "gpu", "tpu"])
def test_an_unplanned_collective_is_unplanned_everywhere(backend):
    for line in (LINE, UNNAMED, GATHER):
        assert len(audit_of(line, backend=backend).unplanned) == 1
    assert MESH.devices == 8


JOINED = """HloModule m

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %z = f32[] add(%x, %y)
}

%joined (a: f32[2], b: f32[3], c: f32[2]) -> f32[7] {
  %a = f32[2]{0} parameter(0)
  %b = f32[3]{0} parameter(1)
  %c = f32[2]{0} parameter(2)
  ROOT %j = f32[7]{0} concatenate(%a, %b, %c), dimensions={0}
}

ENTRY %main (p: f32[2], q: f32[3]) -> f32[7] {
  %p = f32[2]{0} parameter(0)
  %q = f32[3]{0} parameter(1)
  %f = f32[7]{0} fusion(%p, %q, %p), kind=kLoop, calls=%joined
  %s = f32[7]{0} all-reduce-start(%f), replica_groups=[2,4]<=[8], to_apply=%add
  ROOT %d = f32[7]{0} all-reduce-done(%s)
}
"""


def test_gpus_concatenate_small_tensors():
    def check(*sizes: int, text: str = JOINED, backend: str = "gpu") -> Audit:
        plans = [
            planned(op=f"sum.{i}", elements=size, bytes=4 * size, reduction="add")
            for i, size in enumerate(sizes)
        ]
        return audit(parse_module(text), MESH, plans, backend=backend)

    found = check(2, 2, 3)
    assert found.exact and found.wire_bytes == sum(2 * 4 * size * 3 // 4 for size in (2, 3, 2))
    assert found.rules == {"small tensors concatenated into one AllReduce": 1}
    assert check(7).exact, "what is planned as one tensor stays one"
    for sizes in ((2, 3), (2, 2, 2), (2, 5), (3, 2, 1), (2, 2, 3, 4)):
        assert not check(*sizes).exact, sizes
    assert not check(2, 2, 3, backend="cpu").exact
    assert not check(2, 2, 3, text=JOINED.replace(" add(", " maximum(")).exact


NAMELESS = """HloModule m

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %z = f32[] add(%x, %y)
}

ENTRY %main (a: f32[7], b: f32[7]) -> f32[7] {
  %a = f32[7]{0} parameter(0)
  %b = f32[7]{0} parameter(1)
  %s = f32[7]{0} add(%a, %b), metadata={op_name="jit(f)/namedmesh/nm.cotangent.5/AddN"}
  ROOT %r = f32[7]{0} all-reduce(%s), replica_groups=[2,4]<=[8], to_apply=%add
}
"""


def test_gpu_adds_up_the_terms_of_a_sum_first():
    def term(op, **facts):
        return planned(**{"op": op, "tensor": "d_w", "dtype": "bfloat16", "bytes": 64, **facts})

    first, second = planned().op, "scatteradd.9"
    both = audit_of(LINE, term(first), term(second), backend="gpu")
    assert both.exact and both.rules == {ADDED.name: 1} and len(both.merged) == 1
    for plans in (
        [term(first)],  # one of bfloat16 is half of the bytes
        [term(first), term(second, tensor="d_v")],
        [term(first), term(second, elements=64, bytes=128)],
        [term("sum.7"), term(second)],  # of other ops
    ):
        assert not audit_of(LINE, *plans, backend="gpu").exact
    assert not audit_of(LINE, term(first), term(second), backend="tpu").exact


def test_gpu_adds_up_terms_whose_ops_the_code_does_not_name():
    """The sum has the name of what adds the terms, as that of a tied embedding's gradients."""

    def check(count, text=NAMELESS, ops=("cotangent.5",)):
        facts = {"dtype": "bfloat16", "elements": 7, "bytes": 14, "tensor": "d_w"}
        plans = [planned(op=f"einsum.{i}", reduction="add", **facts) for i in range(count)]
        return audit(parse_module(text), MESH, plans, backend="gpu", ops=ops)

    assert check(2).exact and check(2).rules == {ADDED.name: 1}
    assert not check(2, ops=()).exact  # the program has no such op
    for found in (check(1), check(3), check(2, NAMELESS.replace(" add(%a, %b)", " negate(%a)"))):
        assert not found.exact


def test_a_sum_is_scattered_in_the_order_of_some_dimensions_shards():
    plan = planned(axes=("data", "model"), devices=8)
    scatter = ALL_AXES.replace("f32[4,8]{1,0} all-reduce", "f32[4,1]{1,0} reduce-scatter")
    scatter = scatter.replace("to_apply", "dimensions={1}, to_apply")
    other = scatter.replace("[1,8]<=[8]", "[1,8]<=[2,4]T(1,0)")
    of_mesh, reversed_ = ("data", "model"), ("model", "data")

    def audited(lines, *orders):
        module = module_of(lines)
        return audit(module, MESH, [plan], backend="gpu", orders=orders)

    result = audited(scatter)
    assert result.exact and result.rules == {SCATTERED.name: 1}, result
    assert audited(scatter, of_mesh, reversed_).exact and audited(other, of_mesh, reversed_).exact
    assert not audited(other).exact, "no dimension is sharded so"
    assert audited(other, reversed_).exact and not audited(scatter, reversed_).exact
    # What is gathered again must be in the order in which it was scattered.
    gather = "  %g = f32[4,8]{1,0} all-gather(%r), replica_groups=[1,8]<=[8], dimensions={1}"
    assert audited(f"{scatter}\n{gather}", of_mesh, reversed_).exact
    assert not audited(f"{other}\n{gather}", of_mesh, reversed_).exact
