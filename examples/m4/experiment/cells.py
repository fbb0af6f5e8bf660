"""Running the cells of a grid: data, lowered programs, training, evaluation; each once."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from examples.m4.experiment.grid import Cell
from examples.m4.run import Run
from examples.m4.settings import Settings
from namedmesh.training import read_metrics

Say = Callable[[str], None]
FINISH = "finish.json"


class Experiment:
    """The folder of an experiment: shared data, a run for each cell, tables and figures."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.shared = Run(folder / "data")

    def run_of(self, cell: Cell) -> Run:
        """Return the run of a cell."""
        return Run(self.folder / "cells" / cell.name)

    def prepare(self, cells: Sequence[Cell], settings: Settings, data: str, say: Say) -> None:
        """Make data and lowered programs of all cells; what is there stays.

        Mixtures and dense models share vocabularies and tokens, and so do the tries of a bilingual
        model: its own, of the same corpus, which holds out the same sentences and is built once.
        Settings that may change between two starts become those of the cells.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        shared = {"": str(self.shared.folder)}
        if any(not cell.language for cell in cells) and not self.shared.started:
            self.shared.start(settings, data, say)
        for cell in cells:  # a language that the corpus does not have is noticed early
            run = self.run_of(cell)
            source = shared.get(cell.language, data)
            run.start(cell.settings, "" if run.started else source, say, corpora=self.folder)
            shared.setdefault(cell.language, str(run.folder))
        for cell in cells:
            run = self.run_of(cell)
            say(f"{cell.name}: programs")
            started = run.fit_settings(cell.settings)
            for program in ("train", "evaluate", "translate"):
                run.artifact(program, started, say)
            run.save_settings(started)

    def train(self, cells: Sequence[Cell], sentences: int, say: Say) -> list[str]:
        """Train and evaluate every cell that is not done, in processes; return those that failed.

        A bilingual model is evaluated at its best checkpoint on dev data, since a small language is
        soon learned by heart.
        """
        failed = []
        for number, cell in enumerate(cells, 1):
            trained = self.is_done(cell)
            if trained and self._read_finish(cell).get("sentences", sentences) == sentences:
                say(f"{cell.name}: done ({number} of {len(cells)})")
                continue
            task = "evaluating" if trained else "training"
            say(f"{cell.name}: {task} ({number} of {len(cells)}) ...")
            checkpoint = "best" if cell.language else "newest"
            options = [f"--sentences={sentences}", f"--checkpoint={checkpoint}"]
            if (trained or self._call("train", cell)) and self._call("evaluate", cell, *options):
                self._write_finish(cell, sentences)
            else:
                say(f"{cell.name}: failed; {self.run_of(cell).folder / 'log.txt'} says why")
                failed.append(cell.name)
        return failed

    def is_done(self, cell: Cell) -> bool:
        """Return whether a cell was trained to its last step or time limit, and evaluated since."""
        run = self.run_of(cell)
        evaluation = run.folder / "evaluation.json"
        if not (run.started and evaluation.exists() and run.metrics.exists()):
            return False
        rows = read_metrics(run.metrics)
        settings, finish = run.settings, self._read_finish(cell)
        limits = {"steps": settings.steps, "minutes": settings.minutes}
        ended = bool(settings.minutes) and limits.items() <= finish.items()
        return bool(rows) and (ended or rows[-1]["step"] >= settings.steps)

    def _read_finish(self, cell: Cell) -> dict[str, Any]:
        """Return the limits that a cell was trained to, and the sentences of its evaluation."""
        path = self.run_of(cell).folder / FINISH
        return json.loads(path.read_text()) if path.exists() else {}

    def _write_finish(self, cell: Cell, sentences: int) -> None:
        """Note that a cell is done: its last step alone does not tell, if time was the limit."""
        run = self.run_of(cell)
        settings = run.settings
        finish = {"steps": settings.steps, "minutes": settings.minutes, "sentences": sentences}
        (run.folder / FINISH).write_text(json.dumps(finish) + "\n")

    def _call(self, command: str, cell: Cell, *options: str) -> bool:
        """Run a command of the example on a cell, with its output in a file; whether it worked."""
        folder = self.run_of(cell).folder
        with open(folder / "log.txt", "a") as log:
            arguments = [sys.executable, "-m", "examples.m4", command, f"--run={folder}", *options]
            with subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT) as process:
                try:
                    return process.wait() == 0
                except KeyboardInterrupt:
                    process.terminate()  # it saves a checkpoint
                    process.wait()
                    raise

    def evaluation_of(self, cell: Cell) -> dict[str, Any]:
        """Return the scores of a cell."""
        path = self.run_of(cell).folder / "evaluation.json"
        return json.loads(path.read_text(encoding="utf-8"))
