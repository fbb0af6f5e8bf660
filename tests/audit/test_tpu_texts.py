"""What XLA makes for TPUs, in texts of compiled modules: planned, or reported for what it is."""

import re

import pytest

from namedmesh.audit.audit import audit
from namedmesh.audit.backend_rules import AFTER_LOOP, ROUNDED, SCATTERED, TILED_SCATTER
from namedmesh.audit.hlo.module import parse_module
from namedmesh.errors.errors import NamedMeshError
from tests.audit.cases import MESH, planned
from tests.audit.compiled_texts import audit_kept, check_tampering, read

AS_SUM = "ReduceScatter made as AllReduce and slice"
BY_PRODUCER = "AllGather named after the op that makes its tensor"
IN_HALF = "float32 sent as bfloat16"
# By name: rules that the module needs, and what it has to show for it.
TEXTS = {
    "tpu_sparse_cores": ({BY_PRODUCER: 2, IN_HALF: 2}, 'async_execution_thread="sparsecore"'),
    "tpu_sum_scattered": ({SCATTERED.name: 1}, "calls=%all-reduce-scatter"),
    "tpu_sums_after_a_loop": ({AFTER_LOOP.name: 4, AS_SUM: 12}, " dynamic-update-slice("),
    "tpu_rounded": ({ROUNDED.name: 3, AS_SUM: 1, BY_PRODUCER: 1}, "bf16[1048576,8]"),
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


@pytest.mark.parametrize("name", ["tpu_sparse_cores", "tpu_sum_scattered", "tpu_tiled_in_memory"])
def test_every_tampering_with_a_module_for_tpus_is_noticed_and_nothing_else(name):
    check_tampering(read(name), "tpu", 23)


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
