"""Multi-head attention in names: self, causal and cross, with packing masks, relative positions and a cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import namedmesh as nm
from namedmesh.dims.dimension import Dimension
from namedmesh.dims.errors import NamedMeshError
from namedmesh.ir.tensor import Tensor
from namedmesh.layers.dense import dense
from namedmesh.layers.dropout import dropout


@dataclass(frozen=True)
class Heads:
    """The dimensions of attention: model, heads and what each head works in; memory names the keys' positions."""

    model: Dimension
    heads: Dimension
    key: Dimension

    def memory(self, seq: Dimension) -> Dimension:
        """The dimension of keys and values for a sequence: a tensor has each name once."""
        return Dimension(f"{seq.name}_memory", seq.size)


def self_attention(
    x: Tensor,
    seq: Dimension,
    heads: Heads,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    rate: float = 0.0,
    dropout_key: Tensor | None = None,
) -> Tensor:
    """Every position attends to the positions of the same sequence that the mask (.. seq, memory) allows."""
    q = queries(x, heads)
    k, v = (nm.rename(one, seq, heads.memory(seq)) for one in keys_and_values(x, heads))
    return mixed(
        q,
        k,
        v,
        seq,
        heads.memory(seq),
        heads,
        mask=mask,
        bias=bias,
        rate=rate,
        dropout_key=dropout_key,
    )


def cross_attention(
    x: Tensor,
    memory: Tensor,
    memory_seq: Dimension,
    seq: Dimension,
    heads: Heads,
    *,
    mask: Tensor | None = None,
    rate: float = 0.0,
    dropout_key: Tensor | None = None,
) -> Tensor:
    """Every position attends to the positions of another sequence."""
    k, v = keys_and_values(memory, heads)
    return mixed(
        queries(x, heads),
        k,
        v,
        seq,
        memory_seq,
        heads,
        mask=mask,
        rate=rate,
        dropout_key=dropout_key,
    )


def queries(x: Tensor, heads: Heads) -> Tensor:
    """What each position asks, head by head."""
    return dense(x, [heads.model], [heads.heads, heads.key], name="wq")


def keys_and_values(x: Tensor, heads: Heads) -> tuple[Tensor, Tensor]:
    """What each position answers to, and what it answers, head by head."""
    over, to = [heads.model], [heads.heads, heads.key]
    return dense(x, over, to, name="wk"), dense(x, over, to, name="wv")


def mixed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seq: Dimension,
    memory: Dimension | Sequence[Dimension],
    heads: Heads,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    rate: float = 0.0,
    dropout_key: Tensor | None = None,
) -> Tensor:
    """Values averaged by how well keys fit queries, and brought back to the model dimension; softmax in float32.

    memory is the dimension of the keys' positions; of several, every position of all of them together is one.
    """
    batch = [dim for dim in q.shape if dim not in (seq, heads.heads, heads.key)]
    memory = [memory] if isinstance(memory, Dimension) else [*memory]
    scores = nm.einsum(
        [q * (1.0 / math.sqrt(heads.key.size)), k], [*batch, heads.heads, seq, *memory]
    )
    scores = nm.cast(scores, "float32")
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = nm.where(mask, scores, -1e9)
    weights = dropout(nm.cast(nm.softmax(scores, over=memory), q.dtype), rate, dropout_key)
    context = nm.einsum([weights, v], [*batch, seq, heads.heads, heads.key])
    return dense(context, [heads.heads, heads.key], [heads.model], name="wo")


def same_segment(segments: Tensor, memory_segments: Tensor) -> Tensor:
    """Whether a position and a memory position belong to one packed example; segment 0 is padding."""
    return nm.equal(segments, memory_segments) & nm.not_equal(memory_segments, 0)


def causal(seq: Dimension, memory: Dimension) -> Tensor:
    """Whether a memory position is not later than a position."""
    return nm.range(memory) <= nm.range(seq)


def relative_bias(
    distance: Tensor,
    heads: Heads,
    *,
    buckets: int = 32,
    farthest: int = 128,
    both_ways: bool = True,
) -> Tensor:
    """A learned score for each head and distance (memory position less position), grouped logarithmically when far."""
    exact = buckets // 4 if both_ways else buckets // 2
    if not 0 < exact < farthest:
        raise NamedMeshError(
            f"relative_bias: {buckets} buckets for distances to {farthest}",
            fix="give 4 or more, and farther distances",
        )
    B = Dimension("distance_bucket", buckets)
    table = nm.param("relative_bias", [B, heads.heads], nm.normal_init(0.02))
    return nm.gather(table, bucket(distance, buckets, farthest, both_ways), B)


def bucket(distance: Tensor, buckets: int, farthest: int, both_ways: bool) -> Tensor:
    """The bucket of a distance: exact for near ones, logarithmic for far ones."""
    side = nm.zeros([], "int32")
    if both_ways:
        buckets //= 2
        side = nm.cast(distance > 0, "int32") * buckets
        distance = nm.absolute(distance)
    else:
        distance = nm.maximum(-distance, 0)
    exact = buckets // 2
    far = (
        nm.log(nm.cast(nm.maximum(distance, 1), "float32") / float(exact))
        / math.log(farthest / exact)
        * (buckets - exact)
    )
    far = nm.minimum(nm.cast(far, "int32") + exact, buckets - 1)
    return side + nm.where(distance < exact, distance, far)
