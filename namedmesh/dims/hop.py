"""Hop: senders and receivers when every device of some axes sends to one other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError

_TEXT = re.compile(r"(\d+)-(\d+) from (-?\d+)( mirrored)?( cyclic)? along (\w+(?:\+\w+)*)")
_LIST = re.compile(r"from (-?\d+(?:,-?\d+)*) along (\w+(?:\+\w+)*)")


def list_groups(axes: Sequence[str], mesh: Mesh) -> np.ndarray:
    """List the devices that differ along some axes alone."""
    names = list(mesh.axes)
    others = [names.index(name) for name in names if name not in axes]
    order = [*others, *(names.index(name) for name in axes)]
    grid = np.arange(mesh.devices).reshape(tuple(mesh.axes.values()))
    return grid.transpose(order).reshape(-1, mesh.size(axes))


@dataclass(frozen=True)
class Hop:
    """One permutation of devices, by their position along the axes of a dimension."""

    # The device at position p, from first to last, receives from the one at p + by.
    by: int = 0
    first: int = 0
    last: int = 0
    mirrored: bool = False  # from by - p instead
    cyclic: bool = False  # the last position has the first as its neighbour
    axes: tuple[str, ...] = ()  # mesh axes that number the positions, in order
    sources: tuple[int, ...] = ()  # in place of all that: the sender of every position, or -1

    def __str__(self) -> str:
        if self.sources:
            return f"from {','.join(map(str, self.sources))} along {'+'.join(self.axes)}"
        words = " mirrored" * self.mirrored + " cyclic" * self.cyclic
        return f"{self.first}-{self.last} from {self.by}{words} along {'+'.join(self.axes)}"

    @property
    def direction(self) -> str:
        """The direction that a device receives from, in a word."""
        if self.sources:
            return "as listed"
        if self.mirrored:
            return "from the other end"
        return f"from {self.by:+d}" + " cyclic" * self.cyclic

    @classmethod
    def read(cls, text: str) -> Hop:
        """Read what `str` makes of a hop."""
        listed = _LIST.fullmatch(text)
        if listed:
            sources = tuple(map(int, listed[1].split(",")))
            return cls(axes=tuple(listed[2].split("+")), sources=sources)
        match = _TEXT.fullmatch(text)
        if not match:
            raise NamedMeshError(
                f"{text!r} is not a hop", fix="write e.g. '1-3 from -1 along space'"
            )
        first, last, by, mirrored, cyclic, axes = match.groups()
        named = tuple(axes.split("+"))
        return cls(int(by), int(first), int(last), bool(mirrored), bool(cyclic), named)

    def pairs(self, mesh: Mesh) -> list[tuple[int, int]]:
        """List sender and receiver of everything that is sent."""
        rows, count = list_groups(self.axes, mesh), mesh.size(self.axes)
        if self.sources:
            receivers, senders = np.arange(count), np.array(self.sources)
        else:
            receivers = np.arange(self.first, min(self.last, count - 1) + 1)
            senders = self.by + (-receivers if self.mirrored else receivers)
        if self.cyclic:
            senders %= count
        there = (senders >= 0) & (senders < count)
        sent = rows[:, senders[there]].ravel().tolist(), rows[:, receivers[there]].ravel().tolist()
        return list(zip(*sent, strict=True))
