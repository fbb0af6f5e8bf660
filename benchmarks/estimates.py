"""Estimates beside what compilers say and what was measured: memory, steps, layouts.

python -m benchmarks.estimates [--json OUT]         memory and steps beside the recorded results
python -m benchmarks.estimates ops MODEL            a step of benchmarks.gpu on an H200, op by op
python -m benchmarks.estimates lines PROFILE ...    the same by source line, beside its kernels
python -m benchmarks.estimates layouts [--json OUT] twelve layouts of two models on 8 CPU devices

The first three need neither devices nor TensorFlow. The recorded results are those of TPU v3's
compiler (benchmarks/results/tpu_v3, long_sequences), XLA's compiler for CPUs (long_sequences) and
steps measured on an H200 (gpu); a PROFILE is what `python -m benchmarks.gpu.measure namedmesh MODEL
FOLDER --profile` prints there. The last command measures, on this host.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import namedmesh as nm
from benchmarks import (
    estimated_lines,
    estimated_steps,
    long_sequence_cases,
    long_sequences,
    tpu_v3,
)
from benchmarks.gpu import export as gpu_export
from benchmarks.gpu.models import MODELS
from namedmesh.cost.cost import OpCost
from namedmesh.cost.fusion import is_product

RESULTS = pathlib.Path(__file__).parent / "results"
GIB = 2**30
DEVICE = "h200"  # what the steps of benchmarks.gpu are measured on


def estimate_family() -> list[dict[str, Any]]:
    """Return the memory of the paper's models beside that of TPU v3's compiler, code left out.

    Beside the seconds of ops stand those of the cycles that the compiler expects.
    """
    rows = []
    for file in ("family", "scaling"):
        for known in tpu_v3.read(RESULTS / "tpu_v3" / f"{file}.json"):
            if known.get("memory") is None:
                continue
            plan = tpu_v3.plan_case(tpu_v3.CASES[known["model"]])
            start = time.perf_counter()
            cost = nm.cost(plan, known["target"])
            seconds = time.perf_counter() - start
            row = {"program": known["model"], "compiler": "tpu-v3"}
            compiled = known["peak_bytes"] - known["memory"]["code"]
            compute = {
                "compute_seconds": cost.compute_seconds,
                "compiled_compute_seconds": known["compute_seconds"],
                "seconds_to_estimate": seconds,
            }
            rows.append({**row, **_compare_memory(cost, compiled), **compute})
    return rows


def estimate_long_sequences(kind: str) -> list[dict[str, Any]]:
    """Return the memory of steps with long sequences beside that of a compiler, code left out.

    Of XLA's compiler for CPUs (`cpu`) that is the smallest step of each form, of TPU v3's (`tpu`)
    all that fit.
    """
    rows, seen = [], set()
    for known in long_sequences.read(kind):
        if not known["fits"] or (kind == "cpu" and known["cell"] in seen):
            continue
        seen.add(known["cell"])
        cell = long_sequence_cases.CELLS[known["cell"]]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # plain ones leave an axis idle
            plan = nm.plan(cell.trace(known["size"]), cell.mesh, cell.layout)
        target = known["target"] if kind == "tpu" else "cpu"
        code = known["memory"]["code"] if kind == "tpu" else 0
        row = {
            "program": f"{known['cell']}, {known['size']:,}",
            "compiler": target.partition(":")[0],
        }
        cost = nm.cost(plan, target)
        rows.append({**row, **_compare_memory(cost, known["peak_bytes"] - code)})
    return rows


def _compare_memory(cost: nm.Cost, compiled: int) -> dict[str, Any]:
    """Return an estimate of memory beside a compiler's."""
    peak = cost.memory.peak_bytes
    return {"estimate": peak, "compiled": compiled, "ratio": peak / compiled}


def estimate_steps() -> list[dict[str, Any]]:
    """Compare seconds and memory of steps on one GPU with those measured, by kind of op."""
    results = json.loads((RESULTS / "gpu" / "results.json").read_text())
    profiles = {
        one["model"]: one["kinds"] for one in results["profiles"] if one["system"] == "namedmesh"
    }
    rows = []
    for known in results["rows"]:
        if known["system"] != "namedmesh":
            continue
        cost = estimate_gpu_step(known["model"])
        estimated = group_by_kind(cost.ops)
        measured = profiles.get(known["model"], {})
        rows.append(
            {
                "program": known["model"],
                "device": known["device"],
                "estimate_ms": 1e3 * cost.seconds,
                "measured_ms": known["ms"],
                "ratio": 1e3 * cost.seconds / known["ms"],
                "kinds": {
                    kind: {"estimate_ms": estimated.get(kind, 0.0), "measured_ms": measured[kind]}
                    for kind in measured
                },
                "memory": _compare_memory(cost, int(known["planned_gib"] * GIB)),
            }
        )
    return rows


def estimate_gpu_step(model: str) -> nm.Cost:
    """Return the cost of a train step of benchmarks.gpu on one device."""
    return nm.cost(nm.plan(gpu_export.trace(MODELS[model]), nm.Mesh(all=1), ""), DEVICE)


def group_by_kind(ops: Iterable[OpCost]) -> dict[str, float]:
    """Return the milliseconds of ops by the kinds in which benchmarks.gpu has kernels."""
    kinds: Counter[str] = Counter()
    for one in ops:
        kinds[_kind_of(one)] += 1e3 * one.total_seconds  # type: ignore[assignment]
    return dict(kinds)


