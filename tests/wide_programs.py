"""More random steps: layers, loops in loops, regions, collectives, foreign ops and dead code."""

from __future__ import annotations

import functools
import random as python_random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import namedmesh as nm
from namedmesh.layers import moe, top_k_gating
from tests.ir import my_custom
from tests.programs import (
    ENDINGS,
    ITERATIONS,
    LAYERS,
    STEPS,
    Case,
    Generator,
    compatible,
    einsum,
    make_case,
    pick_dim,
    pick_new_dim,
    random_numbers,
    softmax,
    structure,
)

# Dimensions of weights and of what layers add, which layouts may map too.
EXTRA = ("expert", "hidden", "layer", "memory", "out", "stage", "vocab", "window")
REMAT = ("none", "full", "dots")


def weight(picks: Iterator[int], dims: list[nm.Dimension], like: nm.Tensor) -> nm.Tensor:
    """Make a parameter, in the dtype of what it meets."""
    return nm.cast(nm.param(f"w{next(picks)}", dims, nm.constant_init(0.3)), like.dtype)


def has(x: nm.Tensor, *names: str) -> bool:
    """Return whether a tensor has a dimension of one of these names, or too many."""
    return len(x.shape) > 3 or any(x.shape.named(name) for name in names)


def convolution(x, y, dims, picks):
    dim, channels = pick_dim(x, picks), pick_dim(x, picks)
    if dim is None or channels is None or has(x, "window", "out"):
        return nm.tanh(x)
    window = nm.Dimension("window", 1 + next(picks) % min(3, dim.size))
    out = nm.Dimension("out", 2 + 2 * (next(picks) % 2))
    inner = [channels] if channels != dim else []
    stride = 1 + next(picks) % 2
    padding = ("same", "valid")[next(picks) % 2]
    options = {"stride": stride, "padding": padding}
    if inner and next(picks) % 3 == 0:
        w = weight(picks, [window, *inner], x)
        return nm.conv(x, w, {dim: window}, keep=inner, **options)
    w = weight(picks, [window, *inner, out], x)
    if next(picks) % 4 == 0:
        return nm.conv_transpose(x, w, {dim: window}, stride=stride) * 0.5
    return nm.conv(x, w, {dim: window}, **options) * 0.5


def pooling(x, y, dims, picks):
    dim = pick_dim(x, picks)
    if dim is None or dim.size < 2:
        return nm.sin(x)
    kind = ("max", "mean", "sum")[next(picks) % 3]
    return nm.pool(x, {dim: 2}, kind, stride=1 + next(picks) % 2)


def loops_in_loops(x, y, dims, picks):
    """A loop over rows of a loop over layers, whose weights are its own or shared."""
    dim = pick_dim(x, picks)
    if dim is None or len(x.shape) < 2 or has(x, "layer", "hidden"):
        return x * 0.8
    rest = [d for d in x.shape if d != dim]
    hidden = nm.Dimension("hidden", 4)
    outer, inner = REMAT[next(picks) % 3], REMAT[next(picks) % 3]
    stacked, first = bool(next(picks) % 2), next(picks)

    def layer(carry, _):
        here = iter(range(first, first + 10))
        up = weight(here, [rest[0], hidden], x)
        down = weight(here, [hidden, rest[0]], x)
        wide = nm.einsum([carry, up], [*(d for d in carry.shape if d != rest[0]), hidden])
        return carry + nm.tanh(nm.einsum([nm.tanh(wide), down], carry.shape)) * 0.3, None

    def row(carry, row):
        carry = nm.tanh(carry * 0.5 + row)
        carry, _ = nm.scan(layer, carry, over=LAYERS, remat=inner, stack=stacked)
        return carry, carry * 0.5

    last, rows = nm.scan(row, nm.zeros(rest, x.dtype), x, over=dim, remat=outer)
    return rows if next(picks) % 2 else last


def mapped(x, y, dims, picks):
    """A function of one element of a dimension, for all of them."""
    dim = pick_dim(x, picks)
    rest = [d for d in x.shape if d != dim]
    if dim is None or not rest:
        return nm.exp(x * 0.1)
    at = rest[next(picks) % len(rest)]
    stack = bool(next(picks) % 2)
    first = next(picks)

    def product(x):
        new = nm.Dimension("hidden", 4)
        w = weight(iter([first]), [at, new], x)
        up = nm.einsum([x, w], [*(d for d in x.shape if d != at), new])
        return nm.einsum([nm.tanh(up), w], x.shape)

    choices = [
        lambda x: nm.softmax(x, over=at),
        product if not x.shape.named("hidden") else nm.sin,
        lambda x: (
            nm.scan(lambda c, r: (nm.tanh(c + r), c), nm.zeros([], x.dtype), x, over=at)[1]
            if len(x.shape) == 1
            else nm.sin(x)
        ),
        lambda x: my_custom.LastFlip((x,)).output,
        lambda x: nm.cumsum(x, at) * 0.3,
        lambda x: my_custom.FirstSoftmax((x,)).output,
    ]
    return nm.vmap(choices[next(picks) % len(choices)], dim, stack=stack)(x)


