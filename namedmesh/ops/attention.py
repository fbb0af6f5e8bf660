"""Attention: values averaged by how well keys match queries, with a derivative of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

from namedmesh.dims.dimension import Dimension
from namedmesh.errors.errors import NamedMeshError, join_names
from namedmesh.ir.literal import check_number
from namedmesh.ir.operands import (
    check_dimension,
    check_dtype_kind,
    check_has_dims,
    check_one_dtype,
    check_tensor,
)
from namedmesh.ir.recipe import find_recipe
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.attention_blocks import AttentionBlocks, AttentionPasses, choose_block
from namedmesh.ops.custom import custom_vjp
from namedmesh.ops.kernel import offer_kernel
from namedmesh.ops.random_bits import draw_bits
from namedmesh.ops.shape import transpose


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

    Products are computed in float32, and again in the backward pass, so that nothing of the size of
    queries times keys is stored for it; by blocks of keys, never. On NVIDIA GPUs, bfloat16 and
    float16 use a kernel, unless the layout splits `over` or `key`.

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
        block: The number of keys at a time, a divisor of the size of `over`; by default all up to
            2,048, at most 1,024 of more. Blocks gather keys that are split; all at once they stay
            split.

    Example:
        >>> S, T, K = nm.dims("seq=1 memory=2 key=1")
        >>> average = lambda q, k, v: nm.attention(q, k, v, T, K)
        >>> q, k, v = ([S, K], [[0.0]]), ([T, K], [[1.0], [2.0]]), ([T, K], [[10.0], [20.0]])
        >>> nm.evaluate(average, q=q, k=k, v=v)
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
    if not math.isfinite(scale):
        raise NamedMeshError(f"attention: scale={scale}", fix="give a number")
    whole = AttentionPasses(batch, queries, heads, over, key, scale, rate)
    size = choose_block(over, block)
    words = None
    if rate and dropout_key is not None:  # a word for each row, spread over keys where it is used
        words = draw_bits("attention", dropout_key, whole.rows)
    extra = () if mask is None else (mask,)
    blocks = None
    if size != over.size:
        recipe = None if mask is None else find_recipe(mask, over)
        blocks = AttentionBlocks(whole, size, recipe)
        extra = () if recipe is None else recipe.leaves
    if words is not None:
        extra = (*extra, words)
    operands = [transpose(q, whole.of_queries), *(transpose(x, whole.of_keys) for x in (k, v))]
    function = _differentiable(whole, blocks, mask is not None)
    return transpose(function(*operands, *extra), q.shape)


def _differentiable(whole: AttentionPasses, blocks: AttentionBlocks | None, masked: bool):
    """Return the function that computes an attention, kernels offered for both its passes."""
    together = [*whole.batch, *whole.heads]

    def apart(extra: Sequence[Tensor]) -> tuple[Sequence[Tensor], Tensor | None]:
        """Separate the tensors that the mask is made of from the words of dropout."""
        return (extra[:-1], extra[-1]) if whole.rate else (extra, None)

    def make_mask(extra: Sequence[Tensor]) -> Tensor | None:
        """Return the whole mask, in the order that kernels read."""
        if not masked:
            return None
        parts, _ = apart(extra)
        mask = parts[0] if blocks is None or blocks.mask is None else blocks.mask.make(parts)
        order = [*whole.batch, *whole.queries, *whole.heads, whole.memory]
        return transpose(mask, [dim for dim in order if dim in mask.shape])

    def offer(name: str, plain: Sequence[Tensor], reads: Sequence[Tensor], extra: Sequence[Tensor]):
        mask, (_, words) = make_mask(extra), apart(extra)
        tensors = [tensor for tensor in (mask, words) if tensor is not None]
        options = whole.options() | {"mask": None if mask is None else list(mask.shape.names)}
        parallel = [*together, *whole.queries] if name == "attention" else together
        q, k, v, *others = reads
        return offer_kernel(name, plain, (q, k, v, *tensors, *others), parallel, **options)

    def forward(q: Tensor, k: Tensor, v: Tensor, *extra: Tensor):
        if blocks is None:
            plain = whole.forward(q, k, v, make_mask(extra), apart(extra)[1])
        else:
            plain = blocks.forward(q, k, v, *apart(extra))
        y, lse = offer("attention", plain, (q, k, v), extra)
        return y, (q, k, v, *extra, y, lse)

    def backward(saved: Sequence[Tensor], dy: Tensor):
        q, k, v, *extra, y, lse = saved
        dy = transpose(dy, whole.of_queries)
        delta = whole.find_delta(y, dy)
        if blocks is None:
            plain = whole.backward(q, k, v, make_mask(extra), apart(extra)[1], lse, delta, dy)
        else:
            plain = blocks.backward(q, k, v, *apart(extra), lse, delta, dy)
        cotangents = offer("attention_backward", plain, (q, k, v, y, lse, dy), extra)
        return [*cotangents, *[None] * len(extra)]

    return custom_vjp(forward, backward)


def _check(
    q: Tensor, k: Tensor, v: Tensor, over: Dimension, key: Dimension, mask: Tensor | None
) -> None:
    """Raise unless queries, keys, values and mask fit together."""
    for dim in (over, key):
        check_dimension("attention", dim)
    check_has_dims("attention", q, key)
    for tensor in (k, v):
        check_has_dims("attention", tensor, over, key)
    check_dtype_kind("attention", "float", q, k, v)
    check_one_dtype("attention", q, k, v)
    problems = []
    fixes = ["rename the positions of keys and values (nm.rename)"]
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
