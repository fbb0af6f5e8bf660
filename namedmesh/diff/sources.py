"""Records of what can be compared: plans, Artifacts, files of both, audits, steps and reports."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from namedmesh.artifacts.artifact import Artifact
from namedmesh.audit.audit import Audit
from namedmesh.cost.cost import cost
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError
from namedmesh.errors.source import Source
from namedmesh.files import check_path, read_file
from namedmesh.planning.communication import Communication
from namedmesh.planning.plan import Plan
from namedmesh.records.codec import InvalidRecordError, read_value, report_problems
from namedmesh.records.collective import Collective
from namedmesh.records.plan import LARGEST_FILE, PlanRecord, read_plan
from namedmesh.records.tensor import TensorRecord

COMPARABLE = "a Plan, the path of a saved one, an Artifact, an Audit, a compiled step or a report"


def record_of(value: Any, target: Any = None) -> PlanRecord:
    """Return the record of anything that can be compared."""
    if isinstance(value, PlanRecord):
        return value
    if isinstance(value, Plan):
        return PlanRecord.of_plan(value, None if target is None else cost(value, target).summary())
    if isinstance(value, Communication):
        return value.record
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


def _record_file(path: str) -> PlanRecord:
    """Return the record of a saved plan, an Artifact, or the one row of a report."""
    if os.path.isfile(path) and zipfile.is_zipfile(path):
        return _record_artifact(Artifact.load(path))
    data = read_file(path, "the plan", LARGEST_FILE)
    if not data.lstrip().startswith(b"["):
        return read_plan(data, path)
    try:
        rows = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NamedMeshError(
            f"{path!r} is neither a saved plan nor a report: {str(error)[:200]}",
            fix=f"give {COMPARABLE}",
        ) from None
    if len(rows) != 1 or not isinstance(rows[0], dict):
        raise NamedMeshError(
            f"{path!r} has {len(rows)} rows, expected the one row of a report",
            fix="run namedmesh aot once for each artifact",
        )
    return read_report(rows[0], path)


def _record_artifact(artifact: Artifact) -> PlanRecord:
    """Return the record of the plan that an Artifact was made from."""
    tensors = (
        TensorRecord(
            spec.name, spec.sharded_text, spec.bytes_per_device(artifact.mesh), source=op.source
        )
        for op in artifact.ops.values()
        for spec in op.results
        if len(spec.shape)
    )
    initial = (replace(one, phase="init") for one in artifact.initial_collectives)
    return PlanRecord(
        origin="artifact",
        program=artifact.name,
        mesh=artifact.mesh.to_json(),
        layout=artifact.layout,
        params=artifact.params,
        flops=artifact.flops,
        recomputed=artifact.recomputed,
        tensors=tuple(dict.fromkeys(tensors)),
        collectives=(*artifact.collectives, *initial),
    )


def _record_audit(audit: Audit, artifact: Artifact | None = None) -> PlanRecord:
    """Return what a compiler made, each collective under the names of its planned one."""
    collectives = tuple(one for _, one in audit.describe_compiled())
    if artifact is None:
        return PlanRecord("audit", "", {}, "", "", None, collectives=collectives)
    planned = _record_artifact(artifact)
    return replace(planned, origin="audit", tensors=(), collectives=collectives)


@dataclass(frozen=True)
class _MadeCollectives:
    """All collectives of one kind, axes and dtype in a report of ahead-of-time compilation."""

    kind: str
    axes: tuple[str, ...]
    sent_as: str
    made: int
    made_bytes: int
    made_wire_bytes: int


@dataclass(frozen=True)
class _ReportRow:
    """The values of a report of `namedmesh aot --json` that are compared."""

    model: str
    mesh: str
    target: str
    flops_per_core: float
    cores: int
    collectives: tuple[_MadeCollectives, ...]
    peak_bytes: int | None = None
    exposed_by_kind: Mapping[str, float] = field(default_factory=dict)


def read_report(values: dict[str, Any], label: str) -> PlanRecord:
    """Read what `namedmesh aot --json` wrote for one Artifact."""
    if values.get("collectives") is None and isinstance(values.get("error"), str):
        raise NamedMeshError(
            f"{label!r} is the report of an artifact that did not compile",
            values["error"][:200],
            fix="compile it again with namedmesh aot",
        )
    problem = f"{label!r} is neither a saved plan nor a report of namedmesh aot"
    with report_problems(problem, f"give {COMPARABLE}"):
        row = read_value(values, _ReportRow)
        try:
            mesh = Mesh.parse(row.mesh.removeprefix("Mesh(").removesuffix(")")).to_json()
        except NamedMeshError as error:
            raise InvalidRecordError([f"mesh: {error.problem}"]) from None
    return PlanRecord(
        origin="report",
        program=row.model,
        mesh=mesh,
        layout="",
        params="",
        flops=row.flops_per_core * row.cores,
        collectives=tuple(one for made in row.collectives for one in _split_equally(made)),
        memory=row.peak_bytes,
        target=row.target,
        exposed=row.exposed_by_kind,
    )


def _split_equally(row: _MadeCollectives) -> Iterator[Collective]:
    """Split a report's sum of collectives into equal ones and a rest."""
    if not row.made:
        return
    each = (row.made_bytes // row.made, row.made_wire_bytes // row.made)
    others = row.made - 1
    rest = (row.made_bytes - each[0] * others, row.made_wire_bytes - each[1] * others)
    runs = {each: row.made} if each == rest else {each: others, rest: 1}
    for (size, wire_bytes), times in runs.items():
        facts = (row.kind, row.axes, 0, row.sent_as, size, times, "", "", "unplanned")
        yield Collective(*facts, Source("", 0), devices=0, measured_wire_bytes=wire_bytes)
