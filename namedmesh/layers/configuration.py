"""The configurations of the paper's table by name, and small ones of the same shape."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from namedmesh.errors.errors import NamedMeshError, did_you_mean
from namedmesh.errors.mistakes import ByName
from namedmesh.layers.linear import ACTIVATIONS
from namedmesh.layers.mistakes import (
    Count,
    CountOrZero,
    Mistake,
    NonNegative,
    Positive,
    Share,
    check_choice,
    check_options,
    raise_mistakes,
)

CHOICES: dict[str, tuple[str, ...]] = {
    "norm": ("pre", "post"),
    "normalizer": ("layer", "rms"),
    "positions": ("sinusoids", "learned", "relative"),
    "activation": ACTIVATIONS,
    "expert_sides": ("both", "encoder", "decoder"),
    "router": ("top_k", "expert_choice"),
    "second": ("random", "all", "none"),
    "evaluation_second": ("random", "all", "none"),
    "balance": ("loss", "bias"),
    "normalize": ("before_capacity", "after_capacity", "none"),
    "dispatch": ("gather", "einsum", "blocks"),
    "remat": ("none", "full", "dots", "fit"),
    "dtype": ("float32", "bfloat16"),
}


@dataclass(frozen=True)
class Config:
    """An encoder-decoder Transformer with a mixture of experts in every other layer.

    Weights are float32. Wrong values are all listed in one error.

    Attributes:
        layers: The layers of encoder and decoder together, half each, as in the paper's table.
        experts: The experts of each mixture; 0 makes a dense model.
        expert_sides: `"both"`, `"encoder"` or `"decoder"`; the layers of the other side are dense
            and (1 + k) / 2 times as wide, which takes as many FLOPs.
        model, hidden: The sizes of the model dimension and of the feed-forward networks.
        heads, key: The number of attention heads, and the size of a head's queries and keys.
        source_vocab, target_vocab: The sizes of the vocabularies.
        tied: Whether the target embedding is also the output projection.
        positions: `"sinusoids"`, `"learned"`, or `"relative"` (a bias that a side's layers share).
        longest: The number of learned positions.
        norm: Norms before (`"pre"`) or after (`"post"`) each sublayer.
        normalizer: `"layer"` or `"rms"`.
        activation: `"relu"`, `"gelu"` or `"swish"`.
        gated: Whether feed-forward networks are gated (GLU and variants).
        router: `"top_k"`, or `"expert_choice"`, in the encoder only, since it looks ahead.
        k: The number of experts that a token chooses.
        second: Serve later choices at `"random"`, `"all"` of them or `"none"`.
        evaluation_second: The same in evaluation, where `"random"` draws the same every time.
        balance: Balance experts by the paper's auxiliary `"loss"`, or by a `"bias"` of each expert
            that affects the choices but not the gates.
        normalize: When the chosen gates are scaled to sum to one; see `top_k_gating`.
        jitter: The noise on the router's input.
        group_tokens: The number of tokens that are routed together; None for those of one row.
        capacity_factor: The experts' buffers as a multiple of the even share.
        evaluation_capacity_factor: The same in evaluation; None for that of training.
        decoding_capacity_factor: The same while decoding; None drops no token.
        dispatch: `"gather"` or `"einsum"` into buffers of a capacity, or `"blocks"`, which drop no
            token (`dropless_moe`).
        shared: The hidden size of a network beside the experts that serves every token, or 0.
        remat: What the backward pass recomputes: `"none"`, `"full"`, `"dots"`, or as little as
            `"fit"`s a target, as for `nm.scan`.
        unroll: The most iterations of the loop over layers to write out; 1 is a plain loop. More
            are faster on a GPU, compile longer, and take more memory on a CPU.
        stages: The stages of a pipeline of the layers of each side (GPipe); 1 is a plain loop. Its
            parameters are the same: map `layer` and `stage` to the axis of the stages.
        microbatches: The microbatches that pass the stages, which divide the rows of a batch.
        dropout, expert_dropout: The dropout rates, in general and in the experts' hidden layers.
        expert_masking: The share of choices whose expert's output is left out in training.
        word_dropout: The share of source tokens and target inputs left out in training.
        target_word_dropout: The share of target inputs, if it is another.
        smoothing: The label smoothing.
        aux_weight: The weight of the auxiliary loss times E squared, which is one for each layer
            whose load is even; with a bias, of its gradient.
        z_weight: The weight of the router's z-loss.
        dtype: The dtype of activations.

    Example:
        >>> Config(layers=8, experts=16, model=512).capacity_factor
        2.0
    """

    layers: Count
    experts: CountOrZero = 0
    expert_sides: str = "both"
    model: Count = 1024
    hidden: Count = 8192
    heads: Count = 16
    key: Count = 128
    source_vocab: Count = 64_000
    target_vocab: Count = 32_000
    tied: bool = True
    positions: str = "sinusoids"
    longest: Count = 1024
    norm: str = "pre"
    normalizer: str = "layer"
    activation: str = "relu"
    gated: bool = False
    router: str = "top_k"
    k: Count = 2
    second: str = "random"
    evaluation_second: str = "all"
    balance: str = "loss"
    normalize: str = "before_capacity"
    jitter: Share = 0.0
    group_tokens: Count | None = None
    capacity_factor: Positive = 2.0
    evaluation_capacity_factor: Positive | None = None
    decoding_capacity_factor: Positive | None = None
    dispatch: str = "gather"
    shared: CountOrZero = 0
    remat: str = "full"
    unroll: Count = 1
    stages: Count = 1
    microbatches: Count = 1
    dropout: Share = 0.1
    expert_dropout: Share = 0.0
    expert_masking: Share = 0.0
    word_dropout: Share = 0.0
    target_word_dropout: Share | None = None
    smoothing: Share = 0.1
    aux_weight: NonNegative = 0.01
    z_weight: NonNegative = 0.0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        raise_mistakes("Config", _find_mistakes(self))

    @property
    def dense_hidden(self) -> int:
        """The hidden size of dense layers that compute as much for a token as a mixture's do."""
        # A layer with experts computes k networks and the shared one, the layer beside it one more:
        # two dense layers share the sum.
        return (self.hidden * (1 + self.k) + self.shared) // 2

    def but(self, **changes: Any) -> Config:
        """Return the configuration with some values changed.

        Example:
            >>> config("tiny").but(experts=4, dtype="bfloat16").experts
            4
        """
        known = vars(self)
        unknown = [name for name in changes if name not in known]
        raise_mistakes(
            "Config",
            [(f"a configuration has no {name!r}", did_you_mean(name, known)) for name in unknown],
        )
        return dataclasses.replace(self, **changes)


def _find_mistakes(config: Config) -> list[Mistake]:
    """Return what is wrong with each value, or else with several values together."""
    mistakes = check_options("", config)
    for name, choices in CHOICES.items():
        mistakes += check_choice("", name, getattr(config, name), choices)
    if mistakes:
        return mistakes
    if config.expert_sides != "both" and config.hidden * (1 + config.k) % 2:
        problem = f"hidden={config.hidden} times (1 + {config.k}) / 2 is not whole"
        mistakes.append((problem, "pass an even hidden size"))
    step = 4 if config.experts else 2
    if config.layers % step:
        condition = " with experts in every other layer" if config.experts else ""
        problem = f"a model of {config.layers} layers cannot be halved into encoder and decoder"
        mistakes.append((problem + condition, f"pass a multiple of {step}"))
    if config.experts and config.k > config.experts:
        problem = f"k={config.k} of {config.experts} experts"
        mistakes.append((problem, "choose at least one and at most all experts"))
    return mistakes


_BASE = Config(
    layers=8, experts=16, model=512, hidden=2048, heads=8, key=64,
    source_vocab=16_000, target_vocab=8_000,
)  # fmt: skip
_TINY = Config(
    layers=4, experts=8, model=32, hidden=64, heads=4, key=8,
    source_vocab=64, target_vocab=64, remat="none",
)  # fmt: skip
CONFIGS: dict[str, Config] = ByName(
    {
        **{
            f"moe_{experts}e_{layers}l": Config(layers=layers, experts=experts)
            for experts in (128, 512, 2048)
            for layers in (12, 36, 60)
        },
        # The paper gives 2.3B weights for T(96L) but not its shape; this hidden size gives them.
        "t_96l": Config(layers=96, hidden=5120),
        "base": _BASE,
        "tiny": _TINY,
    }
)


def config(name: str) -> Config:
    """Return a configuration by name.

    Args:
        name: A model of the paper's table, e.g. `"moe_2048e_36l"`, or `"base"` or `"tiny"`.

    Example:
        >>> config("moe_2048e_36l").experts
        2048
    """
    if name not in CONFIGS:
        raise NamedMeshError(f"there is no configuration {name!r}", fix=did_you_mean(name, CONFIGS))
    return CONFIGS[name]
