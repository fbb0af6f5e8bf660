"""The report of reading a corpus: how much of each language, and what was wrong where."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field

SHOWN = 5


@dataclass
class Report:
    """Sizes of a corpus by set and split; its faults by kind, with the first places of each."""

    root: str
    sizes: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)

    def fault(self, kind: str, place: str) -> None:
        """Count one fault, at a file or a file:line under the root."""
        self.faults[kind] += 1
        shown = self.places.setdefault(kind, [])
        if len(shown) < SHOWN:
            shown.append(place)

    def fault_lines(self) -> list[str]:
        """Format one line for each kind of fault."""
        lines = []
        for kind, count in self.faults.items():
            more = count - len(self.places[kind])
            lines.append(
                f"{count:,} x {kind}: {', '.join(self.places[kind])}"
                + (f" and {more:,} more" if more else "")
            )
        return lines

    def __str__(self) -> str:
        from namedmesh.training import render_table  # here, since it imports jax

        header = ["set", "split", "languages", "pairs", "largest", "median", "smallest"]
        rows = []
        for (set_name, split), sizes in self.sizes.items():
            row = [set_name, split, f"{len(sizes):,}", f"{sum(sizes.values()):,}"]
            if sizes:
                largest, smallest = (
                    max(sizes, key=sizes.__getitem__),
                    min(sizes, key=sizes.__getitem__),
                )
                row += [
                    f"{largest} {sizes[largest]:,}",
                    f"{statistics.median_high(sizes.values()):,}",
                    f"{smallest} {sizes[smallest]:,}",
                ]
            rows.append(row)
        table = render_table(header, rows, right=["languages", "pairs", "median"])
        faults = [f"  {line}" for line in self.fault_lines()]
        return "\n".join([table, "left out of the above:" if faults else "no faults", *faults])
