"""The data of a page of a compiled step of JAX: the tables that a plan has, from compiled code."""

from __future__ import annotations

import functools
import re
from typing import Any

from namedmesh.errors.source import Source
from namedmesh.hardware.hardware import Hardware
from namedmesh.inspect.attribution import Attribution, split_op_name
from namedmesh.inspect.inspection import Inspection
from namedmesh.records.collective import ALL_PHASES
from namedmesh.records.plan import AS_COMPILED
from namedmesh.records.tensor import UNKNOWN, TensorRecord
from namedmesh.report.page_data import (
    COLLECTIVE,
    OP,
    OP_COST,
    TENSOR,
    PageData,
    describe_hardware,
    make_columns,
)
from namedmesh.schedule.prices import Prices


class StepData(PageData):
    """The tables of one compiled step.

    Its ops are the arguments, then what the schedule runs. Its tensors are the arguments: of others
    the compiled code has shards, and no shardings.
    """

    def __init__(self, step: Inspection, hardware: Hardware) -> None:
        super().__init__(step.mesh)
        self.step, self.whole = step, hardware  # of all devices
        self.hardware = hardware.divide(step.mesh.devices)
        self.attribution = Attribution(step.module)

    @functools.cached_property
    def by_place(self) -> dict[tuple[str, str], int]:
        """The arguments by name and place."""
        return {(one.tensor, one.place): i for i, one in enumerate(self.step.tensor_rows)}

    def to_json(self) -> dict[str, Any]:
        """Return all tables."""
        step = self.step
        find = self.attribution.find_reading_line
        lines = [find(one.tensor) or UNKNOWN for one in step.tensor_rows]
        tensors = [self._tensor_row(*each) for each in enumerate(step.tensor_rows)]
        ops = [
            self._op_row(one.tensor, "argument", one.tensor.rpartition("[")[0], "forward", line, i)
            for i, (one, line) in enumerate(zip(step.tensor_rows, lines, strict=True))
        ]
        sent = self._add_instructions(ops)
        return self.finish(
            program=step.name,
            compiled=True,
            layout=AS_COMPILED,
            params="",
            notes=list(step.notes),
            recomputed=0,
            warnings=list(map(str, step.findings)),
            decisions=[],
            weights=None,
            flops=[step.flops / step.mesh.devices],
            ops=make_columns(OP, ops),
            tensors=make_columns(TENSOR, tensors),
            moves=[],
            collectives=make_columns(COLLECTIVE, sent),
        )

    def _tensor_row(self, number: int, one: TensorRecord) -> tuple[Any, ...]:
        """Return the row of an argument; its dimensions are numbered."""
        dtype, _, cells = one.place.partition("[")
        dims = tuple(
            (str(i), int(size), self.axis_numbers(re.findall(r"\w+", axes)))
            for i, (size, axes) in enumerate(re.findall(r"(\d+)(?:/([^,\]]*))?", cells))
        )
        place = self.places.add((dtype, dims, ()))
        facts = one.bytes_per_device, round(one.padding, 4), -1, -1, 1, 0, number
        return (self.texts.add(one.tensor), place, place, *facts)

    def _op_row(
        self, name: str, kind: str, scope: str, phase: str, source: Source, output: int | None
    ) -> tuple[Any, ...]:
        """Return the row of an argument or an instruction."""
        texts, line = [self.texts.add(one) for one in (name, kind, scope)], self.line(source)
        outputs = [output] if output is not None else []
        return (*texts, ALL_PHASES.index(phase), line, line, -1, [], outputs)

    def _add_instructions(self, ops: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Add what the schedule runs to the ops, and its cost; return what it communicates."""
        step, timeline = self.step, self.step.cost(self.whole)
        self.timeline, prices = timeline, Prices(step.module, self.hardware)
        known = {one.name: (where, one) for where, one in step.module.instructions()}
        numbers: dict[str, int] = {}  # of ops, by instruction
        costs: dict[int, list[Any]] = {}  # by op: times, FLOPs, bytes, and seconds of all times
        senders: dict[int, tuple[int, float]] = {}  # by collective: the op, and its seconds
        for span, times in timeline.walk():
            where, one = known[span.name]
            if one.name not in numbers:
                numbers[one.name] = len(ops)
                scope = "/".join(split_op_name(one.op_name)[:-1])
                phase = self.attribution.phase_of((where.name, one.name), one.op_name)
                line = self.attribution.lines.find(one.attributes.get("metadata", ""))
                source = span.collectives[0].source if span.collectives else line or UNKNOWN
                ops.append(self._op_row(one.name, one.opcode, scope, phase, source, None))
            number, sent = numbers[one.name], sum(each.bytes for each in span.collectives)
            for each in span.collectives:
                senders[id(each)] = number, span.seconds * each.bytes / max(1, sent)
            if span.lane == "compute":
                row = costs.setdefault(number, [0, *prices.count(where, one), 0.0])
                row[0] += times
                row[3] += times * span.seconds
        memory = self.hardware.memory_bandwidth * self.hardware.memory_share
        fastest = max(self.hardware.flops.values())
        rows = [
            (op, times, flops, size, seconds / times, int(size / memory >= flops / fastest))
            for op, (times, flops, size, seconds) in costs.items()
        ]
        producers = {one.tensor: i for i, one in enumerate(step.tensor_rows)}
        rows_sent = [
            self.collective_row(
                one, one.phase, senders.get(id(one), (-1,))[0], producers.get(one.tensor, -1)
            )
            for one in step.collectives
        ]
        self.cost = {
            **describe_hardware(self.hardware),
            "seconds": timeline.seconds,
            "least": max(timeline.compute_seconds, timeline.collective_seconds),
            "serial": timeline.compute_seconds + timeline.collective_seconds,
            "ops": make_columns(OP_COST, rows),
            "collectives": [senders.get(id(one), (-1, 0.0))[1] for one in step.collectives],
            "memory": self._describe_memory(),
        }
        return rows_sent

    def _describe_memory(self) -> dict[str, Any]:
        """Describe the memory of a device, as the compiler counts it."""
        held = {name: size for name, size in self.step.memory.items() if size}
        arguments = sum(one.bytes_per_device for one in self.step.tensor_rows)
        facts = {"line": None, "tensor": -1, "place": ""}
        return {
            "estimated": True,
            "peak": sum(held.values()),
            "at": "",
            "kept": arguments,
            "timeline": {"op": [], "bytes": []},
            "alive": [{"label": name, "bytes": size, **facts} for name, size in held.items()],
        }
