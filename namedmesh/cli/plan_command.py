"""The command `namedmesh plan`: prints the plan of a program without writing code."""

from __future__ import annotations

import argparse
import json

from namedmesh.cli.planning_options import (
    PROGRAM,
    add_planning_options,
    check_given_once,
    make_plan,
    print_text,
)
from namedmesh.diff.sources import summarize_cost
from namedmesh.planning.plan import Plan

PLAN_EXAMPLES = """\
examples:
  the plan of a function that returns a program, on eight devices
    namedmesh plan examples.unet.model:train_program --set learning_rate=0.01 --set steps=100 \\
        --mesh data=2,space=4 --layout "batch:data, rows:space"
  with other sizes of the model, the collectives alone
    namedmesh plan examples.unet.model:train_program --set learning_rate=0.01 --set steps=100 \\
        --set model.rows=256 --mesh space=4 --layout rows:space --communication
  weights at rest in shards, saved for namedmesh diff with what a step takes on a target
    namedmesh plan model.py:train --mesh data=8 --layout batch:data --params model:data \\
        --target tpu-v3 --save fsdp.json
"""


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to a parser."""
    parser.add_argument("program", metavar="PROGRAM", help=PROGRAM)
    add_planning_options(parser)
    parser.add_argument(
        "--target", help="estimate time and memory of a step there: tpu-v3, h200, ..., or a file"
    )
    parser.add_argument("--save", metavar="OUT", help="write the plan to a file for namedmesh diff")
    parser.add_argument(
        "--without-lines",
        action="store_true",
        help="save no line numbers, so that the file changes only where the plan does",
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print JSON")
    output.add_argument(
        "--communication", action="store_true", help="print the collectives and totals alone"
    )


def run_plan(arguments: argparse.Namespace) -> int:
    """Plan a program, prints the plan, and saves it."""
    check_given_once(arguments)
    plan = make_plan(arguments, arguments.program)
    if arguments.save is not None:
        plan.save(arguments.save, arguments.target, lines=not arguments.without_lines)
    print_text(_format(arguments, plan))
    return 0


def _format(arguments: argparse.Namespace, plan: Plan) -> str:
    """What is printed of a plan."""
    if arguments.json:
        cost = {} if arguments.target is None else {"cost": summarize_cost(plan, arguments.target)}
        return json.dumps({**plan.to_json(), **cost}, indent=1)
    text = plan.communication if arguments.communication else str(plan)
    if arguments.target is None:
        return text
    from namedmesh.cost.estimate import cost as estimate

    return f"{text}\n\n{estimate(plan, arguments.target)}"
