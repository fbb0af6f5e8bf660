"""The schedule of compiled modules: what is hidden, what the device waits for."""

import itertools
import json
from typing import Any

import pytest

import namedmesh as nm
from namedmesh.audit.audit import audit
from namedmesh.audit.hlo import find_collectives, parse_module
from namedmesh.errors.source import Source
from namedmesh.hardware.hardware import Hardware
from namedmesh.hardware.links import Nodes
from namedmesh.records.collective import Collective
from namedmesh.runtime.compiling import OPTIONS
from namedmesh.schedule.reading import read_schedule
from tests.audit.compiled_texts import FOLDER, audit_kept, read

MESH = nm.Mesh(data=8)
# A byte takes a nanosecond, in memory and over links; nothing else takes time.
SIMPLE = Hardware("simple", {"float32": 1e15}, 1e15, 2**30, 1e9, Nodes(8, 1e9, 1e9))
HEAD = """\
HloModule jit_step, is_scheduled=true, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%work (p: f32[1000]) -> f32[1000] {
  %p = f32[1000]{0} parameter(0)
  ROOT %twice = f32[1000]{0} add(%p, %p)
}

"""
GROUPS = "replica_groups=[1,8]<=[8]"
WORK = "%{0} = f32[1000]{{0}} fusion(%{1}), kind=kLoop, calls=%work"  # 8,000 bytes
# An AllGather of 32,000 bytes, of which a device sends 28,000: 28 microseconds.
START = "%{0} = (f32[1000]{{0}}, f32[8000]{{0}}) all-gather-start(%{1}), channel_id=1, "
START += f"dimensions={{{{0}}}}, {GROUPS}"
DONE = "%{0} = f32[8000]{{0}} all-gather-done(%{1})"


def entry(*lines):
    """A module whose entry has some lines."""
    body = "".join(f"  {line}\n" for line in lines)
    head = "ENTRY %main (x: f32[1000]) -> f32[1000] {\n  %x = f32[1000]{0} parameter(0)\n"
    return f"{HEAD}{head}{body}}}\n"


def schedule(text, hardware=SIMPLE, clock=None, mesh=MESH):
    """Read the schedule of a text, collectives described by themselves."""
    module = parse_module(text)
    pairs = [
        (one, Collective(**one.facts, tensor=one.name, op=one.name, phase="forward",
                         source=Source("", 0)))
        for one in find_collectives(module, mesh)
    ]  # fmt: skip
    found = read_schedule(module, pairs, mesh, hardware, clock)
    assert found.seconds == pytest.approx(found.compute_seconds + found.exposed_seconds)
    return found


def micro(seconds):
    return pytest.approx(seconds * 1e-6)


def test_what_runs_between_start_and_end_hides_a_collective():
    found = schedule(
        entry(
            START.format("start", "x"),
            WORK.format("one", "x"),
            WORK.format("two", "one"),
            DONE.format("end", "start"),
            "ROOT %three = f32[1000]{0} fusion(%two), kind=kLoop, calls=%work",
        )
    )
    (only,) = found.exposures
    assert (only.seconds, only.exposed, only.times) == (micro(28), micro(28 - 16), 1)
    assert (found.compute_seconds, found.seconds) == (micro(24), micro(28 + 8))
    assert found.exposed_by("axes") == {"data": micro(12)}


def test_a_collective_that_is_hidden_is_not_waited_for():
    found = schedule(
        entry(
            START.format("start", "x"),
            *(WORK.format(f"w{i}", "x") for i in range(4)),
            DONE.format("end", "start"),
            "ROOT %last = f32[1000]{0} bitcast(%w3)",
        )
    )
    assert (found.exposed_seconds, found.seconds) == (0.0, micro(32))
    assert "100% of 28 us are hidden" in str(found)


def test_a_collective_without_a_start_is_waited_for():
    line = f"%sum = f32[1000]{{0}} all-reduce(%x), channel_id=1, {GROUPS}, to_apply=%add"
    found = schedule(entry(line, "ROOT %last = f32[1000]{0} bitcast(%sum)"))
    # An AllReduce passes over the links twice.
    assert (found.exposed_seconds, found.seconds) == (micro(7), micro(7))


