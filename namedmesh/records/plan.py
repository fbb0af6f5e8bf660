"""PlanRecord: a plan as files have it, and the one form in which plans are compared."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from namedmesh.dims.mesh import Mesh
from namedmesh.display.text import name_some
from namedmesh.errors.errors import NamedMeshError
from namedmesh.errors.mistakes import Explained
from namedmesh.files import check_path, read_file, write_file
from namedmesh.records.codec import (
    InvalidRecordError,
    parse_document,
    read_value,
    report_problems,
    write_value,
)
from namedmesh.records.collective import ALL_PHASES, Collective
from namedmesh.records.tensor import TensorRecord

HEADER = ("namedmesh-plan", 1)  # the format and its version
LARGEST_FILE = 2**28  # bytes: a plan of a million tensors
LARGEST_COUNT = 2**22  # tensors
AGAIN = "write it again with plan.save(path), or namedmesh plan ... --save PATH"
AS_COMPILED = "as compiled"  # the layout of a step of JAX: shardings are its own
COSTS = ("seconds", "least_seconds", "compute_seconds", "collective_seconds")
_FACTS = (
    "program", "mesh", "layout", "params", "flops", "recomputed", "notes", "warnings", "decisions",
)  # fmt: skip
_TENSOR_COLUMNS = (
    "tensor", "place", "bytes_per_device", "padding", "phase", "scope", "source", "function",
    "count",
)  # fmt: skip
_COLLECTIVE_COLUMNS = (
    "phase", "kind", "axes", "hop", "tensor", "dtype", "elements", "bytes", "wire_bytes", "times",
    "open_ended", "devices", "scope", "op", "source", "function",
)  # fmt: skip
_BLOCKS = {"hosts": "host", "slices": "slice"}  # of meshes with several


@dataclass(frozen=True)
class PlanRecord(Explained):
    """A plan, or what a compiler made of one, in the form that is compared.

    Attributes:
        origin: What it was made of: `plan`, `artifact`, `audit` or `report`.
        program: The name of the traced function.
        mesh: The size of each mesh axis, and hosts and slices where there are several.
        layout: The layout, as text.
        params: The layout of parameters at rest, as text.
        flops: The floating point operations of a step over all devices; None if not known.
        recomputed: The share of them that the backward pass computes again, by scope.
        tensors: The tensors with their shardings; empty for what a compiler made.
        collectives: Those of a step and of initialisation.
        memory: The peak bytes of one device; None if not known.
        seconds: Estimated times of a step, by name, where a target is known.
        target: The target they are estimated for.
        notes: What the program notes about itself.
        warnings: What the layout leaves unused, in sentences.
        exposed: Seconds that a device waits for collectives, by kind, where a schedule was read.
        decisions: Which dimension is sharded where several could be, and the tensors concerned.

    Example:
        >>> import namedmesh as nm
        >>> (B,) = nm.dims("batch=8")
        >>> program = nm.trace(lambda x: nm.sum(x), x=nm.spec([B]))
        >>> record = nm.PlanRecord.of_plan(nm.plan(program, nm.Mesh(data=4), "batch:data"))
        >>> record.program, [one.kind for one in record.collectives]
        ('<lambda>', ['AllReduce'])
    """

    origin: str
    program: str
    mesh: Mapping[str, int]
    layout: str
    params: str
    flops: float | None
    tensors: tuple[TensorRecord, ...] = ()
    collectives: tuple[Collective, ...] = ()
    memory: int | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    target: str = ""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    decisions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    recomputed: Mapping[str, float] = field(default_factory=dict)
    exposed: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of_plan(cls, plan: Any, cost: Mapping[str, Any] | None = None) -> PlanRecord:
        """Make the record of a plan.

        Args:
            plan: The Plan.
            cost: Its cost on a target, as a file has it.

        Returns:
            The record.
        """
        collectives = list(plan.collectives)
        collectives += [dataclasses.replace(one, phase="init") for one in plan.initial_collectives]
        # A file lists collectives phase by phase.
        collectives.sort(key=lambda one: ALL_PHASES.index(one.phase))
        return cls(
            origin="plan",
            program=plan.program.name,
            mesh=plan.mesh.to_json(),
            layout=plan.layout.text,
            params=plan.params.text,
            flops=plan.program.flops(),
            recomputed=plan.recomputed,
            tensors=plan.tensor_rows,
            collectives=tuple(collectives),
            notes=tuple(plan.program.notes),
            warnings=tuple(plan.warnings),
            decisions={text: tuple(names) for text, names in sorted(plan.decisions.items())},
            **_split_cost(cost or {}),
        )

    def to_json(self, lines: bool = True) -> dict[str, Any]:
        """Return the record as values that JSON has.

        Args:
            lines: Whether sources have line numbers, and ops their numbers.

        Returns:
            Facts, tensors, collectives and totals.
        """
        rows = [write_value(one) for one in self.tensors]
        collectives = [write_value(one) for one in self.collectives]
        if not lines:  # what changes with every edit above it
            for row in (*rows, *collectives):
                row["source"] = re.sub(r":\d+$", "", row["source"])
            for row in collectives:
                row["op"] = re.sub(r"\.\d+$", "", row["op"])
        names = _TENSOR_COLUMNS[:-1]
        counts = Counter(tuple(row[name] for name in names) for row in rows)
        tensors = [
            {**dict(zip(names, cells, strict=True)), "count": count}
            for cells, count in counts.items()
        ]
        facts = {name: write_value(getattr(self, name)) for name in _FACTS}
        document = {**facts, "tensors": tensors, "collectives": collectives, **self._totals()}
        if self.seconds:
            document["cost"] = {
                "target": self.target, **self.seconds, "memory": self.memory
            }  # fmt: skip
        elif self.memory is not None:  # as a compiler counted it
            document["memory"] = self.memory
        return document

    def _totals(self) -> dict[str, dict[str, int]]:
        """Return the totals of each phase that a file states."""
        keys = {"bytes_per_device": "bytes", "wire_bytes_per_device": "wire_bytes"}
        for name, block in _BLOCKS.items():
            if name in self.mesh:
                keys[f"bytes_leaving_a_{block}"] = f"{block}_bytes"
        totals: dict[str, dict[str, int]] = {key: dict.fromkeys(ALL_PHASES, 0) for key in keys}
        for one in self.collectives:
            for key, name in keys.items():
                totals[key][one.phase] += getattr(one, f"total_{name}")
        return totals

    def save(self, path: str | os.PathLike[str], *, lines: bool = True) -> None:
        """Write the record as JSON of which a person can read the changes.

        Args:
            path: The file to write.
            lines: Whether sources have line numbers.
        """
        name = check_path(path, "the file of the plan")
        write_file(name, write_plan(self.to_json(lines)).encode(), "the plan")


def tell_recomputed(recomputed: Mapping[str, float]) -> list[str]:
    """Return the sentence about what is computed again, from a hundredth of the FLOPs on."""
    total = sum(recomputed.values())
    if total < 0.01:  # ops that fuse are computed again in any case
        return []
    scopes = [f"{scope} {share:.1%}" for scope, share in recomputed.items() if scope]
    inside = f": {name_some(scopes, 4)}" if scopes else ""
    return [f"{total:.1%} of the FLOPs are computed again in the backward pass{inside}"]


def write_plan(document: Mapping[str, Any]) -> str:
    """Write the values of a plan as text: facts, then a line for each tensor and collective."""
    crossing = [f"{block}_bytes" for block in _BLOCKS.values()]
    several = any(name in document["mesh"] for name in _BLOCKS)
    tables = {
        "tensors": _TENSOR_COLUMNS,
        "collectives": (*_COLLECTIVE_COLUMNS, *crossing) if several else _COLLECTIVE_COLUMNS,
    }
    facts = dict(zip(("format", "version"), HEADER, strict=True))
    facts |= {name: value for name, value in document.items() if name not in tables}
    parts = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in facts.items()]
    parts += [
        f"{json.dumps(name)}: {_write_table(columns, document[name])}"
        for name, columns in tables.items()
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _write_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Write a table with its columns' names, a row on each line."""
    cells = ([row[column] for column in columns] for row in rows)
    text = ",\n".join(json.dumps(row, separators=(",", ":")) for row in cells)
    return f'{{"columns": {json.dumps(columns)}, "rows": [\n{text}\n]}}'


