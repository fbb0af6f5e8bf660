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
from namedmesh.search.roles import RoleSet
from namedmesh.search.space import Space

MARGIN = 0.2  # estimates are taken to be at most so much too high
ROUND = 16  # candidates planned at once, whatever the number of processes
RESERVED = 2  # one in so many plans is for neighbours of the best, if not all can be planned,
MOST_FAR = 128  # and all but so many: what is next to the best is found sooner than by estimates
SPLIT_LESS = 4  # one in so many neighbours is one that splits less than the centre
NEAR = 1.5  # candidates that take up to so many times the best's time may be next to a better one
MOST_VAIN = 16  # centres in a row that are next to nothing better
HOPELESS = 1e3  # how far the estimates of what was refused are off
BOUNDED = "no better than a planned one even at best"
TOO_LARGE = "needs more memory than there is even at best"
OVER = "needs more memory than there is once planned"
REFUSED = "refused by the planner"
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
        self._centres: list[int] = []  # whose neighbours are in the space
        self._best_before: list[int] = []  # the best when the last centre was chosen ...
        self._vain = 0  # ... and for how many centres it has been the same
        self._groups: dict[tuple[int, RoleSet], int] = {}
        self._group = np.empty(0, np.int64)  # of each candidate: its variant and roles
        # How far estimates were off, in all layouts of a family, and of one with the same roles.
        self._off_family = np.empty(0)
        self._off_group = np.empty(0)
        self._size_group = np.empty(0)
        # The same where two dimensions conflict on an axis, and in which families they share one.
        self._off_pair: dict[tuple[int, frozenset[str]], float] = {}
        self._sharing: dict[tuple[int, frozenset[str]], NDArray[np.bool_]] = {}
        self._index()
        self.reasons.update(space.too_small)
        self._close(space.least_bytes > self.limit, TOO_LARGE)
        # Estimates may be wrong, so that some plans are for what is next to the best.
        reserved = max(self.plans // RESERVED, self.plans - MOST_FAR)
        self.reserved = reserved if self.open.sum() > self.plans else 0

    def _index(self) -> None:
        """Number the roles of families, and make room for what is learned of them."""
        space, before = self.space, len(self._off_family)
        keys = [(family.variant, family.roles) for family in space.families[before:]]
        numbers = [self._groups.setdefault(key, len(self._groups)) for key in keys]
        more = np.array(numbers, np.int64)[space.family[len(self._group) :] - before]
        self._group = np.append(self._group, more)
        unknown = np.full(len(space.families) - before, np.nan)
        self._off_family = np.append(self._off_family, unknown)
        more = np.full(len(self._groups) - len(self._off_group), np.nan)
        self._off_group = np.append(self._off_group, more)
        self._size_group = np.append(self._size_group, more)

    def extend(self, space: Space, near: int) -> None:
        """Go on with more candidates; estimates of new ones are off as that of one near them."""
        before = len(self._off_family)
        self.open = np.append(self.open, np.ones(len(space.family) - len(self.space.family), bool))
        off = self._off_family[self.space.family[near]]
        self.space = space
        self._index()
        self._off_family[before:] = off

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

    def floor(self) -> float:
        """Return seconds than which no candidate that fits can take less, planned or not."""
        least = np.where(self.space.least_bytes > self.limit, np.inf, self.space.least_seconds)
        for i, one in self.measures.items():
            fits = not one.refused and one.memory_bytes <= self.limit
            least[i] = one.seconds if fits else np.inf
        return float(least.min(initial=np.inf))

    def too_large(self) -> list[int]:
        """Return the same of candidates that do not fit."""
        return self._find_front(fitting=False)

    def _find_front(self, fitting: bool) -> list[int]:
        front, smallest = [], np.inf
        # Of equal ones, a layout without conflicts comes first: its plan needs no word more.
        ranked = (
            (one.seconds, one.memory_bytes, one.conflicts != "error", i, one)
            for i, one in self.measures.items()
        )
        for _, size, _, i, one in sorted(ranked, key=lambda row: row[:4]):
            if not one.refused and (size <= self.limit) == fitting and size < smallest:
                front.append(i)
                smallest = size
        return front

    def find_centre(self) -> int | None:
        """Return the next candidate whose neighbours to plan, or None where that is done."""
        # The best of all, then the best of as many axes: what is best with few of them may be worse
        # than what has more, and yet be next to something better. Then those that are nearly as
        # fast, until several of them in a row were next to nothing better.
        if len(self.measures) >= self.plans:
            return None
        leaders = self._leaders()
        best = self.measures[leaders[0]].seconds if leaders else 0.0
        # Layouts that take the same are mostly one under several names, next to the same others.
        measures = self.measures
        known = {(measures[i].seconds, measures[i].memory_bytes) for i in self._centres}
        near = [
            i
            for i in self._rank_fitting()
            if measures[i].seconds <= NEAR * best
            and (measures[i].seconds, measures[i].memory_bytes) not in known
        ]
        centre = next((one for one in (*leaders, *near) if one not in self._centres), None)
        self._vain = self._vain + 1 if self._best_before == leaders[:1] else 0
        self._best_before = leaders[:1]
        if centre is None or (centre not in leaders and self._vain > MOST_VAIN):
            return None
        self._centres.append(centre)
        return centre

    def is_best(self, centre: int) -> bool:
        """Return whether a candidate is the fastest of all."""
        return self._leaders()[:1] == [centre]

    def leads(self, centre: int) -> bool:
        """Return whether a candidate is still the best of all, or of as many axes."""
        return centre in self._leaders()

    def _leaders(self) -> list[int]:
        """Return the fastest candidate that fits of all and of each number of axes."""
        ranked = self._rank_fitting()
        if not ranked:  # the smallest then
            some = [(one.memory_bytes, i) for i, one in self.measures.items() if not one.refused]
            return [i for _, i in sorted(some)[:1]]
        leaders = {0: ranked[0]}
        for i in ranked:
            leaders.setdefault(len(self.space.families[self.space.family[i]].rest), i)
        return list(dict.fromkeys(leaders[count] for count in sorted(leaders)))

    def _rank_fitting(self) -> list[int]:
        """Return the candidates that fit, the fastest first."""
        fits = {
            i: one.seconds
            for i, one in self.measures.items()
            if not one.refused and one.memory_bytes <= self.limit
        }
        return sorted(fits, key=fits.__getitem__)

    def fastest(self, count: int) -> list[int]:
        """Return so many candidates that fit, the fastest first; of equal ones the first."""
        distinct: dict[Measure, int] = {}
        for i in self._rank_fitting() if count else ():
            distinct.setdefault(self.measures[i], i)
            if len(distinct) == count:
                break
        return list(distinct.values())

    def variant_of(self, candidate: int) -> int:
        """Return the number of a candidate's program."""
        return self.space.families[self.space.family[candidate]].variant

    def choose_near(self, start: int, centre: int) -> list[int]:
        """Choose what to plan next of a centre's neighbours: mostly what should be fastest."""
        candidates = np.flatnonzero(self.open[start:]) + start
        most = min(ROUND, self.plans - len(self.measures))
        order = np.argsort(self._rank_by_time(*self._estimate(candidates)), kind="stable")
        fastest = candidates[order].tolist()
        # Estimates leave out most of what splitting costs: where that is more than it saves, what
        # splits less than the centre takes less, though it is estimated slowest.
        held = self.space.shards_of(centre)
        less = [one for one in fastest if self.space.shards_of(one) < held]
        return list(dict.fromkeys([*less[: most // SPLIT_LESS], *fastest]))[:most]

    def _rank_by_time(self, seconds: NDArray, size: NDArray) -> NDArray:
        """Return keys that put what is fast first: what will not fit comes last."""
        if self.measures and not self._rank_fitting():
            return size  # until something fits, the smallest first
        return seconds * np.where(size > self.limit, 1e6, 1.0)

    def choose(self) -> list[int]:
        """Choose what to plan next: mostly what should be fast, some of what should be small."""
        candidates = np.flatnonzero(self.open)
        left = self.plans - self.reserved - len(self.measures)
        most = min(ROUND, left)
        seconds, size = self._estimate(candidates)
        # Where there are more candidates than plans, leave out those that would not be better even
        # if they took a good deal less than estimated.
        if len(candidates) > left:
            hopeful = np.ones(len(candidates), bool)
            for one in self.front():
                best = self.measures[one]
                slower = seconds * (1 - MARGIN) >= best.seconds
                hopeful &= ~(slower & (size * (1 - MARGIN) >= best.memory_bytes))
            candidates, seconds, size = candidates[hopeful], seconds[hopeful], size[hopeful]
        keys = self._rank_by_time(seconds, size), self._rank_by_time(seconds * size, size)
        few = 2 * ROUND if self.measures else len(candidates)
        orders = [candidates[_find_smallest(key, few)] for key in keys]
        queues = [iter(order.tolist()) for order in orders]
        chosen: dict[int, None] = {}
        if not self.measures:
            # What everybody would try, whatever is estimated: each dimension alone, and few axes,
            # each for as many dimensions as can share it.
            simple = self._simple()[orders[0]]
            chosen = dict.fromkeys([*self._find_alone(orders[0]), *orders[0][simple].tolist()])
            chosen = dict.fromkeys([*chosen][:most])
        cycle = itertools.cycle((0, 0, 1))
        while len(chosen) < min(most, len(candidates)):
            new = next((one for one in queues[next(cycle)] if one not in chosen), None)
            if new is not None:
                chosen[new] = None
        return list(chosen)

    def _simple(self) -> NDArray[np.bool_]:
        """Return which candidates have the fewest axes, and parameters at rest as in use."""
        families = self.space.families
        fewest = min(len(one.rest) for one in families)
        simple = [len(one.rest) == fewest and one.rest == one.roles.roles for one in families]
        return np.array(simple)[self.space.family]

    def _find_alone(self, order: NDArray[np.int64]) -> list[int]:
        """Return the first candidate for each dimension that splits it and nothing else."""
        # Other axes are idle: where 12 devices have 4 heads, that is what takes the least time.
        alone: dict[int, tuple[int, frozenset[str]]] = {}
        for i, one in enumerate(self.space.families):
            roles = [role for role in one.roles.roles if role]
            if len(roles) == 1 and len(roles[0]) == 1 and one.rest == one.roles.roles:
                alone[i] = one.variant, roles[0]
        found: dict[tuple[int, frozenset[str]], int] = {}
        several = np.isin(self.space.family[order], [*alone])
        for candidate in order[several].tolist():
            found.setdefault(alone[int(self.space.family[candidate])], candidate)
        return [*found.values()]

    def _estimate(self, candidates: NDArray[np.int64]) -> tuple[NDArray, NDArray]:
        """Estimate the cost of candidates from planned ones like them."""
        space = self.space
        group = self._group[candidates]
        off = self._off_family[space.family[candidates]]
        off = np.where(np.isnan(off), self._off_group[group], off)
        size = _fill(self._size_group[group], self._size_group)
        off = np.where(np.isnan(off), self._off_conflicts()[space.family[candidates]], off)
        seconds = space.seconds[candidates] * _fill(off, self._off_group)
        return seconds, space.least_bytes[candidates] * size

    def add(self, candidates: Sequence[int], found: Sequence[Measure]) -> None:
        """Add measures, and leave out candidates that cannot be better."""
        self.open[candidates] = False
        for one, measure in zip(candidates, found, strict=True):
            self.measures[one] = measure
            if measure.refused:
                self.refusals[measure.refused] += 1
                self.reasons[REFUSED] += 1
            self._calibrate(one, measure)
        for one in self.front():
            best = self.measures[one]
            slower = self.space.least_seconds >= best.seconds
            self._close(slower & (self.space.least_bytes >= best.memory_bytes), BOUNDED)

    def _off_conflicts(self) -> NDArray[np.float64]:
        """Return how far estimates of families were off in which the same dimensions conflict."""
        families = self.space.families
        off = np.full(len(families), np.nan)
        for (variant, pair), value in self._off_pair.items():
            shares = self._sharing.get((variant, pair), np.empty(0, bool))
            more = [
                one.variant == variant and any(pair <= role for role in one.roles.roles)
                for one in families[len(shares) :]
            ]
            shares = self._sharing[variant, pair] = np.append(shares, np.array(more, bool))
            off[shares] = np.fmax(off[shares], value)
        return off

    def _calibrate(self, one: int, measure: Measure) -> None:
        """Record how far the estimates of a candidate were off."""
        space = self.space
        family, group = space.families[space.family[one]], self._group[one]
        if measure.refused:  # others like it come late
            if np.isnan(self._off_group[group]):
                self._off_group[group] = HOPELESS
            return
        off = measure.seconds / max(space.seconds[one], 1e-12)
        size = measure.memory_bytes / max(space.least_bytes[one], 1.0)
        self._off_family[space.family[one]] = off
        for table, value in ((self._off_group, off), (self._size_group, size)):
            table[group] = value if np.isnan(table[group]) else min(table[group], value)
        if len(measure.conflict) == 2:
            pair = family.variant, frozenset(measure.conflict)
            self._off_pair[pair] = min(off, self._off_pair.get(pair, np.inf))

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
    known = known[known < HOPELESS]
    return np.where(np.isnan(ratios), np.quantile(known, 0.1) if len(known) else 1.0, ratios)


def _find_smallest(keys: NDArray, count: int) -> NDArray[np.int64]:
    """Return the places of at least so many smallest keys, in order."""
    if count >= len(keys):
        return np.argsort(keys, kind="stable")
    few = np.flatnonzero(keys <= np.partition(keys, count - 1)[count - 1])
    return few[np.argsort(keys[few], kind="stable")]


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
