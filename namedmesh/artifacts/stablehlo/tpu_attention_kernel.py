"""Attention in tiles on TPUs, by Pallas: no tensor of queries times keys is ever stored.

Tile have keys first, so that what there is of each query (its highest score, its sum of
exponentials, a word for dropout) is a row of lanes. No tile is transposed: XLA transposes keys,
values and results outside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from namedmesh.artifacts.stablehlo.attention_kernel import (
    LOG2E,
    LOWEST,
    AttentionCall,
    Options,
    choose,
    find_kept,
    sort_tiles,
    weigh,
)

TILE = 256  # what numbers of queries and keys are multiples of, as in hardware/hardware.py
PACKED = 16  # rows of bfloat16 in a register
LARGEST_KEY = 256
MOST_PAIRS = 2**31  # of queries and keys: of more, named ops make the mask by blocks of keys
BY_ROWS, BY_COLUMNS = ((1,), (1,)), ((1,), (0,))  # the dimensions that a product contracts


class Tile(NamedTuple):
    """Queries and keys that are multiplied at once."""

    queries: int
    keys: int


@dataclass(frozen=True)
class Core:
    """A core, as far as the kernel has to know it."""

    tiles: Tile  # the largest
    widens: bool  # whether its products take float32 alone, which they round

    @classmethod
    def current(cls) -> Core:
        """Return what is known of the core that jax lowers for."""
        info = pltpu.get_tpu_info()
        # v2 to v4 have 16 MiB, and v5p gives a kernel as much of its 64.
        size = 1024 if info.vmem_capacity_bytes >= 128 * 2**20 else 512
        return cls(Tile(size, size), info.generation < 4)


class Arrays(NamedTuple):
    """Operands of a pass, or their tiles; rows are those of batch and heads."""

    q: Any = None  # rows, queries of all groups, key
    k: Any = None  # rows, keys, key
    v: Any = None
    turned: Any = None  # rows, key, keys: values, or keys in the pass over queries
    mask: Any = None  # batch or 1, keys, queries of a group; int8
    words: Any = None  # rows, 1, queries; uint32
    dy: Any = None
    lse: Any = None
    delta: Any = None


KINDS = Arrays(
    "queries", "keys", "keys", "keys last", "mask", "queries last", "queries", "queries last",
    "queries last",
)  # fmt: skip


class Total(NamedTuple):
    """A sum over tiles: for each query or key a number, or as many as a key has."""

    kind: str
    wide: bool
    start: float = 0.0


@dataclass(frozen=True)
class Pass:
    """A loop over all tiles of keys for each tile of queries, or the other way round."""

    over: str
    sums: tuple[Total, ...]
    results: int  # of the kinds of the first sums
    add: Callable[..., None]
    finish: Callable[..., None]

    def locate(self, own: Any, other: Any) -> tuple[Any, Any]:
        """Return the tile of queries and that of keys."""
        return (own, other) if self.over == "queries" else (other, own)


def _multiply(x: Any, y: Any, contracted: Any) -> Any:
    """Multiply two matrices in float32."""
    return lax.dot_general(x, y, (contracted, ((), ())), preferred_element_type=jnp.float32)


def _find_kept(tile: Arrays, first: Any, shape: tuple[int, ...], options: Options) -> Any:
    """Return which weights of a tile dropout keeps; None for all."""
    if tile.words is None:
        return None
    return find_kept(tile.words, first + lax.broadcasted_iota(jnp.int32, shape, 0), options)


def _forward(tile, sums, first, options):
    """Add a tile of keys to the sums of a tile of queries."""
    total, highest, mass = sums
    scores = _multiply(tile.k, tile.q, BY_ROWS) * (options.scale * LOG2E)
    if tile.mask is not None:
        scores = choose(tile.mask, scores, LOWEST)
    higher = jnp.maximum(highest[...], jnp.max(scores, axis=0, keepdims=True))
    shrink = jnp.exp2(highest[...] - higher)
    weights = jnp.exp2(scores - higher)
    if tile.mask is not None:  # where nothing was allowed yet, the highest is the lowest
        weights = choose(tile.mask, weights, 0.0)
    highest[...] = higher
    mass[...] = mass[...] * shrink + jnp.sum(weights, axis=0, keepdims=True)
    kept = _find_kept(tile, first, scores.shape, options)
    if kept is not None:
        weights = choose(kept, weights, 0.0)
    added = _multiply(tile.turned, weights.astype(tile.turned.dtype), BY_COLUMNS)
    total[...] = total[...] * shrink + added


def _finish_forward(results, sums, options):
    """Write averages, and the logarithm of each query's sum of exponentials."""
    (y, lse), (total, highest, mass) = results, (one[...] for one in sums)
    mass = choose(mass != 0.0, mass, 1.0)
    y[...] = (total * (options.grow / mass)).astype(y.dtype)
    lse[...] = (highest + jnp.log2(mass)) * (1.0 / LOG2E)


