"""Assignment: the device at each place of a mesh, so that heavy traffic goes to neighbours."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError
from namedmesh.hardware.topology import Torus
from namedmesh.records.collective import Collective

# Bytes along one axis, or along several together.
Traffic = Mapping[str, float] | Mapping[tuple[str, ...], float]


@dataclass(frozen=True)
class Assignment:
    """A mesh on the devices of a target.

    Attributes:
        order: The number of the device at each place; None for the order jax lists them in.
        hops: The links between two devices that communicate, on average over all bytes; None for
            targets without a torus.
        listed_hops: The same in the order jax lists devices.

    Example:
        >>> import namedmesh as nm
        >>> from namedmesh.aot import Target, Torus
        >>> from namedmesh.hardware.assignment import assign_devices
        >>> torus = Torus.of_target(Target.parse("tpu-v3:2x2"))
        >>> assignment = assign_devices(nm.Mesh(data=2, model=4), torus, {"data": 8.0})
        >>> assignment.order  # the two devices along data are the cores of one chip
        (0, 2, 4, 6, 1, 3, 5, 7)
        >>> print(assignment.hops, assignment.listed_hops)
        0.0 1.0
    """

    order: tuple[int, ...] | None
    hops: float | None
    listed_hops: float | None


def assign_devices(mesh: Mesh, torus: Torus | None, traffic: Traffic) -> Assignment:
    """Decide which device takes which place of a mesh; all slices are laid out alike."""
    if torus is None:
        return Assignment(mesh.device_assignment, None, None)
    inner = mesh.one_block(mesh.slices)
    within = inner.device_assignment
    if within is None and mesh.hosts > mesh.slices:
        within = tuple(range(inner.devices))
    elif within is None:
        within = torus_assignment(inner, torus, traffic)
    starts = range(0, mesh.devices, inner.devices)
    order = mesh.device_assignment or tuple(start + i for start in starts for i in within)
    hops = mean_hops(inner, torus, traffic, within)
    return Assignment(order, hops, mean_hops(inner, torus, traffic))


def traffic_of(collectives: Iterable[Collective]) -> dict[tuple[str, ...], float]:
    """Add up the bytes that collectives send along each set of axes in one step."""
    traffic: dict[tuple[str, ...], float] = {}
    for one in collectives:
        traffic[one.axes] = traffic.get(one.axes, 0) + one.total_bytes
    return traffic


def mean_hops(
    mesh: Mesh, torus: Torus, traffic: Traffic, assignment: Sequence[int] | None = None
) -> float:
    """Return the links between two devices that communicate, on average."""
    order = np.asarray(range(mesh.devices) if assignment is None else assignment)
    return _weighted_hops(mesh, torus, traffic, torus.positions[order])


def torus_assignment(mesh: Mesh, torus: Torus, traffic: Traffic) -> tuple[int, ...]:
    """Return the order of devices in which the heaviest traffic has the shortest path.

    Args:
        mesh: The mesh.
        torus: The torus of its devices.
        traffic: The bytes along which axes.

    Returns:
        The number of the device at each place; the listed order if nothing is better.

    Example:
        >>> from namedmesh.aot import torus_assignment
        >>> from namedmesh.hardware.topology import Target
        >>> torus = Torus.of_target(Target.parse("tpu-v3:2x2"))
        >>> torus_assignment(Mesh(data=2, expert=4), torus, {"expert": 10.0, "data": 1.0})
        (0, 1, 2, 3, 4, 5, 6, 7)
    """
    # Try to build the mesh's axes out of blocks of the torus, and the orders of these blocks
    # within blocks: all of them for up to three axes, the most compact ones for more.
    for axes in traffic:
        for axis in _as_tuple(axes):
            mesh.check_axis(axis, "traffic")
    if mesh.devices != len(torus.places):
        raise NamedMeshError(
            f"the mesh has {mesh.devices} devices and the torus {len(torus.places)}",
            f"mesh: {mesh}",
            fix="use a mesh and a target of the same number of cores",
        )
    best, least = tuple(range(mesh.devices)), mean_hops(mesh, torus, traffic)
    for candidate in _candidates(mesh, torus, traffic):
        hops = _weighted_hops(mesh, torus, traffic, torus.positions[candidate], alike=True)
        if hops < least - 1e-9:
            best, least = tuple(int(i) for i in candidate), hops
    return best


def _as_tuple(axes: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return one axis or several as a tuple."""
    return (axes,) if isinstance(axes, str) else tuple(axes)


