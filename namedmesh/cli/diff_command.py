"""The command `namedmesh diff`: compares two plans, and fails where one costs too much."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from namedmesh.cli.planning_options import (
    PROGRAM,
    add_planning_options,
    check_given_once,
    make_plan,
    print_text,
)
from namedmesh.diff.conditions import EXAMPLES, Condition
from namedmesh.diff.diff import diff
from namedmesh.diff.sources import record_of
from namedmesh.errors.errors import NamedMeshError
from namedmesh.planning.plan_record import PlanRecord
from namedmesh.records.paths import write_file

DIFF_EXAMPLES = """\
examples:
  two layouts of one program
    namedmesh diff model.py:train --mesh data=8 --layout batch:data --layout hidden:data
  data parallel against weights at rest in shards
    namedmesh diff model.py:train --mesh data=8 --layout batch:data --params "" --params model:data
  in a pull request: what is planned now against the file of before
    namedmesh diff golden/train.json model.py:train --mesh data=8 --layout batch:data \\
        --fail-if "wire_bytes > +5%" --fail-if "memory > 16GiB" --target tpu-v3
  two artifacts, or the reports of two compilers
    namedmesh diff before.nmesh after.nmesh
    namedmesh diff jax010.json jax011.json --fail-if different

exit status: 0 if no condition of --fail-if is met, 1 if one is, 2 if something is wrong
"""


def add_diff_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to a parser."""
    sorts = "a saved plan, an artifact, a report of namedmesh aot, or"
    parser.add_argument("a", metavar="A", help=f"{sorts} {PROGRAM}")
    parser.add_argument(
        "b", metavar="B", nargs="?", help="the same; without it, A under the second layout"
    )
    add_planning_options(parser, twice=True)
    parser.add_argument(
        "--target", help="estimate time and memory of what is planned: tpu-v3, h200, ..., or a file"
    )
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="CONDITION",
        help=f"exit with status 1 if it holds of B, e.g. {EXAMPLES}".replace("%", "%%"),
    )
    parser.add_argument("--all", action="store_true", help="print every change")
    parser.add_argument("--json", metavar="OUT", help="write the comparison to this file too")


def run_diff(arguments: argparse.Namespace) -> int:
    """Compare two plans, prints what differs, and checks the conditions."""
    conditions = [Condition.parse(text) for text in arguments.fail_if]
    check_given_once(arguments, most=2)
    _check_two_sides(arguments)
    before = _read_side(arguments, arguments.a, 0)
    after = _read_side(arguments, arguments.b or arguments.a, 1)
    found = diff(before, after)
    met = [text for one in conditions if (text := one.explain(found)) is not None]
    print_text(found.describe(None if arguments.all else 12))
    if arguments.json is not None:
        text = json.dumps(found.to_json(), indent=1) + "\n"
        write_file(arguments.json, text.encode(), "the comparison")
    for text in met:
        print(f"failed: {text}", file=sys.stderr)
    return 1 if met else 0


def _check_two_sides(arguments: argparse.Namespace) -> None:
    """Raise if there is one plan alone."""
    options = (arguments.mesh, arguments.layout, arguments.params)
    if arguments.b is None and not any(len(values) > 1 for values in options):
        raise NamedMeshError(
            f"{arguments.a} is compared with nothing",
            fix="give B, or --layout, --params or --mesh twice: for A and for B",
        )


def _read_side(arguments: argparse.Namespace, name: str, side: int) -> PlanRecord:
    """The record of a file, or of a program as the options say."""
    if name.endswith(".py"):
        raise NamedMeshError(
            f"{name!r} does not name a program", fix=f"write {name}:function, e.g. {name}:train"
        )
    if os.path.exists(name):
        _check_options_used(arguments)
        return record_of(name)
    if ":" not in name:
        raise NamedMeshError(
            f"{name!r} is neither a file nor a program",
            fix="give a file that plan.save wrote, or module:function",
        )
    target: Any = arguments.target
    return record_of(make_plan(arguments, name, side), target)


def _check_options_used(arguments: argparse.Namespace) -> None:
    """Raise for options of planning where both sides are files."""
    sides = (arguments.a, arguments.b or arguments.a)
    given = [name for name in ("mesh", "layout", "params", "settings") if getattr(arguments, name)]
    given += ["target"] if arguments.target else []
    if given and all(os.path.exists(side) for side in sides):
        option = "--" + given[0].replace("settings", "set")
        raise NamedMeshError(
            f"{option} says how to plan, and both sides are files",
            fix=f"leave {option} out; plan.save(path, target=...) keeps the cost with a plan",
        )
