"""What differs between two plans, as data for a page that shows both."""

from __future__ import annotations

from collections import Counter
from typing import Any

from namedmesh.diff.diff import Diff
from namedmesh.planning.plan_record import CollectiveRecord
from namedmesh.report.plan_data import PlanData


def describe_differences(found: Diff, before: PlanData, after: PlanData) -> dict[str, Any]:
    """Describe what came, went and changed, by the numbers that a page has for tensors."""
    tensors = [
        *found.tensors.changed,
        *((one, None) for one in found.tensors.went),
        *((None, one) for one in found.tensors.came),
    ]
    alike = Counter(
        (
            None if old is None else before.find_tensor(old.tensor, old.place),
            None if new is None else after.find_tensor(new.tensor, new.place),
        )
        for old, new in tensors
    )
    collectives = [
        *found.collectives.changed,
        *((one, None) for one in found.collectives.went),
        *((None, one) for one in found.collectives.came),
    ]
    return {
        "tensors": [[old, new, count] for (old, new), count in alike.items()],
        "equal_tensors": found.tensors.equal,
        "collectives": [[_describe(old), _describe(new)] for old, new in collectives],
        "equal_collectives": found.collectives.equal,
    }


def _describe(one: CollectiveRecord | None) -> dict[str, Any] | None:
    """What a page shows of a collective of one plan."""
    if one is None:
        return None
    return {
        "kind": one.kind,
        "axes": list(one.axes),
        "tensor": one.tensor,
        "phase": one.phase,
        "scope": one.scope,
        "sent": one.total_wire_bytes,
        "times": one.times,
    }
