"""What XLA makes for TPUs, in texts of compiled modules: planned, or reported for what it is."""

import re

import pytest

from benchmarks.tampering import change_transfers, cut_off
from namedmesh.audit.audit import audit
from namedmesh.audit.backend_rules import (
    ACROSS_SLICES,
    AFTER_LOOP,
    BETWEEN_SLICES,
    CONCATENATED,
    ROUNDED,
    SCATTERED,
    TILED_SCATTER,
    UNROLLED,
)
from namedmesh.audit.hlo.module import parse_module
from namedmesh.errors.errors import NamedMeshError
from tests.audit.cases import MESH, planned
from tests.audit.compiled_texts import audit_kept, check_tampering, read

AS_SUM = "ReduceScatter made as AllReduce and slice"
BY_PRODUCER = "AllGather named after the op that makes its tensor"
AS_ZEROS = "AllGather of small shards made as AllReduce, zero elsewhere"
IN_HALF = "float32 sent as bfloat16"
# By name: rules that the module needs, and what it has to show for it.
TEXTS = {
    "tpu_sparse_cores": ({BY_PRODUCER: 2, IN_HALF: 2}, 'async_execution_thread="sparsecore"'),
    "tpu_sum_scattered": ({SCATTERED.name: 1}, "calls=%all-reduce-scatter"),
    "tpu_sums_after_a_loop": ({AFTER_LOOP.name: 4, AS_SUM: 12}, " dynamic-update-slice("),
    "tpu_rounded": ({ROUNDED.name: 3, AS_SUM: 1, BY_PRODUCER: 1}, "bf16[1048576,8]"),
    "tpu_peeled": (
        {UNROLLED.name: 8, AS_SUM: 5, BY_PRODUCER: 1, AS_ZEROS: 1},
        " dynamic-update-slice(",
    ),
    "tpu_slices_fully_sharded": (
        {ACROSS_SLICES.name: 4, BETWEEN_SLICES.name: 3, UNROLLED.name: 4, AS_SUM: 4},
        " maximum(%pad.",  # two sums in one Send
    ),
    "tpu_slices_experts": ({ACROSS_SLICES.name: 4, BETWEEN_SLICES.name: 2}, '"ALL_TO_ALL"'),
    "tpu_slices_permutes": ({ACROSS_SLICES.name: 2}, '"ONE_TO_ONE"'),
    "tpu_slices_concatenated": (
        {ACROSS_SLICES.name: 2, BETWEEN_SLICES.name: 5, CONCATENATED.name: 1},
        "f32[17]{0:T(128)S(1)} maximum(%pad.",
    ),
    "tpu_slices_one_alone": (
        {ACROSS_SLICES.name: 1, BETWEEN_SLICES.name: 2},
        "source_target_pairs={{1,0},{0,1}}",  # in the first of two
    ),
    "tpu_four_slices": (
        {
            ACROSS_SLICES.name: 4,
            BETWEEN_SLICES.name: 3,
            UNROLLED.name: 5,
            AS_SUM: 4,
            ROUNDED.name: 2,
        },
        '="{1,2,3,4}x{0:3}"',
    ),
    "tpu_tiled": ({TILED_SCATTER.name: 2}, "{56,63}}"),  # seven devices on
    "tpu_tiled_in_memory": ({TILED_SCATTER.name: 1, BY_PRODUCER: 2, IN_HALF: 1}, "#0, "),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_module_compiled_for_tpus_is_as_planned(name):
    rules, shown = TEXTS[name]
    record = read(name)
    result = audit_kept(record, backend="tpu")
    assert result.exact, result
    assert result.rules == rules
    assert shown in record["text"]
    assert len([*result.matched, *result.merged]) == len(record["collectives"])
    assert not audit_kept(record, backend="cpu").exact


@pytest.mark.parametrize(
    ("name", "every"),
    [
        ("tpu_sparse_cores", 23), ("tpu_sum_scattered", 23), ("tpu_tiled_in_memory", 23),
        ("tpu_peeled", 41), ("tpu_slices_fully_sharded", 41), ("tpu_slices_experts", 41),
        ("tpu_four_slices", 41), ("tpu_slices_permutes", 1),
        ("tpu_slices_concatenated", 41), ("tpu_slices_one_alone", 41),
    ],
)  # fmt: skip
def test_every_tampering_with_a_module_for_tpus_is_noticed_and_nothing_else(name, every):
    check_tampering(read(name), "tpu", every)


@pytest.mark.parametrize("tampering", [change_transfers, cut_off])
def test_every_edit_of_what_crosses_slices_is_noticed(tampering):
    check_tampering(read("tpu_slices_fully_sharded"), "tpu", 5, [tampering])


def test_what_is_made_again_is_reported_with_its_bytes():
    record = read("tpu_made_again")
    result = audit_kept(record, backend="tpu")
    assert [one.again for one in result.unplanned] == [True] * 3
    assert not result.missing and not result.differences
    for line in result.describe_problems():
        assert line.startswith("unplanned AllGather over x of 16777216 bfloat16 elements, 32 times")
        assert line.endswith("which XLA makes again to save memory: 512.0 MiB more on the wire")
    with pytest.raises(NamedMeshError, match="fix: leave the compiler more memory"):
        result.enforce(strict=True)
    # What is planned is what is not made again, whichever comes first.
    assert sum(one.again for _, one in result.matched) == 0


def test_a_rounded_sum_is_one_of_float32_that_is_read_as_bfloat16():
    record = read("tpu_rounded")
    for old, new in (
        (r"(ROOT %Sum\.\d+ = )f32\[\]", r"\1bf16[]"),  # added up in bfloat16
        (r"(%get-tuple-element\.9[12] = )bf16", r"\1f32"),  # read as float32
    ):
        text, count = re.subn(old, new, record["text"])
        assert count and not audit_kept(record, text, backend="tpu").exact
    record["precision"] = "highest"
    assert not audit_kept(record, backend="tpu").exact


def test_every_permute_of_a_tiled_scatter_is_needed_and_goes_to_its_device():
    record = read("tpu_tiled")
    permutes = re.findall(r".* collective-permute\(.*\n", record["text"])
    assert len(permutes) == 4 + 7
    for line in permutes:
        pairs = re.findall(r"source_target_pairs=(.*?\}\})", line)[0]
        shifted = pairs.replace("{0,", "{1,", 1)
        for other in ("", line + line.replace(" = ", ".2 = "), line.replace(pairs, shifted)):
            changed = record["text"].replace(line, other)
            assert not audit_kept(record, changed, backend="tpu").exact


def test_an_element_of_a_tuple_may_be_an_operand():
    """In texts of jax 0.11: fusion.3#1 for a get-tuple-element of its own."""
    record = read("tpu_tiled_in_memory")
    assert any(one.times == 12 for _, one in audit_kept(record, backend="tpu").matched)
    with pytest.raises(NamedMeshError, match="is no element of a tuple before it"):
        audit_kept(record, record["text"].replace("#0", "#99"), backend="tpu")


def test_an_opcode_that_nobody_knows_may_communicate_in_a_fusion_that_starts_it():
    text = read("tpu_collective_fusion")["text"]
    started = re.findall(r"(%all-gather\S+) = .*\n  ROOT .*AsyncCollectiveStart", text)
    changed = re.sub(rf"({started[0]} = .*) all-gather\(", r"\1 all-scatter(", text)
    with pytest.raises(NamedMeshError, match="'all-scatter' is unknown, and it may communicate"):
        audit_kept(read("tpu_collective_fusion"), changed, backend="tpu")


def test_a_sum_that_a_loop_carries_on_may_be_rounded():
    text = """HloModule test, is_scheduled=true

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %z = f32[] add(%x, %y)
}

%body (carry: (s32[], bf16[32])) -> (s32[], bf16[32]) {
  %carry = (s32[], bf16[32]{0}) parameter(0)
  %i = s32[] get-tuple-element(%carry), index=0
  %h = bf16[32]{0} get-tuple-element(%carry), index=1
  %wide = f32[32]{0} convert(%h)
  %sum = bf16[32]{0} all-reduce(%wide), replica_groups=[2,4]<=[8], to_apply=%add, \
metadata={op_name="jit(f)/namedmesh/nm.einsum.3/XlaDot"}
  ROOT %next = (s32[], bf16[32]{0}) tuple(%i, %sum)
}

%go (state: (s32[], bf16[32])) -> pred[] {
  %state = (s32[], bf16[32]{0}) parameter(0)
  ROOT %true = pred[] constant(true)
}

ENTRY %main (p: (s32[], bf16[32])) -> (s32[], bf16[32]) {
  %p = (s32[], bf16[32]{0}) parameter(0)
  ROOT %loop = (s32[], bf16[32]{0}) while(%p), condition=%go, body=%body, \
backend_config={"known_trip_count":{"n":"5"}}
}
"""
    result = audit(parse_module(text), MESH, [planned(times=5)], backend="tpu")
    assert result.exact and result.rules == {ROUNDED.name: 1}, result
    rounded_before = text.replace("f32[]", "bf16[]")
    assert not audit(parse_module(rounded_before), MESH, [planned(times=5)], backend="tpu").exact


@pytest.mark.parametrize(("how", "exact"), [("maximum", True), ("add", False)])
def test_the_greatest_of_numbers_in_bfloat16_may_be_received_as_float32(how, exact):
    text = f"""HloModule test

%join (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %z = f32[] {how}(%x, %y)
}}

ENTRY %main (p: bf16[32]) -> f32[32] {{
  %p = bf16[32]{{0}} parameter(0)
  ROOT %r = f32[32]{{0}} all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%join, \
metadata={{op_name="jit(f)/namedmesh/nm.einsum.3/XlaDot"}}
}}
"""
    for some, right in ((text, exact), (text.replace("f32[]", "bf16[]"), False)):
        assert audit(parse_module(some), MESH, [planned()], backend="tpu").exact == right
