"""Attention: values averaged by how well keys match queries, with a derivative of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from namedmesh.dims.dimension import Dimension
from namedmesh.dims.errors import NamedMeshError, join_names
from namedmesh.ir.literal import check_number
from namedmesh.ir.operands import (
    check_dimension,
    check_dtype_kind,
    check_has_dims,
    check_one_dtype,
    check_tensor,
)
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.arithmetic import maximum
from namedmesh.ops.broadcast import sum
from namedmesh.ops.custom import custom_vjp
from namedmesh.ops.einsum import einsum
from namedmesh.ops.elementwise import cast, stop_gradient
from namedmesh.ops.kernel import offer_kernel
from namedmesh.ops.logic import where
from namedmesh.ops.mathematics import exp, log
from namedmesh.ops.random_bits import draw_bits, spread_bits
from namedmesh.ops.reduce import find_peak
from namedmesh.ops.shape import transpose

_LOWEST = -1e30  # the score of what is not allowed


@dataclass(frozen=True)
class _Attention:
    """The dimensions and options of one attention, and its passes in named ops."""

    batch: tuple[Dimension, ...]  # of queries and keys, before the positions
    queries: tuple[Dimension, ...]
    heads: tuple[Dimension, ...]  # of queries and keys, after the positions
    memory: Dimension
    key: Dimension
    scale: float
    rate: float

    @property
    def rows(self) -> list[Dimension]:
        """A row of weights has these."""
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
        """What a kernel is told of this."""
        names = lambda dims: [dim.name for dim in dims]
        return {
            "batch": len(self.batch),
            "queries": len(self.queries),
            "rows": names([*self.batch, *self.queries, self.memory]),
            "scale": self.scale,
            "rate": self.rate,
        }

    def scores(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """How well keys match queries, in float32."""
        found = cast(einsum([q * self.scale, k], [*self.rows, self.memory]), "float32")
        return found if mask is None else where(mask, found, _LOWEST)

    def drop(self, x: Tensor, words: Tensor | None) -> Tensor:
        """Drops weights, or their cotangents, by a word for each row; both times the same."""
        if words is None:
            return x
        kept = spread_bits(words, self.memory) >= int(self.rate * 2**32)
        return where(kept, x * (1.0 / (1.0 - self.rate)), 0.0)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, words: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The averages, and the logarithm of every row's sum of exponentials."""
        scores = self.scores(q, k, mask)
        peak = stop_gradient(find_peak(scores, (self.memory,)))
        parts = exp(scores - peak)
        if mask is not None:  # where nothing is allowed, nothing is averaged
            parts = where(mask, parts, 0.0)
        mass = maximum(sum(parts, self.memory), 1e-30)
        weights = cast(self.drop(parts / mass, words), q.dtype)
        return einsum([weights, v], self.of_queries), peak + log(mass)

    def backward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        words: Tensor | None,
        y: Tensor,
        lse: Tensor,
        dy: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The cotangents of queries, keys and values."""
        weights = exp(self.scores(q, k, mask) - lse)
        if mask is not None:
            weights = where(mask, weights, 0.0)
        dropped = cast(self.drop(weights, words), q.dtype)
        dv = einsum([dropped, dy], self.of_keys)
        d_dropped = cast(einsum([dy, v], [*self.rows, self.memory]), "float32")
        delta = sum(cast(y, "float32") * cast(dy, "float32"), self.key)
        d_scores = weights * (self.drop(d_dropped, words) - delta) * self.scale
        d_scores = cast(d_scores, q.dtype)
        return einsum([d_scores, k], self.of_queries), einsum([d_scores, q], self.of_keys), dv


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
) -> Tensor:
    """Averages values by how well keys match queries: softmax of their products, in float32.

    The backward pass computes the products again, so that nothing of the size of queries times keys
    is kept for it. On NVIDIA GPUs, bfloat16 and float16 go through a kernel that never stores
    anything of that size, unless the layout splits `over` or `key`.

    Args:
        q: Queries. Dimensions that the keys do not have are positions that attend.
        k: Keys, with `over`, `key` and dimensions of the queries, such as heads.
        v: Values, of the dimensions and dtype of the keys.
        over: The dimension of the keys' positions.
        key: The dimension of a query, a key and a value.
        mask: What a query may attend to, bool; a query that may attend to nothing gets zeros.
        scale: What the products are multiplied by; one over the root of the size of `key` by
            default.
        rate: The share of the weights that is dropped, where there is a `dropout_key`.
        dropout_key: A random key; every layout drops the same weights.

    Returns:
        A tensor of the dimensions and dtype of the queries.

    Raises:
        NamedMeshError: The tensors lack `over` or `key`, keys have dimensions that queries do not
            have or values differ from keys, dtypes differ or are not floating point, or the rate
            is not from 0 to below 1.

    Example:
        >>> import namedmesh as nm
        >>> S, T, K = nm.dims("seq=1 memory=2 key=1")
        >>> average = lambda q, k, v: nm.attention(q, k, v, T, K)
        >>> nm.evaluate(average, q=([S, K], [[0.0]]), k=([T, K], [[1.0], [2.0]]),
        ...     v=([T, K], [[10.0], [20.0]]))
        array([[15.]], dtype=float32)
    """
    _check(q, k, v, over, key, mask)
    rate = float(check_number("attention: rate", rate, "float32"))
    if not 0.0 <= rate < 1.0:
        raise NamedMeshError(
            f"attention: rate={rate} is not from 0 to below 1", fix="give the share to drop"
        )
    rate = rate if dropout_key is not None else 0.0
    own = [dim for dim in q.shape if dim != key]
    queries = tuple(dim for dim in own if dim not in k.shape)
    shared = [dim for dim in own if dim in k.shape]
    # Heads come after the positions, as projections make them.
    first = own.index(queries[0]) if queries else 0
    batch = tuple(dim for dim in shared if own.index(dim) < first)
    heads = tuple(dim for dim in shared if own.index(dim) >= first)
    scale = 1.0 / math.sqrt(key.size) if scale is None else float(scale)
    this = _Attention(batch, queries, heads, over, key, scale, rate)
    extra: list[Tensor] = []
    if mask is not None:
        order = [*batch, *queries, *heads, over]
        extra.append(transpose(mask, [dim for dim in order if dim in mask.shape]))
    if rate:
        assert dropout_key is not None
        extra.append(draw_bits("attention", dropout_key, this.rows))
    operands = (
        transpose(q, this.of_queries),
        transpose(k, this.of_keys),
        transpose(v, this.of_keys),
        *extra,
    )
    return transpose(_differentiable(this, mask is not None)(*operands), q.shape)


def _differentiable(this: _Attention, masked: bool):
    """Makes the function that computes an attention, kernels offered for both its passes."""
    together = [*this.batch, *this.heads]

    def tell(extra: Sequence[Tensor]) -> dict[str, object]:
        return this.options() | {"mask": list(extra[0].shape.names) if masked else None}

    def apart(extra: Sequence[Tensor]) -> tuple[Tensor | None, Tensor | None]:
        return (extra[0] if masked else None), (extra[-1] if this.rate else None)

    def forward(q: Tensor, k: Tensor, v: Tensor, *extra: Tensor):
        plain = this.forward(q, k, v, *apart(extra))
        parallel = [*together, *this.queries]
        told = tell(extra)
        y, lse = offer_kernel("attention", plain, (q, k, v, *extra), parallel, **told)
        return y, (q, k, v, *extra, y, lse)

    def backward(saved: Sequence[Tensor], dy: Tensor):
        q, k, v, *extra, y, lse = saved
        dy = transpose(dy, this.of_queries)
        plain = this.backward(q, k, v, *apart(extra), y, lse, dy)
        reads = (q, k, v, *extra, y, lse, dy)
        told = tell(extra)
        made = offer_kernel("attention_backward", plain, reads, together, **told)
        return [*made, *[None] * len(extra)]

    return custom_vjp(forward, backward)


def _check(
    q: Tensor, k: Tensor, v: Tensor, over: Dimension, key: Dimension, mask: Tensor | None
) -> None:
    """Raises unless queries, keys, values and mask fit together."""
    for dim in (over, key):
        check_dimension("attention", dim)
    check_has_dims("attention", q, key)
    for tensor in (k, v):
        check_has_dims("attention", tensor, over, key)
    check_dtype_kind("attention", "float", q, k, v)
    check_one_dtype("attention", q, k, v)
    problems = []
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
        known = {*q.shape, over} - {key}
        unknown = [dim.name for dim in mask.shape if dim not in known]
        if mask.dtype != "bool":
            problems.append(f"the mask is {mask.dtype}, not bool")
        if unknown:
            problems.append(f"the mask has {join_names(unknown)}, which scores lack")
    if problems:
        raise NamedMeshError(
            f"attention: {'; '.join(problems)}",
            *map(str, tensors),
            fix="rename the positions of keys and values (nm.rename), and give the mask dimensions "
            "of the queries or of the keys",
        )