def test_collectives_under_way_share_the_links():
    found = schedule(
        entry(
            START.format("s1", "x"),
            START.format("s2", "x"),
            WORK.format("one", "x"),
            DONE.format("e1", "s1"),
            DONE.format("e2", "s2"),
            "ROOT %last = f32[1000]{0} bitcast(%one)",
        )
    )
    assert found.seconds == micro(56) and found.exposed_seconds == micro(48)
    assert sorted(one.exposed for one in found.exposures) == [micro(20), micro(28)]


def test_a_called_computation_is_a_collective_too():
    inner = (
        "%scatter (p: f32[1000]) -> f32[125] {\n  %p.1 = f32[1000]{0} parameter(0)\n"
        f"  ROOT %rs = f32[125]{{0}} reduce-scatter(%p.1), channel_id=1, {GROUPS}, "
        "dimensions={0}, to_apply=%add\n}\n\n"
    )
    text = entry(
        "%start = ((f32[1000]{0}), f32[125]{0}) async-start(%x), calls=%scatter",
        WORK.format("one", "x"),
        "%end = f32[125]{0} async-done(%start)",
        "ROOT %last = f32[1000]{0} bitcast(%one)",
    ).replace("ENTRY", inner + "ENTRY")
    found = schedule(text)
    assert [one.collective.kind for one in found.exposures] == ["ReduceScatter"]
    assert (found.collective_seconds, found.exposed_seconds) == (micro(3.5), 0.0)


UPDATED = f"""\
%gathered (p: f32[1000], i: s32[4]) -> f32[8000] {{
  %p.1 = f32[1000]{{0}} parameter(0)
  %i.1 = s32[4]{{0}} parameter(1)
  ROOT %rows = f32[8000]{{0}} all-gather(%p.1), channel_id=1, dimensions={{0}}, {GROUPS}
}}, execution_thread="sparsecore"

%wrapper (p: f32[1000], i: s32[4]) -> f32[8000] {{
  %p.2 = f32[1000]{{0}} parameter(0)
  %i.2 = s32[4]{{0}} parameter(1)
  ROOT %call = f32[8000]{{0}} custom-call(%p.2, %i.2), custom_call_target="rows", \
called_computations={{%gathered}}
}}, execution_thread="sparsecore"

"""


def test_what_an_update_starts_is_under_way_from_there():
    """Sparse cores of TPUs: the start reserves their buffers, the update has the operands."""
    lines = [
        "%i = s32[4]{0} constant({...})",
        '%start = ((), (), (s32[64]{0})) async-start(), async_execution_thread="sparsecore", '
        "calls=%wrapper",
        WORK.format("one", "x"),
        "%update = ((f32[1000]{0}, s32[4]{0}), f32[8000]{0}, (s32[64]{0})) "
        "async-update(%start, %x, %i), output_to_operand_aliasing={{2,0}: (0, {2,0})}",
        WORK.format("two", "one"),
        "%again = ((f32[1000]{0}, s32[4]{0}), f32[8000]{0}, (s32[64]{0})) async-update(%update)",
        WORK.format("three", "two"),
        "%end = f32[8000]{0} async-done(%again)",
        "ROOT %last = f32[1000]{0} bitcast(%three)",
    ]
    found = schedule(entry(*lines).replace("ENTRY", UPDATED + "ENTRY"))
    assert (found.collective_seconds, found.exposed_seconds) == (micro(28), micro(12))
    assert found.seconds == micro(8 + 28)
    assert [one.collective.kind for one in found.exposures] == ["AllGather"]
    # Written as jaxlib writes it.
    short = UPDATED[: UPDATED.index("%wrapper")] + "ENTRY"
    called = 'custom_call_target="rows", called_computations={%gathered}'
    text = entry(*lines).replace("async-", "custom-call-").replace("calls=%wrapper", called)
    assert schedule(text.replace("ENTRY", short)).to_json() == found.to_json()


