"""Windows that slide along dimensions: positions, padding, the rows that a shard needs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from namedmesh.dims.dimension import Dimension
from namedmesh.errors.errors import NamedMeshError, check_word
from namedmesh.ir.context import Context
from namedmesh.ir.format import format_value
from namedmesh.ir.op import Op
from namedmesh.ir.operands import check_has_dims, check_int
from namedmesh.ir.placement import Exchange, Shards
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.halo import Stretch, find_exchanges, read_rows


@dataclass(frozen=True)
class Sliding:
    """A window that slides along a dimension.

    At position o, element k of the window meets place o * stride + k * dilation - low; row i of the
    operand is at place i * base, and all other places hold zero.
    """

    size: int  # the rows of the operand
    window: int  # the elements of the window
    stride: int = 1  # between two positions
    dilation: int = 1  # between two elements of the window
    base: int = 1  # between two rows of the operand
    low: int = 0  # places before the first row
    high: int = 0  # places after the last row

    @property
    def extent(self) -> int:
        """The places from the first element of the window to the last."""
        return (self.window - 1) * self.dilation + 1

    @property
    def places(self) -> int:
        """The places from the first row to the last."""
        return (self.size - 1) * self.base + 1

    @property
    def count(self) -> int:
        """The positions of the window."""
        return (self.places + self.low + self.high - self.extent) // self.stride + 1

    def padded(self, padding: str | tuple[int, int]) -> Sliding:
        """Return the same window with places before and after the rows."""
        low, high = (0, 0) if isinstance(padding, str) else padding
        if padding == "same":
            positions = -(-self.places // self.stride)
            missing = max((positions - 1) * self.stride + self.extent - self.places, 0)
            low, high = missing // 2, missing - missing // 2
        return dataclasses.replace(self, low=low, high=high)

    def transposed(self) -> Sliding:
        """Return the window that takes cotangents of the positions back to the rows, reversed."""
        spread = (self.count - 1) * self.stride + 1
        low = self.extent - 1 - self.low
        high = (self.size - 1) * self.base + self.extent - spread - low
        return Sliding(self.count, self.window, self.base, self.dilation, self.stride, low, high)

    def reach(self, count: int) -> int:
        """Return the places that some positions in a row meet."""
        return (count - 1) * self.stride + self.extent

    def stretch(self, count: int) -> Stretch:
        """Return the rows that each device reads for its positions."""
        step = count * self.stride
        before = self.low % self.base if step % self.base == 0 else 0  # places before that row
        length = max((self.reach(count) - 1 - before) // self.base + 1, 1)
        return Stretch(step, self.base - 1 - self.low, length, self.size, self.base)

    def spread(self, context: Context, x: Any, at: int, position: Any, count: int) -> Any:
        """Spread the rows that a device read over the places that its positions meet."""
        if self.base == 1:
            return x
        tf, rank = context.tf, len(x.shape)
        zeros = self.base - 1
        apart = tf.pad(
            tf.expand_dims(x, at + 1),
            [[0, zeros] if i == at + 1 else [0, 0] for i in range(rank + 1)],
        )
        sizes = [size * self.base if i == at else size for i, size in enumerate(x.shape)]
        places = tf.pad(
            tf.reshape(apart, sizes), [[zeros, 0] if i == at else [0, 0] for i in range(rank)]
        )
        first = position * (count * self.stride) - self.low  # the first place
        begins = [(first + zeros) % self.base if i == at else 0 for i in range(rank)]
        wanted = [self.reach(count) if i == at else size for i, size in enumerate(x.shape)]
        return tf.slice(places, begins, wanted)


class Slide(NamedTuple):
    """A dimension, the window's dimension that slides along it, and how."""

    dim: str
    window: str
    sliding: Sliding

    def back(self) -> Slide:
        """Return how the same window slides from positions back to rows."""
        return self._replace(sliding=self.sliding.transposed())


