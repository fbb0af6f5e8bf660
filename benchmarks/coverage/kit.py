"""The parts of entries: dimensions at sizes that devices divide or not, and operands."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import namedmesh as nm
from benchmarks.coverage.entry import Input


@dataclass(frozen=True)
class Kit:
    """Makes dimensions and operands for one run of an entry.

    Attributes:
        uneven: Whether sizes are odd, so that no mesh axis divides them.
        dtype: The dtype of floating point operands.
    """

    uneven: bool = False
    dtype: str = "float32"

    def dim(self, name: str, even: int = 8, odd: int = 5) -> nm.Dimension:
        """Make a dimension of one size or the other."""
        return nm.Dimension(name, odd if self.uneven else even)

    @property
    def B(self) -> nm.Dimension:
        """A batch."""
        return self.dim("batch")

    @property
    def R(self) -> nm.Dimension:
        """Rows, along which most ops work."""
        return self.dim("row", 8, 7)

    @property
    def C(self) -> nm.Dimension:
        """Columns or channels."""
        return self.dim("column", 8, 3)

    def real(self, *dims: nm.Dimension) -> Input:
        """Numbers from -2 to 2."""
        return Input(nm.spec(dims, self.dtype), lambda rng, sizes: rng.uniform(-2, 2, sizes))

    def positive(self, *dims: nm.Dimension) -> Input:
        """Numbers from 0.3 to 2."""
        return Input(nm.spec(dims, self.dtype), lambda rng, sizes: rng.uniform(0.3, 2, sizes))

    def unit(self, *dims: nm.Dimension) -> Input:
        """Numbers from -0.9 to 0.9."""
        return Input(nm.spec(dims, self.dtype), lambda rng, sizes: rng.uniform(-0.9, 0.9, sizes))

    def distinct(self, *dims: nm.Dimension) -> Input:
        """Numbers that differ from each other along every dimension, and from all eighths.

        They do in bfloat16, too, so that no element ties with another.
        """

        def draw(rng: np.random.Generator, sizes: tuple[int, ...]) -> np.ndarray:
            # Odd multiples of 1/32, which 8 bits hold; equal ones are in different rows.
            order = np.indices(sizes).sum(axis=0) % 64
            return (rng.permutation(64)[order] - 31.5) / 16

        return Input(nm.spec(dims, self.dtype), draw)

    def eighths(self, *dims: nm.Dimension) -> Input:
        """Odd multiples of an eighth: exact in bfloat16, and never halfway between integers."""

        def draw(rng: np.random.Generator, sizes: tuple[int, ...]) -> np.ndarray:
            return (2 * rng.integers(-8, 8, sizes) + 1) / 8

        return Input(nm.spec(dims, self.dtype), draw)

    def powers(self, *dims: nm.Dimension) -> Input:
        """Return a half, one or two, by which division is exact."""
        return Input(
            nm.spec(dims, self.dtype), lambda rng, sizes: 2.0 ** rng.integers(-1, 2, sizes)
        )

    def whole(self, *dims: nm.Dimension, low: int = 0, below: int = 8) -> Input:
        """Whole numbers."""
        return Input(nm.spec(dims, "int32"), lambda rng, sizes: rng.integers(low, below, sizes))

    def truth(self, *dims: nm.Dimension) -> Input:
        """Truth values."""
        return Input(nm.spec(dims, "bool"), lambda rng, sizes: rng.random(sizes) < 0.5)
