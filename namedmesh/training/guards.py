"""Guards of a run: losses that diverge, and steps repeated to find devices that compute wrongly."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from namedmesh.errors.errors import NamedMeshError
from namedmesh.processes.processes import current_processes
from namedmesh.runtime import Artifact, Executable, State

WINDOW = 100  # the steps whose median counts
LEAST = 20  # steps before there is a median
_SAME = "the same bits"


class UnsoundState(NamedMeshError):
    """The error for a state that is not to go on from, nor are its copies in memory."""


class Divergence:
    """A limit on a loss: a multiple of its median over the last steps."""

    def __init__(self, factor: float):
        if not factor > 1.0:
            raise NamedMeshError(
                f"divergence={factor!r}",
                fix="give how many times its median a loss may be, e.g. 3.0; None for no limit",
            )
        self.factor = factor
        self._recent: deque[float] = deque(maxlen=WINDOW)

    def note(self, value: float) -> float | None:
        """Note the loss of a step; return the median if the loss is too far above it."""
        median = statistics.median(self._recent) if len(self._recent) >= LEAST else 0.0
        self._recent.append(value)
        return median if 0.0 < median * self.factor < value else None


def has_copies(artifact: Artifact) -> bool:
    """Return whether a shard of any variable is on more than one device."""
    mesh = artifact.mesh
    for spec in artifact.variables:
        axes = [axis for dim in spec.shape for axis in spec.sharding.axes(dim.name)]
        if math.prod(mesh.axes[axis] for axis in axes) < mesh.devices:
            return True
    return False


def check_replicas(state: State, step: int) -> None:
    """Compare all copies of all shards of a state bit for bit, in all processes."""
    try:
        state.digest()
    except NamedMeshError as error:
        raise UnsoundState(
            f"after step {step}, {error.problem}", *error.details, fix=error.fix
        ) from None


def repeat_step(
    executable: Executable, state: State, inputs: Mapping[str, Any], step: int
) -> tuple[State, Any]:
    """Take a step twice and compare the bits, in all processes; it needs memory for two states."""
    copy = State({name: _copy_array(one) for name, one in state.arrays.items()}, state.specs)
    first, results = executable(state, **inputs)
    second, again = executable(copy, **inputs)
    differences = [
        *_find_differences(first.arrays, second.arrays),
        *_find_differences(results, again),
    ]
    summary = "; ".join(differences[:4]) or _SAME
    texts = current_processes().exchange("the repeated step", summary)
    if any(text != _SAME for text in texts):
        raise UnsoundState(
            f"step {step} made other bits when it was repeated",
            *(f"process {index}: {text}" for index, text in enumerate(texts)),
            fix="test the devices that are named; go on from a checkpoint of before the last "
            "repetition that was the same, on other devices if they are broken. On GPUs set "
            "XLA_FLAGS=--xla_gpu_deterministic_ops=true first: some operations are not repeatable",
        )
    return first, results


def _copy_array(array: jax.Array) -> jax.Array:
    """Copy an array, each device its own shard."""
    shards = [jnp.copy(shard.data) for shard in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, shards)


def _find_differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """List the arrays whose bits differ, each with the devices of this process that have them."""
    lines = []
    for name in one:
        pairs = zip(one[name].addressable_shards, other[name].addressable_shards, strict=True)
        devices = [str(a.device.id) for a, b in pairs if not np.array_equal(_bytes(a), _bytes(b))]
        if devices:
            lines.append(f"{name} on device {', '.join(devices)}")
    return lines


def _bytes(shard: Any) -> np.ndarray:
    return np.ascontiguousarray(shard.data).reshape(-1).view(np.uint8)