class SlidingOp(Op):
    """An op along whose first operand's dimensions windows slide, on each device's own shard."""

    on_shards = True

    slides: tuple[Slide, ...]

    @property
    def taps(self) -> int:
        """The elements of a window."""
        return math.prod(slide.sliding.window for slide in self.slides)

    def named(self, name: str) -> Dimension:
        """Return the dimension of the first operand of that name."""
        return self.inputs[0].shape.dims[self.inputs[0].shape.position(name)]

    def read_split(
        self, context: Context, x: Any, order: Sequence[str], fill: float, every: bool = False
    ) -> Any:
        """Read what windows meet along the dimensions that are split, or along every one."""
        read = []
        for slide in self.slides:
            dim, at = self.named(slide.dim), order.index(slide.dim)
            ways, sliding = context.ways(dim), slide.sliding
            if every or ways > 1:
                count = -(-sliding.count // ways)
                x = read_rows(context, [(x, sliding.stretch(count))], at, dim, fill)
                read.append((sliding, at, context.position(dim), count))
        for sliding, at, position, count in read:  # when all is sent, for zeros need not be
            x = sliding.spread(context, x, at, position, count)
        return x

    def exchanges(self, shards: Shards) -> list[Exchange] | None:
        found: list[Exchange] = []
        longer: list[tuple[int, int]] = []  # of dimensions read before: a shard, and what was read
        for slide in self.slides:
            dim = self.named(slide.dim)
            ways, count = shards.ways(dim), slide.sliding.count
            if ways == 1:
                continue
            stretch = slide.sliding.stretch(-(-count // ways))
            more = find_exchanges(self.inputs, shards, [(0, dim, stretch)])
            if count < ways or more is None:
                return None
            for one in more:
                elements = one.elements
                for before, after in longer:  # rows of neighbours are sent on: corners
                    elements = elements // before * after
                found.append(dataclasses.replace(one, elements=elements))
            longer.append((shards.size(dim), stretch.length))
        return found


PADDINGS = ("same", "valid")
Padding = str | tuple[int, int]
Number = int | Mapping[Dimension, int]


class SlideOptions:
    """The options of sliding windows, checked."""

    def __init__(self, what: str, tensors: Sequence[Tensor], dims: Mapping[Dimension, Any]):
        self.what, self.tensors, self.details = what, tensors, tuple(map(str, tensors))
        if not isinstance(dims, Mapping) or not dims:
            operands = ", ".join("xw"[: len(tensors)])
            raise NamedMeshError(
                f"{what}: over={format_value(dims)} does not say which window slides where",
                *self.details,
                fix=f"write e.g. nm.{what}({operands}, {{H: KH, W: KW}})",
            )
        self.dims = tuple(dims)
        check_has_dims(what, tensors[0], *dims)

    def number(self, name: str, value: Any, dim: Dimension) -> int:
        """Return an option of a dimension, a whole number of at least one."""
        number = check_int(self.what, name, self._of(name, value, dim, 1), *self.tensors)
        if number < 1:
            raise NamedMeshError(
                f"{self.what}: {name} {number} of {dim.name} is less than 1",
                *self.details,
                fix=f"give {name}=1 or more",
            )
        return number

    def padding(self, value: Any, dim: Dimension) -> Padding:
        """Return the padding of a dimension."""
        one = self._of("padding", value, dim, "same")
        if isinstance(one, str):
            check_word("padding", one, PADDINGS)
            return one
        if not isinstance(one, (tuple, list)) or len(one) != 2:
            raise NamedMeshError(
                f"{self.what}: padding {format_value(one)} of {dim.name} is not a pair",
                *self.details,
                fix="give (before, after), 'same' or 'valid'",
            )
        low, high = (check_int(self.what, "padding", end, *self.tensors) for end in one)
        return low, high

    def _of(self, name: str, value: Any, dim: Dimension, default: Any) -> Any:
        """Return what an option says of a dimension."""
        if not isinstance(value, Mapping):
            return value
        unknown = [key for key in value if key not in self.dims]
        if unknown:
            raise NamedMeshError(
                f"{self.what}: {name} names {format_value(unknown[0])}, "
                "along which no window slides",
                *self.details,
                fix=f"name {' or '.join(one.name for one in self.dims)}",
            )
        return value.get(dim, default)

    def slides(
        self, over: Mapping[Dimension, Dimension], padding: Any, **numbers: Number
    ) -> tuple[Slide, ...]:
        """Return how windows slide along several dimensions."""
        return tuple(self.slide(dim, window, padding, **numbers) for dim, window in over.items())

    def slide(self, dim: Dimension, window: Dimension, padding: Any, **numbers: Number) -> Slide:
        """Return how a window slides along a dimension, or raise unless it has a position."""
        options = {name: self.number(name, value, dim) for name, value in numbers.items()}
        sliding = Sliding(dim.size, window.size, *options.values())
        sliding = sliding.padded(self.padding(padding, dim))
        if sliding.places + sliding.low + sliding.high < sliding.extent:
            raise NamedMeshError(
                f"{self.what}: {window} does not fit into {dim}",
                *self.details,
                f"it spans {sliding.extent} of "
                f"{sliding.places + sliding.low + sliding.high} places, padding included",
                fix="use a smaller window, less dilation, or padding='same'",
            )
        return Slide(dim.name, window.name, sliding)