def region_with_weights(x, y, dims, picks):
    """A region whose weights lack its dimension: their gradients are partial sums inside."""
    dim = pick_dim(x, picks)
    rest = [d for d in x.shape if d != dim]
    if dim is None or not rest:
        return x * 0.9
    w = nm.param(f"w{next(picks)}", rest, nm.constant_init(0.3))
    kind, remat = next(picks) % 5, REMAT[next(picks) % 3]

    def inside(x):
        v = nm.cast(nm.sin(w), x.dtype)
        if kind == 0:
            body = lambda c, _: (nm.tanh(c * v), None)
            return nm.scan(body, x, over=LAYERS, remat=remat)[0]
        if kind == 1:
            return nm.checkpoint(lambda x: nm.cumsum(x * v, rest[0]) * 0.3)(x)
        if kind == 2:
            return nm.where(nm.sum(w) > 0.0, x * v, -x) + nm.softmax(v, over=rest[0])
        if kind == 3:
            return my_custom.Triple((x * my_custom.Triple((v,)).output,)).output * 0.1
        return nm.sort(x, rest[-1]) * v + nm.cast(y, x.dtype) if fits(x, y) else x * v

    over = [dim, rest[0]] if len(rest) > 1 and kind == 3 and next(picks) % 2 else dim
    return nm.manual(inside, x, over=over)


def fits(x: nm.Tensor, y: nm.Tensor) -> bool:
    """Return whether two tensors together have few dimensions."""
    return len({dim.name for dim in (*x.shape, *y.shape)}) <= 4


def collectives(x, y, dims, picks):
    """What shards send each other, with something of their own before and after."""
    dim = pick_dim(x, picks)
    if dim is None or has(x, "all"):
        return nm.cos(x)
    every = nm.Dimension("all", dim.size)
    several = lambda x: x * (nm.range(every, "float32") * 0.1 + 0.5)

    def spread(x):
        return nm.transpose(several(nm.sin(x)), [*x.shape, every])

    inside = [
        lambda x: x / (1.0 + nm.collective.sum(nm.square(x), dim)),
        lambda x: x - nm.mean(nm.collective.gather(nm.tanh(x), dim, every), every),
        lambda x: nm.collective.scatter_sum(spread(x), dim, every) * 0.3,
        lambda x: nm.mean(nm.collective.all_to_all(spread(x), dim, every), every),
        lambda x: nm.collective.permute(nm.sin(x), dim, by=1) + x,
        lambda x: nm.scan(
            lambda c, _: (nm.tanh(nm.collective.permute(c, dim, by=1) + x), None), x, over=LAYERS
        )[0],
    ][next(picks) % 6]
    return nm.manual(inside, x, over=dim)


def attend(x, y, dims, picks):
    """Attention of a tensor to itself, or to memories that are weights."""
    key, positions = pick_dim(x, picks), pick_dim(x, picks)
    if key is None or positions is None or has(x, "memory"):
        return nm.relu(x)
    own = positions != key and next(picks) % 2 == 0
    memory = nm.Dimension("memory", positions.size if own else 4)
    if own:
        k, v = nm.rename(x, positions, memory), nm.rename(nm.sin(x), positions, memory)
    else:
        k, v = (weight(picks, [memory, key], x) * 2.0 for _ in range(2))
    mask = None
    if own and next(picks) % 2:
        mask = nm.range(positions) >= nm.range(memory)
    block = 2 if next(picks) % 2 and memory.size % 2 == 0 else None
    return nm.attention(x, k, v, memory, key, mask=mask, block=block)


