"""What reading a corpus found: how much of each language, and what was wrong where."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field

SHOWN = 5


@dataclass
class Report:
    """Sizes of a corpus by set and split, and its faults: the first few places of each kind, and how many in all."""

    root: str
    sizes: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)

    def fault(self, kind: str, place: str) -> None:
        """Counts one fault, at a file or a file:line under the root."""
        self.faults[kind] += 1
        shown = self.places.setdefault(kind, [])
        if len(shown) < SHOWN:
            shown.append(place)

    def fault_lines(self) -> list[str]:
        """One line for each kind of fault."""
        lines = []
        for kind, count in self.faults.items():
            more = count - len(self.places[kind])
            lines.append(
                f"{count:,} x {kind}: {', '.join(self.places[kind])}"
                + (f" and {more:,} more" if more else "")
            )
        return lines

    def __str__(self) -> str:
        lines = [
            f"{'set':<12} {'split':<6} {'languages':>9} {'pairs':>9}  {'largest':<16} {'median':>7}  smallest"
        ]
        for (set_name, split), sizes in self.sizes.items():
            row = f"{set_name:<12} {split:<6} {len(sizes):>9,} {sum(sizes.values()):>9,}"
            if sizes:
                largest, smallest = (
                    max(sizes, key=sizes.__getitem__),
                    min(sizes, key=sizes.__getitem__),
                )
                median = statistics.median_high(sizes.values())
                row += f"  {f'{largest} {sizes[largest]:,}':<16} {median:>7,}  {smallest} {sizes[smallest]:,}"
            lines.append(row)
        lines.append("left out of the above:" if self.faults else "no faults")
        lines += [f"  {line}" for line in self.fault_lines()]
        return "\n".join(lines)
