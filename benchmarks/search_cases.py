"""The cases of searches: twelve models on 8 to 2,048 devices, and layouts by hand."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import namedmesh as nm
from benchmarks.llama import Llama
from benchmarks.long_sequence_cases import trace_attention, trace_pipeline
from benchmarks.search_models import Contrastive, Grpo, Hybrid, Recommender, trace_graph
from examples.unet.model import UNet, train_program
from namedmesh.layers import Adafactor, Adam, Transformer, batch_of, config
from namedmesh.search.candidates import Candidate
from namedmesh.search.space import factorise

DEVICES = (8, 64, 512, 2048)


@dataclass(frozen=True)
class Hand:
    """A layout that people write: a mesh and a layout."""

    mesh: str
    layout: str
    params: str | None = None


@dataclass(frozen=True)
class Case:
    """A model on so many devices.

    Attributes:
        make: Makes the program of the choices.
        hands: Layouts by hand, by their names.
        choices: What the search may choose besides the layout.
    """

    make: Callable[..., nm.Program]
    hands: dict[str, Hand]
    choices: dict[str, Any] = field(default_factory=dict)


def cut(devices: int, outer: str, inner: str, most: int = 8) -> str:
    """Return the mesh of two axes in which the inner one has up to so many devices."""
    size = min(most, devices // 2)
    return f"{outer}={devices // size}, {inner}={size}"


def llama(devices: int, layers: int = 32, length: int = 2048) -> Case:
    """Return a dense stack of 5.6 billion weights, a row of 2,048 tokens for each device."""
    model = Llama.of(devices, length, 4096, 11_264, 16, 128, "bfloat16")
    L = nm.Dimension("layer", layers)

    def make(remat: str) -> nm.Program:
        def train(x: nm.Tensor) -> nm.Tensor:
            y, _ = nm.scan(lambda x, _: (model.layer(x), None), x, over=L, stack=True, remat=remat)
            loss = nm.mean(nm.square(nm.cast(y, "float32")))
            Adam(1e-4).apply(nm.grad(loss))
            return loss

        return nm.trace(train, x=nm.spec([model.B, model.ROW, model.M], "bfloat16"))

    both = cut(devices, "data", "tensor")
    megatron = "batch:data, head:tensor, hidden:tensor"
    rest = "head:tensor, hidden:tensor, model:data"
    hands = {
        "data": Hand(f"data={devices}", "batch:data"),
        "fsdp": Hand(f"data={devices}", "batch:data", "model:data"),
        "megatron": Hand(both, megatron),
        "megatron, sequence": Hand(both, f"{megatron}, row:tensor"),
        "megatron, fsdp": Hand(both, megatron, rest),
        "megatron, sequence, fsdp": Hand(both, f"{megatron}, row:tensor", rest),
    }
    return Case(make, hands, {"remat": ["none", "full"]})


def mixture(devices: int, layers: int = 36) -> Case:
    """Return the paper's mixture, an expert for each device, 2,048 tokens for each."""
    shape = config("moe_2048e_12l").but(experts=devices, layers=layers)
    model = Transformer(shape, group=devices, source=1024, target=1024)

    def make() -> nm.Program:
        def train(batch: dict[str, Any], seed: Any) -> nm.Tensor:
            loss, metrics = model.loss(batch_of(batch), nm.random.key_from_seed(seed))
            Adafactor(unfactored=[model.E], layer_by_layer=True).apply(nm.grad(loss))
            return metrics["loss"]

        return nm.trace(train, batch=model.specs(), seed=nm.spec([], "int32"))

    both = cut(devices, "outer", "inner")
    gshard = "group:outer+inner, expert:outer+inner"
    tensor = "heads:inner, hidden:inner, source_vocab:inner, target_vocab:inner"
    return Case(
        make,
        {
            "gshard": Hand(f"all={devices}", "group:all, expert:all"),
            "gshard, fsdp": Hand(both, gshard, "expert:outer+inner, model:inner"),
            "gshard, megatron": Hand(both, f"group:outer, expert:outer, {tensor}"),
            "fsdp": Hand(f"all={devices}", "group:all", "model:all"),
        },
    )


