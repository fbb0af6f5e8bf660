"""Timeline: what a device runs and waits for in one step, in lanes."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from namedmesh.display.html import html_block, html_table, html_text
from namedmesh.display.text import columns, format_seconds
from namedmesh.errors.mistakes import Explained
from namedmesh.files import check_path, write_file
from namedmesh.records.collective import Collective

MOST = 5  # rows of a table
MOST_EVENTS = 100_000  # of a trace file; iterations of loops beyond are one event
_HEAD = ("exposed", "of", "collective", "axes", "times", "tensor", "line")


@dataclass(eq=False)
class Span:
    """Something that takes time: an op, a collective, a copy, or the iterations of a loop."""

    name: str  # of its instruction
    lane: str  # compute, copies, beside, loop, or the axes of a collective
    start: float  # within the iteration that it is in, or the step
    seconds: float  # of one iteration, for a loop
    collectives: tuple[Collective, ...] = ()  # what it sends, of one step
    op: str = ""
    line: str = ""
    exposed: float = 0.0  # seconds that the device waits for it
    times: int = 1  # iterations of a loop
    inner: tuple[Span, ...] = ()  # what runs in each of them


class Exposure(NamedTuple):
    """A collective of a step, and how much of its time nothing hides.

    Attributes:
        collective: The collective.
        line: The line of code that asks for it.
        times: How often it runs in a step.
        seconds: The seconds it is under way in a step.
        exposed: The seconds that the device waits for it.
    """

    collective: Collective
    line: str
    times: int
    seconds: float
    exposed: float

    @property
    def axes(self) -> str:
        """The axes it runs along."""
        return "+".join(self.collective.axes)


@dataclass(frozen=True, eq=False, repr=False)
class Timeline(Explained):
    """One step of a compiled program on one device, by its schedule.

    Ops and collectives are estimated; in which order they run, and what runs while a collective is
    under way, is what the compiler decided. The critical path is the lane of ops with its waits.

    Attributes:
        spans: What runs, in order; loops have what runs in one iteration.
        seconds: The seconds of a step.
        target: The hardware that seconds are estimated for.
        mesh: The mesh.

    Example:
        >>> from namedmesh.schedule.timeline import Span, Timeline
        >>> step = (Span("fusion.1", "compute", 0.0, 2e-3), Span("dot", "compute", 3e-3, 1e-3))
        >>> Timeline(step, 4e-3, "h100", "Mesh(data=8)").compute_seconds
        0.003
    """

    spans: tuple[Span, ...]
    seconds: float
    target: str
    mesh: str

    def walk(
        self, spans: Iterable[Span] | None = None, times: int = 1
    ) -> Iterator[tuple[Span, int]]:
        """Yield what runs, and how often in one step; loops give what is in them.

        Args:
            spans: What to begin with; by default all of the step.
            times: How often that runs.
        """
        for one in self.spans if spans is None else spans:
            if one.lane == "loop":
                yield from self.walk(one.inner, times * one.times)
            else:
                yield one, times

    @property
    def compute_seconds(self) -> float:
        """The seconds of ops."""
        return sum(one.seconds * times for one, times in self.walk() if one.lane == "compute")

    @cached_property
    def exposures(self) -> tuple[Exposure, ...]:
        """Every collective of the step, the most exposed first."""
        found: dict[tuple[Any, ...], Exposure] = {}
        for span, times in self.walk():
            whole = sum(one.bytes for one in span.collectives) or 1
            for one in span.collectives:
                share = times * (one.bytes / whole)
                key = one.kind, one.axes, one.tensor, one.op, one.bytes, span.line
                old = found.get(key, Exposure(one, span.line, 0, 0.0, 0.0))
                found[key] = old._replace(
                    times=old.times + times,
                    seconds=old.seconds + share * span.seconds,
                    exposed=old.exposed + share * span.exposed,
                )
        return tuple(sorted(found.values(), key=lambda one: (-one.exposed, -one.seconds)))

    @property
    def exposed_seconds(self) -> float:
        """The seconds that the device waits for collectives."""
        return sum(one.exposed for one in self.exposures)

    @property
    def collective_seconds(self) -> float:
        """The seconds of all collectives, exposed and hidden."""
        return sum(one.seconds for one in self.exposures)

    def exposed_by(self, what: str) -> dict[str, float]:
        """Return the exposed seconds by what collectives have in common, the most first.

        Args:
            what: `axes`, `kind`, `scope`, `tensor`, `op`, `phase` or `line`.
        """
        found: Counter[str] = Counter()
        for one in self.exposures:
            own = one if what in ("axes", "line") else one.collective
            found[getattr(own, what)] += one.exposed  # type: ignore[assignment]
        return dict(found.most_common())

    def critical_path(self) -> list[tuple[str, str, float]]:
        """Return what the step's seconds are made of, by op and line, the longest first."""
        found: Counter[tuple[str, str]] = Counter()
        for span, times in self.walk():
            own = span.seconds if span.lane == "compute" else span.exposed
            found[span.op or span.name, span.line] += own * times  # type: ignore[assignment]
        return [(*key, seconds) for key, seconds in found.most_common() if seconds]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that ui.perfetto.dev and chrome://tracing open: a lane is a thread.

        Args:
            path: The file to write, such as `step.json`.
        """
        name, lanes, events = check_path(path, "the file of the trace"), {}, []
        for start, seconds, one, label in self._events(self.spans, 0.0, MOST_EVENTS):
            thread = lanes.setdefault(one.lane, len(lanes))
            facts = {"op": one.op, "line": one.line, "exposed_us": one.exposed * 1e6}
            facts |= {"tensors": [each.tensor for each in one.collectives]} if one.exposed else {}
            events.append(
                {"ph": "X", "pid": 0, "tid": thread, "name": label, "cat": one.lane,
                 "ts": start * 1e6, "dur": seconds * 1e6, "args": facts}
            )  # fmt: skip
        named = {"process_name": [(0, f"one device of {self.target}, {self.mesh}")]}
        named["thread_name"] = [(thread, lane) for lane, thread in lanes.items()]
        events += [
            {"ph": "M", "pid": 0, "tid": thread, "name": what, "args": {"name": text}}
            for what, rows in named.items()
            for thread, text in rows
        ]
        document = {"displayTimeUnit": "ms", "traceEvents": events}
        write_file(name, json.dumps(document).encode(), "the file of the trace")

    def _events(
        self, spans: Iterable[Span], origin: float, most: int
    ) -> Iterator[tuple[float, float, Span, str]]:
        """Yield events of the step, with as many iterations of each loop as there is room for."""
        for one in spans:
            start = origin + one.start
            label = one.collectives[0].kind if one.collectives else one.op or one.name
            shown, size = one.times, max(1, len(one.inner))
            if one.lane == "loop" and size * one.times > most:
                shown = min(2, one.times)
            for i in range(shown if one.lane == "loop" else 0):
                yield from self._events(one.inner, start + i * one.seconds, most // one.times)
            if one.lane != "loop":
                yield start, one.seconds, one, label
            elif shown < one.times:
                rest, left = start + shown * one.seconds, one.times - shown
                yield rest, left * one.seconds, one, f"{left} further iterations of {label}"

    def to_json(self) -> dict[str, Any]:
        """Return what a page draws: spans as rows of numbers, and texts."""
        texts: dict[str, int] = {}
        rows: list[list[float]] = []

        def add(spans: Iterable[Span], parent: int) -> None:
            for one in spans:
                tensors = ", ".join(dict.fromkeys(each.tensor for each in one.collectives))
                kind = one.collectives[0].kind if one.collectives else one.name
                words = one.lane, f"{kind} of {tensors}" if tensors else kind, one.op, one.line
                numbers = [texts.setdefault(word, len(texts)) for word in words]
                rows.append([one.start, one.seconds, one.exposed, one.times, parent, *numbers])
                add(one.inner, len(rows) - 1)

        add(self.spans, -1)
        facts = {name: getattr(self, name) for name in ("seconds", "target", "mesh")}
        totals = {name: getattr(self, f"{name}_seconds") for name in ("compute", "exposed")}
        most = [
            [one.exposed, f"{one.collective.kind} of {one.collective.tensor}", one.axes, one.line]
            for one in self.exposures[:20]
            if one.exposed
        ]
        return {**facts, **totals, "rows": rows, "texts": [*texts], "most": most}

    @property
    def lines(self) -> list[str]:
        """The lines that reports have."""
        collective, exposed = self.collective_seconds, self.exposed_seconds
        total, waits = format_seconds(collective), ""
        if collective:
            hidden = f"{max(0.0, 1 - exposed / collective):.0%} of {total} are hidden"
            waits = f", and {format_seconds(exposed)} of waits for collectives ({hidden})"
        by_axes = self.exposed_by("axes").items()
        axes = ", ".join(f"{axis} {format_seconds(seconds)}" for axis, seconds in by_axes)
        return [
            f"by its schedule a step takes {format_seconds(self.seconds)}: "
            f"{format_seconds(self.compute_seconds)} of ops{waits}",
            *([f"exposed by axes: {axes}"] if exposed else []),
        ]

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The most exposed collectives as rows of a table; none if nothing is exposed."""
        shown = [one for one in self.exposures[:MOST] if one.exposed]
        return [_HEAD] * bool(shown) + [
            (
                *(format_seconds(one.exposed), format_seconds(one.seconds), one.collective.kind),
                *(one.axes, str(one.times), one.collective.tensor, one.line),
            )
            for one in shown
        ]

    def __str__(self) -> str:
        return "\n".join([*self.lines, *(columns(self.rows) if self.rows else [])])

    def __repr__(self) -> str:
        return f"Timeline({self.lines[0]})"

    def _repr_html_(self) -> str:
        head, *rows = self.rows or [_HEAD]
        return html_block("timeline", html_text(*self.lines), html_table(head, rows, head[:2]))
