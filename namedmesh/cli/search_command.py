"""The command `namedmesh search`: finds meshes and layouts for a program."""

from __future__ import annotations

import argparse
import inspect
import json
from typing import Any

from namedmesh.cli.planning_commands import PROGRAM, add_program_options, print_text
from namedmesh.cli.references import find_program, read_literal
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
  on four nodes of eight GPUs
    namedmesh search model.py:train --devices 32 --target h100:4x8
"""
# Options that are arguments of nm.search.
OPTIONS = (
    "hosts", "slices", "pin", "memory", "axes", "plans", "verify", "processes", "resume",
)  # fmt: skip


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `namedmesh search`."""
    add = parser.add_argument
    add("program", metavar="PROGRAM", help=PROGRAM)
    add_program_options(parser)
    choices = "an argument of the function that the search may choose, e.g. remat=none,full"
    several: dict[str, Any] = dict(action="append", default=[], dest="choices")
    add("--try", metavar="NAME=VALUE,VALUE", help=choices, **several)
    add("--devices", type=int, required=True, help="how many devices there are")
    add("--hosts", type=int, default=1, help="how many hosts they are on")
    add("--slices", type=int, default=1, help="how many TPU slices they are on")
    add("--target", required=True, help="what they are: tpu-v3, h100:4x8, cpu, ..., or a YAML file")
    add("--pin", default="", metavar="LAYOUT", help="the part of the layout that stays")
    add("--memory", help="what a step may take on a device, e.g. 12GiB; by default all it has")
    add("--axes", type=int, default=3, help="how many axes a mesh may have")
    add("--plans", type=int, help="how many candidates to plan at most")
    add("--verify", type=int, default=0, help="how many entries to compile")
    add("--processes", type=int, help="how many processes plan; one for each core")
    add("--resume", metavar="OUT", help="a journal, to go on after an interruption")
    add("--json", action="store_true", help="print JSON")


def run_search(arguments: argparse.Namespace) -> int:
    """Search, and print the front."""

    def make(**choices: Any) -> Program:
        settings = [f"{name}={value!r}" for name, value in choices.items()]
        found = find_program(arguments.program, [*arguments.settings, *settings], arguments.specs)
        return found if isinstance(found, Program) else found.program

    options = {name: getattr(arguments, name) for name in OPTIONS}
    choices: dict[str, Any] = dict(map(_read_choice, arguments.choices))
    result = search(make, arguments.devices, arguments.target, **options, **choices)
    print_text(json.dumps(result.to_json(), indent=1) if arguments.json else str(result))
    return 0 if result.front else 1


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
    return name, [read_literal(value.strip()) for value in values.split(",")]
