"""The options that say what to plan, shared by the commands that plan something."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence

from namedmesh.cli.references import find_program
from namedmesh.diff import plan_methods as plan_methods  # as Plan.save looks up
from namedmesh.dims.layout import Layout
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.program import Program
from namedmesh.planning.plan import Plan
from namedmesh.planning.plan_program import CONFLICTS, plan

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
