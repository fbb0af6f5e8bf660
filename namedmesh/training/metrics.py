"""Metrics of a run: lines of JSON, and the same numbers as TensorBoard summaries."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from namedmesh.errors.errors import NamedMeshError
from namedmesh.errors.mistakes import Explained
from namedmesh.files import check_path, describe_os_error, read_bytes, write_file

_LARGEST_FILE = 2**32  # bytes


class MetricsLog(Explained):
    """A file of JSON lines to append metrics to, and TensorBoard summaries of the same numbers.

    Args:
        path: The file, e.g. run/metrics.jsonl.
        step: The step a run resumes from; rows and summaries beyond it are removed.
        summaries: The folder of the TensorBoard summaries (by tensorboardX); None for none.

    Example:
        >>> import pathlib, tempfile
        >>> from namedmesh.training import MetricsLog, read_metrics
        >>> path = pathlib.Path(tempfile.mkdtemp(), "metrics.jsonl")
        >>> log = MetricsLog(path)
        >>> log.write({"step": 1, "loss": 2.5})
        >>> read_metrics(path)
        [{'step': 1, 'loss': 2.5}]
    """

    def __init__(
        self, path: str | os.PathLike, step: int = 0, summaries: str | os.PathLike | None = None
    ):
        name = check_path(path, "the file of metrics")
        rows = [row for row in read_metrics(name) if row["step"] <= step]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        try:
            pathlib.Path(name).parent.mkdir(parents=True, exist_ok=True)
            write_file(name, text.encode(), "the metrics")
            self._file = open(name, "a", encoding="utf-8")  # noqa: SIM115 (closed by close)
        except OSError as error:
            raise NamedMeshError(
                f"cannot write the metrics {name!r}: {describe_os_error(error)}",
                fix="check the path",
            ) from None
        self._writer = None if summaries is None else _open_summaries(summaries, step)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append a row; its numbers become summaries too.

        Args:
            row: JSON values by name, among them "step".
        """
        self._file.write(json.dumps(dict(row)) + "\n")
        self._file.flush()  # so that a run that is killed keeps it
        for name, value in row.items():
            if self._writer is not None and name != "step" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, row["step"])

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._writer is not None:
            self._writer.close()


def read_metrics(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Read the rows written so far.

    Args:
        path: A file that a `MetricsLog` wrote; it may be missing.

    Returns:
        The rows, up to a line that a crash cut short.

    Example:
        >>> from namedmesh.training import read_metrics
        >>> read_metrics("no/metrics.jsonl")
        []
    """
    name = check_path(path, "the file of metrics")
    try:
        text = read_bytes(name, _LARGEST_FILE).decode(errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise NamedMeshError(
            f"cannot read the metrics {name!r}: {describe_os_error(error)}", fix="check the path"
        ) from None
    rows: list[dict[str, Any]] = []
    lines = text.splitlines()
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
            continue
        if not rows and len(lines) > 1:  # a crash cuts the last line short, never the first
            raise NamedMeshError(
                f"{name!r} is not a file of metrics", fix="name a file that MetricsLog wrote"
            )
        break
    return rows


def _open_summaries(folder: str | os.PathLike, step: int) -> Any:
    """Open a TensorBoard writer that voids events beyond the step; None without tensorboardX."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        return None
    try:
        return SummaryWriter(os.fspath(folder), purge_step=step or None)
    except OSError as error:
        problem = f"cannot write summaries to {os.fspath(folder)!r}: {describe_os_error(error)}"
        raise NamedMeshError(problem, fix="name a folder") from None