def _weigh(tile, first, options):
    """Return the weights of a tile after dropout, and the cotangents of its scores."""
    scores = _multiply(tile.k, tile.q, BY_ROWS)
    d_weights = _multiply(tile.v, tile.dy, BY_ROWS)
    kept = _find_kept(tile, first, scores.shape, options)
    return weigh(scores, d_weights, tile.lse, tile.delta, tile.mask, kept, options)


def _backward_keys(tile, sums, first, options):
    """Add a tile of queries to the cotangents of a tile of keys and values."""
    dk, dv = sums
    weights, d_scores = _weigh(tile, first, options)
    dv[...] += _multiply(weights.astype(tile.dy.dtype), tile.dy, BY_COLUMNS)
    dk[...] += _multiply(d_scores.astype(tile.q.dtype), tile.q, BY_COLUMNS)


def _finish_keys(results, sums, options):
    """Write the cotangents of keys and values."""
    for result, total, scale in zip(results, sums, (options.scale, options.grow), strict=True):
        result[...] = (total[...] * scale).astype(result.dtype)


def _backward_queries(tile, sums, first, options):
    """Add a tile of keys to the cotangents of a tile of queries."""
    _, d_scores = _weigh(tile, first, options)
    d_scores = d_scores.astype(tile.turned.dtype)
    sums[0][...] += _multiply(tile.turned, d_scores, BY_COLUMNS)


def _finish_queries(results, sums, options):
    """Write the cotangents of queries."""
    results[0][...] = (sums[0][...] * options.scale).astype(results[0].dtype)


_OF_QUERIES, _OF_KEYS = Total("queries last", True), Total("keys", True)
_NUMBERS = Total("queries last", False, LOWEST), Total("queries last", False)
FORWARD = Pass("queries", (_OF_QUERIES, *_NUMBERS), 2, _forward, _finish_forward)
BACKWARD_KEYS = Pass("keys", (_OF_KEYS, _OF_KEYS), 2, _backward_keys, _finish_keys)
BACKWARD_QUERIES = Pass("queries", (_OF_QUERIES,), 1, _backward_queries, _finish_queries)


def find_spans(mask: Any, own: int, other: int) -> Any:
    """Find the tiles in which something is allowed, and a run of those in which everything is."""
    # For each mask and tile of the first dimension four numbers, one after the other: the first
    # tile with something and the one after the last; the first full one and the one after the run.
    some, every = sort_tiles(mask, own, other)
    count = some.shape[-1]
    numbers = lax.broadcasted_iota(jnp.int32, some.shape, 2)
    high = jnp.max(choose(some, numbers + 1, 0), axis=-1)
    low = jnp.minimum(jnp.min(choose(some, numbers, count), axis=-1), high)
    first = jnp.minimum(jnp.min(choose(every, numbers, count), axis=-1), high)
    later = ~every & (numbers >= first[..., None])
    last = jnp.minimum(jnp.min(choose(later, numbers, count), axis=-1), high)
    return jnp.stack([low, high, first, last], axis=-1).reshape(-1)


