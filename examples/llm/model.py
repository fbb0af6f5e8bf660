"""The model: a decoder-only Transformer, of any family, for whole rows and token by token."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import namedmesh as nm
from examples.llm.adapters import Adapters
from examples.llm.architecture import Rotary
from examples.llm.settings import PRODUCTS, Settings
from namedmesh.layers import (
    Adam,
    Beam,
    Cache,
    Float8,
    Greedy,
    Heads,
    LatentHeads,
    Routing,
    Sample,
    Weights,
    average_values,
    chunked_cross_entropy,
    cosine_decay,
    decode,
    dense,
    dropless_moe,
    embedding,
    expert_capacity,
    feed_forward,
    get_weights,
    linear_warmup,
    moe,
    rms_norm,
    rotary,
    rotary_frequencies,
    top_k_gating,
    use_weights,
    vocabulary_logits,
    yarn_magnitude,
)

FURTHER_WEIGHT = 0.3  # of the loss of tokens after the next
Flag = nm.Tensor | bool
Carry = dict[str, Any]  # from layer to layer
# From queries and what a cache keeps of each token to the averages of values, and the cache.
Attend = Callable[[nm.Tensor, dict[str, nm.Tensor], nm.Tensor, Flag, Carry], tuple[nm.Tensor, Any]]
Layer = Callable[[Carry, nm.Tensor], Carry]
Step = Callable[[nm.Tensor, Any], tuple[nm.Tensor, Any]]


@dataclass(frozen=True)
class View:
    """How the tokens of whole rows, or of one step, see each other.

    Attributes:
        positions: Their positions, int32.
        attend: Averages values.
        row: The dimension of a step's sequences, or None for whole rows.
        decoding: Whether experts have room for every token.
        between: The names of the tokens within a layer's parts and between them (sequence
            parallel), or None.
        routed: The names of the rows of a batch, and of those that experts serve where these are
            sharded otherwise (parallel folding), or None.
    """

    positions: nm.Tensor
    attend: Attend
    row: nm.Dimension | None
    decoding: bool
    between: tuple[nm.Dimension, nm.Dimension] | None = None
    routed: tuple[nm.Dimension, nm.Dimension] | None = None

    def gather(self, h: nm.Tensor) -> nm.Tensor:
        """Give a part of a layer its tokens."""
        return nm.rename(h, *self.between[::-1]) if self.between else h

    def scatter(self, h: nm.Tensor) -> nm.Tensor:
        """Take tokens back from a part of a layer."""
        return nm.rename(h, *self.between) if self.between else h

    def to_experts(self, h: nm.Tensor) -> nm.Tensor:
        """Give a mixture its tokens: rows take the axes that tokens have between layers' parts."""
        if self.routed:
            h = nm.reshard(nm.rename(h, *self.routed), self.routed[1])
        return self.gather(h)

    def from_experts(self, h: nm.Tensor) -> nm.Tensor:
        """Take tokens back from a mixture."""
        h = self.scatter(h)
        if self.routed:
            h = nm.reshard(h, self.between[1]) if self.between else h
            h = nm.rename(h, *self.routed[::-1])
        return h


