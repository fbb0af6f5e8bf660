"""The checkpoints of a run as all processes know them: steps, their metric, and which are kept."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any

from namedmesh.errors.errors import NamedMeshError, join_names
from namedmesh.processes.processes import Processes
from namedmesh.training.checkpoint_folder import CheckpointFolder
from namedmesh.training.checkpoint_record import Record
from namedmesh.training.first_process import run_on_first
from namedmesh.training.restoring import read_record
from namedmesh.training.writer_lock import WriterLock, read_writer

_LOOKS = 10  # of a process at what process 0 has written
_SECONDS = 300.0  # how long processes wait for each other


class CheckpointCatalog:
    """The complete checkpoints in a folder; process 0 looks, and changes it, for all processes."""

    def __init__(
        self,
        files: CheckpointFolder,
        processes: Processes,
        keep: int | None,
        metric: str,
        rank: Callable[..., Any],
    ):
        self._files, self._processes = files, processes
        self._keep, self._metric, self._rank = keep, metric, rank
        self._lock: WriterLock | None = None
        processes.agree("the folder of the checkpoints", str(files.path))
        try:
            writer, found = self._on_first("opening", self._look)
            self._metrics: dict[int, float | None] = {step: value for step, value in found}
            if processes.count > 1:
                self._check_shared(writer)
        except BaseException:
            self.close()
            raise

    def _look(self) -> tuple[str, list[tuple[int, float | None]]]:
        """Who writes, and each step with its metric; what a killed process left is removed."""
        if self._keep is not None:
            self._files.path.mkdir(parents=True, exist_ok=True)
            self._lock = WriterLock(self._files.path)
            self._files.remove_leftovers()
        found = [(step, self._read_metric(step)) for step in self._files.list_steps()]
        return self._lock.text if self._lock is not None else "", found

    def close(self) -> None:
        """Let others save in the folder."""
        if self._lock is not None:
            self._lock.release()

    def _read_metric(self, step: int) -> float | None:
        """The metric of a checkpoint; None if it has none, or is damaged."""
        try:
            value = read_record(self._files, step).metrics.get(self._metric)
        except NamedMeshError:
            return None
        return value if isinstance(value, int | float) and math.isfinite(value) else None

    def _check_shared(self, writer: str) -> None:
        """Raise on every process if one does not see the folder that process 0 sees."""
        text = "all"
        for _ in range(_LOOKS):
            seen = self._files.list_steps()
            absent = [str(step) for step in self._metrics if step not in seen]
            text = f"no step {join_names(absent)}" if absent else "all"
            if not absent and writer and read_writer(self._files.path) != writer:
                text = "another folder than process 0"
            if text == "all":
                break
            time.sleep(0.5)  # a network's file system may be late
        texts = self._processes.exchange(f"what is in {self._files.path}", text)
        others = [f"process {one} sees {text}" for one, text in enumerate(texts) if text != "all"]
        if others:
            raise NamedMeshError(
                f"{self._files.path} is not the same folder for all processes",
                *others[:8],
                fix="name a folder on a file system that all processes share",
            )

    def _on_first(self, what: str, action: Callable[[], Any]) -> Any:
        """Do something on process 0."""
        fix = "check that the folder is there and that you may write to it"
        what = f"{what} {self._files.path}"
        return run_on_first(self._processes, what, action, fix=fix, timeout=_SECONDS)

    @property
    def steps(self) -> list[int]:
        """The steps in order."""
        return sorted(self._metrics)

    @property
    def best(self) -> int | None:
        """The step with the best metric; the newest if none was measured."""
        best = best_step(self._metrics, self._rank)
        return max(self._metrics, default=None) if best is None else best

    def prune(self, record: Record) -> None:
        """Delete what is not kept beside a new checkpoint; on process 0, from any thread."""
        for step in self._find_old(record):
            with contextlib.suppress(OSError):  # a reader may hold it; the next start removes it
                self._files.delete(step)

    def add(self, record: Record) -> None:
        """Enter a new checkpoint, in the place of those that are not kept beside it."""
        old = self._find_old(record)
        self._metrics[record.step] = record.metrics.get(self._metric)
        for step in old:
            del self._metrics[step]

    def _find_old(self, record: Record) -> list[int]:
        """The steps that are not kept beside a new checkpoint."""
        metrics = self._metrics | {record.step: record.metrics.get(self._metric)}
        newest = sorted(metrics)[-(self._keep or len(metrics)) :]
        best = best_step(metrics, self._rank)
        return [step for step in sorted(metrics) if step not in newest and step != best]

    def delete(self, step: int) -> None:
        """Delete a checkpoint, unless it is the only one."""
        if step in self._metrics and len(self._metrics) > 1:
            self._on_first("deleting from", lambda: self._files.delete(step))
            del self._metrics[step]

    def set_aside(self, step: int) -> str:
        """Rename a damaged checkpoint, so that its step can be saved again."""
        name = self._on_first("setting aside in", lambda: self._files.set_aside(step).name)
        del self._metrics[step]
        return name


def best_step(metrics: dict[int, float | None], rank: Callable[..., Any]) -> int | None:
    """The step with the best metric, the newest of equals.

    >>> best_step({1: 2.0, 2: 1.0, 3: 1.0, 4: None}, min)
    3
    """
    measured = {step: value for step, value in metrics.items() if value is not None}
    if not measured:
        return None
    best = rank(measured.values())
    return max(step for step, value in measured.items() if value == best)
