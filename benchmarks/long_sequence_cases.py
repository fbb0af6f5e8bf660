"""Train steps of a language model on bytes: its positions split over devices, or its layers."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Any

import namedmesh as nm
from benchmarks.torus_links import slice_of
from namedmesh.hardware.topology import Target
from namedmesh.layers import (
    Adam,
    causal_mask,
    cross_entropy,
    embedding,
    feed_forward,
    rms_norm,
    vocabulary_logits,
)

HBM = 16 * 2**30  # of a core; the compiler keeps some of it for itself
BLOCK = 1024  # keys at a time, in every form of attention
V, M, F, H, K = nm.dims("vocab=256 model=1024 hidden=4096 heads=8 key=128")
L = nm.Dimension("layer", 4)  # of models with long sequences
S, N = nm.dims("seq=512 micro=16")  # of models in pipelines: short sequences, many layers
FORMS = ("plain", "ring", "ulysses", "pipeline")
AXES = (1, 2, 4, 8, 16)
RULES = {
    "plain": "",
    "ring": "seq:context, memory:context, block:context",
    "ulysses": "seq:context, memory:context, heads:context",
    "pipeline": "stage:context",
}


@dataclass(frozen=True)
class Cell:
    """A form of the model, and the size of the mesh axis that it is split over.

    What grows until a step does not fit is its *size*: the positions of a sequence, or the layers
    of all stages. The smallest slice of TPU v3 has two cores, so that an axis of one has another
    axis beside it, with a sequence for each of its cores.
    """

    form: str
    axis: int

    @property
    def name(self) -> str:
        """The cell's name in tables."""
        return f"{self.form}_{self.axis}"

    @property
    def mesh(self) -> nm.Mesh:
        """The devices."""
        return nm.Mesh(data=2, context=1) if self.axis == 1 else nm.Mesh(context=self.axis)

    @property
    def target(self) -> Target:
        """The slice that has as many cores."""
        return slice_of(self.mesh.devices)

    @property
    def layout(self) -> str:
        """The layout of the cell."""
        rules = [RULES[self.form], "batch:data" if self.axis == 1 else ""]
        return ", ".join(filter(None, rules))

    @property
    def sizes(self) -> list[int]:
        """All sizes to choose from: four from each to its double."""
        unit = 1 if self.form == "pipeline" else BLOCK
        shards = 1 if self.form == "plain" else self.axis
        return [unit * shards * part * 2**i for i in range(8) for part in (4, 5, 6, 7)]

    def sizes_to_try(self, around: int = 8) -> list[int]:
        """Return the largest size that is estimated to fit, and as many below and above."""
        above = bisect.bisect(self.sizes, HBM, key=self._estimate_bytes)
        return self.sizes[max(above - 1 - around, 0) : above + around]

    def _estimate_bytes(self, size: int) -> int:
        """Estimate what a core needs for a step."""
        return estimate_bytes(nm.plan(self.trace(size), self.mesh, self.layout))

    def trace(self, size: int) -> nm.Program:
        """Trace a train step: forward, backward, and an update by Adam."""
        B = nm.Dimension("batch", 2 if self.axis == 1 else 1)
        if self.form == "pipeline":
            stages = nm.Dimension("stage", self.axis)
            layers = nm.Dimension("layer", size // self.axis)
            return trace_pipeline(stages, layers, B)
        return trace_attention(self.form, nm.Dimension("seq", size), B)


CELLS = {
    cell.name: cell
    for cell in (Cell(form, axis) for form in FORMS for axis in AXES)
    if not (cell.form == "ulysses" and cell.axis > H.size)
}


def trace_attention(form: str, seq: nm.Dimension, batch: nm.Dimension) -> nm.Program:
    """Trace a step of a shallow model with one long sequence."""

    def layer(x: nm.Tensor, _: None) -> tuple[nm.Tensor, None]:
        return add_layer(form, x, seq), None

    def train(tokens: nm.Tensor, targets: nm.Tensor) -> dict[str, nm.Tensor]:
        x = embedding(tokens, V, M, dtype="bfloat16")
        x, _ = nm.scan(layer, x, over=L, remat="full", stack=True)
        return update(x, targets)

    tokens = nm.spec([batch, seq], "int32")
    return nm.trace(train, tokens=tokens, targets=tokens)


def trace_pipeline(stages: nm.Dimension, layers: nm.Dimension, batch: nm.Dimension) -> nm.Program:
    """Trace a step of a deep model with short sequences, in microbatches."""

    def layer(x: nm.Tensor, _: None) -> tuple[nm.Tensor, None]:
        return add_layer("plain", x, S), None

    def stage(x: nm.Tensor) -> nm.Tensor:
        return nm.scan(layer, x, over=layers, remat="full", stack=True)[0]

    def train(tokens: nm.Tensor, targets: nm.Tensor) -> dict[str, nm.Tensor]:
        x = embedding(tokens, V, M, dtype="bfloat16")
        return update(nm.pipeline(stage, x, stages=stages, batches=N), targets)

    tokens = nm.spec([N, batch, S], "int32")
    return nm.trace(train, tokens=tokens, targets=tokens)


def add_layer(form: str, x: nm.Tensor, seq: nm.Dimension) -> nm.Tensor:
    """Add causal attention of a form, and a feed-forward layer."""
    memory = nm.Dimension("memory", seq.size)
    y = rms_norm(x, M, name="norm_attention")
    q, k, v = (project(y, [M], [H, K], name) for name in ("wq", "wk", "wv"))
    k, v = (nm.rename(one, seq, memory) for one in (k, v))
    block = min(BLOCK, seq.size)
    if form == "ring":
        ring = nm.Dimension("block", seq.size // block)
        y = nm.ring_attention(q, k, v, memory, K, query=seq, ring=ring, causal=True)
    else:
        options: dict[str, Any] = {"mask": causal_mask(seq, memory), "block": block}
        if form == "ulysses":
            y = nm.ulysses_attention(q, k, v, memory, K, query=seq, heads=H, **options)
        else:
            y = nm.attention(q, k, v, memory, K, **options)
    x = x + project(y, [H, K], [M], "attention_out")
    return x + feed_forward(rms_norm(x, M, name="norm_hidden"), M, F)


def project(x: nm.Tensor, over: list[nm.Dimension], to: list[nm.Dimension], name: str) -> nm.Tensor:
    """Contract x with a weight that every core keeps whole, where heads are split too."""
    weight = nm.param(name, [*over, *to], nm.fan_in_init(*over), whole=[H])
    others = [dim for dim in x.shape if dim not in over]
    return nm.einsum([x, nm.cast(weight, x.dtype)], [*others, *to])


def update(x: nm.Tensor, targets: nm.Tensor) -> dict[str, nm.Tensor]:
    """Train all parameters on the bytes that follow."""
    loss = nm.mean(cross_entropy(vocabulary_logits(x, V, M), targets, V)[0])
    return {"loss": loss, **Adam(1e-4).apply(nm.grad(loss))}


def estimate_bytes(plan: nm.Plan) -> int:
    """Return a rough estimate of a core's memory: where the search for the largest step starts.

    Variables, a gradient for each parameter, what loops keep, and five of the largest tensor that a
    core makes besides: scores of attention and what is made of them, forward and backward.
    """
    variables = plan.program.variables.values()
    kept = sum(plan.bytes_per_device(one.tensor) * (1 + one.trainable) for one in variables)
    shapes = {one.tensor.shape for one in variables}
    made = [
        plan.bytes_per_device(one)
        for one in plan.shardings
        if one not in plan.placements.constants and one.shape not in shapes
    ]
    return kept + plan.activation_bytes + 5 * max(made)
