"""The mixture that drops no token, against a literal loop over tokens and against `moe`."""

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.layers import dropless_moe, moe, top_k_gating
from tests.checks import uniform

G, S, E, M, H, D, C = nm.dims("group=4 seq=12 expert=8 model=6 hidden=10 shard=4 capacity=12")
SKEW = np.linspace(-2, 2, 8, dtype=np.float32)  # most tokens choose the last experts


def gate(logits):
    skewed = logits + nm.constant(SKEW, [E])
    return top_k_gating(skewed, S, E, C, second="all")


def layer(x, **options):
    y, routing = dropless_moe(x, gate, (G, S, E, M, H), gated=True, activation="swish", **options)
    return y, routing.dropped


def loop(x, weights):
    """Every token through its two experts, one after the other."""
    y = np.zeros_like(x)
    for g, s in np.ndindex(x.shape[:2]):
        logits = x[g, s] @ weights["wg"] + SKEW
        gates = np.exp(logits - logits.max())
        gates /= gates.sum()
        chosen = np.argsort(-gates)[:2]
        for e in chosen:
            a = x[g, s] @ weights["wi"][e]
            h = a / (1 + np.exp(-a)) * (x[g, s] @ weights["wi_gate"][e])
            y[g, s] += gates[e] / gates[chosen].sum() * (h @ weights["wo"][e])
    return y


X = uniform(0, 4, 12, 6)


@pytest.mark.parametrize("rows", [None, 1, 5])
@pytest.mark.parametrize("shards", [None, D])
def test_every_token_is_served_as_in_a_loop(rows, shards):
    program = nm.trace(lambda x: layer(x, rows=rows, shards=shards), nm.spec([G, S, M]))
    state = program.initial_state(0)
    _, (y, dropped) = program.evaluate(state, x=X)
    weights = {name: np.asarray(value, np.float64) for name, value in state.items()}
    np.testing.assert_allclose(y, loop(X.astype(np.float64), weights), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dropped, 0, atol=1e-6)


def train(**options):
    def step(x):
        y, _ = layer(x, **options)
        loss = nm.sum(nm.square(y))
        weights = {"wi": nm.param("wi", [E, M, H]), "wo": nm.param("wo", [E, H, M]), "x": x}
        return loss, nm.grad(loss, weights)

    return step


@pytest.mark.parametrize(
    ("layout", "mesh", "options", "kinds"),
    [
        ("group:a", nm.Mesh(a=4), {}, {"AllReduce"}),
        ("group:a, expert:a", nm.Mesh(a=4), {}, {"AllReduce", "AllGather", "ReduceScatter"}),
        (
            "group:a, expert:a, shard:a",
            nm.Mesh(a=4),
            {"shards": D},
            {"AllReduce", "AllGather", "AllToAll"},
        ),
        (
            "group:a, expert:a, shard:a, hidden:b",
            nm.Mesh(a=4, b=2),
            {"shards": D},
            {"AllReduce", "AllGather", "AllToAll"},
        ),
    ],
)
def test_layouts_make_the_same(layout, mesh, options, kinds):
    program = nm.trace(train(**options), nm.spec([G, S, M]))
    step = nm.compile(program, mesh=mesh, layout=layout, strict=True)
    state = step.init(0)
    values = {name: np.asarray(state[name]) for name in program.parameters}
    _, (loss, grads) = step(state, X)
    _, (expected, expected_grads) = program.evaluate(values, x=X)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, expected_grads[name], rtol=1e-4, atol=1e-5)
    assert {one.kind for one in step.plan.collectives} <= kinds


def test_two_all_to_alls_of_the_bound_move_rows_to_the_experts_and_back():
    def forward(x):
        return layer(x, shards=D, rows=5)[0]

    program = nm.trace(forward, nm.spec([G, S, M]))
    plan = nm.plan(program, nm.Mesh(a=4), "group:a, expert:a, shard:a")
    moved = [one.elements for one in plan.collectives if one.kind == "AllToAll"]
    within = 8 // 4
    blocks = (12 * 2 + within * 4) // 5
    assert moved.count(4 * blocks * 5 * 6) == 2


def test_a_bound_drops_what_exceeds_it_and_says_so():
    def share(x, bound):
        return dropless_moe(x, gate, (G, S, E, M, H), shards=D, rows=1, bound=bound)[1].dropped

    def named(x):
        with nm.scope("a"):
            none = share(x, None)
        with nm.scope("b"):
            return none, share(x, 1.0)

    none, some = run(named)
    np.testing.assert_allclose(none, 0, atol=1e-6)
    assert np.sum(some) > 0.1


def run(function):
    program = nm.trace(function, nm.spec([G, S, M]))
    return program.evaluate(program.initial_state(0), x=X)[1]


def test_with_room_for_all_it_equals_the_mixture_with_buffers():
    def both(x):
        y, _ = dropless_moe(x, gate, (G, S, E, M, H))
        return y

    def buffers(x):
        y, _ = moe(x, gate, (G, S, E, C, M, H))
        return y

    np.testing.assert_allclose(run(both), run(buffers), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mixture", ["moe", "dropless"])
def test_a_shared_network_serves_every_token(mixture):
    F = nm.Dimension("shared_hidden", 5)

    def routed(x, **options):
        if mixture == "moe":
            return moe(x, gate, (G, S, E, C, M, H), **options)[0]
        return dropless_moe(x, gate, (G, S, E, M, H), **options)[0]

    program = nm.trace(lambda x: routed(x, shared=F), nm.spec([G, S, M]))
    state = program.initial_state(0)
    _, found = program.evaluate(state, x=X)
    plain = nm.trace(routed, nm.spec([G, S, M]))
    _, without = plain.evaluate({name: state[name] for name in plain.parameters}, x=X)
    wi, wo = np.asarray(state["shared/wi"]), np.asarray(state["shared/wo"])
    np.testing.assert_allclose(found, without + np.maximum(X @ wi, 0) @ wo, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shards": nm.Dimension("shard", 3)}, "shard=3 does not divide expert=8"),
        ({"bound": 2.0}, "there are none"),
        ({"bound": 0.5, "shards": D}, "less than the even share"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(lambda x: layer(x, **options), nm.spec([G, S, M]))


def test_a_gate_that_may_drop_tokens_is_refused():
    def small(logits):
        return top_k_gating(logits, S, E, nm.Dimension("capacity", 3), second="all")

    with pytest.raises(nm.NamedMeshError, match=r"may drop tokens: its capacity is capacity=3"):
        nm.trace(lambda x: dropless_moe(x, small, (G, S, E, M, H)), nm.spec([G, S, M]))
