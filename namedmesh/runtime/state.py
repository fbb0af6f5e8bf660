"""State: the variables of a program on their devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from namedmesh.dims.errors import NamedMeshError, did_you_mean
from namedmesh.runtime.artifact import TensorSpec


class State(Mapping[str, Any]):
    """Variables by name, sharded as the program wants them. A step takes one and gives a new one.

    state["w"] is a jax array, or a numpy array where padding at rest had to be cut off.
    """

    def __init__(self, arrays: dict[str, jax.Array], specs: Mapping[str, TensorSpec]):
        self.arrays, self.specs = arrays, specs

    def __getitem__(self, name: str) -> Any:
        if name not in self.arrays:
            raise NamedMeshError(f"the state has no variable {name!r}", fix=did_you_mean(name, self.arrays))
        array, sizes = self.arrays[name], self.specs[name].sizes
        if array.shape == sizes:
            return array
        return np.asarray(array)[tuple(slice(0, size) for size in sizes)]

    def __contains__(self, name: object) -> bool:
        return name in self.arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    def __repr__(self) -> str:
        return "State(" + ", ".join(f"{name}: {self.specs[name].text}" for name in self.arrays) + ")"
