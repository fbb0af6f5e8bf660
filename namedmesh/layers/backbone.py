"""The parts that encoder and decoder share: dimensions, embeddings, and the loop over layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import namedmesh as nm
from namedmesh.layers.attention import Heads
from namedmesh.layers.configuration import Config
from namedmesh.layers.dropless import dropless_moe
from namedmesh.layers.gating import expert_choice_gating, top_k_gating
from namedmesh.layers.linear import embedding, feed_forward
from namedmesh.layers.mixture import moe
from namedmesh.layers.norm import layer_norm, rms_norm
from namedmesh.layers.positions import learned_positions, relative_bias, sinusoids
from namedmesh.layers.regularization import derive_key, dropout, jitter
from namedmesh.layers.routing import ExpertRouting, Routing, expert_capacity


@dataclass(frozen=True)
class LayerContext:
    """The inputs of one layer's attention besides its tokens.

    Attributes:
        name: The layer's scope: `"dense"` or `"experts"`.
        layer: The iteration of the loop over layers, int32.
        per_layer: The layer's slices of `LayerStack.per_layer`.
        cache: The layer's cache while decoding, or None.
        key: A random key, or None for evaluation.

    Example:
        >>> number = lambda layer: LayerContext("dense", layer, None, None, None).layer
        >>> nm.trace(number, nm.spec([], "int32")).outputs[0].shape
        []
    """

    name: str
    layer: nm.Tensor
    per_layer: Any
    cache: dict[str, nm.Tensor] | None
    key: nm.Tensor | None


@dataclass(frozen=True)
class Side:
    """The shape of the layers of the encoder or of the decoder.

    Attributes:
        L: The dimension layer: the iterations of the loop over layers.
        H: The dimension hidden of dense layers.
        experts: Whether an iteration has a second layer, with experts.
        unroll: The number of iterations that are written out one after the other.

    Example:
        >>> Side.make(config("tiny").but(expert_sides="encoder"), "decoder").H
        Dimension(name='hidden', size=96)
    """

    L: nm.Dimension
    H: nm.Dimension
    experts: bool
    unroll: int

    @classmethod
    def make(cls, config: Config, side: str) -> Side:
        """Make the shape that a configuration gives a side: `"encoder"` or `"decoder"`."""
        experts = bool(config.experts) and config.expert_sides in ("both", side)
        hidden = config.dense_hidden if config.experts and not experts else config.hidden
        layers = config.layers // (4 if experts else 2)
        unroll = max(n for n in range(1, min(config.unroll, layers) + 1) if layers % n == 0)
        return cls(nm.Dimension("layer", layers), nm.Dimension("hidden", hidden), experts, unroll)

    @property
    def scopes(self) -> tuple[str, ...]:
        """The names of the layers of one iteration."""
        return ("dense", "experts") if self.experts else ("dense",)


@dataclass(frozen=True)
class LayerStack:
    """The layers of the encoder or of the decoder.

    Attributes:
        side: `"encoder"` or `"decoder"`.
        seq: The dimension of tokens.
        attention: Applies a layer's attention; returns its output and the layer's new cache.
        padding: Marks tokens that are padding, bool, or None.
        router: `"top_k"` or `"expert_choice"`.
        capacity: The dimension of the experts' buffers, or None for the configuration's.
        choices: Whether the statistics include the `expert` and `weight` of every choice (top_k).
        per_layer: Tensors with the layer dimension, of which each iteration sees a slice.
        cache: The layers' caches by scope while decoding.

    Example:
        >>> LayerStack("encoder", nm.Dimension("seq", 8), lambda h, context: (h, None)).router
        'top_k'
    """

    side: str
    seq: nm.Dimension
    attention: Callable[[nm.Tensor, LayerContext], tuple[nm.Tensor, Any]]
    padding: nm.Tensor | None = None
    router: str = "top_k"
    capacity: nm.Dimension | None = None
    choices: bool = False
    per_layer: Any = None
    cache: dict[str, Any] = field(default_factory=dict)


class Backbone:
    """A model's dimensions for one batch shape, and the parts of its layers.

    Methods are called while tracing, and make parameters as they go.

    Args:
        config: The configuration.
        group: The number of groups: rows of a batch.
        source: The tokens of a row of the source.
        target: The tokens of a row of the target.

    Attributes:
        G, S, T: The dimensions group, source and target.
        M, H, E: The dimensions model, hidden (of an expert) and expert.
        V, W: The dimensions source_vocab and target_vocab.
        heads: The dimensions of attention.
        sides: The shapes of the layers of encoder and decoder, by name.

    Example:
        >>> model = Backbone(config("tiny"), group=2, source=8, target=8)
        >>> no_attention = LayerStack("encoder", model.S, lambda h, context: (h, None))
        >>> layers = lambda x: model.run_layers(x, no_attention)[0]
        >>> nm.trace(layers, nm.spec([model.G, model.S, model.M])).outputs[0].shape
        [group=2, source=8, model=32]
    """

    def __init__(self, config: Config, group: int, source: int, target: int):
        if not isinstance(config, Config):
            raise nm.NamedMeshError(
                f"{type(self).__name__}: {config!r} is not a Config",
                fix="pass e.g. config('tiny') of namedmesh.layers",
            )
        self.config = config
        self.G, self.S, self.T = nm.dims(f"group={group} source={source} target={target}")
        self.M, self.H = nm.dims(f"model={config.model} hidden={config.hidden}")
        self.V = nm.Dimension("source_vocab", config.source_vocab)
        self.W = nm.Dimension("target_vocab", config.target_vocab)
        self.heads = Heads(self.M, *nm.dims(f"heads={config.heads} key={config.key}"))
        self.E = nm.Dimension("expert", max(config.experts, 1))
        self.sides = {side: Side.make(config, side) for side in ("encoder", "decoder")}

    def embed(
        self,
        tokens: nm.Tensor,
        positions: nm.Tensor,
        vocab: nm.Dimension,
        key: nm.Tensor | None = None,
    ) -> nm.Tensor:
        """Embed tokens and their positions in the model dimension, which comes last.

        Args:
            tokens: Tokens, int32.
            positions: Their positions, int32.
            vocab: The vocabulary's dimension.
            key: A random key for dropout, or None for evaluation.
        """
        config = self.config
        x = embedding(tokens, vocab, self.M, dtype=config.dtype)
        rate = config.word_dropout
        if vocab == self.W and config.target_word_dropout is not None:
            rate = config.target_word_dropout
        if rate and key is not None:
            keep = nm.random.bernoulli(nm.random.fold_in(key, 1), tokens.shape, 1.0 - rate)
            x = nm.where(keep, x, 0.0)
        if config.positions == "sinusoids":
            x = x + sinusoids(positions, self.M, config.dtype)
        elif config.positions == "learned":
            rows = nm.Dimension("position", config.longest)
            x = x + nm.cast(learned_positions(positions, rows, self.M), config.dtype)
        return dropout(x, config.dropout, key)

    def position_bias(self, distance: nm.Tensor, both_ways: bool) -> nm.Tensor | None:
        """Return a bias on attention scores, or None without relative positions.

        Args:
            distance: The memory position minus the query's position, int32.
            both_ways: Whether later positions differ from each other.
        """
        if self.config.positions != "relative":
            return None
        return relative_bias(distance, self.heads.heads, both_ways=both_ways)

    def normalize(self, h: nm.Tensor, name: str = "norm") -> nm.Tensor:
        """Apply the configuration's norm over the model dimension."""
        norm = layer_norm if self.config.normalizer == "layer" else rms_norm
        return norm(h, self.M, name=name)

    def residual(
        self,
        h: nm.Tensor,
        name: str,
        sublayer: Callable[[nm.Tensor], tuple[nm.Tensor, Any]],
        key: nm.Tensor | None = None,
    ) -> tuple[nm.Tensor, Any]:
        """Apply a sublayer inside its residual connection; return its other result too.

        Args:
            h: The input.
            name: The scope of the sublayer's parameters.
            sublayer: Returns its output and any other result.
            key: A random key for dropout, or None for evaluation.
        """
        rate = self.config.dropout
        with nm.scope(name):
            if self.config.norm == "pre":
                y, extra = sublayer(self.normalize(h))
                return h + dropout(y, rate, key), extra
            y, extra = sublayer(h)
            return self.normalize(h + dropout(y, rate, key)), extra

    def run_layers(
        self, x: nm.Tensor, stack: LayerStack, key: nm.Tensor | None = None
    ) -> tuple[nm.Tensor, dict[str, nm.Tensor], dict[str, Any]]:
        """Run the layers of one side as one loop: each iteration has a dense and an expert layer.

        Args:
            x: Embedded tokens.
            stack: The layers.
            key: A random key, or None for evaluation.

        Returns:
            The last layer's output, the experts' losses and statistics, and the new cache.
        """
        side, iteration = self.sides[stack.side], self._iteration(stack, key)
        first: dict[str, Any] = {"h": x, "cache": stack.cache}
        if side.experts:
            first |= {"aux": nm.zeros([]), "z": nm.zeros([])}
        rows = {"layer": nm.range(side.L), "per_layer": stack.per_layer}
        options: dict[str, Any] = {"remat": self.config.remat, "unroll": side.unroll}
        last, statistics = nm.scan(iteration, first, rows, over=side.L, stack=True, **options)
        h = self.normalize(last["h"], "final") if self.config.norm == "pre" else last["h"]
        if not side.experts:
            return h, {}, last["cache"]
        losses = {"aux_loss": last["aux"], "z_loss": last["z"]}
        return h, {**losses, **(statistics or {})}, last["cache"]

    def _iteration(
        self, stack: LayerStack, key: nm.Tensor | None
    ) -> Callable[[dict[str, Any], dict[str, Any]], tuple[dict[str, Any], Any]]:
        """Return an iteration of the loop over the layers of one side."""
        side = self.sides[stack.side]

        def iteration(
            carry: dict[str, Any], row: dict[str, Any]
        ) -> tuple[dict[str, Any], dict[str, nm.Tensor] | None]:
            cache = dict(carry["cache"])
            own_key = None if key is None else nm.random.fold_in(key, row["layer"])

            def attend(h: nm.Tensor, name: str, key: nm.Tensor | None) -> nm.Tensor:
                context = LayerContext(name, **row, cache=cache.get(name), key=key)
                h, new_cache = stack.attention(h, context)
                if name in cache:
                    cache[name] = new_cache
                return h

            with nm.scope("dense"):
                h = attend(carry["h"], "dense", own_key)
                feed = lambda x: self._feed_forward(x, side.H)
                h, _ = self.residual(h, "ffn", feed, derive_key(own_key, 11))
            if not side.experts:
                return {"h": h, "cache": cache}, None
            with nm.scope("experts"):
                h = attend(h, "experts", derive_key(own_key, 12))
                mixture = lambda x: self.mix_experts(x, stack, derive_key(own_key, 13))
                h, routing = self.residual(h, "moe", mixture, derive_key(own_key, 14))
            aux, z = carry["aux"] + routing.aux_loss, carry["z"] + routing.z_loss
            load = nm.mean(routing.load, over=[dim for dim in routing.load.shape if dim != self.E])
            statistics = {"left_out": routing.left_out, "no_room": routing.no_room, "load": load}
            if stack.choices and isinstance(routing, Routing):
                grouped, rows = self.routing_group(stack), [self.G, stack.seq]
                for name in ("expert", "weight"):
                    statistics[name] = nm.reshape(getattr(routing, name), [*grouped], rows)
            return {"h": h, "cache": cache, "aux": aux, "z": z}, statistics

        return iteration

    def run_stages(
        self,
        side: str,
        x: nm.Tensor,
        make_stack: Callable[[dict[str, nm.Tensor]], LayerStack],
        beside: dict[str, nm.Tensor],
        key: nm.Tensor | None = None,
    ) -> tuple[nm.Tensor, dict[str, nm.Tensor]]:
        """Run the layers of one side: as a pipeline where the configuration has stages.

        Args:
            side: `"encoder"` or `"decoder"`.
            x: Embedded tokens.
            make_stack: Makes the layers, given what is beside the tokens of some groups.
            beside: Tensors with the dimension of groups that layers read.
            key: A random key, or None for evaluation.

        Returns:
            The last layer's output, and the experts' losses; their statistics in the plain loop.
        """
        config, G = self.config, self.G
        if config.stages == 1:
            return self.run_layers(x, make_stack(beside), key)[:2]
        P, N = nm.dims(f"stage={config.stages} micro={config.microbatches}")
        if G.size % N.size:
            raise nm.NamedMeshError(
                f"{N} microbatches do not divide {G}",
                fix="choose microbatches= of the configuration that divide the rows of a batch",
            )
        micro = type(self)(config, G.size // N.size, self.S.size, self.T.size)
        own, layers = [micro.G, N], self.sides[side]
        sums = {name: nm.zeros([N]) for name in ("aux", "z")} if layers.experts else {}
        # Every device cuts its own groups: those of a microbatch are N apart.
        rows = {name: nm.reshape(one, G, own) for name, one in beside.items()}
        first = {"h": nm.reshape(x, G, own), "beside": rows, "number": nm.range(N), **sums}

        def layer(carry: dict[str, Any], number: nm.Tensor) -> dict[str, Any]:
            own_key = None if key is None else nm.random.fold_in(key, carry["number"])
            iteration = micro._iteration(make_stack(carry["beside"]), own_key)
            made, _ = iteration({**carry, "cache": {}}, {"layer": number, "per_layer": None})
            return {**carry, **{name: made[name] for name in ("h", *sums)}}

        last = nm.pipeline(layer, first, stages=P, batches=N, layers=layers.L)
        h = nm.reshape(last["h"], own, G)
        h = self.normalize(h, "final") if config.norm == "pre" else h
        return h, {f"{name}_loss": nm.mean(last[name]) for name in sums}

    def mix_experts(
        self, x: nm.Tensor, stack: LayerStack, key: nm.Tensor | None
    ) -> tuple[nm.Tensor, Routing | ExpertRouting]:
        """Apply the mixture of experts; return its output and the routing.

        Args:
            x: Tokens, GSM.
            stack: The layers it is part of.
            key: A random key; without one this is evaluation, which draws the same every time.
        """
        config, E = self.config, self.E
        G, S = self.routing_group(stack)
        rows = (self.G, stack.seq)
        regroup = lambda x: x if rows == (G, S) else nm.reshape(x, [*rows], [G, S])
        padding = None if stack.padding is None else regroup(stack.padding)
        factor, second = config.capacity_factor, config.second
        if key is None:
            factor, second = config.evaluation_capacity_factor or factor, config.evaluation_second
        drops_none = config.dispatch == "blocks" and stack.router == "top_k"
        C = nm.Dimension("capacity", S.size) if drops_none else None
        C = C or stack.capacity or expert_capacity(S, E, factor)
        draw_key = nm.random.key(0) if key is None else key
        bias = None
        if config.balance == "bias" and stack.router == "top_k":
            bias = nm.param("balance", [E], nm.constant_init(0.0), whole=[E])

        def route(logits: nm.Tensor) -> Routing | ExpertRouting:
            if stack.router == "expert_choice":
                return expert_choice_gating(logits, S, E, C, padding)
            later = range(1, config.k) if second == "random" else ()
            draws = [nm.random.uniform(nm.random.fold_in(draw_key, i), [G, S]) for i in later]
            options = {"k": config.k, "second": second, "normalize": config.normalize}
            return top_k_gating(logits, S, E, C, draws=draws, padding=padding, bias=bias, **options)

        def gate(logits: nm.Tensor) -> Routing | ExpertRouting:
            routing = route(logits)
            weight = dropout(routing.weight, config.expert_masking, derive_key(key, 21))
            return dataclasses.replace(routing, weight=weight)

        x = regroup(x)
        routed = x
        if config.jitter and key is not None:
            routed = jitter(x, nm.random.fold_in(key, 0), config.jitter)
        options: dict[str, Any] = {
            "activation": config.activation,
            "gated": config.gated,
            "shared": nm.Dimension("shared_hidden", config.shared) if config.shared else None,
            "routed": routed,
            "rate": config.expert_dropout,
            "dropout_key": derive_key(key, 22),
        }
        if drops_none:
            y, routing = dropless_moe(x, gate, (G, S, E, self.M, self.H), **options)
        else:
            form = "gather" if config.dispatch == "blocks" else config.dispatch
            y, routing = moe(x, gate, (G, S, E, C, self.M, self.H), form=form, **options)
        return y if rows == (G, S) else nm.reshape(y, [G, S], [*rows]), routing

    def routing_group(self, stack: LayerStack) -> tuple[nm.Dimension, nm.Dimension]:
        """Return the dimensions of groups and of their tokens, as the mixture routes them.

        Example:
            >>> model = Backbone(config("tiny").but(group_tokens=32), group=8, source=8, target=8)
            >>> model.routing_group(LayerStack("encoder", model.S, lambda h, context: (h, None)))
            (Dimension(name='group', size=2), Dimension(name='source', size=32))
        """
        size, rows, S = self.config.group_tokens, self.G, stack.seq
        if size is None or stack.capacity is not None:
            return rows, S
        groups, rest = divmod(rows.size * S.size, size)
        if rest:
            raise nm.NamedMeshError(
                f"{rows.size * S.size} tokens do not make groups of group_tokens={size}",
                f"{rows}, {S}",
                fix=f"choose a divisor of {rows.size * S.size}, or another number of rows",
            )
        return nm.Dimension(rows.name, groups), nm.Dimension(S.name, size)

    def _feed_forward(self, x: nm.Tensor, H: nm.Dimension) -> tuple[nm.Tensor, None]:
        """Apply the configuration's feed-forward network, as a sublayer."""
        activation, gated = self.config.activation, self.config.gated
        return feed_forward(x, self.M, H, activation=activation, gated=gated), None
