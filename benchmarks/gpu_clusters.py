"""Models on clusters of 8 to 2,048 GPUs, compiled on a machine that has none, and audited.

python -m benchmarks.gpu_clusters export FOLDER [NAME ...]                 lowers the train steps
python -m benchmarks.gpu_clusters compile FOLDER [NAME ...] --jobs N       compiles and audits them
python -m benchmarks.gpu_clusters seconds FOLDER                           adds seconds of FOLDER
python -m benchmarks.gpu_clusters table                                    writes README.md of them

Exporting needs TensorFlow; compiling needs XLA's GPU compiler (namedmesh[gpu-aot]) on Linux, and no
TensorFlow. Each compile has a process of its own, so that one that fails or takes too long does not
stop the others; as soon as it is done its row is put into the file of --json in the place of an
older one (clusters.json in RESULTS by default). A NAME stands for all cases that begin with it.
Seconds of FOLDER are those of another machine, in the rows that `compile` left there, a file each.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import namedmesh as nm
from benchmarks.gpu_cluster_cases import CASES, Case
from namedmesh.errors.errors import NamedMeshError

RESULTS = pathlib.Path(__file__).parent / "results" / "gpu_clusters"
_COLUMNS = {
    "model": "model", "weights": "weights", "target": "GPUs", "mesh": "mesh", "layout": "layout",
    "params": "at rest", "peak_gib": "GiB of one GPU", "compile_seconds": "s",
    "elsewhere": "s elsewhere", "collectives": "collectives", "as_planned": "as planned",
}  # fmt: skip


def export(name: str, folder: pathlib.Path) -> None:
    """Plan and lower a case into an Artifact."""
    case = CASES[name]
    mesh = nm.Mesh.parse(case.mesh)
    artifact = nm.export(case.make(), mesh, case.layout, case.params)
    artifact.save(folder / f"{name}.nmesh")
    print(f"{name}: {len(artifact.collectives)} collectives planned", flush=True)


def compile_case(case: Case, path: pathlib.Path, partitioner: str | None) -> dict[str, Any]:
    """Compile the Artifact of a case and audit what was made."""
    import jax

    from namedmesh.aot.compilation import compile_for
    from namedmesh.artifacts.artifact import Artifact

    artifact = Artifact.load(path)
    report = compile_for(artifact, case.target, name=case.model, partitioner=partitioner)
    found = report.audit
    assert found is not None, "the compiler gave no code to read"
    print(report, flush=True)
    return {
        "model": case.model,
        "chip": case.target.partition(":")[0],
        "gpus": case.gpus,
        "target": case.target,
        "mesh": case.mesh,
        "layout": artifact.layout,
        "params": artifact.params,
        "weights": report.weights,
        "fits": report.fits,
        "peak_gib": round((report.peak_bytes or 0) / 2**30, 2),
        "hbm_gib": round((report.hbm_bytes or 0) / 2**30, 2),
        "compile_seconds": round(report.compile_seconds, 1),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "cuda_tools": [name for name in ("nvcc", "ptxas") if shutil.which(name)],
        "collectives": len(artifact.collectives),
        "as_planned": len(found.matched) + len(found.merged),
        "unplanned": len(found.unplanned),
        "not_made": len(found.missing),
        "different": len(found.differences),
        "matched_by_shape": len(found.by_shape),
        "made": dict(Counter(one.kind for one in found.compiled)),
        "wire_gib": round(found.wire_bytes / 2**30, 3),
        "rules": dict(found.rules),
        "problems": found.describe_problems(),
        "jax": jax.__version__,
    }


def compile_all(names: Sequence[str], options: argparse.Namespace) -> bool:
    """Compile cases, each in a process of its own; return whether all are as planned."""
    lock, right = threading.Lock(), []

    def run(name: str) -> None:
        part = options.folder / f"{name}.json"
        part.unlink(missing_ok=True)
        command = [sys.executable, "-m", "benchmarks.gpu_clusters", "one", str(options.folder)]
        command += [name, "--json", str(part)]
        command += ["--partitioner", options.partitioner] if options.partitioner else []
        with open(options.folder / f"{name}.log", "w") as log:
            try:
                subprocess.run(command, stdout=log, stderr=log, timeout=options.limit)
            except subprocess.TimeoutExpired:
                print(f"{options.limit} s are over", file=log)
        with lock:
            row = json.loads(part.read_text()) if part.is_file() else None
            exact = bool(row) and not (row["unplanned"] or row["not_made"] or row["different"])
            right.append(exact)
            verdict = "exact" if exact else "NOT as planned" if row else "FAILED"
            print(f"{verdict}: {name} (see {log.name})", flush=True)
            if row:
                _record(row, name, options.json)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(run, names))
    return all(right)


def _record(row: dict[str, Any], name: str, path: pathlib.Path) -> None:
    """Put a row into the file, in the order of the cases."""
    rows = json.loads(path.read_text()) if path.is_file() else []
    named = {(one["model"], one["target"], one["mesh"]): one for one in rows}
    named[row["model"], row["target"], row["mesh"]] = row
    order = [(case.model, case.target, case.mesh) for case in CASES.values()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([named[key] for key in order if key in named], indent=1) + "\n")


def add_seconds(folder: pathlib.Path, machine: str, path: pathlib.Path) -> None:
    """Add the seconds of another machine to the rows, of the cases that are exact there too."""
    rows = json.loads(path.read_text())
    for row in rows:
        row.pop("elsewhere", None)
        named = (row["model"], row["target"], row["mesh"])
        case = next(one for one in CASES.values() if (one.model, one.target, one.mesh) == named)
        for file in sorted(folder.glob(f"{case.name}.*json"))[:1]:
            there = json.loads(file.read_text())
            if there.get("exact") or there.get("as_planned") == row["collectives"]:
                seconds = {"compile_seconds": round(there["compile_seconds"], 1)}
                row["elsewhere"] = {**seconds, "jax": there["jax"], "machine": machine}
    path.write_text(json.dumps(rows, indent=1) + "\n")


def describe_seconds(rows: Sequence[dict[str, Any]]) -> str:
    """Say where the seconds of the table were measured."""
    versions = " and ".join(sorted({row["jax"] for row in rows}))
    text = (
        f"`s` are seconds of lowering and compiling with jax {versions}, on two cores that other "
        "processes kept busy (the file has the `load` of each): less on a quiet machine."
    )
    if bare := sum(row.get("cuda_tools") == [] for row in rows):
        text += (
            f" {bare} rows were compiled last, where neither nvcc nor ptxas was to be found (in "
        )
        text += "the file they have `cuda_tools`); the others are of earlier versions."
    others = Counter(
        (one["elsewhere"]["machine"], one["elsewhere"]["jax"]) for one in rows if "elsewhere" in one
    )
    for (machine, version), count in others.items():
        text += f" `s elsewhere` are those of jax {version} on {machine}, of {count} rows."
    return text


def describe_texts(path: pathlib.Path) -> str:
    """Say how many edits of the kept compiled texts the audit notices."""
    rows = json.loads(path.read_text())
    text = "Edits of the kept compiled texts in every way (`tampered_texts.json`, by `python -m "
    text += "tests.audit.compiled_texts tamper`):"
    for backend in sorted({row["backend"] for row in rows.values()}):
        some = [row for row in rows.values() if row["backend"] == backend]
        edits, missed, alarms = (
            sum(row[name] if name == "edits" else len(row[name]) for row in some)
            for name in ("edits", "missed", "alarms")
        )
        text += f" in {len(some)} texts of {backend.upper()}s {edits - missed:,} of {edits:,} "
        text += f"noticed, {alarms or 'no'} false alarm{'s'[: alarms > 1]};"
    return text.removesuffix(";") + "."


def describe_programs(folder: pathlib.Path) -> str:
    """Say how many random programs were made as planned."""
    rows = [json.loads(path.read_text()) for path in sorted(folder.glob("random-*.json"))]
    parts = (
        f"{row['outcomes'].get('exact', 0)} of {row['cases']} of seed {row['seed']}" for row in rows
    )
    return (
        "Random programs for 8 H100s (`python -m tests.fuzz --seed SEED --cases N --target h100`, "
        f"`random-SEED.json`), as planned: {', '.join(parts)}."
    )


def format_readme(rows: Sequence[dict[str, Any]], folder: pathlib.Path = RESULTS) -> str:
    """Return what a reader should know, and the rows as a table."""
    exact = sum(not (row["unplanned"] or row["not_made"] or row["different"]) for row in rows)
    lines = [
        "# Models on clusters of GPUs\n",
        "Whole train steps, compiled by XLA's GPU compiler on a machine without a GPU and audited "
        f"against their plans: {exact} of {len(rows)} rows are exactly as planned. "
        "`clusters.json` has the rows with all their fields; `benchmarks/gpu_cluster_cases.py` "
        f"has the steps. {describe_seconds(rows)}\n",
        "[versions.md](versions.md) has versions of jax and both partitioners side by side, and "
        "`tuning.json` what tuning on a real GPU changes.\n",
        f"{describe_texts(folder / 'tampered_texts.json')}\n",
        f"{describe_programs(folder)}\n",
        "```bash",
        "python -m benchmarks.gpu_clusters export FOLDER             # needs TensorFlow",
        "python -m benchmarks.gpu_clusters compile FOLDER --jobs 4   # needs namedmesh[gpu-aot]",
        "python -m benchmarks.gpu_clusters table                     # this page",
        "```\n",
        f"| {' | '.join(_COLUMNS.values())} |",
        "|---" * len(_COLUMNS) + "|",
    ]
    for row in rows:
        room = f"{row['peak_gib']} of {row['hbm_gib']}{'' if row['fits'] else ': too much'}"
        wrong = row["unplanned"] + row["not_made"] + row["different"]
        shown = {
            **row,
            "weights": f"{row['weights'] / 1e9:.1f} B",
            "params": "" if row["params"] == row["layout"] else row["params"] or "",
            "peak_gib": room,
            "as_planned": f"{row['as_planned']}" if wrong else "all",
            "elsewhere": row.get("elsewhere", {}).get("compile_seconds", ""),
        }
        lines.append(f"| {' | '.join(str(shown[name]) for name in _COLUMNS)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("action", choices=("export", "compile", "one", "seconds", "table"))
    parser.add_argument("folder", type=pathlib.Path, nargs="?", default=pathlib.Path())
    parser.add_argument("names", nargs="*", help="such as llama_8b, all that begin so; or all")
    file = RESULTS / "clusters.json"
    parser.add_argument("--json", type=pathlib.Path, default=file, help="the file of the rows")
    parser.add_argument("--jobs", type=int, default=1, help="how many compiles run at a time")
    parser.add_argument("--limit", type=float, default=1800, help="seconds of one compile")
    parser.add_argument("--machine", default="another machine", help="whose seconds FOLDER has")
    parser.add_argument("--partitioner", choices=("gspmd", "shardy"))
    options = parser.parse_args()
    names = [name for name in CASES if not options.names or name.startswith(tuple(options.names))]
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.action == "table":
        page = format_readme(json.loads(options.json.read_text()))
        options.json.with_name("README.md").write_text(page)
    elif options.action == "seconds":
        add_seconds(options.folder, options.machine, options.json)
    elif options.action == "compile":
        sys.exit(not compile_all(names, options))
    for name in names if options.action in ("export", "one") else ():
        try:
            if options.action == "export":
                export(name, options.folder)
            else:
                path = options.folder / f"{name}.nmesh"
                row = compile_case(CASES[name], path, options.partitioner)
                options.json.write_text(json.dumps(row))
        except NamedMeshError as error:
            print(f"{name}: {error}", flush=True)


if __name__ == "__main__":
    main()
