"""Train steps for clusters of 8 to 2,048 GPUs: dense stacks, mixtures, images, tables and more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import namedmesh as nm
from benchmarks import search_cases, tpu_plans, tpu_v3
from benchmarks.llama import Llama
from benchmarks.long_sequence_cases import trace_attention
from examples.llm.model import train_program
from examples.llm.settings import Settings
from examples.llm.sizes import published
from namedmesh.hardware.topology import Target
from namedmesh.layers import (
    Adafactor,
    Adam,
    Transformer,
    batch_of,
    config,
    cross_entropy,
    dense,
    embedding,
    expert_capacity,
    rms_norm,
)

# Layers, model, hidden, query heads of each of 8 heads of keys and values, vocabulary, experts.
LLAMAS = {
    "llama_8b": (32, 4096, 14_336, 4, 128_256, 0),
    "llama_70b": (80, 8192, 28_672, 8, 128_256, 0),
    "llama_405b": (126, 16_384, 53_248, 16, 128_256, 0),
    "llama_1b": (16, 2048, 5632, 2, 32_000, 0),
    "mixtral_small": (8, 1024, 3584, 2, 32_000, 8),
    "mixtral_8x7b": (32, 4096, 14_336, 4, 32_000, 8),
}
TENSOR = "head:tensor, hidden:tensor, vocab:tensor"
SEQUENCE = f"{TENSOR}, row:tensor"  # sequence parallelism too
MEGATRON = "heads:tensor, hidden:tensor, vocab:tensor"  # of examples/llm


@dataclass(frozen=True)
class Case:
    """A train step, its layout, and the GPUs that it is compiled for."""

    model: str
    target: str
    mesh: str
    layout: str
    params: str | None
    make: Callable[[], nm.Program]

    @property
    def gpus(self) -> int:
        """How many GPUs there are."""
        return Target.parse(self.target).cores

    @property
    def name(self) -> str:
        """The name of the case's files."""
        chip, shape = self.target.split(":")
        axes = self.mesh.replace("=", "").replace(", ", "_")
        return f"{self.model}-{chip}_{shape}-{axes}"


@dataclass(frozen=True)
class Language:
    """A train step of a Llama-style language model, whose weights are float32 at rest.

    Attributes:
        model: A name of LLAMAS.
        batch: The rows of a step, or of a microbatch.
        length: The tokens of a row.
        micro: Microbatches, whose gradients are added up, or which go through the stages.
        stages: The stages of a pipeline.
        remat: What the backward pass computes again in each layer, or the variables it stores.
        optimizer: `adam` or `adafactor`.
        dtype: What activations are computed in.
        kernel: Whether attention is one op, for which backends have kernels.
        schedule: Of the pipeline; two rounds where it is `interleaved`.
        offload: Whether activations wait in the host's memory for the backward pass.
        reversible: Whether layers have two halves, and the backward pass stores none of them.
    """

    model: str
    batch: int
    length: int = 4096
    micro: int = 1
    stages: int = 1
    remat: str | list[str] = "full"
    optimizer: str = "adam"
    dtype: str = "bfloat16"
    kernel: bool = False
    schedule: str = "gpipe"
    offload: bool = False
    reversible: bool = False

    def trace(self) -> nm.Program:
        """Trace the step."""
        layers, model, hidden, queries, vocabulary, experts = LLAMAS[self.model]
        llama = Llama.of(self.batch, self.length, model, hidden, 8, 128, self.dtype)
        rounds = nm.Dimension("round", 2) if self.schedule == "interleaved" else None
        V, R, P, N, L = nm.dims(
            f"vocab={vocabulary} query={queries} stage={self.stages} micro={self.micro} "
            f"layer={layers // self.stages // (rounds.size if rounds else 1)}"
        )
        llama = replace(llama, R=R, kernel=self.kernel)
        if experts:
            E = nm.Dimension("expert", experts)
            llama = replace(llama, E=E, C=expert_capacity(llama.S, E, 2.0))
        second = llama.mix_experts if experts else llama.feed_forward
        B, ROW, S, M = llama.B, llama.ROW, llama.S, llama.M

        def layer(x: nm.Tensor, _: None) -> tuple[nm.Tensor, None]:
            return llama.layer(x, second), None

        def attend(x: nm.Tensor) -> nm.Tensor:
            return llama.residual("attention", llama.attend, x)

        def mix(x: nm.Tensor) -> nm.Tensor:
            return llama.residual("feed_forward", second, x)

        def stack(x: nm.Tensor) -> nm.Tensor:
            if self.reversible:
                return nm.add(*nm.reversible([attend, mix], x, x, over=L))
            options = {"remat": self.remat, "offload": self.offload}
            return nm.scan(layer, x, over=L, stack=True, **options)[0]

        def first(tokens: nm.Tensor) -> nm.Tensor:
            return nm.rename(embedding(tokens, V, M, dtype=self.dtype), S, ROW)

        def end(x: nm.Tensor, targets: nm.Tensor) -> nm.Tensor:
            x = nm.rename(rms_norm(x, M, name="final"), ROW, S)
            logits = dense(x, [M], [V], name="logits")
            return nm.mean(cross_entropy(logits, targets, V)[0])

        def loss_of(tokens: nm.Tensor, targets: nm.Tensor) -> nm.Tensor:
            if P.size == 1:
                return end(stack(first(tokens)), targets)
            where: Any = {"stages": P, "batches": N}
            if self.schedule == "gpipe":
                return end(nm.pipeline(stack, first(tokens), **where), targets)
            where |= {"schedule": self.schedule, "rounds": rounds}
            where |= {"first": lambda row: first(row[0]), "loss": lambda x, row: end(x, row[1])}
            return nm.pipeline(stack, (tokens, targets), **where)

        def differentiate(tokens: nm.Tensor, targets: nm.Tensor) -> Any:
            loss = loss_of(tokens, targets)
            return loss, nm.grad(loss)

        def accumulate(tokens: nm.Tensor, targets: nm.Tensor) -> Any:
            def add(sums: Any, part: Any) -> tuple[Any, None]:
                total, gradients = sums
                loss, more = differentiate(*part)
                return (total + loss, {name: gradients[name] + more[name] for name in more}), None

            zeros = {name: nm.zeros(shape) for name, shape in shapes.items()}
            return nm.scan(add, (nm.zeros([]), zeros), (tokens, targets), over=N)[0]

        in_loop = self.micro > 1 and self.stages == 1
        rows = [B, S] if self.micro == 1 else [N, B, S]
        of_one, of_all = nm.spec([B, S], "int32"), nm.spec(rows, "int32")
        shapes: dict[str, nm.Shape] = {}
        if in_loop:
            parameters = nm.trace(differentiate, of_one, of_one).parameters
            shapes |= {name: variable.shape for name, variable in parameters.items()}

        def train(tokens: nm.Tensor, targets: nm.Tensor) -> nm.Tensor:
            loss, gradients = (accumulate if in_loop else differentiate)(tokens, targets)
            optimizer = Adam(1e-4) if self.optimizer == "adam" else Adafactor()
            optimizer.apply(gradients)
            return loss

        return nm.trace(train, of_all, of_all)


