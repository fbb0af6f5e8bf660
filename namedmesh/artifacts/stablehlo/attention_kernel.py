"""Attention in tiles on NVIDIA GPUs, by Pallas: no tensor of queries times keys is ever stored.

Dropout hashes a word of each query with the number of the key: the same bits as in named ops.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

LOG2E = math.log2(math.e)
GOLDEN = 0x9E3779B9
LOWEST = -1e30
SMALLEST = 16  # the least size of a product's side
LARGEST_KEY = 128  # what fits beside the tiles


@dataclass(frozen=True)
class Tiles:
    """Queries and keys of a tile of one pass, and the warps and stages it runs on."""

    queries: int
    keys: int
    warps: int
    stages: int


FORWARD = Tiles(128, 32, 4, 4)
BACKWARD_KEYS = Tiles(64, 64, 4, 2)
BACKWARD_QUERIES = Tiles(64, 64, 4, 2)


@dataclass(frozen=True)
class Options:
    """The scores' scale, and the rate of dropout."""

    scale: float
    rate: float = 0.0

    @property
    def threshold(self) -> int:
        """The word below which weights are dropped."""
        return int(self.rate * 2**32)

    @property
    def grow(self) -> float:
        """The factor that makes up for the weights that are dropped."""
        return 1.0 / (1.0 - self.rate)


def mix(x: Any) -> Any:
    """Permute 32-bit words; every input bit changes every output bit (lowbias32)."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, None)):
        x = x ^ lax.shift_right_logical(x, jnp.uint32(shift))
        if factor is not None:
            x = x * jnp.uint32(factor)
    return x


def choose(condition: Any, x: Any, otherwise: Any) -> Any:
    """Take x where a condition holds, and a number elsewhere (jnp.where, without a call)."""
    return lax.select(condition, x, lax.full(x.shape, otherwise, x.dtype))


def find_kept(words: Any, numbers: Any, options: Options) -> Any:
    """Return which weights dropout keeps, from a word for each query and the keys' numbers."""
    mixed = mix(words + numbers.astype(jnp.uint32) * jnp.uint32(GOLDEN))
    return mixed >= jnp.uint32(options.threshold)


def _count(first: Any, keys: int) -> Any:
    """Return the numbers of the keys of a tile."""
    return first + jnp.arange(keys, dtype=jnp.int32)


def _each_tile(bounds: Any, tiles: int, add_tile: Any, start: Any) -> Any:
    """Loop over the tiles in which something is allowed, first those in which everything is."""
    if bounds is None:
        return lax.fori_loop(0, tiles, functools.partial(add_tile, masked=False), start)
    low, full, high = (bounds[i] for i in range(3))
    start = lax.fori_loop(low, full, functools.partial(add_tile, masked=False), start)
    return lax.fori_loop(full, high, functools.partial(add_tile, masked=True), start)


