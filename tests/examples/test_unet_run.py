"""The U-Net's images, and a run of it: trained, continued, scored and drawn."""

import dataclasses

import numpy as np
import pytest

from examples.unet.cells import make_batch, score_threshold
from examples.unet.model import UNet
from examples.unet.plots import draw
from examples.unet.training import Run, Settings


def test_images_are_a_function_of_their_seed():
    first, again, other = (make_batch(seed, 2, 32, 24) for seed in (3, 3, 4))
    for name, sizes in {
        "image": (2, 32, 24, 1),
        "truth": (2, 32, 24),
        "weight": (2, 32, 24),
    }.items():
        assert first[name].shape == sizes and first[name].dtype == np.float32
        np.testing.assert_array_equal(first[name], again[name])
        assert not np.array_equal(first[name], other[name])


def test_background_between_cells_weighs_most():
    batch = make_batch(0, 8, 64, 64)
    inside = batch["truth"] > 0
    assert 0.2 < inside.mean() < 0.6
    assert (batch["weight"][inside] == 1).all()
    heavy = batch["weight"] > 5
    shifted = [np.roll(inside, by, axis) for axis in (1, 2) for by in (-2, 2)]
    both_sides = (shifted[0] & shifted[1]) | (shifted[2] & shifted[3])
    assert heavy.any() and both_sides[heavy].mean() > 0.5 > 3 * both_sides[~heavy & ~inside].mean()


def test_a_threshold_does_not_solve_it():
    batch = make_batch(0, 8, 64, 64)
    assert 0.3 < score_threshold([batch]) < 0.6
    solved = {**batch, "image": batch["truth"][..., None]}
    assert score_threshold([solved]) == 1


@pytest.mark.slow
def test_a_run_learns_continues_and_is_drawn(tmp_path, capsys):
    model = UNet(batch=8, rows=32, columns=32, width=4, levels=2, groups=2)
    settings = Settings(model, "space=2", "rows:space", 40, 2e-2, 1)
    run = Run(str(tmp_path), settings)
    assert "CollectivePermute" in run.describe()
    assert "AllGather" not in (tmp_path / "plan.txt").read_text()
    start = run.step.init(0)
    before = run.score(start)
    batch, scores = run.predict(start)
    found, truth = scores > 0, batch["truth"] > 0
    assert before["iou"] == pytest.approx((found & truth).sum() / (found | truth).sum())
    trainer = run.train()
    assert trainer.steps_taken == 40
    assert run.score(trainer.state)["dev_loss"] < 0.7 * before["dev_loss"]
    run.settings = dataclasses.replace(settings, steps=44)
    continued = run.train()
    assert (continued.first_step, continued.steps_taken) == (40, 44)
    assert "resuming from step 40" in capsys.readouterr().out
    assert draw(tmp_path / "unet.png", run.metrics, *run.predict(continued.state))
    assert (tmp_path / "unet.png").stat().st_size > 10_000
