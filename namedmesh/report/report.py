"""nm.report: a plan as one HTML file that needs nothing else."""

from __future__ import annotations

import functools
import html
import importlib.resources
import json
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from namedmesh.audit.audit import Audit
from namedmesh.cost.cost import cost
from namedmesh.diff.diff import diff
from namedmesh.errors.errors import NamedMeshError
from namedmesh.files import check_path, write_file
from namedmesh.hardware.hardware import Hardware
from namedmesh.ir.format import format_value
from namedmesh.planning.plan import Plan
from namedmesh.report.page_data import (
    PageData,
    PlanData,
    describe_audit,
    describe_cost,
    describe_differences,
)
from namedmesh.schedule.timeline import Timeline
from namedmesh.version import __version__

if TYPE_CHECKING:
    from namedmesh.inspect.inspection import Inspection

STYLES = ("colours.css", "layout.css", "views.css", "print.css")
# In the order in which each needs those before it; they share one scope in the page.
SCRIPTS = (
    "format.js", "ticks.js", "model.js", "costs.js", "address.js", "parts.js", "overview.js",
    "program.js", "shards.js", "tensor.js", "timeline.js", "schedule.js", "collectives.js",
    "memory.js", "roofline.js", "code.js", "differences.js", "app.js",
)  # fmt: skip
LIBRARY = "vendor/htm-preact.js"
OF_SCHEDULE = ("format.js", "ticks.js", "schedule.js", "schedule_page.js")


@functools.cache
def read_static(name: str) -> str:
    """Read a file of `static/`, which is part of the package."""
    folder = importlib.resources.files("namedmesh.report") / "static"
    return folder.joinpath(*name.split("/")).read_text(encoding="utf-8")


def build_document(
    title: str, data: dict[str, Any], scripts: Sequence[str] = SCRIPTS, library: str = LIBRARY
) -> str:
    """Build a page that needs nothing but itself."""
    parts = {
        "title": html.escape(title),
        "style": "\n".join(map(read_static, STYLES)),
        "data": encode_data(data),
        "library": read_static(library) if library else "",
        "script": "\n".join(map(read_static, scripts)),
    }
    # In one pass: text that is put in may itself contain what looks like a name in braces.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], read_static("page.html"))


def encode_data(data: Any) -> str:
    """Encode values as JSON that can stand in a script element."""
    # A browser ends the element at the first `</script`, wherever it is, and reads `<!--` as the
    # start of a comment; JSON has another way to write the sign.
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c")


def report(
    plan: Plan | Inspection,
    path: str | os.PathLike,
    *,
    target: str | os.PathLike | Hardware | None = None,
    audit: Audit | None = None,
    beside: Plan | Inspection | None = None,
    timeline: Timeline | None = None,
) -> None:
    """Write a plan as one HTML page: its program, tensors, collectives, memory, time and source.

    The page needs no network and no other file. It has the text of the files whose lines the plan
    names, so think before you publish it.

    Args:
        plan: The plan, or what `nm.inspect` returns of a step of JAX.
        path: The file to write.
        target: The hardware that times and memory are estimated for, as `nm.cost` takes it; by
            default `tpu-v3`, and what an inspected step is compiled for.
        audit: The compiler's collectives against the plan's, e.g. `step.audit`.
        beside: Another plan, to be shown beside this one with the differences.
        timeline: What the compiled step runs and waits for, such as that of `namedmesh aot`.

    Example:
        >>> import pathlib, tempfile
        >>> import namedmesh as nm
        >>> B, M = nm.dims("batch=8 model=4")
        >>> program = nm.trace(lambda x: nm.sum(x, over=B), x=nm.spec([B, M]))
        >>> plan = nm.plan(program, nm.Mesh(data=4), "batch:data")
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "plan.html"
        >>> nm.report(plan, path, target="h200")
        >>> path.read_text().startswith("<!doctype html>")
        True
    """
    name = check_path(path, "the file of the report")
    plans = [plan] if beside is None else [plan, beside]
    if audit is not None and not isinstance(audit, Audit):
        raise NamedMeshError(
            f"nm.report: audit is {format_value(audit)}, expected an Audit",
            fix="give step.audit of a step that nm.compile returned",
        )
    data = [_tabulate(one, target) for one in plans]
    content: dict[str, Any] = {
        "version": __version__,
        "plans": [one.to_json() for one in data],
    }
    if audit is not None:
        collectives = [*plan.collectives, *plan.initial_collectives]
        content["plans"][0]["audit"] = describe_audit(audit, collectives)
    timeline = timeline or data[0].timeline
    if beside is not None:
        content["differences"] = describe_differences(diff(plan, beside), *data)
    if timeline is not None:
        content["schedule"] = timeline.to_json()
    title = f"{content['plans'][0]['program']} on {plan.mesh}"
    document = build_document(title, content)
    write_file(name, document.encode(), "the report")


def report_timeline(timeline: Timeline, path: str, title: str) -> None:
    """Write a page of a timeline alone."""
    content = {**timeline.to_json(), "title": title, "version": __version__}
    document = build_document(title, content, OF_SCHEDULE, "")
    write_file(path, document.encode(), "the page of the timeline")


def _tabulate(plan: Any, target: str | os.PathLike | Hardware | None) -> PageData:
    """Collect the tables of a plan, or of a compiled step, and its cost on some hardware."""
    hardware = target if target is None or isinstance(target, Hardware) else Hardware.parse(target)
    if isinstance(plan, Plan):
        data = PlanData(plan)
        data.cost = describe_cost(cost(plan, hardware or Hardware.parse("tpu-v3")), data)
        return data
    from namedmesh.report.step_data import Inspection, StepData  # which imports jax

    if not isinstance(plan, Inspection):
        problem = f"nm.report: {format_value(plan)} is not a plan"
        raise NamedMeshError(problem, fix="give what nm.plan or nm.inspect returns")
    return StepData(plan, hardware or plan.hardware)
