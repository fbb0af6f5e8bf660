"""Parameters that are not trained, of any dtype, and state that is placed like parameters."""

import ml_dtypes
import numpy as np
import pytest

import namedmesh as nm
from namedmesh.layers import Adafactor, Adam, Sgd
from namedmesh.training import Checkpoints

B, M, H, L = nm.dims("batch=8 model=16 hidden=32 layer=3")
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(8, 16)).astype(np.float32)
REFERENCE = RANDOM.normal(size=(16, 32)).astype(np.float32)
QUANTIZED = RANDOM.integers(-128, 128, size=(16, 32)).astype(np.int8)
SCALE = RANDOM.uniform(0.01, 0.02, size=32).astype(np.float32)
OPTIMIZERS = {
    "sgd": Sgd(0.1, momentum=0.9),
    "adam": Adam(0.1, weight_decay=0.5, average=0.9),
    "adafactor": Adafactor(0.1, min_dim_size_to_factor=4, beta1=0.5),
    "clipped": Adam(0.1, weight_decay=0.5, clip_norm=0.1),
}


def distance(x, reference, quantized, scale):
    """The distance of a trained layer from a frozen one, plus that of a quantized layer."""
    w = nm.param("w", [M, H])
    y, target = (nm.einsum([x, one], [B, H]) for one in (w, reference))
    dequantized = nm.cast(quantized, "float32") * scale
    other = nm.einsum([x, dequantized], [B, H])
    return nm.mean(nm.square(y - target)) + nm.mean(nm.square(y - other))


def frozen_step(optimizer):
    def step(x):
        reference = nm.param("reference", [M, H], trainable=False)
        quantized = nm.param("quantized", [M, H], dtype="int8", trainable=False)
        scale = nm.param("scale", [H], nm.constant_init(1.0), trainable=False)
        loss = distance(x, reference, quantized, scale)
        grads = nm.grad(loss)
        assert list(grads) == ["w"] == list(nm.parameters())
        optimizer.apply(grads)
        return loss

    return step


def given_step(optimizer):
    """The same with the frozen weights as inputs."""

    def step(x, reference, quantized, scale):
        loss = distance(x, reference, quantized, scale)
        optimizer.apply(nm.grad(loss))
        return loss

    return step


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_frozen_weights_take_no_part_in_training(name):
    frozen = nm.trace(frozen_step(OPTIMIZERS[name]), nm.spec([B, M]))
    specs = nm.spec([B, M]), nm.spec([M, H]), nm.spec([M, H], "int8"), nm.spec([H])
    given = nm.trace(given_step(OPTIMIZERS[name]), *specs)
    own = {"reference", "quantized", "scale"}
    assert {*frozen.variables} == {*given.variables} | own
    assert not own & {*frozen.updates} and [*frozen.parameters] == ["w"]
    weights = {"reference": REFERENCE, "quantized": QUANTIZED, "scale": SCALE}
    one, other = given.initial_state(), frozen.initial_state() | weights
    for _ in range(2):
        one, expected = given.evaluate(one, x=X, **weights)
        other, loss = frozen.evaluate(other, x=X)
        np.testing.assert_array_equal(loss, expected)
    for key in one:
        np.testing.assert_array_equal(other[key], one[key])


@pytest.mark.parametrize(
    "layout, params",
    [("", None), ("batch:a+b", None), ("batch:a", "model:a, hidden:b"), ("batch:b", "hidden:a+b")],
)
def test_they_are_placed_by_params_like_the_others(layout, params):
    step = nm.compile(
        frozen_step(Adam(0.1, weight_decay=0.5)), nm.spec([B, M]),
        mesh=nm.Mesh(a=2, b=4), layout=layout, params=params, strict=True,
    )  # fmt: skip
    program, plan = step.plan.program, step.plan
    weights = {"reference": REFERENCE, "quantized": QUANTIZED, "scale": SCALE}
    shards = {name: plan.shardings[program.variables[name].tensor] for name in weights}
    trained = plan.shardings[program.variables["w"].tensor]
    assert shards["reference"] == shards["quantized"] == trained
    assert shards["scale"] == trained.only(["hidden"])
    start = program.initial_state() | weights
    state = step.place({name: np.asarray(value) for name, value in start.items()})
    whole = start
    for _ in range(2):
        state, loss = step(state, X)
        whole, expected = program.evaluate(whole, x=X)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for name, value in weights.items():
        np.testing.assert_array_equal(state.fetch(name), value)
    np.testing.assert_allclose(state.fetch("w"), whole["w"], rtol=1e-3, atol=1e-5)


def test_they_are_gathered_in_the_fewest_bytes():
    plan = nm.plan(
        nm.trace(frozen_step(Sgd(0.1)), nm.spec([B, M])), nm.Mesh(a=8), "batch:a", "hidden:a"
    )
    gathers = {one.tensor: one.total_bytes for one in plan.collectives if one.kind == "AllGather"}
    assert gathers == {"w": 2048, "reference": 2048, "quantized": 512, "scale": 128}


