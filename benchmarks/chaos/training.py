"""One small program to train in several places, with batches that follow from a number."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SAVE_EVERY, COPY_EVERY, CHECK_EVERY = 5, 3, 5  # what is saved was compared before
ROWS, MODEL, HIDDEN, WIDTH = 16, 12, 24, 16384


@dataclass(frozen=True)
class Place:
    """A mesh and layouts, and how many processes share its devices."""

    mesh: str
    layout: str
    params: str
    processes: int
    shrinks: bool = False  # whether fewer processes go on, each with its device

    @property
    def devices(self) -> int:
        """Return the number of devices a process has."""
        sizes = [int(axis.partition("=")[2]) for axis in self.mesh.split()]
        return int(np.prod(sizes)) // self.processes

    @property
    def artifact(self) -> str:
        """The name of the Artifact's file, the same for any number of processes."""
        letters = f"{self.mesh} {self.layout} {self.params}"
        name = "".join(one if one.isalnum() else "-" for one in letters) + ".nmesh"
        return name.replace(str(self.processes), "{}") if self.shrinks else name

    def __str__(self) -> str:
        at_rest = f", at rest {self.params}" if self.params else ""
        return f"{self.processes}x{self.devices} ({self.mesh}; {self.layout}{at_rest})"


PLACES = (
    Place("data=4", "batch:data", "", 2),
    Place("data=4", "batch:data", "", 4),
    Place("data=4", "batch:data", "", 1),
    Place("data=2 tensor=2", "batch:data, hidden:tensor", "", 2),
    Place("data=2 tensor=2", "batch:data, hidden:tensor", "", 4),
    Place("data=4", "batch:data", "hidden:data", 4),
    Place("data=4", "batch:data", "hidden:data", 2),
    Place("data=2", "batch:data", "", 2),
    Place("data=3", "hidden:data", "", 3),
)


FEWER = Place("data=4", "batch:data", "", 4, shrinks=True)
LEFT = tuple(Place(f"data={count}", "batch:data", "", count) for count in (2, 3, 4))  # of FEWER


def export_places(folder: pathlib.Path, places: Sequence[Place] = (*PLACES, *LEFT)) -> None:
    """Write the Artifacts of all places that are not in a folder; needs TensorFlow.

    The weights decay, so that differences in rounding die out and runs can be compared. The order
    of the batches is kept exactly, in a number that no two orders share. `history` makes the files
    of a checkpoint large enough to be damaged and cut off.
    """
    import namedmesh as nm

    B, M, H, W = nm.dims(f"batch={ROWS} model={MODEL} hidden={HIDDEN} width={WIDTH}")

    def train(x: nm.Tensor, y: nm.Tensor, number: nm.Tensor) -> dict[str, nm.Tensor]:
        seen = nm.state("seen", [], dtype="int32")
        nm.assign(seen, seen * 31 + number)
        history = nm.state("history", [H, W])
        nm.assign(history, history * 0.5 + nm.cast(number, "float32"))
        wi, wo = nm.param("wi", [M, H]), nm.param("wo", [H, M])
        error = nm.einsum([nm.tanh(nm.einsum([x, wi], [B, H])), wo], [B, M]) - y
        loss = nm.mean(nm.square(error))
        for name, gradient in nm.grad(loss).items():
            weight = nm.parameters()[name]
            slot = nm.state(f"momentum/{name}", weight.shape, of=weight)
            momentum = slot * 0.5 + gradient
            nm.assign(slot, momentum)
            nm.assign(weight, weight * 0.98 - momentum * 0.2)
        return {"loss": loss}

    folder.mkdir(parents=True, exist_ok=True)
    for place in places:
        path = folder / place.artifact
        if not path.exists():
            batch = {"x": nm.spec([B, M]), "y": nm.spec([B, M]), "number": nm.spec([], "int32")}
            program = nm.trace(train, **batch)
            mesh, params = nm.Mesh.parse(place.mesh), place.params or None
            nm.export(program, mesh, place.layout, params=params).save(path)


def make_batch(number: int) -> dict[str, Any]:
    """Return the whole batch of a number, whatever the processes."""
    rng = np.random.default_rng(number)
    x = rng.normal(size=(ROWS, MODEL)).astype(np.float32)
    return {"x": x, "y": np.roll(np.tanh(x), 1, axis=1), "number": np.int32(number)}
