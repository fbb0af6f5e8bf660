"""Planned and made collectives side by side, added up by kind, axes and dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from namedmesh.audit.audit import Audit
from namedmesh.audit.hlo.communication import CompiledCollective
from namedmesh.display.text import columns, human
from namedmesh.records.collective import Collective

_HEAD = (
    "collective",
    "axes",
    "planned",
    "made",
    "planned bytes",
    "made bytes",
    "planned on the wire",
    "made on the wire",
    "sent as",
)


@dataclass
class CollectiveRow:
    """Planned and made collectives of one kind, axes and dtypes, side by side.

    Attributes:
        kind: Such as `AllReduce`.
        axes: The mesh axes they run along.
        dtype: The planned dtype.
        sent_as: The dtype they are sent in.
        planned: How many a step has, as planned; a loop of unknown length counts as one iteration.
        made: How many it has, as compiled.
        planned_bytes: The bytes of their buffers in a step, as planned.
        made_bytes: The same as compiled.
        planned_wire_bytes: What one device sends in a step, by the usual algorithms, as planned.
        made_wire_bytes: The same as compiled.
    """

    kind: str
    axes: tuple[str, ...]
    dtype: str
    sent_as: str
    planned: int = 0
    made: int = 0
    planned_bytes: int = 0
    made_bytes: int = 0
    planned_wire_bytes: int = 0
    made_wire_bytes: int = 0

    def add(
        self, planned: Collective | None = None, made: CompiledCollective | None = None
    ) -> None:
        """Count one more collective, with all its runs."""
        if planned:
            self.planned += planned.times
            self.planned_bytes += planned.total_bytes
            self.planned_wire_bytes += planned.total_wire_bytes
        if made:
            self.made += made.times
            self.made_bytes += made.times * made.bytes
            self.made_wire_bytes += made.times * made.wire_bytes

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of a table for people."""
        sent = self.sent_as if self.sent_as == self.dtype else f"{self.sent_as} for {self.dtype}"
        counts = (str(self.planned), str(self.made))
        return (self.kind, "+".join(self.axes), *counts, *map(human, self.sizes), sent)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Planned and made bytes of buffers, then on the wire."""
        return self.planned_bytes, self.made_bytes, self.planned_wire_bytes, self.made_wire_bytes


def tabulate_collectives(audit: Audit) -> list[CollectiveRow]:
    """Add up what was planned and what was made."""
    rows: dict[tuple[str, tuple[str, ...], str, str], CollectiveRow] = {}

    def row(kind: str, axes: tuple[str, ...], dtype: str, sent_as: str) -> CollectiveRow:
        key = (kind, axes, dtype, sent_as)
        return rows.setdefault(key, CollectiveRow(*key))

    different = [(one.planned, one.compiled) for one in audit.differences]
    for plan, one in (*audit.matched, *different):
        row(plan.kind, plan.axes, plan.dtype, one.dtype).add(plan, one)
    for plan in (*audit.merged, *audit.missing):
        row(plan.kind, plan.axes, plan.dtype, plan.dtype).add(planned=plan)
    for one in audit.unplanned:
        axes = one.axes or ("other groups",)
        row(one.kind, axes, one.dtype, one.dtype).add(made=one)
    return list(rows.values())


def format_rows(rows: Sequence[CollectiveRow], indent: int) -> list[str]:
    """Format rows as lines of a table, with what they add up to."""
    if not rows:
        return [" " * indent + "none"]
    counts = (sum(row.planned for row in rows), sum(row.made for row in rows))
    sizes = (human(sum(size)) for size in zip(*(row.sizes for row in rows), strict=True))
    total = ("all", "", *map(str, counts), *sizes, "")
    return columns([_HEAD, *(row.cells for row in rows), total], indent)
