"""Layers of one scope that choose the same name for a weight."""

import pytest

import namedmesh as nm
from namedmesh.layers import Heads, dense, feed_forward, layer_norm, rms_norm, self_attention

B, S, M, H, N, K = nm.dims("batch=2 seq=4 model=6 hidden=8 heads=2 key=3")
X = nm.spec([B, S, M])


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (lambda x: dense(x, [M], [H]), "w"),
        (lambda x: layer_norm(x, M), "norm"),
        (lambda x: rms_norm(x, M), "norm"),
        (lambda x: feed_forward(x, M, H), "wi"),
        (lambda x: self_attention(x, S, Heads(M, N, K)), "wq"),
    ],
)
def test_two_layers_of_one_default_name_are_an_error(layer, name):
    with pytest.raises(nm.NamedMeshError, match=f"an earlier layer has the weight {name}"):
        nm.trace(lambda x: [layer(x), layer(x)], X)
    with pytest.raises(nm.NamedMeshError, match=f"an earlier layer has the weight block/{name}"):

        def block(x):
            with nm.scope("block"):
                return nm.cond(nm.sum(x) > 0.0, lambda: layer(x), lambda: layer(x))

        nm.trace(block, X)


def test_names_and_scopes_of_their_own_are_distinct():
    def network(x):
        x = dense(dense(x, [M], [H], name="a"), [H], [M], name="b")
        for i in range(2):
            with nm.scope(f"layer_{i}"):
                x = feed_forward(rms_norm(x, M), M, H)
        return dense(x, [M], [H])

    assert list(nm.trace(network, X).parameters) == [
        "a",
        "b",
        *(f"layer_{i}/{name}" for i in range(2) for name in ("norm_scale", "wi", "wo")),
        "w",
    ]


def test_weights_are_shared_on_purpose_by_name_and_by_scope():
    def network(x):
        x = dense(x, [M], [H], name="a") + dense(x * x, [M], [H], name="a")
        x = nm.sum(x, over=H) + nm.range(M, "float32")
        for _ in range(2):
            with nm.scope("shared"):
                x = feed_forward(x, M, H)
        return x

    assert list(nm.trace(network, X).parameters) == ["a", "shared/wi", "shared/wo"]
