"""Training a U-Net: its programs on the mesh, its batches, and its score on held-out images."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass

import numpy as np

import namedmesh as nm
from examples.unet.cells import make_batch, score_threshold
from examples.unet.model import UNet, evaluate_program, train_program
from namedmesh.training import (
    Checkpoints,
    Intervals,
    NumberedBatches,
    Trainer,
    average_results,
    share_state,
)

HELD_OUT = 10**9  # the seed of the first held-out batch


@dataclass(frozen=True)
class Settings:
    """The settings of a run."""

    model: UNet
    mesh: str
    layout: str
    steps: int
    learning_rate: float
    held_out: int  # batches


class Run:
    """A run in its folder: checkpoints, metrics, the plan and plots.

    Args:
        folder: Where its files are.
        settings: What it is made with.
    """

    def __init__(self, folder: str, settings: Settings):
        self.folder, self.settings = pathlib.Path(folder), settings
        model, mesh = settings.model, nm.Mesh.parse(settings.mesh)
        programs = (
            train_program(model, settings.learning_rate, settings.steps),
            evaluate_program(model),
        )
        self.step, self.evaluate_step = (
            nm.compile(program, mesh=mesh, layout=settings.layout, strict=True)
            for program in programs
        )
        self.held_out = [self._make_batch(HELD_OUT + i) for i in range(settings.held_out)]

    @property
    def metrics(self) -> pathlib.Path:
        """The log."""
        return self.folder / "metrics.jsonl"

    def _make_batch(self, seed: int) -> dict[str, np.ndarray]:
        model = self.settings.model
        return make_batch(seed, model.batch, model.rows, model.columns)

    def describe(self) -> str:
        """Save the plan; return its totals, and the audit's verdict."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path, plan = self.folder / "plan.txt", self.step.plan
        path.write_text(plan.communication + "\n", encoding="utf-8")
        totals = [line for line in plan.communication.splitlines() if line.startswith("  total")]
        threshold = score_threshold(self.held_out)
        return "\n".join(
            [
                *totals,
                f"every collective is in {path}; {self.step.audit}",
                f"the best threshold of brightness has IoU {threshold:.3f}",
            ]
        )

    def train(self) -> Trainer:
        """Train from the newest checkpoint, or from scratch, to the last step."""
        model, steps = self.settings.model, self.settings.steps
        stream = NumberedBatches(
            self._make_batch, f"{model.batch} images of {model.rows} x {model.columns}"
        )
        intervals = Intervals(
            steps, log_every=10, save_every=max(steps // 4, 1), evaluate_every=max(steps // 8, 1)
        )
        with Checkpoints(self.folder / "checkpoints", keep=1) as checkpoints:
            trainer = Trainer(
                self.step,
                stream,
                intervals,
                checkpoints=checkpoints,
                metrics=self.metrics,
                evaluate=self.score,
            )
            trainer.run()
        return trainer

    def score(self, state: nm.runtime.State) -> dict[str, float]:
        """Measure loss and intersection over union on the held-out images."""
        batches = (self.evaluate_step.feed(batch) for batch in self.held_out)
        means = average_results(
            self.evaluate_step,
            share_state(state, self.evaluate_step),
            batches,
            names=["loss", "both", "either"],
        )
        return {"dev_loss": float(means["loss"]), "iou": float(means["both"] / means["either"])}

    def predict(self, state: nm.runtime.State) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return held-out images, and the scores of their pixels."""
        batch = self.held_out[0]
        shared = share_state(state, self.evaluate_step)
        _, results = self.evaluate_step(shared, **self.evaluate_step.feed(batch))
        return batch, np.asarray(results["scores"])
