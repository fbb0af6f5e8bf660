"""Collective: one communication of a planned program."""

from __future__ import annotations

from dataclasses import dataclass

from namedmesh.dims.source import Source


@dataclass(frozen=True)
class Collective:
    """One communication that a plan has, and that an Artifact's manifest records.

    Attributes:
        kind: `AllReduce`, `AllGather`, `ReduceScatter`, `AllToAll` or `CollectivePermute`.
        axes: The mesh axes along which devices communicate.
        elements: What one device sends or receives each time, whichever is more.
        dtype: The dtype of the elements.
        bytes: The same in bytes.
        times: How often it runs in one step.
        tensor: The name of the tensor that is communicated.
        op: The name that the plan has for the op it belongs to.
        phase: `forward`, `backward` or `update`.
        source: The user's line that asks for it.
    """

    kind: str
    axes: tuple[str, ...]
    elements: int
    dtype: str
    bytes: int
    times: int
    tensor: str
    op: str
    phase: str
    source: Source

    @property
    def total_bytes(self) -> int:
        """Bytes per device over all its executions in one step."""
        return self.bytes * self.times
