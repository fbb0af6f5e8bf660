"""The longest sequence, and the deepest pipeline, whose train step fits into TPU v3 cores.

python -m benchmarks.long_sequences export FOLDER [CELL ...]   lowers steps of several sizes for
                                                               each cell; needs TensorFlow
python -m benchmarks.long_sequences compile FOLDER [CELL ...]  compiles them until the largest that
                                                               fits is found; needs libtpu on
                                                               x86-64 Linux, and no TensorFlow
python -m benchmarks.long_sequences [--json OUT]               the largest of each cell, as a table
python -m benchmarks.long_sequences draw                       the plot of the results

A cell is a way to split a model and the size of the axis it is split over, such as ring_8. With
--platform cpu before a command, it is about as many CPU devices, by the memory that XLA's compiler
for CPUs says a step takes of the 16 GiB of a TPU v3 core: minutes, on any machine. What a compiler
said of every step is in benchmarks/results/long_sequences/tpu.json and cpu.json.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import platform
import sys
from typing import Any

from benchmarks.long_sequence_cases import AXES, CELLS, FORMS, HBM, Cell, N
from namedmesh.cli.main import format_error
from namedmesh.errors.errors import NamedMeshError, did_you_mean
from namedmesh.hardware.topology import Target

RESULTS = pathlib.Path(__file__).parent / "results" / "long_sequences"


def export(cell: Cell, folder: pathlib.Path) -> None:
    """Lower a cell's step in the sizes around the one that is estimated to fit."""
    import namedmesh as nm

    sizes = cell.sizes_to_try()
    for size in sizes:
        artifact = nm.export(cell.trace(size), cell.mesh, cell.layout)
        artifact.save(folder / f"{cell.name}_{size}.nmesh")
    print(f"{cell.name}: {', '.join(f'{size:,}' for size in sizes)}", flush=True)


def find_largest(cell: Cell, folder: pathlib.Path, kind: str) -> None:
    """Compile a cell's steps by halves, until one fits and the next larger does not."""
    sizes = sorted(
        int(path.stem.rpartition("_")[2]) for path in folder.glob(f"{cell.name}_*.nmesh")
    )
    if not sizes:
        raise NamedMeshError(
            f"{folder} has no step of {cell.name}",
            fix=f"run python -m benchmarks.long_sequences export {folder} {cell.name}",
        )
    known = {row["size"]: row["fits"] for row in read(kind) if row["cell"] == cell.name}
    low, high = -1, len(sizes)  # what is below fits, what is above does not
    while high - low > 1:
        middle = (low + high) // 2
        size = sizes[middle]
        fits = known[size] if size in known else compile_step(cell, size, folder, kind)
        low, high = (middle, high) if fits else (low, middle)


def compile_step(cell: Cell, size: int, folder: pathlib.Path, kind: str) -> bool:
    """Compile one step, record what the compiler says of it, and return whether it fits."""
    import jax

    from namedmesh.aot.compilation import compile_for
    from namedmesh.artifacts.artifact import Artifact

    artifact = Artifact.load(folder / f"{cell.name}_{size}.nmesh")
    target = cell.target if kind == "tpu" else Target("cpu", "", (cell.mesh.devices,))
    report = compile_for(artifact, target, name=f"{cell.name}_{size}")
    print(report, flush=True)
    kept = (
        "target", "mesh", "cores", "weights", "fits", "error", "peak_bytes", "hbm_bytes", "memory",
        "collectives_match_plan", "collectives", "problems", "rules", "compile_seconds",
    )  # fmt: skip
    row = report.row()
    if kind == "cpu":
        row |= {"hbm_bytes": HBM, "fits": row["peak_bytes"] <= HBM}
    host = {"machine": platform.machine(), "jax": jax.__version__}
    stated = {"cell": cell.name, "form": cell.form, "axis": cell.axis, "size": size}
    row = {**stated, "layout": cell.layout, **{key: row[key] for key in kept}, "host": host}
    record(row, kind)
    return row["fits"]


