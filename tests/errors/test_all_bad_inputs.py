"""All bad inputs of the tables in one process: errors of ours with a fix, and nothing else happens.

The tables of this folder have a wrong call in each row, and the whole message beside it, which
their own tests compare. Here they are counted, and run one after the other beside a state that
must not change and a process that must stay alive.
"""

import importlib
import inspect
import pathlib

import numpy as np
import pytest

import namedmesh as nm
from tests.errors.running import assert_nothing_has_changed, compiled, given
from tests.errors.wrong import SPECS, Table, traced

LEAST = 350  # how many there are


def tables() -> dict[str, Table]:
    """The tables of all files."""
    found = {}
    for path in sorted(pathlib.Path(__file__).parent.glob("test_*_errors.py")):
        module = importlib.import_module(f"tests.errors.{path.stem}")
        found[path.stem] = module.wrong
    return found


def error_of(function) -> nm.NamedMeshError:
    """What a wrong call raises."""
    needed = inspect.signature(function).parameters
    with pytest.raises(nm.NamedMeshError) as caught:
        if needed and set(needed) <= set(SPECS):
            traced(function)
        else:
            things = given()
            function(**{name: things[name] for name in needed})
    return caught.value


def test_every_bad_input_is_an_error_with_a_fix_and_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    step = compiled()["step"]
    state = step.init(0)
    before = {name: np.array(array) for name, array in state.arrays.items()}
    count = 0
    for table in tables().values():
        for name, (function, message) in table.items():
            error = error_of(function)
            assert error.problem and error.fix and message.endswith(error.fix.split("\n")[-1]), name
            count += 1
        for name, array in state.arrays.items():
            np.testing.assert_array_equal(np.asarray(array), before[name])
    assert count >= LEAST
    assert_nothing_has_changed(step, state)
