"""The paper's model: an encoder-decoder Transformer with a mixture of experts in every other layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import namedmesh as nm
from namedmesh.dims.dimension import Dimension
from namedmesh.dims.errors import NamedMeshError
from namedmesh.ir.tensor import Tensor
from namedmesh.layers.attention import (
    Heads,
    causal,
    cross_attention,
    relative_bias,
    same_segment,
    self_attention,
)
from namedmesh.layers.config import Config
from namedmesh.layers.dense import feed_forward
from namedmesh.layers.dropout import dropout
from namedmesh.layers.embedding import embedding, learned_positions, logits, sinusoids
from namedmesh.layers.gating import (
    ExpertRouting,
    Routing,
    capacity,
    expert_choice_gating,
    jitter,
    top_k_gating,
)
from namedmesh.layers.loss import cross_entropy, weighted_mean
from namedmesh.layers.moe import moe
from namedmesh.layers.norm import layer_norm, rms_norm


@dataclass(frozen=True)
class Batch:
    """Packed examples: tokens (G, S or T), and for each the example it belongs to (0 is padding) and its position."""

    source: Tensor
    source_segments: Tensor
    source_positions: Tensor
    target: Tensor
    target_segments: Tensor
    target_positions: Tensor


@dataclass
class Turn:
    """What the attention of one layer works with: its scope, number and slices, and what layers pass on (decoding's cache)."""

    name: str
    layer: Tensor
    rows: Any
    kept: dict[str, Any]
    key: Tensor | None


@dataclass(frozen=True)
class Stack:
    """One side's layers: along which dimension tokens lie, which are padding, how experts are chosen, and attention."""

    seq: Dimension
    attend: Callable[[Tensor, Turn], Tensor]
    padding: Tensor | None = None
    router: str = "top_k"
    capacity: Dimension | None = None  # None: as the configuration says
    rows: Any = None  # tensors with the layer dimension, a slice for each turn
    kept: dict[str, Any] = field(default_factory=dict)


class Transformer:
    """The model for one batch shape. Its methods are called while tracing, and make parameters as they go."""

    def __init__(self, config: Config, group: int, source: int, target: int):
        if not isinstance(config, Config):
            raise NamedMeshError(
                f"Transformer: {config!r} is no Config",
                fix="give e.g. config('tiny') of namedmesh.layers.config",
            )
        self.config = config
        self.G, self.S, self.T = nm.dims(f"group={group} source={source} target={target}")
        self.M, self.H = nm.dims(f"model={config.model} hidden={config.hidden}")
        self.V, self.W = nm.dims(
            f"source_vocab={config.source_vocab} target_vocab={config.target_vocab}"
        )
        self.heads = Heads(self.M, *nm.dims(f"heads={config.heads} key={config.key}"))
        self.E = Dimension("expert", max(config.experts, 1))
        self.L = Dimension("layer", config.layers // (4 if config.experts else 2))
        self.scopes = (
            ("dense", "experts") if config.experts else ("dense",)
        )  # the layers of one turn

    def specs(self) -> dict[str, Any]:
        """What a program of this model takes as its batch."""
        G, S, T = self.G, self.S, self.T
        return {
            f"{side}{what}": nm.spec([G, seq], "int32")
            for side, seq in (("source", S), ("target", T))
            for what in ("", "_segments", "_positions")
        }

    def encode(
        self, tokens: Tensor, segments: Tensor, positions: Tensor, key: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Source tokens to representations (GSM), and the experts' losses and statistics."""
        S, memory, rate = self.S, self.heads.memory(self.S), self.config.dropout
        mask = same_segment(segments, nm.rename(segments, S, memory))
        with nm.scope("encoder"):
            x = self.embedded(tokens, positions, self.V, folded(key, 100))
            bias = self.bias(nm.range(memory) - nm.range(S), both_ways=True)

            def attend(h: Tensor, turn: Turn) -> Tensor:
                own = lambda x: self_attention(
                    x,
                    S,
                    self.heads,
                    mask=mask,
                    bias=bias,
                    rate=rate,
                    dropout_key=folded(turn.key, 1),
                )
                return self.residual(h, "attention", own, folded(turn.key, 2))

            stack = Stack(S, attend, nm.equal(segments, 0), self.config.router)
            return self.run(x, stack, folded(key, 1))[:2]

    def decode(
        self, batch: Batch, inputs: Tensor, encoded: Tensor, key: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Target tokens shifted right to representations (GTM), and the experts' losses and statistics."""
        S, T, memory, rate = self.S, self.T, self.heads.memory(self.T), self.config.dropout
        segments = batch.target_segments
        mask = same_segment(segments, nm.rename(segments, T, memory)) & causal(T, memory)
        across = same_segment(segments, batch.source_segments)
        with nm.scope("decoder"):
            x = self.embedded(inputs, batch.target_positions, self.W, folded(key, 102))
            bias = self.bias(nm.range(memory) - nm.range(T), both_ways=False)

            def attend(h: Tensor, turn: Turn) -> Tensor:
                keys = [folded(turn.key, i) for i in range(1, 5)]
                own = lambda x: self_attention(
                    x, T, self.heads, mask=mask, bias=bias, rate=rate, dropout_key=keys[0]
                )
                other = lambda x: cross_attention(
                    x, encoded, S, T, self.heads, mask=across, rate=rate, dropout_key=keys[1]
                )
                return self.residual(
                    self.residual(h, "attention", own, keys[2]), "cross", other, keys[3]
                )

            return self.run(x, Stack(T, attend, nm.equal(segments, 0)), folded(key, 3))[:2]

    def scores(self, decoded: Tensor) -> Tensor:
        """The scores of every target token (.. W), from the decoder's representations (.. M)."""
        with nm.scope("decoder"):
            return logits(
                decoded, self.W, self.M, name="embedding" if self.config.tied else "projection"
            )

    def loss(self, batch: Batch, key: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """The training loss (mean over real target tokens, plus the experts' losses) and what to watch."""
        if not isinstance(batch, Batch):
            raise NamedMeshError(
                f"loss: a {type(batch).__name__} is no Batch",
                fix="give batch_of(inputs), or a Batch of tensors",
            )
        encoded, below = self.encode(
            batch.source, batch.source_segments, batch.source_positions, key
        )
        shifted = nm.where(
            nm.equal(batch.target_positions, 0), 0, nm.shift(batch.target, self.T, 1)
        )
        decoded, above = self.decode(batch, shifted, encoded, key)
        scores = self.scores(decoded)
        real = nm.cast(nm.not_equal(batch.target_segments, 0), "float32")
        each, _ = cross_entropy(scores, batch.target, self.W, smoothing=self.config.smoothing)
        right = nm.cast(nm.equal(nm.argmax(scores, self.W), batch.target), "float32")
        total = weighted_mean(each, real)
        metrics = {"cross_entropy": total, "accuracy": weighted_mean(right, real)}
        if self.config.experts:
            aux, z = (below[name] + above[name] for name in ("aux_loss", "z_loss"))
            aux = aux * float(
                self.E.size**2
            )  # one for each layer whose load is even, however many experts it has
            total = total + aux * self.config.aux_weight + z * self.config.z_weight
            metrics["aux_loss"] = aux
            for name in ("dropped", "load"):
                metrics |= {f"encoder_{name}": below[name], f"decoder_{name}": above[name]}
        return total, {"loss": total, **metrics}

    def embedded(
        self, tokens: Tensor, positions: Tensor, vocab: Dimension, key: Tensor | None = None
    ) -> Tensor:
        """Tokens and their positions in the model dimension; a token that word dropout leaves out is its position alone."""
        dtype = self.config.dtype
        x = embedding(tokens, vocab, self.M, dtype=dtype)
        if self.config.word_dropout and key is not None:
            kept = nm.random.bernoulli(
                nm.random.fold_in(key, 1), tokens.shape, 1.0 - self.config.word_dropout
            )
            x = nm.where(kept, x, 0.0)
        if self.config.positions == "sinusoids":
            x = x + sinusoids(positions, self.M, dtype)
        elif self.config.positions == "learned":
            x = x + nm.cast(
                learned_positions(positions, Dimension("position", self.config.longest), self.M),
                dtype,
            )
        return dropout(x, self.config.dropout, key)

    def bias(self, distance: Tensor, both_ways: bool) -> Tensor | None:
        """What attention adds to its scores for a distance, where the configuration has relative positions."""
        return (
            relative_bias(distance, self.heads, both_ways=both_ways)
            if self.config.positions == "relative"
            else None
        )

    def normed(self, h: Tensor, name: str = "norm") -> Tensor:
        """The configuration's norm over the model dimension."""
        return (layer_norm if self.config.normalizer == "layer" else rms_norm)(h, self.M, name=name)

    def residual(
        self, h: Tensor, name: str, sublayer: Callable[[Tensor], Tensor], key: Tensor | None = None
    ) -> Tensor:
        """A sublayer around its residual connection, with the norm before or after."""
        with nm.scope(name):
            if self.config.norm == "pre":
                return h + dropout(sublayer(self.normed(h)), self.config.dropout, key)
            return self.normed(h + dropout(sublayer(h), self.config.dropout, key))

    def run(
        self, x: Tensor, stack: Stack, key: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Any]]:
        """The layers of one side as one loop: a dense layer and one with experts in each turn.

        Returns what comes out, the experts' losses and statistics, and what attention kept.
        """
        config, zero = self.config, nm.zeros([])

        def turn(
            carry: dict[str, Any], row: dict[str, Any]
        ) -> tuple[dict[str, Any], dict[str, Tensor] | None]:
            h, kept = carry["h"], dict(carry["kept"])
            own = None if key is None else nm.random.fold_in(key, row["layer"])
            made = lambda name, key: Turn(name, row["layer"], row["rows"], kept, key)
            with nm.scope("dense"):
                h = stack.attend(h, made("dense", own))
                ffn = lambda x: feed_forward(
                    x, self.M, self.H, activation=config.activation, gated=config.gated
                )
                h = self.residual(h, "ffn", ffn, folded(own, 11))
            if not config.experts:
                return {"h": h, "kept": kept}, None
            watched: list[Routing | ExpertRouting] = []
            with nm.scope("experts"):
                h = stack.attend(h, made("experts", folded(own, 12)))
                h = self.residual(
                    h,
                    "moe",
                    lambda x: self.experts(x, stack, folded(own, 13), watched),
                    folded(own, 14),
                )
            (routing,) = watched
            following = {
                "h": h,
                "kept": kept,
                "aux": carry["aux"] + routing.aux_loss,
                "z": carry["z"] + routing.z_loss,
            }
            return following, {
                "dropped": routing.dropped,
                "load": nm.mean(routing.load, over=self.G),
            }

        start = {"h": x, "kept": stack.kept} | ({"aux": zero, "z": zero} if config.experts else {})
        rows = {"layer": nm.range(self.L), "rows": stack.rows}
        last, watched = nm.scan(turn, start, rows, over=self.L, stack=True, remat=config.remat)
        h = self.normed(last["h"], "final") if config.norm == "pre" else last["h"]
        if not config.experts:
            return h, {}, last["kept"]
        return h, {"aux_loss": last["aux"], "z_loss": last["z"], **(watched or {})}, last["kept"]

    def experts(
        self, x: Tensor, stack: Stack, key: Tensor | None, watched: list[Routing | ExpertRouting]
    ) -> Tensor:
        """The mixture of experts; without a key (evaluation) nothing is random and every later choice is used."""
        config, seq = self.config, stack.seq
        places = stack.capacity or capacity(seq, self.E, config.capacity_factor)
        second = config.second if key is not None else "all"

        def gate(scores: Tensor) -> Routing | ExpertRouting:
            if stack.router == "expert_choice":
                return expert_choice_gating(scores, seq, self.E, places, stack.padding)
            draws = []
            if second == "random" and key is not None:
                draws = [
                    nm.random.uniform(nm.random.fold_in(key, i), [self.G, seq])
                    for i in range(1, config.k)
                ]
            options: dict[str, Any] = {
                "k": config.k,
                "second": second,
                "normalize": config.normalize,
                "draws": draws,
            }
            return top_k_gating(scores, seq, self.E, places, padding=stack.padding, **options)

        routed = (
            jitter(x, nm.random.fold_in(key, 0), config.jitter)
            if config.jitter and key is not None
            else x
        )
        dims = (self.G, seq, self.E, places, self.M, self.H)
        form: dict[str, Any] = {
            "form": config.dispatch,
            "activation": config.activation,
            "gated": config.gated,
        }
        y, routing = moe(x, gate, dims, routed=routed, **form)
        watched.append(routing)
        return y


def folded(key: Tensor | None, number: int) -> Tensor | None:
    """A key of its own for a purpose, or none."""
    return None if key is None else nm.random.fold_in(key, number)


def batch_of(inputs: dict[str, Tensor]) -> Batch:
    """The batch among a program's inputs."""
    missing = [name for name in Batch.__dataclass_fields__ if name not in inputs]
    if missing:
        raise NamedMeshError(
            f"a batch without {missing[0]}",
            f"given: {', '.join(inputs)}",
            fix="declare inputs with model.specs()",
        )
    return Batch(**{name: inputs[name] for name in Batch.__dataclass_fields__})
