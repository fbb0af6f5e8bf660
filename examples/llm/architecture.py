"""What a model is made of: the sizes and the choices that families of models differ in."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Rotary:
    """Rotary positions.

    Attributes:
        base: The longest wavelength over 2 pi.
        scaling: As `rope_scaling` of a config.json; see `rotary_frequencies`.
    """

    base: float = 10_000.0
    scaling: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Latent:
    """The sizes of latent attention, besides heads and key (the part without positions).

    Attributes:
        queries: The size of what queries are made of; 0 for the layer's input.
        keys: The size of what keys and values are made of.
        rotated: The size of the part of queries and keys that is rotated.
        value: The size of a head's values.
    """

    queries: int
    keys: int
    rotated: int
    value: int


@dataclass(frozen=True)
class Experts:
    """A mixture of experts.

    Attributes:
        count, chosen, hidden: The experts, those that a token goes to, and the hidden size of each.
        shared: The hidden size of a network that serves every token; 0 for none.
        layers: Whether each layer is a mixture; () if all are.
        score: Gates are the `softmax` of all logits, or the `sigmoid` of each.
        normalize: Whether the gates of the chosen experts are scaled to sum to one.
        scale: A factor of the gates.
        groups: The groups of experts, and those that a token may choose from.
        balance: How the load is balanced: by a `loss`, or by a `bias` of each expert.
        weight: The weight of that loss, or of the bias's gradient.
    """

    count: int
    chosen: int
    hidden: int
    shared: int = 0
    layers: tuple[bool, ...] = ()
    score: str = "softmax"
    normalize: bool = True
    scale: float = 1.0
    groups: tuple[int, int] = (1, 1)
    balance: str = "loss"
    weight: float = 0.01


@dataclass(frozen=True)
class Architecture:
    """A decoder-only Transformer.

    Attributes:
        family: The family, which names its weights in files; a key of `FAMILIES`.
        vocab, layers, model, hidden: The sizes of the model.
        heads, group, key: Heads of keys and values, queries that share one, and their size.
        latent: Latent attention in the place of grouped-query attention, or None.
        experts: A mixture of experts in the place of some layers' networks, or None.
        tied: Whether one table both embeds tokens and scores them.
        activation: Of the networks, which are gated.
        epsilon: Of the norms.
        qkv_bias, output_bias, network_bias: Whether these projections have biases.
        key_norms: Whether every head's queries and keys are normalized.
        scaled: Whether embeddings are multiplied by the root of the model dimension.
        gemma: Gemma's norms: learned minus one, and also after every sublayer.
        rotary: The rotary positions.
        local_rotary: Those of layers with a window, or None for the same.
        interleaved: Whether rotated pairs are neighbours.
        window: How many positions a query of a local layer attends to.
        local: Whether each layer has that window; () if none has.
        score_size: The size of key that scores are divided by the root of; 0 for the keys' own.
        score_cap, logit_cap: What attention scores and logits approach, by a tanh; 0 for no cap.
        predictions: How many further tokens are predicted in training, each by a layer of its own.
    """

    family: str = "llama"
    vocab: int = 256
    layers: int = 3
    model: int = 96
    hidden: int = 256
    heads: int = 2
    group: int = 2
    key: int = 24
    latent: Latent | None = None
    experts: Experts | None = None
    tied: bool = True
    activation: str = "swish"
    epsilon: float = 1e-6
    qkv_bias: bool = False
    output_bias: bool = False
    network_bias: bool = False
    key_norms: bool = False
    scaled: bool = True
    gemma: bool = False
    rotary: Rotary = field(default_factory=Rotary)
    local_rotary: Rotary | None = None
    interleaved: bool = False
    window: int = 0
    local: tuple[bool, ...] = ()
    score_size: float = 0
    score_cap: float = 0
    logit_cap: float = 0
    predictions: int = 0

    @property
    def runs(self) -> list[tuple[int, int, bool]]:
        """The runs of equal layers: the first, how many, and whether they are mixtures."""
        mixed = [False] * self.layers
        if self.experts:
            mixed = list(self.experts.layers) or [True] * self.layers
        starts = [i for i in range(self.layers) if i == 0 or mixed[i] != mixed[i - 1]]
        return [
            (one, end - one, mixed[one])
            for one, end in zip(starts, [*starts[1:], self.layers], strict=True)
        ]

    def but(self, **changes: Any) -> Architecture:
        """Return the same architecture with changes."""
        return dataclasses.replace(self, **changes)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Architecture:
        """Make an architecture of what `dataclasses.asdict` made of it, by way of JSON."""
        parts: dict[str, Any] = {"latent": Latent, "experts": Experts}
        parts |= {"rotary": Rotary, "local_rotary": Rotary}

        def tuples(one: dict[str, Any]) -> dict[str, Any]:
            return {k: tuple(v) if isinstance(v, list) else v for k, v in one.items()}

        own: dict[str, Any] = {
            name: parts[name](**tuples(value)) if name in parts and value else value
            for name, value in values.items()
        }
        return cls(**tuples(own))
