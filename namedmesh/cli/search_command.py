"""The command `namedmesh search`: finds meshes and layouts for a program."""

from __future__ import annotations

import argparse
import ast
import inspect
import json
from typing import Any

from namedmesh.cli.planning_commands import PROGRAM, print_text
from namedmesh.cli.references import find_program
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.program import Program
from namedmesh.search.search import search

SEARCH_EXAMPLES = """\
examples:
  the fastest layouts of a U-Net on 64 cores of a TPU v3
    namedmesh search examples.unet.model:train_program --set learning_rate=0.01 --set steps=100 \\
        --set model.batch=64 --devices 64 --target tpu-v3
  the batch stays on an axis called data, and the best three are compiled
    namedmesh search model.py:train --devices 8 --target cpu --pin batch:data --verify 3
  with and without recomputation, in at most 12 GiB, to be interrupted and gone on with
    namedmesh search model.py:train --try remat=none,full --devices 512 --target tpu-v3 \\
        --memory 12GiB --resume search.json
  on four hosts of eight GPUs
    namedmesh search model.py:train --devices 32 --hosts 4 --target h100
"""


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to a parser."""
    parser.add_argument("program", metavar="PROGRAM", help=PROGRAM)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="settings",
        help="an argument of the function, as for namedmesh plan",
    )
    parser.add_argument(
        "--try",
        action="append",
        default=[],
        metavar="NAME=VALUE,VALUE",
        dest="choices",
        help="an argument of the function that the search may choose, e.g. remat=none,full",
    )
    parser.add_argument("--devices", type=int, required=True, help="how many devices there are")
    parser.add_argument("--hosts", type=int, default=1, help="how many hosts they lie on")
    parser.add_argument("--slices", type=int, default=1, help="how many TPU slices they lie on")
    parser.add_argument(
        "--target", required=True, help="what they are: tpu-v3, h200, cpu, ..., or a YAML file"
    )
    parser.add_argument(
        "--pin", default="", metavar="LAYOUT", help="the part of the layout that stays"
    )
    parser.add_argument(
        "--memory", help="what a device may hold, e.g. 12GiB; all it has if not given"
    )
    parser.add_argument("--axes", type=int, default=3, help="how many axes a mesh may have")
    parser.add_argument("--plans", type=int, help="how many candidates to plan at most")
    parser.add_argument("--verify", type=int, default=0, help="how many entries to compile")
    parser.add_argument("--processes", type=int, help="how many processes plan; one for each core")
    parser.add_argument("--resume", metavar="OUT", help="a journal, to go on after an interruption")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_search(arguments: argparse.Namespace) -> int:
    """Search, and prints what was found."""

    def make(**choices: Any) -> Program:
        settings = [f"{name}={value!r}" for name, value in choices.items()]
        found = find_program(arguments.program, [*arguments.settings, *settings])
        return found if isinstance(found, Program) else found.program

    choices: dict[str, Any] = dict(map(_read_choice, arguments.choices))
    found = search(
        make,
        arguments.devices,
        arguments.target,
        hosts=arguments.hosts,
        slices=arguments.slices,
        pin=arguments.pin,
        memory=arguments.memory,
        axes=arguments.axes,
        plans=arguments.plans,
        verify=arguments.verify,
        processes=arguments.processes,
        resume=arguments.resume,
        **choices,
    )
    print_text(json.dumps(found.to_json(), indent=1) if arguments.json else str(found))
    return 0 if found.front else 1


def _read_choice(text: str) -> tuple[str, list[Any]]:
    """Read one --try: a name and literals, or texts."""
    name, equals, values = text.partition("=")
    if not name.isidentifier() or not equals or not all(values.split(",")):
        raise NamedMeshError(
            f"--try {text!r} is not a name with values", fix="write e.g. --try remat=none,full"
        )
    if name in inspect.signature(search).parameters and name != "choices":
        raise NamedMeshError(
            f"--try {name}: a search has an option of that name itself",
            fix=f"rename the parameter {name} of the function",
        )
    return name, [_read_value(value.strip()) for value in values.split(",")]


def _read_value(text: str) -> Any:
    """Read a literal; what is not one is a text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
