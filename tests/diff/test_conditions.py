"""Conditions of `namedmesh diff --fail-if`: every form, and what is refused."""

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import namedmesh as nm
from namedmesh.diff.conditions import Condition
from namedmesh.diff.diff import Diff
from namedmesh.diff.pairing import Changes
from namedmesh.errors.source import Source
from namedmesh.records.collective import Collective
from namedmesh.records.plan import PlanRecord
from tests.diff.models import plan


def side(wire: int, memory: int | None = None, **seconds: float) -> PlanRecord:
    """A plan that sends some bytes in one AllReduce of the backward pass."""
    facts = ("AllReduce", ("data",), 1, "float32", 2 * wire, 1, "w", "", "backward")
    one = Collective(*facts, Source("", 0), devices=2, measured_wire_bytes=wire)
    return PlanRecord(
        "plan", "step", {"data": 2}, "", "", 7.0, (), (one,) if wire else (), memory, seconds
    )


def between(before: PlanRecord, after: PlanRecord) -> Diff:
    nothing = Changes((), (), (), 0)
    return Diff(before, after, nothing, nothing)


GROWN = between(side(1000, 2**30, seconds=0.010), side(1100, 2**31, seconds=0.012))


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("wire_bytes > +5%", True),
        ("wire_bytes > +10%", False),
        ("wire_bytes >= +10%", True),
        ("wire_bytes>+9.9%", True),
        ("wire_bytes < -1%", False),
        ("bytes > +100B", True),
        ("bytes > +0.2kB", False),
        ("bytes >= +200", True),
        ("wire_bytes > 1.05x", True),
        ("wire_bytes > 1.1x", False),
        ("wire_bytes >= 1.1x", True),
        ("wire_bytes > 1099", True),
        ("wire_bytes > 1.1e3", False),
        ("wire_bytes == 1100", True),
        ("wire_bytes != 1100", False),
        ("wire_bytes <= 2KB", True),
        ("memory > 1GiB", True),
        ("memory > 2GiB", False),
        ("memory > +1GiB", False),
        ("memory >= +1024MiB", True),
        ("memory > 2.1GB", True),
        ("seconds > 11ms", True),
        ("seconds > +1500us", True),
        ("seconds > 0.012s", False),
        ("seconds > .01", True),
        ("seconds > +20%", False),
        ("seconds >= +20%", True),
        ("flops > +0", False),
        ("AllReduce > +0", False),
        ("AllReduce == 1", True),
        ("AllGather > 0", False),
        ("collectives > 0", True),
        ("wire_bytes.backward > +5%", True),
        ("wire_bytes.forward > +5%", False),
        ("bytes.AllReduce > 2KiB", True),
        ("collectives.init > 0", False),
        ("different", True),
        (" different ", True),
    ],
)
def test_a_condition_holds_or_not(text, holds):
    explained = Condition.parse(text).explain(GROWN)
    assert (explained is not None) is holds
    assert explained is None or explained.startswith(text.strip())


def test_a_condition_says_the_figures():
    assert Condition.parse("wire_bytes > +5%").explain(GROWN) == (
        "wire_bytes > +5%: 1000 B -> 1.1 KiB (+10.0%)"
    )
    assert Condition.parse("seconds > 11ms").explain(GROWN) == (
        "seconds > 11ms: 10 ms -> 12 ms (+20.0%)"
    )


def test_from_nothing_every_increase_is_larger_and_no_increase_is_none():
    new, none = between(side(0), side(8)), between(side(0), side(0))
    for text in ("wire_bytes > +1000%", "wire_bytes > 100x", "wire_bytes > +7B"):
        assert Condition.parse(text).explain(new) and not Condition.parse(text).explain(none)
    assert Condition.parse("wire_bytes >= +0%").explain(none)
    assert Condition.parse("wire_bytes == 1x").explain(none)