def in_a_loop(body, trips, first="x"):
    """A loop that carries an array, and what is under way from one iteration to the next."""
    carried = "(f32[1000]{0}, (f32[1000]{0}, f32[8000]{0}))"
    region = (
        f"%body (c: {carried}) -> {carried} {{\n  %c = {carried} parameter(0)\n"
        "  %h = f32[1000]{0} get-tuple-element(%c), index=0\n"
        "  %before = (f32[1000]{0}, f32[8000]{0}) get-tuple-element(%c), index=1\n"
        + "".join(f"  {line}\n" for line in body)
        + f"  ROOT %t = {carried} tuple(%out, %next)\n}}\n\n"
        f"%condition (c: {carried}) -> pred[] {{\n  %c.1 = {carried} parameter(0)\n"
        "  ROOT %true = pred[] constant(true)\n}\n\n"
    )
    config = f'backend_config={{"known_trip_count":{{"n":"{trips}"}}}}'
    return entry(
        START.format("s0", first),
        f"%t0 = {carried} tuple(%x, %s0)",
        f"%loop = {carried} while(%t0), condition=%condition, body=%body, {config}",
        "%last = (f32[1000]{0}, f32[8000]{0}) get-tuple-element(%loop), index=1",
        DONE.format("e", "last"),
        "ROOT %y = f32[1000]{0} get-tuple-element(%loop), index=0",
    ).replace("ENTRY", region + "ENTRY")


@pytest.mark.parametrize("trips", [1, 2, 3, 7])
def test_what_is_under_way_between_iterations_goes_on(trips):
    """A gather for the next iteration, behind two ops of this one: the loop is as if unrolled."""
    body = [
        DONE.format("w", "before"),
        START.format("next", "h"),
        WORK.format("one", "h"),
        WORK.format("out", "one"),
    ]
    looped = schedule(in_a_loop(body, trips))
    lines, under_way = [START.format("s0", "x")], "s0"
    for i in range(trips):
        lines += [DONE.format(f"w{i}", under_way), START.format(f"n{i}", "x")]
        lines += [WORK.format(f"one{i}", "x"), WORK.format(f"out{i}", "x")]
        under_way = f"n{i}"
    end = DONE.format("e", under_way)
    unrolled = schedule(entry(*lines, end, "ROOT %y = f32[1000]{0} bitcast(%x)"))
    for name in ("seconds", "exposed_seconds", "compute_seconds", "collective_seconds"):
        assert getattr(looped, name) == pytest.approx(getattr(unrolled, name)), name
    assert sum(one.times for one in looped.exposures) == trips + 1


def test_equal_iterations_are_written_once():
    body = [
        START.format("s", "h"),
        WORK.format("one", "h"),
        DONE.format("w", "s"),
        WORK.format("out", "one"),
        START.format("next", "h"),
        DONE.format("v", "next"),
    ]
    found = schedule(in_a_loop(body, 1000).replace("%last =", "%unused ="))
    assert len(found.to_json()["rows"]) < 25
    assert found.compute_seconds == micro(16_000)


def test_the_compiler_knows_its_cycles():
    config = 'backend_config={"window_config":{"estimated_cycles":"940"}}'
    text = entry(f"ROOT %one = f32[1000]{{0}} fusion(%x), kind=kLoop, calls=%work, {config}")
    assert schedule(text, clock=940e6).seconds == micro(1)
    assert schedule(text).seconds == micro(8)


def test_a_product_takes_its_operations():
    line = (
        'ROOT %y = f32[1000]{0} custom-call(%a, %b), custom_call_target="__cublas$gemm", '
        'backend_config={"gemm_backend_config":{"dot_dimension_numbers":'
        '{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}'
    )
    made = ["%a = f32[10,4000]{1,0} constant({...})", "%b = f32[4000,100]{1,0} constant({...})"]
    slow = Hardware("slow", {"float32": 1e9}, 1e9, 2**30, 1e12, Nodes(8, 1e9, 1e9))
    # 2 x 1,000 x 4,000 operations at a thousand a microsecond.
    assert schedule(entry(*made, line), slow).seconds == micro(8000)


def test_a_product_of_several_dimensions_written_as_a_convolution_takes_what_is_not_padding():
    """As compilers for TPUs write `batch model, model kv group key -> batch kv group key`."""
    lines = [
        "%a = f32[1,16,40,1,1]{4,3,2,1,0} constant({...})",
        "%b = f32[40,8,4,50,1]{4,3,2,1,0} constant({...})",
        "ROOT %y = f32[1,16,8,4,50]{4,3,2,1,0} convolution(%a, %b), "
        "dim_labels=0bf12_i12o0->0b12f, "
        "window={size=1x8x4 pad=0_0x7_7x3_3 rhs_reversal=0x1x1}",
    ]
    slow = Hardware("slow", {"float32": 1e9}, 1e9, 2**30, 1e12, Nodes(8, 1e9, 1e9))
    assert schedule(entry(*lines), slow).seconds == micro(2 * 16 * 40 * 8 * 4 * 50 / 1000)


