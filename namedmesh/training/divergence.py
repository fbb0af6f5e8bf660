"""Divergence: a loss far above what it was over the last steps."""

from __future__ import annotations

import statistics
from collections import deque

from namedmesh.errors.errors import NamedMeshError
from namedmesh.training.arguments import check_real

WINDOW = 100  # the steps whose median counts
LEAST = 20  # a median of fewer steps says nothing


class Divergence:
    """Whether a loss is above a multiple of its running median.

    Args:
        factor: The multiple, above 1.

    Raises:
        NamedMeshError: If it is not such a number.

    Example:
        >>> from namedmesh.training.divergence import Divergence
        >>> divergence = Divergence(3.0)
        >>> [divergence.note(loss) for loss in [2.0] * 30][-1] is None
        True
        >>> divergence.note(7.0)
        2.0
    """

    def __init__(self, factor: float):
        self.factor = check_real(factor, "divergence")
        if not self.factor > 1.0:
            raise NamedMeshError(
                f"divergence={factor!r}",
                fix="give how many times its median a loss may be, e.g. 3.0; None for no limit",
            )
        self._recent: deque[float] = deque(maxlen=WINDOW)

    def note(self, value: float) -> float | None:
        """Note the loss of a step.

        Args:
            value: The loss.

        Returns:
            The median before it, if the loss is too far above it; else None. Medians that are not
            positive, and those of fewer than 20 steps, set no limit.
        """
        median = statistics.median(self._recent) if len(self._recent) >= LEAST else 0.0
        self._recent.append(value)
        return median if 0.0 < median * self.factor < value else None
