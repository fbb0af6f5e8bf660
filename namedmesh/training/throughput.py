"""Throughput: step times, tokens per second, and the share of the devices' peak that is used."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from namedmesh.errors.errors import NamedMeshError
from namedmesh.hardware.chips import list_peak_flops
from namedmesh.runtime import State
from namedmesh.training.arguments import (
    check_count,
    check_named_arrays,
    check_real,
    check_run,
)


def device_peak_flops(device: Any = None) -> float:
    """Look up the peak of a device: dense bfloat16 FLOPs per second.

    Args:
        device: A jax device, or the kind of one as text; by default the first of this process.

    Returns:
        The peak of that one device.

    Raises:
        NamedMeshError: If the kind of device is not in the table.

    >>> from namedmesh.training import device_peak_flops
    >>> device_peak_flops("NVIDIA H200") / 1e12
    989.4
    >>> device_peak_flops("TPU v5 lite") / 1e12
    197.0
    """
    device = jax.devices()[0] if device is None else device
    kind = device if isinstance(device, str) else getattr(device, "device_kind", None)
    if not isinstance(kind, str):
        raise NamedMeshError(
            f"a {type(device).__name__} is not a device",
            fix="give one of jax.devices(), or the kind of one as text, e.g. 'TPU v5 lite'",
        )
    peaks = list_peak_flops()
    for name, peak in peaks.items():
        if name in kind.lower():
            return peak
    raise NamedMeshError(
        f"the peak FLOPs of {kind!r} are not known",
        f"known: {', '.join(sorted(peaks))}",
        fix="give the peak yourself, in FLOPs per second of one device",
    )


def model_flops_utilization(flops: float, seconds: float, devices: int, peak: float) -> float:
    """Compute the model FLOPs utilization (MFU): the share of the devices' peak that a step uses.

    Args:
        flops: The FLOPs of one step of the whole program, e.g. `executable.artifact.flops`.
        seconds: How long the step takes.
        devices: How many devices run it.
        peak: The peak of one device in FLOPs per second, e.g. `device_peak_flops()`.

    Returns:
        A share: 0.5 is half of the peak.

    >>> from namedmesh.training import model_flops_utilization
    >>> model_flops_utilization(flops=8e12, seconds=0.1, devices=4, peak=100e12)
    0.2
    """
    flops = check_real(flops, "flops")
    for name, value in (("seconds", seconds), ("devices", devices), ("peak", peak)):
        if not check_real(value, name) > 0:
            raise NamedMeshError(f"{name}={value}", fix="give a positive number")
    return flops / (seconds * devices * peak)


@dataclass(frozen=True)
class StepTimes:
    """The durations of some steps, in seconds.

    >>> from namedmesh.training import StepTimes
    >>> times = StepTimes((0.3, 0.1, 0.2))
    >>> times.median, times.tokens_per_second(1000)
    (0.2, 5000.0)
    """

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median duration."""
        return self.percentile(50)

    def percentile(self, percent: float) -> float:
        """The duration that some percent of the steps do not exceed, interpolated linearly.

        Args:
            percent: From 0 to 100.

        Returns:
            The duration in seconds.
        """
        return float(np.percentile(self.seconds, percent))

    def tokens_per_second(self, tokens: float) -> float:
        """Tokens per second of the median step.

        Args:
            tokens: How many tokens a step has.

        Returns:
            The tokens per second.
        """
        return tokens / self.median

    def utilization(self, flops: float, devices: int, peak: float) -> float:
        """The model FLOPs utilization of the median step; see `model_flops_utilization`.

        Args:
            flops: The FLOPs of one step of the whole program.
            devices: How many devices run it.
            peak: The peak of one device in FLOPs per second.

        Returns:
            A share: 0.5 is half of the peak.
        """
        return model_flops_utilization(flops, self.median, devices, peak)

    def __str__(self) -> str:
        middle, high = self.median * 1e3, self.percentile(90) * 1e3
        return f"{middle:.3g} ms median, {high:.3g} ms 90th percentile of {len(self.seconds)} steps"


def time_steps(
    step: Callable[..., tuple[State, Any]],
    state: State,
    batches: Iterable[Mapping[str, Any]],
    *,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[State, StepTimes]:
    """Time steps one by one, each until its results are fetched and its new state is ready.

    Args:
        step: An Executable, or any function from a state and inputs to the next state and results.
        state: The state to start from.
        batches: The inputs of each step by name, warm-up included.
        warmup: How many of the first steps not to count.
        clock: Where the time comes from.

    Returns:
        The state after the last step, and the times.

    Raises:
        NamedMeshError: If there are not more batches than warm-up steps.

    Example:
        >>> import namedmesh as nm
        >>> from namedmesh.training import time_steps
        >>> M = nm.Dimension("model", 4)
        >>> step = nm.compile(lambda x: nm.sum(x), x=nm.spec([M]), mesh=nm.Mesh(data=1))
        >>> x = np.ones(4, np.float32)
        >>> state, times = time_steps(step, step.init(), [{"x": x}] * 5, warmup=2)
        >>> len(times.seconds), times.median > 0
        (3, True)
    """
    step, batches = check_run(step, batches)
    if not hasattr(state, "arrays"):
        raise NamedMeshError(
            f"the state is a {type(state).__name__}, expected a State",
            fix="start from step.init(seed) or step.place({name: array})",
        )
    warmup = check_count(warmup, "warmup")
    if not callable(clock):
        raise NamedMeshError(
            f"clock is a {type(clock).__name__}", fix="give a function, e.g. time.perf_counter"
        )
    jax.block_until_ready(state.arrays)
    seconds = []
    for batch in map(check_named_arrays, batches):
        start = clock()
        state, results = step(state, **batch)
        jax.device_get(results)
        jax.block_until_ready(state.arrays)
        seconds.append(clock() - start)
    if len(seconds) <= warmup:
        raise NamedMeshError(
            f"{len(seconds)} steps were taken, and {warmup} of them only warm up",
            fix="give more batches, or a smaller warmup",
        )
    return state, StepTimes(tuple(seconds[warmup:]))
