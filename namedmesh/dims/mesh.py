"""Mesh: devices arranged along named axes."""

import math
from collections.abc import Iterable, Sequence

from namedmesh.dims.dimension import read_sizes
from namedmesh.errors.errors import (
    NamedMeshError,
    check_identifier,
    check_size,
    check_text,
    did_you_mean,
    whole_number,
)
from namedmesh.errors.mistakes import ByName, Explained


class Mesh(Explained):
    """Devices in a grid of named axes, the last axis changing fastest.

    Hosts have equal runs of devices, so the first axes go across hosts and the last ones stay
    inside. Without `hosts` all devices are on one host.

    Args:
        device_assignment: The number of the device at each place of the grid, in row-major order;
            by default in order.
        hosts: The number of hosts; by default that of slices.
        slices: The number of TPU slices, which the data-centre network joins.
        **axes: The size of each axis.

    Attributes:
        axes: The size of each axis, by name.
        hosts: The number of hosts; by default that of slices.
        slices: The number of TPU slices, which the data-centre network joins.
        device_assignment: The number of the device at each place of the grid, in row-major order;
            by default in order.

    Example:
        >>> mesh = nm.Mesh(data=2, expert=4)
        >>> mesh.devices
        8
        >>> nm.Mesh(data=2, expert=4, hosts=2)  # along expert, devices share a host
        Mesh(data=2, expert=4, hosts=2)
    """

    def __init__(
        self,
        device_assignment: Sequence[int] | None = None,
        *,
        hosts: int = 1,
        slices: int = 1,
        **axes: int,
    ):
        written = f"mesh: Mesh({', '.join(f'{name}={size!r}' for name, size in axes.items())})"
        self.axes: dict[str, int] = ByName()
        for name, size in axes.items():
            check_identifier(name, "mesh axis", written)
            self.axes[name] = check_size(size, f"mesh axis {name}", written)
        if not self.axes:
            reason = "" if device_assignment is None else f", and {device_assignment!r} names none"
            raise NamedMeshError(
                f"a mesh needs at least one axis{reason}", fix="write e.g. nm.Mesh(data=8)"
            )
        self.slices = check_size(slices, "slices", written)
        self.hosts = check_size(hosts, "hosts", written)
        if self.hosts == 1:
            self.hosts = self.slices
        self._check_blocks("slices", self.slices)
        self._check_blocks("hosts", self.hosts)
        if self.hosts % self.slices:
            raise NamedMeshError(
                f"{self.hosts} hosts do not divide among {self.slices} slices",
                f"mesh: {self}",
                fix="give the hosts of all slices together, as many for each",
            )
        self.device_assignment: tuple[int, ...] | None = None
        if device_assignment is not None:
            self.device_assignment = self._check_permutation(device_assignment)

    def _check_blocks(self, what: str, count: int) -> None:
        """Raise unless so many runs of devices are equal blocks of the grid."""
        if self.devices % count:
            divisors = range(1, min(self.devices, 4096) + 1)
            fitting = [str(n) for n in divisors if not self.devices % n]
            raise NamedMeshError(
                f"{self.devices} devices do not divide among {count} {what}",
                f"mesh: {self}",
                fix=f"use one of {what}={', '.join(fitting[:12])}",
            )
        inside = self.devices // count
        for axis, size in reversed(self.axes.items()):
            if inside % size and size % inside:
                raise NamedMeshError(
                    f"{count} {what} cut axis {axis} of {size} into unequal shards",
                    f"mesh: {self}",
                    fix=f"let {what} divide the first axes, e.g. put an axis of {count} first",
                )
            inside = max(1, inside // size)

    def divides(self, blocks: int) -> bool:
        """Return whether so many runs of devices are equal blocks of the grid.

        Args:
            blocks: The number of runs, such as hosts.

        Example:
            >>> Mesh(data=4, expert=4).divides(2), Mesh(data=3, expert=4).divides(2)
            (True, False)
        """
        try:
            self._check_blocks("blocks", blocks)
        except NamedMeshError:
            return False
        return True

    def _check_permutation(self, assignment: Sequence[int]) -> tuple[int, ...]:
        """Return the assignment when it has every device once, or raise."""
        # A 0-d array is Iterable, and raises when it is iterated over.
        several = isinstance(assignment, Iterable) and getattr(assignment, "ndim", 1)
        found = map(whole_number, assignment if several else ())
        numbers = [number for number in found if number is not None]
        if len(numbers) != self.devices or sorted(numbers) != list(range(self.devices)):
            raise NamedMeshError(
                f"device_assignment does not place {self.devices} devices once each: "
                f"{assignment!r}",
                f"mesh: {self}",
                fix=f"give a permutation of 0 to {self.devices - 1}",
            )
        for block, count in self.blocks.items():
            inside = self.devices // count
            for start in range(0, self.devices, inside):
                if len({number // inside for number in numbers[start : start + inside]}) > 1:
                    raise NamedMeshError(
                        f"device_assignment puts devices of several {block}s into places {start} "
                        f"to {start + inside - 1}, which are those of one {block}",
                        f"mesh: {self}",
                        fix=f"keep the {inside} devices of a {block} together, or leave out "
                        f"{block}s=",
                    )
        return tuple(numbers)

    @classmethod
    def parse(cls, text: str) -> "Mesh":
        """Return a mesh from one line of text.

        Args:
            text: Axes with sizes, such as 'data=2 expert=4 hosts=2', separated by spaces or commas.

        Example:
            >>> nm.Mesh.parse("data=2 expert=4 hosts=2")
            Mesh(data=2, expert=4, hosts=2)
        """
        example = "data=2 expert=4"
        text = check_text(text, "a mesh", example).replace(":", "=")
        return cls(None, **read_sizes(text, "mesh axis", example))

    @property
    def devices(self) -> int:
        """The number of devices."""
        return math.prod(self.axes.values())

    def size(self, axes: Sequence[str] | None = None) -> int:
        """Return the number of devices along some axes together; 1 for no axis.

        Args:
            axes: Names of axes of the mesh; by default all of them.
        """
        if axes is None:
            return self.devices
        try:
            return math.prod(map(self.axes.__getitem__, axes))
        except (KeyError, TypeError):
            raise NamedMeshError(
                f"{axes!r} are not axes of the mesh",
                f"mesh: {self}",
                fix=f"give names of axes, e.g. {list(self.axes)}",
            ) from None

    def check_axis(self, axis: str, what: str) -> None:
        """Raise when the mesh has no such axis.

        Args:
            axis: The name of an axis.
            what: What asks for it, for the error.
        """
        if not isinstance(axis, str) or axis not in self.axes:
            raise NamedMeshError(
                f"{what}: the mesh has no axis {axis!r}",
                f"mesh: {self}",
                fix=did_you_mean(axis, self.axes),
            )

    @property
    def blocks(self) -> dict[str, int]:
        """The number of hosts and of slices, where there are several; slices that are hosts once.

        Example:
            >>> Mesh(data=8, hosts=4, slices=2).blocks, Mesh(data=8, slices=2).blocks
            ({'host': 4, 'slice': 2}, {'slice': 2})
        """
        counts = {"host": self.hosts if self.hosts != self.slices else 1, "slice": self.slices}
        return {name: count for name, count in counts.items() if count > 1}

    def members_of_block(self, axes: Sequence[str], blocks: int) -> int:
        """Return the number of devices of a group in one block of the mesh.

        Args:
            axes: The axes along which the devices of the group differ.
            blocks: The number of equal blocks, such as hosts.

        Example:
            >>> mesh = Mesh(data=4, expert=4, hosts=2)
            >>> mesh.members_of_block(["data"], mesh.hosts)
            2
        """
        return self.one_block(blocks).size(axes)

    def one_block(self, blocks: int) -> "Mesh":
        """Return the part of the mesh in the first of so many equal blocks.

        Args:
            blocks: The number of blocks, such as hosts.

        Example:
            >>> Mesh(data=4, expert=4, hosts=2).one_block(2)
            Mesh(data=2, expert=4)
        """
        if blocks == 1:
            return self
        inside = rest = self.devices // blocks
        sizes: dict[str, int] = {}
        for axis, size in reversed(self.axes.items()):
            sizes[axis] = min(size, rest)
            rest = max(1, rest // size)
        order = self.device_assignment
        first = None if order is None else [number % inside for number in order[:inside]]
        return Mesh(first, **{axis: sizes[axis] for axis in self.axes})

    def to_json(self) -> dict[str, int]:
        """Return the axes, then hosts and slices if there are several.

        Example:
            >>> Mesh(data=2, expert=4, hosts=2).to_json()
            {'data': 2, 'expert': 4, 'hosts': 2}
        """
        return {**self.axes, **{f"{name}s": count for name, count in self.blocks.items()}}

    def _key(self) -> tuple[object, ...]:
        """Return what equal meshes have in common."""
        return tuple(self.axes.items()), self.device_assignment, self.hosts, self.slices

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        return f"Mesh({', '.join(f'{name}={size}' for name, size in self.to_json().items())})"

    __repr__ = __str__
