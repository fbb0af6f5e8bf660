"""The commands `namedmesh plan`, `cost`, `report` and `diff`, and the options they share."""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Sequence

from namedmesh.cli.references import find_program
from namedmesh.cost.cost import cost
from namedmesh.diff.conditions import EXAMPLES, Condition
from namedmesh.diff.diff import diff
from namedmesh.diff.sources import record_of
from namedmesh.dims.layout import Layout
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError
from namedmesh.files import write_file
from namedmesh.planning.plan import Plan
from namedmesh.planning.plan_program import CONFLICTS, plan
from namedmesh.records.plan import PlanRecord
from namedmesh.report.report import report

PROGRAM = "a program: module:function or path/file.py:function"
SET = "an argument of the function: a literal, a text or @module:name; NAME.FIELD=VALUE is an "
SET += "argument of the class that NAME is annotated with"
SPEC = "the dimensions of an input, e.g. 'x=batch=8 model=4', with a dtype if not float32"
FAIL = f"exit with status 1 if it holds of what is new, e.g. {EXAMPLES}".replace("%", "%%")
PLAN_EXAMPLES = """\
examples:
  the plan of a function in model.py whose inputs have specs: def train(x=nm.spec([B, M]))
    namedmesh plan model.py:train --mesh data=8 --layout batch:data
  of one whose inputs have none
    namedmesh plan model.py:predict --spec "x=batch=64 model=512" --mesh data=8 --layout batch:data
  of a function that returns a program, with other sizes of the model, the collectives alone
    namedmesh plan examples.unet.model:train_program --set learning_rate=0.01 --set steps=100 \\
        --set model.rows=256 --mesh space=4 --layout rows:space --communication
  weights at rest in shards, saved for namedmesh diff with what a step takes on a target
    namedmesh plan model.py:train --mesh data=8 --layout batch:data --params model:data \\
        --target tpu-v3 --save fsdp.json
"""
COST_EXAMPLES = """\
examples:
  time and memory of a step on eight cores of a TPU v3
    namedmesh cost examples.unet.model:train_program --set learning_rate=0.01 --set steps=100 \\
        --mesh data=2,space=4 --layout "batch:data, rows:space" --target tpu-v3:2x2
  every op and collective, as JSON
    namedmesh cost model.py:train --mesh data=8 --layout batch:data --target h200 --json
"""
REPORT_EXAMPLES = """\
examples:
  the page of a plan on eight devices, with times and memory on TPU v3
    namedmesh report examples.unet.model:train_program --set learning_rate=0.01 --set steps=100 \\
        --mesh data=2,space=4 --layout "batch:data, rows:space" --out unet.html
  two layouts side by side, on other hardware
    namedmesh report model.py:train --mesh data=8 --layout batch:data --layout hidden:data \\
        --target h200 --out layouts.html
"""
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


def add_program_options(parser: argparse.ArgumentParser) -> None:
    """Add the options with which the function behind a reference is called."""
    add = parser.add_argument
    add("--set", action="append", default=[], metavar="NAME=VALUE", dest="settings", help=SET)
    add("--spec", action="append", default=[], metavar="NAME=DIMS", dest="specs", help=SPEC)


def _add_planning_options(parser: argparse.ArgumentParser, twice: bool = False) -> None:
    """Add the options that say what to plan."""
    both = "; give it twice for A and for B" if twice else ""
    options = {
        "mesh": "the devices along named axes, e.g. data=4,model=2, and hosts=2 if so",
        "layout": "the axes of each dimension, e.g. 'batch:data, hidden:model'",
        "params": "what parameters at rest add to it, e.g. 'model:data'",
    }
    for name, text in options.items():
        metavar = "MESH" if name == "mesh" else "LAYOUT"
        help = text + both
        parser.add_argument(f"--{name}", action="append", default=[], metavar=metavar, help=help)
    add_program_options(parser)
    conflicts = "what happens where operands have one axis on different dimensions"
    parser.add_argument("--conflicts", choices=CONFLICTS, default="error", help=conflicts)


