"""Learning-rate schedules: functions from the steps taken, an int32 scalar, to a scalar."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import namedmesh as nm

RateSchedule: TypeAlias = Callable[[nm.Tensor], nm.Tensor]


def constant_rate(value: float) -> RateSchedule:
    """Return a schedule with the same rate at every step.

    Example:
        >>> nm.trace(constant_rate(0.1), step=nm.spec([], "int32")).outputs[0].shape
        []
    """
    return lambda step: nm.full([], float(value))


def inverse_square_root(scale: float = 1.0, *, after: int = 10_000) -> RateSchedule:
    """Return the paper's schedule: scale / sqrt(max(step, after)).

    Args:
        scale: The factor.
        after: The number of steps during which the rate stays at its first value.

    Example:
        >>> rate = nm.trace(inverse_square_root(2.0, after=4), step=nm.spec([], "int32"))
        >>> [float(rate.evaluate({}, step=step)[1]) for step in (0, 4, 16)]
        [1.0, 1.0, 0.5]
    """
    _check_steps("inverse_square_root", "after", after)
    return lambda step: nm.rsqrt(nm.maximum(nm.cast(step, "float32"), float(after))) * scale


def cosine_decay(start: float, *, steps: int, end: float = 0.0) -> RateSchedule:
    """Return a schedule that falls from start to end along half a cosine.

    Args:
        start: The first rate.
        steps: The number of steps after which the rate stays at `end`.
        end: The last rate.

    Example:
        >>> rate = nm.trace(cosine_decay(1.0, steps=10), step=nm.spec([], "int32"))
        >>> [round(float(rate.evaluate({}, step=step)[1]), 3) for step in (0, 5, 10, 20)]
        [1.0, 0.5, 0.0, 0.0]
    """
    _check_steps("cosine_decay", "steps", steps)

    def rate(step: nm.Tensor) -> nm.Tensor:
        done = nm.minimum(nm.cast(step, "float32") * (1.0 / steps), 1.0)
        return (nm.cos(done * math.pi) + 1.0) * (0.5 * (start - end)) + end

    return rate


def linear_warmup(then: float | RateSchedule, *, steps: int) -> RateSchedule:
    """Return a schedule multiplied by min((step + 1) / steps, 1).

    Args:
        then: The schedule, whose clock runs during the warm-up too, or a number.
        steps: The number of steps until the full rate.

    Example:
        >>> rate = nm.trace(linear_warmup(1.0, steps=4), step=nm.spec([], "int32"))
        >>> [float(rate.evaluate({}, step=step)[1]) for step in (0, 1, 3, 9)]
        [0.25, 0.5, 1.0, 1.0]
    """
    _check_steps("linear_warmup", "steps", steps)
    after = as_schedule(then)
    return lambda step: (
        after(step) * nm.minimum((nm.cast(step, "float32") + 1.0) * (1.0 / steps), 1.0)
    )


def linear_cooldown(then: float | RateSchedule, *, total: int, steps: int) -> RateSchedule:
    """Return a schedule multiplied by min((total - step) / steps, 1), zero at the end.

    Args:
        then: The schedule, or a number for a constant rate.
        total: The steps of the whole training.
        steps: The number of steps, the last ones, in which the rate falls.

    Example:
        >>> rate = nm.trace(linear_cooldown(1.0, total=8, steps=4), step=nm.spec([], "int32"))
        >>> [float(rate.evaluate({}, step=step)[1]) for step in (0, 4, 6, 8, 9)]
        [1.0, 1.0, 0.5, 0.0, 0.0]
    """
    _check_steps("linear_cooldown", "total", total)
    _check_steps("linear_cooldown", "steps", steps)
    before = as_schedule(then)

    def rate(step: nm.Tensor) -> nm.Tensor:
        left = (float(total) - nm.cast(step, "float32")) * (1.0 / steps)
        return before(step) * nm.minimum(nm.maximum(left, 0.0), 1.0)

    return rate


def as_schedule(rate: float | RateSchedule) -> RateSchedule:
    """Return a schedule as it is, or a constant one for a number.

    Example:
        >>> schedule = cosine_decay(1.0, steps=10)
        >>> as_schedule(schedule) is schedule
        True
    """
    if callable(rate):
        return rate
    if isinstance(rate, bool) or not isinstance(rate, (int, float)):
        raise nm.NamedMeshError(
            f"{rate!r} is neither a number nor a schedule",
            fix="pass e.g. 0.01 or inverse_square_root(1.0, after=10_000)",
        )
    return constant_rate(rate)


def _check_steps(owner: str, option: str, value: int) -> None:
    """Raise unless a number of steps is one or more."""
    if value < 1:
        raise nm.NamedMeshError(
            f"{owner}: {option}={value} is not a positive number of steps",
            fix=f"pass {option}=1 or more",
        )
