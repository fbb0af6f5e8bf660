"""Run folders that several tests copy, each made once in a session."""

import pathlib
import shutil

import pytest

from examples.m4.run import Run
from examples.m4.settings import preset
from tests.m4 import runs


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> pathlib.Path:
    """A corpus of three invented languages."""
    return (
        runs.once(tmp_path_factory, "corpus", lambda folder: runs.small_corpus(folder / "text"))
        / "text"
    )


@pytest.fixture(scope="session")
def started(tmp_path_factory, corpus) -> pathlib.Path:
    """A run that has data and settings, and nothing lowered."""

    def make(folder: pathlib.Path) -> None:
        Run(folder / "run").start(preset("tiny"), str(corpus), lambda text: None)

    return runs.once(tmp_path_factory, "started", make) / "run"


@pytest.fixture(scope="session")
def dense(tmp_path_factory, corpus) -> pathlib.Path:
    """A run of a small dense model, trained for ten steps."""

    def make(folder: pathlib.Path) -> None:
        runs.good(runs.run("train", folder / "run", {**runs.DENSE, "data": corpus, "steps": 10}))

    return runs.once(tmp_path_factory, "dense", make) / "run"


@pytest.fixture(scope="session")
def experts(tmp_path_factory, corpus) -> pathlib.Path:
    """A run of a mixture of experts before its first step, its train step lowered and compiled."""
    return _make_mixture(tmp_path_factory, corpus, "experts")


@pytest.fixture(scope="session")
def recipe(tmp_path_factory, corpus) -> pathlib.Path:
    """The same of one with everything that makes it learn well."""
    return _make_mixture(tmp_path_factory, corpus, "recipe")


def _make_mixture(factory, corpus: pathlib.Path, name: str) -> pathlib.Path:
    """A run of a mixture of experts that has taken no step."""

    def make(folder: pathlib.Path) -> None:
        flags = {**runs.MIXTURES[name], "data": corpus, "steps": 1}
        runs.good(runs.run("train", folder / "run", flags))
        for part in ("checkpoints", "summaries"):
            shutil.rmtree(folder / "run" / part)
        (folder / "run" / "metrics.jsonl").unlink()

    return runs.once(factory, name, make) / "run"
