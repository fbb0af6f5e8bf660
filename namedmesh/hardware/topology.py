"""Topology: TPU slices with the coordinates of their cores, nodes of GPUs, or CPU devices."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from namedmesh.errors.errors import NamedMeshError, did_you_mean
from namedmesh.hardware.chips import CHIPS, GPUS, TPUS, Chip
from namedmesh.hardware.own_gpu import ENDINGS, read_gpu

_EXAMPLES = (
    "h100:32x8 (32 nodes of 8 GPUs), tpu-v3:32x32 (2,048 cores), tpu-v5p:4x4x4 (64), "
    "tpu-v5e:4x4:2 (two slices) or cpu:8"
)


@dataclass(frozen=True)
class Target:
    """The machine to compile for: nodes of GPUs, slices of a TPU generation, or CPU devices.

    Attributes:
        platform: `gpu`, `tpu` or `cpu`.
        generation: The GPU, such as `h100`, or the path of its description; the TPU generation,
            such as `v3`; empty for CPUs.
        shape: The nodes and the GPUs of a node, which NVLink joins; the chips along each dimension
            of a slice; or the number of CPU devices.
        slices: How many such slices the data-centre network joins.
        own: The GPU that a file describes.

    Example:
        >>> from namedmesh.aot import Target
        >>> Target("tpu", "v5p", (4, 4, 4)).cores, Target("gpu", "h100", (32, 8)).cores
        (64, 256)
        >>> print(Target("cpu", "", (8,)), Target("tpu", "v5e", (4, 4), slices=2))
        cpu:8 tpu-v5e:4x4:2
    """

    platform: str
    generation: str
    shape: tuple[int, ...]
    slices: int = 1
    own: Chip | None = None

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read a target from one word.

        Args:
            text: Such as `h100:32x8`, `tpu-v3:32x32` or `cpu:8`; `tpu-v5e:4x4:2` are two slices.
                `mine.txtpb:32x8` are nodes of the GPU that a file describes to XLA's compiler.

        Returns:
            The target.

        Example:
            >>> Target.parse("tpu-v3:32x32").cores, Target.parse("h100:32x8").cores
            (2048, 256)
        """
        own = re.fullmatch(r"(.+\.\w+):(\d{1,6}(?:x\d{1,6})?)", str(text))
        if own:
            return cls._of_file(own[1], tuple(map(int, own[2].split("x"))))
        form = r"(tpu-)?(\w+):(\d{1,6}(?:x\d{1,6})*)(?::([1-9]\d{0,5}))?"
        # Devices of v7x are tpu7x to jax.
        match = re.fullmatch(form, re.sub(r"^tpu(?=7)", "tpu-v", str(text)))
        shape = tuple(int(size) for size in match[3].split("x")) if match else ()
        if not match or not all(shape) or (match[4] and not match[1]):
            raise NamedMeshError(
                f"cannot read {text!r} as a target", fix=f"write a target such as {_EXAMPLES}"
            )
        name, slices = match[2], int(match[4] or 1)
        if match[1] and name in TPUS:
            target = cls("tpu", name, shape, slices)
            form, right = "a slice of TPU {} has {} dimensions", TPUS[name].dimensions
        elif not match[1] and name in GPUS:
            target = cls("gpu", name, (1, *shape) if len(shape) == 1 else shape)
            form, right = "nodes of {} have {} sizes, their number and the GPUs of each", 2
        elif not match[1] and name == "cpu":
            target, form, right = cls("cpu", "", shape), "{} devices have {} size, their number", 1
        else:
            kind, fix = "TPU generation", did_you_mean(name, TPUS)
            if not match[1]:
                known = (*GPUS, "cpu", *(f"tpu-{one}" for one in TPUS))
                file = "; a GPU's file is a target too: mine.txtpb:32x8"
                kind, fix = "chip", did_you_mean(name, known) + file
            if name.startswith("mi"):
                kind, fix = "compiler for", "AMD's loads with ROCm alone; nm.cost knows mi300x"
            raise NamedMeshError(f"target {text!r}: there is no {kind} {name!r}", fix=fix)
        if len(target.shape) != right:
            raise NamedMeshError(
                f"target {text!r}: {form.format(name, right)}, not {len(shape)}",
                fix=f"write a target such as {_EXAMPLES}",
            )
        if target.platform == "gpu" and target.shape[1] > target.chip.node:
            count, most = target.cores, target.chip.node
            raise NamedMeshError(
                f"target {text!r}: NVLink joins at most {most} GPUs of {name}",
                fix=f"write {name}:{-(-count // most)}x{min(count, most)}",
            )
        return target

    @classmethod
    def _of_file(cls, path: str, shape: tuple[int, ...]) -> Target:
        """Make a target of the GPU that a file describes."""
        if not path.endswith(ENDINGS):
            raise NamedMeshError(
                f"GPU file {path!r} is not a text for XLA's compiler, which ends in "
                f"{' or '.join(ENDINGS)}",
                fix="give a GpuTargetConfigProto in text; a YAML file is for nm.cost",
            )
        if not all(shape):
            raise NamedMeshError(f"{shape} has no GPU", fix=f"write {path}:32x8")
        return cls("gpu", path, (1, *shape)[-2:], own=read_gpu(path))

    @property
    def chip(self) -> Chip:
        """The chip whose devices they are."""
        if self.own:
            return self.own
        return TPUS[self.generation] if self.platform == "tpu" else CHIPS[self.generation or "cpu"]

    @property
    def cores(self) -> int:
        """The number of devices of the target."""
        return self.slices * math.prod(self.shape) * self.chip.devices

    @property
    def one_slice(self) -> Target:
        """One of its slices."""
        return replace(self, slices=1)

    @property
    def rings(self) -> tuple[bool, ...]:
        """The dimensions of a TPU slice that close to a ring."""
        chip = TPUS[self.generation]
        return tuple(
            size % chip.ring == 0 if chip.cubes else size == chip.ring for size in self.shape
        )

    def suggest(self, devices: int) -> str:
        """Suggest a target of the same generation for a mesh of another size.

        Args:
            devices: How many devices the mesh has.

        Returns:
            The fix of an error.
        """
        if self.platform == "cpu":
            return f"use --target cpu:{devices}"
        if self.platform == "gpu":
            inside = math.gcd(devices, self.shape[1] if self.own else self.chip.node)
            shape = devices // inside, inside
        else:
            chips, rest = divmod(devices, self.chip.devices * self.slices)
            if rest or chips < 1:
                return f"plan it for a mesh of {self.cores} devices"
            shape = compact_shape(chips, len(self.shape))
        same = replace(self, shape=shape)
        return f"use --target {same}, or plan it for a mesh of {self.cores} devices"

    def __str__(self) -> str:
        name = f"tpu-{self.generation}" if self.platform == "tpu" else self.generation or "cpu"
        slices = f":{self.slices}" if self.slices > 1 else ""
        return f"{name}:{'x'.join(map(str, self.shape))}{slices}"