class LanguageModel:
    """The model for rows of tokens, whole (BS) or one token at a time (BN)."""

    def __init__(self, settings: Settings):
        s, a = settings, settings.architecture
        self.settings, self.architecture = s, a
        self.B, self.S, self.V = nm.dims(f"batch={s.batch} seq={s.length} vocab={a.vocab}")
        self.M, self.H = nm.dims(f"model={a.model} hidden={a.hidden}")
        self.heads = Heads(self.M, *nm.dims(f"heads={a.heads} key={a.key} group={a.group}"))
        self.latent = None
        if a.latent:
            sizes = dataclasses.asdict(a.latent)
            K, R, W, C, Q = nm.dims(
                f"key={a.key} rotated={sizes['rotated']} value={sizes['value']} "
                f"latent={sizes['keys']} query_latent={max(sizes['queries'], 1)}"
            )
            N, Q = self.heads.heads, Q if sizes["queries"] else None
            self.latent = LatentHeads(self.M, N, K, R, W, C, Q)
        if a.experts:
            self.E, self.X, self.Y = nm.dims(
                f"expert={a.experts.count} expert_hidden={a.experts.hidden} "
                f"shared_hidden={max(a.experts.shared, 1)}"
            )

    def logits(
        self, tokens: nm.Tensor, padding: nm.Tensor | None = None
    ) -> tuple[nm.Tensor, nm.Tensor]:
        """Score what follows each token of whole rows (BS); return the experts' loss besides.

        The first tokens of a row may be padding, whose number each row has (B).
        """
        view = self._for_rows(self.S, padding)
        last = self._run(self._embed(tokens, None), view)
        return self._score(last["h"], view), last["aux"]

    def loss(
        self,
        inputs: nm.Tensor,
        targets: nm.Tensor,
        segments: nm.Tensor | None = None,
        positions: nm.Tensor | None = None,
        weights: nm.Tensor | None = None,
    ) -> dict[str, nm.Tensor]:
        """Compute the loss of a batch, and the mean cross entropy alone, in nats per token.

        Args:
            inputs, targets: Tokens, and the token after each (BS).
            segments, positions: Of packed rows: the text of each token, and its place there.
            weights: What each target counts; all the same by default.
        """

        def end(last: Carry, row: dict[str, nm.Tensor]) -> tuple[nm.Tensor, nm.Tensor]:
            losses = self._losses(last["h"], row["targets"], view)
            mean = nm.mean(losses * row["weights"] if "weights" in row else losses)
            return mean + last["aux"], mean

        rows, view = {"inputs": inputs, "targets": targets}, self._for_rows(self.S)
        if weights is not None:  # of the whole batch, of which a microbatch has any share
            total = nm.maximum(nm.sum(weights), 1.0)
            rows["weights"] = weights * (float(weights.shape.elements) / total)
        if segments is not None and positions is not None:
            rows |= {"segments": segments, "positions": positions}
        if self.settings.stages == 1:
            last = self._run(self._embed(inputs, None, rows), view)
            loss, mean = end(last, rows)
            return {"loss": loss + self._further_loss(last, rows, view), "cross_entropy": mean}
        if len(self.architecture.runs) > 1 or self.architecture.predictions:
            raise nm.NamedMeshError(
                "a pipeline needs layers that are all alike, and no further predictions",
                f"runs of layers (first, number, mixture): {self.architecture.runs}",
                fix="choose a layout that does not map layer",
            )
        ((_, count, mixed),) = self.architecture.runs
        N = nm.Dimension("micro", self.settings.microbatches)
        if self.B.size % N.size:
            raise nm.NamedMeshError(
                f"a pipeline of {N.size} microbatches cannot cut {self.B}",
                fix=f"choose a batch that {N.size} divides, or other microbatches",
            )
        # Every device cuts its own rows: those of a microbatch are N apart.
        own = [self.B.resized(self.B.size // N.size), N]

        def first(row: dict[str, nm.Tensor]) -> Carry:
            carry = self._embed(row["inputs"], None, row)
            return {**carry, "h": view.scatter(carry["h"])}

        loss, means = nm.pipeline(
            self._layer(0, mixed, view),
            {name: nm.reshape(row, self.B, own) for name, row in rows.items()},
            stages=nm.Dimension("stage", self.settings.stages),
            batches=N,
            layers=nm.Dimension("layer", count),
            schedule=self.settings.schedule,
            first=first,
            loss=end,
        )
        return {"loss": loss, "cross_entropy": nm.mean(means)}

    def train(
        self, inputs: nm.Tensor, targets: nm.Tensor, **beside: nm.Tensor
    ) -> dict[str, nm.Tensor]:
        """Update the weights; return what is logged. See `loss`."""
        s, results = self.settings, self.loss(inputs, targets, **beside)
        rate = linear_warmup(cosine_decay(s.learning_rate, steps=s.steps), steps=s.warmup)
        optimizer = Adam(rate, beta2=0.98, clip_norm=1.0)
        return {**results, **optimizer.apply(nm.grad(results["loss"]))}

    def decoding(
        self,
        rows: list[nm.Dimension],
        positions: nm.Dimension,
        flat: nm.Dimension | None = None,
        prompt: nm.Tensor | None = None,
        padding: nm.Tensor | None = None,
    ) -> tuple[Step, Any]:
        """Return a step for `decode`, one token of each row (BN) at a time, and its first cache.

        The cache has a prompt, if there is one (BP, or P of all rows), which is read at once.
        """
        keep = None if self.latent is None else {"latent": [self.latent.cached]}
        L = nm.Dimension("layer", self.architecture.layers)
        shards = nm.Dimension("position_shard", self.settings.cache_shards)
        cache = Cache(
            L, positions, self.heads, rows, dtype=self.settings.dtype, flat=flat, entries=keep,
            shards=shards if shards.size > 1 else None,
        )  # fmt: skip
        past, filled = cache.empty(), 0
        if prompt is not None:
            (P,) = (dim for dim in prompt.shape if dim not in rows)
            if len(prompt.shape) == 1:
                prompt = nm.broadcast(prompt, [rows[0], P])
            view, filled = self._for_rows(P, padding, cache), P.size
            past = self._run(self._embed(prompt, past), view)["cache"]

        def step(tokens: nm.Tensor, state: Any) -> tuple[nm.Tensor, Any]:
            time = cache.advance(state["time"])
            view = self._for_step(cache, time, padding)
            last = self._run(self._embed(tokens, state["past"]), view)
            return self._score(last["h"], view), {"time": time, "past": last["cache"]}

        return step, {"time": cache.start(filled, padding), "past": past}

    def write_on(
        self,
        prompt: nm.Tensor,
        last: nm.Tensor,
        rows: list[nm.Dimension],
        steps: nm.Dimension,
        method: Greedy | Sample | Beam,
        *,
        padding: nm.Tensor | None = None,
        end: tuple[int, ...] | None = None,
    ) -> dict[str, nm.Tensor]:
        """Continue rows after a prompt (BP, or P for all) and their last token; see `decode`."""
        (P,) = (dim for dim in prompt.shape if dim not in rows)
        flat = rows[-1] if isinstance(method, Beam) else None
        size = P.size + steps.size
        positions = nm.Dimension("position", size + -size % self.settings.cache_shards)
        step, cache = self.decoding(rows, positions, flat, prompt, padding)
        return decode(step, cache, nm.broadcast(last, rows), steps, method, end=end)

    def _embed(
        self, tokens: nm.Tensor, cache: Any, rows: dict[str, nm.Tensor] | None = None
    ) -> Carry:
        """Return what the first layer takes: of packed rows, their segments and positions too."""
        packed = {name: rows[name] for name in ("segments", "positions") if rows and name in rows}
        scale = math.sqrt(self.M.size) if self.architecture.scaled else 1.0
        h = embedding(tokens, self.V, self.M, dtype=self.settings.dtype, scale=scale)
        return {"h": h, "cache": cache, "aux": nm.zeros([]), **packed}

    def _run(self, first: Carry, view: View) -> Carry:
        """Run the layers: each run of equal ones as one loop."""
        carry, runs = {**first, "h": view.scatter(first["h"])}, self.architecture.runs
        for start, count, mixed in runs:
            layer, L = self._layer(start, mixed, view), nm.Dimension("layer", count)
            each = lambda carry, number, layer=layer: (layer(carry, number), None)
            with nm.scope(f"layers{start}") if len(runs) > 1 else contextlib.nullcontext():
                carry, _ = nm.scan(
                    each, carry, nm.range(L), over=L, stack=True, remat=self.settings.remat,
                    offload=self.settings.offload, unroll=self.settings.unroll,
                )  # fmt: skip
        return carry

    def _layer(self, start: int, mixed: bool, view: View) -> Layer:
        """Return a layer of a run, which takes what the one before it made, and its number."""
        a, M = self.architecture, self.M

        def norm(x: nm.Tensor, name: str = "norm") -> nm.Tensor:
            return rms_norm(x, M, name=name, epsilon=a.epsilon, from_one=a.gemma)

        def layer(carry: Carry, number: nm.Tensor) -> Carry:
            h, number = carry["h"], number + start
            with nm.scope("attention"):
                y, cache = self._attend(view.gather(norm(h)), number, carry, view)
                y = view.scatter(y)
                h = h + (norm(y, "after") if a.gemma else y)
            with nm.scope("network"):
                x, aux = (view.to_experts if mixed else view.gather)(norm(h)), nm.zeros([])
                if mixed:
                    y, aux = self._mix_experts(x, view)
                else:
                    y = feed_forward(
                        x, M, self.H, activation=a.activation, gated=True, bias=a.network_bias
                    )
                y = view.from_experts(y) if mixed else view.scatter(y)
                h = h + (norm(y, "after") if a.gemma else y)
            return {**carry, "h": h, "cache": cache, "aux": carry["aux"] + aux}

        return layer

    def _attend(
        self, x: nm.Tensor, number: nm.Tensor, carry: Carry, view: View
    ) -> tuple[nm.Tensor, Any]:
        """Apply a layer's attention, grouped-query or latent."""
        a, heads = self.architecture, self.heads
        local = self._is_local(number)
        positions = carry.get("positions", view.positions)
        rotate = lambda y, dim: self._rotate(y, dim, local, positions)
        if self.latent is not None:
            q, cached = self.latent.project(x, rotate, bias=a.qkv_bias)
            context, cache = view.attend(q, {"latent": cached}, number, local, carry)
            return self._project(context, [heads.heads, self.latent.value]), cache
        q = dense(x, [self.M], heads.queries, name="wq", bias=a.qkv_bias)
        k, v = (
            dense(x, [self.M], [heads.heads, heads.key], name=name, bias=a.qkv_bias)
            for name in ("wk", "wv")
        )
        if a.key_norms:
            norm = functools.partial(rms_norm, epsilon=a.epsilon, from_one=a.gemma)
            q, k = norm(q, heads.key, name="query"), norm(k, heads.key, name="key")
        new = {"keys": rotate(k, heads.key), "values": v}
        context, cache = view.attend(rotate(q, heads.key), new, number, local, carry)
        return self._project(context, heads.queries), cache

    def _project(self, context: nm.Tensor, over: list[nm.Dimension]) -> nm.Tensor:
        """Project the heads' averages of values back to the model dimension."""
        return dense(context, over, [self.M], name="wo", bias=self.architecture.output_bias)

    def _for_rows(
        self, S: nm.Dimension, padding: nm.Tensor | None = None, cache: Cache | None = None
    ) -> View:
        """Return how the tokens of whole rows see each other; a cache is filled with them."""
        a, heads, T = self.architecture, self.heads, self.heads.memory(S)
        ring = nm.Dimension("block", self.settings.blocks)
        simple = padding is None and not any(a.local) and not a.score_cap and self.latent is None

        def attend(
            q: nm.Tensor, new: dict[str, nm.Tensor], number: nm.Tensor, local: Flag, carry: Carry
        ) -> tuple[nm.Tensor, Any]:
            past, own = carry["cache"], carry.get("segments")
            others = None if own is None else nm.rename(own, S, T)
            if cache is not None:
                past = cache.fill(past, new, number, S)
            if self.latent is not None:
                k, v = self.latent.expand(new["latent"])
            else:
                k, v = new["keys"], new["values"]
            k, v = nm.rename(k, S, T), nm.rename(v, S, T)
            if ring.size > 1 and simple:
                y = nm.ring_attention(
                    q, k, v, T, heads.key, query=S, ring=ring, causal=True, scale=self._scale(),
                    segments=None if own is None or others is None else (own, others),
                )  # fmt: skip
                return y, past
            if ring.size > 1:  # every device has all keys
                k, v = nm.replicate(k, T), nm.replicate(v, T)
                others = None if others is None else nm.replicate(others, T)
            mask = nm.range(T) <= nm.range(S)
            if local is not False:
                near = nm.range(S) - nm.range(T) < a.window
                mask = mask & (near if local is True else near | ~local)
            if padding is not None:
                mask = mask & (nm.range(T) >= padding)
            if own is not None and others is not None:
                mask = mask & nm.equal(own, others)
            return average_values(
                q, k, v, S, T, self.latent.whole if self.latent else heads,
                mask=mask, scale=self._scale(), cap=a.score_cap or None,
            ), past  # fmt: skip

        positions = nm.range(S) if padding is None else nm.maximum(nm.range(S) - padding, 0)
        row, split = nm.Dimension("row", S.size), self.settings.scattered and cache is None
        routed = (self.B, nm.Dimension("routed", self.B.size)) if self.settings.folded else None
        routed = None if cache is not None else routed
        between = (S, row) if split else None
        return View(positions, attend, None, cache is not None, between, routed)

    def _for_step(
        self, cache: Cache, time: dict[str, nm.Tensor], padding: nm.Tensor | None
    ) -> View:
        """Return how the tokens of one step see those of the steps before."""
        a, step = self.architecture, time["step"]

        def attend(
            q: nm.Tensor, new: dict[str, nm.Tensor], number: nm.Tensor, local: Flag, carry: Carry
        ) -> tuple[nm.Tensor, Any]:
            past, entries, memory = cache.append(carry["cache"], new, number, time)
            mask = time["mask"]
            if local is not False:
                # The steps may be a ring, of which the next one comes after the last.
                near = nm.remainder(step - cache.positions(), cache.steps.size) < a.window
                mask = mask & (near if local is True else near | ~local)
            seq, options = cache.dims[-1], {"mask": mask, "scale": self._scale()}
            if self.latent is not None:
                return self.latent.attend_cached(q, entries["latent"], seq, memory, **options), past
            keys, values, cap = entries["keys"], entries["values"], a.score_cap or None
            y = average_values(q, keys, values, seq, memory, self.heads, cap=cap, **options)
            return y, past

        positions = step if padding is None else step - padding
        return View(positions, attend, cache.dims[-1], True)

    def _is_local(self, number: nm.Tensor) -> Flag:
        """Return whether the layer of that number has a window."""
        local = self.architecture.local
        if not any(local) or all(local):
            return any(local)
        L = nm.Dimension("layer_number", len(local))
        return nm.gather(nm.constant(np.array(local), [L]), number, L)

    def _rotate(
        self, x: nm.Tensor, dim: nm.Dimension, local: Flag, positions: nm.Tensor
    ) -> nm.Tensor:
        """Rotate queries or keys by their positions."""
        a = self.architecture

        def numbers(one: Rotary) -> tuple[nm.Tensor, float]:
            values, factor = rotary_frequencies(
                dim, one.base, one.scaling, interleaved=a.interleaved
            )
            return nm.constant(values, [dim]), factor

        frequencies, factor = numbers(a.rotary)
        if a.local_rotary and local is not False:
            near, near_factor = numbers(a.local_rotary)
            frequencies = near if local is True else nm.where(local, near, frequencies)
            if local is True:
                factor = near_factor
            elif factor != near_factor:
                raise nm.NamedMeshError(
                    f"layers with a window scale rotations by {near_factor}, others by {factor}",
                    fix="give both scalings one attention_factor",
                )
        return rotary(
            x, positions, dim, frequencies=frequencies, factor=factor, interleaved=a.interleaved
        )

    def _scale(self) -> float:
        """Return the factor of attention scores."""
        a = self.architecture
        size = a.score_size or a.key + (a.latent.rotated if a.latent else 0)
        scaling, scale = a.rotary.scaling, 1.0 / math.sqrt(size)
        if a.latent and scaling.get("mscale_all_dim"):
            scale *= yarn_magnitude(scaling["factor"], scaling["mscale_all_dim"]) ** 2
        return scale

    def _mix_experts(self, x: nm.Tensor, view: View) -> tuple[nm.Tensor, nm.Tensor]:
        """Apply a mixture of gated networks; return its loss besides."""
        e = self.architecture.experts
        assert e is not None
        G, S = (dim for dim in x.shape if dim != self.M)
        factor = self.settings.capacity_factor
        if view.row is not None and not factor:
            G, S = S, G  # all rows of a step are routed together
        room = nm.Dimension("capacity", S.size)
        if factor and not view.decoding:
            room = expert_capacity(S, self.E, factor)
        bias = None
        if e.balance == "bias":
            bias = get_weights().make("bias", [self.E], nm.constant_init(0.0), whole=[self.E])

        def gate(logits: nm.Tensor) -> Routing:
            routing = top_k_gating(
                logits, S, self.E, room, k=e.chosen, second="all", score=e.score, bias=bias,
                normalize="before_capacity" if e.normalize else "none",
                groups=e.groups if e.groups[0] > 1 else None,
            )  # fmt: skip
            return dataclasses.replace(routing, weight=routing.weight * e.scale)

        options: dict[str, Any] = {"activation": self.architecture.activation, "gated": True}
        options["shared"] = self.Y if e.shared else None
        if factor:
            y, routing = moe(x, gate, (G, S, self.E, room, self.M, self.X), **options)
        else:
            y, routing = dropless_moe(x, gate, (G, S, self.E, self.M, self.X), **options)
        return nm.transpose(y, x.shape), routing.aux_loss * float(self.E.size**2) * e.weight

    def _score(self, h: nm.Tensor, view: View) -> nm.Tensor:
        """Return the logits of what the last layer made."""
        return self._logits(self._finish(h, view, "final"))

    def _losses(
        self, h: nm.Tensor, targets: nm.Tensor, view: View, name: str = "final"
    ) -> nm.Tensor:
        """Return the cross entropy of every target (BS)."""
        h, chunks = self._finish(h, view, name), self.settings.loss_chunks
        where: Any = {"over": self.S, "chunks": chunks}
        return chunked_cross_entropy(self._logits, h, targets, self.V, **where)[0]

    def _finish(self, h: nm.Tensor, view: View, name: str) -> nm.Tensor:
        a = self.architecture
        return view.gather(rms_norm(h, self.M, name=name, epsilon=a.epsilon, from_one=a.gemma))

    def _logits(self, h: nm.Tensor) -> nm.Tensor:
        a = self.architecture
        table = "embedding" if a.tied else "output"
        logits = vocabulary_logits(h, self.V, self.M, name=table)
        if a.logit_cap:
            logits = nm.tanh(nm.cast(logits, "float32") * (1.0 / a.logit_cap)) * a.logit_cap
        return logits

    def _further_loss(
        self, last: Carry, rows: dict[str, nm.Tensor], view: View
    ) -> nm.Tensor | float:
        """Return the loss of the tokens after the next ones (DeepSeek-V3's further predictions).

        A layer for each sees what the one before made and the token that was to be predicted.
        """
        a, h, total, targets = self.architecture, last["h"], 0.0, rows["targets"]
        M, L = self.M, nm.Dimension("layer", 1)
        before = nm.Dimension("model_before", M.size)
        for i in range(a.predictions):
            token = view.scatter(self._embed(nm.shift(targets, self.S, -i), None)["h"])
            with nm.scope(f"further{i}"):
                parts = {"token": token, "hidden": h}
                for name, part in parts.items():
                    part = rms_norm(part, M, name=name, epsilon=a.epsilon, from_one=a.gemma)
                    parts[name] = dense(nm.rename(part, M, before), [before], [M], name=f"w_{name}")
                layer = self._layer(a.layers + i, a.runs[-1][2], view)
                each = lambda carry, number, layer=layer: (layer(carry, number), None)
                first = {**last, "h": parts["token"] + parts["hidden"], "aux": nm.zeros([])}
                carry, _ = nm.scan(
                    each, first, nm.range(L), over=L, stack=True, remat=self.settings.remat,
                    offload=self.settings.offload,
                )  # fmt: skip
            h = carry["h"]
            following = nm.shift(targets, self.S, -i - 1)
            losses = self._losses(h, following, view, f"further{i}/final")
            real = nm.cast(nm.range(self.S) < self.S.size - i - 1, "float32")
            if "segments" in rows:
                same = nm.equal(nm.shift(rows["segments"], self.S, -i - 1), rows["segments"])
                real = real * nm.cast(same, "float32")
            if "weights" in rows:
                real = real * nm.shift(rows["weights"], self.S, -i - 1)
            share = nm.sum(losses * real) / float(self.B.size * max(self.S.size - i - 1, 1))
            total = total + share * (FURTHER_WEIGHT / a.predictions) + carry["aux"]
        return total


def trace_rows(
    model: LanguageModel, function: Callable[..., Any], *, packed: bool = False
) -> nm.Program:
    """Trace a function of inputs and targets, and of what `loss` takes besides for packed rows."""
    rows = nm.spec([model.B, model.S], "int32")
    specs: dict[str, Any] = {"inputs": rows, "targets": rows}
    if packed:
        specs |= {"segments": rows, "positions": rows, "weights": nm.spec([model.B, model.S])}
    with use_weights(weights_of(model.settings, trains=function == model.train)):
        return nm.trace(function, **specs)


def weights_of(settings: Settings, *, trains: bool = False) -> Weights:
    """Return how the weights of a run are stored and multiplied by, for `use_weights`."""
    weights = Adapters(settings.tuning) if settings.tuning else Weights()
    products = PRODUCTS[settings.products]
    if not isinstance(products, Float8):
        return weights
    # Only a step that trains notes magnitudes for the next one.
    history = products.history if trains else 0
    return dataclasses.replace(products, inside=weights, history=history)


def train_program(settings: Settings) -> nm.Program:
    """Trace a train step: namedmesh plan examples.llm.model:train_program --mesh data=2 ..."""
    model = LanguageModel(settings)
    return trace_rows(model, model.train)
