"""Which cells of an experiment are done, with commands that only pretend to train."""

import json
import pathlib

import pytest

from examples.m4.experiment.cells import Experiment
from examples.m4.experiment.grid import Cell
from examples.m4.run import Run
from examples.m4.settings import Settings, preset
from tests.m4.runs import small_corpus


class Pretended(Experiment):
    """An experiment whose models take ten steps in a call of train."""

    def __init__(self, folder: pathlib.Path):
        super().__init__(folder)
        self.calls: list[str] = []

    def _call(self, command: str, cell: Cell, *options: str) -> bool:
        run = self.run_of(cell)
        self.calls.append(command)
        if command == "train":
            with open(run.metrics, "a") as file:
                file.write(json.dumps({"step": 10 * self.calls.count("train")}) + "\n")
        else:
            (run.folder / "evaluation.json").write_text("{}")
        return True


def make_cell(experiment: Experiment, settings: Settings) -> Cell:
    cell = Cell("dense", "dense", settings)
    run = experiment.run_of(cell)
    run.folder.mkdir(parents=True, exist_ok=True)
    run.save_settings(settings)
    return cell


def train(experiment: Pretended, cell: Cell, sentences: int = 5) -> list[str]:
    """Train a cell; return the commands that were run."""
    experiment.calls.clear()
    assert experiment.train([cell], sentences, lambda text: None) == []
    return [*experiment.calls]


def test_a_model_that_its_time_limit_ended_is_done(tmp_path):
    experiment = Pretended(tmp_path)
    cell = make_cell(experiment, preset("tiny").but(steps=1000, minutes=0.1))
    assert train(experiment, cell) == ["train", "evaluate"]
    assert experiment.is_done(cell)
    assert train(experiment, cell) == []


def test_a_later_time_limit_or_last_step_trains_on(tmp_path):
    experiment = Pretended(tmp_path)
    settings = preset("tiny").but(steps=1000, minutes=0.1)
    train(experiment, make_cell(experiment, settings))
    for changed in (settings.but(minutes=0.2), settings.but(steps=2000), settings.but(minutes=0)):
        assert not experiment.is_done(make_cell(experiment, changed))
    assert experiment.is_done(make_cell(experiment, settings.but(minutes=0, steps=10)))


def test_other_sentences_are_evaluated_without_training(tmp_path):
    experiment = Pretended(tmp_path)
    cell = make_cell(experiment, preset("tiny").but(steps=10))
    assert train(experiment, cell, sentences=5) == ["train", "evaluate"]
    assert train(experiment, cell, sentences=6) == ["evaluate"]
    assert train(experiment, cell, sentences=6) == []


@pytest.fixture
def lower_nothing(monkeypatch):
    """Programs are not lowered."""
    monkeypatch.setattr(Run, "artifact", lambda *_: pathlib.Path())


def test_preparing_again_takes_the_settings_that_may_change(lower_nothing, corpus, tmp_path):
    experiment = Experiment(tmp_path)
    for steps in (10, 20):
        settings = preset("tiny").but(steps=steps)
        cell = Cell("moe8", "mixture", settings)
        experiment.prepare([cell], settings, str(corpus), lambda text: None)
        assert experiment.run_of(cell).settings.steps == steps


def test_a_corpus_is_built_once_for_models_and_baselines(lower_nothing, monkeypatch, tmp_path):
    built = []
    monkeypatch.setattr(
        "examples.m4.run.build_synthetic_corpus",
        lambda root, progress: (built.append(root), small_corpus(root)),
    )
    settings = preset("tiny")
    cells = [
        Cell("moe8", "mixture", settings),
        Cell("bilingual_qaa", "bilingual", settings.but(languages="qaa"), language="qaa"),
    ]
    Experiment(tmp_path).prepare(cells, settings, "synthetic", lambda text: None)
    assert built == [tmp_path / "corpus-synthetic"]
