"""The settings of a run: the model's sizes, its training, its mesh and its layout."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

import namedmesh as nm

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
        layers, model, hidden: The sizes of the model.
        heads, group, key: Heads of keys and values, queries that share one, and their size.
        experts: The experts of each layer, of which a byte goes to two; 0 for a dense model.
        capacity_factor: The room of an expert, as a multiple of its even share.
        tied: Whether one table both embeds bytes and scores them.
        batch, length: The rows of a batch, and the bytes of a row.
        steps, learning_rate, warmup: How the model is trained.
        seed: The seed of the weights and of the batches.
        microbatches, schedule: Of the pipeline, where the layout maps layers to an axis.
        mesh, layout: The devices, and the names in `LAYOUTS` or texts that a layout is made of.
    """

    layers: int = 3
    model: int = 96
    hidden: int = 256
    heads: int = 2
    group: int = 2
    key: int = 24
    experts: int = 0
    capacity_factor: float = 2.5
    tied: bool = True
    batch: int = 16
    length: int = 128
    steps: int = 800
    learning_rate: float = 4e-3
    warmup: int = 50
    seed: int = 0
    microbatches: int = 4
    schedule: str = "1f1b"
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


PRESETS = {
    "tiny": Settings(),
    "small": Settings(
        layers=6, model=256, hidden=704, heads=4, key=32, length=256, steps=4000, learning_rate=2e-3
    ),
}
