"""The models that are measured on a GPU: their sizes, their batches and their FLOPs.

Neither TensorFlow, jax nor namedmesh is imported here. Both systems read these sizes, so that they
train the same model on the same tokens.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from benchmarks.gpu import llama
from benchmarks.gpu.llama import LLAMAS, Llama

PEAK_FLOPS = 989e12  # of an H100 or H200 each second, in dense bfloat16 matrix products
RESERVED = 3  # tokens that text does not contain: padding and the like
RATE_CONSTANT_STEPS = 2000  # the learning rate is 1 / sqrt(max(step, 2000))


@dataclass(frozen=True)
class Model:
    """An encoder-decoder Transformer with experts in every other layer, and its batch.

    Attributes:
        layers: The layers of encoder and decoder together, half each.
        experts: The experts of each mixture; 0 makes a dense model.
        model: The size of the model dimension.
        hidden: The size of the feed-forward networks' hidden dimension.
        heads: The number of attention heads.
        key: The size of a head's queries, keys and values.
        source_vocab: The size of the source vocabulary.
        target_vocab: The size of the target vocabulary.
        rows: The rows of a batch: the groups in which experts have their capacity.
        source: The tokens of a row of the source.
        target: The tokens of a row of the target.
        dropout: The dropout rate.
        word_dropout: The share of tokens whose embedding is left out.
        smoothing: The label smoothing.
        aux_weight: The weight of the experts' auxiliary loss.
        capacity_factor: The experts' buffers as a multiple of the even share.
    """

    layers: int
    experts: int
    model: int
    hidden: int
    heads: int
    key: int
    source_vocab: int
    target_vocab: int
    rows: int
    source: int
    target: int
    dropout: float = 0.1
    word_dropout: float = 0.0
    smoothing: float = 0.1
    aux_weight: float = 0.01
    capacity_factor: float = 2.0

    @property
    def iterations(self) -> int:
        """The iterations of each side's layers: a dense layer, then one of experts if any."""
        return self.layers // (4 if self.experts else 2)

    @property
    def tokens(self) -> int:
        """The tokens of a batch, source and target together, padding included."""
        return self.rows * (self.source + self.target)

    @property
    def vocabularies(self) -> tuple[int, ...]:
        """The sizes of the vocabularies."""
        return self.source_vocab, self.target_vocab

    def capacity(self, length: int) -> int:
        """Return the places that an expert has for the tokens of one row."""
        return min(max(1, int(self.capacity_factor * length / self.experts)), length)


WIDE = Model(
    layers=8,
    experts=8,
    model=2048,
    hidden=8192,
    heads=16,
    key=128,
    source_vocab=32_000,
    target_vocab=32_000,
    rows=32,
    source=512,
    target=512,
)
BASE = Model(
    layers=8,
    experts=16,
    model=512,
    hidden=2048,
    heads=8,
    key=64,
    source_vocab=32_000,
    target_vocab=16_000,
    rows=256,
    source=128,
    target=96,
    dropout=0.3,
    word_dropout=0.2,
)
TINY = Model(
    layers=4,
    experts=8,
    model=32,
    hidden=64,
    heads=4,
    key=8,
    source_vocab=64,
    target_vocab=64,
    rows=4,
    source=16,
    target=16,
)
MODELS = {
    "wide": WIDE,
    "wide_dense": dataclasses.replace(WIDE, experts=0, hidden=12_288),
    "base": BASE,
    "tiny": TINY,  # to try the benchmark without a GPU
}
ALL_MODELS: dict[str, Model | Llama] = {**MODELS, **LLAMAS}


def count_flops(model: Model | Llama) -> float:
    """Count by hand the FLOPs of a train step's matrix products.

    The backward pass takes twice the forward pass, and nothing is computed again. Attention counts
    in full, although half of the decoder's is masked.
    """
    if isinstance(model, Llama):
        return llama.count_flops(model)
    width = model.heads * model.key

    def attention(queries: int, memory: int) -> int:
        projections = 2 * model.model * width * (2 * queries + 2 * memory)
        return projections + 2 * 2 * queries * memory * width

    def feed_forward(tokens: int) -> int:
        return 2 * 2 * tokens * model.model * model.hidden

    def side(length: int, crossed: int) -> int:
        attend = attention(length, length) + (attention(length, crossed) if crossed else 0)
        if not model.experts:
            return model.iterations * (attend + feed_forward(length))
        router = 2 * length * model.model * model.experts
        served = feed_forward(model.experts * model.capacity(length))
        return model.iterations * (2 * attend + feed_forward(length) + router + served)

    logits = 2 * model.target * model.model * model.target_vocab
    forward = side(model.source, 0) + side(model.target, model.source) + logits
    return 3.0 * model.rows * forward


def make_batch(model: Model | Llama, seed: int = 0) -> dict[str, np.ndarray]:
    """Make a batch, for an encoder-decoder packed: four examples in a row, and a little padding.

    Returns:
        Tokens, segments and positions of source and target by name, int32; of a decoder-only model
        `inputs` and `targets`, whole rows.
    """
    random = np.random.default_rng(seed)
    if isinstance(model, Llama):
        tokens = _draw_tokens(random, model.vocab, (model.rows, model.length + 1))
        return {"inputs": tokens[:, :-1].copy(), "targets": tokens[:, 1:].copy()}
    batch = {}
    sides = (
        ("source", model.source, model.source_vocab),
        ("target", model.target, model.target_vocab),
    )
    for side, length, vocab in sides:
        segments = np.zeros((model.rows, length), np.int32)
        positions = np.zeros((model.rows, length), np.int32)
        for row in range(model.rows):
            cuts = np.sort(random.choice(np.arange(1, int(length * 0.97)), 3, replace=False))
            start = 0
            for i, end in enumerate([*cuts, int(length * random.uniform(0.95, 1.0))]):
                segments[row, start:end] = i + 1
                positions[row, start:end] = np.arange(end - start)
                start = end
        tokens = _draw_tokens(random, vocab, segments.shape)
        batch[side] = np.where(segments > 0, tokens, 0).astype(np.int32)
        batch[f"{side}_segments"] = segments
        batch[f"{side}_positions"] = positions
    return batch


def _draw_tokens(random: np.random.Generator, vocab: int, shape: tuple[int, ...]) -> np.ndarray:
    """Draw tokens as text has them (Zipf-Mandelbrot): the most frequent is one in thirty.

    With more skewed ones, adding up the embedding's gradient would dominate the step.
    """
    frequencies = 1.0 / (np.arange(vocab - RESERVED) + 3.7)
    frequencies /= frequencies.sum()
    return (random.choice(vocab - RESERVED, shape, p=frequencies) + RESERVED).astype(np.int32)