def _weighted_hops(
    mesh: Mesh, torus: Torus, traffic: Traffic, positions: np.ndarray, alike: bool = False
) -> float:
    """Return the mean hops of positions; if groups are alike, one of them will do."""
    grid = positions.reshape(*mesh.axes.values(), -1)
    names, total, amount = list(mesh.axes), 0.0, 0.0
    for axes, sent in traffic.items():
        inner = [names.index(axis) for axis in _as_tuple(axes)]
        outer = [i for i in range(len(names)) if i not in inner]
        size = mesh.size(_as_tuple(axes))
        groups = grid.transpose(*outer, *inner, -1).reshape(-1, size, positions.shape[-1])
        amount += sent
        if size == 1:
            continue
        if alike:
            groups = groups[:1]
        # Pairs are counted by coordinate, not one by one: of 2,048 devices there are millions.
        rows = np.repeat(np.arange(len(groups)), size)
        for i, apart in enumerate(torus.hops):
            cells = rows * len(apart) + groups[:, :, i].ravel()
            counts = np.bincount(cells, minlength=len(groups) * len(apart))
            shares = counts.reshape(len(groups), len(apart)).astype(np.float64)
            pairs = ((shares @ apart) * shares).sum()
            total += sent * pairs / (len(groups) * size * (size - 1))
    return float(total / amount) if amount else 0.0


def _candidates(mesh: Mesh, torus: Torus, traffic: Traffic) -> Iterator[np.ndarray]:
    """Yield orders in which every axis is a block of the torus, one axis within another."""
    sizes = torus.sizes
    listed = np.full(sizes, -1)
    listed[tuple(torus.positions.T)] = np.arange(len(torus.places))
    if (listed < 0).any():
        return
    load = {
        axis: sum(sent for axes, sent in traffic.items() if axis in _as_tuple(axes))
        for axis in mesh.axes
    }
    axes = sorted((axis for axis in mesh.axes if mesh.axes[axis] > 1), key=lambda axis: -load[axis])
    few = len(axes) <= 3  # few enough to try everything
    orders = list(itertools.permutations(axes)) if few else [tuple(reversed(axes))]
    dimensions = [*reversed(range(len(sizes) - 1)), len(sizes) - 1]
    for blocks in _blocks([mesh.axes[axis] for axis in axes], sizes, None if few else 4):
        factors = dict(zip(axes, blocks, strict=True))
        for order in orders:  # outermost first
            split = listed.reshape(
                [factors[axis][dim] for dim in range(len(sizes)) for axis in order]
            )
            places = [
                dim * len(order) + order.index(axis)
                for axis in mesh.axes
                if axis in factors
                for dim in dimensions
            ]
            yield split.transpose(places).ravel()


def _blocks(
    axes: Sequence[int], sizes: Sequence[int], widest: int | None
) -> Iterator[list[tuple[int, ...]]]:
    """Yield factors of each axis for each dimension that use up the dimensions, compact first."""
    if not axes:
        if all(size == 1 for size in sizes):
            yield []
        return
    divisors = [[n for n in range(1, size + 1) if size % n == 0] for size in sizes]
    whole = [block for block in itertools.product(*divisors) if math.prod(block) == axes[0]]
    for block in sorted(whole, key=lambda block: sum(n - 1 / n for n in block[:-1]))[:widest]:
        rest = [size // n for size, n in zip(sizes, block, strict=True)]
        yield from ([block, *more] for more in _blocks(axes[1:], rest, widest))
