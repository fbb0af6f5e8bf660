"""Training that is stopped, killed or diverges, and continues as if nothing had happened."""

import random
import shutil
import signal
import time

import jax
import numpy as np
import pytest

from namedmesh.runtime import State
from namedmesh.training import Checkpoints
from tests.m4.runs import (
    DENSE,
    MIXTURES,
    Training,
    checkpoint,
    copied,
    good,
    losses,
    record,
    run,
    steps,
)


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    """Whether two checkpoints have the same variables, bit for bit."""
    return one.keys() == other.keys() and all(
        one[name].tobytes() == other[name].tobytes() for name in one
    )


def poison(folder, step: int) -> None:
    """Makes one number of a checkpoint's last parameter NaN."""
    arrays = {name: np.array(value) for name, value in checkpoint(folder, step).items()}
    name = max(name for name in arrays if not name.startswith("adam") and arrays[name].ndim > 1)
    arrays[name].flat[0] = np.nan
    extra = record(folder, step)["extra"]
    shutil.rmtree(folder / "checkpoints" / str(step))
    checkpoints = Checkpoints(folder / "checkpoints", keep=9)
    checkpoints.save(
        step, State({name: jax.numpy.asarray(value) for name, value in arrays.items()}, {}), extra
    )
    checkpoints.close()


@pytest.mark.slow
def test_the_checkpoint_has_parameters_slots_and_the_step(dense):
    assert steps(dense) == [5, 10]
    found = checkpoint(dense, 10)
    slots = [name for name in found if name.endswith(("/first", "/second"))]
    assert found["adam/step"] == 10
    assert len(slots) == 2 * (len(found) - len(slots) - 1) > 40
    assert not same(found, checkpoint(dense, 5))


@pytest.mark.slow
def test_sigterm_saves_and_the_next_start_resumes_from_that_step(dense, tmp_path):
    folder, flags = copied(dense, tmp_path / "run"), {**DENSE, "log_every": 1, "save_every": 10**6}
    training = Training(folder, {**flags, "steps": 10**6})
    training.wait_for(13)
    assert training.send(signal.SIGTERM) == 128 + signal.SIGTERM
    stopped = training.logged
    assert (
        f"stopped by SIGTERM after step {stopped}; the same command continues from there"
        in training.output.read_text()
    )
    assert "Traceback" not in training.output.read_text()
    assert steps(folder)[-1] == stopped
    said = good(run("train", folder, {**flags, "steps": stopped + 1}, blocked=True))
    assert f"resuming from step {stopped}\n" in said
    assert [step for step, _ in losses(folder)] == [5, 10, *range(11, stopped + 2)]


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_and_the_last_good_checkpoint_is_kept(dense, tmp_path):
    folder = copied(dense, tmp_path / "run")
    poison(folder, 10)
    done = run("train", folder, {**DENSE, "steps": 30}, blocked=True)
    assert done.returncode == 1
    assert "error: the loss of step 11 is nan" in done.stderr and "Traceback" not in done.stderr
    assert "the last good checkpoint, of step 5, is kept" in done.stderr
    assert steps(folder) == [5]
    assert "resuming from step 5\n" in good(
        run("train", folder, {**DENSE, "steps": 10}, blocked=True)
    )
    assert same(checkpoint(folder, 10), checkpoint(dense, 10))
    assert losses(folder) == losses(dense)


@pytest.mark.slow
def test_a_rate_that_is_too_high_is_an_error_and_the_right_one_continues(dense, tmp_path):
    folder = copied(dense, tmp_path / "run")
    done = run("train", folder, {**DENSE, "steps": 20, "learning_rate": 1e30, "save_every": 1})
    assert done.returncode == 1
    assert "lower --learning_rate" in done.stderr
    kept = steps(folder)
    assert f"the last good checkpoint, of step {kept[-1]}, is kept" in done.stderr
    assert 10 in kept
    good(run("train", folder, {**DENSE, "steps": kept[-1] + 5}, blocked=True))
    assert np.isfinite([loss for _, loss in losses(folder)]).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXTURES)
def test_twenty_kills_change_nothing(name, request, tmp_path):
    last = 150  # more than twenty stretches of training reach
    flags = {**MIXTURES[name], "steps": last, "log_every": 1, "save_every": 2}
    prepared = request.getfixturevalue(name)
    calm, killed = copied(prepared, tmp_path / "calm"), copied(prepared, tmp_path / "killed")
    good(run("train", calm, flags))  # lowers the step, whose learning rate knows the last one
    shutil.copytree(calm / "artifacts", killed / "artifacts", dirs_exist_ok=True)
    draw = random.Random(2006)
    trained = saving = 0
    for number in range(20):
        training = Training(killed, flags)
        if number % 5 == 4:  # anywhere: while it imports, compiles or reads the checkpoint
            time.sleep(draw.uniform(0.5, 8.0))
        else:
            training.wait_for(training.first + draw.randint(1, 8))
            time.sleep(draw.uniform(0.0, 0.5))
        assert training.send(signal.SIGKILL) == -signal.SIGKILL
        begun = training.logged > training.first
        trained += begun
        saving += begun and any(".part" in path.name for path in (killed / "checkpoints").iterdir())
        print(
            f"kill {number}: from step {training.first} to {training.logged}, "
            f"complete checkpoints {steps(killed)}"
        )
    print(f"{trained} kills after training had begun, {saving} while a checkpoint was written")
    assert trained >= 10 and saving >= 1
    newest = steps(killed)[-1]
    assert f"resuming from step {newest}\n" in good(run("train", killed, flags, blocked=True))
    assert same(checkpoint(killed, last), checkpoint(calm, last))
    assert losses(killed) == losses(calm)
    assert [step for step, _ in losses(killed)] == list(range(1, last + 1))
    assert {path.name for path in (killed / "checkpoints").glob("[!.]*")} == {
        path.name for path in (calm / "checkpoints").glob("[!.]*")
    }
