"""Muon against optax and a loop in numpy: stacks, experts, wide and tall matrices, layouts."""

from typing import Any

import jax
import numpy as np
import optax
import pytest

import namedmesh as nm
from namedmesh.layers import Muon

L, E, M, H, K = nm.dims("layer=3 expert=2 model=8 heads=4 key=3")
STACKED = {"wq": [M, H, K], "scale": [M]}
SHAPES = {"expert": [E, M, K], "table": [K, M]}
STEPS, RATE, DECAY = 3, 0.1, 0.03
LAYOUTS = {
    "one device": ("a=1", "", None, ()),
    "rows split at rest": ("a=4", "", "model:a", ("AllGather",)),
    "columns split": ("a=4", "heads:a", None, ("AllReduce",)),
}


def orthogonalize(x):
    """Newton and Schulz's iteration for one matrix."""
    if x.shape[0] > x.shape[1]:
        return orthogonalize(x.T).T
    x = x / np.linalg.norm(x)
    for _ in range(5):
        product = x @ x.T
        x = 3.4445 * x + (-4.7750 * product + 2.0315 * product @ product) @ x
    return x


def plain(value, grads, matrices):
    """Train a parameter by a loop over its matrices; the rest of its shape is each one's."""
    momentum = np.zeros_like(value)
    for grad in grads:
        momentum = 0.95 * momentum + 0.05 * grad
        ahead = (0.95 * momentum + 0.05 * grad).reshape(-1, *matrices)
        change = np.stack([orthogonalize(one) for one in ahead]).reshape(value.shape)
        change *= 0.2 * np.sqrt(max(matrices))
        value = value - RATE * (change + DECAY * value)
    return value


def train(**grads):
    """A step in which the gradient of each parameter is the input d_ and its name."""
    grads = {name.removeprefix("d_"): grad for name, grad in grads.items()}

    def layer(total, each):
        for name, dims in STACKED.items():
            weight = nm.param(name, dims, nm.normal_init(0.3))
            total = total + nm.sum(weight * each[name])
        return total, None

    stacked = {name: grads[name] for name in STACKED}
    total, _ = nm.scan(layer, nm.zeros([]), stacked, over=L, stack=True)
    for name, dims in SHAPES.items():
        total = total + nm.sum(nm.param(name, dims, nm.normal_init(0.3)) * grads[name])
    options = {"apart": [E], "others": ["tab*"], "weight_decay": DECAY}
    return Muon(RATE, rows=[M], **options).apply(nm.grad(total))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_matrices_are_those_of_a_loop_under_every_layout(layout):
    mesh, text, params, kinds = LAYOUTS[layout]
    shapes = {name: [L, *dims] for name, dims in STACKED.items()} | SHAPES
    specs = {f"d_{name}": nm.spec(dims) for name, dims in shapes.items()}
    place = {"layout": text, "params": params, "strict": True}
    step = nm.compile(train, **specs, mesh=nm.Mesh.parse(mesh), **place)
    assert all(step.plan.count(kind) for kind in kinds)
    random = np.random.default_rng(0)
    batches = [
        {name: random.normal(size=[dim.size for dim in dims]).astype(np.float32)
         for name, dims in shapes.items()}
        for _ in range(STEPS)
    ]  # fmt: skip
    state = step.init(0)
    first = {name: np.asarray(state[name]) for name in shapes}
    for batch in batches:
        state, _ = step(state, **{f"d_{name}": grad for name, grad in batch.items()})
    for name, matrices in {"wq": (8, 12), "expert": (8, 3)}.items():
        expected = plain(first[name], [batch[name] for batch in batches], matrices)
        np.testing.assert_allclose(np.asarray(state[name]), expected, atol=2e-5, err_msg=name)
    adam = optax.adamw(RATE, weight_decay=DECAY)
    for name in ("scale", "table"):
        value: Any = first[name]
        moments = adam.init(value)
        for batch in batches:
            change, moments = adam.update(batch[name], moments, value)
            value = optax.apply_updates(value, change)
        np.testing.assert_allclose(np.asarray(state[name]), value, atol=2e-5, err_msg=name)


def test_a_matrix_is_trained_as_by_optax():
    (wide,) = nm.dims("wide=10")

    def step(grad):
        loss = nm.sum(nm.param("w", [M, wide], nm.normal_init(0.3)) * grad)
        return Muon(RATE, rows=[M], nesterov=False, weight_decay=DECAY).apply(nm.grad(loss))

    compiled = nm.compile(step, nm.spec([M, wide]), mesh=nm.Mesh(a=2), layout="wide:a")
    state, random = compiled.init(0), np.random.default_rng(1)
    theirs = optax.chain(  # the root of 10 / 8 is part of theirs
        optax.contrib.scale_by_muon(nesterov=False), optax.scale(0.2 * np.sqrt(8)),
        optax.add_decayed_weights(DECAY), optax.scale(-RATE),
    )  # fmt: skip
    value: Any = {"w": np.asarray(state["w"])}
    own = theirs.init(value)
    for _ in range(STEPS):
        grad = random.normal(size=(8, 10)).astype(np.float32)
        state, _ = compiled(state, grad)
        change, own = jax.jit(theirs.update)({"w": grad}, own, value)
        value = optax.apply_updates(value, change)
    np.testing.assert_allclose(np.asarray(state["w"]), value["w"], atol=1e-4)


def test_rows_are_dimensions_of_parameters():
    def step(x):
        loss = nm.sum(nm.param("w", [M, K]) * x)
        return Muon(RATE, rows=[nm.Dimension("modle", 8)]).apply(nm.grad(loss))

    with pytest.raises(nm.NamedMeshError, match="rows='modle' is not a dimension"):
        nm.trace(step, nm.spec([M, K]))
