"""Divergence: a loss far above what it was over the last steps."""

from __future__ import annotations

import statistics
from collections import deque

from namedmesh.errors.errors import NamedMeshError
from namedmesh.training.arguments import check_real

WINDOW = 100  # the steps whose median counts
LEAST = 20  # a median of fewer steps says nothing


class Divergence:
    """Whether a loss is above a multiple of its running median."""

    def __init__(self, factor: float):
        self.factor = check_real(factor, "divergence")
        if not self.factor > 1.0:
            raise NamedMeshError(
                f"divergence={factor!r}",
                fix="give how many times its median a loss may be, e.g. 3.0; None for no limit",
            )
        self._recent: deque[float] = deque(maxlen=WINDOW)

    def note(self, value: float) -> float | None:
        """Note the loss of a step."""
        median = statistics.median(self._recent) if len(self._recent) >= LEAST else 0.0
        self._recent.append(value)
        return median if 0.0 < median * self.factor < value else None
