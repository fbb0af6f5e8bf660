"""Results whose sizes do not divide stay split, padded on the devices; readers get their size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import namedmesh as nm

pytestmark = pytest.mark.filterwarnings("ignore:.*(is padded to|no dimension is mapped)")
B, M = nm.dims("batch=7 model=3")
X = np.arange(21, dtype=np.float32).reshape(7, 3)


def compile_doubling(layout: str = "batch:x", mesh: nm.Mesh | None = None) -> nm.Step:
    """Compile a step with one result, of the shape of its input."""
    mesh = mesh or nm.Mesh(x=4)
    return nm.compile(lambda x: x * 2, nm.spec([B, M]), mesh=mesh, layout=layout, strict=True)


@pytest.mark.parametrize("layout", ["batch:x", "batch:x+y", "batch:y, model:x"])
def test_nothing_is_gathered(layout):
    step = compile_doubling(layout, nm.Mesh(x=2, y=2))
    assert not step.plan.collectives
    _, y = step(None, X)
    assert y.array.shape != y.shape == (7, 3)
    assert np.array_equal(y, X * 2)


def test_readers_get_the_true_size():
    _, y = compile_doubling()(None, X)
    assert (len(y), y.ndim, y.dtype, y.size) == (7, 2, np.float32, 21)
    assert y.sum() == np.sum(y) == 2 * X.sum() and y.tolist() == (2 * X).tolist()
    assert np.array_equal(y + 1, 2 * X + 1) and np.array_equal(1 + y, 2 * X + 1)
    assert np.array_equal(y[-1], 2 * X[-1]) and [*map(list, y)] == (2 * X).tolist()
    assert jnp.asarray(y).shape == (7, 3) and jax.device_get(y).shape == (7, 3)
    assert np.asarray(y, "int32").dtype == np.int32 and "array([[ 0.," in repr(y)
    assert jax.block_until_ready(y) is y and len(y.addressable_shards) == 4


def test_a_step_takes_them_as_they_are():
    step = compile_doubling()
    _, y = step(None, X)
    ready = step._ready.take({"x": y})
    assert ready is not None and ready[0][0] is y.array
    _, z = step(None, y)
    other = compile_doubling("model:x")
    assert np.array_equal(z, 4 * X) and np.array_equal(other(None, z)[1], 8 * X)
    assert np.array_equal(step.fetch({"y": y})["y"], 2 * X)


def test_an_artifact_has_them_too(tmp_path):
    step = compile_doubling()
    step.artifact.save(tmp_path / "double.nmesh")
    loaded = nm.runtime.load(tmp_path / "double.nmesh")
    assert loaded.artifact.outputs[0].sharded_text == "float32[batch=7/x, model=3]"
    assert np.array_equal(loaded(None, X)[1], 2 * X)
