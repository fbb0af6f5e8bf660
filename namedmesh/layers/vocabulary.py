"""From tokens to the model dimension, and from there to a score for every token."""

from __future__ import annotations

import math

import namedmesh as nm
from namedmesh.layers.explain import explain_mistakes


@explain_mistakes
def embedding(
    tokens: nm.Tensor,
    vocab: nm.Dimension,
    model: nm.Dimension,
    *,
    name: str = "embedding",
    dtype: str = "float32",
) -> nm.Tensor:
    """Look up the rows of a learned table, multiplied by the square root of the model dimension.

    Args:
        tokens: Integers that index the vocabulary.
        vocab: The vocabulary's dimension.
        model: The dimension of a row.
        name: The name of the table; `vocabulary_logits` of the same name shares it.
        dtype: The dtype of the result.

    Returns:
        A tensor with the dimensions of tokens, then the model dimension.

    Example:
        >>> B, V, M = nm.dims("batch=4 vocab=100 model=8")
        >>> nm.trace(lambda t: embedding(t, V, M), t=nm.spec([B], "int32")).outputs[0].shape
        [batch=4, model=8]
    """
    table = nm.param(name, [vocab, model], nm.normal_init(1.0 / math.sqrt(model.size)))
    return nm.gather(nm.cast(table, dtype), tokens, vocab) * math.sqrt(model.size)


@explain_mistakes
def vocabulary_logits(
    x: nm.Tensor, vocab: nm.Dimension, model: nm.Dimension, *, name: str = "embedding"
) -> nm.Tensor:
    """Score every token of a vocabulary.

    Args:
        x: Representations, with the model dimension.
        vocab: The vocabulary's dimension.
        model: The dimension to contract.
        name: The name of the table; the name of an embedding ties the two.

    Returns:
        A tensor with the other dimensions of x, then the vocabulary, in the dtype of x.

    Example:
        >>> B, V, M = nm.dims("batch=4 vocab=100 model=8")
        >>> nm.trace(lambda x: vocabulary_logits(x, V, M), x=nm.spec([B, M])).outputs[0].shape
        [batch=4, vocab=100]
    """
    table = nm.param(name, [vocab, model], nm.normal_init(1.0 / math.sqrt(model.size)))
    others = [dim for dim in x.shape if dim != model]
    return nm.einsum([x, nm.cast(table, x.dtype)], [*others, vocab])
