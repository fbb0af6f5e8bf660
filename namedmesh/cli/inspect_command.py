"""The command `namedmesh inspect`: prints what the compiler made of a step of JAX."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence

from namedmesh.cli.planning_commands import FAIL, SET, print_failures, print_text
from namedmesh.cli.references import call_reference
from namedmesh.diff.conditions import Condition
from namedmesh.diff.diff import diff
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError
from namedmesh.files import read_file
from namedmesh.inspect.inspect import LARGEST_TEXT, inspect, prepare_devices
from namedmesh.inspect.inspection import Inspection

INSPECT_EXAMPLES = """\
examples:
  # in train.py, step() ends with: return train_step, state, batch
  namedmesh inspect train.py:step --devices 8 --save step.json
  namedmesh inspect train.py:step --devices 8 --against step.json --fail-if "wire_bytes > +5%"
  namedmesh inspect train.py:step --target h100:16x8   # pip install 'namedmesh[gpu-aot]', no GPU
  namedmesh inspect dump/*.txt --mesh data=2,model=4   # XLA_FLAGS=--xla_dump_to=dump

exit status: 0 if no condition of --fail-if is met, 1 if one is, 2 if something is wrong
"""
_FORM = "return the step and its arguments from a function, e.g. return train_step, state, batch"


def add_inspect_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `namedmesh inspect`."""
    add = parser.add_argument
    step = "file.py:function that returns a step and its arguments; or files of HLO or StableHLO"
    add("steps", nargs="+", metavar="STEP", help=step)
    add("--set", action="append", default=[], metavar="NAME=VALUE", dest="settings", help=SET)
    add("--devices", type=int, help="how many virtual CPU devices to compile for")
    add("--target", help="devices to compile for that are not here: h100:16x8, tpu-v5e:4x4, ...")
    add("--mesh", help="the axes to name, e.g. data=2,model=4, where the step does not name them")
    add("--save", metavar="OUT", help="write what was seen to a file for --against")
    add("--against", metavar="FILE", help="a saved file to compare with")
    add("--fail-if", action="append", default=[], metavar="CONDITION", help=FAIL)
    add("--json", action="store_true", help="print JSON")


def run_inspect(arguments: argparse.Namespace) -> int:
    """Inspect steps or files, print what was seen, and check the conditions."""
    conditions = [Condition.parse(text) for text in arguments.fail_if]
    relative = [one.text for one in conditions if one.sign or one.unit == "x"]
    if relative and arguments.against is None:
        fix = "add --against FILE, which --save wrote"
        raise NamedMeshError(f"{relative[0]!r} compares with what was before", fix=fix)
    steps = _choose(arguments.steps)
    seen = [_inspect_one(step, arguments) for step in steps]
    if len(steps) > 1:  # of a program, XLA compiles a hundred small modules beside the step
        steps = [one for one in seen if one.collectives or one.findings]
        print(f"{len(seen) - len(steps)} others communicate nothing", file=sys.stderr)
        seen = steps or seen
    single = ("save", "against", "fail_if")
    if len(seen) > 1 and any(getattr(arguments, name) for name in single):
        problem = f"--save, --against and --fail-if are for one of {len(seen)} steps"
        raise NamedMeshError(problem, fix="run the command once for each")
    change = diff(arguments.against or seen[0], seen[0])
    failures = [text for one in conditions if (text := one.explain(change)) is not None]
    if arguments.json:
        rows = [one.to_json() for one in seen]
        print_text(json.dumps(rows if len(rows) > 1 else rows[0], indent=1))
    else:
        print_text("\n\n".join(str(one) if one.collectives else repr(one) for one in seen))
    if arguments.save is not None:
        seen[0].save(arguments.save)
    if arguments.against is not None and not arguments.json:
        print_text(f"\n{change}")
    return print_failures(failures)


def _choose(steps: Sequence[str]) -> Sequence[str]:
    """Leave out what XLA dumps besides compiled modules, where several files are given."""
    if len(steps) == 1:
        return steps
    heads = {step: read_file(step, "HLO", LARGEST_TEXT).split(b"\n", 1)[0] for step in steps}
    signs = (rb"is_scheduled=true", rb"(num_partitions|replica_count)=([2-9]|\d\d)")
    compiled = [step for step in steps if all(re.search(sign, heads[step]) for sign in signs)]
    count = len(steps) - len(compiled)
    print(f"{count} of the files are no compiled modules of several devices", file=sys.stderr)
    return compiled or steps


def _inspect_one(step: str, arguments: argparse.Namespace) -> Inspection:
    """Inspect a file, or the step that a function returns."""
    if arguments.devices and arguments.target:
        problem = "--devices and --target both say what to compile for"
        raise NamedMeshError(
            problem, fix=f"leave out --devices: --target {arguments.target} has its own"
        )
    prepare_devices(f"cpu:{arguments.devices}" if arguments.devices else arguments.target)
    mesh = Mesh.parse(arguments.mesh) if arguments.mesh is not None else None
    found, values = step, ()
    if not os.path.isfile(step) and ":" not in step:
        raise NamedMeshError(f"there is no file {step!r}", fix="check the path, or " + _FORM)
    if not os.path.isfile(step):
        try:
            found = call_reference(step, arguments.settings)
        except NamedMeshError as error:
            if "Number of devices 1 must" not in str(error):  # of jax, which has one CPU device
                raise
            fix = "add --devices 8, or as many as the mesh has"
            raise NamedMeshError(error.problem, *error.details, fix=fix) from error
        if isinstance(found, tuple) and found and callable(found[0]):
            found, *values = found
        elif not hasattr(found, "as_text"):
            problem = f"{step} returns a {type(found).__name__}, expected a step and arguments"
            raise NamedMeshError(problem, fix=_FORM)
        if len(values) == 1 and type(values[0]) in (tuple, list):
            values = values[0]
    return inspect(found, *values, mesh=mesh, target=arguments.target)
