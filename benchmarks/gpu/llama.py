"""Decoder-only models that are measured on a GPU: sizes, weights, batches and FLOPs.

Neither TensorFlow, jax, torch nor namedmesh is imported here. All systems read these sizes, so that
they train the same model on the same tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

LEARNING_RATE, WARM_UP_STEPS, DECAY_STEPS = 3e-4, 50, 800  # a warm-up, and half a cosine
BETA1, BETA2, EPSILON, CLIP_NORM = 0.9, 0.98, 1e-8, 1.0  # Adam, as examples/llm has it
LOW, HIGH, ORIGINAL = 1.0, 4.0, 8192  # of Llama 3's scaling of rotations


@dataclass(frozen=True)
class Llama:
    """A decoder-only Transformer as Llama's, or as Mixtral's with experts, and its batch.

    Attributes:
        layers: The number of layers.
        model: The size of the model dimension.
        hidden: The size of the hidden dimension of the gated networks, or of each expert.
        heads: The heads of keys and values.
        group: The heads of queries that share one of those.
        key: The size of a head's queries, keys and values.
        vocab: The size of the vocabulary.
        tied: Whether the embedding also scores tokens.
        rows: The rows of a batch: the groups in which experts have their capacity.
        length: The tokens of a row.
        base: The longest wavelength of rotary positions over 2 pi.
        stretch: The factor of Llama 3's scaling of rotations; 1 for none.
        experts: The experts in every layer, of which a token chooses two; 0 makes a dense model.
        capacity_factor: The experts' buffers as a multiple of the even share.
        aux_weight: The weight of the experts' auxiliary loss.
        epsilon: Of the norms.
        dtype: What activations are computed in.
    """

    layers: int
    model: int
    hidden: int
    heads: int
    group: int
    key: int
    vocab: int
    tied: bool
    rows: int = 4
    length: int = 4096
    base: float = 500_000.0
    stretch: float = 1.0
    experts: int = 0
    capacity_factor: float = 2.5
    aux_weight: float = 0.01
    epsilon: float = 1e-5
    dtype: str = "bfloat16"

    @property
    def tokens(self) -> int:
        """The tokens of a batch."""
        return self.rows * self.length

    @property
    def vocabularies(self) -> tuple[int, ...]:
        """The sizes of the vocabularies."""
        return (self.vocab,)

    @property
    def capacity(self) -> int:
        """The places that an expert has for the tokens of one row."""
        places = int(self.capacity_factor * self.length / self.experts)
        return min(max(1, places), self.length)

    @property
    def scaling(self) -> dict[str, Any]:
        """The scaling of rotations as `rope_scaling` of a config.json."""
        if self.stretch == 1.0:
            return {}
        return {
            "rope_type": "llama3",
            "factor": self.stretch,
            "low_freq_factor": LOW,
            "high_freq_factor": HIGH,
            "original_max_position_embeddings": ORIGINAL,
        }


LLAMA = Llama(  # Llama 3.2 1B
    layers=16,
    model=2048,
    hidden=8192,
    heads=8,
    group=4,
    key=64,
    vocab=128_256,
    tied=True,
    stretch=32.0,
)
LLAMA_EXPERTS = Llama(
    layers=12,
    model=2048,
    hidden=4096,
    heads=8,
    group=2,
    key=128,
    vocab=32_000,
    tied=False,
    base=1e6,
    experts=8,
)
TINY_LLAMA = Llama(
    layers=2,
    model=32,
    hidden=64,
    heads=2,
    group=2,
    key=8,
    vocab=96,
    tied=True,
    rows=2,
    length=32,
    stretch=32.0,
)
TINY_LLAMA_EXPERTS = Llama(
    layers=2,
    model=32,
    hidden=48,
    heads=2,
    group=2,
    key=8,
    vocab=96,
    tied=False,
    rows=2,
    length=32,
    experts=4,
    capacity_factor=1.5,  # less than all choices need
)
LLAMAS = {
    "llama": LLAMA,
    "llama_experts": LLAMA_EXPERTS,
    "tiny_llama": TINY_LLAMA,  # these two to try the benchmark without a GPU
    "tiny_llama_experts": TINY_LLAMA_EXPERTS,
}


@dataclass(frozen=True)
class LlamaWeight:
    """A parameter, float32.

    Attributes:
        shape: Its shape; heads, groups and keys are one axis.
        deviation: The standard deviation of normal numbers; None for ones.
    """

    shape: tuple[int, ...]
    deviation: float | None = None


def describe_weights(model: Llama) -> dict[str, Any]:
    """Return all parameters by their names in namedmesh, those of each layer in a dict of `layers`.

    Layers have weights of their own, where namedmesh stacks them: each system as it is quickest.
    """
    M, H, E, V = model.model, model.hidden, model.experts, model.vocab
    keys = model.heads * model.key
    queries = keys * model.group

    def weight(*shape: int) -> LlamaWeight:
        return LlamaWeight(shape, 1.0 / math.sqrt(shape[-2]))

    network = {"wi": weight(M, H), "wi_gate": weight(M, H), "wo": weight(H, M)}
    if E:
        experts = {"wi": weight(E, M, H), "wi_gate": weight(E, M, H), "wo": weight(E, H, M)}
        network = {"wg": weight(M, E), **experts}
    table = LlamaWeight((V, M), 1.0 / math.sqrt(M))
    layer = {
        "attention/norm_scale": LlamaWeight((M,)),
        "attention/wq": weight(M, queries),
        "attention/wk": weight(M, keys),
        "attention/wv": weight(M, keys),
        "attention/wo": weight(queries, M),
        "network/norm_scale": LlamaWeight((M,)),
        **{f"network/{name}": one for name, one in network.items()},
    }
    return {
        "embedding": table,
        "layers": [dict(layer) for _ in range(model.layers)],
        "final_scale": LlamaWeight((M,)),
        **({} if model.tied else {"output": table}),
    }


def count_active(model: Llama) -> int:
    """Count the weights that a token is multiplied by: two experts, and the head but no lookup."""
    total = model.vocab * model.model
    for one in describe_weights(model)["layers"][0].values():
        if one.deviation is None:
            continue
        size = math.prod(one.shape)
        total += model.layers * (size * 2 // model.experts if len(one.shape) == 3 else size)
    return total


def count_flops(model: Llama, causal: bool = False) -> float:
    """Count the FLOPs of a train step: six for each active weight and token, and attention.

    Nothing is computed again, and experts' empty places do not count.

    Args:
        model: The model.
        causal: Whether attention's products count only where the causal mask allows them; by
            default they count in full, as published MFUs have it.
    """
    width = model.heads * model.group * model.key
    pairs = model.length * (model.length + 1) / 2 if causal else model.length**2
    attention = 3.0 * 2 * 2 * model.layers * model.rows * pairs * width
    return 6.0 * count_active(model) * model.tokens + attention


def rotary_angles(model: Llama) -> np.ndarray:
    """Return the angles of rotations by position, (length, key / 2), float32."""
    plain = model.base ** (-np.arange(0, model.key, 2) / model.key)
    if model.stretch != 1.0:
        waves = ORIGINAL * plain / (2 * math.pi)
        kept = np.clip((waves - LOW) / (HIGH - LOW), 0.0, 1.0)
        plain = (1 - kept) * plain / model.stretch + kept * plain
    positions = np.arange(model.length, dtype=np.float32)
    return positions[:, None] * plain.astype(np.float32)


def learning_rate(step: int) -> float:
    """Return the learning rate after some steps."""
    done = min(step / DECAY_STEPS, 1.0)
    return LEARNING_RATE * (math.cos(done * math.pi) + 1) / 2 * min((step + 1) / WARM_UP_STEPS, 1)