def test_in_a_loop_each_iteration_has_its_own():
    def step(x):
        def layer(h, _):
            base = nm.param("base", [M], nm.constant_init(1.0), trainable=False)
            shift = nm.param("shift", [M], dtype="int8", trainable=False)
            return h * base + nm.cast(shift, "float32") + nm.param("b", [M]), None

        h, _ = nm.scan(layer, x, over=L, stack=True)
        loss = nm.sum(h)
        grads = nm.grad(loss)
        Sgd(1.0).apply(grads)
        return loss, grads

    program = nm.trace(step, nm.spec([M]))
    base, shift = RANDOM.normal(size=(3, 16)).astype(np.float32), QUANTIZED[:3, :16]
    state = program.initial_state() | {"base": base, "shift": shift}
    new, (loss, grads) = program.evaluate(state, x=X[0])
    h = X[0].astype(np.float64)
    for i in range(3):
        h = h * base[i] + shift[i]
    np.testing.assert_allclose(loss, h.sum(), rtol=1e-4)
    assert [*grads] == ["b"]
    np.testing.assert_allclose(grads["b"][0], base[1] * base[2], rtol=1e-5)
    np.testing.assert_array_equal(new["base"], base)


def test_both_kinds_can_be_listed():
    def listed(trainable):
        nm.param("w", [M])
        nm.param("ids", [M], dtype="uint32", trainable=False)
        nm.state("count", [], dtype="int32")
        return {name: x.dtype for name, x in nm.parameters(trainable).items()}

    found = []
    nm.trace(lambda: found.extend(listed(one) for one in (True, False, None)))
    assert found == [{"w": "float32"}, {"ids": "uint32"}, {"w": "float32", "ids": "uint32"}]


def test_they_can_be_asked_for_and_assigned():
    """A target network: no gradient by default, an average of the trained one, its own if asked."""

    def step(x):
        w, slow = nm.param("w", [M]), nm.param("slow", [M], trainable=False)
        loss = nm.sum(nm.square(x * w - x * slow))
        own = nm.grad(loss, slow)
        nm.assign(slow, slow * 0.5 + w * 0.5)
        return own

    program = nm.trace(step, nm.spec([M]))
    state, own = program.evaluate({"w": np.ones(16), "slow": np.zeros(16)}, x=X[0])
    np.testing.assert_allclose(own, -2 * X[0] ** 2, rtol=1e-5)
    np.testing.assert_array_equal(state["slow"], np.full(16, 0.5))


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int32", "uint32", "bool", "bfloat16", "float16"]
)
def test_they_are_saved_and_restored(tmp_path, dtype):
    def use(x):
        frozen = nm.param("frozen", [M], dtype=dtype, trainable=False)
        nm.assign(nm.state("count", []), 1.0)
        return x * nm.param("w", [M]) * nm.cast(frozen, "float32")

    step = nm.compile(use, nm.spec([M]), mesh=nm.Mesh(a=2), layout="model:a")
    frozen = abs(QUANTIZED[0, :16] // 2).astype(getattr(ml_dtypes, dtype, dtype))
    state = step.place({"w": X[0], "frozen": frozen, "count": 0.0})
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, state)
        restored = checkpoints.restore(step).state
    nm.save_weights(tmp_path / "w.safetensors", state)
    loaded = nm.load_weights(tmp_path / "w.safetensors", step, missing="init")
    for one in (restored, loaded):
        assert one.fetch("frozen").dtype == frozen.dtype
        np.testing.assert_array_equal(one.fetch("frozen"), frozen)
    specs = {name: (spec.trainable, spec.frozen) for name, spec in step.variables.items()}
    assert specs == {"frozen": (False, True), "count": (False, False), "w": (True, False)}
    again = nm.Artifact.from_bytes(step.artifact.to_bytes())
    assert again.variables == step.artifact.variables


def test_state_can_be_placed_at_rest():
    def step(x):
        table = nm.state("table", [M, H], at_rest=True)
        cache = nm.state("cache", [M, H])
        y = nm.einsum([x, table + cache], [B, H])
        nm.assign(table, table + 1.0)
        nm.assign(cache, cache + 1.0)
        return nm.sum(y * nm.param("w", [H]))

    program = nm.trace(step, nm.spec([B, M]))
    assert program.resting_dims == {"hidden": [32], "model": [16]}
    for params, shards in {"hidden:a": 256, None: 2048, "hidden:a, !table": 2048}.items():
        plan = nm.plan(program, nm.Mesh(a=8), "batch:a", params)
        sizes = {key: plan.bytes_per_device(one.tensor) for key, one in program.variables.items()}
        assert (sizes["table"], sizes["cache"]) == (shards, 2048)
    compiled = nm.compile(
        program, mesh=nm.Mesh(a=8), layout="batch:a", params="hidden:a", strict=True
    )
    state, whole = compiled.init(0), program.initial_state()
    state = compiled.place({**whole, "w": SCALE})
    whole |= {"w": SCALE}
    for _ in range(2):
        state, total = compiled(state, X)
        whole, expected = program.evaluate(whole, x=X)
        np.testing.assert_allclose(total, expected, rtol=1e-5)
    assert state["table"].addressable_shards[0].data.shape == (16, 4)
