"""Floors are floors: no plan takes less."""

import itertools
import math
from collections import Counter

import pytest

import namedmesh as nm
from namedmesh.planning.plan_program import plan_step
from namedmesh.search.bounds import Bounds
from namedmesh.search.candidates import make_candidate
from namedmesh.search.facts import find_facts
from namedmesh.search.neighbours import find_siblings
from namedmesh.search.roles import choose_roles, find_roles
from namedmesh.search.space import enumerate_space, factorise
from tests.search.models import trace_mixture, trace_step

PROGRAMS = {
    "step": trace_step,
    "loop": lambda: trace_step("full", 4),
    "mixture": trace_mixture,
}


def facts_of(program, target="tpu-v3"):
    return find_facts(nm.cost(plan_step(program, nm.Mesh(one=1)), target))


@pytest.mark.parametrize("target", ["tpu-v3", "h200", "cpu"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_plan_takes_less_than_its_floors(name, target):
    program, hardware = PROGRAMS[name](), nm.Hardware.parse(target)
    facts = facts_of(program, target)
    space = enumerate_space([(facts, Bounds(facts, hardware, 8))], 8, nm.Layout(""), 3)
    planned = 0
    for one in range(0, len(space.family), 7):
        family = space.families[space.family[one]]
        candidate = make_candidate(facts, family, space.sizes_of(one), nm.Layout(""))
        try:
            plan = plan_step(program, candidate.mesh, candidate.layout, candidate.params)
        except nm.NamedMeshError:
            continue
        cost = nm.cost(plan, hardware)
        assert cost.seconds >= space.least_seconds[one] * (1 - 1e-9), candidate.key
        assert cost.memory.peak_bytes >= space.least_bytes[one] * (1 - 1e-9), candidate.key
        planned += 1
    assert planned > 3


def test_dims_of_one_activation_do_not_share_an_axis():
    facts = facts_of(trace_step())
    roles = find_roles(facts, facts.dims)
    assert not any({"batch", "hidden"} <= role for role in roles)
    assert {"hidden", "model"} in roles  # only weights have both


def test_dims_that_axes_move_between_share_one():
    facts = facts_of(trace_mixture())
    assert {"group", "expert"} in find_roles(facts, facts.dims)


def test_loops_and_inner_dims_are_not_split():
    assert facts_of(trace_step("none", 4)).dims == ("batch", "model", "hidden")


def test_axes_are_not_enumerated_in_two_orders():
    facts = facts_of(trace_step())
    sets = [frozenset(Counter(one.roles).items()) for one in choose_roles(facts, nm.Layout(""), 2)]
    assert len(sets) == len({*sets})


def test_no_candidate_is_enumerated_twice():
    facts = facts_of(trace_mixture(shared=True))
    bounds = Bounds(facts, nm.Hardware.parse("tpu-v3"), 8)
    space = enumerate_space([(facts, bounds)], 8, nm.Layout(""), 3)
    keys = [
        make_candidate(facts, space.families[family], space.sizes_of(i), nm.Layout("")).key
        for i, family in enumerate(space.family)
    ]
    assert len(keys) == len({*keys})
    assert "0 | x=4 y=2 | group:x+y, expert:x+y | expert:x+y, width:y" in keys


@pytest.mark.parametrize("devices, axes, count", [(8, 1, 1), (8, 2, 2), (8, 3, 1), (2048, 3, 45)])
def test_factorisations(devices, axes, count):
    assert len(factorise(devices, axes)) == count


@pytest.mark.parametrize("number, axes", [(1, 2), (7, 2), (36, 3), (64, 3), (96, 2)])
def test_factors_are_those_of_every_product(number, axes):
    every = itertools.product(range(2, number + 1), repeat=axes)
    assert factorise(number, axes) == [one for one in every if math.prod(one) == number]


def test_factors_of_a_large_number_are_found_at_once():
    assert len(factorise(2**31, 2)) == 30


def test_a_layout_is_tried_for_whatever_the_program_may_be_made_with():
    """Siblings: the same mesh and layout, of the dimensions that the other program has."""
    B, S, R, M, H = nm.dims("batch=64 seq=16 row=16 model=64 hidden=256")

    def make(rows: bool) -> nm.Program:
        def step(x):
            h = nm.rename(x, S, R) if rows else x
            wi, wo = nm.param("wi", [M, H]), nm.param("wo", [H, M])
            y = nm.einsum(
                [nm.relu(nm.einsum([h, wi], [*h.shape.without("model"), H])), wo], h.shape
            )
            return nm.sum(y)

        return nm.trace(step, nm.spec([B, S, M]))

    facts = [facts_of(make(rows)) for rows in (True, False)]
    bounds = [(one, Bounds(one, nm.Hardware.parse("tpu-v3"), 8)) for one in facts]
    space = enumerate_space(bounds, 8, nm.Layout(""), 2)
    found = 0
    for candidate, number in enumerate(space.family):
        family = space.families[number]
        split = frozenset().union(*family.roles.roles)
        siblings = [*find_siblings(facts, space, candidate, nm.Layout(""))]
        for sibling, sizes in siblings:
            assert sibling.variant == 1 - family.variant and sizes == space.sizes_of(candidate)
            assert frozenset().union(*sibling.roles.roles) == split - {"row"}
            found += "row" in split
    assert found
