"""The model: RMS norms, rotary positions, grouped-query attention, SwiGLU or a mixture of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import namedmesh as nm
from examples.lm.settings import Settings
from namedmesh.layers import (
    Adam,
    Beam,
    Cache,
    Greedy,
    Heads,
    Sample,
    cosine_decay,
    cross_entropy,
    decode,
    dense,
    embedding,
    expert_capacity,
    feed_forward,
    linear_warmup,
    moe,
    project_keys_and_values,
    project_queries,
    rms_norm,
    rotary,
    top_k_gating,
    vocabulary_logits,
)

BYTES = 256
AUX_WEIGHT = 0.01
# From queries, keys, values, the layer's number and the cache so far to the output and a new cache.
Attend = Callable[[nm.Tensor, nm.Tensor, nm.Tensor, nm.Tensor, Any], tuple[nm.Tensor, Any]]
Carry = dict[str, Any]  # from layer to layer
Layer = Callable[[Carry, nm.Tensor], Carry]
Step = Callable[[nm.Tensor, Any], tuple[nm.Tensor, Any]]


class LanguageModel:
    """The model for rows of bytes, whole (BS) or one byte at a time (BN)."""

    def __init__(self, settings: Settings):
        s = self.settings = settings
        self.B, self.S, self.V = nm.dims(f"batch={s.batch} seq={s.length} vocab={BYTES}")
        self.M, self.H, self.L = nm.dims(f"model={s.model} hidden={s.hidden} layer={s.layers}")
        self.E = nm.Dimension("expert", max(s.experts, 1))
        self.heads = Heads(self.M, *nm.dims(f"heads={s.heads} key={s.key} group={s.group}"))

    def rows_layer(self) -> Layer:
        """Return a layer for whole rows (BS)."""
        S, key = self.S, self.heads.key
        memory, ring = self.heads.memory(S), nm.Dimension("block", self.settings.blocks)

        def attend(
            q: nm.Tensor, k: nm.Tensor, v: nm.Tensor, layer: nm.Tensor, cache: Any
        ) -> tuple[nm.Tensor, Any]:
            k, v = nm.rename(k, S, memory), nm.rename(v, S, memory)
            y = nm.ring_attention(q, k, v, memory, key, query=S, ring=ring, causal=True)
            return dense(y, self.heads.queries, [self.M], name="wo"), cache

        capacity = expert_capacity(S, self.E, self.settings.capacity_factor)
        return self._layer(nm.range(S), capacity, attend)

    def logits(self, tokens: nm.Tensor) -> tuple[nm.Tensor, nm.Tensor]:
        """Score what follows each byte of whole rows (BS); return the experts' loss besides."""
        last = self._run(self._embed(tokens, None), self.rows_layer())
        return self._score(last["h"]), last["aux"]

    def loss(self, inputs: nm.Tensor, targets: nm.Tensor) -> dict[str, nm.Tensor]:
        """Compute the loss of a batch, and the mean cross entropy alone, in nats per byte."""

        def end(last: Carry, row: dict[str, nm.Tensor]) -> tuple[nm.Tensor, nm.Tensor]:
            mean = nm.mean(cross_entropy(self._score(last["h"]), row["targets"], self.V)[0])
            return mean + last["aux"] * AUX_WEIGHT, mean

        layer, rows = self.rows_layer(), {"inputs": inputs, "targets": targets}
        if self.settings.stages == 1:
            loss, mean = end(self._run(self._embed(inputs, None), layer), rows)
            return {"loss": loss, "cross_entropy": mean}
        N = nm.Dimension("micro", self.settings.microbatches)
        # Every device cuts its own rows: those of a microbatch are N apart.
        own = [self.B.resized(self.B.size // N.size), N]
        loss, means = nm.pipeline(
            layer,
            {name: nm.reshape(row, self.B, own) for name, row in rows.items()},
            stages=nm.Dimension("stage", self.settings.stages),
            batches=N,
            layers=self.L,
            schedule=self.settings.schedule,
            first=lambda row: self._embed(row["inputs"], None),
            loss=end,
        )
        return {"loss": loss, "cross_entropy": nm.mean(means)}

    def train(self, inputs: nm.Tensor, targets: nm.Tensor) -> dict[str, nm.Tensor]:
        """Update the weights; return what is logged."""
        s, results = self.settings, self.loss(inputs, targets)
        rate = linear_warmup(cosine_decay(s.learning_rate, steps=s.steps), steps=s.warmup)
        optimizer = Adam(rate, beta2=0.98, clip_norm=1.0)
        return {**results, **optimizer.apply(nm.grad(results["loss"]))}

    def decoding(
        self, rows: list[nm.Dimension], positions: nm.Dimension, flat: nm.Dimension | None = None
    ) -> tuple[Step, Any]:
        """Return a step for `decode`, one byte of each row (BN) at a time, and its first cache."""
        cache = Cache(self.L, positions, self.heads, rows, flat=flat)

        def step(tokens: nm.Tensor, state: Any) -> tuple[nm.Tensor, Any]:
            time = cache.advance(state["time"])
            attend = lambda q, k, v, layer, past: cache.attend(q, k, v, past, layer, time)
            capacity = nm.Dimension("capacity", rows[-1].size)
            layer = self._layer(time["step"], capacity, attend)
            last = self._run(self._embed(tokens, state["past"]), layer)
            return self._score(last["h"]), {"time": time, "past": last["cache"]}

        return step, {"time": cache.start(), "past": cache.empty()}

    def write_on(
        self,
        prompt: nm.Tensor,
        last: nm.Tensor,
        rows: list[nm.Dimension],
        steps: nm.Dimension,
        method: Greedy | Sample | Beam,
    ) -> nm.Tensor:
        """Continue every row after a prompt (P) and its last byte."""
        (P,) = prompt.shape.dims
        flat = rows[-1] if isinstance(method, Beam) else None
        positions = nm.Dimension("position", P.size + steps.size)
        step, cache = self.decoding(rows, positions, flat)
        read = lambda cache, token: (step(nm.broadcast(token, rows), cache)[1], None)
        cache, _ = nm.scan(read, cache, prompt, over=P)
        first = nm.broadcast(last, rows)
        return decode(step, cache, first, steps, method)["sequences"]

    def _embed(self, tokens: nm.Tensor, cache: Any) -> Carry:
        """Return what the first layer takes."""
        return {"h": embedding(tokens, self.V, self.M), "cache": cache, "aux": nm.zeros([])}

    def _layer(self, positions: nm.Tensor, capacity: nm.Dimension, attend: Attend) -> Layer:
        """Return a layer, which takes what the one before it made, and its number."""
        M, heads = self.M, self.heads

        def layer(carry: Carry, number: nm.Tensor) -> Carry:
            h = carry["h"]
            with nm.scope("attention"):
                x = rms_norm(h, M)
                q, (k, v) = project_queries(x, heads), project_keys_and_values(x, heads)
                q, k = (rotary(one, positions, heads.key) for one in (q, k))
                y, cache = attend(q, k, v, number, carry["cache"])
                h = h + y
            with nm.scope("network"):
                y, aux_loss = self._network(rms_norm(h, M), capacity)
            return {"h": h + y, "cache": cache, "aux": carry["aux"] + aux_loss}

        return layer

    def _run(self, first: Carry, layer: Layer) -> Carry:
        """Run the layers as one loop."""
        each = lambda carry, number: (layer(carry, number), None)
        return nm.scan(each, first, nm.range(self.L), over=self.L, stack=True)[0]

    def _score(self, h: nm.Tensor) -> nm.Tensor:
        """Return the logits of what the last layer made."""
        table = "embedding" if self.settings.tied else "output"
        return vocabulary_logits(rms_norm(h, self.M, name="final"), self.V, self.M, name=table)

    def _network(self, x: nm.Tensor, capacity: nm.Dimension) -> tuple[nm.Tensor, nm.Tensor]:
        """Apply SwiGLU, or a mixture of such networks; return the experts' loss besides."""
        if not self.settings.experts:
            y = feed_forward(x, self.M, self.H, activation="swish", gated=True)
            return y, nm.zeros([])
        G, S = (dim for dim in x.shape if dim != self.M)
        gate = lambda logits: top_k_gating(logits, S, self.E, capacity, second="all")
        dims = (G, S, self.E, capacity, self.M, self.H)
        y, routing = moe(x, gate, dims, activation="swish", gated=True)
        return y, routing.aux_loss * float(self.E.size**2)


def trace_rows(model: LanguageModel, function: Callable[..., Any]) -> nm.Program:
    """Trace a function of inputs and targets."""
    rows = nm.spec([model.B, model.S], "int32")
    return nm.trace(function, inputs=rows, targets=rows)


def train_program(settings: Settings) -> nm.Program:
    """Trace a train step: namedmesh plan examples.lm.model:train_program --mesh data=2 ..."""
    model = LanguageModel(settings)
    return trace_rows(model, model.train)