def load_plan(path: str | os.PathLike[str]) -> PlanRecord:
    """Read a plan that was saved, here or on another machine.

    Args:
        path: A file that `Plan.save` wrote.

    Returns:
        The record of the plan.

    Raises:
        NamedMeshError: The file cannot be read, is too large, is not a plan, is of another
            version, or has fields that are missing or wrong; all of those are named.

    Example:
        >>> import namedmesh as nm, os, tempfile
        >>> (B,) = nm.dims("batch=8")
        >>> program = nm.trace(lambda x: nm.sum(x), x=nm.spec([B]))
        >>> path = os.path.join(tempfile.mkdtemp(), "plan.json")
        >>> nm.plan(program, nm.Mesh(data=4), "batch:data").save(path)
        >>> nm.load_plan(path).layout
        'batch:data'
    """
    name = check_path(path, "the file of the plan")
    return read_plan(read_file(name, "the plan", LARGEST_FILE), name)


def read_plan(data: str | bytes, label: str) -> PlanRecord:
    """Read the contents of a saved plan."""
    document = parse_document(data, label, "a saved plan", HEADER, AGAIN)
    with report_problems(f"{label!r} is a plan with fields that are missing or wrong", AGAIN):
        cost = document.pop("cost", None)
        if cost is not None:
            document |= _split_cost(read_value(cost, _Cost, "cost").__dict__)
        for name, columns in (("tensors", _TENSOR_COLUMNS), ("collectives", _COLLECTIVE_COLUMNS)):
            document[name] = _read_table(document.get(name), name, columns)
        counts = [read_value(row["count"], int, "tensors.count") for row in document["tensors"]]
        if sum(counts) > LARGEST_COUNT:
            raise InvalidRecordError([f"tensors has more than {LARGEST_COUNT:,} of them"])
        record = read_value({"origin": "plan", **document}, PlanRecord)
        tensors = zip(record.tensors, counts, strict=True)
        record = dataclasses.replace(
            record, tensors=tuple(one for one, count in tensors for _ in range(count))
        )
        _check_record(record, document)
    return record


