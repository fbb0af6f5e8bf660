"""The figures of a plan that a comparison adds up and a condition can name."""

from __future__ import annotations

from collections import Counter

from namedmesh.display.text import format_seconds, human
from namedmesh.records.collective import ALL_PHASES, KINDS
from namedmesh.records.plan import AS_COMPILED, COSTS, PlanRecord

SIZES = ("bytes", "wire_bytes", "host_bytes", "slice_bytes")
COUNTED = (*SIZES, "collectives")
# Totals of a step; each of those that are counted also by phase and by kind, as in
# wire_bytes.backward and bytes.AllGather. A kind alone is a number of collectives.
METRICS = (*COUNTED, "flops", "memory", "findings", *COSTS, "exposed_seconds", *KINDS)
PARTS = (*ALL_PHASES, "unplanned", *KINDS)


def measure(record: PlanRecord) -> dict[str, float | None]:
    """Add up the figures of a plan."""
    counted: dict[str, Counter[str]] = {name: Counter() for name in COUNTED}
    for one in record.collectives:
        amounts = (*(getattr(one, f"total_{name}") for name in SIZES), one.times)
        parts = [one.phase] if one.phase == "init" else ["", one.phase, one.kind]
        for name, amount in zip(COUNTED, amounts, strict=True):
            for part in parts:
                counted[name][part] += amount
    figures: dict[str, float | None] = {name: counted[name][""] for name in COUNTED}
    figures |= {"flops": record.flops, "memory": record.memory}
    figures["findings"] = len(record.warnings) if record.layout == AS_COMPILED else None
    figures |= {name: record.seconds.get(name) for name in COSTS}
    figures |= {kind: counted["collectives"][kind] for kind in KINDS}
    exposed = record.exposed
    figures["exposed_seconds"] = sum(exposed.values()) if exposed else None
    figures |= {f"exposed_seconds.{kind}": seconds for kind, seconds in exposed.items()}
    for name in COUNTED:
        parts = sorted(part for part in counted[name] if part)
        figures |= {f"{name}.{part}": counted[name][part] for part in parts}
    return figures


def unit_of(metric: str) -> str:
    """Return the unit of a metric."""
    name = metric.partition(".")[0]
    if name in (*SIZES, "memory"):
        return "bytes"
    return "seconds" if name in (*COSTS, "exposed_seconds") else ""


def format_figure(metric: str, value: float | None) -> str:
    """Format a figure in its unit."""
    if value is None:
        return "unknown"
    unit = unit_of(metric)
    if unit == "bytes":
        return human(value)
    if unit == "seconds":
        return format_seconds(value)
    return f"{value:,.0f}" if abs(value) < 1e6 else f"{value:.3g}"


def format_change(before: float, after: float) -> str:
    """Format how much a figure changed, in percent."""
    if before == after:
        return "same"
    if not before:
        return "new"
    if after / before >= 10:
        return f"{after / before:.1f}x"
    share = 100 * (after - before) / before
    if abs(share) < 0.05:
        return "+<0.1%" if share > 0 else "-<0.1%"
    return f"{share:+.1f}%"
