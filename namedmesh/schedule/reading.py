"""The schedule of a compiled module: what runs while each collective is under way.

The order of a scheduled module's text is that in which a device starts its instructions. Here it is
gone through with a clock: ops take their seconds one after the other, a collective is under way
from its start, and where its end comes later than what runs until then, the device waits for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from namedmesh.audit.hlo.communication import CompiledCollective
from namedmesh.audit.hlo.module import Computation, Instruction, Module
from namedmesh.audit.hlo.source_lines import SourceLines
from namedmesh.audit.hlo.trip_counts import find_callees, read_loop
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.source import Source
from namedmesh.hardware.hardware import Hardware
from namedmesh.hardware.links import TorusSlice
from namedmesh.records.collective import Collective
from namedmesh.schedule.prices import Prices
from namedmesh.schedule.timeline import Span, Timeline

_NAMED = re.compile(r"nm\.(\w+\.\d+)")  # an op, as namedmesh names its scope
_MOST_ITERATIONS = 3  # of a loop, gone through where what is under way changes between them
_ENDS = ("AsyncCollectiveStart", "AsyncCollectiveDone")  # in fusions of TPUs, around products


@dataclass
class _Flight:
    """A collective, copy or call that is under way."""

    span: Span
    end: float
    landed: bool = False


Flights = dict[str, _Flight]  # by the names of values that stand for them


def read_schedule(
    module: Module,
    collectives: Iterable[tuple[CompiledCollective, Collective]],
    mesh: Mesh,
    hardware: Hardware,
    clock: float | None = None,
    sources: Mapping[str, Source] | None = None,
) -> Timeline:
    """Read the schedule of a compiled module.

    Args:
        module: The module, which must be scheduled.
        collectives: What the module communicates, each with how plans describe it.
        mesh: The mesh.
        hardware: What collectives and ops are priced for.
        clock: Cycles a second, where instructions have the compiler's estimate of cycles.
        sources: The user's line of each op of namedmesh; others are those that the module has.

    Returns:
        The timeline of one step.
    """
    prices = Prices(module, hardware, clock)
    return _Scheduler(module, collectives, mesh, prices, sources or {}).run()


class _Scheduler:
    """A walk through a module with a clock."""

    def __init__(
        self,
        module: Module,
        collectives: Iterable[tuple[CompiledCollective, Collective]],
        mesh: Mesh,
        prices: Prices,
        sources: Mapping[str, Source],
    ) -> None:
        self.module, self.mesh, self.hardware = module, mesh, prices.hardware
        self.prices, self.sources, self.lines = prices, sources, SourceLines(module)
        self.sent: dict[str, list[tuple[CompiledCollective, Collective]]] = {}  # by instruction
        for one, described in collectives:
            self.sent.setdefault(one.name, []).append((one, described))
        traffic: dict[tuple[str, ...], float] = {}
        for pairs in self.sent.values():
            for _, one in pairs:
                sent = one.total_wire_bytes
                traffic[one.axes] = traffic.get(one.axes, 0.0) + sent
        self.traffic = {key: size for key, size in traffic.items() if {*key} <= {*mesh.axes}}
        self.now = 0.0
        self.free: dict[object, float] = {}  # when links have sent what is under way
        self.ends = self._find_ends()

    def run(self) -> Timeline:
        """Go through the entry computation."""
        spans, _ = self.enter(self.module.computations[self.module.entry], {}, 0.0)
        return Timeline(tuple(spans), self.now, str(self.hardware), str(self.mesh))

    def _find_ends(self) -> Mapping[str, str]:
        """Find the fused computations that start and end a TPU's asynchronous collective."""
        found = {}
        for computation, one in self.module.instructions():
            target = one.attributes.get("custom_call_target", "").strip('"')
            if target in _ENDS:
                found[computation.name] = target.removeprefix("AsyncCollective").lower()
        return found

    def enter(
        self, computation: Computation, carried: Mapping[int, _Flight], origin: float
    ) -> tuple[list[Span], dict[int, _Flight]]:
        """Run a computation; return its spans, and what is under way at its end, by element."""
        flights: Flights = {}
        spans: list[Span] = []
        channels: dict[str, _Flight] = {}
        results: dict[str, Mapping[int, _Flight]] = {}  # of the parameter, and of loops
        for one in computation:
            before = next((flights[name] for name in one.operands if name in flights), None)
            end = self._end_of(one)
            index = int(one.attributes["index"]) if one.opcode == "get-tuple-element" else -1
            if one.opcode == "parameter":
                results[one.name] = carried
            elif index in results.get(one.operands[0] if one.operands else "", ()):
                flights[one.name] = results[one.operands[0]][index]
            elif one.opcode == "while":
                inside = {
                    i: flights[name]
                    for i, name in enumerate(self._elements(computation, one))
                    if name in flights
                }
                looped, results[one.name] = self.loop(computation, one, inside, origin)
                spans += looped
            elif one.opcode in ("call", "conditional"):
                names = find_callees(one)
                chosen = max(names, key=self._weigh, default=None)
                if chosen is not None:
                    spans += self.enter(self.module.computations[chosen], {}, origin)[0]
            elif end == "done":
                if before is not None and not before.landed:
                    self.land(before)
            elif end == "start":
                channel = (
                    one.attributes.get("channel_id", "") if one.opcode in ("send", "recv") else ""
                )
                # An update that starts something does what its start says.
                updates = one.opcode.endswith("-update")
                says = computation.instructions[one.operands[0]] if updates else one
                flight = channels.get(channel) or self.launch(computation, says, origin)
                if flight is not None:
                    flights[one.name] = flight
                    spans += [] if channel in channels else [flight.span]
                    channels |= {channel: flight} if channel else {}
            elif end == "update" or one.opcode in ("get-tuple-element", "tuple"):
                flights |= {one.name: before} if before is not None else {}
            else:
                if before is not None and not before.landed:  # it goes on behind this fusion
                    flights[one.name] = before
                spans += self.compute(computation, one, origin)
        root = computation.root
        kept = {
            i: flights[name]
            for i, name in enumerate(root.operands if root and root.opcode == "tuple" else ())
            if name in flights and not flights[name].landed
        }
        return spans, kept

    def compute(self, computation: Computation, one: Instruction, origin: float) -> list[Span]:
        """Run an op, or a collective that the device waits for at once."""
        flight = self.launch(computation, one, origin) if self._sent_by(one) else None
        if flight is not None:
            self.land(flight)
            return [flight.span]
        seconds = self.prices.seconds(computation, one)
        span = Span(one.name, "compute", self.now - origin, seconds, op=self._name(one))
        span.line = self._line(one)
        self.now += seconds
        return [span] if seconds else []

    def launch(self, computation: Computation, one: Instruction, origin: float) -> _Flight | None:
        """Start a collective when its links are free; or a copy or a call of a computation."""
        found = self._sent_by(one)
        if one.opcode == "recv":  # what it receives is its send's
            channel = one.attributes.get("channel_id")
            sends = (other for other in computation if other.opcode == "send")
            same = (other for other in sends if other.attributes.get("channel_id") == channel)
            found = next(map(self._sent_by, same), found)
        if not found:
            if one.opcode in ("recv", "send"):  # with the host
                return None
            lane = "copies" if one.opcode.startswith(("copy", "slice", "dynamic")) else "beside"
            names = find_callees(one)
            seconds = self._weigh(names[0]) if names else self.prices.seconds(computation, one)
            span = Span(one.name, lane, self.now - origin, seconds, op=self._name(one))
            return _Flight(span, self.now + seconds)
        _, first = found[0]
        whole = replace(
            first,
            bytes=sum(each.bytes for _, each in found),
            host_bytes=sum(each.host_bytes for _, each in found),
            slice_bytes=sum(each.slice_bytes for _, each in found),
        )
        seconds = self.price(whole)
        links = self._links(found[0][0], first)
        start = max(self.now, self.free.get(links, 0.0))
        self.free[links] = start + seconds
        lane = "+".join(first.axes)
        span = Span(one.name, lane, start - origin, seconds, tuple(each for _, each in found))
        span.op, span.line = first.op, str(first.source) if first.source.file else self._line(one)
        return _Flight(span, start + seconds)

    def price(self, one: Collective) -> float:
        """Return the seconds of a collective by the model of links; of unknown axes, over all."""
        known = all(axis in self.mesh.axes for axis in one.axes)
        one = one if known else replace(one, axes=tuple(self.mesh.axes), hop=None)
        return self.hardware.network.seconds(one, self.mesh, self.traffic)

    def _links(self, compiled: CompiledCollective, one: Collective) -> object:
        """Return what collectives under way share: the two ways round a torus are apart."""
        if not isinstance(self.hardware.network, TorusSlice):
            return "all"
        return compiled.pairs or one.axes

    def land(self, flight: _Flight) -> None:
        """Wait for the end of what is under way."""
        flight.landed = True
        flight.span.exposed += max(0.0, flight.end - self.now)
        self.now = max(self.now, flight.end)

    def loop(
        self, where: Computation, one: Instruction, carried: dict[int, _Flight], origin: float
    ) -> tuple[list[Span], dict[int, _Flight]]:
        """Run a loop: iterations until they are alike, and the rest as the last of these."""
        left = read_loop(self.module, where.name, one).trip_count or 1
        body = self.module.computations[one.called["body"][0]]
        spans: list[Span] = []
        for number in range(_MOST_ITERATIONS):
            if not left:
                break
            start, clean = self.now, self._is_clean(carried)
            inner, carried = self.enter(body, carried, start)
            alike = clean and self._is_clean(carried)
            last = number == _MOST_ITERATIONS - 1
            times = left if alike or last else max(1, left - 1) if number == 1 else 1
            seconds = self.now - start
            later = (times - 1) * seconds
            self.now += later
            self.free = {links: end + later for links, end in self.free.items()}
            for flight in {id(each): each for each in carried.values()}.values():
                flight.end += later
            spans.append(Span(one.name, "loop", start - origin, seconds, op=self._name(one)))
            spans[-1].times, spans[-1].inner = times, tuple(inner)
            left -= times
        return [span for span in spans if span.seconds], carried

    def _is_clean(self, carried: Mapping[int, _Flight]) -> bool:
        """Return whether nothing is under way."""
        return not carried and all(end <= self.now for end in self.free.values())

    def _sent_by(self, one: Instruction) -> list[tuple[CompiledCollective, Collective]]:
        """Return what an instruction communicates, by itself or in what it calls."""
        own = self.sent.get(one.name, [])
        if own or one.opcode.endswith("-done"):
            return own
        inside = (self.module.computations[name] for name in one.called.get("calls", ()))
        return [pair for body in inside for each in body for pair in self._sent_by(each)]

    def _end_of(self, one: Instruction) -> str:
        """Return `start`, `update` or `done` for what runs beside ops, "" for other ops."""
        for name in one.called.get("calls", ()):
            if name in self.ends:
                return self.ends[name]
        # Without operands a start reserves buffers; what starts then is the update that follows.
        if one.opcode in ("send", "recv"):
            return "start"
        if one.opcode.endswith("-start") and not one.operands:
            return "update"
        if one.opcode.endswith("-update"):
            return "start" if one.operands[1:] else "update"
        ends = {"-start": "start", "-done": "done"}
        return next((end for suffix, end in ends.items() if one.opcode.endswith(suffix)), "")

    def _weigh(self, name: str) -> float:
        """Add up what a computation takes, nothing beside anything else."""
        total, computation = 0.0, self.module.computations[name]
        for one in computation:
            if one.opcode in ("while", "call", "conditional"):
                times = 1
                if one.opcode == "while":
                    times = read_loop(self.module, name, one).trip_count or 1
                total += times * max(map(self._weigh, find_callees(one)), default=0.0)
            elif found := self._sent_by(one):
                total += sum(self.price(each) for _, each in found)
            elif self._end_of(one) not in ("update", "done"):
                total += self.prices.seconds(computation, one)
        return total

    def _elements(self, computation: Computation, loop: Instruction) -> Sequence[str]:
        """Return the names of what a loop begins with."""
        first = computation.instructions.get(loop.operands[0])
        return first.operands if first is not None and first.opcode == "tuple" else ()

    def _name(self, one: Instruction) -> str:
        """Return the op of an instruction, without what jax and namedmesh put before all names."""
        names = _NAMED.findall(one.op_name)
        return names[-1] if names else one.op_name.rpartition("jit(")[2].partition(")/")[2]

    def _line(self, one: Instruction) -> str:
        """Return the user's line of an instruction, if it is known."""
        names = (name for name in _NAMED.findall(one.op_name)[::-1])
        known = next((self.sources[name] for name in names if name in self.sources), None)
        source = known or self.lines.find(one.attributes.get("metadata", ""))
        return str(source) if source is not None else ""
