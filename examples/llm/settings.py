"""The settings of a run: the model's sizes, its training, its mesh and its layout."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field

import namedmesh as nm
from examples.llm.architecture import Architecture

# A mesh, and which dimensions lie on its axes.
LAYOUTS = {
    "one": ("one=1", ""),
    "data": ("data=2", "batch:data"),
    "tensor": ("tensor=2", "heads:tensor, hidden:tensor, vocab:tensor"),
    "expert": ("all=2", "batch:all, expert:all"),
    "pipeline": ("stage=2", "layer:stage, stage:stage"),
    "context": ("context=2", "seq:context, seq_memory:context, block:context"),
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
        dtype: What activations are computed in.
        cache_shards: The shards of the positions of a cache, whose dimension is `position_shard`.
        mesh, layout: The devices, and the names in `LAYOUTS` or texts that a layout is made of.
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
    dtype: str = "float32"
    cache_shards: int = 1
    mesh: str = ""
    layout: str = "data"

    @property
    def devices(self) -> tuple[nm.Mesh, nm.Layout]:
        """The mesh and the layout."""
        mesh, layout = LAYOUTS.get(self.layout, ("", self.layout))
        if not (self.mesh or mesh):
            raise nm.NamedMeshError(
                f"--layout {self.layout!r} needs a mesh",
                fix=f"add e.g. --mesh data=2, or choose one of {', '.join(LAYOUTS)}",
            )
        return nm.Mesh.parse(self.mesh or mesh), nm.Layout(layout)

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
        return cls(**{**values, "architecture": Architecture.from_dict(values["architecture"])})


PRESETS = {
    "tiny": Settings(),
    "small": Settings(
        Architecture(layers=6, model=256, hidden=704, heads=4, key=32),
        length=256, steps=4000, learning_rate=2e-3,
    ),
}  # fmt: skip