def language(
    target: str,
    mesh: str,
    layout: str,
    params: str | None,
    model: str,
    batch: int,
    suffix: str = "",
    **options: Any,
) -> Case:
    """Return a case of a Llama-style model."""
    step = Language(model, batch, **options)
    return Case(model + suffix, target, mesh, layout, params, step.trace)


def paper(model: str, target: str) -> Case:
    """Return a case of the paper's family of mixtures."""
    case = tpu_v3.CASES[model]
    mesh, layout, params = case.place
    text = ", ".join(f"{axis}={size}" for axis, size in mesh.axes.items())
    return Case(model, target, text, layout, params, lambda: tpu_v3.trace_case(case))


def several_axes(name: str, target: str) -> Case:
    """Return a case of mixtures on meshes of several axes."""
    case = tpu_plans.CASES[name]
    model = f"moe_{name}"
    return Case(model, target, case.mesh, case.layout, case.params, lambda: tpu_plans.trace(case))


def searched(model: str, hand: str, target: str) -> Case:
    """Return a layout by hand of a model that searches are tried on."""
    case = search_cases.MODELS[model](Target.parse(target).cores)
    one = case.hands[hand]
    choices = {name: values[-1] for name, values in case.choices.items()}
    return Case(model, target, one.mesh, one.layout, one.params, lambda: case.make(**choices))


def dropless(target: str, mesh: str, layout: str, params: str | None, experts: int) -> Case:
    """Return a mixture that drops no token: 2,048 of them in each GPU."""
    groups = Target.parse(target).cores
    shape = config("moe_128e_12l").but(
        experts=experts, dispatch="blocks", second="all", dtype="bfloat16", gated=True
    )

    def make() -> nm.Program:
        model = Transformer(shape, group=groups, source=1024, target=1024)

        def train(batch: dict[str, Any], seed: nm.Tensor) -> nm.Tensor:
            loss, metrics = model.loss(batch_of(batch), nm.random.key_from_seed(seed))
            Adam(1e-4).apply(nm.grad(loss))
            return metrics["loss"]

        return nm.trace(train, batch=model.specs(), seed=nm.spec([], "int32"))

    return Case("dropless", target, mesh, layout, params, make)


