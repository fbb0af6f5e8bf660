"""Plots: files that hold a picture, one for each kind of data that a run has."""

import json

import numpy as np
import pytest

from examples.m4.plots import draw
from examples.m4.run import Run
from tests.m4.scored import RESULT

image = pytest.importorskip("matplotlib.image")


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path)
    rows = [
        {"step": step, "tokens": 500 * step, "loss": 6 / step, "cross_entropy": 5.0 / step}
        for step in range(1, 9)
    ]
    rows.insert(4, {"step": 4, "tokens": 2000, "dev_loss": 3.0})
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def picture(path) -> np.ndarray:
    """The pixels of a plot, which must be a PNG file with something on it."""
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    pixels = image.imread(path)
    assert min(pixels.shape[:2]) > 100 and 0.01 < (pixels[..., :3].min(-1) < 0.9).mean() < 0.9
    return pixels


def test_a_run_without_metrics_has_no_plots(tmp_path):
    assert draw(Run(tmp_path)) == []


def test_a_trained_run_has_a_plot_of_its_loss(run):
    (path,) = draw(run)
    before = picture(path)
    run.metrics.write_text(
        run.metrics.read_text()
        + json.dumps({"step": 9, "tokens": 4500, "cross_entropy": 9.0})
        + "\n"
    )
    draw(run)
    assert path.name == "loss.png" and (picture(path) != before).any()


def test_an_evaluated_run_has_plots_of_scores_and_experts(run):
    (run.folder / "evaluation.json").write_text(json.dumps(RESULT))
    loads = np.random.default_rng(0).uniform(size=(4, 2, 2, 8)).tolist()
    languages = {
        code: {"encoder": one[0], "decoder": one[1]}
        for code, one in zip(("aa", "bb", "cc", "dd"), loads, strict=True)
    }
    (run.folder / "routing.json").write_text(json.dumps({"languages": languages}))
    paths = draw(run)
    assert [path.name for path in paths] == [
        "loss.png",
        "bleu.png",
        "expert_load.png",
        "language_routing.png",
    ]
    for path in paths:
        picture(path)


def test_with_baselines_the_difference_to_them_is_drawn(run):
    (run.folder / "evaluation.json").write_text(json.dumps(RESULT))
    pixels = [picture(draw(run, {"main/bb": 2.0, "main/aa": other})[1]) for other in (5.0, 0.5)]
    assert {path.name for path in run.plots.iterdir()} == {"loss.png", "delta_bleu.png"}
    assert pixels[0].shape == pixels[1].shape and (pixels[0] != pixels[1]).any()