def mixture(x, y, dims, picks):
    extra = pick_new_dim(x, dims, picks)
    if len(x.shape) == 2 and extra is not None:
        x = nm.broadcast(x, [extra, *x.shape]) * (nm.range(extra, "float32") * 0.1 + 1.0)
    if len(x.shape) != 3 or has(x, "expert", "capacity", "hidden"):
        return nm.softplus(x) * 0.5
    experts, hidden = nm.dims("expert=4 hidden=4")
    group, seq, model = x.shape
    capacity = nm.Dimension("capacity", max(1, seq.size // 2))
    form = ("gather", "einsum")[next(picks) % 2]
    gate = lambda logits: top_k_gating(logits, seq, experts, capacity, second="all")
    with nm.scope(f"moe{next(picks)}"):
        return moe(x, gate, (group, seq, experts, capacity, model, hidden), form=form)[0]


def stages(x, y, dims, picks):
    """A pipeline, with a loop of layers in each stage or without."""
    batches = pick_dim(x, picks)
    if batches is None or len(x.shape) < 2 or has(x, "stage", "layer"):
        return nm.square(x) * 0.1
    stage_dim = nm.Dimension("stage", 2 + 2 * (next(picks) % 2))
    at = next(d for d in x.shape if d != batches)
    first, loop = next(picks), next(picks) % 2

    def layer(x, _):
        w = weight(iter([first]), [at], x)
        return nm.tanh(x * w + nm.mean(x, at)), None

    def stage(x):
        return nm.scan(layer, x, over=LAYERS, stack=True)[0] if loop else layer(x, None)[0]

    remat = REMAT[next(picks) % 3]
    return nm.pipeline(stage, x, stages=stage_dim, batches=batches, remat=remat)


def lookup(x, y, dims, picks):
    """Rows of a table of weights, or of a tensor itself, and changes of rows."""
    dim = pick_dim(x, picks)
    if dim is None or has(x, "vocab"):
        return x - 0.5
    vocab = nm.Dimension("vocab", (6, 8, 10)[next(picks) % 3])
    raw = nm.sigmoid(nm.stop_gradient(x))
    kind = next(picks) % 4
    if kind == 0:
        table = weight(picks, [vocab], x)
        return nm.gather(table, nm.cast(raw * (vocab.size + 0.5), "int32"), vocab) * x
    if kind == 1:
        target = pick_new_dim(x, dims, picks)
        if target is None:
            return x * 1.2
        table = weight(picks, [vocab, target], x)
        # Not a whole number where all are one half: rounding would choose the row.
        rows = nm.cast(nm.mean(raw, dim) * (vocab.size - 0.3), "int32")
        return nm.gather(table, rows, vocab)
    index = nm.remainder(nm.range(vocab) * 3, dim.size)
    if kind == 2:
        return nm.gather(x, index, dim)
    return x.at[dim, next(picks) % dim.size].add(1.0) * 0.9


def dead_code(x, y, dims, picks):
    """Something that nobody reads, beside something that is."""
    dim = pick_dim(x, picks)
    kind = next(picks) % 6
    if kind == 0:
        pair = nm.checkpoint(lambda a, b: (nm.sin(a), nm.tanh(b)))(x, y)
        return pair[0]
    if kind == 1:
        return nm.where(nm.full([], 1.0) > 0.0, x, nm.tanh(y) if x.shape == y.shape else x * 2.0)
    if kind == 2:
        start = {"read": x * 0.5, "unread": nm.sum(nm.square(x))}
        body = lambda c, _: ({"read": nm.tanh(c["read"]), "unread": c["unread"] * 0.5}, None)
        return nm.scan(body, start, over=LAYERS)[0]["read"]
    if kind == 3:
        nm.sum(nm.tanh(y))
        return nm.cond(nm.mean(y) > 0.0, lambda: nm.sin(x), lambda: nm.cos(x))
    if kind == 4 and dim is not None:
        _, order = nm.sort(x, dim), nm.argsort(x, dim)
        return x * nm.cast(nm.stop_gradient(order), x.dtype) * 0.1
    zero = nm.zeros(x.shape, x.dtype)
    return x + zero * nm.sum(y)


def loop_while(x, y, dims, picks):
    """A loop of unknown length with a carry that is read and one that is not."""
    start = nm.stop_gradient(x)
    first = {"i": nm.zeros([], "int32"), "x": start, "unread": nm.sum(nm.absolute(start))}

    def body(c):
        return {"i": c["i"] + 1, "x": nm.tanh(c["x"]), "unread": c["unread"] + nm.sum(c["x"])}

    last = nm.while_loop(lambda c: c["i"] < 3, body, first)
    return x * last["x"]


def own_ops(x, y, dims, picks):
    dim = pick_dim(x, picks)
    if dim is None:
        return my_custom.Cube((x * 0.3,)).output
    return [
        lambda: my_custom.Cube((x * 0.3,)).output,
        lambda: my_custom.Blend((x, nm.sin(x))).output * 0.3,
        lambda: my_custom.FirstSoftmax((x,)).output,
        lambda: my_custom.LastFlip((x,)).output,
        lambda: x + my_custom.ManualCubes((x * 0.2,), dim).output,
        lambda: x + my_custom.ClosedSum((x * 0.2,), dim).output,
        lambda: my_custom.Product((x, nm.cos(x))).output,
    ][next(picks) % 7]()


def smooth(x, y, dims, picks):
    """Something elementwise that rounding changes little."""
    if not fits(x, y):
        return nm.tanh(x)
    return [nm.tanh(x + y), x * nm.sigmoid(y), nm.gelu(x)][next(picks) % 3]


def place(x, y, dims, picks):
    """A tensor in another place."""
    dim = pick_dim(x, picks)
    if dim is None:
        return nm.sin(x)
    return [nm.reshard, nm.replicate, nm.split][next(picks) % 3](x, dim)


WIDE_STEPS = [
    *STEPS, convolution, convolution, pooling, loops_in_loops, loops_in_loops, mapped, mapped,
    region_with_weights, region_with_weights, collectives, collectives, attend, attend, mixture,
    mixture, stages, stages, lookup, lookup, dead_code, dead_code, loop_while, own_ops, own_ops,
]  # fmt: skip
# Those that keep the dtype and have no jumps: what is rounded a little changes a little.
SMOOTH_STEPS: list[Callable[..., Any]] = [
    smooth, place, einsum, softmax, structure, convolution, loops_in_loops, attend, stages,
    region_with_weights,
]  # fmt: skip


def chain_steps(steps: Sequence[Callable[..., Any]], pool, dims, picks, count):
    """Takes random steps, most of them on the newest tensor of a pool, which it extends."""
    for _ in range(count):
        step = steps[next(picks) % len(steps)]
        newest = len(pool) - 1
        x = pool[newest if next(picks) % 3 else next(picks) % len(pool)]
        y = pool[next(picks) % len(pool)]
        pool.append(step(x, y if compatible(x, y) else x, dims, picks))


def take_steps(kinds, inputs, weight, dims, picks, count):
    """Takes random steps of some kinds; returns the last two tensors and a loss."""
    pool = [*inputs, inputs[1] * weight]
    chain_steps(kinds, pool, dims, picks, count)
    last = pool[-1]
    return last, pool[-2], nm.mean(last * last) + nm.mean(pool[-2])


def accumulate_rounded(inputs, dims, picks, count, take, dtype="bfloat16"):
    """Activations in bfloat16 and gradients in float32, added up over microbatches."""
    main = nm.param(
        "weight", [d for d in inputs[1].shape if d != ITERATIONS], nm.constant_init(1.0)
    )
    first = next(picks)

    def loss_of(batch):
        here = random_numbers(python_random.Random(first))
        pool = [nm.tanh(nm.cast(one, dtype)) for one in batch]
        pool.append(pool[1] * nm.cast(main, dtype))
        chain_steps(SMOOTH_STEPS, pool, dims, here, count)
        last, start = (nm.cast(one, "float32") for one in (pool[-1], pool[3]))
        return nm.mean(nm.square(last + 0.5)) + nm.mean(start * start)

    loss_of([one[ITERATIONS, 0] for one in inputs])  # makes the parameters, and is not read
    parameters = nm.parameters()

    def iteration(total, batch):
        loss = loss_of(batch)
        grads = nm.grad(loss, parameters)
        return ({name: total[0][name] + grads[name] for name in grads}, total[1] + loss), None

    start = {name: nm.zeros(one.shape) for name, one in parameters.items()}
    (grads, loss), _ = nm.scan(iteration, (start, 0.0), inputs, over=ITERATIONS)
    for name, parameter in parameters.items():
        nm.assign(parameter, parameter - grads[name] * 0.1)
    return {"loss": loss, "grad": grads["weight"]}


def run_forward(inputs, dims, picks, count, take):
    """No gradient at all: a part of what was computed is read."""
    main = nm.param("weight", inputs[1].shape, nm.constant_init(1.0))
    last, _, loss = take(inputs, main, dims, picks, count)
    return {"last": last} if next(picks) % 2 else {"loss": loss}


def train_all(inputs, dims, picks, count, take):
    """One step of training of all parameters, those of layers too."""
    main = nm.param("weight", inputs[1].shape, nm.constant_init(1.0))
    last, _, loss = take(inputs, main, dims, picks, count)
    grads = nm.grad(loss)
    for name, parameter in nm.parameters().items():
        nm.assign(parameter, parameter - grads[name] * 0.1)
    return {"last": last, "loss": loss}


WIDE = Generator(
    functools.partial(take_steps, WIDE_STEPS),
    {
        **ENDINGS,
        "bfloat16 accumulation": accumulate_rounded,
        "forward alone": run_forward,
        "training of all": train_all,
    },
    most=4,
    ranks=(2, 2, 3, 3),
    extra=EXTRA,
    rounded={"bfloat16 accumulation": 5e-2},
)


def make_wide_case(seed: int, number: int) -> Case:
    """Makes a case of all steps and endings."""
    return make_case(seed, number, WIDE)
