"""The options of windows that slide, for all dimensions at once or one by one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from namedmesh.dims.dimension import Dimension
from namedmesh.errors.errors import NamedMeshError, did_you_mean
from namedmesh.ir.format import format_value
from namedmesh.ir.operands import check_int
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.sliding import Sliding

PADDINGS = ("same", "valid")
Padding = str | tuple[int, int]
Number = int | Mapping[Dimension, int]


class SlideOptions:
    """What a user says of windows, checked."""

    def __init__(self, what: str, tensors: Iterable[Tensor], dims: Iterable[Dimension]):
        self.what, self.tensors, self.dims = what, tuple(tensors), tuple(dims)
        self.details = tuple(map(str, self.tensors))

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
            if one in PADDINGS:
                return one
            raise NamedMeshError(
                f"{self.what}: padding {one!r} is unknown",
                *self.details,
                fix=did_you_mean(one, PADDINGS),
            )
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

    def check_fits(self, sliding: Sliding, dim: Dimension, window: Dimension) -> None:
        """Raise unless the window has a position."""
        if sliding.places + sliding.low + sliding.high < sliding.extent:
            raise NamedMeshError(
                f"{self.what}: {window} does not fit into {dim}",
                *self.details,
                f"it spans {sliding.extent} of "
                f"{sliding.places + sliding.low + sliding.high} places, padding included",
                fix="use a smaller window, less dilation, or padding='same'",
            )
