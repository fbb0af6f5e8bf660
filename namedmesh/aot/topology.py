"""Topology: where a target's cores lie on its torus, and which of them a mesh's neighbours should be."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from namedmesh.dims.errors import NamedMeshError, did_you_mean
from namedmesh.dims.mesh import Mesh

Traffic = (
    Mapping[str, float] | Mapping[tuple[str, ...], float]
)  # bytes along one axis, or along several together


@dataclass(frozen=True)
class Generation:
    """One kind of TPU: devices a chip shows, cycles a second, dimensions of its network, and when these close to a ring."""

    cores: int
    clock: float | None
    dimensions: int
    full: int  # a dimension of this size is a ring
    cubes: bool = False  # and so is every multiple of it


GENERATIONS = {
    "v2": Generation(2, 700e6, 2, 16),
    "v3": Generation(2, 940e6, 2, 32),
    "v4": Generation(2, 1050e6, 3, 4, cubes=True),
    "v5e": Generation(1, 1500e6, 2, 16),
    "v5p": Generation(1, 1750e6, 3, 4, cubes=True),
    "v6e": Generation(1, None, 2, 16),
}
_EXAMPLES = "tpu-v3:32x32 (2,048 cores), tpu-v5p:4x4x4 (64) or cpu:8"


@dataclass(frozen=True)
class Target:
    """What to compile for: a TPU generation and the shape of a slice of it in chips, or a number of CPU devices."""

    platform: str
    generation: str
    shape: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Target:
        """A target from one word: tpu-v3:32x32 or cpu:8.

        >>> Target.parse("tpu-v3:32x32").cores
        2048
        """
        match = (
            re.fullmatch(r"(?:tpu-(\w+)|(cpu)):(\d{1,6}(?:x\d{1,6})*)", text)
            if isinstance(text, str)
            else None
        )
        shape = tuple(int(size) for size in match[3].split("x")) if match else ()
        if not match or not all(shape) or (match[2] and len(shape) != 1):
            raise NamedMeshError(
                f"cannot read {text!r} as a target", fix=f"write a target such as {_EXAMPLES}"
            )
        if match[2]:
            return cls("cpu", "", shape)
        if match[1] not in GENERATIONS:
            raise NamedMeshError(
                f"target {text!r}: there is no TPU generation {match[1]!r}",
                fix=did_you_mean(match[1], GENERATIONS),
            )
        if len(shape) != GENERATIONS[match[1]].dimensions:
            raise NamedMeshError(
                f"target {text!r}: a slice of TPU {match[1]} has {GENERATIONS[match[1]].dimensions} dimensions, not {len(shape)}",
                fix=f"write a target such as {_EXAMPLES}",
            )
        return cls("tpu", match[1], shape)

    @property
    def cores(self) -> int:
        """How many devices the target has."""
        return math.prod(self.shape) * (
            GENERATIONS[self.generation].cores if self.generation else 1
        )

    def __str__(self) -> str:
        name = f"tpu-{self.generation}" if self.generation else self.platform
        return f"{name}:{'x'.join(map(str, self.shape))}"


@dataclass(frozen=True)
class Torus:
    """Devices in the order jax lists them, each at coordinates on a grid of chips; cores of a chip share a place."""

    places: tuple[tuple[int, ...], ...]  # chip coordinates of each device, x first
    cores: tuple[int, ...]  # which core of its chip each device is
    rings: tuple[bool, ...]  # whether a dimension closes to a ring

    @classmethod
    def of_target(cls, target: Target) -> Torus | None:
        """The torus of a target, without its compiler; None for targets without one.

        Hosts hold 2x2 chips and devices are listed host by host, in each dimension x first.
        """
        if not target.generation:
            return None
        sizes = target.shape
        hosts = [range(0, size, 2 if i < 2 else 1) for i, size in enumerate(sizes)]
        places = [
            place[::-1]
            for host in itertools.product(*reversed(hosts))
            for place in itertools.product(
                *(
                    range(start, min(start + (2 if i < 2 else 1), sizes[i]))
                    for i, start in zip(reversed(range(len(sizes))), host, strict=True)
                )
            )
        ]
        count = GENERATIONS[target.generation].cores
        listed = [(place, core) for place in places for core in range(count)]
        return cls(
            tuple(place for place, _ in listed), tuple(core for _, core in listed), rings(target)
        )

    @classmethod
    def of_devices(cls, devices: Sequence[Any], target: Target) -> Torus | None:
        """The torus that devices say they lie on; None for devices without coordinates."""
        if not target.generation or not all(hasattr(device, "coords") for device in devices):
            return None
        places = tuple(tuple(device.coords[: len(target.shape)]) for device in devices)
        return cls(places, tuple(device.core_on_chip for device in devices), rings(target))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The chips along each dimension, then the cores of a chip."""
        return tuple(int(last) + 1 for last in self.positions.max(axis=0))

    @cached_property
    def positions(self) -> np.ndarray:
        """Coordinates of every device, its core last."""
        return np.array(
            [[*place, core] for place, core in zip(self.places, self.cores, strict=True)]
        )

    @cached_property
    def hops(self) -> list[np.ndarray]:
        """For each dimension, the links between any two positions; none between the cores of a chip."""
        made = []
        for size, ring in zip(self.sizes, (*self.rings, False), strict=True):
            apart = np.abs(np.arange(size)[:, None] - np.arange(size))
            made.append(np.minimum(apart, size - apart) if ring else apart)
        return [*made[:-1], 0 * made[-1]]


