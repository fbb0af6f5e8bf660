"""The command `namedmesh aot`: compiles artifacts for devices that are not here."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from namedmesh.aot.absent_devices import prepare_target
from namedmesh.aot.compilation import compile_for
from namedmesh.aot.target_report import failed_row
from namedmesh.artifacts.artifact import Artifact
from namedmesh.cli.main import format_error
from namedmesh.errors.errors import NamedMeshError
from namedmesh.files import write_file
from namedmesh.hardware.hardware import Hardware
from namedmesh.hardware.topology import Target
from namedmesh.report.report import report_timeline
from namedmesh.runtime.partitioner import DEFAULT_PARTITIONER, PARTITIONERS

AOT_EXAMPLES = """\
examples:
  what a step takes on 2,048 cores of a TPU v3, and whether it fits
    namedmesh aot model.nmesh --target tpu-v3:32x32
  on 256 H100s, 8 in each node, with no GPU here (pip install 'namedmesh[gpu-aot]')
    namedmesh aot model.nmesh --target h100:32x8
  on 32 nodes of 8 GPUs that a file describes, as XLA's GpuTargetConfigProto in text
    namedmesh aot model.nmesh --target mine.txtpb:32x8
  on two slices of a TPU v5e, planned for a mesh with slices=2
    namedmesh aot model.nmesh --target tpu-v5e:16x16:2
  with an option of XLA's compiler, as a cluster's launcher may set it
    namedmesh aot model.nmesh --target h100:32x8 --xla xla_gpu_enable_pipelined_all_gather=true
  what is overlapped: a page in lanes, or a file for ui.perfetto.dev
    namedmesh aot model.nmesh --target h100:32x8 --trace step.html
  rows for namedmesh diff
    namedmesh aot model.nmesh --target cpu:8 --json report.json
"""


def add_aot_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `namedmesh aot`."""
    add = parser.add_argument
    add("artifacts", nargs="+", metavar="ARTIFACT", help="a file written by nm.export(...).save")
    target = (
        "h100:32x8, mine.txtpb:32x8, tpu-v3:32x32, tpu-v5p:4x4x4, ..., two slices as "
        "tpu-v5e:4x4:2, or cpu:8"
    )
    add("--target", required=True, help=target)
    partitioner = "what splits the program over the devices (default: $NAMEDMESH_PARTITIONER, or "
    add("--partitioner", choices=PARTITIONERS, help=f"{partitioner}{DEFAULT_PARTITIONER})")
    xla = "an option of XLA's compiler; may be given several times"
    add("--xla", metavar="NAME=VALUE", action="append", default=[], type=_read_option, help=xla)
    figures = "the file of `namedmesh calibrate` by which the seconds of the schedule are estimated"
    add("--hardware", metavar="FILE", help=f"{figures} (default: figures of the target's chip)")
    add("--json", metavar="OUT", help="write the rows to this file too")
    trace = "write what a device runs and waits for: OUT.html is a page, others are for Perfetto"
    add("--trace", metavar="OUT", help=trace)
    save = "write the artifact with the device assignment for the target's torus"
    add("--save", metavar="OUT", help=save)


def _read_option(text: str) -> tuple[str, str]:
    """Read an option of XLA's compiler."""
    name, equals, value = text.partition("=")
    if not name.startswith("xla_") or not equals:
        raise argparse.ArgumentTypeError(f"expected xla_NAME=VALUE, not {text!r}")
    return name, value


def run_aot(arguments: argparse.Namespace) -> int:
    """Compile every artifact for a target, print the reports and write the rows.

    An artifact that cannot be read or compiled does not keep the others from being reported.
    """
    target = Target.parse(arguments.target)
    paths: list[str] = arguments.artifacts
    _check_outputs(arguments, target)
    if arguments.hardware is not None:
        arguments.hardware = Hardware.parse(arguments.hardware)
    prepare_target(target)
    # Whatever happens, the file has a row for each artifact.
    rows = [_failed(path, None, target, "not compiled yet") for path in paths]
    _write_rows(arguments.json, rows)
    for i, path in enumerate(paths):
        rows[i] = _compile_one(path, target, arguments)
        _write_rows(arguments.json, rows)
    if any(row["fits"] is None for row in rows):
        return 2
    return 0 if all(row["fits"] for row in rows) else 1


def _compile_one(path: str, target: Target, arguments: argparse.Namespace) -> dict[str, Any]:
    """Read, compile and report one artifact, and return its row."""
    artifact, save = None, arguments.save
    try:
        artifact = Artifact.load(path)
        name, options = pathlib.Path(path).stem, dict(arguments.xla)
        choices = {"partitioner": arguments.partitioner, "options": options}
        choices["hardware"] = arguments.hardware
        report = compile_for(artifact, target, name=name, **choices)
        print(report, flush=True)
        if arguments.trace is not None and report.timeline is not None:
            if arguments.trace.endswith(".html"):
                report_timeline(report.timeline, arguments.trace, f"{name} on {target}")
            else:
                report.timeline.save(arguments.trace)
            print(f"  timeline in {arguments.trace}", flush=True)
        if save is not None:
            artifact.with_device_assignment(report.assignment.order).save(save)
            print(f"  saved with this device assignment as {save}", flush=True)
        return {**report.row(), "artifact": path}
    except NamedMeshError as error:
        print(f"{path}: {format_error(error)}", file=sys.stderr, flush=True)
        return _failed(path, artifact, target, error.problem)
    except Exception as error:  # a fault of ours or of jax must not lose the other reports
        traceback.print_exc()
        return _failed(path, artifact, target, f"{type(error).__name__}: {error}")


def _failed(path: str, artifact: Artifact | None, target: Target, error: str) -> dict[str, Any]:
    """Return the row of an artifact without a report."""
    row = failed_row(artifact, target, pathlib.Path(path).stem, error)
    return {**row, "artifact": path}


def _write_rows(path: str | None, rows: list[dict[str, Any]]) -> None:
    """Write the rows, whole or not at all."""
    if path is not None:
        write_file(path, (json.dumps(rows, indent=1) + "\n").encode(), "--json")


def _check_outputs(arguments: argparse.Namespace, target: Target) -> None:
    """Raise, before anything is compiled, if a file cannot be written or makes no sense."""
    for option in ("json", "save", "trace"):
        out = getattr(arguments, option)
        if out is not None:
            _check_writable(f"--{option}", out, arguments.artifacts)
    count = len(arguments.artifacts)
    for option in ("save", "trace"):
        if getattr(arguments, option) is not None and count > 1:
            fix = "run the command once for each artifact"
            problem = f"--{option} writes one artifact, and {count} were given"
            raise NamedMeshError(problem, fix=fix)
    if arguments.save is not None and not target.generation:
        problem = f"--save: target {target} has no torus to assign devices for"
        raise NamedMeshError(problem, fix="use a target such as tpu-v3:2x2")


def _check_writable(option: str, out: str, artifacts: Sequence[str]) -> None:
    """Raise if an output cannot be written where it is wanted."""
    path = pathlib.Path(out)
    if any(pathlib.Path(one).resolve() == path.resolve() for one in artifacts):
        raise NamedMeshError(f"{option} {out} is one of the artifacts", fix="name another file")
    reason = "it is not a file" if not out or path.is_dir() else "its folder is not there"
    if not out or path.is_dir() or not path.absolute().parent.is_dir():
        raise NamedMeshError(
            f"cannot write {option} {out!r}: {reason}",
            fix="name a file in a folder that is there and can be written to",
        )
