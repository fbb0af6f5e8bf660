"""Random meshes and layouts, each made from a seed alone."""

from __future__ import annotations

import random
from collections.abc import Sequence

import namedmesh as nm
from benchmarks.coverage.entry import BATCH, OWN, Entry
from tests.programs import MESHES


def draw_layout(rng: random.Random, entry: Entry, column: str) -> tuple[nm.Mesh, nm.Layout]:
    """Draw a mesh of one to three axes, and a layout that splits what the column is about.

    Every axis goes to one dimension or to none; one axis at least goes to a dimension of the
    batch, of the op's own, or to any, as the column asks.
    """
    own, batch = list(entry.own), entry.batch
    needed, allowed = {
        BATCH: (batch, batch),
        OWN: (own, [*own, *batch]),
    }.get(column, ([*own, *batch], [*own, *batch]))
    sizes = rng.choice(MESHES)
    axes = [axis for axis, size in sizes.items() if size > 1]
    rng.shuffle(axes)
    mapping = {rng.choice(needed).name: [axes[0]]}
    for axis in axes[1:]:
        holder = rng.choice([*allowed, None])
        if holder is not None:
            mapping.setdefault(holder.name, []).append(axis)
    return nm.Mesh.parse(", ".join(f"{axis}={size}" for axis, size in sizes.items())), nm.Layout(
        mapping
    )


def spread(columns: Sequence[str], layouts: int) -> list[str]:
    """Shares layouts out between columns as evenly as they go, one at least to each."""
    return [columns[i % len(columns)] for i in range(max(layouts, len(columns)))]
