"""What cannot be saved or restored is an error at once; damaged files are said to be damaged."""

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.errors.errors import NamedMeshError
from namedmesh.training import Checkpoints
from tests.training.programs import B, M, batch, compiled, decode


@pytest.fixture
def folder(tmp_path):
    """A folder with a checkpoint of step 10."""
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        checkpoints.save(10, compiled("decode", "one").init(), {"position": 640})
    return tmp_path


def test_nothing_is_saved_or_deleted_without_keep(folder):
    with Checkpoints(folder) as checkpoints:
        for use in (
            lambda: checkpoints.save(11, compiled("decode", "one").init()),
            lambda: checkpoints.delete(10),
        ):
            with pytest.raises(NamedMeshError) as error:
                use()
            assert error.value.problem == (
                f"the checkpoints in {folder} were opened without keep=, only to be read"
            )
            assert error.value.fix == "say how many to keep: Checkpoints(folder, keep=3)"


def test_an_older_step_is_not_dropped_silently(folder):
    state = compiled("decode", "one").init()
    with Checkpoints(folder, keep=3) as checkpoints:
        with pytest.raises(NamedMeshError) as error:
            checkpoints.save(5, state)
        assert error.value.problem == (f"step 5 cannot be saved after step 10, which {folder} has")
        assert error.value.fix.startswith("save steps in increasing order")
        checkpoints.save(11, state)
    assert Checkpoints(folder).steps == [10, 11]


def test_another_state_is_not_dropped_where_its_step_is_saved(folder):
    step = compiled("decode", "one")
    with Checkpoints(folder, keep=3) as checkpoints:
        with pytest.raises(NamedMeshError) as error:
            checkpoints.save(10, step.init())
        assert error.value.problem == (
            f"step 10 is saved already in {folder}, and this is not the state "
            "that was saved or restored last"
        )
        assert error.value.fix == "give the number of steps taken, or use another folder"
        state = checkpoints.restore(step).state
        checkpoints.save(10, state)  # what was restored is there already
        checkpoints.save(11, state)
        checkpoints.save(11, state)  # and what was saved
    assert Checkpoints(folder).steps == [10, 11]


@pytest.mark.parametrize("step", ["11", 11.0, True, None, -1])
def test_a_step_is_a_whole_number(folder, step):
    with Checkpoints(folder, keep=3) as checkpoints:
        with pytest.raises(NamedMeshError) as error:
            checkpoints.save(step, compiled("decode", "one").init())
    assert error.value.problem == f"step={step!r} is not a count"
    assert error.value.fix == "give a whole number, 0 or more"


def test_a_step_may_be_a_number_of_numpy(folder):
    with Checkpoints(folder, keep=3) as checkpoints:
        checkpoints.save(np.int64(12), compiled("decode", "one").init())  # pyright: ignore
    assert Checkpoints(folder).steps == [10, 12]


@pytest.mark.parametrize(
    "options, problem, details",
    [
        (
            {"extra": {"a": object, "b": 1, "c": np.float32(1), 4: 5}},
            "extra cannot be written as JSON",
            (
                "a: Object of type type is not JSON serializable",
                "c: Object of type float32 is not JSON serializable",
                "the name 4 is not a string",
            ),
        ),
        (
            {"metrics": {"dev_loss": "low", "bleu": [1, 2], "other": 3}},
            "metrics is not a dict of numbers: could not convert string to float: 'low'",
            (),
        ),
    ],
)
def test_extra_and_metrics_are_checked_at_once(folder, options, problem, details):
    state = compiled("decode", "one").init()
    with Checkpoints(folder, keep=3) as checkpoints:
        with pytest.raises(NamedMeshError) as error:
            checkpoints.save(11, state, **options)
        assert (error.value.problem, error.value.details) == (problem, details)
        checkpoints.save(11, state)  # and the next save works
    assert Checkpoints(folder).steps == [10, 11]


def test_only_a_state_with_its_values_is_saved(folder):
    executable = compiled("train", "one")
    used = executable.init()
    executable(used, **batch())
    with Checkpoints(folder, keep=3) as checkpoints:
        with pytest.raises(NamedMeshError) as error:
            checkpoints.save(11, {"w": np.zeros(3)})  # pyright: ignore
        assert error.value.problem == "the state to save is a dict, expected a State"
        with pytest.raises(NamedMeshError) as error:
            checkpoints.save(11, used)
        assert error.value.problem == "the state to save was used up by a step"
        assert len(error.value.details) == 4
    assert sorted(path.name for path in folder.glob("[!.]*")) == ["10"]


def test_a_program_must_be_compiled_before_it_is_restored(folder):
    program = nm.trace(decode, nm.spec([B, M]))
    with Checkpoints(folder) as checkpoints, pytest.raises(NamedMeshError) as error:
        checkpoints.restore(program)  # pyright: ignore
    assert error.value.problem == "the program to restore is a Program, expected an Executable"
    assert error.value.fix.startswith("give a compiled step: nm.compile(function, ..., mesh=mesh)")
    with Checkpoints(folder) as checkpoints:
        with pytest.raises(NamedMeshError, match="step='10'"):
            checkpoints.restore(compiled("decode", "one"), "10")  # pyright: ignore
        assert checkpoints.find(10) == 10  # pyright: ignore


def test_closed_checkpoints_are_an_error(folder):
    executable = compiled("decode", "one")
    checkpoints = Checkpoints(folder, keep=3)
    checkpoints.close()
    checkpoints.close()
    checkpoints.wait()
    for use in (
        lambda: checkpoints.save(11, executable.init()),
        lambda: checkpoints.delete(10),
        lambda: checkpoints.restore(executable),
        checkpoints.read_extra,
        checkpoints.read_variables,
    ):
        with pytest.raises(NamedMeshError) as error:
            use()
        assert error.value.problem == f"the checkpoints in {folder} are closed"
    assert sorted(path.name for path in folder.glob("[!.]*")) == ["10"]