def unet(devices: int) -> Case:
    """Trace a U-Net of 124 million weights, an image of 512 by 512 for each device."""
    model = UNet(min(devices, 512), 512, 512, 64, 5, dtype="bfloat16")
    both = cut(devices, "data", "space", 4)
    hands = {
        "data and rows": Hand(both, "batch:data, rows:space"),
        "data and rows, fsdp": Hand(both, "batch:data, rows:space", "features:data"),
        "data and channels": Hand(both, "batch:data, hidden:space"),
    }
    if devices <= 512:
        hands |= {
            "data": Hand(f"data={devices}", "batch:data"),
            "fsdp": Hand(f"data={devices}", "batch:data", "features:data"),
        }
    return Case(lambda: train_program(model, 1e-3, 1000), hands)


def recommender(devices: int) -> Case:
    """Return two towers over tables of 17 million rows, 512 examples for each device."""
    rows = {"user": 10_000_001, "item": 6_000_000, "category": 5_003, "country": 253, "age": 100}
    model = Recommender(512 * devices, rows)
    tables = "user:all, item:all, category:all"
    hands = {
        "data": Hand(f"all={devices}", "batch:all"),
        "tables": Hand(f"all={devices}", f"batch:all, {tables}"),
        "columns": Hand(f"all={devices}", "batch:all, width:all"),
        "tables alone": Hand(f"all={devices}", tables),
    }
    return Case(model.trace, hands)


def graph(devices: int) -> Case:
    """Return a graph network on 100,003 nodes and a million edges."""
    hands = {
        "edges": Hand(f"all={devices}", "edge:all"),
        "nodes and edges": Hand(f"all={devices}", "node:all, edge:all"),
        "features": Hand(f"all={devices}", "feature:all, message:all"),
    }
    return Case(lambda: trace_graph(100_003, 1_000_000, 256), hands)


