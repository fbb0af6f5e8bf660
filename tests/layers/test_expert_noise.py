"""What training leaves out of mixtures: outputs of experts, and parts of their hidden layers."""

import numpy as np

import namedmesh as nm
from namedmesh.layers import LayerStack, moe, top_k_gating
from tests.layers.small_model import SMALL, model_of


def test_masking_leaves_out_whole_experts_outputs():
    """With one expert a token, its output is either nothing or scaled up."""
    model = model_of(SMALL.but(k=1, dropout=0.0, capacity_factor=4.0, expert_masking=0.25), 16, 32)
    stack = LayerStack("encoder", model.S, lambda h, context: (h, None))

    def mix(x, key):
        with nm.scope("x"):
            return model.mix_experts(x, stack, key)[0]

    def both(x):
        return mix(x, nm.random.key(5)), mix(x, None)

    program = nm.trace(both, x=nm.spec([model.G, model.S, model.M]))
    x = np.random.default_rng(0).standard_normal((16, 32, model.M.size)).astype("float32")
    some, every = map(np.asarray, program.evaluate(program.initial_state(0), x=x)[1])
    alive = (every != 0).any(-1)  # relu leaves nothing of some
    some, every = some[alive], every[alive]
    gone = (some == 0).all(-1)
    assert 0.2 < gone.mean() < 0.3
    np.testing.assert_allclose(some[~gone], every[~gone] / 0.75, rtol=1e-5)


def test_dropout_of_experts_is_of_their_hidden_layers():
    """One expert with all of the tokens: the same as a network with dropout, by numpy."""
    rate, model = 0.4, model_of(SMALL.but(experts=4, k=1, capacity_factor=4.0), 2, 8)
    G, S, E, M, H = model.G, model.S, model.E, model.M, model.H
    C = nm.Dimension("capacity", 8)

    def layer(x):
        gate = lambda logits: top_k_gating(logits, S, E, C, k=1)
        key = nm.random.key(3)
        y, routing = moe(x, gate, (G, S, E, C, M, H), rate=rate, dropout_key=key)
        kept = nm.random.bernoulli(key, [E, G, C, H], 1.0 - rate)
        return y, routing.expert, routing.place, routing.weight, nm.cast(kept, "float32")

    program = nm.trace(layer, x=nm.spec([G, S, M]))
    x = np.random.default_rng(0).standard_normal((2, 8, M.size)).astype("float32")
    state = program.initial_state(0)
    y, expert, place, weight, kept = map(np.asarray, program.evaluate(state, x=x)[1])
    wi, wo = np.asarray(state["wi"]), np.asarray(state["wo"])
    for g, s in np.ndindex(2, 8):
        e, c = expert[g, s, 0], place[g, s, 0]
        hidden = np.maximum(x[g, s] @ wi[e], 0) * kept[e, g, c] / (1 - rate)
        np.testing.assert_allclose(y[g, s], weight[g, s, 0] * (hidden @ wo[e]), atol=1e-5)