def _forward(
    q_ref, k_ref, v_ref, mask_ref, bounds_ref, words_ref, y_ref, lse_ref, *, options, tiles
):
    """Average values for one tile of queries, by tiles of keys."""
    q = q_ref[...]
    words = None if words_ref is None else words_ref[...][:, None]

    def add_tile(i, carry, masked):
        total, highest, mass = carry
        keys = pl.ds(i * tiles.keys, tiles.keys)
        scores = plgpu.dot(q, k_ref[keys, :].T) * (options.scale * LOG2E)
        if masked:
            allowed = mask_ref[:, keys] != 0
            scores = choose(allowed, scores, LOWEST)
        higher = jnp.maximum(highest, jnp.max(scores, axis=1))
        shrink = jnp.exp2(highest - higher)
        weights = jnp.exp2(scores - higher[:, None])
        if masked:  # where nothing was allowed yet, the highest is the lowest
            weights = choose(allowed, weights, 0.0)
        mass = mass * shrink + jnp.sum(weights, axis=1)
        if words is not None:
            numbers = _count(i * tiles.keys, tiles.keys)[None, :]
            weights = choose(find_kept(words, numbers, options), weights, 0.0)
        total = total * shrink[:, None] + plgpu.dot(weights.astype(q.dtype), v_ref[keys, :])
        return total, higher, mass

    start = (
        jnp.zeros(q.shape, jnp.float32),
        jnp.full(q.shape[:1], LOWEST, jnp.float32),
        jnp.zeros(q.shape[:1], jnp.float32),
    )
    total, highest, mass = _each_tile(bounds_ref, k_ref.shape[0] // tiles.keys, add_tile, start)
    mass = choose(mass != 0.0, mass, 1.0)
    y_ref[...] = (total * (options.grow / mass)[:, None]).astype(y_ref.dtype)
    lse_ref[...] = (highest + jnp.log2(mass)) * (1.0 / LOG2E)


def weigh(scores, d_weights, lse, delta, allowed, kept, options):
    """Turn a tile's scores into weights after dropout, and into their own cotangent."""
    weights = jnp.exp2(scores * (options.scale * LOG2E) - lse * LOG2E)
    if allowed is not None:
        weights = choose(allowed, weights, 0.0)
    if kept is None:
        return weights, weights * (d_weights - delta)
    d_weights = choose(kept, d_weights * options.grow, 0.0)
    return choose(kept, weights, 0.0), weights * (d_weights - delta)


def _backward_keys(
    q_ref, k_ref, v_ref, mask_ref, bounds_ref, words_ref, dy_ref, lse_ref, delta_ref,
    dk_ref, dv_ref, *, options, tiles,
):  # fmt: skip
    """Compute the cotangents of one tile of keys and values, by tiles of queries."""
    # Tiles have keys first here: the products that follow take them as they are.
    k, v = k_ref[...], v_ref[...]
    numbers = _count(pl.program_id(0) * tiles.keys, tiles.keys)[:, None]

    def add_tile(i, carry, masked):
        dk, dv = carry
        queries = pl.ds(i * tiles.queries, tiles.queries)
        q, dy = q_ref[queries, :], dy_ref[queries, :]
        scores, d_weights = plgpu.dot(k, q.T), plgpu.dot(v, dy.T)
        allowed = mask_ref[:, queries] != 0 if masked else None
        kept = (
            None if words_ref is None else find_kept(words_ref[queries][None, :], numbers, options)
        )
        lse, delta = lse_ref[queries][None, :], delta_ref[queries][None, :]
        weights, d_scores = weigh(scores, d_weights, lse, delta, allowed, kept, options)
        dv = dv + plgpu.dot(weights.astype(dy.dtype), dy)
        return dk + plgpu.dot(d_scores.astype(q.dtype), q), dv

    zeros = jnp.zeros(k.shape, jnp.float32)
    count = q_ref.shape[0] // tiles.queries
    dk, dv = _each_tile(bounds_ref, count, add_tile, (zeros, zeros))
    dk_ref[...] = (dk * options.scale).astype(dk_ref.dtype)
    dv_ref[...] = (dv * options.grow).astype(dv_ref.dtype)


def _backward_queries(
    q_ref, k_ref, v_ref, mask_ref, bounds_ref, words_ref, dy_ref, lse_ref, delta_ref,
    dq_ref, *, options, tiles,
):  # fmt: skip
    """Compute the cotangents of one tile of queries, by tiles of keys."""
    q, dy = q_ref[...], dy_ref[...]
    lse, delta = lse_ref[...][:, None], delta_ref[...][:, None]
    words = None if words_ref is None else words_ref[...][:, None]

    def add_tile(i, dq, masked):
        keys = pl.ds(i * tiles.keys, tiles.keys)
        k = k_ref[keys, :]
        scores, d_weights = plgpu.dot(q, k.T), plgpu.dot(dy, v_ref[keys, :].T)
        allowed = mask_ref[:, keys] != 0 if masked else None
        numbers = _count(i * tiles.keys, tiles.keys)[None, :]
        kept = None if words is None else find_kept(words, numbers, options)
        _, d_scores = weigh(scores, d_weights, lse, delta, allowed, kept, options)
        return dq + plgpu.dot(d_scores.astype(k.dtype), k)

    start = jnp.zeros(q.shape, jnp.float32)
    dq = _each_tile(bounds_ref, k_ref.shape[0] // tiles.keys, add_tile, start)
    dq_ref[...] = (dq * options.scale).astype(dq_ref.dtype)


def sort_tiles(mask: Any, own: int, other: int) -> tuple[Any, Any]:
    """Find in which tiles something is allowed, and in which everything."""
    batch, rows, columns = mask.shape
    cut = mask.reshape(batch, rows // own, own, columns // other, other) != 0
    return jnp.any(cut, axis=(2, 4)), jnp.all(cut, axis=(2, 4))


def find_bounds(mask: Any, own: int, other: int) -> Any:
    """Find the tiles of the last dimension in which something is allowed, for each tile before."""
    # The result is [batch, own tiles, 3]: the first tile, the first from which on not everything is
    # allowed, and the one after the last.
    some, every = sort_tiles(mask, own, other)
    count = some.shape[-1]
    numbers = lax.broadcasted_iota(jnp.int32, some.shape, 2)
    high = jnp.max(choose(some, numbers + 1, 0), axis=-1)
    low = jnp.minimum(jnp.min(choose(some, numbers, count), axis=-1), high)
    partly = ~every & (numbers >= low[..., None])
    full = jnp.minimum(jnp.min(choose(partly, numbers, count), axis=-1), high)
    return jnp.stack([low, full, high], axis=-1)


class Operands(NamedTuple):
    """The arguments that all three passes share."""

    q: Any  # batch, queries, heads, key
    k: Any  # batch, keys, heads, key
    v: Any
    mask: Any | None  # batch or 1, queries, keys; int8
    words: Any | None  # batch, heads, queries; uint32


def _run(kernel, operands, more, results, over, options, tiles, interpret):
    """Run a pass over tiles of queries (or of keys), each with all of the other."""
    q, k, v, mask, words = operands
    batch, queries, heads, width = q.shape
    whole = {"queries": queries, "keys": k.shape[1]}
    size, count = getattr(tiles, over), whole[over] // getattr(tiles, over)

    def block(array, what):
        """Return the block of an array of rows, or of one number for each row and head."""
        rows, own = (size, True) if what == over else (whole[what], False)
        if array.ndim == 4:
            return pl.BlockSpec(
                (None, rows, None, width), lambda i, b, n: (b, i if own else 0, n, 0)
            )
        return pl.BlockSpec((None, None, rows), lambda i, b, n: (b, n, i if own else 0))

    bounds = mask_block = bounds_block = None
    if mask is not None:
        mask = mask if over == "queries" else jnp.swapaxes(mask, 1, 2)
        other = tiles.keys if over == "queries" else tiles.queries
        bounds, each = find_bounds(mask, size, other), mask.shape[0] > 1
        mask_block = pl.BlockSpec(
            (None, size, mask.shape[2]), lambda i, b, n: (b if each else 0, i, 0)
        )
        bounds_block = pl.BlockSpec((None, None, 3), lambda i, b, n: (b if each else 0, i, 0))
    blocks = [block(q, "queries"), block(k, "keys"), block(v, "keys"), mask_block, bounds_block]
    blocks.append(None if words is None else block(words, "queries"))
    return pl.pallas_call(
        functools.partial(kernel, options=options, tiles=tiles),
        grid=(count, batch, heads),
        in_specs=[*blocks, *(block(array, "queries") for array in more)],
        out_specs=[block(like, over) for like in results],
        out_shape=[jax.ShapeDtypeStruct(like.shape, like.dtype) for like in results],
        compiler_params=plgpu.CompilerParams(num_warps=tiles.warps, num_stages=tiles.stages),
        interpret=interpret,
        name=f"attention{kernel.__name__}",
    )(q, k, v, mask, bounds, words, *more)


def run_forward(operands, options, *, tiles=FORWARD, interpret=False):
    """Run attention; return it and the logarithm of each query's sum of exponentials."""
    batch, queries, heads, _ = operands.q.shape
    results = operands.q, jax.ShapeDtypeStruct((batch, heads, queries), jnp.float32)
    return _run(_forward, operands, (), results, "queries", options, tiles, interpret)


def run_backward(
    operands, y, lse, dy, options, *, by_keys=BACKWARD_KEYS, by_queries=BACKWARD_QUERIES,
    interpret=False,
):  # fmt: skip
    """Run the backward pass; return the cotangents of queries, keys and values."""
    products = y.astype(jnp.float32) * dy.astype(jnp.float32)
    delta = jnp.swapaxes(jnp.sum(products, axis=-1), 1, 2)  # batch, heads, queries
    more, (q, k, v, *_) = (dy, lse, delta), operands
    dk, dv = _run(_backward_keys, operands, more, (k, v), "keys", options, by_keys, interpret)
    (dq,) = _run(_backward_queries, operands, more, (q,), "queries", options, by_queries, interpret)
    return dq, dk, dv


@dataclass(frozen=True)
class AttentionCall:
    """One call of the kernel, which takes each of batch, queries and heads as one dimension."""

    batch: tuple[int, ...]  # sizes before the positions
    queries: tuple[int, ...]  # sizes of the positions that attend
    heads: tuple[int, ...]  # sizes after the positions
    memory: int  # the number of keys
    key: int  # the size of a key
    mask: tuple[int, ...] | None  # sizes, with ones where it does not have a dimension
    options: Options

    @classmethod
    def of(cls, config: dict[str, Any], reads: Sequence[jax.ShapeDtypeStruct]) -> Self | None:
        """Describe a call; None for what the kernel does not do."""
        q, k = reads[0].shape, reads[1].shape
        first = config["batch"]
        last = first + config["queries"]
        batch, queries, heads, memory, key = q[:first], q[first:last], q[last:-1], k[first], q[-1]
        mask = None
        if config["mask"] is not None:
            sizes = dict(zip(config["mask"], reads[3].shape, strict=True))
            mask = tuple(sizes.get(name, 1) for name in config["rows"])
            if len(sizes) > sum(name in sizes for name in config["rows"]):
                return None  # a mask for each head
        if not cls.fits(reads[0].dtype, math.prod(queries), memory, key):
            return None
        options = Options(config["scale"], config["rate"])
        return cls(batch, queries, heads, memory, key, mask, options)

    @classmethod
    def fits(cls, dtype: Any, queries: int, memory: int, key: int) -> bool:
        """Return whether the kernel takes operands of these sizes."""
        return (
            key & (key - 1) == 0
            and SMALLEST <= key <= LARGEST_KEY
            and dtype in (jnp.bfloat16, jnp.float16)
            and queries % SMALLEST == 0
            and memory % SMALLEST == 0
        )

    def tiles(self, wanted: Tiles) -> Tiles:
        """Return the tiles nearest to those wanted that divide the sizes."""
        queries = math.gcd(wanted.queries, math.prod(self.queries))
        return replace(wanted, queries=queries, keys=math.gcd(wanted.keys, self.memory))

    def spread_mask(self, mask: Any, over: Sequence[int]) -> Any:
        """Return a mask of batch or 1, queries of some dimensions, and keys; it lacks the rest."""
        assert self.mask is not None
        first, queries = len(self.batch), [self.queries[i] for i in over]
        batch, sizes = self.mask[:first], [self.mask[first + i] for i in over]
        mask = mask.reshape(*batch, *sizes, self.mask[-1])
        batch = self.batch if any(size > 1 for size in batch) else batch
        mask = jnp.broadcast_to(mask, (*batch, *queries, self.memory)).astype(jnp.int8)
        return mask.reshape(-1, math.prod(queries), self.memory)

    def shared(self, reads: Sequence[Any]) -> Operands:
        """Return queries, keys, values, mask and words as the kernel takes them."""
        b, s, n = (math.prod(sizes) for sizes in (self.batch, self.queries, self.heads))
        q, k, v, *extra = reads
        mask = words = None
        if self.mask is not None:
            mask = self.spread_mask(extra[0], range(len(self.queries)))
        if self.options.rate:
            words = extra[-1].reshape(b, n, s)
        q, k, v = (x.reshape(b, -1, n, self.key) for x in (q, k, v))
        return Operands(q, k, v, mask, words)

    def forward(self, *reads: Any) -> tuple[Any, ...]:
        """Compute the averages, and the logarithm of every row's sum of exponentials."""
        y, lse = run_forward(self.shared(reads), self.options, tiles=self.tiles(FORWARD))
        return (
            y.reshape(*self.batch, *self.queries, *self.heads, self.key),
            lse.reshape(*self.batch, *self.heads, *self.queries),
        )

    def backward(self, *reads: Any) -> tuple[Any, ...]:
        """Compute the cotangents of queries, keys and values."""
        *first, y, lse, dy = reads
        operands = self.shared(first)
        batch, queries, heads, _ = shape = operands.q.shape
        y, lse, dy = y.reshape(shape), lse.reshape(batch, heads, queries), dy.reshape(shape)
        by_keys, by_queries = self.tiles(BACKWARD_KEYS), self.tiles(BACKWARD_QUERIES)
        cotangents = run_backward(
            operands, y, lse, dy, self.options, by_keys=by_keys, by_queries=by_queries
        )
        return tuple(x.reshape(like.shape) for x, like in zip(cotangents, reads, strict=False))
