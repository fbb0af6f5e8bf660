"""A Transformer whose layers are a pipeline: the same parameters, losses and gradients."""

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.ir.op import every_op
from namedmesh.layers import Transformer, batch_of, config

DENSE = config("tiny").but(experts=0, layers=6, dropout=0.0, positions="relative")
MIXTURE = config("tiny").but(layers=12, dropout=0.0, second="all")
STAGES = {"stages": 2, "microbatches": 4}


def trace(shape, key=True):
    model = Transformer(shape, group=8, source=8, target=6)

    def step(batch, seed):
        drawn = nm.random.key_from_seed(seed) if key else None
        loss, _ = model.loss(batch_of(batch), drawn)
        return loss, nm.grad(loss)

    return nm.trace(step, batch=model.specs(), seed=nm.spec([], "int32"))


def make_batch():
    random = np.random.default_rng(0)
    batch = {}
    for side, length in (("source", 8), ("target", 6)):
        batch[side] = random.integers(0, 64, (8, length))
        batch[f"{side}_segments"] = np.tile([1] * (length - 2) + [0] * 2, (8, 1))
        batch[f"{side}_positions"] = np.tile(np.arange(length), (8, 1))
    return {name: value.astype("int32") for name, value in batch.items()}


def test_stages_have_the_parameters_of_the_plain_loop():
    shapes = [
        {name: one.shape for name, one in trace(shape).parameters.items()}
        for shape in (DENSE, DENSE.but(**STAGES))
    ]
    assert shapes[0] == shapes[1]


def test_microbatches_divide_the_rows():
    with pytest.raises(nm.NamedMeshError, match="microbatches do not divide group=8"):
        trace(DENSE.but(stages=2, microbatches=3))


def test_dropout_in_a_pipeline_is_drawn_by_all_stages_at_once():
    """Keys differ by stage and microbatch, and yet no loop goes through the stages."""
    program = trace(DENSE.but(**STAGES, dropout=0.1, layers=4))
    over = [op.loop.over for op in every_op(program.ops) if op.loop is not None]
    assert {dim.name for dim in over if dim} == {"stage_iteration"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape, layout", [(DENSE, ""), (MIXTURE, ", expert:data")], ids=["dense", "mixture"]
)
def test_a_pipeline_is_the_plain_loop(shape, layout):
    """Three layers in two stages, with experts and batches sharded inside."""
    plain, piped = trace(shape), trace(shape.but(**STAGES))
    state, inputs = plain.initial_state(1), {"batch": make_batch(), "seed": 3}
    loss, gradients = plain.evaluate(state, **inputs)[1]
    mesh, layout = nm.Mesh(stage=2, data=2), f"layer:stage, stage:stage, group:data{layout}"
    with pytest.warns(UserWarning, match="layer=3"):
        step = nm.compile(piped, mesh=mesh, layout=layout, strict=True)
    found, others = step(step.place(state), **inputs)[1]
    np.testing.assert_allclose(found, loss, rtol=1e-5)
    for name, value in gradients.items():
        np.testing.assert_allclose(others[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
