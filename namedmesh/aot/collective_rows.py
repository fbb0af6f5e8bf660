"""Planned and made collectives side by side, added up by kind, axes and dtypes."""

from __future__ import annotations

from dataclasses import dataclass

from namedmesh.dims.text import human
from namedmesh.runtime.audit import Audit
from namedmesh.runtime.description import dtype_of


@dataclass
class CollectiveRow:
    """Planned and made collectives of one kind, axes and dtypes, side by side.

    Attributes:
        kind: Such as `AllReduce`.
        axes: The mesh axes they run along.
        dtype: The planned dtype.
        sent_as: The dtype they are sent in.
        planned: How many a step has, as planned.
        made: How many it has, as compiled.
        planned_bytes: What one device sends or receives in a step, as planned.
        made_bytes: The same as compiled.
    """

    kind: str
    axes: tuple[str, ...]
    dtype: str
    sent_as: str
    planned: int = 0
    made: int = 0
    planned_bytes: int = 0
    made_bytes: int = 0

    def add(self, times: int, elements: int, *, planned: bool = False, made: bool = False) -> None:
        """Counts one more collective that runs so many times.

        Args:
            times: How often it runs in one step.
            elements: How many elements it sends.
            planned: Whether it is planned.
            made: Whether it was made.
        """
        if planned:
            self.planned += times
            self.planned_bytes += times * elements * dtype_of(self.dtype).itemsize
        if made:
            self.made += times
            self.made_bytes += times * elements * dtype_of(self.sent_as).itemsize

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of a table for people."""
        sent = self.sent_as if self.sent_as == self.dtype else f"{self.sent_as} for {self.dtype}"
        counts = (str(self.planned), str(self.made))
        sizes = (human(self.planned_bytes), human(self.made_bytes))
        return (self.kind, "+".join(self.axes), *counts, *sizes, sent)


def tabulate_collectives(audit: Audit) -> list[CollectiveRow]:
    """Adds up what was planned and what was made.

    Args:
        audit: The compiler's collectives against the plan's.

    Returns:
        A row for each kind, axes and dtypes.
    """
    rows: dict[tuple[str, tuple[str, ...], str, str], CollectiveRow] = {}

    def row(kind: str, axes: tuple[str, ...], dtype: str, sent_as: str) -> CollectiveRow:
        key = (kind, axes, dtype, sent_as)
        return rows.setdefault(key, CollectiveRow(*key))

    for plan, one in audit.matched:
        both = row(plan.kind, plan.axes, plan.dtype, one.dtype)
        both.add(plan.times, plan.elements, planned=True, made=True)
    for plan in (*audit.merged, *audit.missing):
        alone = row(plan.kind, plan.axes, plan.dtype, plan.dtype)
        alone.add(plan.times, plan.elements, planned=True)
    for one in audit.unplanned:
        other = row(one.kind, one.axes or ("other groups",), one.dtype, one.dtype)
        other.add(one.times, one.elements, made=True)
    return list(rows.values())
