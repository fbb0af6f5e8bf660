"""The settings of a run: the model's sizes, its training, its mesh and its layout."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import NamedTuple

import namedmesh as nm
from examples.llm.adapters import Tuning
from examples.llm.architecture import Architecture
from namedmesh.layers import Float8, Weights


class Placement(NamedTuple):
    """A mesh, the dimensions that lie on its axes, and those of weights between steps."""

    mesh: str
    layout: str
    params: str = ""


_MEGATRON = "heads:tensor, hidden:tensor, expert_hidden:tensor, shared_hidden:tensor, vocab:tensor"
_CONTEXT = "seq:context, seq_memory:context, block:context"
LAYOUTS = {
    "one": Placement("one=1", ""),
    "data": Placement("data=2", "batch:data"),
    "fsdp": Placement("data=2", "batch:data", "model:data"),
    "megatron": Placement("tensor=2", _MEGATRON),
    "megatron+sequence": Placement("tensor=2", f"{_MEGATRON}, row:tensor"),
    "fsdp+megatron": Placement(
        "data=2, tensor=2", f"batch:data, {_MEGATRON}, row:tensor", "model:data"
    ),
    "expert": Placement("all=2", "batch:all, expert:all"),
    "folded": Placement(  # attention on the axes of fsdp+megatron, experts on all of them
        "data=2, tensor=2",
        "batch:data, heads:tensor, hidden:tensor, vocab:tensor, row:tensor, routed:data+tensor, "
        "expert:data+tensor",
        "model:data",
    ),
    "context": Placement("context=2", _CONTEXT),
    "pipeline": Placement("stage=2", "layer:stage, stage:stage"),
}


@dataclass(frozen=True)
class Settings:
    """Every setting of a run.

    Attributes:
        architecture: What the model is made of.
        capacity_factor: The room of an expert, as a multiple of its even share; 0 drops no token.
        batch, length: The rows of a batch, and the tokens of a row.
        steps, learning_rate, warmup: How the model is trained.
        seed: The seed of the weights and of the batches.
        microbatches, schedule: Of the pipeline, where the layout maps layers to an axis.
        remat: What the backward pass computes again; see `nm.scan`.
        offload: Whether what layers store for the backward pass waits in the memory of the host.
        loss_chunks: In how many chunks of a row's tokens logits and loss are made, one at a time.
        unroll: Whether layers are written out instead of in a loop, out of whose stack a GPU would
            copy the weights before it reads them; compiling takes longer.
        dtype: What activations are computed in.
        products: How layers multiply by their weights, a name in `PRODUCTS`; "" for `dtype`.
        cache_shards: The shards of the positions of a cache, whose dimension is `position_shard`.
        mesh, layout: The devices, and the names in `LAYOUTS` or texts that a layout is made of.
        params: Where weights are between steps, if the layout is a text: `model:data`, or
            `model:data, prefetch` to gather a layer ahead.
        tuning: Frozen weights and adapters, or None to train all weights.
    """

    architecture: Architecture = field(default_factory=Architecture)
    capacity_factor: float = 2.5
    batch: int = 16
    length: int = 128
    steps: int = 800
    learning_rate: float = 4e-3
    warmup: int = 50
    seed: int = 0
    microbatches: int = 4
    schedule: str = "1f1b"
    remat: str = "none"
    offload: bool = False
    loss_chunks: int = 1
    unroll: bool = False
    dtype: str = "float32"
    products: str = ""
    cache_shards: int = 1
    mesh: str = ""
    layout: str = "data"
    params: str = ""
    tuning: Tuning | None = None

    @property
    def devices(self) -> tuple[nm.Mesh, nm.Layout]:
        """The mesh and the layout."""
        mesh, layout, _ = LAYOUTS.get(self.layout, Placement("", self.layout))
        if not (self.mesh or mesh):
            raise nm.NamedMeshError(
                f"--layout {self.layout!r} is a text, which needs a mesh, and not a name",
                fix=f"add e.g. --mesh data=2, or choose one of {', '.join(LAYOUTS)}",
            )
        return nm.Mesh.parse(self.mesh or mesh), nm.Layout(layout)

    @property
    def at_rest(self) -> nm.Layout | None:
        """The layout of weights between steps, if it is another."""
        params = self.params or LAYOUTS.get(self.layout, Placement("", "")).params
        return nm.Layout(params) if params else None

    @property
    def scattered(self) -> bool:
        """Whether rows are sharded between the layers' parts, along `row` (sequence parallel)."""
        mesh, layout = self.devices
        return mesh.size(layout.axes("row")) > 1

    @property
    def folded(self) -> bool:
        """Whether rows are sharded otherwise for experts, along `routed` (parallel folding)."""
        return bool(self.devices[1].axes("routed"))

    @property
    def blocks(self) -> int:
        """The number of devices that a row is sharded over: the blocks of ring attention."""
        mesh, layout = self.devices
        return mesh.size(layout.axes("block"))

    @property
    def stages(self) -> int:
        """The number of devices that the layers are sharded over: the stages of a pipeline."""
        mesh, layout = self.devices
        return mesh.size(layout.axes("layer"))

    def but(self, **changes: object) -> Settings:
        """Return the same settings with changes."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def to_json(self) -> str:
        """Format the settings for a file."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Read the settings from the text of a file."""
        values = json.loads(text)
        tuning = values.get("tuning")
        if tuning:
            tuning = Tuning(**{**tuning, "targets": tuple(tuning["targets"])})
        shape = Architecture.from_dict(values["architecture"])
        return cls(**{**values, "architecture": shape, "tuning": tuning})


# How the products of layers with weights are multiplied, by name; attention's stay as they are.
PRODUCTS: dict[str, Weights] = {
    "": Weights(),
    "float8": Float8(),
    "float8-delayed": Float8(history=16),
    "float8-blocks": Float8(block=128),
    "float8-sent": Float8(send=True),
}
PRESETS = {
    "tiny": Settings(),
    "small": Settings(
        Architecture(layers=6, model=256, hidden=704, heads=4, key=32),
        length=256, steps=4000, learning_rate=2e-3,
    ),
}  # fmt: skip
