"""How long to train, and how often to log, save, evaluate and repeat a step."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real

from namedmesh.errors.errors import NamedMeshError


@dataclass(frozen=True)
class Intervals:
    """How long to train, and how often to do what.

    Args:
        steps: The last step.
        log_every: Steps between two rows of metrics, each the mean of its steps.
        save_every: Steps between two checkpoints.
        evaluate_every: Steps between two evaluations; 0 for none.
        minutes: A time limit, compilation not counted; 0 for none.
        repeat_every: Steps between two that are taken twice, to find devices that compute wrongly;
            0 for none.

    Raises:
        NamedMeshError: If a number is too small, or not a number; the error lists all of them.

    Example:
        >>> from namedmesh.training import Intervals
        >>> Intervals(1000, evaluate_every=100).save_every
        200
    """

    steps: int
    log_every: int = 10
    save_every: int = 200
    evaluate_every: int = 0
    minutes: float = 0.0
    repeat_every: int = 0

    def __post_init__(self) -> None:
        least = {"steps": 1, "log_every": 1, "save_every": 1}
        least |= {"evaluate_every": 0, "minutes": 0, "repeat_every": 0}
        problems = []
        for name, bound in least.items():
            value = getattr(self, name)
            kind = Real if name == "minutes" else Integral
            number = isinstance(value, kind) and not isinstance(value, bool)
            if not number or not float(value) >= bound:
                problems.append(f"{name}={value!r}")
        if problems:
            raise NamedMeshError(
                f"intervals cannot have {', '.join(problems)}",
                fix="give positive whole numbers; evaluate_every, repeat_every and minutes may be "
                "0, and minutes may be a fraction",
            )
