"""Schedules: functions from the number of steps taken so far (int32, zero at first) to a scalar, a learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable

import namedmesh as nm

Schedule = Callable[[nm.Tensor], nm.Tensor]


def constant(value: float) -> Schedule:
    """The same at every step."""
    return lambda step: nm.full([], float(value))


def inverse_square_root(scale: float = 1.0, *, after: int = 10_000) -> Schedule:
    """scale / sqrt(max(step, after)): the paper's; flat at scale / sqrt(after) at first, so 0.01 by default."""
    _at_least_one("inverse_square_root", "after", after)
    return lambda step: nm.rsqrt(nm.maximum(nm.cast(step, "float32"), float(after))) * scale


def cosine_decay(start: float, *, steps: int, end: float = 0.0) -> Schedule:
    """From start to end along half a cosine in so many steps, and end ever after."""
    _at_least_one("cosine_decay", "steps", steps)

    def value(step: nm.Tensor) -> nm.Tensor:
        done = nm.minimum(nm.cast(step, "float32") * (1.0 / steps), 1.0)
        return (nm.cos(done * math.pi) + 1.0) * (0.5 * (start - end)) + end

    return value


def linear_warmup(then: float | Schedule, *, steps: int) -> Schedule:
    """Another schedule times min((step + 1) / steps, 1): the first step counts, and the other's clock starts at zero too."""
    _at_least_one("linear_warmup", "steps", steps)
    after = as_schedule(then)
    return lambda step: (
        after(step) * nm.minimum((nm.cast(step, "float32") + 1.0) * (1.0 / steps), 1.0)
    )


def as_schedule(rate: float | Schedule) -> Schedule:
    """A schedule from itself or from a plain number, or raises."""
    if callable(rate):
        return rate
    if isinstance(rate, bool) or not isinstance(rate, (int, float)):
        raise nm.NamedMeshError(
            f"{rate!r} is neither a number nor a schedule",
            fix="pass e.g. 0.01 or inverse_square_root(1.0, after=10_000)",
        )
    return constant(rate)


def _at_least_one(what: str, option: str, value: int) -> None:
    if value < 1:
        raise nm.NamedMeshError(
            f"{what}: {option}={value}", fix=f"{option} is a number of steps, one or more"
        )
