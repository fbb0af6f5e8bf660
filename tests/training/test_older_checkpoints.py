"""Checkpoints that orbax wrote are still read, under any layout, and new ones join them."""

import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest

from namedmesh.errors.errors import NamedMeshError
from namedmesh.training import Checkpoints
from tests.training.programs import PLACES, compiled, same, values

WRITTEN = "two"


@pytest.fixture
def folder(tmp_path):
    """What Checkpoints wrote with orbax alone: three items and the metric."""
    executable = compiled("train", WRITTEN)
    handlers = {
        "state": ocp.PyTreeCheckpointHandler(),
        "variables": ocp.JsonCheckpointHandler(),
        "extra": ocp.JsonCheckpointHandler(),
    }
    options = ocp.CheckpointManagerOptions(best_fn=lambda metrics: metrics["dev_loss"])
    with ocp.CheckpointManager(tmp_path, options=options, item_handlers=handlers) as manager:
        for step in (5, 10):
            state = executable.place(values(step))
            variables = {
                name: {"sizes": list(spec.sizes), "dtype": spec.dtype}
                for name, spec in executable.variables.items()
            }
            items = ocp.args.Composite(
                state=ocp.args.PyTreeSave(dict(state.arrays)),
                variables=ocp.args.JsonSave(variables),
                extra=ocp.args.JsonSave({"position": step}),
            )
            manager.save(step, args=items, metrics={"dev_loss": float(step)})
    return tmp_path


@pytest.mark.parametrize("place", PLACES)
def test_older_checkpoints_are_restored_under_every_layout(folder, place):
    executable, expected = compiled("train", place), values(10)
    with Checkpoints(folder) as checkpoints:
        assert (checkpoints.steps, checkpoints.best) == ([5, 10], 5)
        step, state, extra = checkpoints.restore(executable)
    assert (step, extra) == (10, {"position": 10})
    assert all(same(state[name], expected[name]) for name in expected)
    for name, spec in executable.variables.items():
        assert state.arrays[name].shape == spec.padded(executable.artifact.mesh)
        assert state.arrays[name].dtype == jnp.dtype(spec.dtype)


def test_a_run_goes_on_in_the_same_folder(folder):
    executable = compiled("train", "one")
    with Checkpoints(folder, keep=2) as checkpoints:
        state = checkpoints.restore(executable).state
        checkpoints.save(15, state, {"position": 15}, {"dev_loss": 1.0})
        checkpoints.wait()
        assert (checkpoints.steps, checkpoints.best) == ([10, 15], 15)
    assert {path.name for path in folder.glob("[!.]*")} == {"10", "15"}
    with Checkpoints(folder) as checkpoints:
        again = checkpoints.restore(compiled("train", "mixed")).state
    assert all(same(again[name], state[name]) for name in state)


@pytest.mark.parametrize("way", ["cut", "missing"])
@pytest.mark.parametrize(
    "pattern", ["variables/metadata", "extra/metadata", "state/manifest.ocdbt", "state/d/*"]
)
def test_damage_of_an_older_checkpoint_is_named_and_the_one_before_restored(folder, pattern, way):
    (file,) = (folder / "10").glob(pattern)
    content = file.read_bytes()
    file.unlink()
    if way == "cut":
        file.write_bytes(content[: len(content) // 2])
    executable = compiled("train", "one")
    with Checkpoints(folder) as checkpoints:
        with pytest.raises(NamedMeshError) as error:
            checkpoints.restore(executable, 10)
        assert error.value.problem == f"the checkpoint of step 10 in {folder} is damaged"
        with pytest.warns(UserWarning, match="step 5 was restored instead"):
            assert checkpoints.restore(executable).step == 5
