"""Inputs that go into a step as they are, seen at a glance: those of nearly every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from namedmesh.artifacts.description import TensorSpec, dtype_of
from namedmesh.dims.mesh import Mesh
from namedmesh.runtime.padding import unpadded_sizes


class ReadyInputs:
    """What fits a program's inputs without being laid out first.

    That is arrays in place already, and numpy arrays and numbers, which jax lays out in the call.
    Everything else, and everything wrong, is left to `put_arrays`.
    """

    def __init__(
        self,
        specs: Mapping[str, TensorSpec],
        places: Mapping[str, NamedSharding],
        mesh: Mesh,
        updated: Sequence[TensorSpec],
    ):
        taken = {(spec.padded(mesh), spec.dtype) for spec in updated}
        self._inputs = [
            (
                name,
                spec.sizes,
                spec.padded(mesh),
                dtype_of(spec.dtype),
                places[name],
                (spec.padded(mesh), spec.dtype) in taken,  # may be the memory of a variable
            )
            for name, spec in specs.items()
        ]
        # For several processes, what is not on devices yet is laid out shard by shard.
        self._alone = all(place.is_fully_addressable for place in places.values())

    def take(self, values: Mapping[str, Any]) -> list[Any] | None:
        """The operands for a call, or None where something is to be laid out or is wrong."""
        if len(values) != len(self._inputs):
            return None
        operands = []
        for name, sizes, padded, dtype, place, risky in self._inputs:
            value = values.get(name)
            if not self._alone and not isinstance(value, jax.Array):
                return None
            if type(value) is np.ndarray:
                if value.shape != sizes or sizes != padded or value.dtype != dtype:
                    return None
                operands.append(value.copy())
            elif type(value) is int and not sizes and dtype == np.int32:
                if not -(2**31) <= value < 2**31:
                    return None
                operands.append(np.asarray(value, dtype))
            elif isinstance(value, jax.Array) and not risky:
                if (
                    value.shape != padded
                    or value.dtype != dtype
                    or value.sharding != place
                    or (sizes != padded and unpadded_sizes(value) != sizes)
                    or value.is_deleted()
                ):
                    return None
                operands.append(value)
            else:
                return None
        return operands