def family(
    name: str, target: str, mesh: str, layout: str, params: str | None = None, **settings: Any
) -> Case:
    """Return the train step of a published model of examples/llm, in rows of 4,096 tokens."""
    s = Settings(
        published(name), length=4096, remat="full", dtype="bfloat16", mesh=mesh, layout=layout,
        params=params or "", **settings,
    )  # fmt: skip
    model = name + (f"_{s.schedule}" if "stage:" in layout else "")
    return Case(model, target, mesh, layout, params, lambda: train_program(s))


def unet(target: str, mesh: str) -> Case:
    """Return a U-Net whose images are split in both directions."""
    made = search_cases.unet(Target.parse(target).cores).make
    return Case("unet", target, mesh, "batch:data, rows:y, columns:x", None, made)


def ring(target: str, data: int, context: int) -> Case:
    """Return ring attention under FSDP: 4,096 positions of a row for each GPU."""
    seq, batch = nm.Dimension("seq", 4096 * context), nm.Dimension("batch", data)
    layout = "batch:data, seq:context, memory:context, block:context"
    return Case(
        "ring_attention", target, f"data={data}, context={context}", layout, "model:data",
        lambda: trace_attention("ring", seq, batch),
    )  # fmt: skip


_CASES = [
    # Dense stacks: FSDP, tensor and sequence parallelism, hybrid shards, accumulation.
    language("a100:1x8", "data=8", "batch:data", "model:data", "llama_8b", 8),
    language("h100:1x8", "data=2, tensor=4", f"batch:data, {SEQUENCE}", None, "llama_8b", 4),
    language("h100:8x8", "data=8, tensor=8", f"batch:data, {SEQUENCE}", "model:data",
             "llama_8b", 8, micro=4),
    language("b200:32x8", "outer=32, inner=8", "batch:outer+inner", "model:inner",
             "llama_8b", 256),
    language("gb200:1x64", "data=8, context=8", "batch:data, row:context, seq:context",
             "model:data", "llama_8b", 8, length=16_384),
    language("a100:256x8", "data=2048", "batch:data", "model:data", "llama_8b", 2048),
    language("a100:16x8", "data=16, tensor=8", f"batch:data, {SEQUENCE}", "model:data",
             "llama_70b", 16),
    language("h100:32x8", "data=32, tensor=8", f"batch:data, {SEQUENCE}", "model:data",
             "llama_70b", 32, micro=4),
    language("h200:64x8", "data=16, context=4, tensor=8",
             f"batch:data, {TENSOR}, row:context, seq:context", "model:data",
             "llama_70b", 16, length=8192),
    language("gb200:8x64", "data=64, tensor=8", f"batch:data, {TENSOR}", "model:data",
             "llama_70b", 64, remat="dots"),
    language("h100:256x8", "data=256, tensor=8", f"batch:data, {SEQUENCE}", "model:data",
             "llama_70b", 256, micro=2),
    language("h100:64x8", "data=64, tensor=8", f"batch:data, {SEQUENCE}", "model:data",
             "llama_405b", 64, micro=4),
    language("b200:256x8", "data=256, tensor=8", f"batch:data, {SEQUENCE}", "model:data",
             "llama_405b", 256, micro=4),
    language("gb200:32x64", "data=256, tensor=8", f"batch:data, {SEQUENCE}", "model:data",
             "llama_405b", 256, optimizer="adafactor"),
    # Pipelines with tensor parallelism.
    language("a100:8x8", "data=4, stage=4, tensor=4", f"batch:data, stage:stage, {TENSOR}", None,
             "llama_8b", 4, "_pipeline", micro=8, stages=4),
    language("h100:64x8", "data=8, stage=8, tensor=8", f"batch:data, stage:stage, {TENSOR}", None,
             "llama_70b", 8, "_pipeline", micro=16, stages=8),
    language("h100:256x8", "data=32, stage=8, tensor=8", f"batch:data, stage:stage, {TENSOR}",
             None, "llama_70b", 32, "_pipeline", micro=16, stages=8),
    # Mixtures.
    language("h100:8x8", "data=8, expert=8", "batch:data+expert, expert:expert", "model:data",
             "mixtral_8x7b", 64),
    language("b200:16x8", "data=4, expert=8, tensor=4",
             f"batch:data+expert, expert:expert, {SEQUENCE}", "model:data", "mixtral_8x7b", 32),
    language("gb200:32x64", "data=32, expert=8, tensor=8",
             f"batch:data+expert, expert:expert, {TENSOR}", "model:data", "mixtral_8x7b", 256),
    paper("moe_128e_12l", "a100:16x8"),
    paper("moe_128e_36l", "h100:16x8"),
    paper("moe_512e_36l", "h100:64x8"),
    paper("moe_2048e_12l", "a100:256x8"),
    paper("moe_2048e_36l", "h100:256x8"),
    paper("moe_2048e_60l_bf16_pieces", "gb200:32x64"),
    several_axes("dots_in_two_dimensions", "b200:256x8"),
    several_axes("fully_sharded", "h100:256x8"),
    several_axes("three_axes", "h100:64x8"),
    several_axes("accumulation", "a100:16x8"),
    dropless("h100:1x8", "all=8", "group:all", None, 16),
    dropless("a100:8x8", "data=8, expert=8", "group:data+expert, expert:expert", "model:data", 64),
    # Images, long rows, tables and others.
    unet("a100:1x8", "data=2, y=2, x=2"),
    unet("h100:8x8", "data=16, y=2, x=2"),
    unet("b200:64x8", "data=64, y=4, x=2"),
    unet("h100:256x8", "data=512, y=2, x=2"),
    ring("h100:1x8", 2, 4),
    ring("b200:8x8", 8, 8),
    ring("h100:64x8", 32, 16),
    searched("recommender", "tables", "a100:1x8"),
    searched("recommender", "tables", "h100:32x8"),
    searched("hybrid", "experts where the data is", "h100:8x8"),
    searched("hybrid", "data and tensor", "b200:16x8"),
    searched("contrastive", "data and tensor", "a100:8x8"),
    searched("translation", "data and tensor", "h100:16x8"),
    searched("policy", "fsdp", "h100:1x8"),
    searched("policy", "data and tensor", "gb200:1x64"),
    searched("graph", "nodes and edges", "h100:1x8"),
    # Steps that were tried last, when no rule was written any more.
    searched("recommender", "tables", "h200:64x8"),
    searched("recommender", "tables", "b300:256x8"),
    unet("h200:64x8", "data=128, y=2, x=2"),
    unet("gb200:8x72", "data=72, y=4, x=2"),
    dropless("h100:64x8", "data=64, expert=8", "group:data+expert, expert:expert", "model:data",
             64),
    dropless("b200:256x8", "data=256, expert=8", "group:data+expert, expert:expert",
             "model:data", 64),
    language("h200:64x8", "data=64, tensor=8", f"batch:data, {SEQUENCE}", "model:data",
             "llama_70b", 64, "_offload", offload=True),
    language("h100:256x8", "data=256, tensor=8", f"batch:data, {TENSOR}", "model:data",
             "llama_70b", 256, "_offload", offload=True, remat="dots"),
    language("h100:64x8", "data=64, tensor=8", f"batch:data, {TENSOR}", "model:data",
             "llama_70b", 64, "_reversible", reversible=True),
    language("gb200:8x72", "data=72, tensor=8", f"batch:data, {SEQUENCE}", "model:data",
             "llama_8b", 72, "_reversible", reversible=True),
    *(
        language(target, mesh, f"batch:data, stage:stage, {TENSOR}", None, model, batch,
                 f"_{schedule}", micro=micro, stages=stages, schedule=schedule)
        for schedule, target, mesh, model, batch, micro, stages in (
            ("1f1b", "h100:64x8", "data=16, stage=4, tensor=8", "llama_8b", 16, 8, 4),
            ("interleaved", "h200:64x8", "data=16, stage=4, tensor=8", "llama_8b", 16, 8, 4),
            ("zero_bubble", "b200:64x8", "data=8, stage=8, tensor=8", "llama_8b", 8, 16, 8),
            ("1f1b", "h100:256x8", "data=32, stage=8, tensor=8", "llama_70b", 32, 16, 8),
        )
    ),
    family("llama-3.1-70b", "h100:64x8", "data=64, tensor=8",
           f"batch:data, {MEGATRON}, row:tensor", "model:data", batch=64),
    family("qwen3-32b", "h200:64x8", "data=8, stage=8, tensor=8",
           f"batch:data, {MEGATRON}, layer:stage, stage:stage", batch=64, microbatches=8,
           schedule="zero_bubble"),
    family("qwen3-235b-a22b", "b200:256x8", "data=128, expert=16",
           "batch:data+expert, expert:expert", "model:data", batch=2048),
    family("gemma-3-27b", "a100:64x8", "data=64, tensor=8", f"batch:data, {MEGATRON}",
           "model:data", batch=64),
    family("deepseek-v3", "gb200:8x72", "data=36, expert=16",
           "batch:data+expert, expert:expert", "model:data", batch=576),
]  # fmt: skip
CASES = {case.name: case for case in _CASES}
