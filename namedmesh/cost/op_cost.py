"""What one op and one collective of a plan take."""

from __future__ import annotations

from dataclasses import dataclass

from namedmesh.errors.source import Source
from namedmesh.ir.op import Op
from namedmesh.records.collective import Collective


@dataclass(frozen=True, eq=False)
class OpCost:
    """What one op takes on one device, with the ops that run within it.

    Attributes:
        op: The op.
        name: What the plan calls it.
        phase: forward, backward or update.
        scope: The scopes it was made in.
        source: The user's line.
        times: How often it runs in one step.
        flops: Floating point operations, each time.
        bytes: What it reads and writes in memory, each time.
        seconds: How long it takes, each time.
        bound: What that is: "compute" or "memory".
    """

    op: Op
    name: str
    phase: str
    scope: str
    source: Source
    times: int
    flops: float
    bytes: float
    seconds: float
    bound: str

    @property
    def total_seconds(self) -> float:
        """How long it takes in one step."""
        return self.seconds * self.times


@dataclass(frozen=True, eq=False)
class CollectiveCost:
    """How long a collective takes.

    Attributes:
        collective: The collective, as planned.
        seconds: How long it takes, each time.
    """

    collective: Collective
    seconds: float

    @property
    def total_seconds(self) -> float:
        """How long it takes in one step."""
        return self.seconds * self.collective.times
