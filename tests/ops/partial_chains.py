"""Random derivatives in a manual region: chains of ops on partial sums, each made from a seed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

import namedmesh as nm
from tests.ir import my_custom

P, M, K, T = nm.dims("piece=8 model=4 kernel=3 time=3")
ARRAYS = {
    "x": np.random.default_rng(0).uniform(-2, 2, (8, 4)).astype(np.float32),
    "w": np.random.default_rng(1).uniform(0.5, 1.5, 4).astype(np.float32),
}
SPECS = {"x": nm.spec([P, M]), "w": nm.spec([M])}


def indices() -> nm.Tensor:
    """Indices along the dimension, some twice."""
    return nm.remainder(nm.range(M) * 3 + 1, 3)


def grow(start: nm.Tensor, iteration: Any) -> nm.Tensor:
    return nm.scan(lambda c, _: (iteration(c), None), start, over=T)[0]


def repeat(start: nm.Tensor, iteration: Any, limit: Any) -> nm.Tensor:
    """A loop that runs while a number is below a limit."""
    first = (nm.zeros([], "int32"), start)
    return nm.while_loop(
        lambda carry: nm.cast(carry[0], "float32") < limit,
        lambda carry: (carry[0] + 1, iteration(carry[1])),
        first,
    )[1]


def cube_by_tf(a: nm.Tensor) -> nm.Tensor:
    return nm.call_tf(lambda a: a * a * a, a, result=nm.spec([M]))


def cube_by_jax(a: nm.Tensor) -> nm.Tensor:
    return nm.call_jax(lambda a: a**3, a, result=nm.spec([M]))


def counted(x: nm.Tensor, dtype: str = "int32") -> nm.Tensor:
    return nm.sum(nm.cast(x > 0.0, dtype), P)


def number(a: nm.Tensor) -> nm.Tensor:
    return nm.cast(a, "float32")


def places(a: nm.Tensor) -> nm.Tensor:
    return nm.clip(nm.cast(a, "int32"), 0, 3)


# Of two tensors with the dimension model, the weights w, and x, which has the shards.
STEPS = {
    "add": lambda a, b, w, x: a + b,
    "subtract": lambda a, b, w, x: a - b,
    "multiply": lambda a, b, w, x: a * b,
    "divide": lambda a, b, w, x: a / (b + 10.0),
    "divide by a weight": lambda a, b, w, x: a / w,
    "weigh": lambda a, b, w, x: a * w,
    "negate": lambda a, b, w, x: -a,
    "add a number": lambda a, b, w, x: a + 1.0,
    "tanh": lambda a, b, w, x: nm.tanh(a),
    "absolute": lambda a, b, w, x: nm.absolute(a),
    "maximum": lambda a, b, w, x: nm.maximum(a, b),
    "clip": lambda a, b, w, x: nm.clip(a, -1.0, 1.0),
    "where by a weight": lambda a, b, w, x: nm.where(w > 1.0, a, b),
    "where or zero": lambda a, b, w, x: nm.where(w > 1.0, a, 0.0),
    "where by itself": lambda a, b, w, x: nm.where(a > 0.0, a, 0.0),
    "compare": lambda a, b, w, x: number(a > b),
    "bfloat16": lambda a, b, w, x: number(nm.cast(a * 0.0, "bfloat16")) + a,
    "whole numbers": lambda a, b, w, x: number(nm.cast(a, "int32")),
    "cumsum": lambda a, b, w, x: nm.cumsum(a, M),
    "cumprod": lambda a, b, w, x: nm.cumprod(a * 0.1, M),
    "sort others": lambda a, b, w, x: nm.grad(nm.sum(nm.sort(w, M) * nm.stop_gradient(a)), w),
    "reverse": lambda a, b, w, x: nm.reverse(a, M),
    "roll": lambda a, b, w, x: nm.roll(a, M, 1),
    "shift": lambda a, b, w, x: nm.shift(a, M, 1),
    "shift in ones": lambda a, b, w, x: nm.shift(a, M, 1, 1.0),
    "pad": lambda a, b, w, x: nm.slice(nm.pad(a, M, 1, 1), M.resized(6), 0, 4),
    "pad with ones": lambda a, b, w, x: nm.slice(nm.pad(a, M, 1, 1, 1.0), M.resized(6), 0, 4),
    "softmax": lambda a, b, w, x: nm.softmax(a, over=M),
    "total": lambda a, b, w, x: nm.broadcast(nm.sum(a, M), [M]),
    "mean": lambda a, b, w, x: a - nm.mean(a, M),
    "largest": lambda a, b, w, x: a - nm.max(a, M),
    "norm": lambda a, b, w, x: a / nm.sqrt(nm.sum(a * a, M) + 1.0),
    "sort": lambda a, b, w, x: nm.sort(a, M),
    "argmax": lambda a, b, w, x: nm.one_hot(nm.argmax(a, M), M),
    "gather": lambda a, b, w, x: nm.gather(a, indices(), M),
    "gather by it": lambda a, b, w, x: nm.gather(b, places(a), M),
    "scatter": lambda a, b, w, x: nm.scatter_add(a, indices(), M),
    "scatter by it": lambda a, b, w, x: nm.scatter_add(b, places(a), M),
    "set": lambda a, b, w, x: a.at[M, 1].set(0.0),
    "set to one": lambda a, b, w, x: a.at[M, 1].set(1.0),
    "set to another": lambda a, b, w, x: a.at[M, 1].set(b[M, 2]),
    "read and write": lambda a, b, w, x: nm.dynamic_update(a, nm.dynamic_slice(b, 1, M, 2), 0, M),
    "read where it says": lambda a, b, w, x: nm.broadcast(
        nm.sum(nm.dynamic_slice(b, nm.cast(nm.sum(a, M), "int32"), M, 1)), [M]
    ),
    "concat": lambda a, b, w, x: nm.slice(nm.concat([a, b], "model"), M.resized(8), 2, 4),
    "product": lambda a, b, w, x: nm.einsum([a, nm.rename(b, M, nm.Dimension("other", 4))], [M]),
    "convolve": lambda a, b, w, x: nm.sum(
        nm.conv(
            nm.broadcast(a, [M, nm.Dimension("channel", 1)]),
            nm.broadcast(nm.range(K, "float32"), [K, *nm.dims("channel=1 out=1")]),
            {M: K},
            padding="same",
        ),
        nm.Dimension("out", 1),
    ),
    "pool": lambda a, b, w, x: nm.repeat(nm.pool(a, {M: 2}), M.resized(2), 2),
    "hide": lambda a, b, w, x: nm.stop_gradient(nm.checkpoint(lambda a: a * w)(a)),
    "cube again": lambda a, b, w, x: nm.checkpoint(lambda a: a * a * a * 0.1)(a),
    "loop": lambda a, b, w, x: grow(a, lambda c: c * w),
    "loop that adds": lambda a, b, w, x: grow(nm.zeros([M]), lambda c: c + a),
    "loop that adds another": lambda a, b, w, x: grow(a, lambda c: c + b * w),
    "loop that bends": lambda a, b, w, x: grow(a, nm.tanh),
    "loop to zero": lambda a, b, w, x: repeat(a, lambda c: nm.zeros([M]), nm.sum(w)) * b,
    "loop of a length": lambda a, b, w, x: repeat(a, lambda c: c * w, 2.5),
    "loop as long as it": lambda a, b, w, x: repeat(b, lambda c: c * w, nm.sum(a, M) * 0.1),
    "branch": lambda a, b, w, x: nm.cond(nm.sum(w) > 0.0, lambda: a * w, lambda: -b),
    "branch or zero": lambda a, b, w, x: nm.cond(
        nm.sum(w) > 0.0, lambda: a * w, lambda: nm.zeros([M])
    ),
    "branch by it": lambda a, b, w, x: nm.cond(nm.sum(a) > 0.0, lambda: b, lambda: -b),
    "own cube": lambda a, b, w, x: my_custom.Cube((a * 0.3,)).output,
    "own triple": lambda a, b, w, x: my_custom.Triple((a,)).output,
    "own blend": lambda a, b, w, x: my_custom.Blend((a, b)).output,
    "own product": lambda a, b, w, x: my_custom.Product((a, b)).output,
    "own flip": lambda a, b, w, x: my_custom.LastFlip((a,)).output,
    "own softmax": lambda a, b, w, x: my_custom.FirstSoftmax((a,)).output,
    "own cubes": lambda a, b, w, x: my_custom.ManualCubes((x,), P).output,
    "own largest": lambda a, b, w, x: my_custom.ClosedMax((x,), P).output,
    "own sum": lambda a, b, w, x: my_custom.ClosedSum((x * w,), P).output,
    "own two results": lambda a, b, w, x: sum_of_both(x),
    "of each": lambda a, b, w, x: nm.vmap(lambda a, w: a * w, M)(a, w),
    "cube of each": lambda a, b, w, x: nm.vmap(lambda a: my_custom.Cube((a,)).output, M)(a),
    "by TensorFlow": lambda a, b, w, x: cube_by_tf(a),
    "by jax": lambda a, b, w, x: cube_by_jax(a),
    "derivative by TensorFlow": lambda a, b, w, x: nm.grad(cube_by_tf(w), w, cotangent=a),
    "derivative by jax": lambda a, b, w, x: nm.grad(cube_by_jax(w), w, cotangent=a),
    "derivative": lambda a, b, w, x: nm.grad(nm.sum(nm.sin(w) * w), w) * a,
    "derivative of it": lambda a, b, w, x: nm.grad(nm.sum(a * a * w), a),
    "vjp": lambda a, b, w, x: nm.grad(nm.tanh(w), w, cotangent=a),
    "noise": lambda a, b, w, x: a * nm.random.uniform(nm.random.key(3), [M]),
    "sum of x": lambda a, b, w, x: nm.sum(x, P),
    "mean of x": lambda a, b, w, x: nm.mean(x * w, P),
    "max of x": lambda a, b, w, x: nm.max(x, P),
    "prod of x": lambda a, b, w, x: nm.prod(x, P),
    "any of x": lambda a, b, w, x: number(nm.any(x > 1.9, P)),
    "squares of x": lambda a, b, w, x: nm.einsum([x, x], [M]),
    "x with it": lambda a, b, w, x: nm.einsum([x, a], [M]),
    "x beside it": lambda a, b, w, x: nm.sum(x + a, P),
    "count": lambda a, b, w, x: number(counted(x)),
    "few counts": lambda a, b, w, x: number(counted(x, "int8")),
    "unsigned counts": lambda a, b, w, x: number(counted(x, "uint8") * 40),
    "counts in few bits": lambda a, b, w, x: number(nm.cast(counted(x) * 40, "int8")),
    "counted at all": lambda a, b, w, x: number(nm.cast(counted(x), "bool")),
    "divide by a count": lambda a, b, w, x: a / number(counted(x) + 1),
    "halve a count": lambda a, b, w, x: number(nm.floor_divide(counted(x), 2)),
    "even count": lambda a, b, w, x: number(nm.remainder(counted(x), 2)),
    "read at a count": lambda a, b, w, x: nm.gather(b, nm.minimum(counted(x), 3), M),
    "scatter x": lambda a, b, w, x: nm.scatter_add(
        nm.sum(x, M), nm.remainder(nm.range(P), 4), M
    ),
    "histogram": lambda a, b, w, x: number(
        nm.scatter_add(nm.ones([P], "int32"), places(nm.sum(x, M)), M)
    ),
    "tall histogram": lambda a, b, w, x: number(
        nm.scatter_add(nm.ones([P], "int32"), places(nm.sum(x, M)), M) > 1
    ),
}  # fmt: skip


def sum_of_both(x: nm.Tensor) -> nm.Tensor:
    both, total = my_custom.ShiftedSum((x,), P).outputs
    return total + nm.sum(both, P)


def make_chain(seed: int) -> tuple[str, Any]:
    """Make a derivative: a function of the cotangent, w and x; and what it is made of."""
    rng = random.Random(f"chain {seed}")
    names = [rng.choice(sorted(STEPS)) for _ in range(rng.choice((1, 1, 2, 2, 3)))]
    picks = [(rng.random(), rng.random()) for _ in names]

    def derivative(d: nm.Tensor, w: nm.Tensor, x: nm.Tensor) -> nm.Tensor:
        pool = [w, d]
        for name, (first, second) in zip(names, picks, strict=True):
            # Most often the newest: what is left behind is not tested.
            a = pool[-1] if first < 0.7 else pool[int(first * 100) % len(pool)]
            b = pool[int(second * len(pool))]
            pool.append(STEPS[name](a, b, w, x))
        return nm.transpose(pool[-1], [M])

    return ", ".join(names), derivative


def gradient(derivative: Any, x: nm.Tensor, w: nm.Tensor) -> nm.Tensor:
    """The gradient of w through a region over x's shards, whose backward pass is a derivative."""
    bent = nm.custom_vjp(lambda w, x: (w, (w, x)), lambda saved, d: (derivative(d, *saved), None))
    y = nm.manual(lambda x: x * bent(w, x), x, over=P)
    return nm.grad(nm.sum(y * y), w)
