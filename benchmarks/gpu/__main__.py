"""Train steps on one GPU, namedmesh against JAX and PyTorch: time, memory, and kernels by kind.

python -m benchmarks.gpu.export FOLDER                                      needs TensorFlow, no GPU
python -m benchmarks.gpu FOLDER --json benchmarks/results/gpu/results.json  needs a GPU

Every measurement is a process of its own, and the systems take turns: in one order in one round, in
the other in the next. The faster kind of JAX's attention is the row of `jax`, that of PyTorch's the
row of `torch`, which decoder-only models have besides. A file that is there already keeps its rows
of other models.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.gpu.kernels import KINDS
from benchmarks.gpu.models import ALL_MODELS
from benchmarks.gpu.systems import ALL_SYSTEMS, choose_systems

TABLES = ("rows", "profiles", "runs", "failures")
BY_HAND = ("jax", "torch")  # of each the fastest variant is a row
SLOWEST = ("compile_seconds", "trace_seconds")  # later rounds find programs that are compiled


def run_process(system: str, model: str, folder: pathlib.Path, *options: str) -> dict[str, Any]:
    """Run benchmarks.gpu.measure; a failed one returns a row with `error`."""
    command = ["benchmarks.gpu.measure", system, model, str(folder), *options]
    print(f"python -m {' '.join(command)}", file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONUNBUFFERED": "1", **os.environ},
    )
    lines = done.stdout.splitlines()
    row = {"model": model, "system": system, "error": f"exit status {done.returncode}"}
    if not done.returncode and lines:
        row = json.loads(lines[-1])
    return {**row, "command": f"python -m {' '.join(command)}"}


def measure_model(
    model: str, folder: pathlib.Path, systems: Sequence[str], rounds: int, profiled: bool
) -> dict[str, list[dict[str, Any]]]:
    """Measure systems on one model.

    Returns:
        `rows`, one for each system, `profiles` of the same, every one of the `runs`, and
        `failures`.
    """
    runs, failures = [], []
    for i in range(rounds):
        for system in systems if i % 2 == 0 else reversed(systems):
            run = run_process(system, model, folder)
            if "error" in run:
                failures.append(run)
            elif "skipped" not in run:
                runs.append({**run, "round": i})
                print(format_run(run), file=sys.stderr, flush=True)
    rows = choose_rows(runs)
    profiles = []
    for row in rows if profiled else ():
        found = run_process(row["variant"], model, folder, "--profile")
        if "error" in found:
            failures.append(found)
        elif "skipped" not in found:
            profiles.append({**found, "system": row["system"], "variant": row["variant"]})
            row["busy_ms"] = found["busy_ms"]
    return {"rows": rows, "profiles": profiles, "runs": runs, "failures": failures}


def choose_rows(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of JAX and PyTorch at their best and of namedmesh, from one model's runs."""
    medians = {}
    for system in ALL_SYSTEMS:
        own = [run for run in runs if run["system"] == system]
        if own:
            medians[system] = {**take_medians(own), "variant": system, "rounds": len(own)}
    best = {}
    for library in BY_HAND:
        variants = [row for name, row in medians.items() if name.startswith(f"{library}-")]
        if variants:
            best[library] = {**min(variants, key=lambda row: row["ms"]), "system": library}
    rows = [*best.values()]
    if "namedmesh" in medians:
        row = medians["namedmesh"]
        ratios = {library: row["ms"] / other["ms"] for library, other in best.items()}
        rows.append({**row, **{f"ratio_to_{name}": ratio for name, ratio in ratios.items()}})
        if len(ratios) > 1:
            rows[-1]["ratio_to_best"] = max(ratios.values())
    return rows


def take_medians(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a run with the medians of all numbers that differ."""
    row = {name: value for name, value in runs[0].items() if name != "round"}
    for name in row:
        values = [run[name] for run in runs]
        if isinstance(values[0], float):
            row[name] = max(values) if name in SLOWEST else statistics.median(values)
    return row


def format_run(run: dict[str, Any]) -> str:
    """Describe a run in a line."""
    peak = run["peak_gib"]
    memory = "" if peak is None else f", peak {peak:.1f} GiB"
    return (
        f"  {run['ms']:.2f} ms, piped {run['ms_piped']:.2f}, MFU {run['mfu']:.1%}{memory}, "
        f"loss {run['first_loss']:.3f} to {run['last_loss']:.3f}"
    )


def print_tables(result: dict[str, Any]) -> None:
    """Print the rows, and the profiles by kind of kernel."""
    for row in result["rows"]:
        ratios = [
            f"{row[f'ratio_to_{one}']:.3f} of {one}" for one in BY_HAND if f"ratio_to_{one}" in row
        ]
        ratio = "".join(f", {one}" for one in ratios)
        label = f"{row['model']:20s}{row['variant']:18s}"
        print(f"{label}{row['ms']:9.2f} ms{row['tokens_per_second']:12,.0f} tokens/s{ratio}")
    if result["profiles"]:
        print("\nmilliseconds" + " " * 26 + "".join(f"{kind:>17s}" for kind in ("busy", *KINDS)))
    for row in result["profiles"]:
        times = [row["busy_ms"], *(row["kinds"][kind] for kind in KINDS)]
        numbers = "".join(f"{ms:17.2f}" for ms in times)
        print(f"{row['model']:20s}{row['variant']:18s}{numbers}")


def merge_results(path: pathlib.Path | None, result: dict[str, Any]) -> dict[str, Any]:
    """Add the rows of other models and other systems that a file has already."""
    if path is None or not path.exists():
        return result
    old = json.loads(path.read_text())
    measured = {row["model"] for table in TABLES for row in result[table]}
    merged = {}
    for table in TABLES:
        others = [
            row
            for row in old.get(table, [])
            if row["model"] not in measured or row["system"] not in (*ALL_SYSTEMS, *BY_HAND)
        ]
        merged[table] = others + result[table]
    return merged


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=pathlib.Path, help="where benchmarks.gpu.export wrote")
    parser.add_argument("--models", default="wide,wide_dense,base", help=", ".join(ALL_MODELS))
    parser.add_argument(
        "--systems", nargs="+", choices=ALL_SYSTEMS, help="by default all but tuned"
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--no-profiles", action="store_true", help="only time and memory")
    parser.add_argument("--json", type=pathlib.Path, help="the file of the result")
    arguments = parser.parse_args()
    models = arguments.models.split(",")
    unknown = [name for name in models if name not in ALL_MODELS]
    if unknown:
        parser.error(f"no such models: {', '.join(unknown)}; there are {', '.join(ALL_MODELS)}")
    result: dict[str, Any] = {table: [] for table in TABLES}
    for model in models:
        profiled = not arguments.no_profiles
        systems = arguments.systems or choose_systems(model)
        tables = measure_model(model, arguments.folder, systems, arguments.rounds, profiled)
        for table, rows in tables.items():
            result[table] += rows
        if arguments.json:  # after every model, so that nothing is lost
            arguments.json.parent.mkdir(parents=True, exist_ok=True)
            merged = merge_results(arguments.json, result)
            arguments.json.write_text(json.dumps(merged, indent=1) + "\n")
    print_tables(result)
    sys.exit(bool(result["failures"]))


if __name__ == "__main__":
    main()
