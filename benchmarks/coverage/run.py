"""Runs an op under random layouts and says what came of each column."""

from __future__ import annotations

import functools
import random
import zlib
from typing import Any

import numpy as np

import namedmesh as nm
from benchmarks.coverage.catalogue import make_entry
from benchmarks.coverage.entry import (
    BATCH,
    COLUMNS,
    FIRST,
    NARROW,
    SECOND,
    UNEVEN,
    Entry,
    as_dtype,
)
from benchmarks.coverage.kit import Kit
from benchmarks.coverage.layouts import draw_layout, spread
from benchmarks.coverage.references import expected
from namedmesh.signature.nest import flatten
from tests.checks import assert_all_near, cotangent_array, plan_anyway

ORDERS = {FIRST: 1, SECOND: 2}
TOLERANCE = 1e-4  # of float32, for sums in any order and second derivatives
ROUNDOFF = 2.0**-8  # of bfloat16: half the distance between 1 and the next number

Cell = str | dict[str, str]


class Check:
    """One op at one size and dtype, with what it must return."""

    def __init__(self, name: str, kit: Kit, order: int):
        self.kit, self.order = kit, order
        self.entry = make_entry(name, kit)
        self.program = nm.trace(self.function, **self.entry.specs)
        seed = zlib.crc32(name.encode())
        self.arrays = self.entry.draw(seed)
        rng = np.random.default_rng(seed + 1)
        self.state = {
            name: as_dtype(rng.uniform(-1, 1, variable.shape.sizes), variable.dtype)
            for name, variable in self.program.variables.items()
        }

    def function(self, **given: nm.Tensor) -> dict[str, Any]:
        """Make the op's results, and the derivatives of a loss in all that is floating point."""
        found = flatten(self.entry.named(*given.values()))
        results = {"value": found}
        wrt = [x for x in given.values() if x.floating]
        wrt += [one for _, one in sorted(nm.parameters().items())]
        if self.order > 0:
            floats = [nm.cast(y, "float32") for y in found if y.floating]
            loss = _weigh([y + y * y * 0.5 for y in floats])
            results["first"] = nm.grad(loss, wrt)
        if self.order > 1:
            results["second"] = nm.grad(_weigh(results["first"]), wrt)
        return results

    @functools.cached_property
    def expected(self) -> dict[str, Any]:
        """Return the expected result of a run."""
        if self.entry.reference is None:
            return self.program.evaluate(self.state, **self.arrays)[1]
        weights = {name: self.state[name] for name in self.program.parameters}
        return expected(self.entry, self.arrays, weights, self.order)

    def run(self, mesh: nm.Mesh, layout: nm.Layout) -> None:
        """Run the op on a mesh, audited; raises where anything is not as it must be."""
        plan, _ = plan_anyway(self.program, mesh, layout)
        step = nm.Step(plan, strict=True)
        _, results = step(step.place(self.state), **self.arrays)
        narrow = self.entry.narrow or self.kit.dtype == "bfloat16"
        for key, wanted in self.expected.items():
            rounded = ROUNDOFF * self.entry.roundings * (1 if key == "value" else 2)
            assert all(np.isfinite(np.asarray(one, "float64")).all() for one in wanted)
            assert_all_near(results[key], wanted, rounded if narrow else TOLERANCE, key)
        if self.entry.holds:
            assert self.entry.holds(*map(np.asarray, results["value"])), "not in its range"


def _weigh(tensors: list[nm.Tensor]) -> nm.Tensor:
    """Add up tensors, each element with a weight of its own."""
    total = nm.zeros([])
    for x in tensors:
        weights = nm.constant(cotangent_array(x.shape.sizes), x.shape, "float32")
        total = total + nm.sum(nm.cast(x, "float32") * weights)
    return total


def reasons_of(entry: Entry) -> dict[str, str]:
    """Why columns cannot be filled: what the entry says, and what follows from its dtypes."""
    program = nm.trace(lambda **given: flatten(entry.named(*given.values())), **entry.specs)
    results = any(tensor.floating for tensor in program.outputs)
    operands = any("float" in one.spec.dtype for one in entry.inputs) or bool(program.parameters)
    reasons = dict(entry.reasons)
    if not operands and not entry.inputs:
        derivative = "it has no operand to differentiate by"
    elif not operands:
        derivative = "its operands are whole numbers or truth values, which have no derivative"
    elif not results:
        derivative = "its results are whole numbers or truth values, which have no derivative"
    else:
        derivative = None
    if derivative:
        reasons |= {FIRST: derivative, SECOND: derivative}
    if not operands and not results:
        reasons[NARROW] = "it has neither operands nor results in floating point"
    if not entry.batch:
        reasons[BATCH] = "every dimension is its own"
    return reasons


def refuses(name: str, column: str) -> bool:
    """Check that a derivative that an entry excludes is refused, or zero everywhere."""
    try:
        check = Check(name, Kit(), ORDERS[column])
    except nm.NamedMeshError:
        return True
    check.run(nm.Mesh(x=1), nm.Layout({}))
    derivative = check.expected["first" if column == FIRST else "second"]
    return not any(np.any(one) for one in derivative)


def run_op(name: str, layouts: int, seed: int) -> dict[str, Cell]:
    """Fill an op's row of the table.

    Layouts are shared out between the columns that can be filled. A cell is "ok" where every run
    returned what it must, with the collectives of its plan and no others.
    """
    try:
        return _fill_row(name, layouts, seed)
    except Exception as error:  # its entry is wrong
        failure = f"{type(error).__name__}: {error}"[:2000]
        return {column: {"failed": failure} for column in COLUMNS}


def _fill_row(name: str, layouts: int, seed: int) -> dict[str, Cell]:
    entry = make_entry(name, Kit())
    reasons = reasons_of(entry)
    cells: dict[str, Cell] = {column: {"reason": reasons[column]} for column in reasons}
    for column in entry.reasons:
        if column in ORDERS and not refuses(name, column):
            cells[column] = {"failed": f"it has a derivative, though: {reasons[column]}"}
    columns = [column for column in COLUMNS if column not in reasons]
    differentiable = FIRST not in reasons

    @functools.cache
    def check_of(uneven: bool, dtype: str, order: int) -> Check:
        return Check(name, Kit(uneven, dtype), order)

    for i, column in enumerate(spread(columns, layouts)):
        if isinstance(cells.get(column), dict):
            continue  # it failed before
        rng = random.Random(f"{seed}/{name}/{i}")
        mesh, layout = draw_layout(rng, entry, column)
        uneven = column == UNEVEN or (column in (FIRST, SECOND, NARROW) and rng.random() < 0.3)
        dtype = "bfloat16" if column == NARROW else "float32"
        order = ORDERS.get(column, int(column == NARROW and differentiable))
        try:
            check_of(uneven, dtype, order).run(mesh, layout)
            cells[column] = "ok"
        except Exception as error:
            sizes = "uneven" if uneven else "even"
            where = f"layout {i}: {layout.text!r} on {mesh}, {sizes} sizes, {dtype}"
            cells[column] = {"failed": f"{where}: {type(error).__name__}: {error}"[:2000]}
    return {column: cells[column] for column in COLUMNS}
