"""Attention over positions that are split: ring attention and Ulysses."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.literal import check_number
from namedmesh.ir.operands import (
    check_dimension,
    check_dtype_kind,
    check_has_dims,
    check_one_dtype,
)
from namedmesh.ir.recipe import find_recipe
from namedmesh.ir.tensor import Operand, Tensor
from namedmesh.ops.attention import attention
from namedmesh.ops.broadcast import broadcast, sum
from namedmesh.ops.constants import full, zeros
from namedmesh.ops.constants import range as count
from namedmesh.ops.custom import custom_vjp
from namedmesh.ops.einsum import einsum
from namedmesh.ops.elementwise import cast
from namedmesh.ops.logic import equal, where
from namedmesh.ops.mathematics import exp, log, maximum
from namedmesh.ops.move import replicate, reshard
from namedmesh.ops.reduce import max
from namedmesh.ops.scan import scan
from namedmesh.ops.shape import name_apart, reshape, transpose
from namedmesh.ops.slices import roll


def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    over: Dimension,
    key: Dimension,
    *,
    query: Dimension,
    ring: Dimension,
    causal: bool = False,
    segments: tuple[Tensor, Tensor] | None = None,
    scale: float | None = None,
) -> Tensor:
    """Return what `nm.attention` does, with keys and values that stay split.

    In each iteration a device attends to the block of keys it has, and sends it on to its neighbour
    by a CollectivePermute. Map `ring`, `query` and `over` to one mesh axis.

    Args:
        q: Queries, with `query`, `key` and any others, such as batch and heads.
        k: Keys, with `over`, `key` and dimensions of the queries but `query`.
        v: Values, of the dimensions and dtype of the keys.
        over: The dimension of the keys' positions.
        key: The dimension of a query, a key and a value.
        query: The dimension of the queries' positions.
        ring: The dimension of blocks, whose size divides those of `query` and `over`.
        causal: Let a query attend to no key of a later position.
        segments: Whole numbers for queries and keys of packed examples: only equal ones attend.
        scale: The factor of the products; one over the root of the size of `key` by default.

    Example:
        >>> S, T, K, R = nm.dims("seq=8 memory=8 key=4 block=4")
        >>> attend = lambda q, k: nm.ring_attention(q, k, k, T, K, query=S, ring=R, causal=True)
        >>> program = nm.trace(attend, nm.spec([S, K]), nm.spec([T, K]))
        >>> plan = nm.plan(program, nm.Mesh(ctx=4), "seq:ctx, memory:ctx, block:ctx")
        >>> {(one.kind, one.times) for one in plan.collectives}
        {('CollectivePermute', 3)}
    """
    _check((q, k, v), over, key, query, ring)
    scale = 1.0 / math.sqrt(key.size) if scale is None else scale
    factor = float(check_number("ring_attention: scale", scale, "float32"))
    inner, outer = (
        name_apart(dim.resized(dim.size // ring.size), "in_block", q, k) for dim in (query, over)
    )
    blocks = [reshape(q, query, [ring, inner]), *(reshape(x, over, [ring, outer]) for x in (k, v))]
    for block, x in zip(blocks, (q, k, v), strict=True):
        block.describe(name=x.label)
    if segments is not None:
        for x, dim, positions in zip(segments, (query, over), (inner, outer), strict=True):
            check_has_dims("ring_attention", x, dim)
            blocks.append(reshape(x, dim, [ring, positions]))
    iterations = _Ring(ring, inner, outer, key, causal, factor)
    result = custom_vjp(iterations.forward, iterations.backward)(*blocks)
    return transpose(reshape(result, [ring, inner], query), q.shape)


Attend = Callable[[Any, Any, Operand], Any]


@dataclasses.dataclass(frozen=True)
class _Ring:
    """The two passes, of queries `[ring, query, ...]` and keys `[ring, over, ...]`."""

    ring: Dimension
    query: Dimension
    over: Dimension
    key: Dimension
    causal: bool
    scale: float

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *segments: Tensor) -> tuple[Tensor, Any]:
        """Go round once; the running maximum keeps every exponential from overflowing."""
        rows = [dim for dim in q.shape if dim != self.key]
        state = (full(rows, -math.inf), zeros(rows), zeros(q.shape))

        def attend(state: Any, moving: Any, iteration: Operand) -> Any:
            peak, total, mean = state
            k, v, *theirs = moving
            scores = self._score(q, k, [*segments[:1], *theirs], iteration)
            higher = maximum(peak, max(scores, self.over))
            safe = where(equal(higher, -math.inf), 0.0, higher)
            weights, keep = exp(scores - safe), exp(peak - safe)
            part = einsum([cast(weights, v.dtype), v], q.shape, preferred="float32")
            return higher, total * keep + sum(weights, self.over), mean * keep + part

        peak, total, mean = self._go_round(attend, state, (k, v, *segments[1:]))[0]
        attended = total > 0.0
        divisor = where(attended, total, 1.0)
        result = cast(where(attended, mean / divisor, 0.0), q.dtype)
        return result, (q, k, v, result, where(attended, peak + log(divisor), 0.0), *segments)

    def backward(self, saved: Any, dy: Tensor) -> list[Tensor | None]:
        """Go round again; the gradients of keys and values travel with them, and come home."""
        q, k, v, result, logsum, *segments = saved
        delta = sum(cast(dy, "float32") * cast(result, "float32"), self.key)
        start = tuple(zeros(x.shape) for x in (q, k, v))

        def attend(state: Any, moving: Any, iteration: Operand) -> Any:
            dq, dk, dv = state
            k, v, *theirs = moving
            scores = self._score(q, k, [*segments[:1], *theirs], iteration)
            weights = exp(scores - logsum)
            dweights = einsum([dy, v], scores.shape, preferred="float32")
            dscores = cast(weights * (dweights - delta) * self.scale, q.dtype)
            sums = (
                dq + einsum([dscores, k], q.shape, preferred="float32"),
                dk + einsum([dscores, q], k.shape, preferred="float32"),
                dv + einsum([cast(weights, dy.dtype), dy], v.shape, preferred="float32"),
            )
            return _name_gradients(sums, (q, k, v))

        (dq, dk, dv), _ = self._go_round(attend, start, (k, v, *segments[1:]), 1, 2)
        # They are complete: the last step home is in the dtype that they are wanted in.
        dq, dk, dv = (cast(one, x.dtype) for one, x in zip((dq, dk, dv), (q, k, v), strict=True))
        if self.ring.size > 1:
            dk, dv = (roll(x, self.ring, 1) for x in _name_gradients((dk, dv), (k, v)))
        return [dq, dk, dv, *(None for _ in segments)]

    def _go_round(self, attend: Attend, state: Any, moving: Any, *travelling: int) -> Any:
        """Attend to a device's own block, and in each further iteration to its neighbour's."""
        # Entries of the state that are travelling move on with the keys.
        state = attend(state, moving, 0)
        if self.ring.size == 1:
            return state, moving

        def iteration(carry: Any, number: Tensor) -> tuple[Any, None]:
            state, moving = carry
            moving = tuple(roll(x, self.ring, 1) for x in moving)
            state = [roll(x, self.ring, 1) if i in travelling else x for i, x in enumerate(state)]
            return (attend(state, moving, number + 1), moving), None

        iterations = Dimension("iteration", self.ring.size - 1)
        return scan(iteration, (state, moving), count(iterations), over=iterations)[0]

    def _score(self, q: Tensor, k: Tensor, segments: list[Tensor], iteration: Operand) -> Tensor:
        """Multiply queries with the keys of an iteration; -inf where a query may not attend."""
        rows = [dim for dim in q.shape if dim != self.key]
        scores = einsum([q, k], [*rows, self.over], preferred="float32") * self.scale
        if self.causal:
            here = count(self.ring)
            there = (here - iteration + self.ring.size) % self.ring.size
            later = self._place(there, self.over) > self._place(here, self.query)
            scores = where(later, -math.inf, scores)
        if segments:
            scores = where(equal(segments[0], segments[1]), scores, -math.inf)
        return scores

    def _place(self, block: Tensor, dim: Dimension) -> Tensor:
        """Return the positions of a block."""
        return broadcast(block * dim.size, [self.ring]) + count(dim)


def _name_gradients(gradients: Sequence[Tensor], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Name gradients in plans after what they are the gradients of."""
    for one, x in zip(gradients, tensors, strict=True):
        if one.name is None:
            one.describe(name=f"d_{x.label}")
    return tuple(gradients)


