"""Target: the machine to compile for."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from namedmesh.errors.errors import NamedMeshError, did_you_mean


@dataclass(frozen=True)
class Generation:
    """One kind of TPU.

    Attributes:
        cores: The devices that a chip shows.
        clock: Cycles a second, if known.
        dimensions: The dimensions of its network.
        full: The size at which a dimension closes to a ring.
        cubes: Whether every multiple of that size closes too.
    """

    cores: int
    clock: float | None
    dimensions: int
    full: int
    cubes: bool = False


GENERATIONS = {
    "v2": Generation(2, 700e6, 2, 16),
    "v3": Generation(2, 940e6, 2, 32),
    "v4": Generation(2, 1050e6, 3, 4, cubes=True),
    "v5e": Generation(1, 1500e6, 2, 16),
    "v5p": Generation(1, 1750e6, 3, 4, cubes=True),
    "v6e": Generation(1, None, 2, 16),
}
_EXAMPLES = "tpu-v3:32x32 (2,048 cores), tpu-v5p:4x4x4 (64), tpu-v5e:4x4:2 (two slices) or cpu:8"


@dataclass(frozen=True)
class Target:
    """What to compile for: slices of a TPU generation in chips, or a number of CPU devices.

    Attributes:
        platform: `tpu` or `cpu`.
        generation: The TPU generation, such as `v3`; empty for CPUs.
        shape: The chips along each dimension of a slice, or the number of CPU devices.
        slices: How many such slices the data-centre network joins.

    Example:
        >>> from namedmesh.aot import Target
        >>> Target("tpu", "v5p", (4, 4, 4)).cores
        64
        >>> print(Target("cpu", "", (8,)), Target("tpu", "v5e", (4, 4), slices=2))
        cpu:8 tpu-v5e:4x4:2
    """

    platform: str
    generation: str
    shape: tuple[int, ...]
    slices: int = 1

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read a target from one word.

        Args:
            text: Such as `tpu-v3:32x32` or `cpu:8`; `tpu-v5e:4x4:2` are two slices.

        Returns:
            The target.

        Raises:
            NamedMeshError: If the text is not a target, or there is no such TPU.

        Example:
            >>> Target.parse("tpu-v3:32x32").cores
            2048
        """
        match = (
            re.fullmatch(r"(?:tpu-(\w+)|(cpu)):(\d{1,6}(?:x\d{1,6})*)(?::([1-9]\d{0,5}))?", text)
            if isinstance(text, str)
            else None
        )
        shape = tuple(int(size) for size in match[3].split("x")) if match else ()
        if not match or not all(shape) or (match[2] and (len(shape) != 1 or match[4])):
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
        dimensions = GENERATIONS[match[1]].dimensions
        if len(shape) != dimensions:
            raise NamedMeshError(
                f"target {text!r}: a slice of TPU {match[1]} has {dimensions} dimensions, "
                f"not {len(shape)}",
                fix=f"write a target such as {_EXAMPLES}",
            )
        return cls("tpu", match[1], shape, int(match[4] or 1))

    @property
    def cores(self) -> int:
        """How many devices the target has."""
        cores = GENERATIONS[self.generation].cores if self.generation else 1
        return self.slices * math.prod(self.shape) * cores

    @property
    def one_slice(self) -> Target:
        """One of its slices."""
        return replace(self, slices=1)

    @property
    def rings(self) -> tuple[bool, ...]:
        """Which dimensions of a TPU slice close to a ring."""
        kind = GENERATIONS[self.generation]
        return tuple(
            size % kind.full == 0 if kind.cubes else size == kind.full for size in self.shape
        )

    def suggest(self, devices: int) -> str:
        """How to bring this target and a mesh of another size together.

        Args:
            devices: How many devices the mesh has.

        Returns:
            The fix: a target of the same generation, or a mesh of as many devices.
        """
        if self.platform == "cpu":
            return f"use --target cpu:{devices}"
        chips, rest = divmod(devices, GENERATIONS[self.generation].cores * self.slices)
        if rest or chips < 1:
            return f"plan it for a mesh of {self.cores} devices"
        shape = [1] * len(self.shape)
        for factor in _prime_factors(chips):
            shape[shape.index(min(shape))] *= factor
        same = replace(self, shape=tuple(sorted(shape)))
        return f"use --target {same}, or plan it for a mesh of {self.cores} devices"

    def __str__(self) -> str:
        name = f"tpu-{self.generation}" if self.generation else self.platform
        slices = f":{self.slices}" if self.slices > 1 else ""
        return f"{name}:{'x'.join(map(str, self.shape))}{slices}"


def _prime_factors(number: int) -> list[int]:
    """Prime factors, the largest first."""
    factors, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors[::-1]
