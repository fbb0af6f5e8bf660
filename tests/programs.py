"""Random named programs, meshes and layouts, each made from a seed and a number alone."""

from __future__ import annotations

import itertools
import random as python_random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import namedmesh as nm

SIZES = (1, 2, 3, 4, 4, 5, 6, 8, 8, 10, 16)
NAMES = ("a", "b", "c", "d", "e")
MESHES = (
    {"x": 8}, {"x": 2, "y": 4}, {"x": 4, "y": 2}, {"x": 2, "y": 2, "z": 2}, {"x": 2, "y": 2},
    {"x": 1, "y": 8}, {"x": 2, "y": 1, "z": 4},
)  # fmt: skip
TOLERANCE = 2e-4  # of float32, relative to the largest element
ITERATIONS = nm.Dimension("iteration", 3)  # of a loop over microbatches
LAYERS = nm.Dimension("layer", 2)  # of a loop over a stack of weights


@dataclass(frozen=True)
class Case:
    """What one check runs: a function of inputs, and where it runs."""

    name: str
    ending: str
    function: Callable[..., Any]
    specs: dict[str, nm.InputSpec]
    mesh: nm.Mesh
    layout: nm.Layout
    params: nm.Layout | None
    shared: bool  # whether names of the layout may share an axis
    tolerance: float = TOLERANCE
    exact: Callable[..., Any] | None = None  # the function in float32, if it rounds to bfloat16

    def __str__(self) -> str:
        rests = "" if self.params is None else f", params {self.params.text!r}"
        where = f"{self.mesh}, layout {self.layout.text!r}{rests}"
        return f"case {self.name}, {self.ending}: {where}, {self.specs}"


@dataclass(frozen=True)
class Generator:
    """What programs are made of: steps, and what is done with their results."""

    take_steps: Callable[..., Any]  # of inputs, a weight, dimensions, random numbers and a count
    endings: Mapping[str, Callable[..., Any]]
    most: int = 3  # steps
    ranks: tuple[int, ...] = (1, 2, 2, 3)  # of inputs
    extra: tuple[str, ...] = ()  # dimensions that steps make, which layouts may map too
    rounded: Mapping[str, float] = field(default_factory=dict)  # the tolerance of some endings


def make_case(seed: int, number: int, generator: Generator | None = None) -> Case:
    """Makes a case; its steps are decided while the function is traced."""
    made_of = generator or Generator(take_steps, ENDINGS)
    rng = python_random.Random(f"{seed}/{number}")
    dims = {name: nm.Dimension(name, rng.choice(SIZES)) for name in NAMES}
    axes = rng.choice(MESHES)
    most = min(2, len(axes))
    names = (*NAMES, *made_of.extra)
    mapping = {name: rng.sample(sorted(axes), rng.randint(0, most)) for name in names}
    shared = rng.random() < 0.7
    if not shared:
        taken: set[str] = set()
        for name in names:
            mapping[name] = [axis for axis in mapping[name] if axis not in taken]
            taken.update(mapping[name])
    rests = None
    if rng.random() < 0.5:
        resting = rng.sample((*NAMES, *(made_of.extra or ("layer",))), 2)
        rests = {name: rng.sample(sorted(axes), 1) for name in resting}
    shapes = [rng.sample(NAMES, rng.choice(made_of.ranks)) for _ in range(3)]
    ending = rng.choice(sorted(made_of.endings))
    leading = [ITERATIONS] if "accumulation" in ending else []
    specs = {
        f"in{i}": nm.spec([*leading, *(dims[name] for name in shape)])
        for i, shape in enumerate(shapes)
    }
    count, start = rng.randint(1, made_of.most), rng.random()

    def function(in0: nm.Tensor, in1: nm.Tensor, in2: nm.Tensor, **dtype: str) -> Any:
        picks = random_numbers(python_random.Random(start))
        inputs = [in0, in1, in2]
        return made_of.endings[ending](inputs, dims, picks, count, made_of.take_steps, **dtype)

    def exact(in0: nm.Tensor, in1: nm.Tensor, in2: nm.Tensor) -> Any:
        return function(in0, in1, in2, dtype="float32")

    return Case(
        f"{seed}/{number}",
        ending,
        function,
        specs,
        nm.Mesh.parse(", ".join(f"{axis}={size}" for axis, size in axes.items())),
        nm.Layout(mapping),
        None if rests is None else nm.Layout(rests),
        shared,
        made_of.rounded.get(ending, TOLERANCE),
        exact if ending in made_of.rounded else None,
    )