def _make_plan(arguments: argparse.Namespace, reference: str, side: int = 0) -> Plan:
    """Plan what a reference names as the options say."""
    found = find_program(reference, arguments.settings, arguments.specs)
    options = (arguments.mesh, arguments.layout, arguments.params)
    # A side has its own of several values, or the only one.
    texts = [values[min(side, len(values) - 1)] if values else None for values in options]
    before = found if isinstance(found, Plan) else None
    if before and texts == [None] * 3:
        return before
    mesh, layout, params = texts
    if not before and mesh is None:
        fix = "add e.g. --mesh data=4,model=2"
        raise NamedMeshError(f"{reference}: there is no mesh to plan for", fix=fix)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the plan itself prints what a layout leaves unused
        return plan(
            found.program if isinstance(found, Plan) else found,
            before.mesh if before and mesh is None else Mesh.parse(mesh or ""),
            before.layout if before and layout is None else Layout(layout or ""),
            Layout(params) if params else None,
            conflicts=arguments.conflicts,
            target=arguments.target,
        )


def _check_counts(arguments: argparse.Namespace, most: int = 1) -> int:
    """Return how often an option was given at most; raise if that is more than there is use for."""
    counts = {name: len(getattr(arguments, name)) for name in ("mesh", "layout", "params")}
    name = max(counts, key=counts.__getitem__)
    if counts[name] > most:
        raise NamedMeshError(
            f"--{name} is given {counts[name]} times, and there is a use for {most}",
            fix="leave the rest out; namedmesh diff compares two layouts",
        )
    return counts[name]


def print_text(text: str) -> None:
    """Print text to a reader who may stop reading."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # `namedmesh plan ... | head` has read enough; Python flushes again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `namedmesh plan`."""
    add = parser.add_argument
    add("program", metavar="PROGRAM", help=PROGRAM)
    _add_planning_options(parser)
    add("--target", help="estimate time and memory of a step there: tpu-v3, h200, ..., or a file")
    add("--save", metavar="OUT", help="write the plan to a file for namedmesh diff")
    lines = "save no line numbers, so that the file changes only where the plan does"
    add("--without-lines", action="store_true", help=lines)
    add = parser.add_mutually_exclusive_group().add_argument
    add("--json", action="store_true", help="print JSON")
    add("--communication", action="store_true", help="print the collectives and totals alone")


def run_plan(arguments: argparse.Namespace) -> int:
    """Plan a program, print the plan, and save it."""
    _check_counts(arguments)
    planned, target = _make_plan(arguments, arguments.program), arguments.target
    if arguments.save is not None:
        planned.save(arguments.save, target, lines=not arguments.without_lines)
    if arguments.json:
        priced = {} if target is None else {"cost": cost(planned, target).summary()}
        print_text(json.dumps({**planned.to_json(), **priced}, indent=1))
        return 0
    text = planned.communication if arguments.communication else str(planned)
    print_text(text if target is None else f"{text}\n\n{cost(planned, target)}")
    return 0


def add_cost_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `namedmesh cost`."""
    parser.add_argument("program", metavar="PROGRAM", help=PROGRAM)
    _add_planning_options(parser)
    add = parser.add_argument
    add("--target", required=True, help="tpu-v3, tpu-v5p:4x4x4, h100:32x8, ..., or a YAML file")
    add("--json", action="store_true", help="print JSON")


def run_cost(arguments: argparse.Namespace) -> int:
    """Plan a program and print its cost."""
    _check_counts(arguments)
    if os.path.isfile(arguments.program):
        raise NamedMeshError(
            f"{arguments.program!r} is a file, and a saved plan does not have its ops to price",
            fix="name the program; plan.save(path, target=...) keeps the cost with the plan",
        )
    priced = cost(_make_plan(arguments, arguments.program), arguments.target)
    print_text(json.dumps(priced.to_json(), indent=1) if arguments.json else str(priced))
    return 0


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `namedmesh report`."""
    parser.add_argument("program", metavar="PROGRAM", help=PROGRAM)
    _add_planning_options(parser, twice=True)
    target = "the hardware of the estimates: tpu-v3 (the default), h200, ..., or a file"
    parser.add_argument("--target", default="tpu-v3", help=target)
    parser.add_argument("--out", metavar="OUT", required=True, help="the HTML file to write")


