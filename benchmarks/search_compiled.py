"""The best layouts of benchmarks.search, compiled for TPU v3 and audited.

python -m benchmarks.search_compiled export RESULT FOLDER   lowers the best of every row of a
                                                            result of benchmarks.search
python -m benchmarks.search_compiled compile RESULT FOLDER  compiles them, and writes what the
                                                            compiler says into the rows

The first needs TensorFlow; the second libtpu on x86-64 Linux, and no TensorFlow. (benchmarks.search
itself compiles the best on 8 devices.)
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from typing import Any

from namedmesh.cli.main import format_error
from namedmesh.errors.errors import NamedMeshError


def name_artifact(row: dict[str, Any]) -> str:
    """Return the file of a row's best."""
    return f"{row['model']}_{row['devices']}.nmesh"


def export(row: dict[str, Any], folder: pathlib.Path) -> None:
    """Lower the best of a row."""
    import namedmesh as nm
    from benchmarks.search_cases import MODELS

    best = row["best"]
    program = MODELS[row["model"]](row["devices"]).make(**best["choices"])
    mesh = nm.Mesh(**best["mesh"])
    layout = best["layout"], best["params"]
    artifact = nm.export(program, mesh, *layout, conflicts=best["conflicts"])
    artifact.save(folder / name_artifact(row))
    print(name_artifact(row), flush=True)


def compile_best(row: dict[str, Any], folder: pathlib.Path) -> dict[str, Any]:
    """Compile the best of a row for TPUs."""
    from benchmarks.torus_links import slice_of
    from namedmesh.aot.compilation import compile_for
    from namedmesh.artifacts.artifact import Artifact

    target = slice_of(row["devices"])
    report = compile_for(Artifact.load(folder / name_artifact(row)), target)
    print(report, flush=True)
    return {
        "target": str(target),
        "exact": report.audit.exact if report.audit else None,
        "fits": report.fits,
        "memory_bytes": report.peak_bytes,
        "estimated_to_compiler": (
            row["best"]["memory_bytes"] / report.peak_bytes if report.peak_bytes else None
        ),
        "compile_seconds": round(report.compile_seconds, 1),
        "problems": [*report.audit.describe_problems()] if report.audit else [report.error],
    }


def main(arguments: list[str]) -> None:
    """Lower or compile the best of every row."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search_compiled")
    parser.add_argument("what", choices=["export", "compile"])
    parser.add_argument("result", type=pathlib.Path, help="a file of benchmarks.search --json")
    parser.add_argument("folder", type=pathlib.Path, help="where the Artifacts are")
    options = parser.parse_args(arguments)
    rows = json.loads(options.result.read_text())
    options.folder.mkdir(parents=True, exist_ok=True)
    for row in rows:
        if options.what == "export":
            export(row, options.folder)
        else:
            row["compiled"] = compile_best(row, options.folder)
            options.result.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except NamedMeshError as error:
        sys.exit(format_error(error))
