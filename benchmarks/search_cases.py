"""The cases of searches: three models on 8 to 2,048 devices, and layouts by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import namedmesh as nm
from benchmarks.llama import Llama
from examples.unet.model import UNet, train_program
from namedmesh.layers import Adafactor, Adam, Transformer, batch_of, config

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

    inner = min(8, devices // 2)
    both = f"data={devices // inner}, tensor={inner}"
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

    inner = min(8, devices // 2)
    both = f"outer={devices // inner}, inner={inner}"
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
    inner = min(4, devices // 2)
    both = f"data={devices // inner}, space={inner}"
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


MODELS: dict[str, Callable[[int], Case]] = {"llama": llama, "mixture": mixture, "unet": unet}
