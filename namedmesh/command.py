"""The command line: `namedmesh aot ARTIFACT --target tpu-v3:32x32`. Needs no TensorFlow."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from namedmesh.dims.errors import NamedMeshError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; 0 when everything compiles and fits, 1 when something does not fit, 2 when something is wrong."""
    parser = argparse.ArgumentParser(
        prog="namedmesh", description="Models in named dimensions on device meshes."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    aot = commands.add_parser(
        "aot",
        help="compile artifacts for devices that are not here, and report what they take there",
    )
    aot.add_argument(
        "artifacts", nargs="+", metavar="ARTIFACT", help="a file written by nm.export(...).save"
    )
    aot.add_argument("--target", required=True, help="tpu-v3:32x32, tpu-v5p:4x4x4, ..., or cpu:8")
    aot.add_argument("--json", metavar="OUT", help="write the rows to this file too")
    given = parser.parse_args(arguments)
    try:
        return ahead_of_time(given.artifacts, given.target, given.json)
    except NamedMeshError as error:
        print(short(error), file=sys.stderr)
        return 2


def ahead_of_time(paths: Sequence[str], target: str, out: str | None) -> int:
    """Compiles every artifact for a target, prints the reports and writes the rows."""
    from namedmesh.aot.compile import compile_for, prepare
    from namedmesh.aot.report import failed
    from namedmesh.aot.topology import Target
    from namedmesh.runtime.artifact import Artifact

    where = Target.parse(target)
    if out is not None:
        check_writable(out, paths)
    artifacts = [Artifact.load(path) for path in paths]
    prepare(where)
    rows: list[dict[str, Any]] = []
    for path, artifact in zip(paths, artifacts, strict=True):
        name = pathlib.Path(path).stem
        try:
            found = compile_for(artifact, where, name=name)
            print(found, flush=True)
            rows.append({**found.row(), "artifact": path})
        except NamedMeshError as error:
            print(f"{path}: {short(error)}", file=sys.stderr, flush=True)
            rows.append({**failed(artifact, where, name, error.problem), "artifact": path})
        if out is not None:
            pathlib.Path(out).write_text(json.dumps(rows, indent=1) + "\n")
    return (
        2
        if any(row["fits"] is None for row in rows)
        else 0
        if all(row["fits"] for row in rows)
        else 1
    )


def check_writable(out: str, paths: Sequence[str]) -> None:
    """Raises, before anything is compiled, when the report cannot be written where it is wanted."""
    path = pathlib.Path(out)
    if any(pathlib.Path(one).resolve() == path.resolve() for one in paths):
        raise NamedMeshError(
            f"--json {out} is one of the artifacts", fix="name another file for the report"
        )
    try:
        with open(path, "a", encoding="utf-8"):
            pass
    except OSError as error:
        raise NamedMeshError(
            f"cannot write --json {out!r}: {error.strerror}",
            fix="name a file in a folder that is there",
        ) from None


def short(error: NamedMeshError) -> str:
    """An error without the line of code it was raised for, which is our own here."""
    return "\n".join(
        [error.problem, *(f"  {detail}" for detail in error.details), f"  fix: {error.fix}"]
    )


if __name__ == "__main__":
    sys.exit(main())
