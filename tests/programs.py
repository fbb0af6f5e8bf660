"""Random named programs, meshes and layouts, drawn by hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st

import namedmesh as nm

SIZES = (2, 3, 4, 5, 6, 8, 10, 16)
NAMES = ("a", "b", "c", "d", "e")
MESHES = ({"x": 8}, {"x": 2, "y": 4}, {"x": 4, "y": 2}, {"x": 2, "y": 2, "z": 2})


@dataclass(frozen=True)
class Case:
    """What one test runs: a function of inputs, and where it runs."""

    text: str
    function: Callable[..., Any]
    specs: dict[str, nm.InputSpec]
    mesh: nm.Mesh
    layouts: list[
        nm.Layout
    ]  # to try in order: the drawn one, then one in which no two dimensions share an axis
    params: nm.Layout | None


@st.composite
def cases(draw) -> Case:
    """A case; its steps are decided while the function is traced, from numbers drawn here."""
    dims = {name: nm.Dimension(name, draw(st.sampled_from(SIZES))) for name in NAMES}
    axes = draw(st.sampled_from(MESHES))
    mapping, owned = {}, {}
    for name in NAMES:
        on = draw(st.lists(st.sampled_from(sorted(axes)), unique=True, max_size=2))
        mapping[name] = on
        owned[name] = [
            axis for axis in on if axis not in {a for other in owned.values() for a in other}
        ]
    rests = draw(st.sampled_from([None, None, {"a": [sorted(axes)[-1]]}, {"c": [sorted(axes)[0]]}]))
    picks = draw(st.lists(st.integers(0, 10**6), min_size=24, max_size=24))
    shapes = [
        draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=3))
        for _ in range(3)
    ]
    specs = {f"in{i}": nm.spec([dims[name] for name in shape]) for i, shape in enumerate(shapes)}
    count = draw(st.integers(2, 6))
    where = f"mesh {axes} layout {mapping} params {rests}"
    text = (
        f"dims {[str(dim) for dim in dims.values()]} {where} inputs {shapes} steps {count} {picks}"
    )

    def function(in0, in1, in2):
        return build([in0, in1, in2], dims, iter(picks * 10), count)

    layouts = [nm.Layout(mapping), nm.Layout(owned)]
    return Case(
        text, function, specs, nm.Mesh(**axes), layouts, None if rests is None else nm.Layout(rests)
    )


def build(inputs, dims, picks, count):
    """Random steps on a pool of tensors, then a loss over all of them and its gradients."""
    weight = nm.param("weight", inputs[1].shape, nm.normal_init(1.0))
    pool = [*inputs, inputs[1] * weight]
    for _ in range(count):
        step = STEPS[next(picks) % len(STEPS)]
        x, y = pool[next(picks) % len(pool)], pool[next(picks) % len(pool)]
        pool.append(step(x, y if _compatible(x, y) else x, dims, picks))
    last = pool[-1]
    loss = nm.mean(last * last) + nm.mean(pool[-2])
    grads = nm.grad(loss, [*inputs, weight])
    nm.assign(weight, weight - grads[-1] * 0.1)
    return {"last": last, "previous": pool[-2], "loss": loss, "grads": grads}


def _compatible(x, y):
    """Whether no name has two sizes: windows change the size of a dimension."""
    return all(x.shape.named(dim.name) in (None, dim) for dim in y.shape)


def _one(x, picks):
    return x.shape[next(picks) % len(x.shape)] if len(x.shape) else None


def _other(x, dims, picks):
    free = [dim for dim in dims.values() if dim.name not in x.shape.names]
    return free[next(picks) % len(free)] if free else None


def elementwise(x, y, dims, picks):
    joint = {dim.name: dim for dim in (*x.shape, *y.shape)}
    if len(joint) > 4:
        return nm.tanh(x)
    return [nm.tanh(x + y), x * nm.sigmoid(y), nm.where(x > y, x, y * 0.5), nm.maximum(x, y)][
        next(picks) % 4
    ]


def einsum(x, y, dims, picks):
    joint = list({dim.name: dim for dim in (*x.shape, *y.shape)}.values())
    kept = [dim for dim in joint if next(picks) % 3]
    return nm.einsum([x, y], kept[:3]) * 0.3


def einsum3(x, y, dims, picks):
    z = nm.tanh(y)
    joint = list({dim.name: dim for dim in (*x.shape, *y.shape)}.values())
    return nm.einsum([x, y, z], [dim for dim in joint if next(picks) % 2][:3]) * 0.2


def reduction(x, y, dims, picks):
    dim = _one(x, picks)
    if dim is None or len(x.shape) == 1:
        return nm.exp(x * 0.1)
    return [nm.sum, nm.mean, nm.max, nm.logsumexp][next(picks) % 4](x, over=dim)


def softmax(x, y, dims, picks):
    dim = _one(x, picks)
    return nm.softmax(x, over=dim) if dim else x * 2.0


def reshard(x, y, dims, picks):
    dim = _one(x, picks)
    if dim is None:
        return x + 1.0
    return [
        lambda: nm.reshard(x, dim),
        lambda: nm.replicate(x, dim),
        lambda: nm.split(x, dim),
        lambda: nm.replicate(x),
    ][next(picks) % 4]() * 1.5


def gather(x, y, dims, picks):
    dim = _one(x, picks)
    if dim is None or len(y.shape) == 0 or dim.name in y.shape.names:
        return nm.sin(x)
    indices = nm.cast(nm.sigmoid(nm.stop_gradient(y)) * (dim.size + 1.0), "int32")
    if len({*x.shape.names, *y.shape.names}) > 4:
        return nm.cos(x)
    return nm.gather(x, indices, dim)


def scatter(x, y, dims, picks):
    dim, target = _one(x, picks), _other(x, dims, picks)
    if dim is None or target is None:
        return nm.relu(x)
    indices = nm.remainder(nm.range(dim) * 3, target.size)
    return nm.scatter_add(x, indices, target)


def scan(x, y, dims, picks):
    dim = _one(x, picks)
    if dim is None or len(x.shape) < 2:
        return nm.square(x) * 0.1
    start = nm.zeros([d for d in x.shape if d != dim])
    remat = ["none", "full", "dots"][next(picks) % 3]

    def body(carry, row):
        following = nm.tanh(carry * 0.5 + row)
        return following, following * 2.0

    last, rows = nm.scan(body, start, x, over=dim, remat=remat)
    return rows if next(picks) % 2 else last


def random(x, y, dims, picks):
    noise = nm.random.uniform(nm.random.key(next(picks) % 100), x.shape)
    return x * noise


def ordering(x, y, dims, picks):
    dim = _one(x, picks)
    if dim is None:
        return nm.softplus(x)
    return [
        lambda: nm.cumsum(x, dim, exclusive=True) * 0.3,
        lambda: nm.cumsum(x, dim, reverse=True) * 0.3,
        lambda: nm.sort(x, dim),
        lambda: nm.top_k(x, dim, nm.Dimension("k", 2))[0] if not x.shape.named("k") else x,
    ][next(picks) % 4]()


def window(x, y, dims, picks):
    dim = _one(x, picks)
    if dim is None:
        return x - 1.0
    return [
        lambda: nm.slice(x, dim, 1, dim.size - 1),
        lambda: nm.pad(x, dim, 1, 2, 0.5),
        lambda: nm.roll(x, dim, 1),
        lambda: nm.reverse(x, dim),
        lambda: nm.shift(x, dim, 1),
        lambda: nm.concat([x, nm.exp(x * 0.1)], dim),
        lambda: nm.dynamic_update(
            x, nm.zeros([d.resized(1) if d == dim else d for d in x.shape]), 1, dim
        ),
    ][next(picks) % 7]()


def structure(x, y, dims, picks):
    dim = _one(x, picks)
    if dim is None:
        return x * 3.0
    fresh = nm.Dimension("r", dim.size)
    if x.shape.named("r"):
        return nm.transpose(x, list(reversed(x.shape.dims)))
    if dim.size % 2 == 0 and next(picks) % 2:
        return (
            nm.reshape(x, dim, [nm.Dimension("r", dim.size // 2), nm.Dimension("s", 2)])
            if not x.shape.named("s")
            else x * 1.1
        )
    other = _one(x, picks)
    if other is not None and other != dim and next(picks) % 2:
        return nm.reshape(x, [dim, other], nm.Dimension("r", dim.size * other.size))
    target = _other(x, dims, picks)
    if target is not None and target.size == dim.size:
        return nm.rename(x, dim, target)
    return nm.rename(x, dim, fresh)


def growth(x, y, dims, picks):
    target = _other(x, dims, picks)
    if target is None or len(x.shape) > 2:
        return x * 0.7
    return nm.broadcast(x, [target, *x.shape]) * (nm.cast(nm.range(target), "float32") * 0.1 + 1.0)


def choice(x, y, dims, picks):
    return nm.cond(nm.mean(y) > 0.0, lambda: nm.tanh(x) * 2.0, lambda: x * x * 0.1)


STEPS = [
    elementwise, einsum, einsum, einsum3, reduction, softmax, reshard, reshard, gather, scatter,
    scan, random,
    ordering, window, structure, growth, choice,
]  # fmt: skip