def run_report(arguments: argparse.Namespace) -> int:
    """Plan a program once or twice, and write the page."""
    two = _check_counts(arguments, most=2) == 2
    first = _make_plan(arguments, arguments.program)
    beside = _make_plan(arguments, arguments.program, 1) if two else None
    report(first, arguments.out, target=arguments.target, beside=beside)
    print(f"wrote {arguments.out}")
    return 0


def add_diff_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `namedmesh diff`."""
    add = parser.add_argument
    add(
        "a", metavar="A", help=f"a saved plan, an artifact, a report of namedmesh aot, or {PROGRAM}"
    )
    add("b", metavar="B", nargs="?", help="the same; without it, A under the second layout")
    _add_planning_options(parser, twice=True)
    add(
        "--target", help="estimate time and memory of what is planned: tpu-v3, h200, ..., or a file"
    )
    add("--fail-if", action="append", default=[], metavar="CONDITION", help=FAIL)
    add("--all", action="store_true", help="print every change")
    add("--json", metavar="OUT", help="write the comparison to this file too")


def run_diff(arguments: argparse.Namespace) -> int:
    """Compare two plans, print what differs, and check the conditions."""
    conditions = [Condition.parse(text) for text in arguments.fail_if]
    most = _check_counts(arguments, most=2)
    if arguments.b is None and most < 2:
        raise NamedMeshError(
            f"{arguments.a} is compared with nothing",
            fix="give B, or --layout, --params or --mesh twice: for A and for B",
        )
    sides = (arguments.a, arguments.b or arguments.a)
    difference = diff(*(_read_side(arguments, name, i) for i, name in enumerate(sides)))
    failures = [text for one in conditions if (text := one.explain(difference)) is not None]
    print_text(difference.describe(None if arguments.all else 12))
    if arguments.json is not None:
        text = json.dumps(difference.to_json(), indent=1) + "\n"
        write_file(arguments.json, text.encode(), "the comparison")
    return print_failures(failures)


def print_failures(failures: Sequence[str]) -> int:
    """Print which conditions a comparison meets, and return the exit status."""
    for text in failures:
        print(f"failed: {text}", file=sys.stderr)
    return 1 if failures else 0


def _read_side(arguments: argparse.Namespace, name: str, side: int) -> PlanRecord:
    """Return the record of a file, or of a program as the options say."""
    if name.endswith(".py"):
        fix = f"write {name}:function, e.g. {name}:train"
        raise NamedMeshError(f"{name!r} does not name a program", fix=fix)
    if os.path.exists(name):
        _check_options_used(arguments)
        return record_of(name)
    if ":" not in name:
        fix = "give a file that plan.save wrote, or module:function"
        raise NamedMeshError(f"{name!r} is neither a file nor a program", fix=fix)
    return record_of(_make_plan(arguments, name, side), arguments.target)


def _check_options_used(arguments: argparse.Namespace) -> None:
    """Raise for options of planning where both sides are files."""
    options = ("mesh", "layout", "params", "settings", "specs", "target")
    used = [name for name in options if getattr(arguments, name)]
    sides = (arguments.a, arguments.b or arguments.a)
    if used and all(os.path.exists(side) for side in sides):
        option = "--" + used[0].replace("settings", "set").replace("specs", "spec")
        raise NamedMeshError(
            f"{option} says how to plan, and both sides are files",
            fix=f"leave {option} out; plan.save(path, target=...) keeps the cost with a plan",
        )
