"""A train step that is ready to be measured, whatever system compiled it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.kernels import Launch


@dataclass(frozen=True)
class Runner:
    """A train step with its state, which it keeps from call to call.

    Attributes:
        run: Takes a step; returns its metrics, and the arrays of the new state to wait for.
        wait: Waits for what that returned.
        text: Returns the compiled program, optimized HLO; empty where there is none.
        read_kernels: Takes some steps under a profiler and returns the kernels that ran.
        peak_bytes: Returns the most memory taken so far; None where nothing counts it.
        trace_seconds: The time to trace and lower it; an Artifact was lowered before.
        compile_seconds: The time to compile it, by torch that of a first pass.
        planned_bytes: The memory it takes by the compiler's own account, or None.
        parameters: The number of weights.
        device: The platform, `gpu` or `cpu`, and the name of the device.
        version: The name and the version of the library that compiled it.
    """

    run: Callable[[], tuple[dict[str, Any], Any]]
    wait: Callable[[Any], Any]
    text: Callable[[], str]
    read_kernels: Callable[[int], Iterable[Launch]]
    peak_bytes: Callable[[], int | None]
    trace_seconds: float
    compile_seconds: float
    planned_bytes: int | None
    parameters: int
    device: tuple[str, str]
    version: tuple[str, str]
