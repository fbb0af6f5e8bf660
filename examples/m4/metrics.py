"""Metrics: JSON lines, one for each time training looked up, and TensorBoard summaries of the same."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any


class Metrics:
    """Appends to metrics.jsonl; what lies beyond the step a run goes on from is cut off first."""

    def __init__(self, path: pathlib.Path, summaries: pathlib.Path, step: int):
        kept = [row for row in read_metrics(path) if row["step"] <= step]
        temporary = path.with_suffix(f".{os.getpid()}.partial")
        temporary.write_text("".join(json.dumps(row) + "\n" for row in kept))
        os.replace(temporary, path)
        self._file = path.open("a")
        self._writer = _summary_writer(summaries, step)

    def write(self, row: dict[str, Any]) -> None:
        """One row; numbers in it are summaries too."""
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        for name, value in row.items():
            if self._writer is not None and name != "step" and isinstance(value, (int, float)):
                self._writer.add_scalar(name, value, row["step"])

    def close(self) -> None:
        """Writes what is left."""
        self._file.close()
        if self._writer is not None:
            self._writer.close()


def read_metrics(path: pathlib.Path) -> list[dict[str, Any]]:
    """The rows written so far; one cut short by a crash does not count."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def _summary_writer(folder: pathlib.Path, step: int) -> Any:
    """A TensorBoard writer, where tensorboardX is installed; events beyond the step are marked as void."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(os.fspath(folder), purge_step=step or None)
