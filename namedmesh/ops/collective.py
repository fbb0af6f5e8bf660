"""Named collectives: what shards of a dimension send each other.

The shards are a dimension of their own, which the layout maps to mesh axes. Inside `nm.manual`
these ops communicate; outside they are the named ops that they are made of.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

from namedmesh.dims.dimension import Dimension
from namedmesh.errors.errors import NamedMeshError, join_names
from namedmesh.ir.operands import check_dimension, check_has_dims
from namedmesh.ir.tensor import Tensor
from namedmesh.lazy import explain_names
from namedmesh.ops import broadcast, constants, slices
from namedmesh.ops.move import replicate, reshard
from namedmesh.ops.region import active_region, record_collective
from namedmesh.ops.shape import rename
from namedmesh.ops.shard_moves import Permute, Swap


def sum(x: Tensor, shards: Dimension) -> Tensor:
    """Return the sum of what all shards have: an AllReduce, where they are sharded.

    Args:
        x: A tensor of numbers that has the dimension of shards.
        shards: The dimension, which the result lacks.

    Example:
        >>> P, M = nm.dims("shard=4 model=3")
        >>> def normalize(x):
        ...     return x / nm.collective.sum(nm.sum(x, M), P)
        >>> program = nm.trace(lambda x: nm.manual(normalize, x, over=P), nm.spec([P, M]))
        >>> nm.plan(program, nm.Mesh(data=4), "shard:data").count("AllReduce")
        1
    """
    _check("collective.sum", x, shards)
    return record_collective(lambda x: [broadcast.sum(x, shards)], [x])[0]


def gather(x: Tensor, shards: Dimension, whole: Dimension) -> Tensor:
    """Return what all shards have, whole on every device: an AllGather.

    Args:
        x: A tensor that has the dimension of shards.
        shards: The dimension.
        whole: The dimension that takes its place in the result.

    Example:
        >>> P, A, M = nm.dims("shard=4 all=4 model=3")
        >>> def largest(x):
        ...     return x - nm.max(nm.collective.gather(x, P, A), A)
        >>> program = nm.trace(lambda x: nm.manual(largest, x, over=P), nm.spec([P, M]))
        >>> nm.plan(program, nm.Mesh(data=4), "shard:data").count("AllGather")
        1
    """
    _check("collective.gather", x, shards)
    _check_sizes("collective.gather", x, shards, check_dimension("collective.gather", whole, x))
    return record_collective(lambda x: [replicate(rename(x, shards, whole), whole)], [x])[0]


def scatter_sum(x: Tensor, shards: Dimension, whole: Dimension) -> Tensor:
    """Return to each shard its share of the sum of what all have: a ReduceScatter.

    Args:
        x: A tensor of numbers that has both dimensions.
        shards: The dimension of shards.
        whole: A dimension of the same size, which the result lacks: element p is for shard p.

    Example:
        >>> P, A, M = nm.dims("shard=2 all=2 model=1")
        >>> def share(x):
        ...     return nm.collective.scatter_sum(x, P, A)
        >>> nm.evaluate(share, x=([P, A, M], [[[1], [2]], [[10], [20]]]))
        array([[11],
               [22]], dtype=int32)
    """
    _check("collective.scatter_sum", x, shards, whole)
    _check_sizes("collective.scatter_sum", x, shards, whole)
    return record_collective(
        lambda x: [reshard(rename(broadcast.sum(x, shards), whole, shards), shards)], [x]
    )[0]


def all_to_all(x: Tensor, shards: Dimension, whole: Dimension) -> Tensor:
    """Return a tensor of the same shape in which what was at (p, q) is at (q, p): an AllToAll.

    Args:
        x: A tensor that has both dimensions.
        shards: The dimension of shards.
        whole: A dimension of the same size: element q is for shard q.

    Example:
        >>> P, A = nm.dims("shard=2 all=2")
        >>> nm.evaluate(lambda x: nm.collective.all_to_all(x, P, A), x=([P, A], [[1, 2], [3, 4]]))
        array([[1, 3],
               [2, 4]], dtype=int32)
    """
    _check("collective.all_to_all", x, shards, whole)
    _check_sizes("collective.all_to_all", x, shards, whole)
    return record_collective(lambda x: [Swap((x,), shards, whole).output], [x])[0]


def permute(
    x: Tensor, shards: Dimension, by: int | None = None, sources: Sequence[int | None] | None = None
) -> Tensor:
    """Return a tensor in which every shard is where another one was: a CollectivePermute.

    Args:
        x: A tensor that has the dimension of shards.
        shards: The dimension.
        by: How far every shard goes; those that leave at one end enter at the other.
        sources: Instead: for every shard the one whose values it gets, None where it gets zeros. Of
            several shards on one device these are gathered.

    Example:
        >>> P, = nm.dims("shard=3")
        >>> nm.evaluate(lambda x: nm.collective.permute(x, P, by=1), x=([P], [1, 2, 3]))
        array([3, 1, 2], dtype=int32)
        >>> swap = lambda x: nm.collective.permute(x, P, sources=[1, 0, None])
        >>> nm.evaluate(swap, x=([P], [1, 2, 3]))
        array([2, 1, 0], dtype=int32)
    """
    _check("collective.permute", x, shards)
    if (by is None) == (sources is None):
        raise NamedMeshError(
            "collective.permute: say who sends to whom once",
            str(x),
            fix="pass by=1, or sources= with the sender of every shard",
        )
    if by is not None:
        return record_collective(lambda x: [slices.roll(x, shards, by)], [x])[0]
    senders = _check_sources(x, shards, sources or ())
    return record_collective(lambda x: [Permute((x,), shards, senders).output], [x])[0]


def index(shards: Dimension) -> Tensor:
    """Return the number of each shard, an int32 tensor.

    Args:
        shards: The dimension of shards.

    Example:
        >>> P, = nm.dims("shard=3")
        >>> nm.evaluate(lambda: nm.collective.index(P))
        array([0, 1, 2], dtype=int32)
    """
    return constants.range(check_dimension("collective.index", shards))


def _check(what: str, x: Tensor, shards: Dimension, *others: Dimension) -> None:
    """Raise unless a tensor has some dimensions and the region is split over the first."""
    check_has_dims(what, x, shards, *others)
    over = active_region()
    if over is not None and shards.name not in over:
        raise NamedMeshError(
            f"{what}: the region is split over {join_names(sorted(over))}, not {shards.name}",
            str(x),
            fix=f"add {shards.name} to over= of nm.manual, or use the plain op: it is whole here",
        )


def _check_sizes(what: str, x: Tensor, shards: Dimension, whole: Dimension) -> None:
    """Raise unless two dimensions have one size."""
    if shards.size != whole.size or shards.name == whole.name:
        raise NamedMeshError(
            f"{what}: {whole} cannot stand for {shards}",
            str(x),
            fix=f"use another dimension of size {shards.size}",
        )


def _check_sources(x: Tensor, shards: Dimension, sources: Sequence[int | None]) -> tuple[int, ...]:
    """Return the sender of every shard, -1 for none, or raise unless they are a permutation."""
    try:
        senders = tuple(-1 if one is None else operator.index(one) for one in sources)
    except (TypeError, ValueError):
        senders = ()
    sent = [one for one in senders if one >= 0]
    known = all(-1 <= one < shards.size for one in senders)
    if len(senders) != shards.size or len({*sent}) != len(sent) or not known:
        raise NamedMeshError(
            f"collective.permute: {list(sources) if senders else sources!r} are not the senders of "
            f"{shards.size} shards",
            str(x),
            fix=f"list {shards.size} numbers from 0 to {shards.size - 1}, each once at most, "
            "and None for a shard that gets zeros",
        )
    return senders


__getattr__, __dir__ = explain_names(__name__, "nm.collective")
