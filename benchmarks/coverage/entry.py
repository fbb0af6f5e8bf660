"""An op in the table: its call in names, and the same in jax."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import namedmesh as nm

BATCH, OWN, UNEVEN = "split batch", "split its own dimension", "uneven"
FIRST, SECOND, NARROW = "derivative", "second derivative", "bfloat16"
COLUMNS = (BATCH, OWN, UNEVEN, FIRST, SECOND, NARROW)

# Reasons that several entries give.
ELEMENTWISE = {OWN: "element by element: it has no dimension of its own"}
CONSTANT = {FIRST: "piecewise constant: the derivative is zero everywhere"} | {
    SECOND: "piecewise constant: the derivative is zero everywhere"
}


@dataclass(frozen=True)
class Input:
    """An example operand: what it is, and how its numbers are drawn."""

    spec: nm.InputSpec
    draw: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


@dataclass(frozen=True)
class Entry:
    """One op: how it is written in names, and the same in jax on float64 arrays.

    Args:
        named: Called with a tensor for each input; returns tensors, nested as you like.
        reference: Called with an array for each input, and a dict of arrays by name if `named`
            makes variables; returns arrays in the same order. None for random numbers, which are
            compared with a run on one device.
        inputs: The operands.
        own: The dimensions that the op works along; all others of the inputs are batch.
        reasons: Why a column cannot be filled. A reason is checked too: the derivative must be
            refused, or be zero everywhere as jax has it.
        roundings: How many roundings to bfloat16 follow each other: with bfloat16's unit
            roundoff this is the tolerance of that column.
        narrow: Whether the op computes in bfloat16 whatever its operands are.
        holds: What is true of the arrays it returns, where there is no reference.
    """

    named: Callable[..., Any]
    reference: Callable[..., Any] | None
    inputs: Sequence[Input] = ()
    own: Sequence[nm.Dimension] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    roundings: int = 4
    narrow: bool = False
    holds: Callable[..., Any] | None = None

    @property
    def specs(self) -> dict[str, nm.InputSpec]:
        """The inputs' specs, by names that tests and plans show."""
        return {f"in{i}": one.spec for i, one in enumerate(self.inputs)}

    @property
    def batch(self) -> list[nm.Dimension]:
        """The dimensions that the op leaves to each other."""
        dims = {dim.name: dim for one in self.inputs for dim in one.spec.shape}
        own = {dim.name for dim in self.own}
        return [dim for name, dim in dims.items() if name not in own]

    def draw(self, seed: int) -> dict[str, np.ndarray]:
        """Draw the operands' numbers."""
        rng = np.random.default_rng(seed)
        return {
            name: as_dtype(one.draw(rng, one.spec.shape.sizes), one.spec.dtype)
            for name, one in zip(self.specs, self.inputs, strict=True)
        }


def as_dtype(array: Any, dtype: str) -> np.ndarray:
    """Convert an array; numpy knows bfloat16 by jax."""
    import jax.numpy as jnp

    return np.asarray(array).astype(jnp.dtype(dtype))
