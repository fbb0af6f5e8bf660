"""The programs of a run, traced, planned and lowered into Artifacts; the one file here that needs TensorFlow."""

from __future__ import annotations

from typing import Any

import namedmesh as nm
from examples.m4.settings import Settings
from namedmesh.layers import (
    Adafactor,
    Adam,
    Decoder,
    Optimizer,
    Transformer,
    batch_of,
    beam_search,
    inverse_square_root,
    linear_warmup,
)


def optimizer(settings: Settings, model: Transformer) -> Optimizer:
    """The optimizer of a run; its rate warms up, stays, and falls with the square root of the steps.

    Adafactor's rate is relative to the size of a parameter, and counted as in the paper: 1.0 is 0.01 at 10,000 steps.
    """
    scale = (
        settings.learning_rate
        if settings.optimizer == "adafactor"
        else settings.learning_rate * settings.decay_after**0.5
    )
    rate = linear_warmup(
        inverse_square_root(scale, after=settings.decay_after), steps=settings.warmup
    )
    if settings.optimizer == "adam":
        return Adam(learning_rate=rate, beta2=0.98, clip_norm=settings.clip_norm)
    return Adafactor(
        learning_rate=rate,
        clip_norm=settings.clip_norm,
        unfactored=[model.E] if settings.model.experts else [],
    )


def train_program(settings: Settings) -> nm.Program:
    """One step of training: the batch and a seed to what is worth watching; parameters and slots are updated."""
    model = Transformer(
        settings.model, settings.rows, settings.source_length, settings.target_length
    )

    def train(batch: dict[str, Any], seed: nm.Tensor) -> dict[str, nm.Tensor]:
        loss, metrics = model.loss(batch_of(batch), nm.random.key_from_seed(seed))
        return {**_watched(metrics), **optimizer(settings, model).apply(nm.grad(loss))}

    return nm.trace(train, batch=model.specs(), seed=nm.spec([], "int32"))


def evaluate_program(settings: Settings) -> nm.Program:
    """The plain cross entropy of a batch (no dropout, no smoothing), and how loaded the experts are."""
    config = settings.model.but(smoothing=0.0, dropout=0.0)
    model = Transformer(config, settings.rows, settings.source_length, settings.target_length)

    def evaluate(batch: dict[str, Any]) -> dict[str, nm.Tensor]:
        _, metrics = model.loss(batch_of(batch))
        loads = {
            name: metrics[name] for name in ("encoder_load", "decoder_load") if name in metrics
        }
        return {"cross_entropy": metrics["cross_entropy"], "accuracy": metrics["accuracy"], **loads}

    return nm.trace(evaluate, batch=model.specs())


def translate_program(settings: Settings) -> nm.Program:
    """Sentences, one a row, to the best translations and their scores, by flat beam search."""
    length = settings.translation_length
    model = Transformer(settings.model.but(dropout=0.0), settings.translation_rows, length, length)
    spec = nm.spec([model.G, model.S], "int32")

    def translate(source: nm.Tensor, source_segments: nm.Tensor) -> dict[str, nm.Tensor]:
        decoder = Decoder(model, source, source_segments, hypotheses=settings.beam, flat=True)
        return beam_search(decoder, alpha=settings.alpha)

    return nm.trace(translate, source=spec, source_segments=spec)


def _watched(metrics: dict[str, nm.Tensor]) -> dict[str, nm.Tensor]:
    """The scalars of a training step."""
    scalars = {name: value for name, value in metrics.items() if not len(value.shape)}
    if "encoder_dropped" in metrics:
        scalars["dropped"] = (
            nm.mean(metrics["encoder_dropped"]) + nm.mean(metrics["decoder_dropped"])
        ) * 0.5
    return scalars


PROGRAMS = {"train": train_program, "evaluate": evaluate_program, "translate": translate_program}


def artifact(name: str, settings: Settings) -> nm.Artifact:
    """One of a run's programs, lowered for its mesh and layout."""
    program = PROGRAMS[name](settings)
    layout, params = (
        nm.Layout(settings.layout),
        nm.Layout(settings.params) if settings.params else None,
    )
    return nm.export(
        program,
        mesh=nm.Mesh.parse(settings.mesh),
        layout=layout.only(program.dims),
        params=None if params is None else params.only(program.resting_dims),
        precision=settings.precision,
    )
