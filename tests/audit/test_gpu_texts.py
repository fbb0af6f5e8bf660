"""What XLA makes for GPUs, in texts of compiled modules: every collective is taken apart."""

import re

import pytest

from namedmesh.audit.backend_rules import (
    ADDED,
    AFTER_LOOP,
    AXES_IN_ONE,
    CONCATENATED,
    SCATTERED,
    SMALLER,
    UNROLLED,
)
from tests.audit.compiled_texts import audit_kept, read

AS_SUM = "ReduceScatter made as AllReduce and slice"
# By name: rules that the module needs, and opcodes that it has.
TEXTS = {
    "fully_sharded": ({}, "all-gather-start reduce-scatter-start all-reduce-start"),
    "experts": ({CONCATENATED.name: 1}, "all-to-all-start"),
    "permutes": ({}, "collective-permute-start"),
    "sequence_parallel": ({CONCATENATED.name: 1}, "all-gather-start reduce-scatter-start"),
    "combined": ({}, "all-gather-start reduce-scatter-start"),
    "concatenated": ({CONCATENATED.name: 1}, "all-reduce-start"),
    "pipelined": ({UNROLLED.name: 6}, "all-gather-start reduce-scatter-start"),
    "unrolled": ({UNROLLED.name: 6}, "all-gather-start reduce-scatter-start"),
    "double_buffered": ({UNROLLED.name: 6}, "all-gather-start reduce-scatter-start"),
    "double_buffered_ring": (
        {UNROLLED.name: 1, CONCATENATED.name: 1},
        "collective-permute-start",
    ),
    "sends_and_recvs": ({CONCATENATED.name: 1}, "send recv send-done recv-done"),
    "sums_of_terms": ({ADDED.name: 1, CONCATENATED.name: 3}, "all-reduce-start"),
    "sum_of_a_merged_term": ({ADDED.name: 1, CONCATENATED.name: 2}, "all-reduce-start"),
    "sums_over_axes": ({AXES_IN_ONE.name: 4, CONCATENATED.name: 1}, "all-reduce-start"),
    "sums_by_name": ({AXES_IN_ONE.name: 3, CONCATENATED.name: 2}, "all-reduce-start"),
    "sum_scattered": ({SCATTERED.name: 1, CONCATENATED.name: 1}, "reduce-scatter-start"),
    "sum_scattered_and_added": ({SCATTERED.name: 1, CONCATENATED.name: 2}, "reduce-scatter-start"),
    "sums_stacked_by_a_loop": ({AFTER_LOOP.name: 2, CONCATENATED.name: 2}, "all-reduce-start"),
    "sums_added_by_a_loop": ({AFTER_LOOP.name: 1, CONCATENATED.name: 1}, "all-reduce-start"),
    "casts": ({SMALLER.name: 1}, "all-gather-start"),
    "cast_and_sliced": ({SMALLER.name: 2}, "collective-permute-start"),
    "masks": ({SMALLER.name: 2, CONCATENATED.name: 2}, "all-gather-start"),
    "broadcast": ({SMALLER.name: 1, AXES_IN_ONE.name: 1}, "all-gather-start"),
    "scatter_as_sum": ({AS_SUM: 3, SMALLER.name: 1, CONCATENATED.name: 2}, "all-reduce-start"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_compiled_module_is_as_planned(name):
    rules, opcodes = TEXTS[name]
    record = read(name)
    result = audit_kept(record)
    assert result.exact, result
    assert result.rules == rules
    assert all(f" {opcode}(" in record["text"] for opcode in opcodes.split())
    planned = [*(plan for plan, _ in result.matched), *result.merged]
    assert len(planned) == len(record["collectives"])
    # A rule of GPUs alone is no rule of another backend.
    elsewhere = {*rules} - {AS_SUM}
    assert audit_kept(record, backend="cpu").exact == (not elsewhere)


def test_the_terms_of_a_sum_must_be_in_it():
    record = read("sums_of_terms")
    # The other term of the sum, under the name of an op that the plan does not have.
    assert not audit_kept(record, record["text"].replace("nm.einsum.319/", "nm.other.1/")).exact


def test_a_loop_must_add_up_what_is_sent_after_it():
    for name in ("sums_added_by_a_loop", "sums_stacked_by_a_loop"):
        record = read(name)
        trips = re.findall(r'"known_trip_count":\{"n":"(\d+)"\}', record["text"])
        for count in {*trips}:
            other = record["text"].replace(f'{{"n":"{count}"}}', f'{{"n":"{int(count) + 1}"}}')
            assert not audit_kept(record, other).exact, (name, count)


def test_copies_of_a_loop_run_as_often_as_planned():
    record = read("double_buffered")
    counts = {*re.findall(r'"known_trip_count":\{"n":"(\d+)"\}', record["text"])}
    for count in counts:
        other = record["text"].replace(f'{{"n":"{count}"}}', f'{{"n":"{int(count) + 1}"}}')
        assert not audit_kept(record, other).exact


def test_a_send_needs_its_recv():
    record = read("sends_and_recvs")
    for old, new in (
        ("{0,1},{1,2},{2,3},{4,5}", "{0,1},{1,2},{2,3},{4,6}"),  # of both
        (" recv(", " custom-call("),
    ):
        assert old in record["text"]
        assert not audit_kept(record, record["text"].replace(old, new)).exact
    # With other pairs than its send's.
    changed = record["text"].replace("{6,7}}", "{7,6}}", 1)
    assert {"Send", "Recv"} <= {one.kind for one in audit_kept(record, changed).unplanned}


def test_what_is_sent_smaller_must_be_cast():
    record = read("casts")
    assert not audit_kept(record, record["text"].replace(" convert(", " floor(")).exact
