"""Layers that multiply in eight bits against the same rounded in numpy, and how they train."""

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.layers import Adam, Float8, Weights, feed_forward, moe, top_k_gating, use_weights
from tests.ops.test_eight_bits import MOST, power_of_two, rounded

B, M, H = nm.dims("batch=16 model=16 hidden=32")
E4, E5 = MOST
RNG = np.random.default_rng(0)
X = RNG.normal(size=[16, 16]).astype(np.float32)
W = {
    "wi": RNG.normal(size=[16, 32]).astype(np.float32) / 4,
    "wo": RNG.normal(size=[32, 16]).astype(np.float32) / 5,
}


def network(x):
    return feed_forward(x, M, H)


def build(weights, function=network, **options):
    with use_weights(weights):
        return nm.compile(function, x=nm.spec([B, M]), **options)


def test_products_named_are_in_eight_bits_and_others_are_not():
    for names in (None, {"wi"}, ["wo"], set()):
        step = build(Float8(names=names), mesh=nm.Mesh(a=1))
        _, y = step(step.place(W), x=X)
        h, wi = (rounded(X), rounded(W["wi"])) if names is None or "wi" in names else (X, W["wi"])
        h = np.maximum(h @ wi, 0.0)
        h, wo = (rounded(h), rounded(W["wo"])) if names is None or "wo" in names else (h, W["wo"])
        np.testing.assert_allclose(y, h @ wo, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("names", "absent", "fix"),
    [
        ({"wi", "woo"}, "woo", "did you mean 'wo'?"),
        ({"x", "y", "wi"}, "x and y", "use one of: wi, wo"),
    ],
)
def test_names_that_no_weight_has_are_a_warning(names, absent, fix):
    with pytest.warns(UserWarning) as warned:
        build(Float8(names=names), mesh=nm.Mesh(a=1))
    text = f"Float8: names= has {absent}, and no weight of that name is multiplied here: {fix}"
    assert [str(one.message) for one in warned] == [text]


@pytest.mark.filterwarnings("error")
def test_names_that_weights_have_are_no_warning_nor_where_nothing_is_multiplied():
    weights = Float8(names={"wi"})
    build(weights, mesh=nm.Mesh(a=1))
    with use_weights(weights):
        pass


def with_delayed(x, largest):
    """Round with the scale of a magnitude, which x may exceed; the largest of x after it."""
    scale = power_of_two(largest / MOST[E4]) if largest else power_of_two(np.abs(x).max() / 448.0)
    values = np.clip(x / scale, -448.0, 448.0).astype(E4).astype(np.float32)
    return values * np.float32(scale), np.abs(x).max()


@pytest.mark.parametrize(("mesh", "layout"), [("a=1", ""), ("a=4, b=2", "batch:a, hidden:b")])
def test_delayed_scales_are_those_of_the_last_steps(mesh, layout):
    step = build(Float8(history=2), mesh=nm.Mesh.parse(mesh), layout=layout, strict=True)
    state, known = step.place({**step.plan.program.initial_state(), **W}), {}
    for number in range(4):
        x = X * np.float32([1.0, 5.0, 0.1, 3.0][number])
        state, y = step(state, x=x)
        h = x
        for name in ("wi", "wo"):
            pair = []
            for value, role in ((h, f"{name}_input"), (W[name], name)):
                past = known.setdefault(role, [])
                value, now = with_delayed(value, max(past[-2:], default=0.0))
                past.append(now)
                pair.append(value)
            h = pair[0] @ pair[1]
            h = np.maximum(h, 0.0) if name == "wi" else h
        np.testing.assert_allclose(y, h, rtol=1e-4, atol=1e-4)
    for role, past in known.items():
        np.testing.assert_allclose(state[f"{role}_largest"], past[:-3:-1], rtol=1e-5)


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_delayed_scales_forget_what_is_not_finite(odd):
    step = build(Float8(history=2), mesh=nm.Mesh(a=1))
    state = step.place({**step.plan.program.initial_state(), **W})
    state, right = step(state, x=X)
    state, spoilt = step(state, x=np.full_like(X, odd))
    assert not np.isfinite(spoilt).any()
    for _ in range(2):
        state, again = step(state, x=X)
        np.testing.assert_array_equal(again, right)


