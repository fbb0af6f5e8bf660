"""Several examples in one row: which go together, and the arrays they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from examples.m4.input.tokens import Ragged
from namedmesh.errors.errors import NamedMeshError, check_size


@dataclass(frozen=True)
class Packed:
    """Rows of examples, and the share of the rows' tokens that are not padding."""

    rows: list[np.ndarray]  # of each row its examples, which are its segments 1, 2, ...
    source_fill: float
    target_fill: float

    def __len__(self) -> int:
        return len(self.rows)


def fits_in_row(
    source_lengths: np.ndarray, target_lengths: np.ndarray, source: int, target: int
) -> np.ndarray:
    """Return whether each example fits into a row of so many source and target tokens."""
    return (source_lengths <= source) & (target_lengths <= target)


def pack(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    source: int,
    target: int,
    *,
    most: int | None = None,
) -> Packed:
    """Pack examples of these lengths into rows of source and target tokens.

    First fit, longest first: each example goes into the first row that has room for both of its
    sides, and has fewer than `most` segments. Rows of long examples come first, so a stream should
    shuffle them.
    """
    most = len(source_lengths) if most is None else check_size(most, "a row's most segments")
    if not fits_in_row(source_lengths, target_lengths, source, target).all():
        worst = int(np.argmax(np.maximum(source_lengths / source, target_lengths / target)))
        raise NamedMeshError(
            f"an example of {source_lengths[worst]} source and {target_lengths[worst]} target "
            f"tokens fits in no row of {source} and {target}",
            fix="leave out what does not fit, see fits_in_row(), or make the rows longer",
        )
    count, rows = len(source_lengths), 0
    source_left, target_left = np.zeros(count, np.int32), np.zeros(count, np.int32)
    members: list[list[int]] = []
    lengths = list(zip(source_lengths.tolist(), target_lengths.tolist(), strict=True))
    for example in np.argsort(
        -(source_lengths / source + target_lengths / target), kind="stable"
    ).tolist():
        source_length, target_length = lengths[example]
        room = (source_left[:rows] >= source_length) & (target_left[:rows] >= target_length)
        row = int(room.argmax()) if rows else 0
        if not rows or not room[row]:
            row, rows = rows, rows + 1
            source_left[row], target_left[row] = source, target
            members.append([])
        members[row].append(example)
        source_left[row] -= source_length
        target_left[row] -= target_length
        if len(members[row]) == most:
            source_left[row] = -1  # full
    fill = [
        float(sides.sum() / max(1, rows * width))
        for sides, width in ((source_lengths, source), (target_lengths, target))
    ]
    return Packed([np.array(row, np.int64) for row in members], *fill)


def assemble(
    side: str, sequences: Ragged, rows: Sequence[np.ndarray], width: int
) -> dict[str, np.ndarray]:
    """Assemble the arrays of one side, [rows, width] each: tokens, segments, and positions in them.

    What does not fit into a row of this width is cut off.
    """
    counts = np.array([len(row) for row in rows], np.int64)
    examples = np.concatenate([np.zeros(0, np.int64), *rows])
    starts = np.cumsum(counts) - counts
    row = np.repeat(np.arange(len(rows)), counts)
    segments = np.arange(len(examples)) - starts[row] + 1
    first = sequences.offsets[examples]
    lengths = sequences.offsets[examples + 1] - first
    before = np.concatenate(
        [np.zeros(1, np.int64), np.cumsum(lengths)]
    )  # tokens of the examples before
    columns = before[:-1] - before[starts][row]
    lengths = np.clip(width - columns, 0, lengths)
    positions = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    places = np.repeat(row * width + columns, lengths) + positions
    arrays = {
        name: np.zeros((len(rows), width), np.int32)
        for name in (side, f"{side}_segments", f"{side}_positions")
    }
    arrays[side].reshape(-1)[places] = sequences.tokens[np.repeat(first, lengths) + positions]
    arrays[f"{side}_segments"].reshape(-1)[places] = np.repeat(segments, lengths)
    arrays[f"{side}_positions"].reshape(-1)[places] = positions
    return arrays
