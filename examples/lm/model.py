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
Step = Callable[[nm.Tensor, Any], tuple[nm.Tensor, Any]]


class LanguageModel:
    """The model for rows of bytes, whole (BS) or one byte at a time (BN)."""

    def __init__(self, settings: Settings):
        s = self.settings = settings
        self.B, self.S, self.V = nm.dims(f"batch={s.batch} seq={s.length} vocab={BYTES}")
        self.M, self.H, self.L = nm.dims(f"model={s.model} hidden={s.hidden} layer={s.layers}")
        self.E = nm.Dimension("expert", max(s.experts, 1))
        self.heads = Heads(self.M, *nm.dims(f"heads={s.heads} key={s.key} group={s.group}"))

    def logits(self, tokens: nm.Tensor) -> tuple[nm.Tensor, nm.Tensor]:
        """Score what follows each byte of whole rows (BS); return the experts' loss besides."""
        S, key = self.S, self.heads.key
        memory, ring = self.heads.memory(S), nm.Dimension("block", self.settings.blocks)

        def attend(
            q: nm.Tensor, k: nm.Tensor, v: nm.Tensor, layer: nm.Tensor, cache: Any
        ) -> tuple[nm.Tensor, Any]:
            k, v = nm.rename(k, S, memory), nm.rename(v, S, memory)
            y = nm.ring_attention(q, k, v, memory, key, query=S, ring=ring, causal=True)
            return dense(y, self.heads.queries, [self.M], name="wo"), cache

        capacity = expert_capacity(S, self.E, self.settings.capacity_factor)
        logits, _, aux_loss = self._run(tokens, nm.range(S), capacity, attend, None)
        return logits, aux_loss

    def loss(self, inputs: nm.Tensor, targets: nm.Tensor) -> dict[str, nm.Tensor]:
        """Compute the loss of a batch, and the mean cross entropy alone, in nats per byte."""
        logits, aux_loss = self.logits(inputs)
        mean = nm.mean(cross_entropy(logits, targets, self.V)[0])
        return {"loss": mean + aux_loss * AUX_WEIGHT, "cross_entropy": mean}

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
            logits, past, _ = self._run(tokens, time["step"], capacity, attend, state["past"])
            return logits, {"time": time, "past": past}

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

    def _run(
        self,
        tokens: nm.Tensor,
        positions: nm.Tensor,
        capacity: nm.Dimension,
        attend: Attend,
        cache: Any,
    ) -> tuple[nm.Tensor, Any, nm.Tensor]:
        """Run the layers as one loop; return logits, the new cache and the experts' loss."""
        M, heads = self.M, self.heads

        def layer(carry: dict[str, Any], number: nm.Tensor) -> tuple[dict[str, Any], None]:
            h = carry["h"]
            with nm.scope("attention"):
                x = rms_norm(h, M)
                q, (k, v) = project_queries(x, heads), project_keys_and_values(x, heads)
                q, k = (rotary(one, positions, heads.key) for one in (q, k))
                y, cache = attend(q, k, v, number, carry["cache"])
                h = h + y
            with nm.scope("network"):
                y, aux_loss = self._network(rms_norm(h, M), capacity)
            return {"h": h + y, "cache": cache, "aux": carry["aux"] + aux_loss}, None

        first = {"h": embedding(tokens, self.V, M), "cache": cache, "aux": nm.zeros([])}
        last, _ = nm.scan(layer, first, nm.range(self.L), over=self.L, stack=True)
        table = "embedding" if self.settings.tied else "output"
        h = rms_norm(last["h"], M, name="final")
        logits = vocabulary_logits(h, self.V, M, name=table)
        return logits, last["cache"], last["aux"]

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
