"""Still more random steps: what nobody reads in every op with a body, and functions of others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import namedmesh as nm
from namedmesh.layers import Adafactor, Adagrad, Adam, Sgd
from tests.programs import LAYERS, Case, Generator, make_case, pick_dim, pick_new_dim
from tests.wide_programs import (
    EXTRA,
    REMAT,
    SMOOTH_STEPS,
    WIDE,
    WIDE_STEPS,
    attend,
    chain_steps,
    has,
    take_steps,
)


def combine(x: nm.Tensor, picks: Iterator[int]) -> nm.Tensor:
    """Make something of all elements along a dimension: if it is split, devices communicate."""
    dim = pick_dim(x, picks)
    if dim is None:
        return nm.sin(x)
    kind = next(picks) % 4
    if kind == 0:
        return nm.softmax(x, over=dim)
    if kind == 1:
        return nm.cumsum(x, dim) * 0.3
    return x - nm.mean(x, dim) if kind == 2 else nm.sort(x, dim)


def unread_in_scan(x, y, dims, picks):
    """A loop with a carry, rows, a capture and a history that nobody reads."""
    dim = pick_dim(x, picks)
    if dim is None or len(x.shape) < 2:
        return x * 0.7
    rest = [d for d in x.shape if d != dim]
    heavy, remat, reads = combine(y, picks), REMAT[next(picks) % 3], next(picks) % 3

    def body(carry, rows):
        nm.sum(heavy) * 2.0
        read = nm.tanh(carry["read"] * 0.5 + rows["read"])
        unread = carry["unread"] + nm.sum(carry["chain"])
        chain = nm.sin(carry["chain"]) + nm.mean(rows["read"], rest[0])
        return {"read": read, "unread": unread, "chain": chain}, (read * 2.0, rows["unread"])

    start = {
        "read": nm.zeros(rest, x.dtype),
        "unread": nm.sum(x),
        "chain": nm.zeros(rest[1:], x.dtype),
    }
    rows = {"read": x, "unread": combine(x, picks), "ignored": nm.square(x)}
    last, (history, _) = nm.scan(body, start, rows, over=dim, remat=remat)
    return [history, last["read"], nm.broadcast(last["chain"], rest)][reads]


def unread_in_while(x, y, dims, picks):
    """A loop of unknown length whose carries feed each other, few of them read."""
    start = nm.stop_gradient(x)
    zero = nm.zeros([], start.dtype)
    first = {"i": 0, "x": start, "sum": nm.sum(start), "of_sum": zero, "same": nm.tanh(start)}

    def body(c):
        return {
            "i": c["i"] + 1,
            "x": nm.tanh(c["x"] + c["same"]),
            "sum": c["sum"] + nm.sum(c["x"]),
            "of_sum": c["of_sum"] + c["sum"],
            "same": c["same"],
        }

    last = nm.while_loop(lambda c: c["i"] < 2, body, first)
    return x * last["x"] if next(picks) % 3 else x * nm.tanh(last["of_sum"])


def unread_in_branches(x, y, dims, picks):
    """A choice whose branches capture much, read a part of it, and make too much."""
    heavy = attend(x, y, dims, picks) if next(picks) % 2 else combine(x, picks)
    kind, remat = next(picks) % 4, REMAT[next(picks) % 3]

    def ignoring(x):
        return nm.tanh(x), nm.sum(nm.square(heavy))

    def reading(x):
        return nm.sin(x) + (nm.mean(heavy) if kind % 2 else 0.0), nm.sum(x)

    if kind < 3:
        first, second = nm.cond(nm.mean(y) > 0.0, lambda: ignoring(x), lambda: reading(x))
        return first if kind else first * nm.tanh(second)

    def body(carry, _):
        return nm.cond(nm.sum(carry) > 0.0, lambda: ignoring(carry), lambda: reading(carry))[
            0
        ], None

    return nm.scan(body, x, over=LAYERS, remat=remat)[0]


def unread_in_functions(x, y, dims, picks):
    """Functions that ignore an argument, whose second result nobody reads."""
    dim = pick_dim(x, picks)
    heavy = combine(y, picks)
    kind = next(picks) % 4
    if dim is None or kind == 0:
        function = nm.checkpoint(lambda x, _: (nm.tanh(x) * 0.7, combine(x, picks)))
        return function(x, heavy)[0]
    if kind == 1:
        function = nm.custom_vjp(
            lambda x, _: ((nm.sin(x), nm.mean(x)), (x, combine(x, picks))),
            lambda saved, cotangents: (cotangents[0] * nm.cos(saved[0]), None),
        )
        return function(x, heavy)[0]
    if kind == 2:
        other = combine(x, picks)
        return nm.vmap(lambda x, _: (nm.tanh(x), nm.sum(x)), dim)(x, other)[0]
    other = combine(x, picks)
    return nm.manual(lambda x, other: (nm.sin(x), nm.tanh(other)), x, other, over=dim)[0]


def foreign(x, y, dims, picks):
    """Functions of jax and TensorFlow that ignore an argument or a result."""
    dim = pick_dim(x, picks)
    heavy = combine(y, picks)
    batch = [dim] if dim is not None and next(picks) % 2 else []
    if any(d not in x.shape for d in batch) or has(x):
        return nm.tanh(x)
    both = [nm.spec(x.shape, x.dtype), nm.spec(x.shape, x.dtype)]
    kind = next(picks) % 3
    call = nm.call_tf if next(picks) % 2 else nm.call_jax
    if kind == 0:
        return call(lambda x, _: x * x * 0.3, x, heavy, result=both[0], batch=batch)
    if kind == 1:
        return call(lambda x: (x * 0.5, x * x), x, result=both, batch=batch)[0]
    return call(lambda x, z: (x + z, x * z), x, nm.sin(x), result=both, batch=batch)[1] * 0.5


def associative(x, y, dims, picks):
    """A linear recurrence by pairs, of which one half is read."""
    dim = pick_dim(x, picks)
    if dim is None:
        return nm.sin(x)

    def join(first, second):
        (a, b), (c, d) = first, second
        return a * c, b * c + d

    reverse = next(picks) % 2 == 0
    pair = nm.associative_scan(join, (nm.sigmoid(x), x), dim, reverse=reverse)
    return pair[next(picks) % 4 > 0]


def cut(x, y, dims, picks):
    """A part of something that was put together, or the inverse of what was done."""
    dim = pick_dim(x, picks)
    if dim is None or dim.size < 2:
        return x + 0.5
    other, pair = nm.tanh(x), nm.Dimension("pair", 2)
    joined, padded = dim.resized(2 * dim.size), dim.resized(dim.size + 3)
    return [
        lambda: nm.slice(nm.concat([x, combine(other, picks)], dim), joined, 0, dim.size),
        lambda: nm.slice(nm.pad(x, dim, 2, 1), padded, 1, dim.size),
        lambda: nm.reverse(nm.reverse(x, dim), dim) * 0.9,
        lambda: nm.roll(nm.roll(x, dim, 1), dim, -1) * 0.9,
        lambda: nm.replicate(nm.reshard(x, dim), dim) * 0.9,
        lambda: nm.unstack(nm.stack([x, combine(other, picks)], pair), pair)[0],
        lambda: x[dim, 0] if len(x.shape) > 1 else x,
        lambda: nm.sum(nm.broadcast(nm.mean(x), [dim]), dim) * x,
        lambda: nm.dynamic_slice(x, nm.zeros([], "int32"), dim, dim.size - 1),
    ][next(picks) % 9]()


def frozen(x, y, dims, picks):
    """Weights that are not trained, and numbers that live from step to step."""
    dim = pick_dim(x, picks)
    if dim is None:
        return nm.cos(x)
    name = f"frozen{next(picks)}"
    scale = nm.param(name, [dim], nm.constant_init(0.5), trainable=False)
    return x * nm.cast(nm.sin(scale), x.dtype) + nm.cast(nm.mean(scale), x.dtype)


def table(x, y, dims, picks):
    """Rows of a table whose update touches only those."""
    dim, target = pick_dim(x, picks), pick_new_dim(x, dims, picks)
    if dim is None or target is None or has(x, "vocab"):
        return nm.sin(x)
    vocab = nm.Dimension("vocab", (6, 8, 16)[next(picks) % 3])
    ids = nm.cast(nm.mean(nm.sigmoid(nm.stop_gradient(x)), dim) * vocab.size, "int32")
    rows = vocab if next(picks) % 2 else None
    name = f"table{next(picks)}"
    found = nm.gather(nm.param(name, [vocab, target], nm.constant_init(0.3), rows=rows), ids, vocab)
    return nm.cast(found, x.dtype) * 0.7


def ring(x, y, dims, picks):
    """Attention whose keys go round, or whose heads are split instead."""
    model = nm.Dimension("hidden", 4)
    at = [d for d in x.shape if d.size % 2 == 0]
    if not at or has(x, "hidden", "memory", "block"):
        return nm.relu(x)
    query = at[next(picks) % len(at)]
    memory, blocks = nm.Dimension("memory", query.size), nm.Dimension("block", 2)
    q = nm.tanh(nm.broadcast(x, [*x.shape, model]) * (nm.range(model, "float32") * 0.2 + 0.3))
    k, v = nm.rename(q, query, memory), nm.rename(nm.sin(q), query, memory)
    others = [d for d in x.shape if d != query]
    causal = bool(next(picks) % 2)
    if next(picks) % 2 or not others:
        y = nm.ring_attention(q, k, v, memory, model, query=query, ring=blocks, causal=causal)
    else:
        y = nm.ulysses_attention(q, k, v, memory, model, query=query, heads=others[0])
    return nm.mean(y, model)


def narrow(x, y, dims, picks):
    """Sums and products of few bits over a dimension, without gradient."""
    dim = pick_dim(x, picks)
    dtype = ["int8", "uint8", "float16", "bfloat16", "int32"][next(picks) % 5]
    few = nm.cast(nm.cast(nm.sigmoid(nm.stop_gradient(x)) * 1.9, "int32") + 1, dtype)
    if dim is None:
        return x * nm.cast(few, x.dtype)
    combined = [nm.prod, nm.max, nm.min, nm.cumsum][next(picks) % 4]
    few = nm.minimum(few, nm.full([], 1, dtype)) if combined is nm.prod else few
    return x * nm.cast(combined(few, dim), x.dtype) * 0.2


DEEP_STEPS: list[Callable[..., Any]] = [
    *WIDE_STEPS, unread_in_scan, unread_in_scan, unread_in_while, unread_in_branches,
    unread_in_branches, unread_in_functions, unread_in_functions, foreign, foreign, associative,
    cut, cut, frozen, table, ring, ring, narrow,
]  # fmt: skip


EPSILON = 1e-3  # of a gradient that is zero but for rounding, optimizers would take the sign


def optimize(inputs, dims, picks, count, take):
    """One step of an optimizer, of all parameters."""
    main = nm.param("weight", inputs[1].shape, nm.constant_init(1.0))
    _, _, loss = take(inputs, main, dims, picks, count)
    optimizers = [
        Sgd(0.1), Sgd(0.1, momentum=0.9), Adagrad(0.1, epsilon=EPSILON),
        Adam(0.1, epsilon=EPSILON), Adafactor(0.1, epsilon=EPSILON),
    ]  # fmt: skip
    chosen = optimizers[next(picks) % len(optimizers)]
    chosen.apply(nm.grad(loss))
    return {"loss": loss}


def train_rounded(inputs, dims, picks, count, take, dtype="bfloat16"):
    """One step of training with activations in bfloat16."""
    main = nm.param("weight", inputs[1].shape, nm.constant_init(1.0))
    pool = [nm.tanh(nm.cast(one, dtype)) for one in inputs]
    pool.append(pool[1] * nm.cast(main, dtype))
    chain_steps(SMOOTH_STEPS, pool, dims, picks, count)
    last, start = (nm.cast(one, "float32") for one in (pool[-1], pool[3]))
    loss = nm.mean(nm.square(last + 0.5)) + nm.mean(start * start)
    grads = nm.grad(loss)
    for name, parameter in nm.parameters().items():
        nm.assign(parameter, parameter - grads[name] * 0.1)
    return {"loss": loss, "grad": grads["weight"]}


DEEP = Generator(
    functools.partial(take_steps, DEEP_STEPS),
    {**WIDE.endings, "optimizer": optimize, "bfloat16 training": train_rounded},
    most=4,
    ranks=WIDE.ranks,
    extra=(*EXTRA, "block"),
    rounded={**WIDE.rounded, "bfloat16 training": 5e-2},
)


def make_deep_case(seed: int, number: int) -> Case:
    """Makes a case of all steps and endings."""
    return make_case(seed, number, DEEP)
