"""Multi-head attention in names: within a sequence, to another sequence, and over a cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import namedmesh as nm
from namedmesh.layers.linear import dense
from namedmesh.layers.mistakes import claim_name
from namedmesh.layers.regularization import dropout


@dataclass(frozen=True)
class Heads:
    """The dimensions of multi-head attention.

    Attributes:
        model: The dimension of the layer's input and output.
        heads: One element for each head.
        key: The dimension of a head's queries, keys and values.
        group: Queries that share a head's keys and values, where there are several
            (grouped-query attention; with one head, multi-query attention).

    Example:
        >>> Heads(*nm.dims("model=8 heads=2 key=4")).heads
        Dimension(name='heads', size=2)
    """

    model: nm.Dimension
    heads: nm.Dimension
    key: nm.Dimension
    group: nm.Dimension | None = None

    @property
    def queries(self) -> list[nm.Dimension]:
        """The dimensions of a position's queries: heads, those that share one, and key."""
        return [self.heads, *([self.group] if self.group else []), self.key]

    def memory(self, seq: nm.Dimension) -> nm.Dimension:
        """Return the dimension of keys and values, since a tensor has each name only once.

        Args:
            seq: The dimension of the queries' positions.

        Example:
            >>> Heads(*nm.dims("model=8 heads=2 key=4")).memory(nm.Dimension("seq", 6))
            Dimension(name='seq_memory', size=6)
        """
        return nm.Dimension(f"{seq.name}_memory", seq.size)


def self_attention(
    x: nm.Tensor,
    seq: nm.Dimension,
    heads: Heads,
    *,
    mask: nm.Tensor | None = None,
    bias: nm.Tensor | None = None,
    rate: float = 0.0,
    dropout_key: nm.Tensor | None = None,
) -> nm.Tensor:
    """Let every position attend to the positions of its own sequence.

    Args:
        x: The input, with the sequence and model dimensions.
        seq: The sequence's dimension.
        heads: The dimensions of attention.
        mask: Which memory positions (`heads.memory(seq)`) a position may attend to, bool.
        bias: A tensor to add to the scores, e.g. `relative_bias`.
        rate: The dropout rate of the attention weights.
        dropout_key: A random key for dropout, or None for evaluation.

    Returns:
        A tensor with the dimensions of x, the model dimension last.

    Example:
        >>> B, S, M, N, K = nm.dims("batch=2 seq=6 model=8 heads=2 key=4")
        >>> layer = lambda x: self_attention(x, S, Heads(M, N, K))
        >>> nm.trace(layer, x=nm.spec([B, S, M])).outputs[0].shape
        [batch=2, seq=6, model=8]
    """
    claim_name("self_attention", "wq")
    memory = heads.memory(seq)
    q = project_queries(x, heads)
    k, v = (nm.rename(tensor, seq, memory) for tensor in project_keys_and_values(x, heads))
    return attend(
        q, k, v, seq, memory, heads, mask=mask, bias=bias, rate=rate, dropout_key=dropout_key
    )


def cross_attention(
    x: nm.Tensor,
    memory: nm.Tensor,
    memory_seq: nm.Dimension,
    seq: nm.Dimension,
    heads: Heads,
    *,
    mask: nm.Tensor | None = None,
    rate: float = 0.0,
    dropout_key: nm.Tensor | None = None,
) -> nm.Tensor:
    """Let every position attend to the positions of another sequence.

    Args:
        x: The input, with the sequence and model dimensions.
        memory: The other sequence, with the memory and model dimensions.
        memory_seq: The other sequence's dimension.
        seq: The dimension of x along which its positions lie.
        heads: The dimensions of attention.
        mask: Which memory positions a position may attend to, bool.
        rate: The dropout rate of the attention weights.
        dropout_key: A random key for dropout, or None for evaluation.

    Returns:
        A tensor with the dimensions of x, the model dimension last.

    Example:
        >>> B, S, T, M, N, K = nm.dims("batch=2 source=6 target=5 model=8 heads=2 key=4")
        >>> layer = lambda x, memory: cross_attention(x, memory, S, T, Heads(M, N, K))
        >>> nm.trace(layer, x=nm.spec([B, T, M]), memory=nm.spec([B, S, M])).outputs[0].shape
        [batch=2, target=5, model=8]
    """
    claim_name("cross_attention", "wq")
    k, v = project_keys_and_values(memory, heads)
    q = project_queries(x, heads)
    return attend(q, k, v, seq, memory_seq, heads, mask=mask, rate=rate, dropout_key=dropout_key)


