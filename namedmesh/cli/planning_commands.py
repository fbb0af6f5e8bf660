"""The commands `namedmesh plan`, `cost`, `report` and `diff`, and the options they share."""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from namedmesh.cli.references import find_program
from namedmesh.cost.cost import cost
from namedmesh.diff.conditions import EXAMPLES, Condition
from namedmesh.diff.diff import diff
from namedmesh.diff.sources import record_of
from namedmesh.dims.layout import Layout
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.program import Program
from namedmesh.planning.plan import Plan
from namedmesh.planning.plan_program import CONFLICTS, plan
from namedmesh.records.paths import write_file
from namedmesh.records.plan import PlanRecord
from namedmesh.report.report import report

PROGRAM = "a program: module:function or path/file.py:function"


def add_planning_options(parser: argparse.ArgumentParser, twice: bool = False) -> None:
    """Add the options that say what to plan."""
    both = "; give it twice for A and for B" if twice else ""
    parser.add_argument(
        "--mesh",
        action="append",
        default=[],
        metavar="MESH",
        help=f"the devices along named axes, e.g. data=4,model=2, and hosts=2 if so{both}",
    )
    parser.add_argument(
        "--layout",
        action="append",
        default=[],
        metavar="LAYOUT",
        help=f"which dimensions lie on which axes, e.g. 'batch:data, hidden:model'{both}",
    )
    parser.add_argument(
        "--params",
        action="append",
        default=[],
        metavar="LAYOUT",
        help=f"the same for parameters at rest, e.g. 'model:data'{both}",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="settings",
        help="an argument of the function: a literal, a text or @module:name; NAME.FIELD=VALUE is "
        "an argument of the class that NAME is annotated with",
    )
    parser.add_argument(
        "--conflicts",
        choices=CONFLICTS,
        default="error",
        help="what happens where operands hold one axis on different dimensions",
    )


def make_plan(arguments: argparse.Namespace, reference: str, side: int = 0) -> Plan:
    """Plan what a reference names as the options say."""
    found = find_program(reference, arguments.settings)
    mesh, layout = _pick(arguments.mesh, side), _pick(arguments.layout, side)
    params = _pick(arguments.params, side)
    if isinstance(found, Plan) and (mesh, layout, params) == (None, None, None):
        return found
    program = found if isinstance(found, Program) else found.program
    if mesh is None and isinstance(found, Program):
        raise NamedMeshError(
            f"{reference}: there is no mesh to plan for", fix="add e.g. --mesh data=4,model=2"
        )
    before = found if isinstance(found, Plan) else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a layout leaves unused, the plan prints itself
        return plan(
            program,
            before.mesh if before and mesh is None else Mesh.parse(mesh or ""),
            before.layout if before and layout is None else Layout(layout or ""),
            None if not params else Layout(params),
            conflicts=arguments.conflicts,
        )


def _pick(values: Sequence[str], side: int) -> str | None:
    """The value of one side: of several, its own; of one, that."""
    return values[min(side, len(values) - 1)] if values else None


def check_given_once(arguments: argparse.Namespace, most: int = 1) -> None:
    """Raise for options that were given more often than there are programs."""
    for name in ("mesh", "layout", "params"):
        count = len(getattr(arguments, name))
        if count > most:
            raise NamedMeshError(
                f"--{name} is given {count} times, and there is a use for {most}",
                fix="leave the rest out; namedmesh diff compares two layouts",
            )


def print_text(text: str) -> None:
    """Print what a command found, as far as someone reads it."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # `namedmesh plan ... | head` has read enough; Python flushes again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
        document = plan.to_json()
        if arguments.target is not None:
            document["cost"] = cost(plan, arguments.target).summary()
        return json.dumps(document, indent=1)
    text = plan.communication if arguments.communication else str(plan)
    return text if arguments.target is None else f"{text}\n\n{cost(plan, arguments.target)}"


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
