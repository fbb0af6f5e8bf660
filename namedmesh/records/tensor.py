"""TensorRecord: one tensor of a plan, as tables, files and comparisons have it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from namedmesh.errors.source import Source
from namedmesh.records.collective import function_of

UNKNOWN = Source("", 0)


@dataclass(frozen=True)
class TensorRecord:
    """One tensor of a plan.

    Records that differ in nothing but phase and scope are equal: tables show one of them.
    """

    tensor: str  # its name
    place: str  # dtype, dimensions and their mesh axes: float32[batch=8/data, model=4]
    bytes_per_device: int
    padding: float = 0.0  # the share of all devices' elements that is padding
    source: Source = UNKNOWN
    phase: str = field(default="", compare=False)
    scope: str = field(default="", compare=False)

    @property
    def function(self) -> str:
        """The function that its line is in."""
        return function_of(self.source)


def shape_of(place: str) -> str:
    """Return a place without its axes: the dtype, and the dimensions with their sizes."""
    return re.sub(r"/[^,\]]*", "", place.partition(" parts/")[0])
