"""Small programs that searches are tested with."""

from __future__ import annotations

import namedmesh as nm
from namedmesh.layers import Adam, Sgd, cross_entropy, dense, embedding, layer_norm
from namedmesh.layers import feed_forward as two_layers

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


def trace_stages(stages: int = 6, model: int = 96) -> nm.Program:
    """A pipeline of a number of stages that divides no usual number of devices."""
    P, N, B = nm.dims(f"stage={stages} micro=10 batch=10")
    M, H = nm.dims(f"model={model} hidden={4 * model}")

    def train(x: nm.Tensor) -> nm.Tensor:
        y = nm.pipeline(lambda x: x + two_layers(layer_norm(x, M), M, H), x, stages=P, batches=N)
        loss = nm.mean(nm.square(y))
        Sgd(0.1).apply(nm.grad(loss))
        return loss

    return nm.trace(train, nm.spec([N, B, M]))


def trace_graph_attention() -> nm.Program:
    """Messages along edges, weighted by a softmax over those that a node receives."""
    N, E, F, A, G = nm.dims("node=2707 edge=10859 feature=64 heads=4 out=32")

    def train(x: nm.Tensor, source: nm.Tensor, target: nm.Tensor) -> nm.Tensor:
        h = dense(x, [F], [A, G], name="w")
        left, right = (nm.sum(h * nm.param(name, [A, G]), over=G) for name in ("left", "right"))
        score = nm.exp(nm.tanh(nm.gather(left, source, N) + nm.gather(right, target, N)))
        total = nm.gather(nm.scatter_add(score, target, N) + 1e-6, target, N)
        sent = nm.gather(h, source, N) * (score / total)
        y = dense(nm.scatter_add(sent, target, N), [A, G], [F], name="o")
        loss = nm.mean(nm.square(nm.relu(y) + x))
        Adam(1e-3).apply(nm.grad(loss))
        return loss

    edge = nm.spec([E], "int32")
    return nm.trace(train, nm.spec([N, F]), edge, edge)


def trace_retrieval() -> nm.Program:
    """The nearest documents of queries, and their mean."""
    Q, N, D, K = nm.dims("query=100 document=60001 width=48 best=10")

    def find(queries: nm.Tensor, documents: nm.Tensor) -> nm.Tensor:
        score, place = nm.top_k(nm.einsum([queries, documents], [Q, N]), N, K)
        return nm.sum(nm.gather(documents, place, N) * nm.softmax(score, over=K), over=K)

    return nm.trace(find, nm.spec([Q, D]), nm.spec([N, D]))


def trace_recurrence() -> nm.Program:
    """A network with gates along time, whose state is renamed to be read."""
    B, T, V, M, G = nm.dims("batch=20 time=33 vocab=5001 model=128 gate=4")
    H, old = nm.dims("state=200 state_before=200")

    def train(tokens: nm.Tensor, targets: nm.Tensor) -> nm.Tensor:
        x, one = embedding(tokens, V, M), G.resized(1)
        wx, wh = nm.param("wx", [M, G, H]), nm.param("wh", [old, G, H])

        def step(carry: tuple[nm.Tensor, nm.Tensor], x: nm.Tensor):
            h, c = carry
            z = nm.einsum([x, wx], [B, G, H]) + nm.einsum([nm.rename(h, H, old), wh], [B, G, H])
            keep, forget, out, new = (nm.sum(nm.slice(z, G, k, 1), over=one) for k in range(4))
            c = nm.sigmoid(forget) * c + nm.sigmoid(keep) * nm.tanh(new)
            h = nm.sigmoid(out) * nm.tanh(c)
            return (h, c), h

        zero = nm.zeros([B, H])
        _, states = nm.scan(step, (zero, zero), x, over=T)
        loss = nm.mean(cross_entropy(dense(states, [H], [V], name="o"), targets, V)[0])
        Adam(1e-3).apply(nm.grad(loss))
        return loss

    rows = nm.spec([B, T], "int32")
    return nm.trace(train, rows, rows)
