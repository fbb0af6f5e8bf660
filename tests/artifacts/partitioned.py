"""Programs that both partitioners run, one for each way in which they could differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import namedmesh as nm
from benchmarks.moe import Sizes
from benchmarks.moe import program as trace_layer
from namedmesh.layers import Adafactor, Config, Transformer, batch_of


@dataclass(frozen=True)
class Partitioned:
    """A program, and where it lies."""

    trace: Callable[[], nm.Program]
    mesh: nm.Mesh
    layout: str
    params: str | None = None

    def export(self, program: nm.Program) -> nm.Artifact:
        return nm.export(program, self.mesh, self.layout, self.params)


B, M, H, L, V = nm.dims("batch=8 model=16 hidden=16 layer=3 vocab=24")


def layer() -> nm.Program:
    return trace_layer(Sizes(seq=16, model=16, hidden=32))


def stack(remat: str = "none") -> nm.Program:
    """Layers in a loop, differentiated and updated."""

    def step(x):
        w, v = nm.param("w", [L, M, H]), nm.param("v", [L, H, M])

        def body(h, ws):
            inner = nm.tanh(nm.einsum([h, ws[0]], [B, H]))
            return h + nm.einsum([inner, ws[1]], [B, M]), None

        y, _ = nm.scan(body, x, (w, v), over=L, remat=remat)
        loss = nm.mean(y * y)
        for name, grad in nm.grad(loss).items():
            weight = nm.parameters()[name]
            slot = nm.state(f"{name}_slot", weight.shape, of=weight)
            nm.assign(slot, slot * 0.9 + grad)
            nm.assign(weight, weight - grad * 0.1)
        return loss

    return nm.trace(step, x=nm.spec([B, M]))


def looked_up_in_a_loop() -> nm.Program:
    """Manual regions in a loop and in its derivative; two that depend on each other outside."""

    def step(tokens):
        w, table = nm.param("w", [L, M], whole=[M]), nm.param("table", [V, M], whole=[M])

        def body(h, row):
            return nm.tanh(h * row + nm.gather(table, tokens, V)), None

        first = nm.gather(table, tokens, V)
        again = nm.gather(table, nm.argmax(nm.einsum([first, table], [B, V]), over=V), V)
        h, _ = nm.scan(body, nm.sort(first, M) + again, w, over=L)
        loss = nm.mean(h * h)
        for name, grad in nm.grad(loss).items():
            nm.assign(nm.parameters()[name], nm.parameters()[name] - grad)
        return h, nm.top_k(h, M, nm.Dimension("best", 3))

    return nm.trace(step, tokens=nm.spec([B], "int32"))


def neighbours() -> nm.Program:
    """What devices send to their neighbours, by convolutions in a loop too, and its derivative."""
    N, R, C, K, J, D = nm.dims("batch=4 rows=19 columns=8 window=3 side=2 deep=4")

    def step(x):
        w = nm.param("w", [L, K, J, D, nm.Dimension("deeper", 4)])

        def body(h, row):
            made = nm.conv(h, row, {R: K, C: J})
            return nm.tanh(nm.rename(made, nm.Dimension("deeper", 4), D)) + nm.roll(h, R, 2), None

        h, _ = nm.scan(body, x, w, over=L)
        h = nm.pool(nm.shift(h, C, -1), {R: 3}, "mean", stride=2, padding="same")
        loss = nm.mean(h * h)
        for name, grad in nm.grad(loss).items():
            nm.assign(nm.parameters()[name], nm.parameters()[name] - grad)
        return loss, nm.reverse(h, R.resized(10))

    return nm.trace(step, x=nm.spec([N, R, C, D]))


def branches() -> nm.Program:
    def step(x):
        h = nm.cond(nm.sum(x) > 0, lambda: nm.sin(x), lambda: nm.square(x))
        h, n = nm.while_loop(
            lambda h, n: nm.max(nm.absolute(h)) > 0.1, lambda h, n: (h * 0.5, n + 1), h, 0
        )
        return h, n

    return nm.trace(step, x=nm.spec([B, M]))


def uneven() -> nm.Program:
    """Sizes that the axes do not divide, at the boundary and inside."""
    T, N = nm.dims("token=13 wide=10")

    def step(x):
        w = nm.param("w", [M, N])
        loss = nm.mean(nm.square(nm.softmax(nm.einsum([x, w], [T, N]), over=T)))
        nm.assign(w, w - nm.grad(loss, w))
        return loss, nm.exp(x)

    return nm.trace(step, x=nm.spec([T, M]))


def moved() -> nm.Program:
    """Explicit moves from one dimension to another and back."""
    moves = lambda x: nm.reshard(nm.reshard(x, M) * 2.0, B)
    return nm.trace(moves, x=nm.spec([B, M], whole=[M]))


def random_numbers() -> nm.Program:
    def step(x):
        key = nm.random.key(7)
        noise = nm.random.normal(key, [B, M]) + nm.random.uniform(key, [B, M])
        return x * noise + nm.range(B, "float32"), nm.cumsum(x, M), nm.one_hot(nm.argmax(x, M), V)

    return nm.trace(step, x=nm.spec([B, M]))


def by_hand() -> nm.Program:
    """A region the user wrote, around a function of TensorFlow's own."""

    def rows(x):
        doubled = nm.call_tf(lambda x: x * 2.0, x, result=nm.spec([B, M]), batch=[B])
        return nm.sort(doubled, M) + nm.cumsum(x, M)

    def step(x):
        loss = nm.mean(nm.square(nm.manual(rows, x, over=B)))
        return loss, nm.grad(loss, x)

    return nm.trace(step, x=nm.spec([B, M]))