def compact_shape(chips: int, dimensions: int) -> tuple[int, ...]:
    """Return the sizes of a slice of so many chips that is nearest to a square or cube."""
    factors, divisor = [], 2
    while chips > 1:
        while chips % divisor == 0:
            factors.append(divisor)
            chips //= divisor
        divisor += 1
    shape = [1] * dimensions
    for factor in reversed(factors):
        shape[shape.index(min(shape))] *= factor
    return tuple(sorted(shape))


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
        """Return the torus of a target's slice, without its compiler.

        Args:
            target: The target.

        Returns:
            Its torus; None for targets without one.
        """
        if target.platform != "tpu":
            return None

        def rank(place: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
            host = (place[0] // 2, place[1] // 2, *place[2:])
            return host[::-1], place[::-1]

        # Hosts have 2x2 chips and devices are listed host by host, in each dimension x first.
        places = sorted(itertools.product(*map(range, target.shape)), key=rank)
        count = TPUS[target.generation].devices
        return cls(
            tuple(place for place in places for _ in range(count)),
            tuple(core for _ in places for core in range(count)),
            target.rings,
        )

    @classmethod
    def of_devices(cls, devices: Sequence[Any], target: Target) -> Torus | None:
        """Return the torus by the coordinates of devices; of several slices, the first's.

        Args:
            devices: The target's devices, slice by slice.
            target: The target.

        Returns:
            The torus; None for devices without coordinates.
        """
        devices = devices[: len(devices) // target.slices]
        if target.platform != "tpu" or not all(hasattr(device, "coords") for device in devices):
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
        return np.column_stack([self.places, self.cores])

    @cached_property
    def hops(self) -> list[np.ndarray]:
        """For each dimension, the links between two positions; the cores of a chip need none."""
        links = []
        for size, ring in zip(self.sizes[:-1], self.rings, strict=True):
            apart = np.abs(np.arange(size)[:, None] - np.arange(size))
            links.append(np.minimum(apart, size - apart) if ring else apart)
        cores = self.sizes[-1]
        return [*links, np.zeros((cores, cores), int)]
