"""Small programs that searches are tested with."""

from __future__ import annotations

import namedmesh as nm

B, M, H = nm.dims("batch=64 model=128 hidden=512")


def feed_forward(x: nm.Tensor) -> nm.Tensor:
    """Two layers and what goes past them."""
    h = nm.relu(nm.einsum([x, nm.param("wi", [M, H])], [B, H]))
    return x + nm.einsum([h, nm.param("wo", [H, M])], [B, M])


def trace_step(remat: str = "none", layers: int = 1) -> nm.Program:
    """One step of training a stack of such layers."""
    L = nm.Dimension("layer", layers)

    def train(x: nm.Tensor, target: nm.Tensor) -> nm.Tensor:
        y, _ = nm.scan(lambda x, _: (feed_forward(x), None), x, over=L, stack=True, remat=remat)
        loss = nm.mean(nm.square(y - target))
        grads = nm.grad(loss)
        for name, weight in nm.parameters().items():
            nm.assign(weight, weight - grads[name] * 0.1)
        return loss

    return nm.trace(train, nm.spec([B, M]), nm.spec([B, M]))


def trace_mixture(shared: bool = False) -> nm.Program:
    """Tokens that are sent to experts and back, through a layer that all share if asked for."""
    G, S, E, K, F = nm.dims("group=8 token=256 expert=8 width=256 inner=1024")
    D = nm.Dimension("depth", 4096)

    def train(x: nm.Tensor, mask: nm.Tensor) -> nm.Tensor:
        if shared:
            deep = nm.relu(nm.einsum([x, nm.param("down", [K, D])], [G, S, D]))
            x = nm.einsum([deep, nm.param("up", [D, K])], [G, S, K])
        sent = nm.reshard(nm.einsum([x, mask], [E, G, K]), E)
        inner = nm.relu(nm.einsum([sent, nm.param("wi", [E, K, F])], [E, G, F]))
        made = nm.reshard(nm.einsum([inner, nm.param("wo", [E, F, K])], [E, G, K]), G)
        loss = nm.mean(nm.square(nm.einsum([made, mask], [G, S, K])))
        grads = nm.grad(loss)
        for name, weight in nm.parameters().items():
            nm.assign(weight, weight - grads[name] * 0.1)
        return loss

    return nm.trace(train, nm.spec([G, S, K]), nm.spec([G, S, E]))


def trace_torn() -> nm.Program:
    """A layer whose operands disagree where model and hidden lie on one axis."""

    def train(x: nm.Tensor) -> nm.Tensor:
        h = nm.split(nm.exp(x), M)
        wi = nm.split(nm.param("wi", [M, H]), H)
        return nm.mean(nm.square(nm.einsum([h, wi], [B, H])))

    return nm.trace(train, nm.spec([B, M]))
