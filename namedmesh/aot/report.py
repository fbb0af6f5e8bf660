"""What an ahead-of-time compile found, as a table for people and as a JSON row."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from namedmesh.aot.memory import Buffer, Exhausted, Memory
from namedmesh.aot.topology import Target
from namedmesh.dims.text import columns, human
from namedmesh.runtime.artifact import Artifact
from namedmesh.runtime.audit import Audit
from namedmesh.runtime.bridge import dtype_of

HELD = {
    "state": "optimizer and other state",
    "activations": "activations that loops keep, as planned",
}


@dataclass(frozen=True)
class Layout:
    """A mesh on its devices: the device at each place, and mean hops between devices that talk, here and in listed order."""

    assignment: tuple[int, ...] | None
    hops: float | None
    listed_hops: float | None


@dataclass(frozen=True, kw_only=True)
class Aot:
    """What an Artifact takes on a target, per core; audit and cost are None where the compiler would not go on."""

    model: str
    target: str
    mesh: str
    cores: int
    weights: int
    fits: bool
    hbm_bytes: int | None
    memory: Memory | None
    lack: Exhausted | None
    buffers: tuple[Buffer, ...]
    levers: tuple[str, ...]
    audit: Audit | None
    program_flops: float
    compiler_flops: float | None
    bytes_accessed: float | None
    loops: int
    optimal_seconds: float | None
    compute_seconds: float | None
    compile_seconds: float
    layout: Layout

    @property
    def peak_bytes(self) -> int | None:
        """Everything a core holds at once, as far as the compiler said."""
        if self.lack is not None:
            return self.lack.needed
        return self.memory.total if self.memory else None

    @property
    def flops_per_core(self) -> float:
        """The compiler's count where it is whole; it counts the body of a loop once, and then the program's own stands."""
        return self.program_flops if self.loops or not self.compiler_flops else self.compiler_flops

    @property
    def error(self) -> str | None:
        """Why the step does not run there."""
        if self.lack is None:
            return None
        over = human(self.lack.needed - self.lack.available)
        return (
            f"out of memory by {over} ({human(self.lack.needed)} of {human(self.lack.available)})"
        )

    def collectives(self) -> list[dict[str, Any]]:
        """Planned and made collectives side by side, one row for each kind, axes and dtypes."""
        rows: dict[tuple[Any, ...], dict[str, Any]] = {}

        def count(
            kind: str,
            axes: Sequence[str],
            dtype: str,
            sent: str,
            planned: int,
            made: int,
            times: int,
            elements: int,
        ):
            key = (kind, tuple(axes), dtype, sent)
            empty = {"planned": 0, "made": 0, "planned_bytes": 0, "made_bytes": 0}
            row = rows.setdefault(
                key, {"kind": kind, "axes": list(axes), "dtype": dtype, "sent_as": sent, **empty}
            )
            row["planned"] += planned * times
            row["made"] += made * times
            row["planned_bytes"] += planned * times * elements * dtype_of(dtype).itemsize
            row["made_bytes"] += made * times * elements * dtype_of(sent).itemsize

        if self.audit is None:
            return []
        for plan, one in self.audit.matched:
            count(
                plan["kind"],
                plan["axes"],
                plan["dtype"],
                one.dtype,
                1,
                1,
                plan.get("times", 1),
                plan["elements"],
            )
        for plan in (*self.audit.merged, *self.audit.missing):
            count(
                plan["kind"],
                plan["axes"],
                plan["dtype"],
                plan["dtype"],
                1,
                0,
                plan.get("times", 1),
                plan["elements"],
            )
        for one in self.audit.unplanned:
            count(
                one.kind, one.axes or ("other groups",), one.dtype, one.dtype, 0, 1, 1, one.elements
            )
        return list(rows.values())

    def row(self) -> dict[str, Any]:
        """Everything as JSON."""
        return {
            "model": self.model,
            "target": self.target,
            "mesh": self.mesh,
            "cores": self.cores,
            "weights": self.weights,
            "fits": self.fits,
            "error": self.error,
            "peak_bytes": self.peak_bytes,
            "hbm_bytes": self.hbm_bytes,
            "memory": dataclasses.asdict(self.memory) if self.memory else None,
            "largest_buffers": [dataclasses.asdict(buffer) for buffer in self.buffers],
            "levers": list(self.levers),
            "collectives_match_plan": self.audit.exact if self.audit and self.fits else None,
            "collectives": self.collectives(),
            "notes": list(self.audit.notes) if self.audit else [],
            "flops_per_core": self.flops_per_core,
            "compiler_flops_per_core": self.compiler_flops,
            "bytes_accessed_per_core": self.bytes_accessed,
            "loops_counted_once": self.loops,
            "optimal_seconds": self.optimal_seconds,
            "compute_seconds": self.compute_seconds,
            "compile_seconds": self.compile_seconds,
            "code_bytes": self.memory.code if self.memory else None,
            "mean_hops": self.layout.hops,
            "mean_hops_in_listed_order": self.layout.listed_hops,
        }

    def __str__(self) -> str:
        verdict = (
            f"does not fit: {self.error}"
            if not self.fits
            else "fits"
            if self.hbm_bytes
            else "compiles"
        )
        limit = f" of {human(self.hbm_bytes)}" if self.hbm_bytes else ""
        lines = [
            f"{self.model} on {self.target}, {self.cores:,} cores, {self.mesh}: {verdict}",
            "  a core holds",
        ]
        if self.memory:
            held = [
                (HELD.get(name, name), human(size))
                for name, size in dataclasses.asdict(self.memory).items()
            ]
            lines += columns([*held, ("all", human(self.peak_bytes or 0) + limit)], 4)
        lines += (
            ["  the largest values, of which some take each other's place"] if self.buffers else []
        )
        lines += columns([_described(one) for one in self.buffers[:8]], 4) if self.buffers else []
        lines += [f"  what helps: {lever}" for lever in self.levers]
        if self.audit:
            verdict = "as planned" if self.audit.exact else "NOT as planned"
            tried = "" if self.fits else " in the compiler's last try"
            lines.append(f"  collectives {verdict}{tried}")
            head = (
                "collective",
                "axes",
                "planned",
                "made",
                "planned bytes",
                "made bytes",
                "sent as",
            )
            rows = [_moved(one) for one in self.collectives()]
            lines += columns([head, *rows], 4) if rows else ["    none"]
            lines += [f"    {note}" for note in self.audit.notes]
        lines += [f"  {line}" for line in self._costs()]
        return "\n".join(lines)

    def _costs(self) -> list[str]:
        whole = (
            "the program's count"
            if self.flops_per_core == self.program_flops
            else "the compiler's count"
        )
        lines = [
            f"{self.weights:,} weights, {self.flops_per_core:.4g} FLOPs a core and step ({whole})"
        ]
        once = ", loop bodies once" if self.loops else ""
        if self.bytes_accessed:
            lines.append(
                f"{human(self.bytes_accessed)} of memory accessed by a core ({once.removeprefix(', ') or 'all of it'})"
            )
        if self.compute_seconds:
            lines.append(
                f"{self.compute_seconds:.3g} s of computation by the compiler's estimate of cycles, loops in full"
            )
        if self.optimal_seconds and self.optimal_seconds > 0:
            lines.append(f"{self.optimal_seconds:.3g} s at best by its cost analysis{once}")
        if self.layout.hops and self.layout.listed_hops:
            lines.append(
                f"{self.layout.hops:.2f} hops a byte on average, {self.layout.listed_hops:.2f} in listed order"
            )
        return [*lines, f"compiled in {self.compile_seconds:.1f} s"]


def trainable(artifact: Artifact) -> int:
    """How many numbers are trained."""
    return sum(math.prod(spec.sizes) for spec in artifact.variables if spec.trainable)


def failed(artifact: Artifact, target: Target, model: str, error: str) -> dict[str, Any]:
    """The row of an artifact that could not be compiled at all."""
    known = {
        "model": model,
        "target": str(target),
        "mesh": str(artifact.mesh),
        "cores": target.cores,
    }
    unknown = dict.fromkeys(
        ("peak_bytes", "hbm_bytes", "flops_per_core", "compile_seconds", "collectives_match_plan")
    )
    return {**known, "weights": trainable(artifact), "fits": None, "error": error, **unknown}


def _described(buffer: Buffer) -> tuple[str, str, str]:
    times = f"{buffer.count} x " if buffer.count > 1 else ""
    return times + human(buffer.bytes), buffer.shape, buffer.origin


def _moved(row: dict[str, Any]) -> tuple[str, ...]:
    sent = (
        row["sent_as"] if row["sent_as"] == row["dtype"] else f"{row['sent_as']} for {row['dtype']}"
    )
    numbers = (
        f"{row['planned']}",
        f"{row['made']}",
        human(row["planned_bytes"]),
        human(row["made_bytes"]),
    )
    return (row["kind"], "+".join(row["axes"]), *numbers, sent)