@dataclass(frozen=True)
class Spans:
    """The tiles that a mask allows for each own tile, read from the numbers of find_spans."""

    heads: int
    each: bool  # whether every row of the batch has a mask
    own: int  # tiles of the mask: those of one group of queries
    other: int

    def batch(self, row: Any) -> Any:
        """Return which mask is that of a row."""
        return lax.div(row, jnp.int32(self.heads)) if self.each else 0

    def read(self, numbers: Any, row: Any, own: Any) -> list[Any]:
        """Return the four numbers of an own tile."""
        place = self.batch(row) * self.own + lax.rem(own, jnp.int32(self.own))
        return [numbers[place * 4 + i] for i in range(4)]

    def fetch(self, row: Any, own: Any, other: Any, numbers: Any) -> tuple[Any, Any]:
        """Return the other tile to fetch: where nothing is allowed, no new one."""
        low, high, _, _ = self.read(numbers, row, own)
        tile = lax.rem(other, jnp.int32(self.other))
        return own, other - tile + jnp.maximum(jnp.minimum(tile, high - 1), low)

    def fetch_mask(self, row: Any, own: Any, other: Any, numbers: Any) -> tuple[Any, Any]:
        """Return the tile of the mask to fetch: where everything is allowed, the next one."""
        low, high, first, last = self.read(numbers, row, own)
        tile = lax.rem(other, jnp.int32(self.other))
        tile = jnp.where((first <= tile) & (tile < last), last, tile)
        return lax.rem(own, jnp.int32(self.own)), jnp.maximum(jnp.minimum(tile, high - 1), low)


