"""Attention: values averaged by how well keys match queries, over all keys or by blocks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError, join_names
from namedmesh.ir.format import format_value
from namedmesh.ir.literal import check_number, fill
from namedmesh.ir.operands import (
    check_dtype_kind,
    check_has_dims,
    check_one_dtype,
    check_tensor,
)
from namedmesh.ir.recipe import Recipe, find_recipe
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import current
from namedmesh.ops.broadcast import sum
from namedmesh.ops.constants import range as count
from namedmesh.ops.constants import zeros
from namedmesh.ops.custom import custom_vjp
from namedmesh.ops.einsum import einsum
from namedmesh.ops.elementwise import cast, stop_gradient
from namedmesh.ops.kernel import offer_kernel
from namedmesh.ops.logic import where
from namedmesh.ops.mathematics import exp, log, maximum
from namedmesh.ops.random_bits import draw_bits, spread_bits
from namedmesh.ops.reduce import find_peak
from namedmesh.ops.scan import scan
from namedmesh.ops.shape import reshape, transpose

LONG = 2048  # more keys than these are taken by blocks, unless block= is given
BLOCK = 1024  # keys at a time, by default
LEAST = 128  # smaller blocks are not worth a loop


@dataclass(frozen=True)
class AttentionBlocks:
    """Attention that takes in a block of keys in each iteration of a loop."""

    whole: AttentionPasses  # over all keys
    size: int  # keys of a block
    mask: Recipe | None  # makes a block of the mask by itself, so that it is never whole

    @cached_property
    def number(self) -> Dimension:
        """The blocks."""
        memory = self.whole.memory
        return Dimension(f"{memory.name}_blocks", memory.size // self.size)

    @cached_property
    def passes(self) -> AttentionPasses:
        """Attention over one block."""
        block = Dimension(f"{self.whole.memory.name}_block", self.size)
        return dataclasses.replace(self.whole, memory=block)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, extra: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Compute the averages, and the logarithm of every row's sum of exponentials."""

        def iteration(state: State, row: dict[str, Any]) -> tuple[State, None]:
            return self.passes.take_in(state, q, self.select(row, extra)), None

        state, _ = scan(iteration, self.passes.start(), self.rows(k, v, extra), over=self.number)
        return self.whole.finish(state, q.dtype)

    def backward(
        self, q: Tensor, k: Tensor, v: Tensor, extra: Sequence[Tensor], *of_rows: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the cotangents of queries, keys and values."""

        def iteration(so_far: Tensor, row: dict[str, Any]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            dq, dk, dv = self.passes.backward(q, self.select(row, extra), *of_rows)
            return so_far + cast(dq, "float32"), (dk, dv)

        start = zeros(self.whole.of_queries)
        dq, (dk, dv) = scan(iteration, start, self.rows(k, v, extra), over=self.number)
        return cast(dq, q.dtype), self.join(dk), self.join(dv)

    def rows(self, k: Tensor, v: Tensor, extra: Sequence[Tensor]) -> dict[str, Any]:
        """Return the tensors of which every iteration reads a row."""
        leaves, _ = self.whole.separate(extra)
        own = [self.split(leaf) for leaf in leaves if self.has_blocks(leaf)]
        return {"k": self.split(k), "v": self.split(v), "mask": own, "number": count(self.number)}

    def select(self, row: dict[str, Any], extra: Sequence[Tensor]) -> Keys:
        """Return the keys of an iteration, with their block of the mask."""
        (leaves, words), own = self.whole.separate(extra), iter(row["mask"])
        values = [next(own) if self.has_blocks(leaf) else leaf for leaf in leaves]
        mask = None if self.mask is None else self.mask.make(values, self.passes.memory)
        return Keys(row["k"], row["v"], mask, words, row["number"] * self.size)

    def has_blocks(self, leaf: Tensor) -> bool:
        """Return whether a tensor has the dimension that is taken by blocks."""
        return leaf.shape.named(self.whole.memory.name) is not None

    def split(self, x: Tensor) -> Tensor:
        """Split the keys' positions into blocks."""
        return reshape(x, self.whole.memory, [self.number, self.passes.memory])

    def join(self, x: Tensor) -> Tensor:
        """Put blocks of keys together, in the order of keys."""
        whole = reshape(x, [self.number, self.passes.memory], self.whole.memory)
        return transpose(whole, self.whole.of_keys)


def choose_block(over: Dimension, block: int | None) -> int:
    """Return the number of keys at a time: all of them where that is as good."""
    divisors = [n for n in range(1, over.size + 1) if over.size % n == 0]
    if block is None:
        best = max(n for n in divisors if n <= BLOCK)
        return best if over.size > LONG and best >= LEAST else over.size
    if block not in divisors:
        some = ", ".join(map(str, divisors[-6:]))
        raise NamedMeshError(
            f"attention: block={format_value(block)} does not divide {over}", fix=f"give {some}"
        )
    return block


def find_causal(mask: Tensor | None, queries: Sequence[Dimension], over: Dimension) -> int | None:
    """Return which dimension of queries attends to the keys up to its own position, if one does."""
    trace = current("attention")
    op = None if mask is None else trace.find_maker(mask)
    if op is None or op.kind not in ("less_equal", "greater_equal"):
        return None
    counts = [one for x in op.inputs if (one := trace.find_maker(x)) and one.kind == "range"]
    dims = [next(iter(one.output.shape)) for one in counts]
    if op.kind == "greater_equal":
        dims.reverse()
    known = len(dims) == 2 and dims[0] == over and dims[1] in queries
    return [*queries].index(dims[1]) if known and dims[1].size == over.size else None


State = tuple[Tensor, Tensor, Tensor]

_LOWEST = -1e30  # the score of what is not allowed


@dataclass(frozen=True)
class Keys:
    """Keys and values, all or some, and what tells which of their weights count."""

    k: Tensor
    v: Tensor
    mask: Tensor | None
    words: Tensor | None  # a random word for each row, spread over the keys to drop weights
    first: Tensor | None = None  # the number of the first key


@dataclass(frozen=True)
class AttentionPasses:
    """The dimensions and options of one attention, and its passes in named ops."""

    batch: tuple[Dimension, ...]  # of queries and keys, before the positions
    queries: tuple[Dimension, ...]  # of queries alone: positions that attend
    heads: tuple[Dimension, ...]  # of queries and keys, after the positions
    memory: Dimension  # the keys' positions
    key: Dimension
    scale: float  # the factor of products of queries and keys
    rate: float  # the share of the weights to drop
    causal: int | None = None  # of queries' dimensions that which attends to keys up to its own

    @property
    def rows(self) -> list[Dimension]:
        """The dimensions of a row of weights."""
        return [*self.batch, *self.heads, *self.queries]

    @property
    def of_queries(self) -> list[Dimension]:
        """The dimensions of queries, in the order that kernels read."""
        return [*self.batch, *self.queries, *self.heads, self.key]

    @property
    def of_keys(self) -> list[Dimension]:
        """The dimensions of keys and values, in the order that kernels read."""
        return [*self.batch, self.memory, *self.heads, self.key]

    def options(self) -> dict[str, object]:
        """Return the options of a kernel."""
        causal: dict[str, object] = {} if self.causal is None else {"causal": self.causal}
        return causal | {
            "batch": len(self.batch),
            "queries": len(self.queries),
            "rows": [dim.name for dim in (*self.batch, *self.queries, self.memory)],
            "scale": self.scale,
            "rate": self.rate,
        }

    def separate(self, extra: Sequence[Tensor]) -> tuple[Sequence[Tensor], Tensor | None]:
        """Separate the tensors that the mask is made of from the words of dropout."""
        return (extra[:-1], extra[-1]) if self.rate else (extra, None)

    def scores(self, q: Tensor, keys: Keys) -> Tensor:
        """Compute how well keys match queries, in float32."""
        products = cast(einsum([q * self.scale, keys.k], [*self.rows, self.memory]), "float32")
        return products if keys.mask is None else where(keys.mask, products, _LOWEST)

    def exponentials(self, scores: Tensor, peak: Tensor, keys: Keys) -> Tensor:
        """Compute weights before they are normalised: zero where a query may not attend."""
        parts = exp(scores - peak)
        return parts if keys.mask is None else where(keys.mask, parts, 0.0)

    def drop(self, x: Tensor, keys: Keys) -> Tensor:
        """Drop weights, or their cotangents, by a word for each row; both times the same."""
        if keys.words is None:
            return x
        kept = spread_bits(keys.words, self.memory, keys.first) >= int(self.rate * 2**32)
        return where(kept, x * (1.0 / (1.0 - self.rate)), 0.0)

    def forward(self, q: Tensor, keys: Keys) -> tuple[Tensor, Tensor]:
        """Compute the averages, and the logarithm of every row's sum of exponentials."""
        scores = self.scores(q, keys)
        peak = stop_gradient(find_peak(scores, (self.memory,)))
        parts = self.exponentials(scores, peak, keys)
        mass = maximum(sum(parts, self.memory), 1e-30)
        weights = cast(self.drop(parts / mass, keys), q.dtype)
        return einsum([weights, keys.v], self.of_queries), peak + log(mass)

    def start(self) -> State:
        """Return the state before the first keys: the peak, mass and total of every row."""
        peak = fill(Shape(self.rows), _LOWEST, "float32", "attention")
        mass = fill(Shape(self.rows), 0.0, "float32", "attention")
        return peak, mass, fill(Shape(self.of_queries), 0.0, "float32", "attention")

    def take_in(self, state: State, q: Tensor, keys: Keys) -> State:
        """Take in some of the keys: the inner step of attention by blocks."""
        peak, mass, total = state
        scores = self.scores(q, keys)
        higher = maximum(peak, find_peak(scores, (self.memory,)))
        fade = exp(peak - higher)
        parts = self.exponentials(scores, higher, keys)
        weights = cast(self.drop(parts, keys), q.dtype)
        more = cast(einsum([weights, keys.v], self.of_queries), "float32")
        return higher, mass * fade + sum(parts, self.memory), total * fade + more

    def finish(self, state: State, dtype: str) -> tuple[Tensor, Tensor]:
        """Compute the averages, and the logarithm of every row's sum of exponentials."""
        peak, mass, total = state
        mass = maximum(mass, 1e-30)
        return cast(total / mass, dtype), peak + log(mass)

    def backward(
        self, q: Tensor, keys: Keys, lse: Tensor, delta: Tensor, dy: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute cotangents of queries (the part of these keys), keys and values."""
        weights = self.exponentials(self.scores(q, keys), lse, keys)
        dv = einsum([cast(self.drop(weights, keys), q.dtype), dy], self.of_keys)
        d_dropped = cast(einsum([dy, keys.v], [*self.rows, self.memory]), "float32")
        d_scores = weights * (self.drop(d_dropped, keys) - delta) * self.scale
        d_scores = cast(d_scores, q.dtype)
        return einsum([d_scores, keys.k], self.of_queries), einsum([d_scores, q], self.of_keys), dv


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    over: Dimension,
    key: Dimension,
    *,
    mask: Tensor | None = None,
    scale: float | None = None,
    rate: float = 0.0,
    dropout_key: Tensor | None = None,
    block: int | None = None,
) -> Tensor:
    """Return values averaged by how well keys match queries: softmax of their products.

    Products are float32, and computed again in the backward pass instead of stored. On TPUs and
    NVIDIA GPUs, bfloat16 uses a kernel, unless the layout splits `over` or `key`; on GPUs float16
    and a single token that attends to a cache do too.

    Args:
        q: Queries. Dimensions that the keys lack are positions that attend.
        k: Keys, with `over`, `key` and dimensions of the queries, such as heads.
        v: Values, of the dimensions and dtype of the keys.
        over: The dimension of the keys' positions.
        key: The dimension of a query, a key and a value.
        mask: A bool tensor: what a query may attend to; one that may attend to nothing gets zeros.
        scale: The factor of the products; one over the root of the size of `key` by default.
        rate: The share of the weights to drop, with a `dropout_key`.
        dropout_key: A random key; every layout drops the same weights, and every size of blocks.
        block: Keys at a time, gathered if split; by default all up to 2,048, or at most 1,024.

    Example:
        >>> T, K = nm.dims("memory=2 key=1")
        >>> q, k = ([K], [0.0]), ([T, K], [[10.0], [20.0]])
        >>> nm.evaluate(lambda q, k: nm.attention(q, k, k, T, K), q=q, k=k)
        array([15.], dtype=float32)
    """
    _check(q, k, v, over, key, mask)
    rate = float(check_number("attention: rate", rate, "float32"))
    if not 0.0 <= rate < 1.0:
        raise NamedMeshError(
            f"attention: rate={rate} is not from 0 to below 1", fix="give the share to drop"
        )
    own = [dim for dim in q.shape if dim != key]
    queries = tuple(dim for dim in own if dim not in k.shape)
    shared = [dim for dim in own if dim in k.shape]
    # Heads come after the positions, as projections make them.
    first = own.index(queries[0]) if queries else len(own)
    batch = tuple(dim for dim in shared if own.index(dim) < first)
    heads = tuple(dim for dim in shared if own.index(dim) >= first)
    scale = 1.0 / math.sqrt(key.size) if scale is None else float(scale)
    if not math.isfinite(scale):
        raise NamedMeshError(f"attention: scale={scale}", fix="give a number")
    rate = rate if dropout_key is not None else 0.0
    whole = AttentionPasses(
        batch, queries, heads, over, key, scale, rate, find_causal(mask, queries, over)
    )
    extra = () if mask is None else (mask,)
    blocks = None
    size = choose_block(over, block)
    if size != over.size:
        recipe = None if mask is None else find_recipe(mask, over)
        blocks = AttentionBlocks(whole, size, recipe)
        extra = () if recipe is None else recipe.leaves
    if rate and dropout_key is not None:  # a word for each row, spread over keys where it is used
        extra = (*extra, draw_bits("attention", dropout_key, whole.rows))
    operands = [transpose(q, whole.of_queries), *(transpose(x, whole.of_keys) for x in (k, v))]
    function = _differentiable(whole, blocks, mask is not None)
    return transpose(function(*operands, *extra), q.shape)


def _differentiable(whole: AttentionPasses, blocks: AttentionBlocks | None, masked: bool):
    """Return the function that computes an attention, kernels offered for both its passes."""

    def make_mask(extra: Sequence[Tensor]) -> Tensor | None:
        """Return the whole mask, in the order that kernels read."""
        if not masked:
            return None
        parts, _ = whole.separate(extra)
        mask = parts[0] if blocks is None or blocks.mask is None else blocks.mask.make(parts)
        order = [*whole.batch, *whole.queries, *whole.heads, whole.memory]
        return transpose(mask, [dim for dim in order if dim in mask.shape])

    def offer(name: str, plain: Sequence[Tensor], reads: Sequence[Tensor], extra: Sequence[Tensor]):
        mask, (_, words) = make_mask(extra), whole.separate(extra)
        tensors = [tensor for tensor in (mask, words) if tensor is not None]
        options = whole.options() | {"mask": None if mask is None else list(mask.shape.names)}
        parallel = [*whole.batch, *whole.heads, *(whole.queries if name == "attention" else ())]
        return offer_kernel(name, plain, (*reads[:3], *tensors, *reads[3:]), parallel, **options)

    def forward(q: Tensor, k: Tensor, v: Tensor, *extra: Tensor):
        if blocks is None:
            plain = whole.forward(q, Keys(k, v, make_mask(extra), whole.separate(extra)[1]))
        else:
            plain = blocks.forward(q, k, v, extra)
        y, lse = offer("attention", plain, (q, k, v), extra)
        return y, (q, k, v, *extra, y, lse)

    def backward(saved: Sequence[Tensor], dy: Tensor):
        q, k, v, *extra, y, lse = saved
        dy = transpose(dy, whole.of_queries)
        # What the softmax subtracts from the cotangent of every weight of a row.
        delta = sum(cast(y, "float32") * cast(dy, "float32"), whole.key)
        if blocks is None:
            keys = Keys(k, v, make_mask(extra), whole.separate(extra)[1])
            plain = whole.backward(q, keys, lse, delta, dy)
        else:
            plain = blocks.backward(q, k, v, extra, lse, delta, dy)
        cotangents = offer("attention_backward", plain, (q, k, v, y, lse, dy), extra)
        return [*cotangents, *[None] * len(extra)]

    return custom_vjp(forward, backward)


def _check(
    q: Tensor, k: Tensor, v: Tensor, over: Dimension, key: Dimension, mask: Tensor | None
) -> None:
    """Raise unless queries, keys, values and mask fit together."""
    check_has_dims("attention", q, key)
    for tensor in (k, v):
        check_has_dims("attention", tensor, over, key)
    check_dtype_kind("attention", "float", q, k, v)
    check_one_dtype("attention", q, k, v)
    problems, fixes = [], ["rename the positions of keys and values (nm.rename)"]
    if over == key:
        problems.append(f"{over} is the dimension of positions and of a key at once")
    if over in q.shape:
        problems.append(f"queries have the keys' positions {over}")
    alone = [dim.name for dim in k.shape if dim not in q.shape and dim != over]
    if alone:
        problems.append(f"keys have {join_names(alone)}, which queries lack")
    if {*k.shape} != {*v.shape}:
        problems.append("values do not have the dimensions of the keys")
    tensors = [q, k, v]
    if mask is not None:
        tensors.append(check_tensor("attention", mask))
        known = {dim.name: dim for dim in (*q.shape, over) if dim != key}
        unknown = [dim.name for dim in mask.shape if dim.name not in known]
        unlike = [dim for dim in mask.shape if known.get(dim.name, dim) != dim]
        if mask.dtype != "bool":
            problems.append(f"the mask is {mask.dtype}, not bool")
            fixes = ["compare, e.g. mask > 0, or nm.cast(mask, 'bool')"]
        if unknown:
            problems.append(f"the mask has {join_names(unknown)}, which scores lack")
            fixes.append("give the mask dimensions of the queries or of the keys")
        for dim in unlike:
            problems.append(f"the mask has {dim}, scores have {known[dim.name]}")
            fixes = ["give the mask the sizes of queries and keys"]
    if problems:
        raise NamedMeshError(
            f"attention: {'; '.join(problems)}", *map(str, tensors), fix=", and ".join(fixes)
        )
