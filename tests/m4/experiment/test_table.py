"""The table of an experiment: minutes, averages over sets, and the best tries of baselines."""

import numpy as np
import pytest

from examples.m4.experiment.figures import list_deltas, smooth
from examples.m4.experiment.grid import make_grid
from examples.m4.experiment.table import (
    average_over_sets,
    choose_baselines,
    dev_curve,
    format_table,
    list_tokens_to_losses,
)
from examples.m4.settings import preset


def test_minutes_are_those_of_the_steps_before():
    rows = [
        {"step": 10, "tokens": 100, "seconds_per_step": 6.0},
        {"step": 20, "tokens": 200, "seconds_per_step": 3.0},
        {"step": 20, "tokens": 200, "dev_loss": 4.0},
        {"step": 40, "tokens": 400, "seconds_per_step": 3.0},
        {"step": 40, "tokens": 400, "dev_loss": 3.0},
    ]
    assert dev_curve(rows) == [
        {"step": 20, "tokens": 200, "minutes": pytest.approx(1.5), "dev_loss": 4.0},
        {"step": 40, "tokens": 400, "minutes": pytest.approx(2.5), "dev_loss": 3.0},
    ]


def test_tokens_to_losses_that_all_models_reach():
    make = lambda *losses: [
        {"tokens": 1e6 * place, "dev_loss": loss} for place, loss in enumerate(losses, 1)
    ]
    found = list_tokens_to_losses({"dense": make(5.0, 4.0, 3.05), "moe": make(4.5, 3.5, 2.5)})
    assert found == [
        {"model": "dense", "4.1": 1.9, "3.6": 2.42, "3.1": 2.95},
        {"model": "moe", "4.1": 1.4, "3.6": 1.9, "3.1": 2.4},
    ]


def test_sets_count_alike():
    averages = [
        {"set": "a", "resources": "all", "bleu": 10.0, "chrf": 30.0},
        {"set": "a", "resources": "low", "bleu": 5.0, "chrf": 20.0},
        {"set": "b", "resources": "all", "bleu": 20.0, "chrf": 50.0},
    ]
    found = average_over_sets({"averages": averages})
    assert found == {"all": {"bleu": 15.0, "chrf": 40.0}, "low": {"bleu": 5.0, "chrf": 20.0}}


def test_the_try_with_the_lowest_dev_loss_counts():
    cells = make_grid(preset("tiny"), experts=[4], depths=[1], bilingual=["de", "fr"])
    losses = {"bilingual_de_dropout": 2.0, "bilingual_fr_narrow": 1.5}
    rows = [{"model": cell.name, "dev_loss": losses.get(cell.name, 3.0)} for cell in cells]
    best = choose_baselines(cells, rows)
    assert {code: cell.name for code, (cell, _) in best.items()} == {
        "de": "bilingual_de_dropout",
        "fr": "bilingual_fr_narrow",
    }


def test_each_language_of_models_that_were_trained_at_once_has_its_own_best_try():
    cells = make_grid(preset("tiny"), experts=[4], depths=[1], bilingual=["all"])
    found = [cell for cell in cells if cell.language]
    assert [cell.name for cell in found] == [
        "bilingual_all_plain", "bilingual_all_dropout", "bilingual_all_narrow"
    ]  # fmt: skip
    for cell in found:
        settings = cell.settings
        assert settings.by_language and not settings.languages and not settings.model.experts
        assert settings.layout == "language:all"
    losses = {"bilingual_all_dropout": {"de": 2.0, "fr": 2.5}}
    worse = {"de": 2.5, "fr": 2.0}
    rows = [
        {
            "model": cell.name, "experts": cell.settings.model.experts, "dev_loss": 3.0,
            **({"dev_losses": losses.get(cell.name, worse)} if cell.language else {}),
        }
        for cell in cells
    ]  # fmt: skip
    best = choose_baselines(cells, rows)
    assert {code: cell.attempt for code, (cell, _) in best.items()} == {
        "de": "dropout", "fr": "plain"
    }  # fmt: skip
    compared = [{"language": "de", "train_pairs": 9, "bilingual": 1.0, "dense": 2.0, "moe4": 3.0}]
    assert list_deltas(compared, rows) == [
        {"language": "de", "pairs": 9, "bilingual": 1.0, "dense": 2.0, "mixture": 3.0}
    ]


def test_the_window_of_ten_is_shorter_at_the_ends():
    values = np.random.default_rng(0).normal(size=30)
    expected = [values[max(0, place - 5) : place + 5].mean() for place in range(30)]
    np.testing.assert_allclose(smooth(values.tolist()), expected)


def test_rows_without_thirds_are_shown_too():
    shown = format_table([{"model": "bilingual_de_plain", "weights": 1234567, "bleu": 3.25}])
    assert "1,234,567" in shown and "3.25" in shown and "flops_per_token" in shown
