"""What XLA makes for GPUs, in texts of compiled modules: every collective is taken apart."""

import re
from dataclasses import replace

import pytest

from benchmarks.tampering import change_orders, change_trip_counts, take_out
from namedmesh.audit.backend_rules import (
    ADDED,
    AFTER_LOOP,
    AXES_IN_ONE,
    CONCATENATED,
    NEEDLESS,
    SCATTERED,
    SMALLER,
    UNROLLED,
)
from namedmesh.errors.errors import NamedMeshError
from tests.audit.compiled_texts import audit_kept, check_tampering, read

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
    "sum_scattered_of_a_convolution": (
        {SCATTERED.name: 1, CONCATENATED.name: 1},
        "reduce-scatter-start",
    ),
    "sums_scattered_without_a_name": (
        {SCATTERED.name: 2, CONCATENATED.name: 1, SMALLER.name: 1},
        "reduce-scatter-start",
    ),
    "sums_stacked_by_a_loop": ({AFTER_LOOP.name: 2, CONCATENATED.name: 2}, "all-reduce-start"),
    "sums_added_by_a_loop": ({AFTER_LOOP.name: 1, CONCATENATED.name: 1}, "all-reduce-start"),
    "sums_stacked_of_a_product": (  # of jax 0.12: three products of a loop's body are one
        {AFTER_LOOP.name: 2, CONCATENATED.name: 3},
        "all-reduce-start",
    ),
    "function_in_shards": ({NEEDLESS.name: 2}, "all-gather-start"),
    "sum_of_a_constant": ({NEEDLESS.name: 1, CONCATENATED.name: 1}, "all-reduce-start"),
    "broadcast_after_two": ({SMALLER.name: 2}, "all-gather-start"),
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


def test_sums_that_a_loop_stacked_must_have_the_name_of_their_op():
    record = read("sums_stacked_of_a_product")
    # The sums of wk and wv; the product that they are slices of is named after that of wq.
    sums = re.findall(r"all-reduce-start\(.*nm.einsum.480/.*nm.einsum.454/.*", record["text"])
    for op in ("nm.einsum.480/", "nm.einsum.454/"):
        other = record["text"].replace(sums[0], sums[0].replace(op, "nm.other.1/"))
        assert not audit_kept(record, other).exact


def test_what_is_left_out_must_be_needless():
    record = read("sum_of_a_constant")
    zeros = r"( broadcast\(%constant_50\S*\).*nm.sum.49/)"
    for old, new in (
        (zeros, lambda match: match[0].replace(" broadcast(", " negate(")),  # is no constant
        (r"(nm.sum.49/)", "nm.other.1/"),  # nothing is known of it
    ):
        text, count = re.subn(old, new, record["text"])
        assert count and not audit_kept(record, text).exact
    record = read("function_in_shards")
    for old, new in (
        (r"( multiply\(%param_0.39, %Sin.2.3\).*nm.)call_tf.5/", r"\1other.1/"),
        (r"f32\[4,5\](\S* multiply\()", r"f32[8,5]\1"),  # makes as much as would be gathered
    ):
        text, count = re.subn(old, new, record["text"])
        assert count and not audit_kept(record, text).exact
    planned = record["collectives"]
    for kind in ("einsum", "gather"):  # an op whose need is known, not a function
        renamed = [replace(one, op=one.op.replace("call_tf", kind)) for one in planned]
        text = record["text"].replace("nm.call_tf.5/", f"nm.{kind}.5/")
        assert not audit_kept({**record, "collectives": renamed}, text).exact


@pytest.mark.parametrize(
    ("name", "every"),
    [
        ("function_in_shards", 17),
        ("sum_of_a_constant", 29),
        ("broadcast_after_two", 97),
        ("sums_scattered_without_a_name", 97),
        ("sum_scattered_of_a_convolution", 31),
    ],
)
def test_every_tampering_with_a_module_for_gpus_is_noticed_and_nothing_else(name, every):
    check_tampering(read(name), "gpu", every)


@pytest.mark.parametrize(
    ("name", "tampering"),
    [
        ("sum_scattered", take_out),  # what a scattered sum gathers is its own
        ("sum_scattered", change_orders),
        ("sum_scattered_and_added", change_orders),
        ("sum_of_a_merged_term", take_out),  # a term is no tensor of its own
        ("sum_of_a_merged_term", change_trip_counts),
        ("permutes", change_orders),  # of one pair
    ],
)
def test_every_edit_of_a_kind_is_noticed(name, tampering):
    check_tampering(read(name), "gpu", tamperings=[tampering])


def test_a_started_gather_makes_what_its_operands_are():
    record = read("broadcast")
    changed = record["text"].replace(
        "f32[8,6]{1,0})) all-gather-start", "f32[16,6]{1,0})) all-gather-start"
    )
    assert changed != record["text"]
    with pytest.raises(NamedMeshError, match=r"over 4 makes f32\[16,6\].* of f32\[2,6\]"):
        audit_kept(record, changed)


def test_a_sum_of_terms_is_not_of_an_op_that_the_program_has_not():
    record = read("sums_of_terms")
    sums = re.findall(r"all-reduce-start\(.*nm.einsum.311/.*", record["text"])
    changed = sums[0].replace("nm.einsum.311/", "nm.other.1/")
    assert not audit_kept(record, record["text"].replace(sums[0], changed)).exact
    again = re.findall(r".* = .* all-reduce-start\(.*nm.einsum.311/.*\n", record["text"])[0]
    twice = again + again.replace("%all-reduce-start", "%again", 1)
    assert not audit_kept(record, record["text"].replace(again, twice)).exact


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
