"""Torus: where a target's cores lie, and how far apart they are."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from namedmesh.hardware.target import GENERATIONS, Target


@dataclass(frozen=True)
class Torus:
    """Devices in the order jax lists them, at coordinates on a grid of chips.

    Attributes:
        places: The chip coordinates of each device, x first; cores of a chip share a place.
        cores: Which core of its chip each device is.
        rings: Whether each dimension closes to a ring.

    Example:
        >>> from namedmesh.aot import Target, Torus
        >>> torus = Torus.of_target(Target.parse("tpu-v3:2x2"))
        >>> torus.places[:4], torus.cores[:4]
        (((0, 0), (0, 0), (1, 0), (1, 0)), (0, 1, 0, 1))
        >>> torus.sizes
        (2, 2, 2)
    """

    places: tuple[tuple[int, ...], ...]
    cores: tuple[int, ...]
    rings: tuple[bool, ...]

    @classmethod
    def of_target(cls, target: Target) -> Torus | None:
        """The torus of a target's slice, without its compiler.

        Hosts hold 2x2 chips and devices are listed host by host, in each dimension x first.

        Args:
            target: The target.

        Returns:
            Its torus; None for targets without one.
        """
        if not target.generation:
            return None
        sizes = target.shape
        widths = [2 if i < 2 else 1 for i in range(len(sizes))]  # of a host, in chips
        hosts = [range(0, size, width) for size, width in zip(sizes, widths, strict=True)]
        places = []
        for host in itertools.product(*reversed(hosts)):
            corner = host[::-1]
            chips = [
                range(start, min(start + width, size))
                for start, width, size in zip(corner, widths, sizes, strict=True)
            ]
            places += [place[::-1] for place in itertools.product(*reversed(chips))]
        count = GENERATIONS[target.generation].cores
        return cls(
            tuple(place for place in places for _ in range(count)),
            tuple(core for _ in places for core in range(count)),
            target.rings,
        )

    @classmethod
    def of_devices(cls, devices: Sequence[Any], target: Target) -> Torus | None:
        """The torus that devices report to lie on; of several slices, that of the first.

        Args:
            devices: The target's devices, slice by slice.
            target: The target.

        Returns:
            The torus; None for devices without coordinates.
        """
        devices = devices[: len(devices) // target.slices]
        if not target.generation or not all(hasattr(device, "coords") for device in devices):
            return None
        places = tuple(tuple(device.coords[: len(target.shape)]) for device in devices)
        return cls(places, tuple(device.core_on_chip for device in devices), target.rings)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The chips along each dimension, then the cores of a chip."""
        return tuple(int(last) + 1 for last in self.positions.max(axis=0))

    @cached_property
    def positions(self) -> np.ndarray:
        """The coordinates of every device, its core last."""
        return np.array(
            [[*place, core] for place, core in zip(self.places, self.cores, strict=True)]
        )

    @cached_property
    def hops(self) -> list[np.ndarray]:
        """For each dimension, the links between two positions; the cores of a chip need none."""
        links = []
        for size, ring in zip(self.sizes[:-1], self.rings, strict=True):
            apart = np.abs(np.arange(size)[:, None] - np.arange(size))
            links.append(np.minimum(apart, size - apart) if ring else apart)
        cores = self.sizes[-1]
        return [*links, np.zeros((cores, cores), int)]
