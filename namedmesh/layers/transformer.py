"""The paper's model: an encoder-decoder Transformer with a mixture of experts in every other layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import namedmesh as nm
from namedmesh.dims.dimension import Dimension
from namedmesh.layers.attention import Heads, causal, cross_attention, same_segment, self_attention
from namedmesh.layers.config import Config
from namedmesh.layers.dense import feed_forward
from namedmesh.layers.dropout import dropout
from namedmesh.layers.embedding import embedding, logits, sinusoids
from namedmesh.layers.gating import Routing, capacity, top_k_gating
from namedmesh.layers.loss import cross_entropy, weighted_mean
from namedmesh.layers.moe import moe
from namedmesh.layers.norm import layer_norm
from namedmesh.ops.tensor import Tensor


@dataclass(frozen=True)
class Batch:
    """Packed examples: tokens (G, S or T), and for each the example it belongs to (0 is padding) and its position."""

    source: Tensor
    source_segments: Tensor
    source_positions: Tensor
    target: Tensor
    target_segments: Tensor
    target_positions: Tensor


class Transformer:
    """The model for one batch shape. Its methods are called while tracing, and make parameters as they go."""

    def __init__(self, config: Config, group: int, source: int, target: int):
        self.config = config
        self.G, self.S, self.T = nm.dims(f"group={group} source={source} target={target}")
        self.M, self.H = nm.dims(f"model={config.model} hidden={config.hidden}")
        self.V, self.W = nm.dims(f"source_vocab={config.source_vocab} target_vocab={config.target_vocab}")
        self.heads = Heads(self.M, *nm.dims(f"heads={config.heads} key={config.key}"))
        self.E = Dimension("expert", max(config.experts, 1))
        self.L = Dimension("layer", config.layers // (4 if config.experts else 2))

    def specs(self) -> dict[str, Any]:
        """What a program of this model takes as its batch."""
        G, S, T = self.G, self.S, self.T
        return {
            f"{side}{what}": nm.spec([G, seq], "int32")
            for side, seq in (("source", S), ("target", T))
            for what in ("", "_segments", "_positions")
        }

    def encode(self, batch: Batch, key: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Source tokens to representations (GSM), and the experts' losses and statistics."""
        S, memory = self.S, self.heads.memory(self.S)
        mask = same_segment(batch.source_segments, nm.rename(batch.source_segments, S, memory))
        with nm.scope("encoder"):
            x = self._embedded(batch.source, batch.source_positions, self.V, key, 0)

            def attend(h: Tensor, key: Tensor | None) -> Tensor:
                rate, own = self.config.dropout, _folded(key, 1)
                normed = lambda x: self_attention(x, S, self.heads, mask=mask, rate=rate, dropout_key=own)
                return self._residual(h, "attention", normed, _folded(key, 2))

            return self._stack(x, S, attend, _folded(key, 1))

    def decode(
        self, batch: Batch, inputs: Tensor, encoded: Tensor, key: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Target tokens shifted right to representations (GTM), and the experts' losses and statistics."""
        S, T, memory = self.S, self.T, self.heads.memory(self.T)
        mask = same_segment(batch.target_segments, nm.rename(batch.target_segments, T, memory)) & causal(T, memory)
        across = same_segment(batch.target_segments, batch.source_segments)
        with nm.scope("decoder"):
            x = self._embedded(inputs, batch.target_positions, self.W, key, 2)

            def attend(h: Tensor, key: Tensor | None) -> Tensor:
                rate, keys = self.config.dropout, [_folded(key, i) for i in range(1, 5)]
                own = lambda x: self_attention(x, T, self.heads, mask=mask, rate=rate, dropout_key=keys[0])
                other = lambda x: cross_attention(x, encoded, S, T, self.heads, mask=across, rate=rate, dropout_key=keys[1])
                return self._residual(self._residual(h, "attention", own, keys[2]), "cross", other, keys[3])

            return self._stack(x, T, attend, _folded(key, 3))

    def loss(self, batch: Batch, key: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """The training loss (mean over real target tokens, plus the experts' losses) and what to watch."""
        encoded, below = self.encode(batch, key)
        shifted = nm.where(nm.equal(batch.target_positions, 0), 0, nm.shift(batch.target, self.T, 1))
        decoded, above = self.decode(batch, shifted, encoded, key)
        with nm.scope("decoder"):
            scores = logits(decoded, self.W, self.M)
        real = nm.cast(nm.not_equal(batch.target_segments, 0), "float32")
        each, _ = cross_entropy(scores, batch.target, self.W, smoothing=self.config.smoothing)
        right = nm.cast(nm.equal(nm.argmax(scores, self.W), batch.target), "float32")
        total = weighted_mean(each, real)
        metrics = {"cross_entropy": total, "accuracy": weighted_mean(right, real)}
        if self.config.experts:
            aux = below["aux_loss"] + above["aux_loss"]
            total = total + aux * self.config.aux_weight + (below["z_loss"] + above["z_loss"]) * self.config.z_weight
            metrics |= {"aux_loss": aux, "dropped": nm.concat([below["dropped"], above["dropped"]], "layer")}
            metrics |= {"encoder_load": below["load"], "decoder_load": above["load"]}
        return total, {"loss": total, **metrics}

    def _embedded(self, tokens: Tensor, positions: Tensor, vocab: Dimension, key: Tensor | None, number: int) -> Tensor:
        dtype = self.config.dtype
        x = embedding(tokens, vocab, self.M, dtype=dtype) + sinusoids(positions, self.M, dtype)
        return dropout(x, self.config.dropout, _folded(key, 100 + number))

    def _residual(self, h: Tensor, name: str, sublayer: Callable[[Tensor], Tensor], key: Tensor | None) -> Tensor:
        """A sublayer around its residual connection, with the norm before or after."""
        with nm.scope(name):
            if self.config.norm == "pre":
                return h + dropout(sublayer(layer_norm(h, self.M)), self.config.dropout, key)
            return layer_norm(h + dropout(sublayer(h), self.config.dropout, key), self.M)

    def _stack(
        self, x: Tensor, seq: Dimension, attend: Callable[[Tensor, Tensor | None], Tensor], key: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The layers of encoder or decoder as one loop: a dense layer and one with experts in each turn."""
        zero = nm.zeros([])

        def turn(carry: dict[str, Tensor], index: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
            h, own = carry["h"], None if key is None else nm.random.fold_in(key, index)
            with nm.scope("dense"):
                h = attend(h, own)
                h = self._residual(h, "ffn", lambda x: feed_forward(x, self.M, self.H), _folded(own, 11))
            if not self.config.experts:
                return {**carry, "h": h}, None
            watched: list[Routing] = []
            with nm.scope("experts"):
                h = attend(h, _folded(own, 12))
                h = self._residual(h, "moe", lambda x: self._experts(x, seq, _folded(own, 13), watched), _folded(own, 14))
            (routing,) = watched
            following = {"h": h, "aux": carry["aux"] + routing.aux_loss, "z": carry["z"] + routing.z_loss}
            return following, {"dropped": routing.dropped, "load": nm.mean(routing.load, over=self.G)}

        start = {"h": x, "aux": zero, "z": zero} if self.config.experts else {"h": x}
        last, watched = nm.scan(turn, start, nm.range(self.L), over=self.L, stack=True, remat=self.config.remat)
        h = layer_norm(last["h"], self.M, name="final") if self.config.norm == "pre" else last["h"]
        if not self.config.experts:
            return h, {}
        return h, {"aux_loss": last["aux"], "z_loss": last["z"], **(watched or {})}

    def _experts(self, x: Tensor, seq: Dimension, key: Tensor | None, watched: list[Routing]) -> Tensor:
        """The mixture of experts; without a key (evaluation) every second expert is used."""
        places = capacity(seq, self.E, self.config.capacity_factor)
        second = self.config.second if key is not None else "all"

        def gate(scores: Tensor) -> Routing:
            draws = [nm.random.uniform(key, [self.G, seq])] if second == "random" and key is not None else []
            return top_k_gating(scores, seq, self.E, places, second=second, draws=draws)

        y, routing = moe(x, gate, (self.G, seq, self.E, places, self.M, self.H), form=self.config.dispatch)  # type: ignore[arg-type]
        watched.append(routing)  # type: ignore[arg-type]
        return y


def _folded(key: Tensor | None, number: int) -> Tensor | None:
    return None if key is None else nm.random.fold_in(key, number)


def batch_of(inputs: dict[str, Tensor]) -> Batch:
    """The batch among a program's inputs."""
    return Batch(**{name: inputs[name] for name in Batch.__dataclass_fields__})
