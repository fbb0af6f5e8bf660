"""Optimizers under layouts: the same training, slots beside parameters, no needless traffic."""

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.layers import Adafactor, Adam, Sgd


def layers_and_experts(optimizer):
    """A stack of dense layers, then experts, trained."""
    B, L, E, M, H = nm.dims("batch=8 layer=2 expert=4 model=16 hidden=32")

    def step(x, y):
        def layer(h, _):
            w, bias = nm.param("w", [M, H], nm.fan_in_init(M)), nm.param("bias", [M])
            return h + nm.einsum([nm.tanh(nm.einsum([h, w], [B, H])), w], [B, M]) + bias, None

        h, _ = nm.scan(layer, x, over=L, stack=True)
        expert = nm.param("expert", [E, M, H], nm.fan_in_init(M))
        output = nm.einsum([nm.tanh(nm.einsum([h, expert], [B, E, H])), expert], [B, M])
        loss = nm.mean(nm.square(output - y))
        return loss, optimizer(E).apply(nm.grad(loss))

    return nm.trace(step, nm.spec([B, M]), nm.spec([B, M]))


LAYOUTS = {
    "data parallel": ("data=8", "batch:data", None),
    "fully sharded": ("data=8", "batch:data", "model:data"),
    "three axes": (
        "data=2 model=2 expert=2",
        "batch:data, hidden:model, expert:expert",
        "model:data, hidden:model, expert:expert",
    ),
}
OPTIMIZERS = {
    "adafactor": lambda E: Adafactor(
        unfactored=[E], min_dim_size_to_factor=8, beta1=0.5, learning_rate=0.1, clip_norm=1.0
    ),
    "adam": lambda E: Adam(learning_rate=0.01, weight_decay=0.1),
    "sgd": lambda E: Sgd(learning_rate=0.1, momentum=0.9),
}
DATA = np.random.default_rng(0).normal(size=(2, 8, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def reference():
    program = layers_and_experts(OPTIMIZERS["adafactor"])
    state = first = {name: np.asarray(value) for name, value in program.initial_state(0).items()}
    for _ in range(3):
        updates, results = program.evaluate(state, x=DATA[0], y=DATA[1])
        state = state | {name: np.asarray(value) for name, value in updates.items()}
    return program, first, state, results


@pytest.mark.parametrize("label", LAYOUTS)
def test_training_is_the_same_under_every_layout(label, reference):
    program, first, wanted, (loss, metrics) = reference
    mesh, layout, params = LAYOUTS[label]
    step = nm.compile(program, mesh=nm.Mesh.parse(mesh), layout=layout, params=params, strict=True)
    assert step.audit.exact, str(step.audit)
    state = step.place(first)
    for _ in range(3):
        state, (got_loss, got_metrics) = step(state, *DATA)
    for name, value in wanted.items():
        np.testing.assert_allclose(state[name], value, rtol=1e-5, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(got_loss, loss, rtol=1e-5)
    np.testing.assert_allclose(got_metrics["grad_norm"], metrics["grad_norm"], rtol=1e-5)


@pytest.mark.parametrize("label", LAYOUTS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_slots_rest_where_their_parameter_rests(label, optimizer):
    program = layers_and_experts(OPTIMIZERS[optimizer])
    mesh, layout, params = LAYOUTS[label]
    plan = nm.plan(program, nm.Mesh.parse(mesh), layout, params)
    for name, slot in program.variables.items():
        if not slot.trainable and slot.shape.dims:
            owner = program.variables[name.split("/")[1]]
            for dim in slot.shape.names:
                assert plan.shardings[slot.tensor].axes(dim) == plan.shardings[owner.tensor].axes(
                    dim
                ), name
    if optimizer != "adafactor" or params is None:
        assert plan.of_phase("update") == []


def test_only_means_over_split_dimensions_communicate():
    program = layers_and_experts(lambda E: Adafactor(unfactored=[E], min_dim_size_to_factor=8))
    plan = nm.plan(program, nm.Mesh(data=8), "batch:data", "model:data")
    factored = ["column_mean", "row_mean_mean", "update_square", "parameter_square"]
    means = {"w": factored, "expert": factored, "bias": ["update_square", "parameter_square"]}
    assert {one.kind for one in plan.of_phase("update")} == {"AllReduce"}
    assert sorted(one.tensor for one in plan.of_phase("update")) == sorted(
        f"adafactor/{name}/{mean}" for name, made in means.items() for mean in made
    )
