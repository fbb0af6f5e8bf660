"""Weights updated in the backward loop: the same numbers, less memory, the same bytes sent."""

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.layers import Adafactor, Adam, Sgd

SMALL = nm.dims("batch=8 layer=6 model=32 hidden=64")
LARGE = nm.dims("batch=8 layer=12 model=256 hidden=512")
DATA = np.random.default_rng(0).normal(size=(2, 8, 32)).astype(np.float32)
OPTIMIZERS = {
    "adafactor": lambda **more: Adafactor(0.1, min_dim_size_to_factor=8, beta1=0.5, **more),
    "adam": lambda **more: Adam(0.01, weight_decay=0.1, **more),
    "sgd": lambda **more: Sgd(0.01, momentum=0.9, **more),
}
LAYOUTS = {
    "data parallel": ("data=8", "batch:data", None),
    "fully sharded": ("data=8", "batch:data", "model:data"),
    "two axes": ("data=4 model=2", "batch:data, hidden:model", "model:data, hidden:model"),
    "along the layers": ("data=2", "batch:data", "layer:data"),
}


def trace(optimizer, dims=SMALL, watch=False, unroll=False):
    """A stack of layers and an output layer, trained; watch returns a gradient besides."""
    B, L, M, H = dims

    def step(x, y):
        def layer(h, _):
            w, bias = nm.param("w", [M, H], nm.fan_in_init(M)), nm.param("bias", [M])
            return h + nm.einsum([nm.tanh(nm.einsum([h, w], [B, H])), w], [B, M]) + bias, None

        h, _ = nm.scan(layer, x, over=L, stack=True, remat="full", unroll=unroll)
        loss = nm.mean(nm.square(h * nm.param("out", [M], nm.constant_init(1.0)) - y))
        grads = nm.grad(loss)
        optimizer.apply(grads)
        return loss, nm.mean(nm.square(grads["w"])) if watch else loss

    return nm.trace(step, nm.spec([B, M]), nm.spec([B, M]))


def run_plainly(program, steps):
    """The first state, and the state and results after some steps, compiled for one device.

    Compiled too, since six layers grow the difference of two implementations of tanh.
    """
    first = {key: np.asarray(value) for key, value in program.initial_state(0).items()}
    step = nm.Step(nm.plan(program, nm.Mesh(data=1), ""))
    state, results = step(step.place(first), *DATA)
    for _ in range(steps - 1):
        state, results = step(state, *DATA)
    return first, {key: np.asarray(value) for key, value in state.items()}, results


def find_stacked_gradients(program):
    """The labels of gradients that a loop hands on for all of its layers."""
    loops = [op for op in program.ops if op.loop is not None]
    histories = [tensor for loop in loops for tensor in loop.histories]
    return sorted(tensor.label for tensor in histories if tensor.label in ("d_w", "d_bias"))


@pytest.mark.parametrize("label", LAYOUTS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_three_steps_are_those_of_updates_after_the_loop(name, label):
    mesh, layout, params = LAYOUTS[label]
    plain, sunk = (trace(OPTIMIZERS[name](layer_by_layer=on)) for on in (False, True))
    assert find_stacked_gradients(plain) == ["d_bias", "d_w"]
    assert find_stacked_gradients(sunk) == []
    first, wanted, (loss, _) = run_plainly(plain, 3)
    step = nm.Step(nm.plan(sunk, nm.Mesh.parse(mesh), layout, params), strict=True)
    assert step.audit.exact, str(step.audit)
    state = step.place(first)
    for _ in range(3):
        state, (found_loss, _) = step(state, *DATA)
    np.testing.assert_allclose(found_loss, loss, rtol=1e-5)
    for key, value in wanted.items():
        np.testing.assert_allclose(state[key], value, rtol=1e-5, atol=1e-5, err_msg=key)


def test_evaluation_op_by_op_is_the_same():
    plain, sunk = (trace(Adam(0.01, layer_by_layer=on)) for on in (False, True))
    (_, wanted, _), (_, found, _) = run_plainly(plain, 2), run_plainly(sunk, 2)
    for key, value in wanted.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-6, atol=1e-7, err_msg=key)


def test_neither_gradients_nor_second_copies_of_weights_take_memory():
    _, L, M, H = LARGE
    memory = {}
    for on in (False, True):
        program = trace(Adafactor(layer_by_layer=on), LARGE)
        step = nm.Step(nm.plan(program, nm.Mesh(data=2), "batch:data"), strict=True)
        memory[on] = step.report.temporary_bytes
    weights = 4 * L.size * M.size * H.size
    assert memory[False] > weights, "the gradients of all layers"
    assert memory[True] < 0.5 * weights


def test_a_gradient_that_is_read_elsewhere_stays_beside_the_updates_in_the_loop():
    plain, sunk = (trace(Sgd(0.1, layer_by_layer=on), watch=True) for on in (False, True))
    assert find_stacked_gradients(sunk) == ["d_w"]
    first, wanted, (_, mean) = run_plainly(plain, 1)
    step = nm.Step(nm.plan(sunk, nm.Mesh(data=4), "batch:data"), strict=True)
    state, (_, found) = step(step.place(first), *DATA)
    np.testing.assert_allclose(found, mean, rtol=1e-5)
    np.testing.assert_allclose(state["w"], wanted["w"], rtol=1e-5, atol=1e-6)


def test_layers_that_are_written_out_are_updated_all_the_same():
    plain, sunk = (trace(Sgd(0.1, layer_by_layer=on), unroll=True) for on in (False, True))
    assert [op.kind for op in sunk.ops] == [op.kind for op in plain.ops]


def test_clipping_by_the_norm_of_all_gradients_is_refused():
    with pytest.raises(nm.NamedMeshError, match="no norm is known before all gradients"):
        Adafactor(layer_by_layer=True, clip_norm=1.0)
    with pytest.raises(nm.NamedMeshError, match="layer_by_layer='yes' is not True or False"):
        Adam(0.1, layer_by_layer="yes")  # pyright: ignore[reportArgumentType]
