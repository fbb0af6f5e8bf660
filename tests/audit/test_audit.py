"""Planned collectives against those of a compiled module."""

import gc
import re
import time

import pytest

import namedmesh as nm
from namedmesh.audit.audit import audit
from namedmesh.audit.hlo import parse_module
from tests.audit.cases import LINE, MESH, PLANNED, UNNAMED, audit_of, planned
from tests.audit.hlo.text import module_of

SWAP = "{{1,2},{2,1},{5,6},{6,5}}"  # the order of two axes of two devices each


def looped(line: str, iterations: str = "6", condition: str = "") -> str:
    """A module that runs a line in a loop."""
    config = f', backend_config={{"known_trip_count":{{"n":"{iterations}"}}}}' if iterations else ""
    return f"""HloModule m

%condition (t: f32[4,8]) -> pred[] {{
  %t = f32[4,8]{{1,0}} parameter(0)
{condition}
  ROOT %go = pred[] constant(true)
}}

%body (t: f32[4,8]) -> f32[4,8] {{
  %p = f32[4,8]{{1,0}} parameter(0)
{line.replace("  %r", "  ROOT %r")}
}}

ENTRY %main (p: f32[4,8]) -> f32[4,8] {{
  %p = f32[4,8]{{1,0}} parameter(0)
  ROOT %w = f32[4,8]{{1,0}} while(%p), condition=%condition, body=%body{config}
}}
"""


def test_what_was_planned_and_made_matches():
    result = audit_of(LINE, planned())
    assert result.exact and result.notes == [] and result.by_shape == []
    ((plan, one),) = result.matched
    assert plan == PLANNED and one.name == "r" and one.times == 1
    assert str(result) == "audit: 1 as planned, 0 unplanned, 0 not made"


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"axes": ("data",)}, "over model for data"),
        ({"elements": 31, "bytes": 124}, "of 32 elements for 31 elements"),
        ({"dtype": "int32"}, "in float32 for int32"),
        ({"dtype": "bfloat16", "bytes": 64}, "in float32 for bfloat16"),
        ({"times": 60}, "run 1 for 60"),
    ],
)
@pytest.mark.parametrize("backend", ["gpu", "tpu", "other"])
def test_what_an_op_makes_otherwise_is_a_difference(change, difference, backend):
    result = audit_of(LINE, planned(**change), backend=backend)
    assert not result.exact and not result.unplanned and not result.missing
    assert [str(one) for one in result.differences] == [f"AllReduce of y (einsum.3): {difference}"]
    with pytest.raises(
        nm.NamedMeshError, match="the compiler made 1 collective otherwise than planned"
    ):
        result.enforce(strict=True)


def test_another_kind_is_unplanned_and_missing():
    result = audit_of(LINE, planned(kind="AllToAll"))
    assert [one.op_name for one in result.unplanned] == ["jit(f)/namedmesh/nm.einsum.3/XlaDot"]
    assert [plan.kind for plan in result.missing] == ["AllToAll"]
    with pytest.warns(UserWarning, match=re.escape("AllReduce over model of 32 float32 elements")):
        result.enforce(strict=False)


def test_strict_names_everything_that_is_wrong():
    text = LINE + LINE.replace("%r", "%s").replace("einsum.3", "einsum.9")
    result = audit_of(text, planned(times=5), planned(op="sum.7", tensor="z", axes=("data",)))
    with pytest.raises(nm.NamedMeshError) as raised:
        result.enforce(strict=True)
    assert str(raised.value).splitlines()[:4] == [
        "the compiler made 1 collective that the plan does not have, and did not make 1 collective "
        "that the plan has, and made 1 collective otherwise than planned",
        "  unplanned AllReduce over model of 32 float32 elements, from nm.einsum.9/XlaDot",
        "  not made AllReduce over data of z, 32 float32 elements (sum.7 at model.py:3)",
        "  different AllReduce of y (einsum.3): run 1 for 5",
    ]


def test_strict_raises_for_what_was_not_made():
    result = audit_of("", planned())
    with pytest.raises(
        nm.NamedMeshError, match="the compiler did not make 1 collective that the plan has"
    ):
        result.enforce(strict=True)
    with pytest.warns(UserWarning, match="not made AllReduce over model of y"):
        result.enforce(strict=False)


def test_a_collective_in_a_loop_runs_as_often_as_the_loop():
    module = parse_module(looped(LINE, "60"))
    once = audit(module, MESH, [planned()], backend="cpu")
    assert [str(one) for one in once.differences] == ["AllReduce of y (einsum.3): run 60 for 1"]
    assert audit(module, MESH, [planned(times=60)], backend="cpu").exact