def hybrid(devices: int) -> Case:
    """Return layers of recurrence, attention and 16 experts, a row of 2,048 tokens a device."""
    outer = max(devices // 16, 2)
    both = f"x={outer}, y={devices // outer}"
    hands = {
        "data": Hand(f"x={devices}", "batch:x"),
        "data and experts": Hand(both, "batch:x, expert:y"),
        "experts where the data is": Hand(both, "batch:x+y, expert:y"),
        "data and tensor": Hand(both, "batch:x, heads:y, width:y, expert:y, vocab:y"),
    }
    return Case(Hybrid(devices).trace, hands)


def grpo(devices: int) -> Grpo:
    """Return GRPO of a model of 0.1 billion weights, four prompts of eight samples a device."""
    return Grpo(4 * devices)


def grpo_hands(devices: int) -> dict[str, Hand]:
    """Return the layouts by hand that suit both programs of GRPO."""
    both = cut(devices, "x", "y")
    return {
        "data": Hand(f"x={devices}", "batch:x"),
        "data and samples": Hand(both, "batch:x, sample:y"),
        "data and tensor": Hand(both, "batch:x, heads:y, hidden:y, vocab:y"),
    }


def rollout(devices: int) -> Case:
    """Return the rollout of GRPO: prompts are read and samples drawn token by token."""
    return Case(grpo(devices).trace_rollout, grpo_hands(devices))


def policy(devices: int) -> Case:
    """Return the train step of GRPO."""
    hands = grpo_hands(devices) | {"fsdp": Hand(f"x={devices}", "batch:x", "model:x")}
    return Case(grpo(devices).trace_train, hands)


def contrastive(devices: int) -> Case:
    """Return encoders of images and texts, 32 pairs for each device."""
    both = cut(devices, "x", "y", 4)
    tensor = "images_heads:y, images_hidden:y, texts_heads:y, texts_hidden:y, vocab:y"
    hands = {
        "data": Hand(f"x={devices}", "batch:x"),
        "fsdp": Hand(f"x={devices}", "batch:x", "image:x, text:x"),
        "data and tensor": Hand(both, f"batch:x, {tensor}"),
    }
    return Case(Contrastive(32 * devices).trace, hands)


def long_rows(devices: int) -> Case:
    """Return a language model on one row of 4,096 bytes for each of up to 16 devices."""
    batch, seq = max(devices // 16, 1), nm.Dimension("seq", 4096 * min(devices, 16))
    inner = min(8, devices)
    mesh = f"x={devices // inner}, y={inner}" if devices > inner else f"y={inner}"
    rows = "batch:x, " if devices > inner else ""
    hands = {
        "heads": Hand(mesh, f"{rows}heads:y, hidden:y"),
        "positions": Hand(mesh, f"{rows}seq:y"),
    }
    return Case(lambda: trace_attention("plain", seq, nm.Dimension("batch", batch)), hands)


def pipeline(devices: int) -> Case:
    """Return a pipeline of 8 stages of 4 layers, 16 microbatches of two rows a device."""
    stages, layers, batch = nm.dims(f"stage=8 layer=4 batch={2 * max(devices // 8, 1)}")
    outer = devices // 8
    mesh = f"x={outer}, y=8" if outer > 1 else "y=8"
    rows = "batch:x, " if outer > 1 else ""
    hands = {
        "stages": Hand(mesh, f"{rows}stage:y"),
        "tensor": Hand(mesh, f"{rows}heads:y, hidden:y"),
    }
    return Case(lambda: trace_pipeline(stages, layers, batch), hands)


def translation(devices: int) -> Case:
    """Return a dense encoder and decoder of 12 layers, 2,048 tokens for each device."""
    model = Transformer(config("moe_2048e_12l").but(experts=0), devices, 1024, 1024)

    def make() -> nm.Program:
        def train(batch: dict[str, Any], seed: Any) -> nm.Tensor:
            loss, metrics = model.loss(batch_of(batch), nm.random.key_from_seed(seed))
            Adafactor(layer_by_layer=True).apply(nm.grad(loss))
            return metrics["loss"]

        return nm.trace(train, batch=model.specs(), seed=nm.spec([], "int32"))

    both = cut(devices, "x", "y")
    tensor = "heads:y, hidden:y, source_vocab:y, target_vocab:y"
    hands = {
        "data": Hand(f"x={devices}", "group:x"),
        "fsdp": Hand(f"x={devices}", "group:x", "model:x"),
        "data and tensor": Hand(both, f"group:x, {tensor}"),
    }
    return Case(make, hands)


MODELS: dict[str, Callable[[int], Case]] = {
    "llama": llama,
    "mixture": mixture,
    "unet": unet,
    "recommender": recommender,
    "graph": graph,
    "hybrid": hybrid,
    "rollout": rollout,
    "policy": policy,
    "contrastive": contrastive,
    "long_rows": long_rows,
    "pipeline": pipeline,
    "translation": translation,
}


def draw_layout(program: nm.Program, devices: int, rng: random.Random) -> Candidate:
    """Draw a mesh of up to three axes, a layout of up to four dimensions, and perhaps params."""
    meshes = [factorise(devices, count) for count in (1, 2, 3)]
    sizes = rng.choice(rng.choice([some for some in meshes if some]))
    mesh = nm.Mesh(None, **dict(zip("abc", sizes, strict=False)))

    def draw(dims: dict[str, list[int]]) -> nm.Layout:
        names = [name for name, several in dims.items() if several[-1] > 1]
        rules = {}
        for name in rng.sample(names, min(rng.randint(1, 4), len(names))):
            rules[name] = rng.sample(list(mesh.axes), rng.choice([1, 1, min(2, len(mesh.axes))]))
        return nm.Layout(rules)

    layout, at_rest = draw(program.dims), draw(program.resting_dims)
    return Candidate(0, mesh, layout, at_rest if rng.random() < 0.4 else None)
