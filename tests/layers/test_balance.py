"""Balance by a bias: it moves choices and not gates, and its gradient evens out the load."""

import numpy as np

import namedmesh as nm
from namedmesh.layers import top_k_gating

G, S, E, C = nm.dims("group=2 seq=64 expert=4 capacity=64")


def route(logits, bias):
    return top_k_gating(logits, S, E, C, k=2, second="all", bias=bias)


def crowded_logits() -> np.ndarray:
    """Most tokens like the first expert best."""
    logits = np.random.default_rng(0).normal(size=(2, 64, 4)).astype(np.float32)
    logits[..., 0] += 2.0
    return logits


def test_a_bias_changes_who_is_chosen_and_not_with_what_weight():
    logits, bias = crowded_logits(), np.array([-0.5, 0.2, 0.0, 0.1], np.float32)
    program = nm.trace(
        lambda logits, bias: (route(logits, bias).expert, route(logits, bias).weight),
        logits=nm.spec([G, S, E]),
        bias=nm.spec([E]),
    )
    expert, weight = map(np.asarray, program.evaluate({}, logits=logits, bias=bias)[1])
    gates = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    wanted = np.argsort(-(gates + bias), -1, kind="stable")[..., :2]
    np.testing.assert_array_equal(expert, wanted)
    chosen = np.take_along_axis(gates, wanted, -1)
    np.testing.assert_allclose(weight, chosen / chosen.sum(-1, keepdims=True), rtol=1e-5)


def test_its_gradient_is_the_sign_of_the_excess_and_reaches_nothing_else():
    def step(logits):
        bias, scale = nm.param("bias", [E]), nm.param("scale", [E], nm.constant_init(1.0))
        routing = route(logits * scale, bias)
        plain = top_k_gating(logits * scale, S, E, C, k=2, second="all")
        grads = nm.grad(routing.aux_loss)
        load = nm.mean(routing.load, over=G)
        return routing.aux_loss, plain.aux_loss, grads["bias"], grads["scale"], load

    program = nm.trace(step, logits=nm.spec([G, S, E]))
    state = program.initial_state(0)
    aux, plain, bias, scale, load = program.evaluate(state, logits=crowded_logits())[1]
    assert float(aux) == float(plain)
    load = np.asarray(load)
    np.testing.assert_array_equal(bias, np.sign(load - load.mean()))
    np.testing.assert_array_equal(scale, np.zeros(4))


def test_steps_along_it_even_out_the_load():
    def step(logits):
        bias = nm.param("bias", [E])
        routing = route(logits, bias)
        nm.assign(bias, bias - nm.grad(routing.aux_loss)["bias"] * 0.01)
        return nm.mean(routing.load, over=G)

    program = nm.trace(step, logits=nm.spec([G, S, E]))
    state, loads = program.initial_state(0), []
    for _ in range(60):
        updates, load = program.evaluate(state, logits=crowded_logits())
        state = {**state, **updates}
        loads.append(np.asarray(load).max() / np.asarray(load).mean())
    assert loads[0] > 1.5 and loads[-1] < 1.15