def test_a_loop_of_unknown_length_matches_one_that_is_planned_as_such():
    """Even where its condition has a limit: it may stop before."""
    module = parse_module(looped(LINE, "", "  %limit = s32[] constant(1)"))
    result = audit(module, MESH, [planned(open_ended=True)], backend="cpu")
    assert result.exact
    assert result.notes == ["1 in loops of unknown length, which the plan counts by the iteration"]
    (difference,) = audit(module, MESH, [planned()], backend="cpu").differences
    assert str(difference) == "AllReduce of y (einsum.3): run 1 per iteration for 1"


def test_the_compiler_may_know_the_length_of_a_loop_that_the_plan_does_not():
    known = parse_module(looped(LINE, "6"))
    assert audit(known, MESH, [planned(open_ended=True)], backend="cpu").exact
    assert audit(known, MESH, [planned(open_ended=True, times=3)], backend="cpu").exact
    assert not audit(known, MESH, [planned(open_ended=True, times=4)], backend="cpu").exact
    never = parse_module(looped(LINE, "0"))
    assert audit(never, MESH, [planned(open_ended=True)], backend="cpu").missing


def test_metadata_decides_between_equal_collectives():
    two = LINE + "\n" + LINE.replace("einsum.3", "einsum.33").replace("%r", "%s")
    result = audit_of(two, planned(op="einsum.33"), planned(op="einsum.3"))
    assert result.exact
    assert all(f"nm.{plan.op}/" in one.op_name for plan, one in result.matched)


def test_combined_collectives_name_every_op():
    line = """
  %r = (f32[4,8]{1,0}, f32[4,8]{1,0}) all-reduce(%p, %p), replica_groups=[2,4]<=[8], \
to_apply=%add, metadata={op_name="jit(f)/namedmesh/(nm.einsum.9/XlaDot:nm.sum.7/Sum)"}
"""
    result = audit_of(line, planned(op="sum.7"), planned(op="einsum.9"))
    assert result.exact and result.by_shape == []


def test_a_combined_collective_does_not_take_the_match_of_one_that_is_alone():
    lines = """
  %w = f32[2]{0} slice(%p), slice={[0:2]}
  %r = (f32[4,8]{1,0}, f32[2]{0}) all-reduce(%p, %w), replica_groups=[2,4]<=[8], \
to_apply=%add, metadata={op_name="jit(f)/namedmesh/(nm.sum.7/Sum_1:nm.einsum.6/Sum)"}
  %s = f32[2]{0} all-reduce(%w), replica_groups=[2,4]<=[8], \
to_apply=%add, metadata={op_name="jit(f)/namedmesh/nm.sum.7/Sum_2"}
"""
    small = {"elements": 2, "bytes": 8}
    plans = [
        planned(op="sum.7"),
        planned(op="einsum.6", kind="ReduceScatter", **small),
        planned(op="sum.7", **small),
    ]
    assert audit_of(lines, *plans).exact


def test_variables_are_initialised_by_ops_with_names_of_their_own():
    line = LINE.replace("nm.einsum.3/XlaDot", "nm.decoder/block/w/einsum.3/XlaDot")
    assert audit_of(line, planned(op="decoder/block/w/einsum.3")).by_shape == []
    assert not audit_of(line, planned(op="einsum.3")).exact


def test_a_match_by_shape_alone_says_so():
    result = audit_of(UNNAMED, planned())
    assert result.exact and result.by_shape == result.matched
    assert result.notes == ["1 matched by shape alone: 1 AllReduce"]
    assert "1 matched by shape alone" in str(result)


@pytest.mark.parametrize(
    "change",
    [
        {"axes": ("data",)},
        {"kind": "AllGather"},
        {"kind": "ReduceScatter"},
        {"dtype": "int32"},
        {"dtype": "bfloat16", "bytes": 64},
        {"elements": 16, "bytes": 64},
        {"bytes": 64},
        {"times": 2},
    ],
)
def test_by_shape_alone_everything_else_must_agree(change):
    result = audit_of(UNNAMED, planned(**change))
    assert len(result.unplanned) == 1 and len(result.missing) == 1


def test_metadata_of_another_op_speaks_against_a_match():
    """A planned collective that is never made is no free pass for one of equal shape."""
    result = audit_of(LINE.replace("einsum.3", "take.8"), planned())
    assert len(result.unplanned) == 1 and result.missing == [planned()]


def test_what_moves_goes_before_the_name_of_another_op_of_the_program():
    """TPUs name a gather after an op that was merged with the one that reads it."""
    gather = {"kind": "AllGather", "order": ("model",)}
    line = LINE.replace("all-reduce", "all-gather").replace("to_apply=%add", "dimensions={0}")
    lines = line + line.replace("%r", "%s").replace("einsum.3", "einsum.5")
    plans = [planned(**gather), planned(op="einsum.9", **gather)]
    for names in (("einsum.9", "einsum.9"), ("einsum.9", "einsum.3"), ("cast.7", "einsum.3")):
        text = lines.replace("einsum.3", names[0]).replace("einsum.5", names[1])
        result = audit(module_of(text), MESH, plans, backend="tpu", ops=["cast.7"])
        assert result.exact and len(result.matched) == 2, names
    assert result.notes == ["1 matched by shape alone: 1 AllGather"]
    unknown = audit(module_of(text), MESH, plans, backend="tpu")
    assert len(unknown.unplanned) == 1, "cast.7 is not an op of the program then"


