"""The layers of the encoder or of the decoder, as the loop over layers sees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import namedmesh as nm
from namedmesh.layers.configuration import Config
from namedmesh.layers.explain import explain_mistakes


@explain_mistakes
@dataclass(frozen=True)
class LayerContext:
    """What the attention of one layer works with.

    Attributes:
        name: The layer's scope: `"dense"` or `"experts"`.
        layer: The iteration of the loop over layers, int32.
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
class Side:
    """The shape of the layers of the encoder or of the decoder.

    Attributes:
        L: The dimension layer: the iterations of the loop over layers.
        H: The dimension hidden of dense layers.
        experts: Whether an iteration has a second layer, with experts.
        unroll: How many iterations are written out one after the other.

    Example:
        >>> from namedmesh.layers import config
        >>> Side.make(config("tiny"), "decoder").scopes
        ('dense', 'experts')
    """

    L: nm.Dimension
    H: nm.Dimension
    experts: bool
    unroll: int

    @classmethod
    def make(cls, config: Config, side: str) -> Side:
        """Make the shape that a configuration gives a side.

        Args:
            config: The configuration.
            side: `"encoder"` or `"decoder"`.

        Returns:
            The shape.

        Example:
            >>> from namedmesh.layers import config
            >>> Side.make(config("tiny").but(expert_sides="encoder"), "decoder").H
            Dimension(name='hidden', size=96)
        """
        experts = bool(config.experts) and config.expert_sides in ("both", side)
        hidden = config.dense_hidden if config.experts and not experts else config.hidden
        layers = config.layers // (4 if experts else 2)
        unroll = max(n for n in range(1, min(config.unroll, layers) + 1) if layers % n == 0)
        return cls(nm.Dimension("layer", layers), nm.Dimension("hidden", hidden), experts, unroll)

    @property
    def scopes(self) -> tuple[str, ...]:
        """The names of the layers of one iteration."""
        return ("dense", "experts") if self.experts else ("dense",)


@explain_mistakes
@dataclass(frozen=True)
class LayerStack:
    """The layers of the encoder or of the decoder.

    Attributes:
        side: `"encoder"` or `"decoder"`.
        seq: The dimension along which tokens lie.
        attention: Applies a layer's attention; returns its output and the layer's new cache.
        padding: Which tokens are padding, bool, or None.
        router: How experts are chosen: `"top_k"` or `"expert_choice"`.
        capacity: The dimension of the experts' buffers, or None for the configuration's.
        choices: Whether the statistics tell the experts of every token, and their weights; with
            the router `"top_k"`.
        per_layer: Tensors with the layer dimension, of which each iteration sees a slice.
        cache: The layers' caches by scope while decoding.

    Example:
        >>> seq = nm.Dimension("seq", 8)
        >>> no_attention = LayerStack("encoder", seq, lambda h, context: (h, None))
        >>> no_attention.router
        'top_k'
    """

    side: str
    seq: nm.Dimension
    attention: Callable[[nm.Tensor, LayerContext], tuple[nm.Tensor, Any]]
    padding: nm.Tensor | None = None
    router: str = "top_k"
    capacity: nm.Dimension | None = None
    choices: bool = False
    per_layer: Any = None
    cache: dict[str, Any] = field(default_factory=dict)
