"""The command `namedmesh aot`, also `python -m namedmesh.aot`."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from namedmesh.aot.absent_devices import prepare_target
from namedmesh.aot.compilation import compile_for
from namedmesh.aot.target_report import TargetReport, failed_row
from namedmesh.artifacts.artifact import Artifact
from namedmesh.errors.errors import NamedMeshError
from namedmesh.hardware.topology import Target
from namedmesh.runtime.partitioner import DEFAULT_PARTITIONER, PARTITIONERS

AOT_EXAMPLES = """\
examples:
  what a step takes on 2,048 cores of a TPU v3, and whether it fits
    namedmesh aot model.nmesh --target tpu-v3:32x32
  on two slices of a TPU v5e, planned for a mesh with slices=2
    namedmesh aot model.nmesh --target tpu-v5e:16x16:2
  rows for namedmesh diff
    namedmesh aot model.nmesh --target cpu:8 --json report.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to a parser."""
    parser.add_argument(
        "artifacts", nargs="+", metavar="ARTIFACT", help="a file written by nm.export(...).save"
    )
    parser.add_argument(
        "--target",
        required=True,
        help="tpu-v3:32x32, tpu-v5p:4x4x4, ..., two slices as tpu-v5e:4x4:2, or cpu:8",
    )
    parser.add_argument(
        "--partitioner",
        choices=PARTITIONERS,
        help="what splits the program over the devices (default: $NAMEDMESH_PARTITIONER, or "
        f"{DEFAULT_PARTITIONER})",
    )
    parser.add_argument("--json", metavar="OUT", help="write the rows to this file too")
    parser.add_argument(
        "--save",
        metavar="OUT",
        help="write the artifact with the device assignment for the target's torus",
    )


def run_aot(arguments: argparse.Namespace) -> int:
    """Compile every artifact for a target, prints the reports and writes the rows.

    An artifact that cannot be read or compiled does not keep the others from being reported.
    """
    try:
        target = Target.parse(arguments.target)
        paths: list[str] = arguments.artifacts
        _check_outputs(arguments, target)
        prepare_target(target)
    except NamedMeshError as error:
        print(format_error(error), file=sys.stderr)
        return 2
    # Until its iteration comes, an artifact has a row that says so: whatever happens, the file of
    # rows has one for each artifact.
    rows = [_failed(path, None, target, "not compiled yet") for path in paths]
    _write_rows(arguments.json, rows)
    for i, path in enumerate(paths):
        rows[i] = _compile_one(path, target, arguments.save, arguments.partitioner)
        _write_rows(arguments.json, rows)
    if any(row["fits"] is None for row in rows):
        return 2
    return 0 if all(row["fits"] for row in rows) else 1


def _compile_one(
    path: str, target: Target, save: str | None, partitioner: str | None
) -> dict[str, Any]:
    """Read, compiles and reports one artifact; its row."""
    artifact = None
    try:
        artifact = Artifact.load(path)
        name = pathlib.Path(path).stem
        report = compile_for(artifact, target, name=name, partitioner=partitioner)
        print(report, flush=True)
        if save is not None:
            _save(artifact, report, save)
        return {**report.row(), "artifact": path}
    except NamedMeshError as error:
        print(f"{path}: {format_error(error)}", file=sys.stderr, flush=True)
        return _failed(path, artifact, target, error.problem)
    except Exception as error:  # a fault of ours or of jax must not lose the other reports
        traceback.print_exc()
        return _failed(path, artifact, target, f"{type(error).__name__}: {error}")


def _save(artifact: Artifact, report: TargetReport, path: str) -> None:
    """Write the artifact with the device assignment that was compiled."""
    artifact.with_device_assignment(report.assignment.order).save(path)
    print(f"  saved with this device assignment as {path}", flush=True)


def _failed(path: str, artifact: Artifact | None, target: Target, error: str) -> dict[str, Any]:
    """The row of an artifact without a report."""
    row = failed_row(artifact, target, pathlib.Path(path).stem, error)
    return {**row, "artifact": path}


def _write_rows(path: str | None, rows: list[dict[str, Any]]) -> None:
    """Write the rows, whole or not at all."""
    if path is not None:
        temporary = f"{path}.{os.getpid()}.partial"
        pathlib.Path(temporary).write_text(json.dumps(rows, indent=1) + "\n")
        os.replace(temporary, path)


def _check_outputs(arguments: argparse.Namespace, target: Target) -> None:
    """Raise, before anything is compiled, if a file cannot be written or makes no sense."""
    for option in ("json", "save"):
        out = getattr(arguments, option)
        if out is not None:
            _check_writable(f"--{option}", out, arguments.artifacts)
    if arguments.save is None:
        return
    if len(arguments.artifacts) > 1:
        raise NamedMeshError(
            f"--save writes one artifact, and {len(arguments.artifacts)} were given",
            fix="run the command once for each artifact",
        )
    if not target.generation:
        raise NamedMeshError(
            f"--save: target {target} has no torus to assign devices for",
            fix="use a target such as tpu-v3:2x2",
        )


def _check_writable(option: str, out: str, artifacts: Sequence[str]) -> None:
    """Raise if an output cannot be written where it is wanted."""
    path = pathlib.Path(out)
    if any(pathlib.Path(one).resolve() == path.resolve() for one in artifacts):
        raise NamedMeshError(f"{option} {out} is one of the artifacts", fix="name another file")
    reason = None
    if not out or path.is_dir():
        reason = "it is not a file"
    elif not path.absolute().parent.is_dir():
        reason = "its folder is not there"
    elif not os.access(path.absolute().parent, os.W_OK):
        reason = "its folder cannot be written to"
    if reason:
        raise NamedMeshError(
            f"cannot write {option} {out!r}: {reason}",
            fix="name a file in a folder that is there and can be written to",
        )


def format_error(error: NamedMeshError) -> str:
    """An error without the line of code it was raised for, which on a command line is our own."""
    details = (f"  {detail}" for detail in error.details)
    return "\n".join([error.problem, *details, f"  fix: {error.fix}"])