@pytest.mark.parametrize(
    "change",
    [
        ("f32[4,8]", "f32[4,9]"),
        ("f32[4,8]", "f16[4,8]"),
        ("[2,4]<=[8]", "[4,2]<=[2,4]T(1,0)"),
        ("[2,4]<=[8]", "{{1,0,2,3},{4,5,6,7}}"),
        ("all-gather(", "all-to-all("),
    ],
)
def test_under_another_name_everything_else_must_agree(change):
    line = LINE.replace("all-reduce", "all-gather").replace("einsum.3", "einsum.9")
    plans = [planned(kind="AllGather", order=("model",)), planned(op="einsum.9", axes=("data",))]
    assert audit_of(line, *plans).missing == plans[1:]
    other = audit_of(line.replace(*change), *plans)
    assert plans[0] in other.missing and len(other.unplanned) == 1


def test_a_form_that_a_backend_may_make_matches_under_another_name():
    line = LINE.replace("all-reduce(%p", "all-gather(%q").replace("f32[4,8]", "bf16[4,8]")
    plan = planned(kind="AllGather", order=("model",))
    found = audit(
        module_of(line.replace("einsum.3", "cast.7")), MESH, [plan], backend="tpu", ops=["cast.7"]
    )
    assert found.exact and found.rules == {"float32 sent as bfloat16": 1}


def test_one_compiled_collective_matches_one_planned():
    assert audit_of(LINE, planned(), planned(op="sum.5")).missing == [planned(op="sum.5")]
    assert len(audit_of(LINE + LINE.replace("%r", "%s"), planned()).unplanned) == 1


def test_a_permutation_must_be_a_new_order_of_the_planned_axes():
    mesh = nm.Mesh(a=2, b=2, c=2)
    line = (
        "  %r = f32[4,8]{1,0} collective-permute(%p), source_target_pairs=PAIRS, "
        'metadata={op_name="nm.reshard.3/x"}'
    )

    def check(pairs: str, order: str, receivers: str) -> bool:
        plan = planned(
            kind="CollectivePermute",
            axes=tuple(sorted(order)),
            order=tuple(order),
            receivers=tuple(receivers),
            op="reshard.3",
            devices=2 ** len(order),
        )
        module = module_of(line.replace("PAIRS", pairs))
        return audit(module, mesh, [plan], backend="cpu").exact

    assert check(SWAP, "bc", "cb") and check(SWAP, "abc", "acb")
    assert check("{{0,0},{1,2},{2,1},{3,3},{4,4},{5,6},{6,5},{7,7}}", "bc", "cb")
    assert not check(SWAP, "ab", "ba"), "along other axes"
    assert not check(SWAP, "abc", "cab"), "another order of the same axes"
    assert not check("{{0,1},{1,0},{2,3},{3,2}}", "bc", "cb"), "an exchange along one axis"
    assert not check("{{1,2},{2,1}}", "bc", "cb"), "half of the devices"
    assert not check("{{1,2},{2,1},{5,6},{6,9}}", "bc", "cb"), "a device that is not there"
    there, back = ("{{1,2},{2,4},{4,1},{3,6},{6,5},{5,3}}", "{{2,1},{4,2},{1,4},{6,3},{5,6},{3,5}}")
    assert check(there, "abc", "bca") != check(back, "abc", "bca"), "the other way round"


@pytest.mark.parametrize("count", [2000])
def test_the_time_is_linear_in_the_number_of_collectives(count):
    """Equal collectives, named or not; four times as many take about four times as long."""

    def seconds(number: int) -> float:
        lines, plans = [], []
        for i in range(number):
            line = UNNAMED if i % 2 else LINE.replace("einsum.3", f"einsum.{i}")
            lines.append(line.replace("%r", f"%r{i}").strip("\n"))
            plans.append(planned(op=f"einsum.{i}", tensor=f"t{i}"))
        text = "\n".join(lines)
        gc.disable()  # its passes over all objects are not linear
        start = time.process_time()
        result = audit_of(text, *plans)
        assert result.exact and len(result.by_shape) == number // 2
        gc.enable()
        return time.process_time() - start

    few = min(seconds(count) for _ in range(3))
    many = min(seconds(4 * count) for _ in range(2))
    assert many < 7 * few and many < 20, (few, many)
