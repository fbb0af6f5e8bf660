"""The paper's model: an encoder-decoder Transformer with experts in every other layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import namedmesh as nm
from namedmesh.layers.attention import causal_mask, cross_attention, segment_mask, self_attention
from namedmesh.layers.backbone import Backbone, LayerContext, LayerStack
from namedmesh.layers.linear import vocabulary_logits
from namedmesh.layers.loss import cross_entropy, weighted_mean
from namedmesh.layers.regularization import derive_key


@dataclass(frozen=True)
class Batch:
    """Packed examples: several in a row, one after another.

    Attributes:
        source, target: Tokens, GS and GT int32.
        source_segments, target_segments: The example of each token, from 1; 0 is padding.
        source_positions, target_positions: The position of each token in its example, from 0.

    Example:
        >>> real = lambda tokens: nm.not_equal(Batch(*[tokens] * 6).source_segments, 0)
        >>> nm.trace(real, nm.spec(nm.dims("group=2 seq=8"), "int32")).outputs[0].dtype
        'bool'
    """

    source: nm.Tensor
    source_segments: nm.Tensor
    source_positions: nm.Tensor
    target: nm.Tensor
    target_segments: nm.Tensor
    target_positions: nm.Tensor


def batch_of(inputs: Mapping[str, nm.Tensor]) -> Batch:
    """Return the batch among a program's inputs, which `Transformer.specs` declares.

    Example:
        >>> model = Transformer(config("tiny"), group=2, source=8, target=6)
        >>> nm.trace(lambda batch: batch_of(batch).target, batch=model.specs()).outputs[0].shape
        [group=2, target=6]
    """
    names = [field.name for field in dataclasses.fields(Batch)]
    missing = [name for name in names if name not in inputs]
    if missing:
        raise nm.NamedMeshError(
            f"a batch without {', '.join(missing)}",
            f"inputs: {', '.join(inputs) or 'none'}",
            fix="declare the inputs with model.specs()",
        )
    return Batch(**{name: inputs[name] for name in names})


class Transformer(Backbone):
    """The model for one batch shape; its methods are called while tracing. See `Backbone`.

    Example:
        >>> model = Transformer(config("tiny"), group=2, source=8, target=8)
        >>> program = nm.trace(lambda batch: model.loss(batch_of(batch))[0], batch=model.specs())
        >>> sum(variable.shape.elements for variable in program.parameters.values())
        103680
    """

    def specs(self) -> dict[str, Any]:
        """Return a spec by name for each tensor of a Batch, for `nm.trace`."""
        return {
            f"{side}{suffix}": nm.spec([self.G, seq], "int32")
            for side, seq in (("source", self.S), ("target", self.T))
            for suffix in ("", "_segments", "_positions")
        }

    def encode(
        self,
        tokens: nm.Tensor,
        segments: nm.Tensor,
        positions: nm.Tensor,
        key: nm.Tensor | None = None,
        choices: bool = False,
    ) -> tuple[nm.Tensor, dict[str, nm.Tensor]]:
        """Encode source tokens.

        Args:
            tokens: Source tokens, GS int32.
            segments: The example that each belongs to; 0 is padding.
            positions: The position of each in its example.
            key: A random key, or None for evaluation.
            choices: Whether the statistics include the `expert` and `weight` of every choice, LGSK.

        Returns:
            Representations, GSM, and the experts' losses and statistics.
        """
        S, memory, rate = self.S, self.heads.memory(self.S), self.config.dropout
        with nm.scope("encoder"):
            x = self.embed(tokens, positions, self.V, derive_key(key, 100))
            bias = self.position_bias(nm.range(memory) - nm.range(S), both_ways=True)

            def make_stack(beside: dict[str, nm.Tensor]) -> LayerStack:
                segments = beside["segments"]
                mask = segment_mask(segments, nm.rename(segments, S, memory))

                def attention(h: nm.Tensor, context: LayerContext) -> tuple[nm.Tensor, None]:
                    keys = [derive_key(context.key, i) for i in (1, 2)]

                    def own(x: nm.Tensor) -> tuple[nm.Tensor, None]:
                        options = {"mask": mask, "bias": bias, "dropout_key": keys[0]}
                        return self_attention(x, S, self.heads, rate=rate, **options), None

                    return self.residual(h, "attention", own, keys[1])

                padding, router = nm.equal(segments, 0), self.config.router
                return LayerStack("encoder", S, attention, padding, router, choices=choices)

            beside = {"segments": segments}
            return self.run_stages("encoder", x, make_stack, beside, derive_key(key, 1))

    def decode(
        self,
        batch: Batch,
        inputs: nm.Tensor,
        encoded: nm.Tensor,
        key: nm.Tensor | None = None,
        choices: bool = False,
    ) -> tuple[nm.Tensor, dict[str, nm.Tensor]]:
        """Decode all target tokens at once, each from those before it.

        Args:
            batch: The batch, for its segments and positions.
            inputs: Target tokens shifted right, GT int32.
            encoded: The encoder's representations, GSM.
            key, choices: As in `encode`.

        Returns:
            Representations, GTM, and the experts' losses and statistics.
        """
        S, T, memory, rate = self.S, self.T, self.heads.memory(self.T), self.config.dropout
        beside = {
            "segments": batch.target_segments,
            "source_segments": batch.source_segments,
            "encoded": encoded,
        }
        with nm.scope("decoder"):
            x = self.embed(inputs, batch.target_positions, self.W, derive_key(key, 102))
            bias = self.position_bias(nm.range(memory) - nm.range(T), both_ways=False)

            def make_stack(beside: dict[str, nm.Tensor]) -> LayerStack:
                segments, encoded = beside["segments"], beside["encoded"]
                mask = segment_mask(segments, nm.rename(segments, T, memory))
                mask = mask & causal_mask(T, memory)
                across = segment_mask(segments, beside["source_segments"])

                def attention(h: nm.Tensor, context: LayerContext) -> tuple[nm.Tensor, None]:
                    keys = [derive_key(context.key, i) for i in range(1, 5)]

                    def own(x: nm.Tensor) -> tuple[nm.Tensor, None]:
                        options = {"mask": mask, "bias": bias, "dropout_key": keys[0]}
                        return self_attention(x, T, self.heads, rate=rate, **options), None

                    def other(x: nm.Tensor) -> tuple[nm.Tensor, None]:
                        options: Any = {"rate": rate, "mask": across, "dropout_key": keys[1]}
                        return cross_attention(x, encoded, S, T, self.heads, **options), None

                    h, _ = self.residual(h, "attention", own, keys[2])
                    return self.residual(h, "cross", other, keys[3])

                padding = nm.equal(segments, 0)
                return LayerStack("decoder", T, attention, padding, choices=choices)

            return self.run_stages("decoder", x, make_stack, beside, derive_key(key, 3))

    def scores(self, decoded: nm.Tensor) -> nm.Tensor:
        """Score every target token: logits with the other dimensions of decoded, then W."""
        name = "embedding" if self.config.tied else "projection"
        with nm.scope("decoder"):
            return vocabulary_logits(decoded, self.W, self.M, name=name)

    def loss(
        self, batch: Batch, key: nm.Tensor | None = None
    ) -> tuple[nm.Tensor, dict[str, nm.Tensor]]:
        """Compute the training loss: the mean over real target tokens, plus the experts' losses.

        Args:
            batch: The batch; see `batch_of`.
            key: A random key, or None for evaluation.

        Returns:
            The loss, and metrics: `loss`, `cross_entropy`, `accuracy`, and with experts `aux_loss`
            and `left_out`, `no_room` and `load` of each side that has any.
        """
        return self.loss_and_scores(batch, key)[:2]

    def loss_and_scores(
        self, batch: Batch, key: nm.Tensor | None = None
    ) -> tuple[nm.Tensor, dict[str, nm.Tensor], nm.Tensor]:
        """Return the loss and the metrics of `loss`, and the scores of every target token, GTW."""
        if not isinstance(batch, Batch):
            raise nm.NamedMeshError(
                f"loss: a {type(batch).__name__} is not a Batch",
                fix="pass batch_of(inputs), or a Batch of tensors",
            )
        config = self.config
        encoded, encoder = self.encode(
            batch.source, batch.source_segments, batch.source_positions, key
        )
        decoded, decoder = self.decode(batch, self._shift_target(batch), encoded, key)
        scores = self.scores(decoded)
        real = nm.cast(nm.not_equal(batch.target_segments, 0), "float32")
        losses, _ = cross_entropy(scores, batch.target, self.W, smoothing=config.smoothing)
        right = nm.cast(nm.equal(nm.argmax(scores, self.W), batch.target), "float32")
        total = weighted_mean(losses, real)
        metrics = {"cross_entropy": total, "accuracy": weighted_mean(right, real)}
        if config.experts:
            sides = {"encoder": encoder, "decoder": decoder}
            sides = {name: side for name, side in sides.items() if self.sides[name].experts}
            aux, z = (
                sum((side[name] for side in sides.values()), nm.zeros([]))
                for name in ("aux_loss", "z_loss")
            )
            # One for each layer whose load is even, however many experts it has.
            aux = aux * float(self.E.size**2)
            total = total + aux * config.aux_weight + z * config.z_weight
            metrics["aux_loss"] = aux
            for name in ("left_out", "no_room", "load"):
                each = {side: values[name] for side, values in sides.items() if name in values}
                metrics |= {f"{side}_{name}": value for side, value in each.items()}
        return total, {"loss": total, **metrics}, scores

    def choices(self, batch: Batch) -> dict[str, nm.Tensor]:
        """Return the experts that the tokens of a batch are sent to, in evaluation.

        Args:
            batch: The batch; see `batch_of`.

        Returns:
            `encoder_expert` and `decoder_expert`, int32, and `encoder_weight` and `decoder_weight`,
            zero where a choice is not served; of sides with experts that tokens choose.

        Example:
            >>> model = Transformer(config("tiny"), group=2, source=8, target=6)
            >>> choices = lambda batch: model.choices(batch_of(batch))["decoder_expert"]
            >>> nm.trace(choices, batch=model.specs()).outputs[0].shape
            [layer=1, group=2, target=6, choice=2]
        """
        encoded, encoder = self.encode(
            batch.source, batch.source_segments, batch.source_positions, choices=True
        )
        _, decoder = self.decode(batch, self._shift_target(batch), encoded, choices=True)
        return {
            f"{side}_{name}": statistics[name]
            for side, statistics in (("encoder", encoder), ("decoder", decoder))
            for name in ("expert", "weight")
            if name in statistics
        }

    def _shift_target(self, batch: Batch) -> nm.Tensor:
        """Return what the decoder reads: the token before each, and 0 before the first."""
        first = nm.equal(batch.target_positions, 0)
        return nm.where(first, 0, nm.shift(batch.target, self.T, 1))