def test_equal_plans_are_not_different():
    assert Condition.parse("different").explain(nm.diff(plan("data"), plan("data"))) is None
    assert Condition.parse("different").explain(nm.diff(plan("data"), plan("hidden")))


@pytest.mark.parametrize("text", ["seconds > +5%", "memory > 1GiB"])
def test_a_figure_that_is_not_known_is_an_error(text):
    with pytest.raises(nm.NamedMeshError, match="is not known of both plans") as raised:
        Condition.parse(text).explain(between(side(1), side(2)))
    assert "--target" in raised.value.fix
    one = dataclasses.replace(side(1), memory=3, seconds={"seconds": 1.0})
    with pytest.raises(nm.NamedMeshError, match="not known of the second plan"):
        Condition.parse(text).explain(between(one, side(1)))


@pytest.mark.parametrize("text", ["seconds > +5%", "memory > 1.2x", "memory < -1GiB"])
def test_a_change_needs_both_figures(text):
    one = dataclasses.replace(side(1), memory=3, seconds={"seconds": 1.0})
    with pytest.raises(nm.NamedMeshError, match="not known of the first plan"):
        Condition.parse(text).explain(between(side(1), one))


def test_a_limit_needs_the_second_figure_alone():
    late = between(side(1), side(1, 2**30, seconds=0.5))
    assert Condition.parse("memory > 2GiB").explain(late) is None
    assert Condition.parse("memory > 0.5GiB").explain(late) == "memory > 0.5GiB: 1.0 GiB"
    assert Condition.parse("seconds >= 20ms").explain(late) == "seconds >= 20ms: 500 ms"


@pytest.mark.parametrize(
    ("text", "problem", "fix"),
    [
        ("", "cannot read", "wire_bytes > [+]5%"),
        ("wire_bytes", "cannot read", "a comparison and a number"),
        ("wire_bytes > ", "cannot read", "a number"),
        ("wire_bytes = 3", "cannot read", "a comparison"),
        ("wire_bytes >> 3", "cannot read", "a comparison"),
        ("> 3", "cannot read", "a metric"),
        ("wire_bytes > +5% now", "cannot read", "a metric"),
        ("wire_byte > 3", "no metric 'wire_byte'", "did you mean 'wire_bytes'"),
        ("AllGathers > 3", "no metric 'AllGathers'", "did you mean 'AllGather'"),
        ("wire_bytes.backwards > 3", "no metric", "did you mean 'wire_bytes.backward'"),
        ("flops.forward > 3", "no metric 'flops.forward'", "use one of|did you mean"),
        ("wire_bytes > 3ms", "is not counted in 'ms'", "KiB"),
        ("seconds > 3KiB", "is not counted in 'KiB'", "ms"),
        ("AllGather > 3B", "is not counted in 'B'", "%, x"),
        ("wire_bytes > 5%", "a percentage is a change", "[+]5%"),
        ("wire_bytes > +2x", "a multiple has no sign", "1.2x"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_fix(text, problem, fix):
    with pytest.raises(nm.NamedMeshError, match=problem) as raised:
        Condition.parse(text)
    assert re.search(fix, raised.value.fix)


@settings(deadline=None)
@given(st.integers(0, 10**12), st.integers(0, 10**12), st.integers(0, 10**12))
def test_absolute_and_relative_forms_agree_with_arithmetic(before, after, limit):
    difference = between(side(before), side(after))
    assert bool(Condition.parse(f"wire_bytes > {limit}").explain(difference)) is (after > limit)
    grown = after - before > limit
    assert bool(Condition.parse(f"wire_bytes > +{limit}").explain(difference)) is grown
    shrunk = after - before < -limit
    assert bool(Condition.parse(f"wire_bytes < -{limit}B").explain(difference)) is shrunk


@settings(deadline=None)
@given(st.text(max_size=30))
def test_any_text_is_read_or_refused_in_words(text):
    try:
        Condition.parse(text)
    except nm.NamedMeshError as error:
        assert error.fix
