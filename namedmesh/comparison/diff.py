"""Diff: two plans side by side: what moved, what came and went, and what that costs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from namedmesh.comparison.diff_text import format_diff
from namedmesh.comparison.pairing import pair_items
from namedmesh.comparison.plan_record import (
    CollectiveRecord,
    PlanRecord,
    TensorRecord,
    shape_of,
)
from namedmesh.comparison.record_sources import record_of
from namedmesh.comparison.totals import measure

Change = tuple[TensorRecord, TensorRecord] | tuple[CollectiveRecord, CollectiveRecord]


@dataclass(frozen=True)
class Diff:
    """What differs between two plans. Prints as totals, then the changes, the largest first.

    Attributes:
        before: The first plan.
        after: The second.
        moved: Tensors that lie elsewhere or take other bytes, before and after.
        tensors_came: Tensors that only the second has.
        tensors_went: Tensors that only the first has.
        tensors_equal: How many tensors both have alike.
        changed: Collectives of another kind, axes, bytes or number of times, before and after.
        collectives_came: Collectives that only the second has.
        collectives_went: Collectives that only the first has.
        collectives_equal: How many collectives both have alike.

    Example:
        >>> import namedmesh as nm
        >>> B, M = nm.dims("batch=8 model=4")
        >>> program = nm.trace(lambda x: nm.sum(x, over=B), x=nm.spec([B, M]))
        >>> mesh = nm.Mesh(data=4)
        >>> difference = nm.diff(nm.plan(program, mesh, "batch:data"),
        ...                      nm.plan(program, mesh, "model:data"))
        >>> difference.same, [one.kind for one in difference.collectives_went]
        (False, ['AllReduce'])
        >>> difference.totals["wire_bytes"]
        (24, 0)
    """

    before: PlanRecord
    after: PlanRecord
    moved: tuple[tuple[TensorRecord, TensorRecord], ...]
    tensors_came: tuple[TensorRecord, ...]
    tensors_went: tuple[TensorRecord, ...]
    tensors_equal: int
    changed: tuple[tuple[CollectiveRecord, CollectiveRecord], ...]
    collectives_came: tuple[CollectiveRecord, ...]
    collectives_went: tuple[CollectiveRecord, ...]
    collectives_equal: int

    @property
    def totals(self) -> dict[str, tuple[float | None, float | None]]:
        """Every figure of both plans, None where it is not known.

        Those of a step: `bytes`, `wire_bytes`, `collectives`, `flops`, `memory`, `seconds`,
        `AllGather` and the other kinds; and by phase or kind, as `wire_bytes.backward`.
        """
        before, after = measure(self.before), measure(self.after)
        names = dict.fromkeys([*before, *after])
        return {name: (before.get(name, 0), after.get(name, 0)) for name in names}

    @property
    def same(self) -> bool:
        """Whether nothing differs: neither tensors nor collectives, nor a total both have."""
        changes = (self.moved, self.tensors_came, self.tensors_went, self.changed)
        if any(changes) or self.collectives_came or self.collectives_went:
            return False
        return all(a == b for a, b in self.totals.values() if None not in (a, b))

    @property
    def compares_tensors(self) -> bool:
        """Whether both sides say where tensors lie: what a compiler made does not."""
        return bool(self.before.tensors and self.after.tensors)

    def describe(self, most: int | None = 12) -> str:
        """Formats what differs.

        Args:
            most: How many changes of each sort to show, the largest first; None for all.

        Returns:
            The text.
        """
        return format_diff(self, most)

    def to_json(self) -> dict[str, Any]:
        """Returns what differs as values that JSON has.

        Returns:
            The totals of both, and every change.

        Example:
            >>> import namedmesh as nm
            >>> program = nm.trace(lambda x: nm.exp(x), x=nm.spec([nm.Dimension("batch", 8)]))
            >>> plan = nm.plan(program, nm.Mesh(data=4), "batch:data")
            >>> nm.diff(plan, plan).to_json()["tensors"]
            {'moved': [], 'came': [], 'went': [], 'equal': 2}
        """
        return {
            "same": self.same,
            "before": _describe_side(self.before),
            "after": _describe_side(self.after),
            "totals": {name: {"before": a, "after": b} for name, (a, b) in self.totals.items()},
            "tensors": _list_changes(
                self.moved, self.tensors_came, self.tensors_went, self.tensors_equal, "moved"
            ),
            "collectives": _list_changes(
                self.changed,
                self.collectives_came,
                self.collectives_went,
                self.collectives_equal,
                "changed",
            ),
        }

    def __str__(self) -> str:
        return self.describe()


def diff(a: Any, b: Any, target: Any = None) -> Diff:
    """Compares two plans: of two layouts, two versions of a model, two commits or two compilers.

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
    pairs, went, came = pair_items(before.tensors, after.tensors, _TENSOR_KEYS)
    moved = tuple((old, new) for old, new in pairs if _has_moved(old, new))
    # A plan leaves out what its Artifact lists, and what a compiler made has no tensors.
    alike = before.origin == after.origin
    communicated, ceased, begun = pair_items(
        before.collectives, after.collectives, _COLLECTIVE_KEYS
    )
    changed = tuple((old, new) for old, new in communicated if _communicates_otherwise(old, new))
    return Diff(
        before,
        after,
        moved,
        tuple(came) if alike else (),
        tuple(went) if alike else (),
        len(pairs) - len(moved),
        changed,
        tuple(begun),
        tuple(ceased),
        len(communicated) - len(changed),
    )


def _has_moved(old: TensorRecord, new: TensorRecord) -> bool:
    return (old.place, old.bytes_per_device) != (new.place, new.bytes_per_device)


def _communicates_otherwise(old: CollectiveRecord, new: CollectiveRecord) -> bool:
    facts = ("kind", "axes", "hop", "dtype", "bytes", "wire_bytes", "times", "devices")
    return any(getattr(old, name) != getattr(new, name) for name in facts)


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


def _list_changes(
    changes: tuple[Change, ...], came: Any, went: Any, equal: int, word: str
) -> Mapping[str, Any]:
    """The changes of one sort as JSON."""
    return {
        word: [
            {"before": dataclasses.asdict(old), "after": dataclasses.asdict(new)}
            for old, new in changes
        ],
        "came": [dataclasses.asdict(one) for one in came],
        "went": [dataclasses.asdict(one) for one in went],
        "equal": equal,
    }