def run(
    one: Pass, operands: Arrays, options: Options, heads: int, core: Core, interpret: bool = False
) -> list[Any]:  # fmt: skip
    """Run a pass over all tiles, which are as large as a core's and the sizes allow."""
    (rows, queries, key), keys, mask = operands.q.shape, operands.k.shape[1], operands.mask
    positions = queries if mask is None else mask.shape[2]
    tiles = Tile(find_tile(positions, core.tiles.queries), find_tile(keys, core.tiles.keys))
    counts = one.locate(queries // tiles.queries, keys // tiles.keys)
    numbers, spans = [], None
    if mask is not None:
        sizes = one.locate(tiles.queries, tiles.keys)
        own_first = mask if one.over == "keys" else jnp.swapaxes(mask, 1, 2)
        numbers = [find_spans(own_first, *sizes)]
        in_mask = (own_first.shape[1] // sizes[0], own_first.shape[2] // sizes[1])
        spans = Spans(heads, mask.shape[0] > 1, *in_mask)

    def block(kind: str, width: int) -> pl.BlockSpec:
        """Return how an array is cut."""

        def locate(row: Any, own: Any, other: Any, *numbers: Any) -> tuple[Any, ...]:
            if spans is not None and kind == "mask":
                of_queries, of_keys = one.locate(*spans.fetch_mask(row, own, other, *numbers))
                return spans.batch(row), of_keys, of_queries
            if spans is not None:
                own, other = spans.fetch(row, own, other, *numbers)
            of_queries, of_keys = one.locate(own, other)
            place = of_queries if kind.startswith("queries") else of_keys
            return (row, 0, place) if kind.endswith("last") else (row, place, 0)

        rows = tiles.queries if kind.startswith("queries") else tiles.keys
        shape = (width, rows) if kind.endswith("last") else (rows, width)
        return pl.BlockSpec((None, *(tiles[::-1] if kind == "mask" else shape)), locate)

    present = {name: x for name, x in operands._asdict().items() if x is not None}
    width = lambda name, x: x.shape[1 if getattr(KINDS, name).endswith("last") else 2]
    in_specs = [block(getattr(KINDS, name), width(name, x)) for name, x in present.items()]
    widths = [key if total.wide else 1 for total in one.sums]

    def shape_of(kind: str, width: int, rows: Tile) -> tuple[int, int]:
        """Return the shape of a sum over all rows, or over those of a tile."""
        return (rows.keys, width) if kind == "keys" else (width, rows.queries)

    blocks = [(total.kind, width) for total, width in zip(one.sums, widths, strict=True)]
    results = [
        jax.ShapeDtypeStruct(
            (rows, *shape_of(kind, width, Tile(queries, keys))),
            operands.q.dtype if total.wide else jnp.float32,
        )
        for (kind, width), total in zip(blocks, one.sums[: one.results], strict=False)
    ]

    def load(ref: Any) -> Any:
        """Read a tile; of the mask whether something is allowed."""
        x = ref[...]
        if x.dtype == jnp.int8:
            return x.astype(jnp.int32) != 0
        return x.astype(jnp.float32) if core.widens and x.dtype == jnp.bfloat16 else x

    def run_tile(*refs: Any) -> None:
        allowances, refs = refs[: len(numbers)], refs[len(numbers) :]
        tile, refs = dict(zip(present, refs, strict=False)), refs[len(present) :]
        written, sums = refs[: one.results], refs[one.results :]
        row, own, other = (pl.program_id(i) for i in range(3))

        @pl.when(other == 0)
        def _start():
            for ref, total in zip(sums, one.sums, strict=True):
                ref[...] = jnp.full(ref.shape, total.start, jnp.float32)

        def add(masked: bool) -> None:
            names = [name for name in tile if masked or name != "mask"]
            values = Arrays(**{name: load(tile[name]) for name in names})
            one.add(values, sums, one.locate(own, other)[1] * tiles.keys, options)

        if spans is None:
            add(False)
        else:
            low, high, first, last = spans.read(allowances[0], row, own)
            place = lax.rem(other, jnp.int32(spans.other))
            full = (first <= place) & (place < last)
            pl.when(full)(lambda: add(False))
            pl.when((low <= place) & (place < high) & ~full)(lambda: add(True))

        @pl.when(other == counts[1] - 1)
        def _finish():
            one.finish(written, sums, options)

    return pl.pallas_call(
        run_tile,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(numbers),
            grid=(rows, *counts),
            in_specs=in_specs,
            out_specs=[block(*described) for described in blocks[: one.results]],
            scratch_shapes=[pltpu.VMEM(shape_of(*each, tiles), jnp.float32) for each in blocks],
        ),
        out_shape=results,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
        interpret=interpret,
        name=f"attention{one.add.__name__}",
    )(*numbers, *present.values())


def find_tile(size: int, largest: int) -> int:
    """Return the largest tile that divides a size."""
    return max(tile for tile in range(TILE, largest + 1, TILE) if size % tile == 0)


@dataclass(frozen=True)
class TpuAttentionCall(AttentionCall):
    """One call of the kernel, which takes batch and heads as one dimension, before positions."""

    @classmethod
    def of(cls, config: dict[str, Any], reads: Sequence[jax.ShapeDtypeStruct]) -> Self | None:
        """Describe a call; None for what the kernel does not do, and where masks are too large."""
        call = super().of(config, reads)
        few = call is not None and math.prod(call.queries) * call.memory <= MOST_PAIRS
        return call if few else None

    @classmethod
    def fits(cls, dtype: Any, queries: int, memory: int, key: int) -> bool:
        """Return whether the kernel takes operands of these sizes."""
        known = dtype == jnp.bfloat16 and key % PACKED == 0 and key <= LARGEST_KEY
        return known and queries % TILE == memory % TILE == 0

    @property
    def order(self) -> tuple[list[int], list[int]]:
        """The dimensions of queries that share a mask, and those that it has; or none, and all."""
        every = [*range(len(self.queries))]
        own = [i for i in every if self.mask and self.mask[len(self.batch) + i] > 1]
        if not own or math.prod(self.queries[i] for i in own) % TILE:
            return [], every
        return [i for i in every if i not in own], own

    def of_queries(self, x: Any, key_first: bool = False) -> Any:
        """Bring an array of queries into the order that passes read."""
        b, n = math.prod(self.batch), math.prod(self.heads)
        x = x.reshape(b, *self.queries, n, -1)
        middle = [1 + i for dims in self.order for i in dims]
        ends = (x.ndim - 1, *middle) if key_first else (*middle, x.ndim - 1)
        x = jnp.transpose(x, (0, x.ndim - 2, *ends))
        return x.reshape(b * n, x.shape[2], -1) if key_first else x.reshape(b * n, -1, x.shape[-1])

    def of_keys(self, x: Any, key_first: bool = False) -> Any:
        """Bring an array of keys into the order that passes read."""
        b, n = math.prod(self.batch), math.prod(self.heads)
        x = jnp.transpose(
            x.reshape(b, self.memory, n, self.key), (0, 2, 3, 1) if key_first else (0, 2, 1, 3)
        )
        return x.reshape(b * n, *x.shape[2:])

    def of_numbers(self, x: Any) -> Any:
        """Bring a number of each head and query into the order that passes read."""
        b, n = math.prod(self.batch), math.prod(self.heads)
        order = [2 + i for dims in self.order for i in dims]
        return jnp.transpose(x.reshape(b, n, *self.queries), (0, 1, *order)).reshape(b * n, 1, -1)

    def shared(self, reads: Sequence[Any]) -> Arrays:
        """Return what all passes read, in their order."""
        q, k, _, *extra = reads
        mask = words = None
        if self.mask is not None:
            mask = jnp.swapaxes(self.spread_mask(extra[0], self.order[1]), 1, 2)
        if self.options.rate:
            words = self.of_numbers(extra[-1])
        return Arrays(self.of_queries(q), self.of_keys(k), mask=mask, words=words)

    def back(self, x: Any) -> Any:
        """Bring results of a pass over queries, positions last, back into the order of queries."""
        b, n = math.prod(self.batch), math.prod(self.heads)
        order = [i for dims in self.order for i in dims]
        x = x.reshape(b, n, -1, *(self.queries[i] for i in order))
        places = [3 + order.index(i) for i in range(len(order))]
        return jnp.transpose(x, (0, *places, 1, 2))

    def forward(self, *reads: Any, core: Core | None = None, interpret: bool = False) -> Any:
        """Compute the averages, and the logarithm of every row's sum of exponentials."""
        operands = self.shared(reads)._replace(turned=self.of_keys(reads[2], key_first=True))
        way = self.options, math.prod(self.heads), core or Core.current(), interpret
        y, lse = run(FORWARD, operands, *way)
        lse = jnp.moveaxis(self.back(lse)[..., 0], -1, 1)
        return (
            self.back(y).reshape(*self.batch, *self.queries, *self.heads, self.key),
            lse.reshape(*self.batch, *self.heads, *self.queries),
        )

    def backward(self, *reads: Any, core: Core | None = None, interpret: bool = False) -> Any:
        """Compute the cotangents of queries, keys and values."""
        *first, y, lse, dy = reads
        delta = jnp.sum(y.astype(jnp.float32) * dy.astype(jnp.float32), axis=-1)
        operands = self.shared(first)._replace(
            v=self.of_keys(reads[2]), dy=self.of_queries(dy), lse=self.of_numbers(lse),
            delta=self.of_queries(delta, key_first=True),
        )  # fmt: skip
        way = self.options, math.prod(self.heads), core or Core.current(), interpret
        dk, dv = run(BACKWARD_KEYS, operands, *way)
        turned = self.of_keys(reads[1], key_first=True)
        (dq,) = run(BACKWARD_QUERIES, operands._replace(turned=turned), *way)
        of_keys = lambda x: jnp.swapaxes(x.reshape(-1, way[1], *x.shape[1:]), 1, 2)
        made = self.back(dq), of_keys(dk), of_keys(dv)
        return tuple(x.reshape(like.shape) for x, like in zip(made, reads, strict=False))
