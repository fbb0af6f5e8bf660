"""What can be compared: plans, files of plans and Artifacts, audits, compiled steps and reports."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

from namedmesh.artifacts.artifact import Artifact
from namedmesh.audit.audit import Audit
from namedmesh.audit.hlo.communication import CompiledCollective
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError
from namedmesh.planning.plan import Plan
from namedmesh.planning.plan_record import (
    CollectiveRecord,
    PlanRecord,
    TensorRecord,
    parse_json,
    read_plan,
    read_text,
)
from namedmesh.records.collective import Collective
from namedmesh.records.json_cursor import JsonCursor
from namedmesh.records.paths import check_path

COMPARABLE = "a Plan, the path of a saved one, an Artifact, an Audit, a compiled step or a report"


def record_of(value: Any, target: Any = None) -> PlanRecord:
    """Return the record of anything that can be compared."""
    if isinstance(value, PlanRecord):
        return value
    if isinstance(value, Plan):
        return PlanRecord.of_plan(value, None if target is None else summarize_cost(value, target))
    if isinstance(value, Artifact):
        return _record_artifact(value)
    if isinstance(value, (str, os.PathLike)):
        return _record_file(check_path(value, "the file to compare"))
    if isinstance(value, Audit):
        return _record_audit(value)
    if isinstance(getattr(value, "audit", None), Audit) and hasattr(value, "artifact"):
        return _record_audit(value.audit, value.artifact)
    if callable(getattr(value, "row", None)):
        return read_report(value.row(), "the report")
    if isinstance(value, Mapping):
        return read_report(dict(value), "the row")
    raise NamedMeshError(f"diff: a {type(value).__name__} cannot be compared", fix=COMPARABLE)


def summarize_cost(plan: Plan, target: Any) -> dict[str, Any]:
    """Return the cost of a plan as its file has it."""
    from namedmesh.cost.cost import cost

    priced = cost(plan, target)
    return {
        "target": str(priced.hardware),
        "seconds": priced.seconds,
        "least_seconds": priced.least_seconds,
        "compute_seconds": priced.compute_seconds,
        "collective_seconds": priced.collective_seconds,
        "memory": priced.memory.peak_bytes,
    }


def _record_file(path: str) -> PlanRecord:
    """The record of a saved plan, an Artifact, or the one row of a report."""
    if os.path.isfile(path) and zipfile.is_zipfile(path):
        return _record_artifact(Artifact.load(path))
    text = read_text(path)
    if not text.lstrip().startswith("["):
        return read_plan(text, path)
    rows = parse_json(text, path)
    if len(rows) != 1 or not isinstance(rows[0], dict):
        raise NamedMeshError(
            f"{path!r} has {len(rows)} rows, expected the one row of a report",
            fix="run namedmesh aot once for each artifact",
        )
    return read_report(rows[0], path)


def _record_artifact(artifact: Artifact) -> PlanRecord:
    """What an Artifact says of its plan."""
    specs = [
        (record.source, spec)
        for record in artifact.ops.values()
        for spec in record.results
        if len(spec.shape)
    ]
    tensors = (
        TensorRecord(
            spec.name, spec.sharded_text, spec.bytes_per_device(artifact.mesh), source=str(source)
        )
        for source, spec in specs
    )
    initial = (_record_collective(one, phase="init") for one in artifact.initial_collectives)
    return PlanRecord(
        origin="artifact",
        program=artifact.name,
        mesh=artifact.mesh.to_json(),
        layout=artifact.layout,
        params=artifact.params,
        flops=artifact.flops,
        tensors=tuple(dict.fromkeys(tensors)),
        collectives=(*map(_record_collective, artifact.collectives), *initial),
    )


def _record_audit(audit: Audit, artifact: Artifact | None = None) -> PlanRecord:
    """What a compiler made, each collective by the names of the planned one it belongs to."""
    return PlanRecord(
        origin="audit",
        program=artifact.name if artifact else "",
        mesh=artifact.mesh.to_json() if artifact else {},
        layout=artifact.layout if artifact else "",
        params=artifact.params if artifact else "",
        flops=artifact.flops if artifact else None,
        collectives=tuple(_compiled_collectives(audit)),
    )


def _compiled_collectives(audit: Audit) -> Iterator[CollectiveRecord]:
    pairs = [*audit.matched, *((one.planned, one.compiled) for one in audit.differences)]
    for planned, compiled in pairs:
        yield _record_collective(planned, made=compiled)
    for one in (*audit.helpers, *audit.unplanned):
        yield CollectiveRecord(
            "unplanned", one.kind, one.axes or ("?",), "", one.op_name.rpartition("/")[2],
            one.dtype, one.elements, one.bytes, one.wire_bytes, one.times, one.open_ended,
            one.devices, op=one.name,
        )  # fmt: skip


def _record_collective(
    one: Collective, phase: str = "", made: CompiledCollective | None = None
) -> CollectiveRecord:
    """A planned collective, or what was made of it."""
    real = made or one
    # The compiler's bytes cross hosts in the same shares as the plan's.
    crossing = (
        size * real.wire_bytes // max(1, one.wire_bytes)
        for size in (one.host_bytes, one.slice_bytes)
    )
    return CollectiveRecord(
        phase or one.phase, real.kind, real.axes or ("?",), str(one.hop or ""), one.tensor,
        real.dtype, real.elements, real.bytes, real.wire_bytes, real.times, real.open_ended,
        real.devices, one.scope, one.op, str(one.source), one.source.function, *crossing,
    )  # fmt: skip


def read_report(row: dict[str, Any], label: str) -> PlanRecord:
    """Read what `namedmesh aot --json` wrote for one Artifact."""
    document = JsonCursor(row)
    if row.get("collectives") is None and isinstance(row.get("error"), str):
        raise NamedMeshError(
            f"{label!r} is the report of an artifact that did not compile",
            row["error"][:200],
            fix="compile it again with namedmesh aot",
        )
    made = document.member("collectives").items()
    mesh = document.member("mesh").text()
    record = PlanRecord(
        origin="report",
        program=document.member("model").text(),
        mesh=document.build(lambda: _parse_mesh(mesh), {}),
        layout="",
        params="",
        flops=document.member("flops_per_core").real() * document.member("cores").number(),
        collectives=tuple(one for row in made for one in _read_made(row)),
        memory=None if row.get("peak_bytes") is None else document.member("peak_bytes").number(),
        target=document.member("target").text(),
    )
    if document.problems:
        raise NamedMeshError(
            f"{label!r} is neither a saved plan nor a report of namedmesh aot",
            *list(document.problems)[:10],
            fix=f"give {COMPARABLE}",
        )
    return record


def _read_made(row: JsonCursor) -> Iterator[CollectiveRecord]:
    """All collectives of one kind, axes and dtype that a compiler made: equal ones, and a rest."""
    times, size = row.member("made").number(), row.member("made_bytes").number()
    wire = row.member("made_wire_bytes").number()
    kind, dtype = row.member("kind").text(), row.member("sent_as").text()
    axes = tuple(one.text() for one in row.member("axes").items())
    if not times:
        return
    each = (size // times, wire // times)
    rest = (size - each[0] * (times - 1), wire - each[1] * (times - 1))
    runs = {each: times} if each == rest else {each: times - 1, rest: 1}
    for (bytes_, wire_bytes), count in runs.items():
        yield CollectiveRecord("unplanned", kind, axes, "", "", dtype, 0, bytes_, wire_bytes, count)


def _parse_mesh(text: str) -> dict[str, int]:
    """The axes of a mesh as a report prints it: Mesh(data=2, expert=4)."""
    return Mesh.parse(text.removeprefix("Mesh(").removesuffix(")")).to_json()
