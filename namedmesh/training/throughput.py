"""Measurements of steps: times, tokens per second, utilization (MFU) and profiler traces."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from namedmesh.errors.errors import NamedMeshError
from namedmesh.files import check_path
from namedmesh.hardware.chips import list_peak_flops
from namedmesh.runtime import State


def device_peak_flops(device: Any = None) -> float:
    """Look up the peak of a device: dense bfloat16 FLOPs per second.

    Args:
        device: A jax device, or the kind of one as text; by default the first of this process.

    Returns:
        The peak of that one device.

    >>> from namedmesh.training import device_peak_flops
    >>> device_peak_flops("NVIDIA H200") / 1e12
    989.4
    """
    device = jax.devices()[0] if device is None else device
    kind = device if isinstance(device, str) else device.device_kind
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
        seconds: The duration of the step.
        devices: The number of devices.
        peak: The peak of one device in FLOPs per second, e.g. `device_peak_flops()`.

    Returns:
        A share: 0.5 is half of the peak.

    >>> from namedmesh.training import model_flops_utilization
    >>> model_flops_utilization(flops=8e12, seconds=0.1, devices=4, peak=100e12)
    0.2
    """
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
        """Return the duration that some percent of the steps do not exceed.

        Args:
            percent: From 0 to 100.

        Returns:
            The duration, interpolated linearly.
        """
        return float(np.percentile(self.seconds, percent))

    def tokens_per_second(self, tokens: float) -> float:
        """Return the tokens per second of the median step.

        Args:
            tokens: The number of tokens in a step.

        Returns:
            The tokens per second.
        """
        return tokens / self.median

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
        warmup: The number of first steps not to count.
        clock: The function that returns the time.

    Returns:
        The state after the last step, and the times.

    Example:
        >>> import namedmesh as nm
        >>> from namedmesh.training import time_steps
        >>> step = nm.compile(lambda x: x + 1, x=nm.spec([]), mesh=nm.Mesh(data=1))
        >>> state, times = time_steps(step, step.init(), [{"x": np.float32(1)}] * 5, warmup=2)
        >>> len(times.seconds), times.median > 0
        (3, True)
    """
    jax.block_until_ready(state.arrays)
    seconds = []
    for batch in batches:
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


@dataclass(frozen=True)
class TraceWindow:
    """The steps to trace with the profiler, and the folder of the trace.

    Args:
        folder: The folder of the trace.
        first: The first step to trace; the steps before it warm up.
        count: The number of steps to trace.

    Example:
        >>> from namedmesh.training import TraceWindow
        >>> TraceWindow("run/trace", first=5)
        TraceWindow(folder='run/trace', first=5, count=3)
    """

    folder: str | os.PathLike
    first: int = 10
    count: int = 3

    def __post_init__(self) -> None:
        check_path(self.folder, "the folder of the trace")
        if self.first < 1 or self.count < 1:
            raise NamedMeshError(
                f"a trace of {self.count} steps from step {self.first}",
                fix="trace at least one step; the first step is 1",
            )


class StepProfiler:
    """A `jax.profiler` trace of some steps, for TensorBoard, XProf or Perfetto.

    Args:
        window: The steps to trace.

    Example:
        >>> import tempfile
        >>> from namedmesh.training import StepProfiler, TraceWindow
        >>> window = TraceWindow(tempfile.mkdtemp(), first=2, count=1)
        >>> with StepProfiler(window).open() as profiler:
        ...     for number in (1, 2, 3):
        ...         profiler.before(number)
        ...         profiler.after(number, results=number * 10)
        ...     profiler.tracing
        False
    """

    def __init__(self, window: TraceWindow):
        self._window, self._step = window, ExitStack()
        self.tracing = False

    @contextmanager
    def open(self) -> Iterator[StepProfiler]:
        """Write the trace at the end, even when the loop ends inside the window."""
        try:
            yield self
        finally:
            self._stop()

    def before(self, step: int) -> None:
        """Start the trace if a step is the first of the window.

        Args:
            step: The number of the step to be taken.
        """
        window = self._window
        if step == window.first:
            jax.profiler.start_trace(os.fspath(window.folder))
            self.tracing = True
        if self.tracing:
            self._step.enter_context(jax.profiler.StepTraceAnnotation("step", step_num=step))

    def after(self, step: int, results: Any) -> None:
        """Stop the trace if a step is the last of the window.

        Args:
            step: The number of the step taken.
            results: Its results, to wait for.
        """
        if not self.tracing:
            return
        last = step >= self._window.first + self._window.count - 1
        if last:
            jax.block_until_ready(results)
        self._step.close()
        if last:
            self._stop()

    def _stop(self) -> None:
        """Write the trace, if there is one."""
        self._step.close()
        if self.tracing:
            self.tracing = False
            jax.profiler.stop_trace()
