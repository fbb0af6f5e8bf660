"""PlanRecord: a plan as a file has it, read back and checked; the one form that is compared."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from namedmesh.display.text import name_some
from namedmesh.errors.errors import NamedMeshError, check_identifier, check_size
from namedmesh.planning.plan import ALL_PHASES, Plan
from namedmesh.planning.plan_file import (
    COLLECTIVE_COLUMNS,
    CROSSING_COLUMNS,
    FORMAT,
    TENSOR_COLUMNS,
    VERSION,
    write_plan,
)
from namedmesh.records.json_cursor import JsonCursor
from namedmesh.records.paths import check_path, describe_os_error

LARGEST_FILE = 2**28  # bytes: a plan of a million tensors
LARGEST_COUNT = 2**22  # tensors
AGAIN = "write it again with plan.save(path), or namedmesh plan ... --save PATH"
_COSTS = ("seconds", "least_seconds", "compute_seconds", "collective_seconds")
T = TypeVar("T")


@dataclass(frozen=True)
class TensorRecord:
    """One tensor of a plan.

    Attributes:
        tensor: Its name.
        place: Its dtype, dimensions and the axes they hold: float32[batch=8/data, model=4].
        bytes_per_device: What one device's shard takes.
        padding: The share of all devices' elements that is padding.
        phase: forward, backward or update; empty where that is not known.
        scope: The scopes it was made in.
        source: The file, and the line if it is known.
        function: The function that the line is in.
    """

    tensor: str
    place: str
    bytes_per_device: int
    padding: float = 0.0
    phase: str = ""
    scope: str = ""
    source: str = ""
    function: str = ""


def shape_of(place: str) -> str:
    """Return a place without its axes: the dtype, and the dimensions with their sizes."""
    return re.sub(r"/[^,\]]*", "", place.partition(" parts/")[0])


@dataclass(frozen=True)
class CollectiveRecord:
    """One collective of a plan, or of compiled code.

    Attributes:
        phase: forward, backward, update or init; `unplanned` for what only a compiler has.
        kind: Such as `AllReduce`.
        axes: The mesh axes it runs along.
        hop: Who sends to whom, where an op sends to its neighbours.
        tensor: The tensor that is communicated.
        dtype: The dtype it is sent in.
        elements: The elements of one run.
        bytes: The bytes of one run.
        wire_bytes: What one device sends in one run.
        times: How often it runs in a step.
        open_ended: Whether a loop of unknown length runs it.
        devices: How many devices communicate with each other.
        scope: The scopes of its op.
        op: The name of its op.
        source: The file, and the line if it is known.
        function: The function that the line is in.
        host_bytes: What one host's devices send to other hosts in one run.
        slice_bytes: What one slice's devices send to other slices in one run.
    """

    phase: str
    kind: str
    axes: tuple[str, ...]
    hop: str
    tensor: str
    dtype: str
    elements: int
    bytes: int
    wire_bytes: int
    times: int
    open_ended: bool = False
    devices: int = 0
    scope: str = ""
    op: str = ""
    source: str = ""
    function: str = ""
    host_bytes: int = 0
    slice_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """The bytes of all its runs in a step."""
        return self.bytes * self.times

    @property
    def total_wire_bytes(self) -> int:
        """What one device sends in all its runs in a step."""
        return self.wire_bytes * self.times

    @property
    def total_host_bytes(self) -> int:
        """What one host sends to others in all its runs in a step."""
        return self.host_bytes * self.times

    @property
    def total_slice_bytes(self) -> int:
        """What one slice sends to others in all its runs in a step."""
        return self.slice_bytes * self.times


@dataclass(frozen=True)
class PlanRecord:
    """A plan, or what a compiler made of one, in the form that is compared.

    Attributes:
        origin: What it was made of: `plan`, `artifact`, `audit` or `report`.
        program: The name of the traced function.
        mesh: The size of each mesh axis, and hosts and slices where there are several.
        layout: The layout, as text.
        params: The layout of parameters at rest, as text.
        flops: The floating point operations of a step over all devices; None if not known.
        tensors: Where tensors lie; empty for what a compiler made.
        collectives: Those of a step and of initialisation.
        memory: The most bytes that one device holds; None if not known.
        seconds: Estimated times of a step, by name, where a target is known.
        target: The target they are estimated for.

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
    collectives: tuple[CollectiveRecord, ...] = ()
    memory: int | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    target: str = ""

    @classmethod
    def of_plan(cls, plan: Plan, cost: Mapping[str, Any] | None = None) -> PlanRecord:
        """Make the record of a plan, exactly as if it were written and read back.

        Args:
            plan: The plan.
            cost: Its cost on a target, as a file has it.

        Returns:
            The record.
        """
        document = {**plan.to_json(), **({"cost": cost} if cost else {})}
        return read_plan(write_plan(document, lines=True), "the plan")


def load_plan(path: str | os.PathLike[str]) -> PlanRecord:
    """Read a plan that was saved: by this version or another, on this machine or another.

    Args:
        path: A file that `Plan.save` wrote.

    Returns:
        The record of the plan.

    Raises:
        NamedMeshError: If the file cannot be read, is too large, is not a plan, is of another
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
    return read_plan(read_text(name), name)


def read_text(path: str) -> str:
    """Read a text of a size that can be a plan's."""
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise NamedMeshError(f"{path!r} is not a file", fix="give the file of a plan")
        size = os.path.getsize(path)
        if size > LARGEST_FILE:
            raise NamedMeshError(f"{path!r} has {size:,} bytes, too many for a plan", fix=AGAIN)
        with open(path, encoding="utf-8") as file:
            return file.read()
    except UnicodeError:
        raise NamedMeshError(f"{path!r} is not a saved plan: it is not text", fix=AGAIN) from None
    except OSError as error:
        raise NamedMeshError(
            f"cannot read {path!r}: {describe_os_error(error)}", fix="check the path"
        ) from None


