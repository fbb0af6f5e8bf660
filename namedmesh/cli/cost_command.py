"""The command `namedmesh cost`: prints what a step of a program takes on a target."""

from __future__ import annotations

import argparse
import json
import os

from namedmesh.cli.planning_options import (
    PROGRAM,
    add_planning_options,
    check_given_once,
    make_plan,
    print_text,
)
from namedmesh.cost.estimate import cost
from namedmesh.errors.errors import NamedMeshError

COST_EXAMPLES = """\
examples:
  time and memory of a step on eight cores of a TPU v3
    namedmesh cost examples.unet.model:train_program --set learning_rate=0.01 --set steps=100 \\
        --mesh data=2,space=4 --layout "batch:data, rows:space" --target tpu-v3:2x2
  every op and collective, as JSON
    namedmesh cost model.py:train --mesh data=8 --layout batch:data --target h200 --json
"""


def add_cost_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to a parser."""
    parser.add_argument("program", metavar="PROGRAM", help=PROGRAM)
    add_planning_options(parser)
    parser.add_argument(
        "--target", required=True, help="tpu-v3, tpu-v5p:4x4x4, h200, ..., or a YAML file"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_cost(arguments: argparse.Namespace) -> int:
    """Plan a program and prints its cost."""
    check_given_once(arguments)
    if os.path.isfile(arguments.program):
        raise NamedMeshError(
            f"{arguments.program!r} is a file, and a saved plan does not have its ops to price",
            fix="name the program; plan.save(path, target=...) keeps the cost with the plan",
        )
    priced = cost(make_plan(arguments, arguments.program), arguments.target)
    print_text(json.dumps(priced.to_json(), indent=1) if arguments.json else str(priced))
    return 0
