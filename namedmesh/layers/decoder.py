"""The Transformer one target token at a time, as a step and a cache for `decode`."""

from __future__ import annotations

from typing import Any

import namedmesh as nm
from namedmesh.layers.attention import attend, project_keys_and_values, project_queries
from namedmesh.layers.backbone import LayerContext, LayerStack
from namedmesh.layers.beam import Beam
from namedmesh.layers.cache import Cache
from namedmesh.layers.decoding import Greedy, Sample, check_tokens, decode
from namedmesh.layers.mistakes import Mistake, raise_mistakes
from namedmesh.layers.routing import expert_capacity
from namedmesh.layers.transformer import Transformer


class Decoder:
    """Score the next token of several hypotheses (N) of each source sentence (G), step by step.

    Args:
        model: The model.
        source: Source tokens, GS int32, one sentence in each row.
        segments: 1 for the tokens of the sentence, 0 for padding, GS int32.
        hypotheses: The number of hypotheses of each sentence.
        flat: Whether the hypotheses of a sentence share a flat cache, for a beam; see `Cache`.
        start: The token that every sequence follows.
        end: The token that ends a sequence.

    Attributes:
        G, N, T, W: The dimensions group, hypothesis, step and target_vocab.

    Example:
        >>> model = Transformer(config("tiny"), group=2, source=8, target=6)
        >>> def translate(source, segments):
        ...     decoder = Decoder(model, source, segments, hypotheses=4, flat=True)
        ...     return decoder.decode(Beam(decoder.N))["sequences"]
        >>> nm.trace(translate, *[nm.spec([model.G, model.S], "int32")] * 2).outputs[0].shape
        [group=2, hypothesis=4, step=6]
    """

    def __init__(
        self,
        model: Transformer,
        source: nm.Tensor,
        segments: nm.Tensor,
        *,
        hypotheses: int = 1,
        flat: bool = False,
        start: int = 0,
        end: int = 1,
    ):
        self.model, self.first, self.end = model, start, end
        _check_inputs(model, source, segments)
        check_tokens("Decoder", model.W, start=start, end=end)
        self.G, self.W = model.G, model.W
        self.N = nm.Dimension("hypothesis", hypotheses)
        self.T = nm.Dimension("step", model.T.size)
        self.side = model.sides["decoder"]
        dims, dtype, shared = [self.G, self.N], model.config.dtype, self.N if flat else None
        self.cache = Cache(self.side.L, self.T, model.heads, dims, dtype=dtype, flat=shared)
        positions = nm.broadcast(nm.range(model.S), segments.shape)
        encoded, _ = model.encode(source, segments, positions)
        self.memory = self._project_memory(encoded)
        self.across = nm.not_equal(segments, 0)  # what cross attention may attend to

    def decode(self, method: Greedy | Sample | Beam | None = None) -> dict[str, nm.Tensor]:
        """Decode every sentence.

        Args:
            method: `Greedy` by default, `Sample`, or a `Beam` of the dimension N.

        Returns:
            The `sequences` (GNT), their `scores` (GN) and the number of `steps`; see `decode`.
        """
        first = nm.full([self.G, self.N], self.first, "int32")
        return decode(self.step, self.start(), first, self.T, method, end=self.end)

    def start(self) -> dict[str, Any]:
        """Return the cache before the first step: `time`, `ended` (GN bool) and `layers`."""
        return {
            "time": self.cache.start(),
            "ended": nm.full([self.G, self.N], False, "bool"),
            "layers": {name: self.cache.empty() for name in self.side.scopes},
        }

    def step(self, tokens: nm.Tensor, cache: dict[str, Any]) -> tuple[nm.Tensor, dict[str, Any]]:
        """Return scores (GNW float32) of the tokens that follow, and the new cache.

        Args:
            tokens: The last token of each hypothesis, GN int32.
            cache: The cache so far.
        """
        model, N, heads = self.model, self.N, self.model.heads
        time = self.cache.advance(cache["time"])
        step = time["step"]
        # Experts do not serve what has ended. The first tokens may be the end token.
        ended = cache["ended"] | (nm.equal(tokens, self.end) & (step > 0))
        with nm.scope("decoder"):
            x = model.embed(tokens, nm.broadcast(step, tokens.shape), self.W)
            bias = model.position_bias(nm.range(self.T) - step, both_ways=False)

            def attention(h: nm.Tensor, context: LayerContext) -> tuple[nm.Tensor, Any]:
                def own(x: nm.Tensor) -> tuple[nm.Tensor, dict[str, nm.Tensor]]:
                    q, (k, v) = project_queries(x, heads), project_keys_and_values(x, heads)
                    own_cache, layer = context.cache or {}, context.layer
                    return self.cache.attend(q, k, v, own_cache, layer, time, bias=bias)

                def other(x: nm.Tensor) -> tuple[nm.Tensor, None]:
                    k, v = (context.per_layer[context.name][name] for name in ("keys", "values"))
                    q = project_queries(x, heads)
                    return attend(q, k, v, N, model.S, heads, mask=self.across), None

                h, new_cache = model.residual(h, "attention", own)
                h, _ = model.residual(h, "cross", other)
                return h, new_cache

            past: dict[str, Any] = {"per_layer": self.memory, "cache": cache["layers"]}
            stack = LayerStack("decoder", N, attention, ended, capacity=self._capacity(), **past)
            decoded, _, layers = model.run_layers(x, stack)
        return model.scores(decoded), {"time": time, "ended": ended, "layers": layers}

    def _project_memory(self, encoded: nm.Tensor) -> dict[str, dict[str, nm.Tensor]]:
        """Compute the keys and values of every layer's cross attention, once for all steps."""
        model = self.model

        def project(
            carry: nm.Tensor, _: nm.Tensor
        ) -> tuple[nm.Tensor, dict[str, dict[str, nm.Tensor]]]:
            memory = {}
            for name in self.side.scopes:
                with nm.scope(name), nm.scope("cross"):
                    k, v = project_keys_and_values(encoded, model.heads)
                    memory[name] = {"keys": k, "values": v}
            return carry, memory

        with nm.scope("decoder"):
            L = self.side.L
            return nm.scan(project, nm.zeros([]), nm.range(L), over=L, stack=True)[1]

    def _capacity(self) -> nm.Dimension:
        """Return the experts' capacity: the configuration's, or room for every hypothesis."""
        factor = self.model.config.decoding_capacity_factor
        if factor is None:
            return nm.Dimension("capacity", self.N.size)
        return expert_capacity(self.N, self.model.E, factor)


def _check_inputs(model: Transformer, source: nm.Tensor, segments: nm.Tensor) -> None:
    """Raise unless a decoder's inputs fit its model, and the model's positions suffice."""
    mistakes: list[Mistake] = []
    for name, tensor in (("source", source), ("segments", segments)):
        if {*tensor.shape} != {model.G, model.S} or tensor.dtype != "int32":
            expected = f"int32[{model.G}, {model.S}]"
            problem = f"Decoder: the {name} is {tensor.dtype}{tensor.shape}, not {expected}"
            mistakes.append((problem, "declare it as nm.spec([model.G, model.S], 'int32')"))
    longest, learned = max(model.S.size, model.T.size), model.config.longest
    if model.config.positions == "learned" and longest > learned:
        problem = f"Decoder: {learned} learned positions for sequences of {longest} tokens"
        fix = f"use a configuration with longest={longest}, or decode shorter sequences"
        mistakes.append((problem, fix))
    raise_mistakes("Decoder", mistakes)
