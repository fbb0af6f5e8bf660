"""How often computations run."""

import pytest

from namedmesh.audit.hlo import count_cycles, count_runs, find_allocations, find_loops, parse_module
from namedmesh.audit.hlo.trip_counts import Runs, find_runs, scheduled_runs

NESTED = """HloModule nested, is_scheduled=true

%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %n = f32[4]{0} negate(%p)
}

%helper (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %f = f32[4]{0} fusion(%p), kind=kLoop, calls=%fused, \
backend_config={"window_config":{"estimated_cycles":"10"}}
}

%inner_body (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %once = f32[4]{0} call(%p), to_apply=%helper
  ROOT %again = f32[4]{0} call(%once), to_apply=%helper
}

%inner_condition (p: f32[4]) -> pred[] {
  %p = f32[4]{0} parameter(0)
  %limit = s32[]{:T(128)} constant(5)
  ROOT %less = pred[] compare(%limit, %limit), direction=LT
}

%outer_body (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %f = f32[4]{0} fusion(%p), kind=kLoop, calls=%fused
  ROOT %loop = f32[4]{0} while(%f), condition=%inner_condition, body=%inner_body
}

%outer_condition (p: f32[4]) -> pred[] {
  %p = f32[4]{0} parameter(0)
  %one = s32[] constant(1)
  %two = s32[] constant(2)
  ROOT %less = pred[] compare(%one, %two), direction=LT
}

%left (p: f32[4]) -> f32[4] {
  ROOT %p = f32[4]{0} parameter(0)
}

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}

ENTRY %main (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %outer = f32[4]{0} while(%p), condition=%outer_condition, body=%outer_body, \
backend_config={"known_trip_count":{"n":"3"},"known_init_step":{"init":"0","step":"1"}}
  %which = f32[4]{0} conditional(%p, %p, %p), branch_computations={%left, %helper}
  ROOT %r = f32[4]{0} all-reduce(%which), replica_groups={}, to_apply=%add
}
"""


def test_loops_within_loops_multiply():
    module = parse_module(NESTED)
    assert [(loop.computation, loop.trip_count) for loop in find_loops(module)] == [
        ("outer_body", 5),
        ("main", 3),
    ]
    helper = 3 * 5 * 2 + 1  # twice in every iteration of the inner loop, and in a branch
    assert count_runs(module) == {
        "main": 1,
        "outer_condition": 3,
        "outer_body": 3,
        "inner_condition": 15,
        "inner_body": 15,
        "left": 1,
        "helper": helper,
        "fused": helper + 3,
    }
    assert scheduled_runs(module) == {
        name: times for name, times in count_runs(module).items() if name != "fused"
    }
    assert count_cycles(module) == 10 * helper


def test_the_compilers_count_goes_before_the_condition_and_unknown_ones_count_once():
    unknown = NESTED.replace('"known_trip_count":{"n":"3"},', "")
    module = parse_module(unknown)
    assert [loop.trip_count for loop in find_loops(module)] == [5, None], "two limits, no count"
    assert count_runs(module)["outer_body"] == 1
    stated = parse_module(
        NESTED.replace(
            "body=%inner_body", 'body=%inner_body, backend_config={"known_trip_count":{"n":"7"}}'
        )
    )
    assert find_loops(stated)[0].trip_count == 7


def test_a_chain_of_calls_takes_no_more_time_than_its_length():
    """Each computation calls the one before it twice: 2**60 paths, 61 computations."""
    text = "HloModule chain\n%c0 () -> f32[] {\n  ROOT %x = f32[] constant(0)\n}\n"
    for i in range(1, 61):
        text += (
            f"{'ENTRY ' if i == 60 else ''}%c{i} () -> f32[] {{\n"
            f"  %a = f32[] call(), to_apply=%c{i - 1}\n"
            f"  ROOT %b = f32[] call(), to_apply=%c{i - 1}\n}}\n"
        )
    assert count_runs(parse_module(text))["c0"] == 2**60


@pytest.mark.parametrize(
    ("line", "arrays"),
    [
        ("%x = f32[4]{0} add(%p, %p)", ["f32[4]"]),
        ("%x = (f32[4]{0}, f32[8]{0}) fusion(%p), kind=kLoop, calls=%f", ["f32[4]", "f32[8]"]),
        ("%x = (f32[4]{0}, f32[8]{0}) all-gather-start(%p), dimensions={0}", ["f32[8]"]),
        ("%x = (f32[8]{0:S(1)}, f32[4]{0}, u32[]{:S(2)}) copy-start(%p)", ["f32[8]"]),
        ("%x = (f32[4]{0}, f32[5]{0}, u32[], u32[]) collective-permute-start(%p)", ["f32[5]"]),
        ("%x = (f32[4]{0}, f32[5]{0}) all-reduce-start(%p, %p), to_apply=%a", ["f32[4]", "f32[5]"]),
        ("%x = ((f32[4]{0}), (f32[6]{0}, s32[]), u32[]) async-start(%p)", ["f32[6]", "s32[]"]),
        ("%x = ((), (), (s32[9]{0})) async-start()", []),
        ("%x = ((f32[4]{0}), f32[6]{0}, (s32[9]{0})) async-update(%s, %p, %p)", ["f32[6]"]),
        ("%x = ((f32[4]{0}), f32[6]{0}, u32[]) async-update(%s)", []),
        ("%x = f32[8]{0} all-gather-done(%p)", None),
        ("%x = f32[2,2]{1,0} bitcast(%p)", None),
        ("%x = (f32[4]{0}) tuple(%p)", None),
    ],
)
def test_what_takes_memory_of_its_own(line, arrays):
    header = "HloModule m\nENTRY %main (p: f32[4]) -> f32[4] {"
    text = f"{header}\n  %p = f32[4] parameter(0)\n  {line}\n}}"
    values = [list(map(str, value.arrays)) for value in find_allocations(parse_module(text))]
    assert values == ([] if arrays is None else [arrays])