def _kind_of(one: OpCost) -> str:
    if one.op.offers_kernel:
        return "attention"
    if is_product(one.op):
        return "matrix products"
    if one.phase == "update":
        return "optimizer"
    return "embedding" if one.op.kind in ("gather", "scatteradd") else "other"


def describe_ops(model: str) -> list[dict[str, Any]]:
    """Estimate the time of each op of a step, the longest first, equal ones together."""
    together: dict[tuple[Any, ...], list[OpCost]] = defaultdict(list)
    for one in estimate_gpu_step(model).ops:
        together[one.op.kind, one.phase, str(one.source), one.flops, one.bytes].append(one)
    rows = [
        {
            "kind": _kind_of(ops[0]),
            "op": kind,
            "phase": phase,
            "line": line,
            "names": [one.name for one in ops],
            "flops": flops,
            "bytes": size,
            "bound": ops[0].bound,
            "ms_each": 1e3 * ops[0].seconds,
            "ms": 1e3 * sum(one.total_seconds for one in ops),
        }
        for (kind, phase, line, flops, size), ops in together.items()
    ]
    return sorted(rows, key=lambda row: -row["ms"])


def memory_table(rows: list[dict[str, Any]]) -> str:
    """Memory as a table for people."""
    names = ["program", "compiler", "estimate, GiB", "compiled, GiB", "ratio", "compute, s"]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for row in rows:
        cells = [row["program"], row["compiler"]]
        cells += [f"{row['estimate'] / GIB:.2f}", f"{row['compiled'] / GIB:.2f}"]
        cells.append(f"{row['ratio']:.2f}")
        compiled = row.get("compiled_compute_seconds")
        cells.append(f"{row['compute_seconds']:.2f} / {compiled:.2f}" if compiled else "-")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def steps_table(rows: list[dict[str, Any]]) -> str:
    """Step as a table for people, each number an estimate and what was measured."""
    kinds = list(rows[0]["kinds"]) if rows else []
    names = ["program", "ms", "ratio", *kinds, "memory, GiB"]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for row in rows:
        cells = [row["program"], f"{row['estimate_ms']:.1f} / {row['measured_ms']:.1f}"]
        cells.append(f"{row['ratio']:.2f}")
        for kind in kinds:
            pair = row["kinds"][kind]
            cells.append(f"{pair['estimate_ms']:.1f} / {pair['measured_ms']:.1f}")
        memory = row["memory"]
        cells.append(f"{memory['estimate'] / GIB:.1f} / {memory['compiled'] / GIB:.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def layouts_table(rows: list[dict[str, Any]]) -> str:
    """Layouts as a table for people, the fastest of each model first, with rank correlations."""
    lines = ["| model | mesh | layout | params | estimate, ms | measured, ms |", "|---" * 6 + "|"]
    for row in sorted(rows, key=lambda row: (row["model"], row["measured_ms"])):
        cells = [row["model"], row["mesh"], row["layout"] or "-", row["params"] or "-"]
        cells += [f"{row['estimate_ms']:.1f}", f"{row['measured_ms']:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    for model, correlation in correlate(rows).items():
        lines.append(f"\nrank correlation of {model}: {correlation:.2f}")
    return "\n".join(lines)


def correlate(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the rank correlation of estimates and measurements, by model."""
    found = {}
    for model in dict.fromkeys(row["model"] for row in rows):
        pairs = [(r["estimate_ms"], r["measured_ms"]) for r in rows if r["model"] == model]
        found[model] = estimated_steps.rank_correlation(*zip(*pairs, strict=True))
    return found


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.estimates", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--json", type=pathlib.Path, metavar="OUT", help="the file of the result")
    commands = parser.add_subparsers(dest="command")
    ops = commands.add_parser("ops", help="a step on an H200, op by op")
    ops.add_argument("model", choices=list(MODELS))
    lines = commands.add_parser("lines", help="a step on an H200 by line, beside its kernels")
    lines.add_argument("profiles", nargs="+", type=pathlib.Path, metavar="PROFILE")
    layouts = commands.add_parser("layouts", help="measure layouts on 8 CPU devices")
    for command in (ops, lines, layouts):
        command.add_argument("--json", type=pathlib.Path, metavar="OUT", default=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    result: Any
    if given.command == "ops":
        result = describe_ops(given.model)
        for row in result[:40]:
            count = len(row["names"])
            print(f"{row['ms']:9.3f} ms  {count:4d} x {row['op']} {row['phase']}, {row['line']}")
    elif given.command == "lines":
        profiles = [json.loads(path.read_text()) for path in given.profiles]
        result = [
            estimated_lines.compare_lines(estimate_gpu_step(one["model"]), one) for one in profiles
        ]
        print(*map(estimated_lines.lines_table, result), sep="\n\n")
    elif given.command == "layouts":
        before = os.getloadavg()[0]
        rows = estimated_steps.measure()
        result = {
            "rows": rows,
            "rank_correlation": correlate(rows),
            "cores": estimated_steps.count_cores(),
            "load": [round(before, 1), round(os.getloadavg()[0], 1)],  # before and after
        }
        print(layouts_table(rows), f"\nload {result['load']} on {result['cores']} cores", sep="\n")
    else:
        long = [row for kind in ("tpu", "cpu") for row in estimate_long_sequences(kind)]
        memory = [*estimate_family(), *long]
        steps = estimate_steps()
        result = {"memory": memory, "steps": steps}
        print(memory_table(memory), steps_table(steps), sep="\n\n")
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