def parse_json(text: str, label: str) -> Any:
    """Parse JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NamedMeshError(
            f"{label!r} is not a saved plan, or is damaged: {str(error)[:200]}", fix=AGAIN
        ) from None


def read_plan(text: str, label: str) -> PlanRecord:
    """Read the text of a saved plan."""
    value = parse_json(text, label)
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise NamedMeshError(f"{label!r} is not a saved plan", fix=AGAIN)
    if value.get("version") != VERSION:
        version = repr(value.get("version"))[:60]
        raise NamedMeshError(
            f"{label!r} has plan version {version}; this namedmesh reads {VERSION}", fix=AGAIN
        )
    document = JsonCursor(value)
    record = PlanRecord(
        origin="plan",
        mesh={name: one.number() for name, one in document.member("mesh").members().items()},
        **{name: document.member(name).text() for name in ("program", "layout", "params")},
        flops=document.member("flops").number(),
        tensors=_expand(_rows(document.member("tensors"), TENSOR_COLUMNS, _read_tensor), document),
        collectives=tuple(
            _rows(document.member("collectives"), COLLECTIVE_COLUMNS, _read_collective)
        ),
        **(_read_cost(document.member("cost")) if "cost" in value else {}),
    )
    for name, size in record.mesh.items():
        document.build(lambda name=name: check_identifier(name, "mesh axis"), "")
        document.build(lambda name=name, size=size: check_size(size, f"mesh axis {name}"), 0)
    if not document.problems:
        _check_totals(document, record)
    if document.problems:
        problems = list(document.problems)
        more = [f"and {len(problems) - 10} more"] if len(problems) > 10 else []
        raise NamedMeshError(
            f"{label!r} is a plan with fields that are missing or wrong",
            *problems[:10],
            *more,
            fix=AGAIN,
        )
    return record


def _rows(
    table: JsonCursor, known: Sequence[str], read: Callable[[Mapping[str, JsonCursor]], T]
) -> Iterator[T]:
    """What the rows of a table hold; columns that are not known are left out."""
    columns = [one.text() for one in table.member("columns").items()]
    missing = [name for name in known if name not in columns]
    if missing:
        table.note(f"{table.path} has no column {name_some(missing)}")
        return
    for row in table.member("rows").items():
        cells = row.items()
        if len(cells) != len(columns):
            row.wrong(f"{len(columns)} cells")
            return
        yield read(dict(zip(columns, cells, strict=True)))


def _read_tensor(cells: Mapping[str, JsonCursor]) -> tuple[TensorRecord, int]:
    """A tensor, and how many there are of it."""
    texts = {name: cells[name].text() for name in TENSOR_COLUMNS if name not in _NUMBERS}
    size, padding = cells["bytes_per_device"].number(), cells["padding"].real()
    tensor = TensorRecord(**texts, bytes_per_device=size, padding=padding)
    return tensor, cells["count"].number()


def _expand(
    counted: Iterator[tuple[TensorRecord, int]], document: JsonCursor
) -> tuple[TensorRecord, ...]:
    """Every tensor of rows that stand for several, unless those are more than a plan can have."""
    rows = list(counted)
    if sum(count for _, count in rows) > LARGEST_COUNT:
        document.note(f"tensors has more than {LARGEST_COUNT:,} of them")
        return ()
    return tuple(tensor for tensor, count in rows for _ in range(count))


def _read_collective(cells: Mapping[str, JsonCursor]) -> CollectiveRecord:
    texts = {name: cells[name].text() for name in COLLECTIVE_COLUMNS if name not in _NUMBERS}
    crossing = [name for name in CROSSING_COLUMNS if name in cells]
    counts = ("elements", "bytes", "wire_bytes", "times", "devices", *crossing)
    numbers = {name: cells[name].number() for name in counts}
    axes = tuple(one.text() for one in cells["axes"].items())
    phase = cells["phase"].text(ALL_PHASES)
    rest = {"axes": axes, "phase": phase, "open_ended": cells["open_ended"].flag()}
    return CollectiveRecord(**{**texts, **numbers, **rest})


_NUMBERS = frozenset(
    (
        "bytes_per_device", "padding", "elements", "bytes", "wire_bytes", "times", "devices",
        "axes", "open_ended", "count",
    )
)  # fmt: skip


def _read_cost(cost: JsonCursor) -> dict[str, Any]:
    """The fields of a record that a cost fills."""
    return {
        "memory": cost.member("memory").number(),
        "seconds": {name: cost.member(name).real() for name in _COSTS},
        "target": cost.member("target").text(),
    }


def _check_totals(document: JsonCursor, record: PlanRecord) -> None:
    """Note totals of a file that its collectives do not add up to."""
    totals = {"bytes": "bytes_per_device", "wire_bytes": "wire_bytes_per_device"}
    crossing = {f"{block}_bytes": f"bytes_leaving_a_{block}" for block in ("host", "slice")}
    totals |= {name: key for name, key in crossing.items() if document.has(key)}
    for name, key in totals.items():
        for phase in ALL_PHASES:
            stated = document.member(key).member(phase)
            ones = (one for one in record.collectives if one.phase == phase)
            total = sum(getattr(one, f"total_{name}") for one in ones)
            if stated.number() != total:
                stated.wrong(f"{total}, as its collectives add up to")