COUNTED = """HloModule counted

%body (t: (s32[], f32[4])) -> (s32[], f32[4]) {
  %t = (s32[], f32[4]{0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[4]{0} get-tuple-element(%t), index=1
  %step = s32[] constant(2)
  %next = s32[] add(%i, %step)
  ROOT %r = (s32[], f32[4]{0}) tuple(%next, %x)
}

%condition (t: (s32[], f32[4])) -> pred[] {
  %t = (s32[], f32[4]{0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %limit = s32[] constant(9)
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

ENTRY %main (x: f32[4]) -> (s32[], f32[4]) {
  %x = f32[4]{0} parameter(0)
  %start = s32[] constant(1)
  %first = (s32[], f32[4]{0}) tuple(%start, %x)
  ROOT %w = (s32[], f32[4]{0}) while(%first), condition=%condition, body=%body
}
"""


@pytest.mark.parametrize(
    ("old", "new", "trip_count", "exact"),
    [
        ("", "", 4, True),
        ("direction=LT", "direction=LE", 5, True),
        ("compare(%i, %limit), direction=LT", "compare(%limit, %i), direction=GT", 4, True),
        ("constant(1)", "constant(9)", 0, True),
        ("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"4"}}', 4, True),
        ("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"6"}}', 6, False),
        ("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"3"}}', 4, False),
        ("add(%i, %step)", "multiply(%i, %step)", 9, False),
        ("direction=LT", "direction=NE", 9, False),
        ("%start = s32[] constant(1)", "%start = s32[] replica-id()", 9, False),
        ("compare(%i, %limit)", "compare(%i, %i)", 9, False),
        ("ROOT %less = pred[]", "%some = pred[] constant(true)\n  ROOT %less = pred[]", 4, True),
        (
            "ROOT %less = pred[] compare(%i, %limit), direction=LT",
            "%less = pred[] compare(%i, %limit), direction=LT\n  %more = pred[] is-finite(%i)\n"
            "  ROOT %both = pred[] and(%less, %more)",
            9,
            False,
        ),
    ],
)
def test_a_trip_count_is_exact_where_the_code_leaves_no_doubt(old, new, trip_count, exact):
    module = parse_module(COUNTED.replace(old, new, 1))
    (loop,) = find_loops(module)
    assert (loop.trip_count, loop.exact) == (trip_count, exact)
    # A statement that the code contradicts is no unknown length: a plan of that would agree.
    known = exact or "known_trip_count" in new
    assert find_runs(module)["body"] == Runs(trip_count if known else 1, not exact)


def test_a_counter_may_go_through_fusions():
    fused = """
%fused_add (i: s32[]) -> s32[] {
  %i = s32[] parameter(0)
  %step = s32[] constant(2)
  ROOT %sum = s32[] add(%i, %step)
}

%fused_less (i: s32[], n: s32[]) -> pred[] {
  %i = s32[] parameter(0)
  %n = s32[] parameter(1)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

%body ("""
    text = COUNTED.replace("\n%body (", fused, 1)
    text = text.replace("add(%i, %step)\n  ROOT %r", "fusion(%i), calls=%fused_add\n  ROOT %r")
    text = text.replace(
        "pred[] compare(%i, %limit), direction=LT\n}\n\nENTRY",
        "pred[] fusion(%i, %limit), calls=%fused_less\n}\n\nENTRY",
    )
    assert text.count("fusion(") == 2
    (loop,) = find_loops(parse_module(text))
    assert (loop.trip_count, loop.exact) == (4, True)


def test_sums_of_sums_do_not_take_forever():
    sums = "".join(f"  %s{i} = s32[] add(%s{i - 1}, %s{i - 1})\n" for i in range(1, 80))
    text = COUNTED.replace(
        "  %next = s32[] add(%i, %step)",
        f"  %s0 = s32[] copy(%i)\n{sums}  %next = s32[] copy(%s79)",
    )
    (loop,) = find_loops(parse_module(text))
    assert not loop.exact