def test_an_attention_kernel_takes_its_products_and_what_is_done_to_its_scores():
    call = (
        'custom-call(%q, %k), custom_call_target="__gpu$xla.gpu.triton", metadata={{op_name="{}"}}'
    )
    made = ["%q = f32[2,50,3,16]{3,2,1,0} constant({...})"]
    made += ["%k = f32[2,20,3,16]{3,2,1,0} constant({...})"]
    rates: dict[str, Any] = {
        "product_share": 0.5,
        "kernel_product_share": 0.25,
        "kernel_share": 0.1,
        "kernel_row": 1e-6,
    }
    slow = Hardware("slow", {"float32": 1e9}, 1e8, 2**30, 1e12, Nodes(8, 1e9, 1e9), **rates)
    scores = 2 * 50 * 3 * 20
    rows = 2 * 50 * 3
    forward = scores * (2 * 2 * 16 / 0.25e9 + 5 / 0.1e8) + rows * 1e-6
    backward = scores * (5 * 2 * 16 / 0.25e9 + 5 / 0.1e8) + rows * 2.5e-6
    for name, calls, seconds in (("attention", 1, forward), ("attention_backward", 2, backward)):
        text = call.format(f"jit(f)/nm.{name}.7/XlaCustomCallV2")
        lines = [f"%y{i} = f32[2,50,3,16]{{3,2,1,0}} {text}" for i in range(calls)]
        text = entry(*made, *lines, "ROOT %same = f32[1000]{0} bitcast(%x)")
        assert schedule(text, slow).seconds == pytest.approx(seconds)


def test_a_token_reads_keys_of_its_own_layer_alone():
    made = [
        "%q = f32[4,2,64]{2,1,0} constant({...})",
        "%k = f32[1,142,4,64]{3,2,1,0} constant({...})",
        "%first = s32[1]{0} constant({...})",
        "%mask = s8[1,71]{1,0} constant({...})",
        "%bounds = s32[1,2]{1,0} constant({...})",
        "%y = f32[4,1,2,64]{3,2,1,0} custom-call(%q, %k, %k, %first, %first, %mask, %bounds), "
        'custom_call_target="__gpu$xla.gpu.triton", '
        'metadata={op_name="jit(f)/nm.attention.7/XlaCustomCallV2"}',
    ]
    text = entry(*made, "ROOT %same = f32[1000]{0} bitcast(%x)")
    read = 4 * (4 * 2 * 64 + 2 * 71 * 4 * 64 + 2 + 2) + 71
    written = 4 * 4 * 2 * 64
    assert schedule(text).seconds == pytest.approx(1e-9 * (read + written))


def test_slices_and_updates_in_place_take_what_they_move():
    fused = (
        "%update (s: f32[64,1000], u: f32[1,1000], i: s32[]) -> f32[64,1000] {\n"
        "  %s = f32[64,1000]{1,0} parameter(0)\n  %u = f32[1,1000]{1,0} parameter(1)\n"
        "  %i = s32[] parameter(2)\n  %zero = s32[] constant(0)\n"
        "  ROOT %d = f32[64,1000]{1,0} dynamic-update-slice(%s, %u, %i, %zero)\n}\n\n"
        "%cut (s.1: f32[64,1000], i.1: s32[]) -> f32[1,1000] {\n"
        "  %s.1 = f32[64,1000]{1,0} parameter(0)\n  %i.1 = s32[] parameter(1)\n"
        "  %zero.1 = s32[] constant(0)\n  %same = f32[64,1000]{1,0} bitcast(%s.1)\n"
        "  ROOT %ds = f32[1,1000]{1,0} dynamic-slice(%same, %i.1, %zero.1), "
        "dynamic_slice_sizes={1,1000}\n}\n\n"
    )
    text = entry(
        "%stack = f32[64,1000]{1,0} parameter(1)",
        "%i.2 = s32[] parameter(2)",
        "%row = f32[1,1000]{1,0} fusion(%stack, %i.2), kind=kLoop, calls=%cut",
        "%new = f32[64,1000]{1,0} fusion(%stack, %row, %i.2), kind=kLoop, calls=%update",
        "ROOT %last = f32[1000]{0} bitcast(%x)",
    ).replace("ENTRY", fused + "ENTRY")
    # Each reads and writes a row of 4,000 bytes, and reads where it is.
    assert schedule(text).seconds == micro(2 * 8.004)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json.xz")), ids=lambda path: path.name[:-8])
