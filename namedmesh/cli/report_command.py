"""The command `namedmesh report`: writes the page of a program's plan, or of two."""

from __future__ import annotations

import argparse

from namedmesh.cli.planning_options import (
    PROGRAM,
    add_planning_options,
    check_given_once,
    make_plan,
)
from namedmesh.report.report import report

REPORT_EXAMPLES = """\
examples:
  the page of a plan on eight devices, with times and memory on TPU v3
    namedmesh report examples.unet.model:train_program --set learning_rate=0.01 --set steps=100 \\
        --mesh data=2,space=4 --layout "batch:data, rows:space" --out unet.html
  two layouts side by side, on other hardware
    namedmesh report model.py:train --mesh data=8 --layout batch:data --layout hidden:data \\
        --target h200 --out layouts.html
"""


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to a parser."""
    parser.add_argument("program", metavar="PROGRAM", help=PROGRAM)
    add_planning_options(parser, twice=True)
    parser.add_argument(
        "--target",
        default="tpu-v3",
        help="the hardware of the estimates: tpu-v3 (the default), h200, ..., or a file",
    )
    parser.add_argument("--out", metavar="OUT", required=True, help="the HTML file to write")


def run_report(arguments: argparse.Namespace) -> int:
    """Plan a program once or twice, and writes the page."""
    check_given_once(arguments, most=2)
    two = max(len(arguments.mesh), len(arguments.layout), len(arguments.params)) > 1
    plan = make_plan(arguments, arguments.program)
    beside = make_plan(arguments, arguments.program, 1) if two else None
    report(plan, arguments.out, target=arguments.target, beside=beside)
    print(f"wrote {arguments.out}")
    return 0