def random_numbers(rng: python_random.Random) -> Iterator[int]:
    """Endless random numbers."""
    return (rng.randrange(10**6) for _ in itertools.count())


def take_steps(inputs, weight, dims, picks, count):
    """Takes random steps on a pool of tensors; returns the last two of it and a loss."""
    pool = [*inputs, inputs[1] * weight]
    for _ in range(count):
        step = STEPS[next(picks) % len(STEPS)]
        x, y = pool[next(picks) % len(pool)], pool[next(picks) % len(pool)]
        pool.append(step(x, y if compatible(x, y) else x, dims, picks))
    last = pool[-1]
    return last, pool[-2], nm.mean(last * last) + nm.mean(pool[-2])


def train(inputs, dims, picks, count, take):
    """One step of training, with the gradients of the inputs besides."""
    weight = nm.param("weight", inputs[1].shape, nm.constant_init(1.0))
    last, previous, loss = take(inputs, weight, dims, picks, count)
    grads = nm.grad(loss, [*inputs, weight])
    nm.assign(weight, weight - grads[-1] * 0.1)
    return {"last": last, "previous": previous, "loss": loss, "grads": grads}


def differentiate_twice(inputs, dims, picks, count, take):
    """The gradient of the size of a gradient."""
    weight = nm.param("weight", inputs[1].shape, nm.constant_init(1.0))
    _, _, loss = take(inputs, weight, dims, picks, min(count, 3))
    grads = nm.grad(loss, [*inputs, weight])
    size = sum((nm.mean(grad * grad) for grad in grads[1:]), nm.mean(grads[0] * grads[0]))
    again = nm.grad(size, [inputs[0], weight])
    nm.assign(weight, weight - again[-1] * 0.1)
    return {"loss": loss, "size": size, "grads": grads, "again": again}


def accumulate(inputs, dims, picks, count, take):
    """Gradients added up over microbatches, in a loop that differentiates inside."""
    weight = nm.param(
        "weight", [d for d in inputs[1].shape if d != ITERATIONS], nm.constant_init(1.0)
    )
    first = next(picks)

    def iteration(total, batch):
        here = random_numbers(python_random.Random(first))
        _, _, loss = take(batch, weight, dims, here, count)
        return (total[0] + nm.grad(loss, weight), total[1] + loss), None

    (grad, loss), _ = nm.scan(iteration, (nm.zeros(weight.shape), 0.0), inputs, over=ITERATIONS)
    nm.assign(weight, weight - grad * 0.1)
    return {"loss": loss, "grad": grad}


ENDINGS = {
    "accumulation": accumulate,
    "gradients of gradients": differentiate_twice,
    "training": train,
}


def compatible(x, y):
    """Whether no name has two sizes: windows change the size of a dimension."""
    return all(x.shape.named(dim.name) in (None, dim) for dim in y.shape)


def pick_dim(x, picks):
    return x.shape[next(picks) % len(x.shape)] if len(x.shape) else None


def pick_new_dim(x, dims, picks):
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
    dim = pick_dim(x, picks)
    if dim is None or len(x.shape) == 1:
        return nm.exp(x * 0.1)
    return [nm.sum, nm.mean, nm.max, nm.logsumexp][next(picks) % 4](x, over=dim)


def softmax(x, y, dims, picks):
    dim = pick_dim(x, picks)
    return nm.softmax(x, over=dim) if dim else x * 2.0


def reshard(x, y, dims, picks):
    dim = pick_dim(x, picks)
    if dim is None:
        return x + 1.0
    return [
        lambda: nm.reshard(x, dim),
        lambda: nm.replicate(x, dim),
        lambda: nm.split(x, dim),
        lambda: nm.replicate(x),
    ][next(picks) % 4]() * 1.5


def gather(x, y, dims, picks):
    dim = pick_dim(x, picks)
    if dim is None or len(y.shape) == 0 or dim.name in y.shape.names:
        return nm.sin(x)
    indices = nm.cast(nm.sigmoid(nm.stop_gradient(y)) * (dim.size + 1.0), "int32")
    if len({*x.shape.names, *y.shape.names}) > 4:
        return nm.cos(x)
    return nm.gather(x, indices, dim)


def scatter(x, y, dims, picks):
    dim, target = pick_dim(x, picks), pick_new_dim(x, dims, picks)
    if dim is None or target is None:
        return nm.relu(x)
    indices = nm.remainder(nm.range(dim) * 3, target.size)
    return nm.scatter_add(x, indices, target)


