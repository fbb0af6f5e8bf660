"""What the compiler made of each planned collective, as data for a page."""

from __future__ import annotations

import dataclasses
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any

from namedmesh.artifacts.manifest import without_folder
from namedmesh.audit.audit import Audit
from namedmesh.records.collective import Collective


def describe_audit(audit: Audit, collectives: Sequence[Collective]) -> dict[str, Any]:
    """Describe what became of each collective of a plan."""
    outcomes = defaultdict(deque)
    for planned, status, text in _outcomes(audit):
        outcomes[_by_name_alone(planned)].append((status, text))
    statuses = []
    for one in collectives:
        waiting = outcomes[_by_name_alone(one)]
        statuses.append(list(waiting.popleft()) if waiting else ["", ""])
    return {
        "exact": audit.exact,
        "statuses": statuses,
        "notes": audit.notes,
        "unplanned": [
            {
                "kind": one.kind,
                "axes": list(one.axes or ()),
                "elements": one.elements,
                "dtype": one.dtype,
                "bytes": one.bytes,
                "times": one.times,
                "origin": one.op_name or one.name,
            }
            for one in audit.unplanned
        ],
    }


def _outcomes(audit: Audit) -> Iterator[tuple[Collective, str, str]]:
    """Every planned collective with what became of it."""
    for planned, compiled in audit.matched:
        text = f"{compiled.kind} of {compiled.elements:,} {compiled.dtype} elements"
        yield planned, "made", text
    for planned in audit.merged:
        yield planned, "merged", "made as a part of another collective"
    for difference in audit.differences:
        yield difference.planned, "different", str(difference)
    for planned in audit.missing:
        yield planned, "missing", "the compiled code does not have it"


def _by_name_alone(collective: Collective) -> Collective:
    """A collective as an Artifact's manifest has it, which an audit is about."""
    return dataclasses.replace(collective, source=without_folder(collective.source))
