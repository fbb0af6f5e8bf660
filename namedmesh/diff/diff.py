"""Diff: two plans side by side: what moved, what came and went, and what that costs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from namedmesh.diff.changes import Changes
from namedmesh.diff.sources import record_of
from namedmesh.diff.text import format_diff
from namedmesh.diff.totals import measure
from namedmesh.errors.errors import NamedMeshError, whole_number
from namedmesh.planning.plan_record import (
    CollectiveRecord,
    PlanRecord,
    TensorRecord,
    shape_of,
)


@dataclass(frozen=True)
class Diff:
    """What differs between two plans. Prints as totals, then the changes, the largest first.

    Attributes:
        before: The first plan.
        after: The second.
        tensors: Those that lie elsewhere or take other bytes, that came, and that went.
        collectives: Those of another kind, axes, bytes or number of times, that came, and that
            went.

    Example:
        >>> import namedmesh as nm
        >>> B, M = nm.dims("batch=8 model=4")
        >>> program = nm.trace(lambda x: nm.sum(x, over=B), x=nm.spec([B, M]))
        >>> mesh = nm.Mesh(data=4)
        >>> difference = nm.diff(nm.plan(program, mesh, "batch:data"),
        ...                      nm.plan(program, mesh, "model:data"))
        >>> difference.same, [one.kind for one in difference.collectives.went]
        (False, ['AllReduce'])
        >>> difference.totals["wire_bytes"]
        (24, 0)
    """

    before: PlanRecord
    after: PlanRecord
    tensors: Changes[TensorRecord]
    collectives: Changes[CollectiveRecord]

    @property
    def totals(self) -> dict[str, tuple[float | None, float | None]]:
        """Every figure of both plans, None where it is not known.

        Those of a step: `bytes`, `wire_bytes`, `host_bytes`, `slice_bytes`, `collectives`, `flops`,
        `memory`, `seconds`, `AllGather` and the other kinds; and by phase or kind, as
        `wire_bytes.backward`.
        """
        before, after = measure(self.before), measure(self.after)
        names = dict.fromkeys([*before, *after])
        return {name: (before.get(name, 0), after.get(name, 0)) for name in names}

    @property
    def same(self) -> bool:
        """Whether nothing differs: neither tensors nor collectives, nor a total both have."""
        if self.tensors or self.collectives:
            return False
        return all(a == b for a, b in self.totals.values() if None not in (a, b))

    def describe(self, most: int | None = 12) -> str:
        """Format what differs.

        Args:
            most: How many changes of each sort to show, the largest first; None for all.

        Returns:
            The text.

        Raises:
            NamedMeshError: It is not a number of changes.
        """
        if most is not None and ((number := whole_number(most)) is None or number < 0):
            raise NamedMeshError(
                f"{most!r} is not a number of changes", fix="give a whole number, or None for all"
            )
        sides = (self.before, self.after)
        totals = {} if self.same else self.totals
        return format_diff(sides, totals, self.tensors, self.collectives, most)

    def to_json(self) -> dict[str, Any]:
        """Return what differs as values that JSON has.

        Returns:
            The totals of both, and every change.

        Example:
            >>> import namedmesh as nm
            >>> program = nm.trace(lambda x: nm.exp(x), x=nm.spec([nm.Dimension("batch", 8)]))
            >>> plan = nm.plan(program, nm.Mesh(data=4), "batch:data")
            >>> nm.diff(plan, plan).to_json()["tensors"]
            {'changed': [], 'came': [], 'went': [], 'equal': 2}
        """
        return {
            "same": self.same,
            "before": _describe_side(self.before),
            "after": _describe_side(self.after),
            "totals": {name: {"before": a, "after": b} for name, (a, b) in self.totals.items()},
            "tensors": self.tensors.to_json(),
            "collectives": self.collectives.to_json(),
        }

    def __str__(self) -> str:
        return self.describe()


def diff(a: Any, b: Any, target: Any = None) -> Diff:
    """Compare two plans: of two layouts, two versions of a model, two commits or two compilers.

    Tensors and collectives are matched by name, scope, phase and function, not by line, so that an
    edit above them changes nothing.

    Args:
        a: What is compared: a Plan, the path of a saved plan or of an Artifact, an Artifact, an
            Audit or a compiled step (what the compiler made), or a report of ahead-of-time
            compilation, its row or its file.
        b: What it is compared with, of the same sort or another.
        target: What `nm.cost` takes, for the estimated time and memory of Plans; files have those
            that they were saved with.

    Returns:
        What differs.

    Raises:
        NamedMeshError: If one of them cannot be compared, or a file cannot be read.

    Example:
        >>> import namedmesh as nm
        >>> B, M, H = nm.dims("batch=8 model=4 hidden=16")
        >>> def layer(x):
        ...     w = nm.param("w", [M, H])
        ...     return nm.einsum([x, w], [B, H])
        >>> program = nm.trace(layer, x=nm.spec([B, M]))
        >>> mesh = nm.Mesh(data=4)
        >>> print(nm.diff(nm.plan(program, mesh, "batch:data"),
        ...               nm.plan(program, mesh, "batch:data", params="hidden:data")))
        layer on Mesh(data=4), layout 'batch:data'
          params: as the layout -> 'hidden:data'
        <BLANKLINE>
          total        before  after  change
          bytes        0 B     256 B  new
          wire_bytes   0 B     192 B  new
          collectives  0       1      new
          AllGather    0       1      new
        <BLANKLINE>
          collectives: 0 changed, 1 came, 0 went, 0 the same
            + forward AllGather of w over data: 192 B on the wire
        <BLANKLINE>
          tensors: 1 moved, 0 came, 0 went, 2 the same
            ~ w: float32[model=4, hidden=16]: hidden whole -> data, 256 B -> 64 B
    """
    before, after = record_of(a, target), record_of(b, target)
    if before.origin == after.origin:
        tensors = Changes.between(before.tensors, after.tensors, _TENSOR_KEYS, _find_place)
    else:
        # An Artifact lists tensors that a plan leaves out, and does not say which are parts of
        # sums; what a compiler made has no tensors.
        tensors = Changes.between(before.tensors, after.tensors, _TENSOR_KEYS, _find_whole_place)
        tensors = Changes(tensors.changed, (), (), tensors.equal)
    collectives = Changes.between(
        before.collectives, after.collectives, _COLLECTIVE_KEYS, _describe_way
    )
    return Diff(before, after, tensors, collectives)


def _find_place(one: TensorRecord) -> object:
    return one.place, one.bytes_per_device


def _find_whole_place(one: TensorRecord) -> object:
    return one.place.partition(" parts/")[0], one.bytes_per_device


def _describe_way(one: CollectiveRecord) -> object:
    facts = (one.kind, one.axes, one.hop, one.dtype, one.devices)
    return *facts, one.bytes, one.wire_bytes, one.host_bytes, one.slice_bytes, one.times


def _op_kind(op: str) -> str:
    """An op's name without its number, which shifts with every op above it."""
    return re.sub(r"\.\d+$", "", op)


