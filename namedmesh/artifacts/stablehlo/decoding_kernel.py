"""Attention of one token to those before it on NVIDIA GPUs, by Pallas: keys and values read once.

What a cache keeps of a layer is read where it lies: rows of a larger array, in its own order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from namedmesh.artifacts.stablehlo.attention_kernel import (
    LOG2E,
    LOWEST,
    SMALLEST,
    choose,
    find_bounds,
)

TILE, WARPS, STAGES = 64, 4, 3
LARGEST_KEY = 256
ROWS = SMALLEST  # of a product: the queries that share keys, and zeros
LEAST_KEYS = 512  # of a part, where the keys of one row are divided among several programs
PROGRAMS = 264  # that keep a GPU busy: two on each of its multiprocessors


class Rows(NamedTuple):
    """An array of which the kernel reads some rows, between the dimensions of the batch."""

    array: Any  # before, rows, after, key
    first: Any  # the first row, int32[1]


@dataclass(frozen=True)
class DecodingCall:
    """One call: each of a batch has a few queries that share its keys and values."""

    batch: tuple[int, ...]
    queries: tuple[int, ...]
    memory: int  # the number of keys
    key: int  # the size of a key
    mask: tuple[int, ...] | None  # sizes of the batch's dimensions and of memory, or ones
    scale: float
    places: tuple[int, ...]  # of rows among the dimensions of the arrays of keys and of values

    @classmethod
    def of(cls, config: dict[str, Any], reads: Sequence[jax.ShapeDtypeStruct]) -> Self | None:
        """Describe a call; None for what the kernel does not do.

        Keys and values are whole, or `config["opened"]` says how they lie in arrays that are read
        instead, each followed by its first row.
        """
        opened: Sequence[dict[str, Any]] = config.get("opened", ())
        q = reads[0].shape
        first = config["batch"]
        last = first + config["queries"]
        batch, queries, key = q[:first], q[first:last], q[-1]
        memory = (opened[0]["sizes"] if opened else reads[1].shape)[first]
        mask = None
        if config["mask"] is not None:
            sizes = dict(zip(config["mask"], reads[5 if opened else 3].shape, strict=True))
            names = [*config["rows"][:first], config["rows"][-1]]
            mask = tuple(sizes.get(name, 1) for name in names)
            if len(sizes) > sum(name in sizes for name in names):
                return None  # a mask for each query
        places = [one["order"][first] for one in opened]
        fits = (
            not q[last:-1]
            and config["results"] == [0]
            and not config["rate"]
            and math.prod(queries) <= ROWS
            and key & (key - 1) == 0
            and SMALLEST <= key <= LARGEST_KEY
            and reads[0].dtype in (jnp.bfloat16, jnp.float16)
        )
        for one, place in zip(opened, places, strict=True):
            # The batch's dimensions are in order, the key's comes last, and rows alone are cut.
            others = [dim for dim in one["order"] if dim != place]
            fits = fits and others == sorted(others) and one["along"] in (None, place)
            fits = fits and place < len(others)
        if not fits:
            return None
        return cls(batch, queries, memory, key, mask, config["scale"], tuple(places))

    def run(self, *reads: Any, interpret: bool = False) -> Any:
        """Compute the averages."""
        q, *rest = reads
        if self.places:
            k, first_k, v, first_v, *mask = rest
            keys, values = (
                self._lay(k, self.places[0], first_k),
                self._lay(v, self.places[1], first_v),
            )
        else:
            k, v, *mask = rest
            keys, values = (self._lay(one, len(self.batch), 0) for one in (k, v))
        count, several = math.prod(self.batch), math.prod(self.queries)
        q = q.reshape(count, several, self.key)
        allowed = self._spread(mask[0]) if mask else None
        y = run_decoding(q, keys, values, allowed, self.memory, self.scale, interpret=interpret)
        return (y.reshape(*self.batch, *self.queries, self.key),)

    def _lay(self, array: Any, place: int, first: Any) -> Rows:
        """Return an array with what comes before and after its rows in one dimension each."""
        shape = array.shape
        sizes = math.prod(shape[:place]), shape[place], math.prod(shape[place + 1 : -1]), self.key
        first = jnp.clip(jnp.asarray(first, jnp.int32), 0, shape[place] - self.memory)
        return Rows(array.reshape(sizes), first.reshape(1))

    def _spread(self, mask: Any) -> Any:
        """Return which keys are allowed: a row for each of the batch that differs from the next."""
        assert self.mask is not None
        sizes = self.mask[:-1]
        differing = [i for i, size in enumerate(sizes) if size > 1]
        outer = self.batch[: differing[-1] + 1] if differing else ()
        mask = mask.reshape(*sizes[: len(outer)], self.mask[-1])
        mask = jnp.broadcast_to(mask, (*outer, self.memory))
        return mask.astype(jnp.int8).reshape(-1, self.memory)


def _decode(
    q_ref, k_ref, v_ref, first_k_ref, first_v_ref, mask_ref, bounds_ref, y_ref, *of_parts,
    memory, scale, tiles,
):  # fmt: skip
    """Average values for the queries of one of the batch, over one part of its keys."""
    several, width = q_ref.shape
    rows, columns = jnp.arange(ROWS, dtype=jnp.int32), jnp.arange(width, dtype=jnp.int32)[None, :]
    real = jnp.broadcast_to((rows < several)[:, None], (ROWS, width))
    q = plgpu.load(q_ref.at[rows[:, None], columns], mask=real, other=0.0)
    first_k, first_v = first_k_ref[0], first_v_ref[0]

    def add_tile(i, carry):
        total, highest, mass = carry
        numbers = i * TILE + jnp.arange(TILE, dtype=jnp.int32)
        inside = numbers < memory
        present = jnp.broadcast_to(inside[:, None], (TILE, width))
        k = plgpu.load(k_ref.at[(first_k + numbers)[:, None], columns], mask=present, other=0.0)
        scores = plgpu.dot(q, k.T) * (scale * LOG2E)
        if mask_ref is not None:
            inside = plgpu.load(mask_ref.at[numbers], mask=inside, other=0) != 0
        allowed = jnp.broadcast_to(inside[None, :], scores.shape)
        scores = choose(allowed, scores, LOWEST)
        higher = jnp.maximum(highest, jnp.max(scores, axis=1))
        shrink = jnp.exp2(highest - higher)
        weights = choose(allowed, jnp.exp2(scores - higher[:, None]), 0.0)
        mass = mass * shrink + jnp.sum(weights, axis=1)
        v = plgpu.load(v_ref.at[(first_v + numbers)[:, None], columns], mask=present, other=0.0)
        total = total * shrink[:, None] + plgpu.dot(weights.astype(q.dtype), v)
        return total, higher, mass

    start = (
        jnp.zeros((ROWS, width), jnp.float32),
        jnp.full((ROWS,), LOWEST, jnp.float32),
        jnp.zeros((ROWS,), jnp.float32),
    )
    low = pl.program_id(1) * tiles
    high = jnp.minimum(low + tiles, math.ceil(memory / TILE))
    if bounds_ref is not None:
        low, high = jnp.maximum(low, bounds_ref[0]), jnp.minimum(high, bounds_ref[1])
    total, highest, mass = lax.fori_loop(low, high, add_tile, start)
    if not of_parts:
        total = total / choose(mass != 0.0, mass, 1.0)[:, None]
    for ref, numbers in zip(of_parts, (highest, mass), strict=False):
        plgpu.store(ref.at[rows], numbers, mask=rows < several)
    plgpu.store(y_ref.at[rows[:, None], columns], total.astype(y_ref.dtype), mask=real)


def count_parts(count: int, memory: int) -> int:
    """Return into how many parts the keys of each of the batch are divided."""
    return max(1, min(PROGRAMS // count, memory // LEAST_KEYS))


def run_decoding(
    q: Any, keys: Rows, values: Rows, mask: Any | None, memory: int, scale: float, *,
    interpret: bool = False,
) -> Any:  # fmt: skip
    """Run attention of queries [batch, several, key]; the mask has a row for some of the batch."""
    count, several, width = q.shape
    parts = count_parts(count, memory)
    tiles = math.ceil(math.ceil(memory / TILE) / parts)
    bounds = None
    if mask is not None:
        tiled = jnp.pad(mask, ((0, 0), (0, -memory % TILE)))
        bounds = find_bounds(tiled[:, None], 1, TILE)[
            :, 0, ::2
        ]  # the first tile, and after the last

    def whole(rows: Rows) -> pl.BlockSpec:
        """Return the rows of an array that belong to one of the batch."""
        _, count, after, _ = rows.array.shape
        return pl.BlockSpec((None, count, None, width), lambda b, p: (b // after, 0, b % after, 0))

    def shared(array: Any | None) -> pl.BlockSpec | None:
        """Return the row of the mask that belongs to one of the batch."""
        if array is None:
            return None
        each = count // len(array)
        return pl.BlockSpec((None, array.shape[1]), lambda b, p: (b // each, 0))

    one = pl.BlockSpec((1,), lambda b, p: (0,))
    sizes = (count, parts, several)
    out = [jax.ShapeDtypeStruct((*sizes, width), jnp.float32 if parts > 1 else q.dtype)]
    out_specs = [pl.BlockSpec((None, None, several, width), lambda b, p: (b, p, 0, 0))]
    for _ in range(2 if parts > 1 else 0):
        out.append(jax.ShapeDtypeStruct(sizes, jnp.float32))
        out_specs.append(pl.BlockSpec((None, None, several), lambda b, p: (b, p, 0)))
    y, *of_parts = pl.pallas_call(
        functools.partial(_decode, memory=memory, scale=scale, tiles=tiles),
        grid=(count, parts),
        in_specs=[
            pl.BlockSpec((None, several, width), lambda b, p: (b, 0, 0)),
            *(whole(keys), whole(values), one, one, shared(mask), shared(bounds)),
        ],
        out_specs=out_specs,
        out_shape=out,
        compiler_params=plgpu.CompilerParams(num_warps=WARPS, num_stages=STAGES),
        interpret=interpret,
        name="attention_decode",
    )(q, keys.array, values.array, keys.first, values.first, mask, bounds)
    if parts == 1:
        return y[:, 0]
    highest, mass = of_parts
    peak = jnp.max(highest, axis=1, keepdims=True)
    share = jnp.exp2(highest - peak)
    mass = jnp.sum(mass * share, axis=1)[..., None]
    total = jnp.sum(y * share[..., None], axis=1)
    return (total / jnp.where(mass == 0.0, 1.0, mass)).astype(q.dtype)