def test_schedules_of_kept_texts_add_up(path):
    record = read(path.name.removesuffix(".json.xz"))
    tpu = path.name.startswith("tpu_")
    found = audit_kept(record, backend="tpu" if tpu else "gpu")
    mesh, hardware = record["mesh"], Hardware.parse("tpu-v5p" if tpu else "h100")
    pairs = [*found.describe_compiled()]
    timeline = read_schedule(parse_module(record["text"]), pairs, mesh, hardware)
    waits = sum(one.exposed * times for one, times in timeline.walk() if not one.collectives)
    parts = timeline.compute_seconds + timeline.exposed_seconds + waits
    assert timeline.seconds == pytest.approx(parts)
    sent = {one.name for one, _ in pairs if one.kind != "Recv"}
    drawn = {one.name for one, _ in timeline.walk() if one.collectives}
    # Of branches one is taken; an asynchronous call has a name of its own.
    untaken = record["text"].count(" conditional(")
    assert len(drawn) >= len(sent) - untaken > 0
    for one in timeline.exposures:
        assert one.exposed >= -1e-12


def test_a_collective_behind_fusions_of_a_tpu_is_one():
    record = read("tpu_collective_fusion")
    assert record["text"].count("AsyncCollectiveStart") == 1
    found = audit_kept(record, backend="tpu")
    assert found.exact, found
    hardware = Hardware.parse("tpu-v5e:4x8")
    module = parse_module(record["text"])
    timeline = read_schedule(module, found.describe_compiled(), record["mesh"], hardware)
    hidden = [one for one in timeline.exposures if one.exposed < 0.99 * one.seconds]
    assert [one.collective.kind for one in hidden] == ["AllGather"]
    other = record["text"].replace("AsyncCollectiveStart", "Unknown")
    assert not audit(
        parse_module(other), record["mesh"], record["collectives"], backend="tpu"
    ).exact


def test_the_trace_is_one_of_the_trace_event_format(tmp_path):
    body = [
        START.format("s", "h"), WORK.format("one", "h"), DONE.format("w", "s"),
        WORK.format("out", "one"), START.format("next", "h"), DONE.format("v", "next"),
    ]  # fmt: skip
    found = schedule(in_a_loop(body, 50))
    path = tmp_path / "step.json"
    found.save(path)
    document = json.loads(path.read_text())
    events = document["traceEvents"]
    assert {one["ph"] for one in events} == {"M", "X"}
    threads = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    assert set(threads.values()) == {"compute", "data"}
    whole = [one for one in events if one["ph"] == "X"]
    assert len(whole) == 50 * 4 + 1
    for one in whole:
        assert one["pid"] == 0 and one["dur"] >= 0 <= one["ts"] and one["tid"] in threads
    for thread in threads:  # complete events of a thread follow each other
        own = sorted((one["ts"], one["dur"]) for one in whole if one["tid"] == thread)
        for (start, length), (after, _) in itertools.pairwise(own):
            assert after >= start + length - 1e-6
    ops = sum(one["dur"] for one in whole if threads[one["tid"]] == "compute")
    assert ops == pytest.approx(found.compute_seconds * 1e6)


def test_long_loops_are_shortened_in_a_trace(tmp_path):
    body = [WORK.format("out", "h"), START.format("next", "h"), DONE.format("v", "next")]
    path = tmp_path / "step.json"
    schedule(in_a_loop(body, 10**6)).save(path)
    events = json.loads(path.read_text())["traceEvents"]
    assert len(events) < 100 and any("further iterations" in one["name"] for one in events)


def test_gathers_of_weights_run_beside_ops_on_a_tpu_v3():
    """The step is compiled with the options that TPUs have by default here."""
    record = read("tpu_gathers_beside")
    found = audit_kept(record, backend="tpu")
    assert found.exact and OPTIONS["tpu"] == {"xla_enable_async_all_gather": True}
    module, hardware = parse_module(record["text"]), Hardware.parse("tpu-v3:4x4")
    timeline = read_schedule(module, found.describe_compiled(), record["mesh"], hardware)
    hidden = {one.collective.kind for one in timeline.exposures if one.exposed < 0.99 * one.seconds}
    assert hidden == {"AllGather"}
