"""Averages of weights, against a literal moving average."""

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.layers import Adam, Sgd
from tests.layers.updates import FEW, gradients, start_values, traced


def averaged_values(history, share):
    """A literal moving average of the values after each step."""
    average = {name: np.zeros_like(value) for name, value in history[0].items()}
    for step, values in enumerate(history):
        stays = min(share, (1 + step) / (10 + step))
        average = {name: average[name] * stays + values[name] * (1 - stays) for name in values}
    return average


@pytest.mark.parametrize("optimizer", [Sgd(0.1, average=0.8), Adam(0.1, average=0.3)])
def test_averages_follow_the_parameters(optimizer):
    values = start_values(FEW)
    grads = list(gradients(values, 20))
    program = traced(optimizer, FEW)
    state = {
        name: np.zeros(found.shape.sizes, found.dtype) for name, found in program.variables.items()
    } | values
    history = []
    for given in grads:
        updates, _ = program.evaluate(state, **{f"d_{name}": g for name, g in given.items()})
        state |= {name: np.asarray(value) for name, value in updates.items()}
        history.append({name: state[name] for name in values})
    for name, value in averaged_values(history, optimizer.average).items():
        np.testing.assert_allclose(state[f"average/{name}"], value, rtol=1e-5, atol=1e-6)


def test_a_model_in_the_scope_average_uses_averages():
    """The evaluation's parameters are the train step's averages, by name and shape."""
    L, B, M = nm.dims("layer=3 batch=8 model=8")

    def model(x):
        layer = lambda h, _: (nm.tanh(h * nm.param("w", [M])), None)
        h, _ = nm.scan(layer, x * nm.param("scale", [M]), over=L, stack=True)
        return nm.sum(nm.square(h))

    def train(x):
        return Sgd(0.1, average=0.9).apply(nm.grad(model(x)))

    def evaluate(x):
        with nm.scope("average"):
            return model(x)

    train_program, program = (nm.trace(f, x=nm.spec([B, M])) for f in (train, evaluate))
    for name, found in program.parameters.items():
        assert train_program.variables[name].shape == found.shape
    assert set(program.parameters) == {"average/scale", "average/w"}


@pytest.mark.parametrize("average", [1.0, -0.1, "most"])
def test_a_wrong_share_is_an_error(average):
    with pytest.raises(nm.NamedMeshError, match=r"average=.* is not a number in \[0, 1\) or None"):
        Sgd(0.1, average=average)
