"""Mesh: devices arranged along named axes."""

import math
import re
from collections.abc import Iterable, Sequence

from namedmesh.dims.errors import (
    NamedMeshError,
    check_identifier,
    check_size,
    check_text,
    did_you_mean,
    whole_number,
)


class Mesh:
    """Devices in a grid of named axes, the last axis changing fastest.

    Args:
        device_assignment: For each place of the grid, in row-major order, the number of the device
            that takes it; by default devices take their places in order.
        **axes: The size of each axis.

    Attributes:
        axes: The size of each axis, by name.

    Raises:
        NamedMeshError: There is no axis, a size is not a positive whole number, or the assignment
            does not place every device once.

    Example:
        >>> import namedmesh as nm
        >>> mesh = nm.Mesh(data=2, expert=4)
        >>> mesh.devices
        8
    """

    def __init__(self, device_assignment: Sequence[int] | None = None, **axes: int):
        written = f"mesh: Mesh({', '.join(f'{name}={size!r}' for name, size in axes.items())})"
        self.axes: dict[str, int] = {
            check_identifier(name, "mesh axis", written): check_size(
                size, f"mesh axis {name}", written
            )
            for name, size in axes.items()
        }
        if not self.axes:
            reason = "" if device_assignment is None else f", and {device_assignment!r} names none"
            raise NamedMeshError(
                f"a mesh needs at least one axis{reason}", fix="write e.g. nm.Mesh(data=8)"
            )
        self.device_assignment: tuple[int, ...] | None = None
        if device_assignment is not None:
            self.device_assignment = self._check_permutation(device_assignment)

    def _check_permutation(self, assignment: Sequence[int]) -> tuple[int, ...]:
        """Returns the assignment when it has every device once, or raises."""
        numbers: list[int] = []
        if isinstance(assignment, Iterable):
            # A 0-d array is Iterable, and raises when it is iterated over.
            items = [] if getattr(assignment, "ndim", 1) == 0 else list(assignment)
            numbers = [number for number in map(whole_number, items) if number is not None]
        if len(numbers) != self.devices or sorted(numbers) != list(range(self.devices)):
            raise NamedMeshError(
                f"device_assignment does not place {self.devices} devices once each: "
                f"{assignment!r}",
                f"mesh: {self}",
                fix=f"give a permutation of 0 to {self.devices - 1}",
            )
        return tuple(numbers)

    @classmethod
    def parse(cls, text: str) -> "Mesh":
        """Makes a mesh from one line of text.

        Args:
            text: Axes with sizes, such as 'data=2 expert=4', separated by spaces or commas.

        Returns:
            The mesh.

        Raises:
            NamedMeshError: A part does not read as axis=size, or an axis is given twice.

        Example:
            >>> import namedmesh as nm
            >>> nm.Mesh.parse("data=2 expert=4")
            Mesh(data=2, expert=4)
        """
        axes: dict[str, int] = {}
        for match in re.finditer(r"[^\s,;]+", check_text(text, "a mesh", "data=2 expert=4")):
            name, equals, size = re.sub(":", "=", match.group(), count=1).partition("=")
            if not equals or not re.fullmatch(r"\d{1,18}", size) or name in axes:
                raise NamedMeshError(
                    f"cannot read {match.group()!r} as axis=size"
                    if name not in axes
                    else f"mesh axis {name} is given twice",
                    text,
                    " " * match.start() + "^" * len(match.group()),
                    fix="write a mesh as 'data=2 expert=4', each axis once",
                )
            axes[name] = int(size)
        return cls(None, **axes)

    @property
    def devices(self) -> int:
        """How many devices the mesh has."""
        return math.prod(self.axes.values())

    def size(self, axes: Sequence[str]) -> int:
        """Returns how many devices lie along the axes together.

        Args:
            axes: Names of axes of the mesh.

        Returns:
            The product of their sizes; 1 for no axis.
        """
        try:
            return math.prod(self.axes[axis] for axis in axes)
        except (KeyError, TypeError):
            raise NamedMeshError(
                f"{axes!r} are not axes of the mesh",
                f"mesh: {self}",
                fix=f"give names of axes, e.g. {list(self.axes)}",
            ) from None

    def check_axis(self, axis: str, what: str) -> None:
        """Raises when the mesh has no such axis.

        Args:
            axis: The name of an axis.
            what: What asks for it, for the error.

        Raises:
            NamedMeshError: The mesh has no axis of that name.
        """
        if not isinstance(axis, str) or axis not in self.axes:
            raise NamedMeshError(
                f"{what}: the mesh has no axis {axis!r}",
                f"mesh: {self}",
                fix=did_you_mean(axis, self.axes),
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and (list(self.axes.items()), self.device_assignment) == (
            list(other.axes.items()),
            other.device_assignment,
        )

    def __hash__(self) -> int:
        return hash((tuple(self.axes.items()), self.device_assignment))

    def __str__(self) -> str:
        return f"Mesh({', '.join(f'{name}={size}' for name, size in self.axes.items())})"

    __repr__ = __str__