def project_queries(x: nm.Tensor, heads: Heads) -> nm.Tensor:
    """Compute the queries of every position and head.

    Args:
        x: The input, with the model dimension.
        heads: The dimensions of attention.

    Returns:
        A tensor with the other dimensions of x, then heads, the group if there is one, and key.

    Example:
        >>> S, M, N, K = nm.dims("seq=6 model=8 heads=2 key=4")
        >>> project = lambda x: project_queries(x, Heads(M, N, K))
        >>> nm.trace(project, x=nm.spec([S, M])).outputs[0].shape
        [seq=6, heads=2, key=4]
    """
    return dense(x, [heads.model], heads.queries, name="wq")


def project_keys_and_values(x: nm.Tensor, heads: Heads) -> tuple[nm.Tensor, nm.Tensor]:
    """Compute the keys and the values of every position and head.

    Args:
        x: The input, with the model dimension.
        heads: The dimensions of attention.

    Returns:
        Two tensors with the other dimensions of x, then heads and key.

    Example:
        >>> S, M, N, K = nm.dims("seq=6 model=8 heads=2 key=4")
        >>> project = lambda x: project_keys_and_values(x, Heads(M, N, K))
        >>> list(nm.trace(project, x=nm.spec([S, M])).parameters)
        ['wk', 'wv']
    """
    over, to = [heads.model], [heads.heads, heads.key]
    return dense(x, over, to, name="wk"), dense(x, over, to, name="wv")


def attend(
    q: nm.Tensor,
    k: nm.Tensor,
    v: nm.Tensor,
    seq: nm.Dimension,
    memory: nm.Dimension | Sequence[nm.Dimension],
    heads: Heads,
    *,
    mask: nm.Tensor | None = None,
    bias: nm.Tensor | None = None,
    rate: float = 0.0,
    dropout_key: nm.Tensor | None = None,
) -> nm.Tensor:
    """Average values by how well keys match queries, then project to the model dimension.

    The softmax is computed in float32.

    Args:
        q: Queries, with seq, heads and key.
        k: Keys, with the memory dimensions, heads and key.
        v: Values, of the shape of the keys.
        seq: The dimension of the queries' positions.
        memory: The dimension of the keys' positions, or several that are attended to as one.
        heads: The dimensions of attention.
        mask: Which memory positions a query may attend to, bool.
        bias: A tensor to add to the scores.
        rate: The dropout rate of the attention weights.
        dropout_key: A random key for dropout, or None for evaluation.

    Returns:
        A tensor with the batch dimensions of the queries, then seq and the model dimension.

    Example:
        >>> S, T, M, N, K = nm.dims("seq=6 memory=5 model=8 heads=2 key=4")
        >>> attention = lambda q, k, v: attend(q, k, v, S, T, Heads(M, N, K))
        >>> keys = nm.spec([T, N, K])
        >>> nm.trace(attention, q=nm.spec([S, N, K]), k=keys, v=keys).outputs[0].shape
        [seq=6, model=8]
    """
    if isinstance(memory, nm.Dimension) and bias is None:
        order = [*_batch(q, seq, heads), seq, *heads.queries]
        context = nm.attention(
            nm.transpose(q, order),
            k,
            v,
            memory,
            heads.key,
            mask=mask,
            rate=rate,
            dropout_key=dropout_key,
        )
    else:
        context = _attend_to_all(q, k, v, seq, memory, heads, mask, bias, rate, dropout_key)
    return dense(context, heads.queries, [heads.model], name="wo")


