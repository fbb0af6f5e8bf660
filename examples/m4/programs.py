"""The programs of a run, traced, planned and lowered into Artifacts; lowering needs TensorFlow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import namedmesh as nm
from examples.m4.settings import Settings
from namedmesh.layers import (
    Adafactor,
    Adam,
    Batch,
    Beam,
    Decoder,
    Optimizer,
    Transformer,
    batch_of,
    inverse_square_root,
    linear_cooldown,
    linear_warmup,
    symmetric_divergence,
    weighted_mean,
)


def make_optimizer(settings: Settings, model: Transformer) -> Optimizer:
    """Make the optimizer; its rate warms up, stays, falls with the square root of the steps, and to
    nothing in the last ones.

    Adafactor's rate is relative to the size of a parameter and counted as in the paper: 1.0 is 0.01
    after 10,000 steps.
    """
    scale = settings.learning_rate
    if settings.optimizer == "adam":
        scale *= settings.decay_after**0.5
    rate = linear_warmup(
        inverse_square_root(scale, after=settings.decay_after), steps=settings.warmup
    )
    if settings.cooldown:
        cooldown = max(1, round(settings.cooldown * settings.steps))
        rate = linear_cooldown(rate, total=settings.steps, steps=cooldown)
    options = {"clip_norm": settings.clip_norm, "average": settings.average or None}
    if settings.optimizer == "adam":
        return Adam(learning_rate=rate, beta2=0.98, **options)
    return Adafactor(
        learning_rate=rate,
        **options,
        unfactored=[model.E] if settings.model.experts else [],
    )


def trace_train(settings: Settings) -> nm.Program:
    """Trace a train step: from a batch and a seed to scalars to log; it updates the weights."""
    model = Transformer(
        settings.model, settings.rows, settings.source_length, settings.target_length
    )

    def train(batch: dict[str, Any], seed: nm.Tensor) -> dict[str, nm.Tensor]:
        key = nm.random.key_from_seed(seed)
        if settings.r_drop:
            loss, metrics = compute_r_drop(model, batch_of(batch), key, settings.r_drop)
        else:
            loss, metrics = model.loss(batch_of(batch), key)
        updates = make_optimizer(settings, model).apply(nm.grad(loss))
        return {**_select_scalars(metrics), **updates}

    return nm.trace(train, batch=model.specs(), seed=nm.spec([], "int32"))


def compute_r_drop(
    model: Transformer, batch: Batch, key: nm.Tensor, weight: float
) -> tuple[nm.Tensor, dict[str, nm.Tensor]]:
    """Compute the mean loss of two passes with their own dropout, and their divergence."""
    # Stored: hashed again in every kernel that draws bits, LLVM takes minutes for some of them.
    keys = [nm.compute_once(nm.random.fold_in(key, number)) for number in (1001, 1002)]
    (total, metrics, scores), (other_total, _, other_scores) = (
        model.loss_and_scores(batch, one) for one in keys
    )
    real = nm.cast(nm.not_equal(batch.target_segments, 0), "float32")
    divergence = weighted_mean(symmetric_divergence(scores, other_scores, model.W), real)
    total = (total + other_total) * 0.5 + divergence * weight
    return total, {**metrics, "loss": total, "divergence": divergence}


def trained_weights(settings: Settings) -> AbstractContextManager[None]:
    """Enter the scope of the weights to evaluate with: their averages, or the last ones."""
    return nm.scope("average") if settings.average else contextlib.nullcontext()


def trace_evaluate(settings: Settings) -> nm.Program:
    """Trace an evaluation: the cross entropy of a batch without dropout, and the experts' load."""
    config = settings.model.but(smoothing=0.0, dropout=0.0)
    model = Transformer(config, settings.rows, settings.source_length, settings.target_length)

    def evaluate(batch: dict[str, Any]) -> dict[str, nm.Tensor]:
        with trained_weights(settings):
            _, metrics = model.loss(batch_of(batch))
        names = ("cross_entropy", "accuracy", "encoder_load", "decoder_load")
        return {name: metrics[name] for name in names if name in metrics}

    return nm.trace(evaluate, batch=model.specs())


def trace_translate(settings: Settings) -> nm.Program:
    """Trace flat beam search: from sentences, one a row, to translations and their scores."""
    length = settings.translation_length
    model = Transformer(settings.model.but(dropout=0.0), settings.translation_rows, length, length)
    spec = nm.spec([model.G, model.S], "int32")

    def translate(source: nm.Tensor, source_segments: nm.Tensor) -> dict[str, nm.Tensor]:
        with trained_weights(settings):
            decoder = Decoder(model, source, source_segments, hypotheses=settings.beam, flat=True)
            return decoder.decode(Beam(decoder.N, alpha=settings.alpha))

    return nm.trace(translate, source=spec, source_segments=spec)


def trace_choices(settings: Settings) -> nm.Program:
    """Trace which experts the tokens of sentences and of their translations are sent to."""
    length = settings.translation_length
    model = Transformer(settings.model.but(dropout=0.0), settings.translation_rows, length, length)

    def choose(batch: dict[str, Any]) -> dict[str, nm.Tensor]:
        with trained_weights(settings):
            return model.choices(batch_of(batch))

    return nm.trace(choose, batch=model.specs())


def _select_scalars(metrics: dict[str, nm.Tensor]) -> dict[str, nm.Tensor]:
    """Return the scalars of a train step, with the shares of choices that experts did not serve."""
    scalars = {name: value for name, value in metrics.items() if not len(value.shape)}
    for name in ("left_out", "no_room"):
        sides = [f"{side}_{name}" for side in ("encoder", "decoder") if f"{side}_{name}" in metrics]
        if sides:
            total = sum((nm.mean(metrics[side]) for side in sides), nm.zeros([]))
            scalars[name] = total * (1.0 / len(sides))
    return scalars


PROGRAMS = {
    "train": trace_train,
    "evaluate": trace_evaluate,
    "translate": trace_translate,
    "choices": trace_choices,
}


def make_artifact(name: str, settings: Settings) -> nm.Artifact:
    """Lower one of the programs for the mesh and layout of a run.

    The layout may place dimensions that this program does not have; Settings has checked that some
    program of the model does.
    """
    programs: dict[str, Callable[[Settings], nm.Program]] = PROGRAMS
    if settings.by_language:
        from examples.m4.bilingual.programs import PROGRAMS as programs
    program = programs[name](settings)
    layout = nm.Layout(settings.layout).only(program.dims)
    params = nm.Layout(settings.params).only(program.resting_dims) if settings.params else None
    return nm.export(
        program,
        mesh=nm.Mesh.parse(settings.mesh),
        layout=layout,
        params=params,
        precision=settings.precision,
    )