def _check(
    qkv: Sequence[Tensor], over: Dimension, key: Dimension, query: Dimension, ring: Dimension
) -> None:
    """Raise unless tensors and dimensions fit each other."""
    what, (q, k, v) = "ring_attention", qkv
    check_has_dims(what, q, query, key)
    check_has_dims(what, k, over, key)
    check_has_dims(what, v, over, key)
    check_dtype_kind(what, "float", *qkv)
    check_one_dtype(what, *qkv)
    check_dimension(what, ring, q, k)
    others = {*k.shape} - {over, key}
    if query in k.shape or {*k.shape} != {*v.shape} or not others <= {*q.shape}:
        problem = "keys and values do not fit the queries"
        fix = f"give both {over.name}, {key.name} and dimensions of the queries but {query.name}"
    elif any(ring.name in x.shape.names for x in qkv):
        problem = f"{ring} is a dimension of the tensors already"
        fix = "give a dimension of another name, of as many blocks as its mesh axis has devices"
    elif query.size % ring.size or over.size % ring.size:
        problem = f"{ring} does not divide {query if query.size % ring.size else over}"
        fix = "choose a number of blocks that divides the positions"
    else:
        return
    raise NamedMeshError(f"{what}: {problem}", *map(str, qkv), fix=fix)


def ulysses_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    over: Dimension,
    key: Dimension,
    *,
    query: Dimension,
    heads: Dimension,
    mask: Tensor | None = None,
    scale: float | None = None,
    rate: float = 0.0,
    dropout_key: Tensor | None = None,
    block: int | None = None,
) -> Tensor:
    """Return what `nm.attention` does, where positions and heads share a mesh axis.

    An AllToAll each of queries, keys and values moves the axis from positions to heads, and one of
    the result moves it back. Map `query`, `over` and `heads` to one axis.

    Args:
        q: Queries, with `query`, `heads`, `key` and any others.
        k: Keys, with `over`, `heads`, `key` and dimensions of the queries.
        v: Values, of the dimensions and dtype of the keys.
        over: The dimension of the keys' positions.
        key: The dimension of a query, a key and a value.
        query: The dimension of the queries' positions.
        heads: The dimension of heads.
        mask: As for `nm.attention`.
        scale: As for `nm.attention`.
        rate: As for `nm.attention`.
        dropout_key: As for `nm.attention`.
        block: As for `nm.attention`.

    Example:
        >>> S, T, H, K = nm.dims("seq=8 memory=8 heads=4 key=4")
        >>> attend = lambda q, k, v: nm.ulysses_attention(q, k, v, T, K, query=S, heads=H)
        >>> program = nm.trace(attend, nm.spec([S, H, K]), nm.spec([T, H, K]), nm.spec([T, H, K]))
        >>> nm.plan(program, nm.Mesh(ctx=4), "seq:ctx, memory:ctx, heads:ctx").count("AllToAll")
        4
    """
    for x, positions in ((q, query), (k, over), (v, over)):
        check_has_dims("ulysses_attention", x, positions, heads, key)
    q, k, v = (reshard(x, heads) for x in (q, k, v))
    if mask is not None:
        mask = _make_whole(mask, query, over)
    result = attention(
        q, k, v, over, key, mask=mask, scale=scale, rate=rate, dropout_key=dropout_key, block=block
    )
    return reshard(result, query)


def _make_whole(mask: Tensor, query: Dimension, over: Dimension) -> Tensor:
    """Make a mask of all positions, as queries and keys are then."""
    # Replicate what the mask is made of, so that attention by blocks can still make it by blocks.
    recipe, leaves = find_recipe(mask, over), []
    for leaf in recipe.leaves:
        positions = [dim for dim in leaf.shape if dim in (query, over)]
        leaves.append(replicate(leaf, *positions) if positions else leaf)
    return recipe.make(leaves)
