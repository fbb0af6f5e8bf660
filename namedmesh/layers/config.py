"""Names for every configuration of the paper's table, and small ones of the same shape."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real

from namedmesh.dims.errors import NamedMeshError, did_you_mean

CHOICES = {
    "norm": ("pre", "post"),
    "normalizer": ("layer", "rms"),
    "positions": ("sinusoids", "learned", "relative"),
    "activation": ("relu", "gelu", "swish"),
    "router": ("top_k", "expert_choice"),
    "second": ("random", "all"),
    "normalize": ("before_capacity", "after_capacity", "none"),
    "dispatch": ("gather", "einsum"),
    "remat": ("none", "full", "dots"),
    "dtype": ("float32", "bfloat16"),
}
RANGES: dict[tuple[str, ...], tuple[type, Callable[..., bool], str]] = {  # what a value is an instance of, and when it is right
    ("layers", "model", "hidden", "heads", "key", "source_vocab", "target_vocab", "longest", "k"): (
        Integral, lambda value: value >= 1, "a whole number from 1",
    ),
    ("experts",): (Integral, lambda value: value >= 0, "a whole number from 0"),
    ("dropout", "word_dropout", "smoothing", "jitter"): (Real, lambda value: 0 <= value < 1, "a number from 0 to below 1"),
    ("capacity_factor", "decoding_capacity_factor"): (Real, lambda value: 0 < value < math.inf, "a number above 0"),
    ("aux_weight", "z_weight"): (Real, lambda value: 0 <= value < math.inf, "a number from 0"),
}  # fmt: skip


@dataclass(frozen=True)
class Config:
    """An encoder-decoder Transformer with a mixture of experts in every other layer; experts=0 is a dense one.

    layers counts encoder and decoder together, half each, as the paper's table does. Weights are float32; dtype
    is that of activations.
    """

    layers: int
    experts: int = 0
    model: int = 1024
    hidden: int = 8192
    heads: int = 16
    key: int = 128
    source_vocab: int = 64_000
    target_vocab: int = 32_000
    tied: bool = True  # the target embedding is also the output projection
    positions: str = (
        "sinusoids"  # relative is a bias on attention scores, shared by a side's layers
    )
    longest: int = (
        1024  # how many positions are learned, where they are; beyond them there is nothing to add
    )
    norm: str = "pre"
    normalizer: str = "layer"
    activation: str = "relu"
    gated: bool = False
    router: str = (
        "top_k"  # expert_choice: in the encoder; it looks ahead, so the decoder keeps top_k
    )
    k: int = 2
    second: str = "random"
    normalize: str = "before_capacity"
    jitter: float = 0.0
    capacity_factor: float = 2.0
    decoding_capacity_factor: float | None = None  # None: no token is ever dropped while decoding
    dispatch: str = "gather"
    remat: str = "full"
    dropout: float = 0.1
    word_dropout: float = (
        0.0  # the share of source tokens and of target inputs that training leaves out
    )
    smoothing: float = 0.1
    aux_weight: float = (
        0.01  # of the paper's auxiliary loss times E squared, which is one where the load is even
    )
    z_weight: float = 0.0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise NamedMeshError(
                    f"{name}={getattr(self, name)!r} is not a choice",
                    fix=did_you_mean(str(getattr(self, name)), known),
                )
        for names, (kind, right, described) in RANGES.items():
            for name in names:
                value = getattr(self, name)
                if name == "decoding_capacity_factor" and value is None:
                    continue
                if isinstance(value, bool) or not isinstance(value, kind) or not right(value):
                    raise NamedMeshError(
                        f"{name}={value!r} is not {described}", fix=f"give {described}"
                    )
        for name in ("tied", "gated"):
            if not isinstance(getattr(self, name), bool):
                raise NamedMeshError(
                    f"{name}={getattr(self, name)!r} is neither True nor False",
                    fix="give one of them",
                )
        step = 4 if self.experts else 2
        if self.layers % step:
            raise NamedMeshError(
                f"a model of {self.layers} layers cannot be halved into encoder and decoder"
                + (" with experts in every other layer" if self.experts else ""),
                fix=f"give a multiple of {step}",
            )
        if self.experts and self.k > self.experts:
            raise NamedMeshError(
                f"k={self.k} of {self.experts} experts",
                fix="choose at least one and at most all experts",
            )

    def but(self, **changes: object) -> Config:
        """The same configuration with some values changed."""
        known = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                raise NamedMeshError(
                    f"a configuration has no {name!r}", fix=did_you_mean(name, known)
                )
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


CONFIGS: dict[str, Config] = {
    **{
        f"moe_{e}e_{depth}l": Config(layers=depth, experts=e)
        for e in (128, 512, 2048)
        for depth in (12, 36, 60)
    },
    # The paper gives 2.3B weights for T(96L) and not its shape; this hidden size gives them.
    "t_96l": Config(layers=96, hidden=5120),
    "base": Config(
        layers=8,
        experts=16,
        model=512,
        hidden=2048,
        heads=8,
        key=64,
        source_vocab=16_000,
        target_vocab=8_000,
    ),
    "tiny": Config(
        layers=4,
        experts=8,
        model=32,
        hidden=64,
        heads=4,
        key=8,
        source_vocab=64,
        target_vocab=64,
        remat="none",
    ),
}


def config(name: str) -> Config:
    """A configuration by name: moe_2048e_36l, t_96l, base, tiny ..."""
    if name not in CONFIGS:
        raise NamedMeshError(f"there is no configuration {name!r}", fix=did_you_mean(name, CONFIGS))
    return CONFIGS[name]
