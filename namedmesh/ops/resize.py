"""More or fewer elements along a dimension: the nearest one, or a mean of those around."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from namedmesh.dims.dimension import Dimension
from namedmesh.errors.errors import NamedMeshError, check_word
from namedmesh.ir.context import Context
from namedmesh.ir.format import format_value
from namedmesh.ir.operands import check_dtype_kind, check_has_dims, check_int, check_tensor
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.halo import SplitWindow, Stretch, align_rows

METHODS = ("linear", "nearest")
LARGEST = 2**31


@dataclass(frozen=True)
class Grid:
    """The points of a resized dimension among its rows, at whole distances: nothing is rounded."""

    # Row i has its middle at (2i + 1) * points, point o at (2o + 1) * rows, both numbers divided by
    # their greatest common divisor.
    rows: int  # of the operand
    points: int  # of the result
    method: str
    antialias: bool  # a point that stands for several rows is a mean of all of them

    @property
    def spacing(self) -> tuple[int, int]:
        """Half the distance between two rows, and between two points."""
        common = math.gcd(self.rows, self.points)
        return self.points // common, self.rows // common

    @property
    def reach(self) -> tuple[int, int]:
        """The distances to rows below a point and above it from which on they do not count."""
        row, point = self.spacing
        if self.method == "nearest":
            return row, row + 1
        reach = 2 * max(row, point) if self.antialias else 2 * row
        return reach, reach

    def _order(self, back: bool) -> tuple[int, int, int, int]:
        """Return the spacing of what is read and of what is computed, and the reach of that."""
        (row, point), (below, above) = self.spacing, self.reach
        return (point, row, above, below) if back else (row, point, below, above)

    def first(self, number: Any, back: bool) -> Any:
        """Return the first row that a point depends on; back, the first point a row counts in."""
        read, target, below, _ = self._order(back)
        return ((2 * number + 1) * target + read - below) // (2 * read)

    def taps(self, back: bool) -> int:
        """Return the largest number of rows that a point is computed from."""
        read, _, below, above = self._order(back)
        return -(-(below + above - 1) // (2 * read))

    def stretch(self, count: int, back: bool, ways: int) -> Stretch:
        """Return the rows that each device reads."""
        read, target, below, above = self._order(back)
        length = 0
        for p in range(ways):
            last = ((2 * (p + 1) * count - 1) * target - read + above - 1) // (2 * read)
            length = max(length, last - self.first(p * count, back) + 1)
        size = self.points if back else self.rows
        return Stretch(2 * count * target, target + read - below, length, size, 2 * read)

    def weigh(self, tf: Any, point: Any, row: Any) -> Any:
        """Return the float32 weights of rows in points."""
        share = self._closeness(tf, point, row)
        if self.method == "nearest":
            return share
        point = point[..., None]
        rows = self.first(point, back=False) + tf.range(self.taps(back=False))
        return share / tf.maximum(tf.reduce_sum(self._closeness(tf, point, rows), -1), 1.0)

    def _closeness(self, tf: Any, point: Any, row: Any) -> Any:
        """Return the weights of rows in points, before they are normalised."""
        (half_row, half_point), (below, above) = self.spacing, self.reach
        apart = (2 * point + 1) * half_point - (2 * row + 1) * half_row
        exists = (row >= 0) & (row < self.rows) & (point >= 0) & (point < self.points)
        if self.method == "nearest":
            return tf.cast(exists & (apart < below) & (apart > -above), tf.float32)
        return tf.where(exists, tf.cast(tf.maximum(below - tf.abs(apart), 0), tf.float32), 0.0)


class Resize(SplitWindow):
    """Points computed from the rows around them, by a banded matrix or its transpose."""

    late_sums = True
    on_shards = True
    rearranges = False
    grid: Grid
    back: bool

    def result_dim(self) -> Dimension:
        return self.dim.resized(self.grid.rows if self.back else self.grid.points)

    def stretches(self, ways: int, shard: int, size: int) -> list[Stretch]:
        return [self.grid.stretch(size, self.back, ways)]

    def whole(self, context: Context, x: Any) -> Any:
        return self._combine(context, x, 0)

    def local(self, context: Context, x: Any) -> Any:
        size = context.size(self.result_dim())
        stretch = self.grid.stretch(size, self.back, context.ways(self.dim))
        return self._combine(context, x, stretch.first(context.position(self.dim)))

    def _combine(self, context: Context, x: Any, start: Any) -> Any:
        """Compute a device's shard of the result from the rows from a number on."""
        tf, at, grid = context.tf, self.at, self.grid
        size = context.size(self.result_dim())
        target = (context.position(self.dim) * size + tf.range(size))[:, None]
        read = grid.first(target, self.back) + tf.range(grid.taps(self.back))
        rows = tf.clip_by_value(read - start, 0, int(x.shape[at]) - 1)
        if grid.method == "nearest" and not self.back:
            return tf.gather(x, rows[:, 0], axis=at)
        wide = tf.float64 if x.dtype == tf.float64 else tf.float32
        weights = tf.cast(grid.weigh(tf, *((read, target) if self.back else (target, read))), wide)
        total: Any = 0.0
        for tap in range(grid.taps(self.back)):
            value = tf.cast(tf.gather(x, rows[:, tap], axis=at), wide)
            total = total + value * align_rows(tf, weights[:, tap], at, len(x.shape))
        return tf.cast(total, x.dtype)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [Resize((dy,), self.result_dim(), self.grid, not self.back).output]

    def flops(self) -> int:
        if self.grid.method == "nearest" and not self.back:
            return 0
        return 2 * self.grid.taps(self.back) * self.output.shape.elements


def resize(
    x: Tensor, to: Mapping[Dimension, int], method: str = "linear", *, antialias: bool = True
) -> Tensor:
    """Return a tensor with more or fewer elements along dimensions, as `jax.image.resize` does.

    Args:
        x: The tensor; floating, unless the method is `"nearest"`.
        to: The new size of each dimension that gets one.
        method: `"linear"`, or `"nearest"`.
        antialias: Let a linear mean reach further where a dimension shrinks: every element counts.

    Example:
        >>> S = nm.Dimension("seq", 2)
        >>> nm.evaluate(lambda x: nm.resize(x, {S: 4}), x=([S], [1.0, 3.0]))
        array([1. , 1.5, 2.5, 3. ], dtype=float32)
    """
    check_tensor("resize", x)
    check_word("method of resizing", method, METHODS)
    if method != "nearest":
        check_dtype_kind("resize", "float", x)
    if not isinstance(to, Mapping) or not to:
        problem = f"resize: to={format_value(to)} does not map dimensions to new sizes"
        fix = "write e.g. nm.resize(x, {H: 64, W: 64})"
        raise NamedMeshError(problem, str(x), fix=fix)
    check_has_dims("resize", x, *to)
    for dim, size in to.items():
        size = check_int("resize", f"size of {dim.name}", size, x)
        if size < 1:
            raise NamedMeshError(
                f"resize: {dim} cannot have {size} elements", str(x), fix="give at least 1"
            )
        if 4 * dim.size * size // math.gcd(dim.size, size) >= LARGEST:
            raise NamedMeshError(
                f"resize: {dim} and {size} have too few divisors in common for 32-bit positions",
                str(x),
                fix="choose a size that shares a larger divisor with it",
            )
        if size != dim.size:
            grid = Grid(dim.size, size, method, antialias)
            x = Resize((x,), dim, grid, False).output
    return x
