"""What a run shows while it trains: a line that renews itself on a terminal, or one now and then elsewhere."""

from __future__ import annotations

import math
import sys
import time
from typing import TextIO


def duration(seconds: float) -> str:
    """Seconds as people say them: 3:07, 1:02:00."""
    minutes, seconds = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


class Progress:
    """Step, loss, tokens a second, the share of dropped tokens, and how long it will take."""

    def __init__(
        self,
        first: int,
        total: int,
        out: TextIO | None = None,
        every: float = 10.0,
        minutes: float = 0.0,
    ):
        self.first, self.total, self.out = first, total, out or sys.stderr
        self.begun, self.shown, self.every = time.monotonic(), float("-inf"), every
        self.live = self.out.isatty()
        self.limit = (
            minutes * 60 or math.inf
        )  # seconds, after which training ends whatever the step

    def show(self, step: int, metrics: dict[str, float]) -> None:
        """Says how far training is, unless it was said a moment ago."""
        now = time.monotonic()
        if now - self.shown < (0.1 if self.live else self.every) and step < self.total:
            return
        self.shown = now
        spent = now - self.begun
        left = min(spent / max(step - self.first, 1) * (self.total - step), self.limit - spent)
        done = max(step / self.total, min(spent / self.limit, 1.0))
        bar = "█" * int(24 * done) + "░" * (24 - int(24 * done))
        dropped = f"  dropped {metrics['dropped']:.1%}" if "dropped" in metrics else ""
        line = (
            f"{bar} step {step}/{self.total}  loss {metrics['loss']:.3f}  "
            f"{metrics['tokens_per_second']:,.0f} tokens/s{dropped}  ETA {duration(left)}"
        )
        self.out.write(f"\r{line}\x1b[K" if self.live else line + "\n")
        self.out.flush()

    def end(self) -> None:
        """Leaves the last line standing."""
        if self.live and self.shown > 0:
            self.out.write("\n")
