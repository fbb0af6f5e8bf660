"""The programs of all bilingual models at once: every weight has a dimension `language`.

The model is the one of a single language. `nm.vmap(stack=True)` gives each language weights of its
own, so that one step trains all of them and nothing is sent between languages.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import namedmesh as nm
from examples.m4.settings import Settings
from namedmesh.layers import Beam, Decoder, Optimizer, Transformer, batch_of, decode
from namedmesh.layers.optimizer_base import UpdateRule

BEST = "best"  # the scope of the weights with the lowest dev loss of each language
BEST_LOSS = "best_loss"
NOT_MEASURED = 1e9


def language_dim(settings: Settings) -> nm.Dimension:
    """Return the dimension of the languages."""
    return nm.Dimension("language", len(settings.languages.split(",")))


@dataclass(frozen=True)
class ByLanguage(Optimizer):
    """An optimizer whose gradients are clipped, and whose updates are taken, by language.

    Attributes:
        inner: The optimizer of one model.
        language: The dimension of languages.
        active: Whether each language still learns, bool.
    """

    inner: Optimizer = field(kw_only=True)
    language: nm.Dimension = field(kw_only=True)
    active: nm.Tensor = field(kw_only=True)

    def apply(self, grads: Mapping[str, nm.Tensor]) -> dict[str, nm.Tensor]:
        """Clip the gradients of each language by its own norm, then do as `Optimizer.apply`."""
        if self.inner.clip_norm is None:
            return super().apply(grads)
        squares = nm.zeros([self.language])
        for grad in grads.values():
            others = [dim for dim in grad.shape if dim != self.language]
            squares = squares + nm.sum(nm.square(nm.cast(grad, "float32")), over=others)
        norm = nm.sqrt(squares)
        scale = self.inner.clip_norm / nm.maximum(norm, self.inner.clip_norm)
        metrics = super().apply({name: grad * scale for name, grad in grads.items()})
        return {**metrics, "grad_norm": nm.mean(norm)}

    def rule(self, step: nm.Tensor, rate: nm.Tensor) -> UpdateRule:
        """Return the rule of the inner optimizer, for the languages that still learn."""
        change = self.inner.rule(step, rate)
        return lambda update: nm.where(self.active, change(update), update.value)


def trace_train(settings: Settings) -> nm.Program:
    """Trace a train step of all languages.

    It takes a batch of each language, and the dev loss of each if `measured` is 1: the weights of
    those whose loss is the lowest so far are kept, and those that were not better for `patience`
    measurements stay as they are from then on.
    """
    from examples.m4.programs import make_optimizer

    shape = settings.rows, settings.source_length, settings.target_length
    model, L = Transformer(settings.model, *shape), language_dim(settings)

    def train(
        batch: dict[str, Any], seed: nm.Tensor, dev_loss: nm.Tensor, measured: nm.Tensor
    ) -> dict[str, nm.Tensor]:
        # All languages drop the same units in a step: their models never meet, and bits that are
        # drawn for one serve all of them.
        key = nm.random.key_from_seed(seed)
        one = lambda batch: model.loss(batch_of(batch), key)[1]
        metrics = nm.vmap(one, over=L, stack=True)(batch)
        grads = nm.grad(nm.sum(metrics["loss"]))
        active = keep_best(settings, grads, L, dev_loss, measured)
        inner = make_optimizer(settings, model)
        options = {"average": inner.average, "name": inner.name}
        optimizer = ByLanguage(
            inner.learning_rate, inner=inner, language=L, active=active, **options
        )
        updates = optimizer.apply(grads)
        learning = nm.cast(active, "float32")
        count = nm.sum(learning)
        means = {
            name: nm.sum(value * learning) / nm.maximum(count, 1.0)
            for name, value in metrics.items()
        }
        return {**means, **updates, "learning": count}

    specs = {name: nm.spec([L, *spec.shape], spec.dtype) for name, spec in model.specs().items()}
    return nm.trace(
        train,
        batch=specs,
        seed=nm.spec([], "int32"),
        dev_loss=nm.spec([L]),
        measured=nm.spec([], "int32"),
    )


def keep_best(
    settings: Settings,
    grads: Mapping[str, nm.Tensor],
    L: nm.Dimension,
    dev_loss: nm.Tensor,
    measured: nm.Tensor,
) -> nm.Tensor:
    """Keep a copy of the weights of each language whose dev loss is its lowest; return who learns.

    The weights are those before this step, which the dev loss was measured with.
    """
    lowest = nm.state(BEST_LOSS, [L], init=NOT_MEASURED)
    waited = nm.state("waited", [L], dtype="int32")
    better = (dev_loss < lowest) & nm.equal(measured, 1)
    waiting = nm.where(better, 0, waited + measured)
    nm.assign(lowest, nm.where(better, dev_loss, lowest))
    nm.assign(waited, waiting)
    parameters = nm.parameters()
    for name in grads:
        weight = parameters[name]
        held = nm.state(f"{BEST}/{name}", weight.shape, of=weight)
        if settings.average:  # what is evaluated
            weight = nm.state(f"average/{name}", weight.shape, of=weight)
        nm.assign(held, nm.where(better, weight, held))
    return waiting < settings.patience


def trace_evaluate(settings: Settings) -> nm.Program:
    """Trace the evaluation of a batch of each language: its cross entropy, without dropout."""
    from examples.m4.programs import trained_weights

    shape = settings.rows, settings.source_length, settings.target_length
    model = Transformer(settings.model.but(smoothing=0.0, dropout=0.0), *shape)
    L = language_dim(settings)

    def evaluate(batch: dict[str, Any]) -> dict[str, nm.Tensor]:
        with trained_weights(settings):
            one = lambda batch: model.loss(batch_of(batch))[1]["cross_entropy"]
            return {"cross_entropy": nm.vmap(one, over=L, stack=True)(batch)}

    specs = {name: nm.spec([L, *spec.shape], spec.dtype) for name, spec in model.specs().items()}
    return nm.trace(evaluate, batch=specs)


def trace_translate(settings: Settings) -> nm.Program:
    """Trace flat beam search of all languages, each with its best weights, in one loop."""
    length, L = settings.translation_length, language_dim(settings)
    model = Transformer(settings.model.but(dropout=0.0), settings.translation_rows, length, length)

    def translate(source: nm.Tensor, source_segments: nm.Tensor) -> dict[str, nm.Tensor]:
        decoders: list[Decoder] = []

        def encode(source: nm.Tensor, segments: nm.Tensor) -> tuple[Any, nm.Tensor]:
            one = Decoder(model, source, segments, hypotheses=settings.beam, flat=True)
            decoders.append(one)
            return one.memory, one.across

        with nm.scope(BEST):
            memory, across = nm.vmap(encode, over=L, stack=True)(source, source_segments)
        (decoder,) = decoders
        every = lambda x: nm.broadcast(x, [L, *x.shape])
        start = decoder.start()
        first = {
            "step": start["time"]["step"],  # the same in all languages, so that no copy is indexed
            "mask": every(start["time"]["mask"]),
            "ended": every(start["ended"]),
            "layers": {
                name: {part: every(x) for part, x in parts.items()}
                for name, parts in start["layers"].items()
            },
        }

        def step(tokens: nm.Tensor, cache: dict[str, Any]) -> tuple[nm.Tensor, dict[str, Any]]:
            count = cache["step"]

            def one(tokens: nm.Tensor, own: dict[str, Any], memory: Any, across: nm.Tensor) -> Any:
                alone = copy.copy(decoder)
                alone.memory, alone.across = memory, across
                time = {"step": count, "mask": own["mask"]}
                scores, new = alone.step(
                    tokens, {"time": time, "ended": own["ended"], "layers": own["layers"]}
                )
                return scores, new["time"]["mask"], new["ended"], new["layers"]

            own = {name: cache[name] for name in ("mask", "ended", "layers")}
            with nm.scope(BEST):
                scores, mask, ended, layers = nm.vmap(one, over=L, stack=True)(
                    tokens, own, memory, across
                )
            return scores, {"step": count + 1, "mask": mask, "ended": ended, "layers": layers}

        tokens = nm.full([L, decoder.G, decoder.N], decoder.first, "int32")
        method = Beam(decoder.N, alpha=settings.alpha)
        results = decode(step, first, tokens, decoder.T, method, end=decoder.end)
        return {**results, BEST_LOSS: nm.state(BEST_LOSS, [L], init=NOT_MEASURED)}

    spec = nm.spec([L, model.G, model.S], "int32")
    return nm.trace(translate, source=spec, source_segments=spec)


PROGRAMS = {"train": trace_train, "evaluate": trace_evaluate, "translate": trace_translate}
