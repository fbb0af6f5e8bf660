"""Names for every configuration of the paper's table, and small ones of the same shape."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from namedmesh.dims.errors import NamedMeshError, did_you_mean


@dataclass(frozen=True)
class Config:
    """An encoder-decoder Transformer with a mixture of experts in every other layer; experts=0 is a dense one.

    layers counts encoder and decoder together, half each, as the paper's table does.
    """

    layers: int
    experts: int = 0
    model: int = 1024
    hidden: int = 8192
    heads: int = 16
    key: int = 128
    source_vocab: int = 64_000
    target_vocab: int = 32_000
    capacity_factor: float = 2.0
    second: str = "random"
    dispatch: str = "gather"
    norm: str = "pre"  # or post
    remat: str = "full"
    dropout: float = 0.1
    smoothing: float = 0.1
    aux_weight: float = 0.01
    z_weight: float = 0.0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        step = 4 if self.experts else 2
        if self.layers < step or self.layers % step:
            raise NamedMeshError(
                f"a model of {self.layers} layers cannot be halved into encoder and decoder"
                + (" with experts in every other layer" if self.experts else ""),
                fix=f"give a multiple of {step}",
            )
        if self.norm not in ("pre", "post"):
            raise NamedMeshError(f"norm={self.norm!r} is not a choice", fix=did_you_mean(self.norm, ("pre", "post")))

    def but(self, **changes: object) -> Config:
        """The same configuration with some values changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


CONFIGS: dict[str, Config] = {
    **{f"moe_{e}e_{depth}l": Config(layers=depth, experts=e) for e in (128, 512, 2048) for depth in (12, 36, 60)},
    # The paper gives 2.3B weights for T(96L) and not its shape; this hidden size gives them.
    "t_96l": Config(layers=96, hidden=5120),
    "base": Config(layers=8, experts=16, model=512, hidden=2048, heads=8, key=64, source_vocab=16_000, target_vocab=8_000),
    "tiny": Config(layers=4, experts=8, model=32, hidden=64, heads=4, key=8, source_vocab=64, target_vocab=64, remat="none"),
}


def config(name: str) -> Config:
    """A configuration by name: moe_2048e_36l, t_96l, base, tiny ..."""
    if name not in CONFIGS:
        raise NamedMeshError(f"there is no configuration {name!r}", fix=did_you_mean(name, CONFIGS))
    return CONFIGS[name]