def record(row: dict[str, Any], kind: str) -> None:
    """Put a row into the file of compiled steps, in the order of cells and sizes."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    rows = {(one["cell"], one["size"]): one for one in read(kind)} | {
        (row["cell"], row["size"]): row
    }
    order = {name: i for i, name in enumerate(CELLS)}
    ordered = [rows[key] for key in sorted(rows, key=lambda key: (order[key[0]], key[1]))]
    (RESULTS / f"{kind}.json").write_text(json.dumps(ordered, indent=1) + "\n")


def read(kind: str) -> list[dict[str, Any]]:
    """Return the steps that were compiled for a platform so far."""
    path = RESULTS / f"{kind}.json"
    return json.loads(path.read_text()) if path.exists() else []


def find_rows(kind: str) -> list[dict[str, Any]]:
    """Find each compiled cell's largest step that fits, and the next, which does not."""
    rows, compiled = [], read(kind)
    for name, cell in CELLS.items():
        steps = [row for row in compiled if row["cell"] == name]
        fitting = [row for row in steps if row["fits"]]
        if not fitting:
            continue
        best = max(fitting, key=lambda row: row["size"])
        next_size = cell.sizes[cell.sizes.index(best["size"]) + 1]
        above = next((row for row in steps if row["size"] == next_size), None)
        first = next((row for row in rows if row["form"] == cell.form), None)
        row = {
            "form": cell.form,
            "axis": cell.axis,
            "target": best["target"],
            "layout": best["layout"],
            "largest": best["size"],
            "grows": best["size"] / (first or {"largest": best["size"]})["largest"],
            "peak_bytes": best["peak_bytes"],
            "too_large": above and above["size"],
            "too_large_bytes": above and above["peak_bytes"],
            "hbm_bytes": best["hbm_bytes"],
            "as_planned": best["collectives_match_plan"],
        }
        if cell.form == "pipeline":
            row |= {"microbatches": N.size, "idle": (cell.axis - 1) / (N.size + cell.axis - 1)}
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a table for people."""
    lines = [
        "| form | axis | largest that fits | of the first | its memory, GiB | the next larger "
        "| needs, GiB | of | collectives as planned | idle iterations |",
        "|---" * 10 + "|",
    ]
    for row in rows:
        cells = [
            row["form"],
            str(row["axis"]),
            f"{row['largest']:,} {'layers' if row['form'] == 'pipeline' else 'positions'}",
            f"{row['grows']:.2f}",
            _gibibytes(row["peak_bytes"]),
            f"{row['too_large']:,}" if row["too_large"] else "-",
            _gibibytes(row["too_large_bytes"]),
            _gibibytes(row["hbm_bytes"]),
            "yes" if row["as_planned"] else "no",
            f"{row['idle']:.0%}" if "idle" in row else "-",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _gibibytes(count: int | None) -> str:
    return f"{count / 2**30:.2f}" if count else "-"


def draw(rows: list[dict[str, Any]], kind: str) -> None:
    """Draw the largest sizes against the axis, sequences and pipelines side by side."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as pyplot

    figure, sides = pyplot.subplots(1, 2, figsize=(9, 3.8))
    markers = dict(zip(FORMS, "os^D", strict=True))
    for form in FORMS:
        found = {row["axis"]: row["largest"] for row in rows if row["form"] == form}
        side = sides[int(form == "pipeline")]
        side.plot(list(found), list(found.values()), f"{markers[form]}-", label=form, alpha=0.7)
    for side, label, axis in (
        (sides[0], "positions of the longest sequence", "devices that share a sequence"),
        (sides[1], "layers of the deepest model", "stages, a device for each"),
    ):
        side.set(xscale="log", yscale="log", xlabel=axis, ylabel=label)
        side.set_xticks(AXES, [str(axis) for axis in AXES])
        ends = [one for line in side.lines for one in line.get_ydata()] or [1]
        powers = range(int(math.log2(min(ends))), int(math.log2(max(ends))) + 2)
        side.set_yticks([2**i for i in powers], [f"{2**i:,}" for i in powers])
        side.minorticks_off()
    sides[0].legend(fontsize=9, frameon=False)
    compiler = {"tpu": "15.5 GiB, by the compiler for TPU v3", "cpu": "16 GiB, by that for CPUs"}
    figure.suptitle(f"steps that fit into {compiler[kind]}", fontsize=10)
    figure.tight_layout()
    figure.savefig(RESULTS / f"{kind}.png", dpi=110)


def main(arguments: list[str] | None = None) -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.long_sequences", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--platform", choices=("tpu", "cpu"), default="tpu", help="whose compiler is asked"
    )
    parser.add_argument("--json", type=pathlib.Path, metavar="OUT", help="the file of the rows")
    commands = parser.add_subparsers(dest="command")
    for name, text in (
        ("export", "lower steps (TensorFlow)"),
        ("compile", "compile them (libtpu) into the results"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("folder", type=pathlib.Path)
        command.add_argument(
            "names", nargs="*", metavar="CELL", help=f"all by default: {', '.join(CELLS)}"
        )
    commands.add_parser("draw", help="draw the plot of the results")
    given = parser.parse_args(arguments)
    if given.command == "draw":
        draw(find_rows(given.platform), given.platform)
        return
    if given.command is None:
        rows = find_rows(given.platform)
        print(table(rows))
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1) + "\n")
        return
    for name in given.names:
        if name not in CELLS:
            raise NamedMeshError(f"there is no cell {name!r}", fix=did_you_mean(name, CELLS))
    given.folder.mkdir(parents=True, exist_ok=True)
    for name in given.names or CELLS:
        if given.command == "compile":
            find_largest(CELLS[name], given.folder, given.platform)
        else:
            export(CELLS[name], given.folder)


if __name__ == "__main__":
    try:
        main()
    except NamedMeshError as error:
        sys.exit(format_error(error))
