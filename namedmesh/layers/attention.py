"""Multi-head attention in names: within a sequence, to another sequence, and over a cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import namedmesh as nm
from namedmesh.ir.operands import as_tuple
from namedmesh.layers.linear import dense
from namedmesh.layers.mistakes import claim_name
from namedmesh.layers.regularization import dropout


@dataclass(frozen=True)
class Heads:
    """The dimensions of multi-head attention.

    Attributes:
        model: The dimension of the layer's input and output.
        heads: The dimension of heads.
        key: The dimension of a head's queries, keys and values.
        group: The dimension of queries that share a head's keys and values (grouped-query
            attention; with one head, multi-query attention), or None.

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
        """Return the dimension of keys and values: `<name>_memory`, of the same size."""
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
    """Let every position attend to its own sequence; the model dimension comes last.

    Args:
        x: The input, with the sequence and model dimensions.
        seq: The sequence's dimension.
        heads: The dimensions of attention.
        mask: The memory positions (`heads.memory(seq)`) that a position may attend to, bool.
        bias: A tensor to add to the scores, e.g. `relative_bias`.
        rate: The dropout rate of the attention weights.
        dropout_key: A random key for dropout, or None for evaluation.

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
    """Let every position attend to another sequence; the model dimension comes last.

    Args:
        x: The input, with the sequence and model dimensions.
        memory: The other sequence, with the memory and model dimensions.
        memory_seq: The other sequence's dimension.
        seq: The sequence dimension of x.
        heads, mask, rate, dropout_key: As in `self_attention`.

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
    """Project x to queries: heads, the group if there is one, and key replace the model dimension.

    Example:
        >>> S, M, N, K = nm.dims("seq=6 model=8 heads=2 key=4")
        >>> project = lambda x: project_queries(x, Heads(M, N, K))
        >>> nm.trace(project, x=nm.spec([S, M])).outputs[0].shape
        [seq=6, heads=2, key=4]
    """
    return dense(x, [heads.model], heads.queries, name="wq")


def project_keys_and_values(x: nm.Tensor, heads: Heads) -> tuple[nm.Tensor, nm.Tensor]:
    """Project x to keys and to values: heads and key replace the model dimension.

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
        heads, mask, bias, rate, dropout_key: As in `self_attention`.

    Example:
        >>> S, T, M, N, K = nm.dims("seq=6 memory=5 model=8 heads=2 key=4")
        >>> q, k = nm.spec([S, N, K]), nm.spec([T, N, K])
        >>> nm.trace(lambda q, k: attend(q, k, k, S, T, Heads(M, N, K)), q, k).outputs[0].shape
        [seq=6, model=8]
    """
    context = average_values(
        q, k, v, seq, memory, heads, mask=mask, bias=bias, rate=rate, dropout_key=dropout_key
    )
    return dense(context, heads.queries, [heads.model], name="wo")


def average_values(
    q: nm.Tensor,
    k: nm.Tensor,
    v: nm.Tensor,
    seq: nm.Dimension,
    memory: nm.Dimension | Sequence[nm.Dimension],
    heads: Heads,
    *,
    mask: nm.Tensor | None = None,
    bias: nm.Tensor | None = None,
    scale: float | None = None,
    cap: float | None = None,
    rate: float = 0.0,
    dropout_key: nm.Tensor | None = None,
) -> nm.Tensor:
    """Average values by how well keys match queries: `attend` without its projection.

    Args:
        q, k, seq, memory, heads, mask, bias, rate, dropout_key: As in `attend`.
        v: Values: a dimension of their own, at most as large as key, may take the place of key.
        scale: The factor of the scores; one over the root of the size of key by default.
        cap: What scores approach but never reach, by a tanh; None for no cap.

    Example:
        >>> S, T, M, N, K, W = nm.dims("seq=6 memory=5 model=8 heads=2 key=4 value=3")
        >>> q, k, v = nm.spec([S, N, K]), nm.spec([T, N, K]), nm.spec([T, N, W])
        >>> mean = lambda q, k, v: average_values(q, k, v, S, T, Heads(M, N, K), cap=50.0)
        >>> nm.trace(mean, q, k, v).outputs[0].shape
        [seq=6, heads=2, value=3]
    """
    batch = [dim for dim in q.shape if dim not in (seq, *heads.queries)]
    order = [*batch, seq, *heads.queries]
    value = next((dim for dim in v.shape if dim not in k.shape), heads.key)
    scale = 1.0 / math.sqrt(heads.key.size) if scale is None else scale
    memory = as_tuple(memory)
    if len(memory) == 1 and bias is None and cap is None:
        if value != heads.key:  # kernels take values of the size of keys
            v = nm.pad(v, value, high=heads.key.size - value.size)
            v = nm.rename(v, value.resized(heads.key.size), heads.key)
        q = nm.transpose(q, order)
        context = nm.attention(
            q, k, v, *memory, heads.key, mask=mask, scale=scale, rate=rate, dropout_key=dropout_key
        )
        if value == heads.key:
            return context
        cut = nm.slice(context, heads.key, 0, value.size)
        return nm.rename(cut, heads.key.resized(value.size), value)
    # With a bias, a cap or several dimensions every weight is stored for the gradient.
    scores = nm.einsum([q * scale, k], [*batch, *heads.queries[:-1], seq, *memory])
    scores = nm.cast(scores, "float32")
    if cap is not None:
        scores = nm.tanh(scores * (1.0 / cap)) * cap
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = nm.where(mask, scores, -1e9)
    weights = dropout(nm.cast(nm.softmax(scores, over=memory), q.dtype), rate, dropout_key)
    return nm.einsum([weights, v], [*order[:-1], value])


def segment_mask(segments: nm.Tensor, memory_segments: nm.Tensor) -> nm.Tensor:
    """Return a mask that allows attention within a packed example only, and not to padding.

    Args:
        segments: The example that each position belongs to, int32.
        memory_segments: The same for each memory position; 0 is padding.

    Example:
        >>> S, T = nm.dims("seq=2 memory=3")
        >>> mask = lambda a, b: segment_mask(a, b)
        >>> nm.evaluate(mask, a=([S], [1, 2]), b=([T], [1, 2, 0])).tolist()
        [[True, False, False], [False, True, False]]
    """
    return nm.equal(segments, memory_segments) & nm.not_equal(memory_segments, 0)


def causal_mask(seq: nm.Dimension, memory: nm.Dimension) -> nm.Tensor:
    """Return a mask that allows attention to a position itself and to earlier ones.

    Args:
        seq: The dimension of the queries' positions.
        memory: The dimension of the keys' positions.

    Example:
        >>> S, T = nm.dims("seq=2 memory=2")
        >>> nm.evaluate(lambda: nm.transpose(causal_mask(S, T), [S, T])).tolist()
        [[True, False], [True, True]]
    """
    return nm.range(memory) <= nm.range(seq)


def window_mask(seq: nm.Dimension, memory: nm.Dimension, window: int) -> nm.Tensor:
    """Return a mask that allows attention to a position itself and to a few before it.

    Args:
        seq, memory: As in `causal_mask`.
        window: The number of positions a query attends to, itself included.

    Example:
        >>> S, T = nm.dims("seq=3 memory=3")
        >>> nm.evaluate(lambda: nm.transpose(window_mask(S, T, 2), [S, T])).tolist()
        [[True, False, False], [True, True, False], [False, True, True]]
    """
    if window < 1:
        raise nm.NamedMeshError(
            f"window_mask: window={window} is not positive", fix="pass at least 1"
        )
    distance = nm.range(seq) - nm.range(memory)
    return (distance >= 0) & (distance < window)
