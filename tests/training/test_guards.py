"""Guards of a Trainer: a loss that diverges, and devices that compute other bits."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from namedmesh.errors.errors import NamedMeshError
from namedmesh.runtime import State
from namedmesh.training import Checkpoints, Intervals, NumberedBatches, Trainer
from namedmesh.training.guards import Divergence, repeat_step
from tests.training.programs import batch, compiled, same


@pytest.mark.parametrize("factor", [1.0, 0.0, -2.0, float("nan")])
def test_a_factor_of_divergence_is_above_one(factor):
    with pytest.raises(NamedMeshError, match="divergence"):
        Divergence(factor)


def test_divergence_is_a_multiple_of_the_median_of_the_last_hundred_steps():
    random, divergence = np.random.default_rng(0), Divergence(2.0)
    losses = np.abs(random.normal(3.0, 2.0, size=500)) * np.linspace(1.0, 0.2, 500)
    for step, loss in enumerate(losses):
        recent = losses[max(0, step - 100) : step]
        median = float(np.median(recent)) if step >= 20 else np.inf
        expected = median if loss > 2.0 * median else None
        assert divergence.note(float(loss)) == (expected and pytest.approx(expected))


def test_losses_that_are_not_positive_have_no_limit():
    divergence = Divergence(2.0)
    assert [divergence.note(value) for value in [-5.0] * 30 + [100.0]] == [None] * 31


def spoiled(number: int) -> dict[str, np.ndarray]:
    """A batch whose loss is far above those of the others, in one step."""
    inputs = batch(number)
    return {"x": inputs["x"], "y": inputs["y"] + 1000.0} if number == 45 else inputs


def test_a_loss_that_diverges_stops_and_the_last_good_checkpoint_is_kept(tmp_path):
    with Checkpoints(tmp_path / "checkpoints", keep=5) as checkpoints:
        trainer = Trainer(
            compiled("train", "two"),
            NumberedBatches(spoiled, "data"),
            Intervals(100, log_every=10, save_every=15),
            checkpoints=checkpoints,
            divergence=50.0,
            advice="do better",
        )
        with pytest.raises(NamedMeshError) as error:
            trainer.run()
    assert error.value.problem.startswith("the loss of step 46 is ")
    assert error.value.details[0].startswith("that is more than 50 times its median, ")
    assert error.value.details[1] == "the last good checkpoint, of step 30, is kept"
    assert error.value.fix == "do better"


def test_without_a_limit_it_goes_on(tmp_path):
    trainer = Trainer(
        compiled("train", "two"), NumberedBatches(spoiled, "data"), Intervals(50, log_every=50)
    )
    assert trainer.run()["step"] == 50


def test_a_repeated_step_is_the_step(tmp_path):
    step = compiled("train", "mixed")
    expected, results = step(step.init(3), **batch(0))
    state, repeated = repeat_step(step, step.init(3), batch(0), 1)
    assert all(same(state[name], expected[name]) for name in expected)
    assert float(repeated["loss"]) == float(results["loss"])


class Broken:
    """A step one of whose devices flips a bit when it is called the second time."""

    def __init__(self, name: str, device: int):
        self.step, self.name, self.device, self.calls = compiled("train", "mixed"), name, device, 0

    def __call__(self, state, **inputs):
        state, results = self.step(state, **inputs)
        self.calls += 1
        if self.calls == 2:
            whole = state.arrays[self.name]
            shards = [self.flip(shard) for shard in whole.addressable_shards]
            shape, sharding = whole.shape, whole.sharding
            changed = jax.make_array_from_single_device_arrays(shape, sharding, shards)
            state = State({**state.arrays, self.name: changed}, state.specs)
        return state, results

    def flip(self, shard: jax.Shard) -> jax.Array:
        """A shard of the variable, with a wrong bit on the broken device."""
        data = np.array(shard.data)
        data.reshape(-1).view(np.uint8)[0] ^= int(shard.device.id == self.device)
        return jax.device_put(data, shard.device)


def test_a_flipped_bit_is_found_with_its_variable_and_device():
    broken = Broken("slots/layer/w", 5)
    with pytest.raises(NamedMeshError) as error:
        repeat_step(broken, broken.step.init(0), batch(0), 12)  # pyright: ignore[reportArgumentType]
    assert error.value.problem == "step 12 made other bits when it was repeated"
    assert error.value.details == ("process 0: slots/layer/w on device 5",)
    assert "test the devices" in error.value.fix


def test_a_trainer_repeats_steps_and_trains_as_without(tmp_path):
    states, calls = [], []
    for every in (0, 3):
        trainer = Trainer(
            compiled("train", "two"),
            NumberedBatches(batch, "data"),
            Intervals(10, repeat_every=every),
        )
        step = trainer.executable

        class Counting:
            artifact = step.artifact

            def __call__(self, state, step=step, **inputs):
                calls.append(1)
                return step(state, **inputs)

        trainer.executable = Counting()  # pyright: ignore[reportAttributeAccessIssue]
        trainer.run()
        states.append(trainer.state)
    assert len(calls) == 10 + 13
    assert all(same(states[0][name], states[1][name]) for name in states[0])
