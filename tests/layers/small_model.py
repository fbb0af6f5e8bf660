"""A small Transformer: its programs, a batch, weights and metrics."""

import numpy as np

import namedmesh as nm
from namedmesh.layers import (
    Config,
    Decoder,
    Transformer,
    batch_of,
    config,
)

SMALL = config("tiny").but(
    experts=4, model=8, hidden=12, heads=2, key=4, source_vocab=12, target_vocab=10, longest=16
)
SHORT = SMALL.but(capacity_factor=1.0)  # some tokens find no place


def model_of(config: Config, rows: int = 3, source: int = 12, target: int = 10) -> Transformer:
    return Transformer(config, group=rows, source=source, target=target)


def examples(rows: int = 3, source: int = 12, target: int = 10) -> dict[str, np.ndarray]:
    """Two examples a row, and padding before, between and after them."""
    rng, batch = np.random.default_rng(0), {}
    for side, size, words in (("source", source, 12), ("target", target, 10)):
        first, last = size // 2 - 1, size - size // 2 - 1
        segments = (
            [0] * (side == "source") + [1] * first + [0] * (side == "target") + [2] * last + [0]
        )
        positions = (
            [0] * (side == "source")
            + [*range(first)]
            + [0] * (side == "target")
            + [*range(last)]
            + [0]
        )
        batch[side] = rng.integers(2, words, size=(rows, size)).astype(np.int32)
        batch[f"{side}_segments"] = np.tile(np.array(segments, np.int32), (rows, 1))
        batch[f"{side}_positions"] = np.tile(np.array(positions, np.int32), (rows, 1))
    return batch


def evaluation(model: Transformer) -> nm.Program:
    return nm.trace(lambda batch: model.loss(batch_of(batch))[1], batch=model.specs())


def training(model: Transformer) -> nm.Program:
    return nm.trace(
        lambda batch, seed: model.loss(batch_of(batch), nm.random.key_from_seed(seed))[1],
        batch=model.specs(),
        seed=nm.spec([], "int32"),
    )


def decoding(model: Transformer) -> nm.Program:
    spec = nm.spec([model.G, model.S], "int32")
    decode = lambda source, segments: Decoder(model, source, segments, hypotheses=8).decode()[
        "sequences"
    ]
    return nm.trace(decode, source=spec, segments=spec)


def weights(program: nm.Program) -> dict[str, np.ndarray]:
    """Random values for every parameter, norms and biases too."""
    rng = np.random.default_rng(1)
    draw = lambda shape: rng.normal(size=[dim.size for dim in shape]) * 0.4
    return {
        name: (draw(v.shape) + name.endswith("scale")).astype(np.float32)
        for name, v in program.parameters.items()
    }


def metrics(program: nm.Program, **inputs) -> dict[str, np.ndarray]:
    return {
        name: np.asarray(value)
        for name, value in program.evaluate(weights(program), **inputs)[1].items()
    }