def scan(x, y, dims, picks):
    dim = pick_dim(x, picks)
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
    dim = pick_dim(x, picks)
    if dim is None:
        return nm.softplus(x)
    return [
        lambda: nm.cumsum(x, dim, exclusive=True) * 0.3,
        lambda: nm.cumsum(x, dim, reverse=True) * 0.3,
        lambda: nm.sort(x, dim),
        lambda: (
            nm.top_k(x, dim, nm.Dimension("k", min(2, dim.size)))[0]
            if not x.shape.named("k")
            else x
        ),
    ][next(picks) % 4]()


def window(x, y, dims, picks):
    dim = pick_dim(x, picks)
    if dim is None:
        return x - 1.0
    return [
        lambda: nm.slice(x, dim, dim.size // 2, dim.size - dim.size // 2),
        lambda: nm.pad(x, dim, 1, 2, 0.5),
        lambda: nm.roll(x, dim, 1),
        lambda: nm.reverse(x, dim),
        lambda: nm.shift(x, dim, 1) if dim.size > 1 else x,
        lambda: nm.concat([x, nm.exp(x * 0.1)], dim),
        lambda: nm.dynamic_update(
            x, nm.zeros([d.resized(1) if d == dim else d for d in x.shape]), dim.size // 2, dim
        ),
    ][next(picks) % 7]()


def structure(x, y, dims, picks):
    dim = pick_dim(x, picks)
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
    other = pick_dim(x, picks)
    if other is not None and other != dim and next(picks) % 2:
        return nm.reshape(x, [dim, other], nm.Dimension("r", dim.size * other.size))
    target = pick_new_dim(x, dims, picks)
    if target is not None and target.size == dim.size:
        return nm.rename(x, dim, target)
    return nm.rename(x, dim, fresh)


def growth(x, y, dims, picks):
    target = pick_new_dim(x, dims, picks)
    if target is None or len(x.shape) > 2:
        return x * 0.7
    return nm.broadcast(x, [target, *x.shape]) * (nm.cast(nm.range(target), "float32") * 0.1 + 1.0)


def choice(x, y, dims, picks):
    return nm.cond(nm.mean(y) > 0.0, lambda: nm.tanh(x) * 2.0, lambda: x * x * 0.1)


def stack(x, y, dims, picks):
    """A stack of layers, each with weights of its own."""
    dim, target = pick_dim(x, picks), pick_new_dim(x, dims, picks)
    if dim is None or x.shape.named("layer") or len(x.shape) > 3:
        return nm.tanh(x)
    hidden = target if target is not None and next(picks) % 2 else nm.Dimension("h", 4)
    if x.shape.named("h"):
        return nm.tanh(x)
    name = f"stacked{next(picks)}"
    remat = ["none", "full", "dots"][next(picks) % 3]

    def layer(carry, _):
        up = nm.param(f"{name}_up", [dim, hidden], nm.constant_init(0.5))
        down = nm.param(f"{name}_down", [hidden, dim], nm.constant_init(0.5))
        inner = nm.einsum([carry, up], [d for d in (*carry.shape, hidden) if d != dim])
        return carry + nm.tanh(nm.einsum([nm.tanh(inner), down], carry.shape)) * 0.3, None

    return nm.scan(layer, x, over=LAYERS, remat=remat, stack=True)[0]


def region(x, y, dims, picks):
    """A region that every device runs on its own shard."""
    dim = pick_dim(x, picks)
    if dim is None:
        return x * 0.9
    others = [d for d in x.shape if d != dim]

    def inside(x):
        mixed = nm.cumsum(x, others[0]) * 0.2 if others else nm.sin(x)
        return nm.tanh(mixed + (y if len({*x.shape, *y.shape}) <= 4 else 0.0))

    return nm.manual(inside, x, over=dim)


def small_numbers(x, y, dims, picks):
    """A sum in few bits, which carries no gradient."""
    dim = pick_dim(x, picks)
    dtype = ["int8", "uint8", "int32", "bfloat16"][next(picks) % 4]
    whole = nm.cast(nm.sigmoid(nm.stop_gradient(x)) * 3.0, "int32")
    few = nm.cast(whole, dtype)  # so few that every sum of them is exact
    return x * nm.cast(nm.sum(few, over=dim) if dim is not None else few, "float32")


STEPS = [
    elementwise, einsum, einsum, einsum3, reduction, softmax, reshard, reshard, gather, scatter,
    scan, random, ordering, window, structure, growth, choice, stack, region, small_numbers,
]  # fmt: skip