def test_delayed_scales_in_a_stack_of_layers():
    L = nm.Dimension("layer", 3)

    def step(x):
        layer = lambda x, _: (x + feed_forward(x, M, H), None)
        y, _ = nm.scan(layer, x, nm.range(L), over=L, stack=True, remat="full")
        loss = nm.mean(y**2)
        Adam(0.01).apply(nm.grad(loss))
        return loss

    compiled = build(Float8(history=4), step, mesh=nm.Mesh(a=2), layout="batch:a", strict=True)
    state = compiled.init(0)
    for _ in range(3):
        state, loss = compiled(state, x=X)
    history = np.asarray(state["wi_input_largest"])
    assert history.shape == (3, 4) and np.all(history[:, :3] > 0) and not history[:, 3].any()
    assert np.isfinite(loss)


def test_delayed_scales_in_another_loop_are_refused():
    L = nm.Dimension("layer", 3)

    def step(x):
        return nm.scan(lambda x, _: (network(x), None), x, nm.range(L), over=L)[0]

    with pytest.raises(
        nm.NamedMeshError, match=r"Float8: history=4 cannot note.*\n.*inside a loop"
    ):
        build(Float8(history=4), step, mesh=nm.Mesh(a=1))


def test_delayed_scales_in_a_pipeline_are_refused():
    L, G, N = nm.dims("layer=4 stage=2 micro=2")

    def step(x):
        rows = {"x": nm.reshape(x, B, [B.resized(B.size // 2), N])}
        options = {"stages": G, "batches": N, "layers": L, "first": lambda row: row["x"]}
        layer = lambda x, _: network(x)
        return nm.pipeline(layer, rows, loss=lambda y, _: (nm.mean(y), y), **options)[0]

    with pytest.raises(nm.NamedMeshError, match=r"magnitudes of wi_input\n.*is a slice of a stack"):
        build(Float8(history=4), step, mesh=nm.Mesh(a=1))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"names": "wi"}, "is one text"),
        ({"block": -1}, "is negative"),
        ({"block": 4, "history": 4}, "are together"),
        (
            {"gradients": "float8_e4m3"},
            "gradients='float8_e4m3' is not a floating point dtype of 8",
        ),
    ],
)
def test_mistakes_are_told(options, text):
    with pytest.raises(nm.NamedMeshError, match=text):
        Float8(**options)


def test_rows_of_experts_are_sent_in_eight_bits():
    G, S, E, C = nm.dims("group=8 seq=8 expert=8 capacity=4")

    def layer(x):
        gate = lambda logits: top_k_gating(logits, S, E, C, second="all")
        y = moe(x, gate, (G, S, E, C, M, H))[0]
        return y, nm.grad(nm.sum(y * y), [x])[0]

    x = RNG.normal(size=[8, 8, 16]).astype(np.float32)
    found = {}
    for name, weights in {"plain": Weights(), "sent": Float8(names=(), send=True)}.items():
        with use_weights(weights):
            step = nm.compile(
                layer, x=nm.spec([G, S, M]), mesh=nm.Mesh(a=4), layout="group:a, expert:a",
                strict=True,
            )  # fmt: skip
        moves = [one for one in step.plan.collectives if one.kind == "AllToAll"]
        found[name] = (sum(one.bytes for one in moves), step(step.init(0), x=x)[1])
        if name == "sent":
            assert [one.dtype for one in moves] == [E4, E4, E5, E5]
    assert found["sent"][0] * 4 == found["plain"][0]
    for one, other in zip(found["sent"][1], found["plain"][1], strict=True):
        error = np.linalg.norm(np.asarray(one) - np.asarray(other)) / np.linalg.norm(other)
        assert 1e-4 < error < 2.0**-3  # what e5m2 rounds away at most


def losses(weights, steps=60):
    """Teach a network what another one says, and return the losses."""

    def step(x):
        y = nm.stop_gradient(nm.sin(nm.roll(x, M, 3) * 2.0))
        loss = nm.mean((network(x) - y) ** 2)
        Adam(0.01).apply(nm.grad(loss))
        return loss

    compiled = build(weights, step, mesh=nm.Mesh(a=1))
    state, curve = compiled.init(0), []
    data = np.random.default_rng(1)
    for _ in range(steps):
        state, loss = compiled(state, x=data.normal(size=[16, 16]).astype(np.float32))
        curve.append(float(loss))
    return np.array(curve)


def test_training_goes_on_as_in_float32():
    plain = losses(Weights())
    assert plain[-10:].mean() < 0.7 * plain[:10].mean()
    kinds = (Float8(), Float8(history=8), Float8(block=8), Float8(gradients=E4))
    for one in kinds:
        found = losses(one)
        assert np.any(found != plain)
        np.testing.assert_allclose(found[-10:].mean(), plain[-10:].mean(), rtol=0.03)