_Cost = dataclasses.make_dataclass(
    "_Cost", [("target", str), *((name, float) for name in COSTS), ("memory", int | None)]
)


def _split_cost(cost: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record that a cost fills."""
    if not cost:
        return {}
    seconds = {name: cost[name] for name in COSTS}
    return {"memory": cost["memory"], "seconds": seconds, "target": cost["target"]}


def _read_table(table: Any, name: str, expected: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of a table by column; columns that are not known do no harm."""
    columns = read_value(table, _Table, name).columns
    missing = [column for column in expected if column not in columns]
    if missing:
        raise InvalidRecordError([f"{name} has no column {', '.join(missing)}"])
    rows = []
    for i, cells in enumerate(table["rows"]):
        if not isinstance(cells, list) or len(cells) != len(columns):
            raise InvalidRecordError([f"{name}[{i}] is not a list of {len(columns)} cells"])
        rows.append(dict(zip(columns, cells, strict=True)))
    return rows


@dataclass(frozen=True)
class _Table:
    columns: tuple[str, ...]
    rows: tuple[Any, ...]


def _check_record(record: PlanRecord, document: Mapping[str, Any]) -> None:
    """Raise unless a record's phases, mesh and totals are right."""
    problems = [
        f"collectives[{i}].phase is {one.phase!r}, expected one of {', '.join(ALL_PHASES)}"
        for i, one in enumerate(record.collectives)
        if one.phase not in ALL_PHASES
    ]
    try:
        Mesh(None, **record.mesh)
    except (NamedMeshError, TypeError) as error:
        problems.append(f"mesh: {getattr(error, 'problem', error)}")
    if not problems:
        for key, totals in record._totals().items():
            stated = document.get(key)
            for phase, total in totals.items():
                number = stated.get(phase) if isinstance(stated, dict) else None
                if number != total:
                    problems.append(
                        f"{key}.{phase} is {json.dumps(number)[:60]}, "
                        f"expected {total}, as its collectives add up to"
                    )
    if problems:
        raise InvalidRecordError(problems)
