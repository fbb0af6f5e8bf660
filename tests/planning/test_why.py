"""Why a plan has a collective, by the rule that made it."""

import pytest

import namedmesh as nm

B, M, H, V = nm.dims("batch=8 model=4 hidden=8 vocab=8")
MESH = nm.Mesh(data=2, model=2)


def plan(function, *specs, layout="batch:data, hidden:model", **options):
    return nm.plan(nm.trace(function, *specs), MESH, layout, **options)


def test_sums_gathers_and_moves():
    def step(x, w):
        hidden = nm.einsum([x, w], [B, H])
        back = nm.einsum([hidden, w], [B, M])
        order = nm.cumprod(nm.sort(hidden, H), H)
        return back, order, nm.replicate(back, B)

    planned = plan(step, nm.spec([B, M]), nm.spec([M, H]))
    text = planned.why("AllReduce")
    assert "einsum sums over hidden, which is sharded over model" in text
    assert "without 'hidden:model' in the layout" in text
    assert "operand hidden: [batch=8/data, hidden=8/model]" in text
    assert "replicate asks for the result elsewhere" in planned.why("AllGather of back")
    assert "batch is sharded over data" in planned.why("x")
    assert "model is whole: the layout maps it to no axis" in planned.why("x")
    with pytest.raises(nm.NamedMeshError, match="the plan has no AllToAll of x"):
        planned.why("AllToAll of x")


def test_weights_at_rest():
    def train(x):
        w = nm.param("w", [M, H])
        loss = nm.sum(nm.square(nm.einsum([x, w], [B, H])))
        nm.assign(w, w - nm.grad(loss, w))

    planned = plan(train, nm.spec([B, M]), layout="batch:data", params="model:data")
    assert "AllGather of w over data" in planned.why("AllGather of w")
    assert "change: params= shards it at rest" in planned.why("AllGather of w")
