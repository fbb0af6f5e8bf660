"""Groups of tokens that are not rows: several rows together, or parts of a row."""

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.layers import Backbone, LayerStack, config
from tests.checks import uniform

SMALL = config("tiny").but(second="all", capacity_factor=1.0)


def make(changed, rows, length):
    """A program of one mixture, and what it is called with."""
    model = Backbone(changed, group=rows, source=length, target=length)

    def layer(x, padding):
        stack = LayerStack("encoder", model.S, lambda h, context: (h, None), padding=padding)
        y, routing = model.mix_experts(x, stack, nm.random.key(1))
        weight = nm.sum(y * nm.cos(y))
        return {"y": y, "load": routing.load, "no_room": routing.no_room, "dx": nm.grad(weight, x)}

    dims = [model.G, model.S]
    return nm.trace(layer, x=nm.spec([*dims, model.M]), padding=nm.spec(dims, "bool"))


X = uniform(1, 8, 16, 32)
PADDING = np.random.default_rng(0).uniform(size=(8, 16)) < 0.2


@pytest.mark.parametrize("tokens, rows", [(64, 2), (32, 4), (8, 16), (128, 1)])
def test_they_are_routed_as_rows_of_that_length_are(tokens, rows):
    program = make(SMALL.but(group_tokens=tokens), 8, 16)
    wanted = make(SMALL, rows, tokens)
    state = program.initial_state(0)
    _, found = program.evaluate(state, x=X, padding=PADDING)
    regrouped = {"x": X.reshape(rows, tokens, 32), "padding": PADDING.reshape(rows, tokens)}
    _, expected = wanted.evaluate(state, **regrouped)
    for name in found:
        got, want = np.asarray(found[name]), np.asarray(expected[name])
        np.testing.assert_allclose(got, want.reshape(got.shape), rtol=1e-5, atol=1e-6)
    assert float(found["no_room"].numpy()[0]) > 0


def test_larger_groups_have_room_for_more():
    share = []
    for tokens in (8, 16, 64):
        program = make(SMALL.but(group_tokens=tokens), 8, 16)
        _, found = program.evaluate(program.initial_state(0), x=X, padding=PADDING)
        share.append(float(found["no_room"].numpy().sum()))
    assert share == sorted(share, reverse=True)


def test_a_layout_of_rows_serves_groups_without_communication():
    program = make(SMALL.but(group_tokens=32), 8, 16)
    plan = nm.plan(program, nm.Mesh(all=4), "group:all, expert:all")
    step = nm.Step(plan, strict=True)
    state = program.initial_state(0)
    _, found = step(step.place(state), x=X, padding=PADDING)
    _, wanted = program.evaluate(state, x=X, padding=PADDING)
    np.testing.assert_allclose(np.asarray(found["y"]), wanted["y"], rtol=1e-4, atol=1e-5)
    before = nm.plan(make(SMALL, 8, 16), nm.Mesh(all=4), "group:all, expert:all")
    for kind in ("AllToAll", "AllGather", "AllReduce"):
        assert plan.count(kind) == before.count(kind)


def test_groups_are_whole():
    with pytest.raises(nm.NamedMeshError, match="128 tokens do not make groups of group_tokens=48"):
        make(SMALL.but(group_tokens=48), 8, 16)
