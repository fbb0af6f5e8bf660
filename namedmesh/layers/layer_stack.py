"""The layers of the encoder or of the decoder, as the loop over layers sees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import namedmesh as nm
from namedmesh.layers.explain import explain_mistakes


@explain_mistakes
@dataclass(frozen=True)
class LayerContext:
    """What the attention of one layer works with.

    Attributes:
        name: The layer's scope: `"dense"` or `"experts"`.
        layer: The turn of the loop over layers, int32.
        per_layer: The layer's slices of `LayerStack.per_layer`.
        cache: The layer's cache while decoding, or None.
        key: A random key, or None for evaluation.

    Example:
        >>> number = lambda layer: LayerContext("dense", layer, None, None, None).layer
        >>> nm.trace(number, nm.spec([], "int32")).outputs[0].shape
        []
    """

    name: str
    layer: nm.Tensor
    per_layer: Any
    cache: dict[str, nm.Tensor] | None
    key: nm.Tensor | None


@explain_mistakes
@dataclass(frozen=True)
class LayerStack:
    """The layers of the encoder or of the decoder.

    Attributes:
        seq: The dimension along which tokens lie.
        attention: Applies a layer's attention; returns its output and the layer's new cache.
        padding: Which tokens are padding, bool, or None.
        router: How experts are chosen: `"top_k"` or `"expert_choice"`.
        capacity: The dimension of the experts' buffers, or None for the configuration's.
        per_layer: Tensors with the layer dimension, of which each turn sees a slice.
        cache: The layers' caches by scope while decoding.

    Example:
        >>> no_attention = LayerStack(nm.Dimension("seq", 8), lambda h, context: (h, None))
        >>> no_attention.router
        'top_k'
    """

    seq: nm.Dimension
    attention: Callable[[nm.Tensor, LayerContext], tuple[nm.Tensor, Any]]
    padding: nm.Tensor | None = None
    router: str = "top_k"
    capacity: nm.Dimension | None = None
    per_layer: Any = None
    cache: dict[str, Any] = field(default_factory=dict)
