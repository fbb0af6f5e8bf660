"""Exploration: which candidates of a space are planned, in which order, and why others are not."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from namedmesh.display.text import human
from namedmesh.search.measure import Measure
from namedmesh.search.space import Space

MARGIN = 0.2  # estimates are taken to be at most so much too high
ROUND = 16  # candidates planned at once, whatever the number of processes
BOUNDED = "no better than a planned one even at best"
TOO_LARGE = "needs more memory than there is even at best"
OVER = "needs more memory than there is once planned"
UNEVEN = "does not divide a dimension evenly"
REFUSED = "refused: operands disagree"
INVALID = "refused: not a plan"
WORSE = "planned, and no better than another"
LEFT = "estimated slower, not planned"


@dataclass
class Exploration:
    """The state of a search: open candidates, and measures of planned ones."""

    space: Space
    limit: float  # the memory of a device
    plans: int  # how many candidates to plan at most
    measures: dict[int, Measure] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)  # why candidates were left out
    refusals: Counter[str] = field(default_factory=Counter)  # by what the planner said

    def __post_init__(self) -> None:
        space = self.space
        self.open: NDArray[np.bool_] = np.ones(len(space.family), bool)
        self.reasons[UNEVEN] += space.uneven
        roles = {}
        for family in space.families:
            roles.setdefault((family.variant, family.roles), len(roles))
        groups = [roles[family.variant, family.roles] for family in space.families]
        self._group = np.array(groups, np.int64)[space.family]
        # How far estimates were off, in all layouts of a family, and of one with the same roles.
        self._off_family = np.full(len(space.families), np.nan)
        self._off_group = np.full(len(roles), np.nan)
        self._size_group = np.full(len(roles), np.nan)
        self._close(space.least_bytes > self.limit, TOO_LARGE)

    def _close(self, candidates: NDArray[np.bool_], reason: str) -> None:
        """Leave open candidates out for a reason."""
        candidates = candidates & self.open
        self.reasons[reason] += int(candidates.sum())
        self.open &= ~candidates

    @property
    def planned(self) -> int:
        """The number of candidates that have a plan."""
        return sum(not one.refused for one in self.measures.values())

    def front(self) -> list[int]:
        """Return the candidates that fit, and than which no other is both faster and smaller."""
        return self._find_front(fitting=True)

    def too_large(self) -> list[int]:
        """Return the same of candidates that do not fit."""
        return self._find_front(fitting=False)

    def _find_front(self, fitting: bool) -> list[int]:
        front, smallest = [], np.inf
        ranked = ((one.seconds, one.memory_bytes, i, one) for i, one in self.measures.items())
        for _, size, i, one in sorted(ranked, key=lambda row: row[:3]):
            if not one.refused and (size <= self.limit) == fitting and size < smallest:
                front.append(i)
                smallest = size
        return front

    def choose(self) -> list[int]:
        """Choose what to plan next: mostly what should be fast, some of what should be small."""
        candidates = np.flatnonzero(self.open)
        most = min(ROUND, self.plans - len(self.measures))
        seconds, size = self._estimate(candidates)
        # Where there are more candidates than plans, leave out those that would not be better even
        # if they took a good deal less than estimated.
        if len(candidates) > self.plans - len(self.measures):
            hopeful = np.ones(len(candidates), bool)
            for one in self.front():
                best = self.measures[one]
                slower = seconds * (1 - MARGIN) >= best.seconds
                hopeful &= ~(slower & (size * (1 - MARGIN) >= best.memory_bytes))
            candidates, seconds, size = candidates[hopeful], seconds[hopeful], size[hopeful]
        late = np.where(size > self.limit, 1e6, 1.0)  # what will not fit comes last
        keys = seconds * late, seconds * size * late
        queues = [iter(candidates[np.argsort(key, kind="stable")].tolist()) for key in keys]
        chosen: dict[int, None] = {}
        cycle = itertools.cycle((0, 0, 1))
        while len(chosen) < min(most, len(candidates)):
            new = next((one for one in queues[next(cycle)] if one not in chosen), None)
            if new is not None:
                chosen[new] = None
        return list(chosen)

    def _estimate(self, candidates: NDArray[np.int64]) -> tuple[NDArray, NDArray]:
        """Estimate the cost of candidates from planned ones like them."""
        space = self.space
        group = self._group[candidates]
        off = self._off_family[space.family[candidates]]
        off = np.where(np.isnan(off), self._off_group[group], off)
        size = _fill(self._size_group[group], self._size_group)
        seconds = space.seconds[candidates] * _fill(off, self._off_group)
        return seconds, space.least_bytes[candidates] * size

    def add(self, candidates: Sequence[int], found: Sequence[Measure]) -> None:
        """Add measures, and leave out candidates that cannot be better."""
        self.open[candidates] = False
        for one, measure in zip(candidates, found, strict=True):
            self.measures[one] = measure
            if measure.refused:
                self.refusals[measure.refused] += 1
                self.reasons[REFUSED if measure.conflict else INVALID] += 1
                if measure.conflict:
                    self._close_conflict(one, measure.conflict)
                continue
            self._calibrate(one, measure)
        for one in self.front():
            best = self.measures[one]
            slower = self.space.least_seconds >= best.seconds
            self._close(slower & (self.space.least_bytes >= best.memory_bytes), BOUNDED)

    def _close_conflict(self, one: int, dims: Sequence[str]) -> None:
        """Leave out the layouts in which the same two dimensions share an axis."""
        families, pair = self.space.families, frozenset(dims)
        variant = families[self.space.family[one]].variant
        same = self._group == self._group[one]
        if len(pair) == 2:
            shares = [any(pair <= role for role in family.roles.roles) for family in families]
            alike = np.array(shares) & np.array([family.variant == variant for family in families])
            same |= alike[self.space.family]
        self._close(same, REFUSED)

    def _calibrate(self, one: int, measure: Measure) -> None:
        """Record how far the estimates of a candidate were off."""
        space = self.space
        off = measure.seconds / max(space.seconds[one], 1e-12)
        size = measure.memory_bytes / max(space.least_bytes[one], 1.0)
        self._off_family[space.family[one]] = off
        group = self._group[one]
        for table, value in ((self._off_group, off), (self._size_group, size)):
            table[group] = value if np.isnan(table[group]) else min(table[group], value)

    def count_reasons(self) -> dict[str, int]:
        """Count why candidates are not on the front, the most frequent reason first."""
        counts = Counter(self.reasons)
        front = {*self.front()}
        for one, measure in self.measures.items():
            if not measure.refused and one not in front:
                counts[OVER if measure.memory_bytes > self.limit else WORSE] += 1
        counts[LEFT] += int(self.open.sum())
        return {reason: count for reason, count in counts.most_common() if count}


def _fill(ratios: NDArray, known: NDArray) -> NDArray:
    """Replace unknown ratios by that of the best tenth of the known ones."""
    known = known[~np.isnan(known)]
    return np.where(np.isnan(ratios), np.quantile(known, 0.1) if len(known) else 1.0, ratios)


@contextlib.contextmanager
def show_progress(wanted: bool | None, plans: int) -> Iterator[Callable[[Exploration], None]]:
    """Open a function that shows on a terminal how much was planned, and the fastest so far."""
    present = importlib.util.find_spec("rich") is not None
    if not present or not (sys.stderr.isatty() if wanted is None else wanted):
        yield lambda exploration: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = BarColumn(bar_width=24), TextColumn("{task.description}", markup=False)
    # No thread of its own: processes are forked while it is shown.
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as bar:
        task = bar.add_task("", total=plans)

        def show(exploration: Exploration) -> None:
            done, left = len(exploration.measures), int(exploration.open.sum())
            text = f"{done} planned, {left:,} open"
            if front := exploration.front():
                best = exploration.measures[front[0]]
                text += f", best {best.seconds * 1e3:.4g} ms, {human(best.memory_bytes)}"
            bar.update(task, completed=done, description=text, refresh=True)

        yield show
