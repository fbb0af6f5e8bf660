"""The model one target token at a time, for greedy decoding, sampling and beam search."""

from __future__ import annotations

from typing import Any

import namedmesh as nm
from namedmesh.dims.dimension import Dimension
from namedmesh.dims.errors import NamedMeshError
from namedmesh.ir.tensor import Tensor
from namedmesh.layers.attention import keys_and_values, mixed, queries
from namedmesh.layers.cache import Cache
from namedmesh.layers.gating import capacity
from namedmesh.layers.transformer import Stack, Transformer, Turn

IMPOSSIBLE = -1e9  # the score of what cannot be chosen


class Decoder:
    """Scores of the next token of several hypotheses (N) of each source sentence (G), one step after another.

    With flat, the tokens of all hypotheses of a sentence are one sequence of attention (TN), and a mask says which of them
    a hypothesis follows; otherwise every hypothesis has a cache of its own. Rows of the source hold one sentence each.
    """

    def __init__(
        self,
        model: Transformer,
        source: Tensor,
        segments: Tensor,
        *,
        hypotheses: int = 1,
        flat: bool = False,
    ):
        self.model, self.flat = model, bool(flat)
        for name, tensor in (("source", source), ("segments", segments)):
            if {*tensor.shape} != {model.G, model.S} or tensor.dtype != "int32":
                raise NamedMeshError(
                    f"Decoder: the {name} is {tensor.dtype}{tensor.shape}, not int32[{model.G}, {model.S}]",
                    fix="declare it as nm.spec([model.G, model.S], 'int32')",
                )
        longest = max(model.S.size, model.T.size)
        if model.config.positions == "learned" and longest > model.config.longest:
            raise NamedMeshError(
                f"Decoder: {model.config.longest} learned positions for sequences of {longest} tokens",
                fix=f"give the configuration longest={longest}, or decode shorter sequences",
            )
        self.G, self.W = model.G, model.W
        self.N, self.T = Dimension("hypothesis", hypotheses), Dimension("step", model.T.size)
        self.slot = Dimension("hypothesis_slot", hypotheses) if flat else self.N  # N in the cache
        self.cache = Cache(model.L, self.T, model.heads)
        encoded, _ = model.encode(source, segments, nm.broadcast(nm.range(model.S), segments.shape))
        self.memory, self.across = (
            self._memory(encoded),
            nm.not_equal(segments, 0),
        )  # of cross attention

    def _memory(self, encoded: Tensor) -> dict[str, dict[str, Tensor]]:
        """The keys and values of every layer's cross attention, made once."""
        model = self.model

        def turn(carry: Tensor, _: Tensor) -> tuple[Tensor, dict[str, dict[str, Tensor]]]:
            made = {}
            for name in model.scopes:
                with nm.scope(name), nm.scope("cross"):
                    made[name] = dict(
                        zip(("keys", "values"), keys_and_values(encoded, model.heads), strict=True)
                    )
            return carry, made

        with nm.scope("decoder"):
            return nm.scan(turn, nm.zeros([]), nm.range(model.L), over=model.L, stack=True)[1]

    def start(self) -> dict[str, dict[str, Tensor]]:
        """The empty cache."""
        dims = [self.G, self.slot]
        return {name: self.cache.empty(dims, self.model.config.dtype) for name in self.model.scopes}

    def __call__(
        self,
        tokens: Tensor,
        step: Tensor,
        cache: dict[str, Any],
        mask: Tensor,
        ended: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Scores (GNW, float32) of what follows tokens (GN), and the cache with them; mask says which steps (and slots) count."""
        model, N, heads = self.model, self.N, self.model.heads
        with nm.scope("decoder"):
            x = model.embedded(tokens, nm.broadcast(step, tokens.shape), self.W)
            bias = model.bias(nm.range(self.T) - step, both_ways=False)

            def attend(h: Tensor, turn: Turn) -> Tensor:
                def own(x: Tensor) -> Tensor:
                    y, kept = self.cache.attention(
                        x, N, turn.kept[turn.name], turn.layer, step, mask=mask, bias=bias
                    )
                    turn.kept[turn.name] = kept
                    return y

                def other(x: Tensor) -> Tensor:
                    past = turn.rows[turn.name]
                    return mixed(
                        queries(x, heads),
                        past["keys"],
                        past["values"],
                        N,
                        model.S,
                        heads,
                        mask=self.across,
                    )

                return model.residual(model.residual(h, "attention", own), "cross", other)

            stack = Stack(N, attend, ended, capacity=self._capacity(), rows=self.memory, kept=cache)
            decoded, _, cache = model.run(x, stack)
        return nm.cast(model.scores(decoded), "float32"), cache

    def _capacity(self) -> Dimension:
        """The places of each expert: as the configuration says, or one for every hypothesis."""
        factor = self.model.config.decoding_capacity_factor
        return (
            Dimension("capacity", self.N.size)
            if factor is None
            else capacity(self.N, self.model.E, factor)
        )


def checked_tokens(what: str, vocab: Dimension, **tokens: int) -> None:
    """Raises unless every token is one of the vocabulary, which has at least two."""
    for name, token in tokens.items():
        if not isinstance(token, int) or not 0 <= token < vocab.size or vocab.size < 2:
            raise NamedMeshError(
                f"{what}: {name}={token!r} is no token of {vocab}",
                fix=f"give 0 to {vocab.size - 1}",
            )