def _batch(q: nm.Tensor, seq: nm.Dimension, heads: Heads) -> list[nm.Dimension]:
    """Find the dimensions of queries that are neither positions nor heads."""
    return [dim for dim in q.shape if dim not in (seq, *heads.queries)]


def _attend_to_all(
    q: nm.Tensor,
    k: nm.Tensor,
    v: nm.Tensor,
    seq: nm.Dimension,
    memory: nm.Dimension | Sequence[nm.Dimension],
    heads: Heads,
    mask: nm.Tensor | None,
    bias: nm.Tensor | None,
    rate: float,
    dropout_key: nm.Tensor | None,
) -> nm.Tensor:
    """Attention with a bias, or over several dimensions: every weight is computed and kept."""
    batch = _batch(q, seq, heads)
    memory = [memory] if isinstance(memory, nm.Dimension) else [*memory]
    scores = nm.einsum(
        [q * (1.0 / math.sqrt(heads.key.size)), k], [*batch, *heads.queries[:-1], seq, *memory]
    )
    scores = nm.cast(scores, "float32")
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = nm.where(mask, scores, -1e9)
    weights = dropout(nm.cast(nm.softmax(scores, over=memory), q.dtype), rate, dropout_key)
    return nm.einsum([weights, v], [*batch, seq, *heads.queries])


def segment_mask(segments: nm.Tensor, memory_segments: nm.Tensor) -> nm.Tensor:
    """Allow attention within a packed example only.

    Args:
        segments: The example that each position belongs to, int32.
        memory_segments: The same for each memory position; 0 is padding.

    Returns:
        A bool tensor: both positions belong to one example, and the second is not padding.

    Example:
        >>> S, T = nm.dims("seq=2 memory=3")
        >>> mask = nm.trace(segment_mask, nm.spec([S], "int32"), nm.spec([T], "int32"))
        >>> mask.evaluate({}, segments=[1, 2], memory_segments=[1, 2, 0])[1].numpy().tolist()
        [[True, False, False], [False, True, False]]
    """
    return nm.equal(segments, memory_segments) & nm.not_equal(memory_segments, 0)


def causal_mask(seq: nm.Dimension, memory: nm.Dimension) -> nm.Tensor:
    """Allow attention to a position itself and to earlier ones.

    Args:
        seq: The dimension of the queries' positions.
        memory: The dimension of the keys' positions.

    Returns:
        A bool tensor over both: the memory position is not later.

    Example:
        >>> S, T = nm.dims("seq=2 memory=2")
        >>> mask = nm.trace(lambda: nm.transpose(causal_mask(S, T), [S, T]))
        >>> mask.evaluate({})[1].numpy().tolist()
        [[True, False], [True, True]]
    """
    return nm.range(memory) <= nm.range(seq)


def window_mask(seq: nm.Dimension, memory: nm.Dimension, window: int) -> nm.Tensor:
    """Allow attention to a position itself and to a few before it.

    Args:
        seq: The dimension of the queries' positions.
        memory: The dimension of the keys' positions.
        window: How many positions a query attends to, itself included.

    Returns:
        A bool tensor over both.

    Example:
        >>> S, T = nm.dims("seq=3 memory=3")
        >>> mask = nm.trace(lambda: nm.transpose(window_mask(S, T, 2), [S, T]))
        >>> mask.evaluate({})[1].numpy().tolist()
        [[True, False, False], [True, True, False], [False, True, True]]
    """
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise nm.NamedMeshError(
            f"window_mask: {window!r} positions are no window", fix="pass a whole number from 1"
        )
    distance = nm.range(seq) - nm.range(memory)
    return (distance >= 0) & (distance < window)
