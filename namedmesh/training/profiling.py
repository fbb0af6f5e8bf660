"""A profiler trace of chosen steps, for TensorBoard, XProf or Perfetto."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax

from namedmesh.errors.errors import NamedMeshError
from namedmesh.training.arguments import check_count, check_file_path


@dataclass(frozen=True)
class TraceWindow:
    """Which steps to trace, and where the trace goes.

    Args:
        folder: The folder of the trace.
        first: The first step to trace; the steps before it warm up.
        count: How many steps to trace.

    Raises:
        NamedMeshError: If the window has no step, or starts before step 1.

    Example:
        >>> from namedmesh.training import TraceWindow
        >>> TraceWindow("run/trace", first=5)
        TraceWindow(folder='run/trace', first=5, count=3)
    """

    folder: str | os.PathLike
    first: int = 10
    count: int = 3

    def __post_init__(self) -> None:
        check_file_path(self.folder, "the folder of the trace")
        first, count = check_count(self.first, "first"), check_count(self.count, "count")
        if first < 1 or count < 1:
            raise NamedMeshError(
                f"a trace of {self.count} steps from step {self.first}",
                fix="trace at least one step; the first step is 1",
            )


class StepProfiler:
    """Traces the steps of a window with `jax.profiler`.

    Each step is named and numbered in the trace. The trace ends when the results of its last step
    are ready, so that it has all that the devices did.

    Args:
        window: Which steps to trace.

    Example:
        >>> import pathlib, tempfile
        >>> import jax.numpy as jnp
        >>> from namedmesh.training import StepProfiler, TraceWindow
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> with StepProfiler(TraceWindow(folder, first=2, count=1)).open() as profiler:
        ...     for number in (1, 2, 3):
        ...         profiler.before(number)
        ...         results = jnp.ones(4) * number
        ...         profiler.after(number, results)
        >>> len(list(folder.rglob("*.xplane.pb")))
        1
    """

    def __init__(self, window: TraceWindow):
        self._window, self._annotation = window, None
        self.tracing = False

    @contextmanager
    def open(self) -> Iterator[StepProfiler]:
        """Make sure that a trace is written even when the loop ends inside the window."""
        try:
            yield self
        finally:
            self._stop()

    def before(self, step: int) -> None:
        """Start the trace if this step is the first of the window.

        Args:
            step: The number of the step that is about to be taken.
        """
        window = self._window
        if step == window.first:
            jax.profiler.start_trace(os.fspath(window.folder))
            self.tracing = True
        if self.tracing:
            self._annotation = jax.profiler.StepTraceAnnotation("step", step_num=step)
            self._annotation.__enter__()

    def after(self, step: int, results: Any) -> None:
        """Stop the trace if this step was the last of the window.

        Args:
            step: The number of the step that was taken.
            results: What it returned, to wait for.
        """
        if not self.tracing:
            return
        last = step >= self._window.first + self._window.count - 1
        if last:
            jax.block_until_ready(results)
        self._leave()
        if last:
            self._stop()

    def _leave(self) -> None:
        """End the step in the trace."""
        if self._annotation is not None:
            self._annotation.__exit__(None, None, None)
            self._annotation = None

    def _stop(self) -> None:
        """Write the trace, if there is one."""
        self._leave()
        if self.tracing:
            self.tracing = False
            jax.profiler.stop_trace()