def transformer() -> nm.Program:
    config = Config(
        layers=4, experts=4, model=16, hidden=32, heads=4, key=8, source_vocab=20,
        target_vocab=20, dropout=0.1,
    )  # fmt: skip
    model = Transformer(config, group=8, source=8, target=8)

    def step(batch, seed):
        loss, metrics = model.loss(batch_of(batch), nm.random.key_from_seed(seed))
        Adafactor(learning_rate=0.01).apply(nm.grad(loss))
        return metrics["loss"]

    return nm.trace(step, batch=model.specs(), seed=nm.spec([], "int32"))


CASES = {
    "layer on one axis": Partitioned(layer, nm.Mesh(all=8), "group:all, expert:all"),
    "layer by hidden": Partitioned(layer, nm.Mesh(all=8), "hidden:all"),
    "layer on two axes": Partitioned(
        layer, nm.Mesh(data=2, expert=4), "group:data+expert, expert:expert"
    ),
    "layer with an axis of one": Partitioned(
        layer, nm.Mesh(one=1, all=8), "group:one+all, expert:all, model:one"
    ),
    "stack": Partitioned(stack, nm.Mesh(data=4, model=2), "batch:data, hidden:model"),
    "stack made again": Partitioned(
        lambda: stack("full"), nm.Mesh(data=4, model=2), "batch:data, hidden:model"
    ),
    "stack at rest": Partitioned(stack, nm.Mesh(data=8), "batch:data", "model:data"),
    "stack at rest on two axes": Partitioned(
        stack, nm.Mesh(data=4, model=2), "batch:data, hidden:model", "model:data, hidden:model"
    ),
    "looked up": Partitioned(looked_up_in_a_loop, nm.Mesh(a=2, b=4), "batch:a+b"),
    "looked up on one axis of two": Partitioned(
        looked_up_in_a_loop, nm.Mesh(a=2, b=4), "batch:b"
    ),
    "branches": Partitioned(branches, nm.Mesh(a=2, b=4), "batch:b, model:a"),
    "uneven": Partitioned(uneven, nm.Mesh(a=4, b=2), "token:a, wide:b"),
    "moved": Partitioned(moved, nm.Mesh(a=2, b=4), "batch:a+b, model:b"),
    "moved in another order": Partitioned(
        moved, nm.Mesh(p=2, q=2, r=2), "batch:p+q+r, model:r+q"
    ),
    "neighbours": Partitioned(neighbours, nm.Mesh(a=2, b=4), "rows:b+a"),
    "neighbours on two axes": Partitioned(
        neighbours, nm.Mesh(a=2, b=2, c=2), "batch:c, rows:a, columns:b"
    ),
    "random numbers": Partitioned(random_numbers, nm.Mesh(a=2, b=4), "batch:b+a"),
    "transformer": Partitioned(transformer, nm.Mesh(all=8), "group:all, expert:all"),
    "transformer on two axes": Partitioned(
        transformer,
        nm.Mesh(data=4, model=2),
        "group:data, expert:data, heads:model, hidden:model",
        "expert:data, model:data",
    ),
    "by hand": Partitioned(by_hand, nm.Mesh(a=2, b=4), "batch:b+a"),
}  # fmt: skip


def make_inputs(program: nm.Program) -> dict[str, np.ndarray]:
    """Numbers for a program's inputs; whole ones are indices."""
    rng = np.random.default_rng(4)
    return {
        name: rng.integers(0, 8, spec.shape.sizes).astype(np.int32)
        if spec.dtype == "int32"
        else rng.normal(size=spec.shape.sizes).astype(np.float32)
        for name, spec in program.specs.items()
    }