def rings(target: Target) -> tuple[bool, ...]:
    """Which dimensions of a slice close to a ring."""
    kind = GENERATIONS[target.generation]
    return tuple(
        size % kind.full == 0 if kind.cubes else size == kind.full for size in target.shape
    )


def traffic_of(collectives: Sequence[Mapping[str, Any]]) -> dict[tuple[str, ...], float]:
    """The bytes that planned collectives send along each set of axes in one step."""
    traffic: dict[tuple[str, ...], float] = {}
    for one in collectives:
        axes = tuple(one["axes"])
        traffic[axes] = traffic.get(axes, 0) + one["bytes"] * one.get("times", 1)
    return traffic


def mean_hops(
    mesh: Mesh, torus: Torus, traffic: Traffic, assignment: Sequence[int] | None = None
) -> float:
    """Links between two devices that talk, on average over all pairs of a group and weighted by bytes."""
    order = np.asarray(range(mesh.devices) if assignment is None else assignment)
    return _weighted(mesh, torus, traffic, torus.positions[order])


def torus_assignment(mesh: Mesh, torus: Torus, traffic: Traffic) -> tuple[int, ...]:
    """The device_assignment under which the heaviest traffic has the shortest way; the listed order when nothing beats it.

    Ways to build the mesh's axes out of blocks of the torus are tried, and the orders in which blocks lie within blocks:
    all of them for up to three axes, the most compact ones for more.
    """
    for axes in traffic:
        for axis in _tuple(axes):
            mesh.check_axis(axis, "traffic")
    if mesh.devices != len(torus.places):
        raise NamedMeshError(
            f"the mesh has {mesh.devices} devices and the torus {len(torus.places)}",
            f"mesh: {mesh}",
            fix="use a mesh and a target of the same number of cores",
        )
    listed = tuple(range(mesh.devices))
    best, least = listed, mean_hops(mesh, torus, traffic)
    for candidate in _candidates(mesh, torus, traffic):
        hops = _weighted(mesh, torus, traffic, torus.positions[candidate])
        if hops < least - 1e-9:
            best, least = tuple(int(i) for i in candidate), hops
    return best


def _tuple(axes: str | tuple[str, ...]) -> tuple[str, ...]:
    return (axes,) if isinstance(axes, str) else tuple(axes)


def _weighted(mesh: Mesh, torus: Torus, traffic: Traffic, positions: np.ndarray) -> float:
    grid = positions.reshape(*mesh.axes.values(), -1)
    names, total, amount = list(mesh.axes), 0.0, 0.0
    for key, sent in traffic.items():
        inner = [names.index(axis) for axis in _tuple(key)]
        outer = [i for i in range(len(names)) if i not in inner]
        size = mesh.size(_tuple(key))
        groups = grid.transpose(*outer, *inner, -1).reshape(-1, size, positions.shape[-1])
        amount += sent
        if size == 1:
            continue
        for i, apart in enumerate(torus.hops):
            shares = np.zeros((len(groups), len(apart)))
            np.add.at(
                shares, (np.repeat(np.arange(len(groups)), size), groups[:, :, i].ravel()), 1.0
            )
            pairs = np.einsum("gi,ij,gj->", shares, apart, shares, optimize=True)
            total += sent * pairs / (len(groups) * size * (size - 1))
    return total / amount if amount else 0.0


def _candidates(mesh: Mesh, torus: Torus, traffic: Traffic) -> Iterator[np.ndarray]:
    """Assignments in which every axis is a block: a factor of each dimension of the torus, one axis within another."""
    sizes = torus.sizes
    listed = np.full(sizes, -1)
    listed[tuple(torus.positions.T)] = np.arange(len(torus.places))
    if (listed < 0).any():
        return
    load = {
        axis: sum(sent for key, sent in traffic.items() if axis in _tuple(key))
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
    """Ways to write each axis as a block, a factor from each dimension, that use the dimensions up; compact ones first."""
    if not axes:
        if all(size == 1 for size in sizes):
            yield []
        return
    divisors = [[n for n in range(1, size + 1) if size % n == 0] for size in sizes]
    whole = [block for block in itertools.product(*divisors) if math.prod(block) == axes[0]]
    for block in sorted(whole, key=lambda block: sum(n - 1 / n for n in block[:-1]))[:widest]:
        rest = [size // n for size, n in zip(sizes, block, strict=True)]
        yield from ([block, *more] for more in _blocks(axes[1:], rest, widest))
