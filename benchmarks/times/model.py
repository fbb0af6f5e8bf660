"""A published model as a program of ours: layers as a loop, microbatches as a loop around it.

Names are those that layouts map: `batch`, `seq` (the rows that attend), `row` (the rows of the
residual stream, so that `row:tensor` is sequence parallelism), `ring` (blocks of a sequence, one
for each device of context parallelism), `heads`, `hidden`, `vocab` and `expert`. Weights are
float32 at rest and used in bfloat16, as these systems keep them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import namedmesh as nm
from benchmarks.times.table import Step
from namedmesh.layers import Adam, moe, rms_norm, rotary, top_k_gating
from namedmesh.layers.linear import dense, get_activation

ROWS = (128, 512)  # of a tile of grouped products, on GPUs and on TPUs (megablox)
LATENT = {"queries": 1536, "keys": 512, "rope": 64}  # DeepSeek's, beside heads of 128


class Model:
    """The train step of one pipeline stage: all of the model where there is one stage."""

    def __init__(self, step: Step, batch: int, layers: int, dense_layers: int, *, ends: bool):
        self.step, self.ends = step, ends
        # Heads of keys and values are repeated until each tensor-parallel device has one.
        kv = step.heads if step.latent else max(step.kv_heads, step.tensor)
        rows = step.length // step.context
        sizes = {
            "batch": batch, "ring": step.context, "seq": rows, "row": rows, "memory": step.length,
            "model": step.width, "hidden": step.hidden, "heads": kv,
            "group": max(1, step.heads // kv), "key": 160 if step.latent else step.head,
            "vocab": _round_up(step.vocab, 128 * step.tensor), "layer": max(1, layers),
            "dense_layer": max(1, dense_layers), "micro": step.microbatches,
        }  # fmt: skip
        self.dims = {name: nm.Dimension(name, size) for name, size in sizes.items()}
        self.layers, self.dense_layers = layers, dense_layers
        self.shapes: dict[str, nm.Shape] = {}

    @property
    def ring(self) -> list[nm.Dimension]:
        """The blocks of context parallelism, if there are several."""
        return [self.dims["ring"]] if self.step.context > 1 else []

    @property
    def gathers_once(self) -> bool:
        """Whether a step gathers weights once: ZeRO-1, and FSDP in a pipeline (torchtitan)."""
        return self.step.zero or (self.step.sharded and self.step.stages > 1)

    def trace(self) -> nm.Program:
        """Trace the train step."""
        d = self.dims
        rows = [d["batch"], *self.ring, d["row"]]
        if self.step.microbatches == 1 and not self.gathers_once:
            return nm.trace(self.train, **self.specs(rows))
        once = nm.trace(self.loss_and_gradients, **self.specs(rows))
        self.shapes = {name: one.shape for name, one in once.parameters.items()}
        return nm.trace(self.accumulate, **self.specs([d["micro"], *rows]))

    def specs(self, rows: list[nm.Dimension]) -> dict[str, Any]:
        """Return the inputs: tokens, or the activations of the stage before."""
        if self.ends:
            return {"inputs": nm.spec(rows, "int32"), "targets": nm.spec(rows, "int32")}
        x = nm.spec([*rows, self.dims["model"]], "bfloat16")
        return {"inputs": x, "targets": x}

    def train(self, inputs: nm.Tensor, targets: nm.Tensor) -> nm.Tensor:
        """Update the weights by one batch."""
        loss, gradients = self.loss_and_gradients(inputs, targets)
        Adam(1e-4).apply(gradients)
        return loss

    def accumulate(self, inputs: nm.Tensor, targets: nm.Tensor) -> nm.Tensor:
        """Update the weights by the gradients of all microbatches."""

        def iteration(sums: Any, rows: Any) -> tuple[Any, None]:
            total, gradients = sums
            loss, more = self.loss_and_gradients(*rows)
            return (total + loss, {name: gradients[name] + more[name] for name in more}), None

        zeros = {name: nm.zeros(shape) for name, shape in self.shapes.items()}
        (loss, gradients), _ = nm.scan(
            iteration, (nm.zeros([]), zeros), (inputs, targets), over=self.dims["micro"],
            gather_once=self.gathers_once,
        )  # fmt: skip
        Adam(1e-4).apply(gradients)
        return loss

    def loss_and_gradients(self, inputs: nm.Tensor, targets: nm.Tensor) -> tuple[nm.Tensor, Any]:
        """Return the loss of a microbatch and its gradients."""
        d, step = self.dims, self.step
        x = inputs
        if self.ends:
            table = nm.cast(nm.param("embedding", [d["vocab"], d["model"]]), "bfloat16")
            x = nm.take(table, d["vocab"], inputs)
        x = self.stack(x, self.dense_layers, "dense_layer", self.feed_forward)
        x = self.stack(x, self.layers, "layer", self.mix if step.experts else self.feed_forward)
        if not self.ends:  # a stand-in for the gradient that the next stage sends
            loss = nm.sum(nm.cast(x * targets, "float32"))
            return loss, nm.grad(loss)
        x = rms_norm(x, d["model"], name="final")
        x = nm.rename(x, d["row"], d["seq"])
        name = "embedding" if step.tied else "output"
        table = nm.cast(nm.param(name, [d["vocab"], d["model"]]), "bfloat16")
        logits = nm.einsum([x, table], [d["batch"], *self.ring, d["seq"], d["vocab"]])
        right = nm.one_hot(nm.rename(targets, d["row"], d["seq"]), d["vocab"])
        scores = nm.cast(logits, "float32")
        losses = nm.logsumexp(scores, over=d["vocab"]) - nm.sum(scores * right, over=d["vocab"])
        loss = nm.mean(losses)
        return loss, nm.grad(loss)

    def stack(
        self, x: nm.Tensor, count: int, name: str, second: Callable[[nm.Tensor], nm.Tensor]
    ) -> nm.Tensor:
        """Apply layers in a loop."""
        if not count:
            return x
        M, ROW, S = (self.dims[key] for key in ("model", "row", "seq"))

        def layer(x: nm.Tensor, _: None = None) -> tuple[nm.Tensor, None]:
            for scope, part in (("attention", self.attend), ("network", second)):
                with nm.scope(scope):
                    h = rms_norm(x, M)
                    if part == self.mix:  # tokens go to experts from where they are
                        x = x + self.mix(h)
                    else:
                        x = x + nm.rename(part(nm.rename(h, ROW, S)), S, ROW)
            return x, None

        remat = {"core": "none", "": "none"}.get(self.step.remat, self.step.remat)
        with nm.scope(name):
            return nm.scan(layer, x, over=self.dims[name], stack=True, remat=remat)[0]

    def attend(self, h: nm.Tensor) -> nm.Tensor:
        """Apply causal attention."""
        d = self.dims
        B, S, T, M, N, R, K = (
            d[name] for name in ("batch", "seq", "memory", "model", "heads", "group", "key")
        )
        positions, ring = nm.range(S), self.ring
        if ring:
            positions = nm.range(ring[0]) * S.size + positions
        q, k, v = self.project(h)
        q, k = rotary(q, positions, K), rotary(k, positions, K)
        q = nm.transpose(q, [B, *ring, S, N, R, K])
        if ring:  # every block of queries has its own copy of all keys: gathered
            k, v = (nm.reshape(nm.transpose(x, [B, *ring, S, N, K]), [*ring, S], T) for x in (k, v))
            k, v = (nm.broadcast(x, [B, *ring, T, N, K]) for x in (k, v))
        else:
            k, v = nm.rename(k, S, T), nm.rename(v, S, T)
        y = nm.attention(q, k, v, T, K, mask=nm.range(T) <= positions, block=T.size)
        return dense(y, [N, R, K], [M], name="wo")

    def project(self, h: nm.Tensor) -> tuple[nm.Tensor, nm.Tensor, nm.Tensor]:
        """Make queries, keys and values, of a latent vector in DeepSeek's models."""
        d = self.dims
        M, N, R, K = d["model"], d["heads"], d["group"], d["key"]
        if not self.step.latent:
            return tuple(  # type: ignore[return-value]
                dense(h, [M], to, name=name)
                for name, to in (("wq", [N, R, K]), ("wk", [N, K]), ("wv", [N, K]))
            )
        Q, C = nm.Dimension("latent_query", LATENT["queries"]), nm.Dimension("latent", 576)
        q = dense(dense(h, [M], [Q], name="wq_down"), [Q], [N, R, K], name="wq")
        latent = dense(h, [M], [C], name="wkv_down")
        return q, dense(latent, [C], [N, K], name="wk"), dense(latent, [C], [N, K], name="wv")

    def feed_forward(self, h: nm.Tensor) -> nm.Tensor:
        """Apply the feed-forward network."""
        return self.network(h, self.dims["hidden"])

    def network(self, h: nm.Tensor, hidden: nm.Dimension) -> nm.Tensor:
        """Apply two or three products with an activation between."""
        M, step = self.dims["model"], self.step
        y = get_activation(step.activation)(dense(h, [M], [hidden], name="mlp_wi"))
        if step.gated:
            y = y * dense(h, [M], [hidden], name="mlp_gate")
        return dense(y, [hidden], [M], name="mlp_wo")

    def mix(self, h: nm.Tensor) -> nm.Tensor:
        """Apply a mixture; a sequence is a group, and every expert gets its even share or more."""
        d, step = self.dims, self.step
        E = nm.Dimension("expert", step.experts)
        H = nm.Dimension("expert_hidden", step.expert_hidden)
        row = d["row"]
        rows, room = row.size * step.choices, 0
        if step.capacity == 1.0:  # the last tile of each expert is half full
            room = ROWS[step.chip.startswith("tpu")] // (2 * step.micro * step.expert)
        C = nm.Dimension("capacity", -(-int(rows * step.capacity) // step.experts) + room)
        gate = lambda logits: top_k_gating(logits, row, E, C, k=step.choices, second="all")
        form = "einsum" if step.capacity != 1.0 else "gather"
        dims = (d["batch"], row, E, C, d["model"], H)
        y, _ = moe(h, gate, dims, form=form, activation=step.activation, gated=step.gated)
        if step.shared:
            with nm.scope("shared"):
                y = y + self.network(h, H.resized(step.shared * H.size))
        return y


def _round_up(size: int, multiple: int) -> int:
    """Round a vocabulary up, as systems pad it."""
    return -(-size // multiple) * multiple