# What the two sides of a pair have in common: first all that counts, so that equal ones are never
# taken for changes; then less. A function, a scope or a shape may change; a tensor of another name
# is another one.
_TENSOR_KEYS = (
    lambda one: (one.tensor, one.scope, one.phase, one.function, one.place, one.bytes_per_device),
    lambda one: (one.tensor, one.scope, one.phase, one.function, shape_of(one.place)),
    lambda one: (one.tensor, one.scope, one.phase, one.function),
    lambda one: (one.tensor, one.scope, one.phase, shape_of(one.place)),
    lambda one: (one.tensor, one.phase, shape_of(one.place)),
    lambda one: (one.tensor, shape_of(one.place)),
)
_COLLECTIVE_KEYS = (
    lambda one: (
        *(one.phase, one.kind, one.axes, one.hop, one.tensor, one.scope),
        *(_op_kind(one.op), one.function, one.dtype, one.bytes, one.times),
    ),
    lambda one: (one.phase, one.kind, one.axes, one.hop, one.tensor, one.scope, one.bytes),
    lambda one: (one.phase, one.kind, one.axes, one.tensor, one.scope, _op_kind(one.op)),
    lambda one: (one.phase, one.kind, one.axes, one.tensor, one.scope),
    lambda one: (one.phase, one.kind, one.tensor, one.scope),
    lambda one: (one.phase, one.tensor, one.scope, _op_kind(one.op)),
    lambda one: (one.phase, one.kind, one.axes, one.tensor),
)


def _describe_side(record: PlanRecord) -> dict[str, Any]:
    """What a record is of, without its tensors and collectives."""
    names = ("origin", "program", "mesh", "layout", "params", "target")
    return {name: getattr(record, name) for name in names}
