"""Operands that disagree: every fix that is offered works, and costs what it says."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

import namedmesh as nm
from benchmarks.search_models import trace_graph

DIMS = {dim.name: dim for dim in nm.dims("b=8 m=16 h=24 e=8 g=16")}
MESH = nm.Mesh(x=4, y=2)


@dataclass(frozen=True)
class Example:
    """Two operands and what is computed of them.

    whole says which dimensions start unsplit. Where w lies, the program itself says: of two that
    the layout alone places, one would yield.
    """

    x: str
    w: str
    expression: str
    layout: str
    stated: str
    whole: dict[str, str] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)  # what stands for an operand

    def trace(self) -> nm.Program:
        def spec(name: str, letters: str) -> nm.InputSpec:
            whole = [DIMS[letter] for letter in self.whole.get(name, "")]
            return nm.spec([DIMS[letter] for letter in letters], whole=whole)

        def function(x, w):
            stated = nm.split(w, DIMS[self.stated])
            known = {"nm": nm, "x": x, "w": stated.describe(name="w"), **DIMS}
            values = {name: eval(self.moved.get(name, name), known) for name in "xw"}
            return eval(self.expression, known | values)

        return nm.trace(function, x=spec("x", self.x), w=spec("w", self.w))

    def plan(self, **options) -> nm.Plan:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # axes that nothing uses
            return nm.plan(self.trace(), MESH, self.layout, **options)

    def fix(self, text: str) -> Example:
        """Writes what a fix says."""
        code = re.fullmatch(r"(nm\.\w+\((\w), \w\)) before it", text)
        if code:
            return replace(self, moved={code[2]: code[1]})
        told = re.fullmatch(r"whole=\[(\w)\] where (\w) is declared", text)
        assert told, text
        whole = {**self.whole, told[2]: self.whole.get(told[2], "") + told[1]}
        return replace(self, whole=whole)

    def fixes(self) -> Sequence[Any]:
        with pytest.raises(nm.LayoutConflict) as caught:
            self.plan()
        return caught.value.fixes


PRODUCT = "nm.einsum([x, w], [b, h])"
EXAMPLES = {
    "no dimension in common": Example("bm", "mh", PRODUCT, "b:x, h:x", "h"),
    "a dimension that is summed": Example("bm", "mh", PRODUCT, "b:x, m:x", "m", {"x": "m"}),
    "two axes": Example("bm", "mh", PRODUCT, "b:x+y, h:y", "h"),
    "both dimensions in both": Example(
        "gem", "gem", "x * w", "g:x, e:x", "e", {"x": "e", "w": "g"}
    ),
    "one dimension in one": Example(
        "gem", "emh", "nm.einsum([x, w], [g, e, h])", "g:x, e:x", "e", {"x": "e"}
    ),
}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_every_fix_that_is_offered_works_and_costs_what_it_says(kind):
    example = EXAMPLES[kind]
    fixes = example.fixes()
    assert len(fixes) >= 3
    costs = [fix.wire_bytes + fix.memory for fix in fixes]
    assert costs == sorted(costs)
    for fix in fixes:
        plan = example.fix(fix.text).plan()
        kinds = [one.kind for one in plan.collectives]
        assert kinds[: len(fix.kinds)] == list(fix.kinds), fix
        assert plan.total_wire_bytes() == fix.wire_bytes, (fix, plan.communication)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_the_cheapest_is_taken_when_asked_for_and_changes_no_number(kind):
    example = EXAMPLES[kind]
    moves = [fix.wire_bytes for fix in example.fixes() if "before it" in fix.text]
    plan = example.plan(conflicts="cheapest")
    assert plan.total_wire_bytes() == min(moves)
    assert len(plan.decisions) == 1 and "is computed as if nm." in str(plan)
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.normal(size=tensor.shape.sizes).astype(np.float32)
        for name, tensor in plan.program.inputs.items()
    }
    _, got = nm.Step(plan, strict=True)(None, **inputs)
    _, wanted = plan.program.evaluate({}, **inputs)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_a_conflict_survives_pickling_with_its_fixes():
    with pytest.raises(nm.LayoutConflict) as caught:
        EXAMPLES["no dimension in common"].plan()
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, nm.LayoutConflict)
    assert (str(again), again.fixes) == (str(caught.value), caught.value.fixes)


def test_compile_and_export_take_the_cheapest_too():
    example = EXAMPLES["no dimension in common"]
    program, layout = example.trace(), example.layout
    with pytest.raises(nm.LayoutConflict):
        nm.export(program, MESH, layout)
    artifact = nm.export(program, MESH, layout, conflicts="cheapest")
    step = nm.compile(program, mesh=MESH, layout=layout, conflicts="cheapest")
    assert [one.kind for one in artifact.collectives] == ["AllGather"]
    assert [one.kind for one in step.plan.collectives] == ["AllGather"]


LATER = {  # a parameter yields after the op in which the conflict seemed to be
    "message:b, feature:a+b": "feature:b, message:c, class:a+b",
    "message:b, node:b, feature:a+b, class:c": None,
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("layout", LATER)
def test_a_conflict_that_a_later_claim_ends_is_no_error(layout):
    program, mesh = trace_graph(61, 500, 24, 1), nm.Mesh(a=4, b=2, c=2)
    plan = nm.plan(program, mesh, layout, LATER[layout])
    cheapest = nm.plan(program, mesh, layout, LATER[layout], conflicts="cheapest")
    assert plan.collectives == cheapest.collectives
    assert not any("is computed as if nm." in text for text in plan.decisions)
