"""Every public op, called with random wrong arguments: errors are ours, with a fix."""

import inspect
import random
import re
import traceback
from pathlib import Path

import numpy as np
import pytest

import namedmesh as nm

B, S, M = nm.dims("batch=4 seq=6 model=8")
CALLS = 8  # of each function; more found nothing more
NOT_OPS = {
    "trace", "evaluate", "compile", "export", "plan", "save_weights", "load_weights", "Program",
    "Plan", "Step", "Artifact", "Op", "Tensor", "Placement", "InputSpec", "NamedMeshError",
    "LayoutConflict", "aot", "layers", "runtime", "training", "random", "while_loop",
    "render_table",  # whatever rich renders
}  # fmt: skip
ARGUMENTS = {
    "x": nm.spec([B, S, M]),
    "i": nm.spec([B, S], "int32"),
    "mask": nm.spec([B], "bool"),
    "scalar": nm.spec([]),
    "half": nm.spec([B, M], "bfloat16"),
    "other_size": nm.spec([B.resized(2), M]),
}


class Odd:
    """An object that is nothing in particular."""


def public_functions():
    """Every public op by name."""
    listed = (Path(nm.__file__).parent / "__init__.pyi").read_text()
    names = [name for name in re.findall(r"import (\w+) as \w+", listed) if name not in NOT_OPS]
    functions = {f"nm.{name}": getattr(nm, name) for name in names}
    for name, value in vars(nm.random).items():
        own = getattr(value, "__module__", "") == nm.random.__name__
        if own and inspect.isfunction(value) and not name.startswith("_"):
            functions[f"nm.random.{name}"] = value
    for module in (nm.layers, nm.training):
        names = [name for name in dir(module) if not name.startswith("_")]
        every = {f"nm.{module.__name__[10:]}.{name}": getattr(module, name) for name in names}
        functions |= {
            name: one
            for name, one in every.items()
            if inspect.isfunction(one) and one.__name__ not in NOT_OPS
        }
    known = (inspect.isfunction, inspect.isclass)
    return {name: value for name, value in functions.items() if any(is_(value) for is_ in known)}


FUNCTIONS = public_functions()


def wrong_values(tensors):
    """Values that most parameters do not take."""
    return [
        None, True, 0, -1, 3, 2**31, 2**70, -(2**70), 0.5, float("nan"), float("inf"), 1e300, 1j,
        "", "x", "batch", "größe", "float32", "int8", b"x", [], (), {}, [1, 2], ["batch"],
        {"a": 1}, {1, 2}, Odd(), np.array(3), np.array(2.5), np.array("x"),
        np.array(None), np.arange(3), np.zeros((2, 3)), np.float32(1), np.int64(7), np.bool_(True),
        B, S, M, B.resized(2), [B], [B, S, M], [B, B], nm.Shape([B, M]), [None], [B, None], [[B]],
        {B: M}, nm.Mesh(a=2), nm.spec([B]), slice(0, 2), range(3), object(), iter([B]), 10**400,
        np.datetime64("2020"), *tensors, list(tensors), nm.random.key(0),
    ]  # fmt: skip


def call_wrongly(function, chance, values, tensors):
    """Calls a function with arguments of which some may be right by chance."""
    right = {"x": tensors[0], "over": M, "dim": M, "dims": [B, M], "seq": S, "model": M}
    positional, named = [], {}
    for parameter in inspect.signature(function).parameters.values():
        optional = parameter.default is not parameter.empty
        value = chance.choice(values)
        if parameter.name in right and chance.random() < 0.6:
            value = right[parameter.name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += [chance.choice(values) for _ in range(chance.randrange(3))]
        elif parameter.kind is parameter.VAR_KEYWORD or (optional and chance.random() < 0.5):
            continue
        elif parameter.kind is parameter.KEYWORD_ONLY or optional:
            named[parameter.name] = value
        else:
            positional.append(value)
    function(*positional, **named)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_wrong_call_is_explained(name):
    chance = random.Random(name)
    problems = []

    def program(*tensors):
        call_wrongly(FUNCTIONS[name], chance, wrong_values(tensors), tensors)
        return tensors[0]

    for _ in range(CALLS):
        try:
            nm.trace(lambda **given: program(*given.values()), **ARGUMENTS)
        except nm.NamedMeshError as error:
            if not error.fix:
                problems.append(f"no fix: {error}")
        except Exception as error:
            line = traceback.extract_tb(error.__traceback__)[-1]
            problems.append(f"{type(error).__name__}: {error} at {line.filename}:{line.lineno}")
    assert not problems, "\n".join(problems)
