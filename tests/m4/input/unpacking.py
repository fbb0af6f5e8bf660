"""Packed rows, read by a literal loop."""

import numpy as np


def unpacked(arrays: dict[str, np.ndarray], side: str) -> list[list[tuple[int, ...]]]:
    """The segments of each row, by a literal loop over its tokens that checks the positions."""
    rows = []
    for tokens, segments, positions in zip(
        *(arrays[f"{side}{name}"] for name in ("", "_segments", "_positions")), strict=True
    ):
        row: list[list[int]] = []
        for token, segment, position in zip(
            tokens.tolist(), segments.tolist(), positions.tolist(), strict=True
        ):
            if segment == 0:
                assert token == 0 and position == 0
                continue
            if segment == len(row) + 1:
                row.append([])
            assert segment == len(row) and position == len(row[-1])
            row[-1].append(token)
        rows.append([tuple(one) for one in row])
    return rows
