"""Attention over sequences that no device holds whole: positions change places with heads."""

from __future__ import annotations

from namedmesh.dims.dimension import Dimension
from namedmesh.ir.operands import check_has_dims
from namedmesh.ir.recipe import find_recipe
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.move import replicate, reshard
from namedmesh.ops.softmax_attention import attention


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
    """Attend as `nm.attention` does, where positions and heads share a mesh axis.

    Queries, keys and values come with positions split; an AllToAll of each gives the axis to the
    heads, every device attends with its own heads to all positions, and an AllToAll of the result
    gives the axis back: 4/n of what gathering keys and values on n devices would take, for as many
    heads as devices or more. Map `query`, `over` and `heads` to one axis:
    `seq:context, memory:context, heads:context`.

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

    Returns:
        A tensor of the dimensions and dtype of the queries.

    Raises:
        NamedMeshError: A tensor lacks a dimension, or what `nm.attention` raises.

    Example:
        >>> import namedmesh as nm
        >>> S, T, H, K = nm.dims("seq=8 memory=8 heads=4 key=4")
        >>> def attend(q, k, v):
        ...     return nm.ulysses_attention(q, k, v, T, K, query=S, heads=H)
        >>> program = nm.trace(attend, nm.spec([S, H, K]), nm.spec([T, H, K]), nm.spec([T, H, K]))
        >>> plan = nm.plan(program, nm.Mesh(ctx=4), "seq:ctx, memory:ctx, heads:ctx")
        >>> [one.kind for one in plan.collectives]
        ['AllToAll', 'AllToAll', 'AllToAll', 'AllToAll']
    """
    check_has_dims("ulysses_attention", q, query, heads, key)
    for x in (k, v):
        check_has_dims("ulysses_attention", x, over, heads, key)
    q, k, v = (reshard(x, heads) for x in (q, k, v))
    if mask is not None:
        mask = _make_whole(mask, query, over)
    result = attention(
        q, k, v, over, key, mask=mask, scale=scale, rate=rate, dropout_key=dropout_key, block=block
    )
    return reshard(result, query)


def _make_whole(mask: Tensor, query: Dimension, over: Dimension) -> Tensor:
    """Make a mask of all positions, as queries and keys are then.

    What it is made of is moved, so that attention by blocks can still make a block by itself.
    """
    recipe, leaves = find_recipe(mask, over), []
    for leaf in recipe.leaves:
        positions = [dim for dim in leaf.shape if dim in (query, over)]
        leaves.append(replicate(leaf, *positions) if positions else leaf)
    return recipe.make(leaves)
