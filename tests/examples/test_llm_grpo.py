"""GRPO: what is drawn and learned under two layouts, against the loss written out in numpy."""

import json
import pathlib

import numpy as np
import pytest

from benchmarks.llm_families import write_folder
from examples.llm import weights
from examples.llm.adapters import Tuning
from examples.llm.grpo import Grpo, Learner, learn
from examples.llm.settings import Settings

KEPT = json.loads((pathlib.Path(__file__).parent / "families.json").read_text())
PROMPTS = [[1, 5, 9], [1, 7], [1, 4, 6, 8], [1, 11, 3]]
OPTIONS = Grpo(group=4, written=6, end=(2,), divergence=0.01)


def reward(prompt: list[int], text: list[int]) -> float:
    """The share of even tokens, which a model can learn."""
    return sum(token % 2 == 0 for token in text) / len(text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("weights")
    write_folder(path, KEPT["llama"]["config"], KEPT["llama"]["shapes"])
    return path


def settings_of(folder: pathlib.Path, **changes: object) -> Settings:
    architecture, _ = weights.read_model(folder)
    return Settings(
        architecture, batch=4, length=4, steps=2, warmup=1, learning_rate=2e-2, capacity_factor=0,
        layout="one",
    ).but(**changes)  # fmt: skip


def run(folder: pathlib.Path, options: Grpo = OPTIONS, **changes: object) -> list[dict]:
    learner = Learner(settings_of(folder, **changes), options)
    return [row for _, row in learn(learner, learner.start(folder), PROMPTS, reward)]


def test_two_layouts_draw_the_same_tokens_and_learn_the_same(folder):
    """The second trains as FSDP and writes with the heads split, on the same two devices."""
    one = run(folder, tuning=Tuning(rank=4))
    writing = Grpo(**{**vars(OPTIONS), "layout": "heads:data, hidden:data, vocab:data"})
    other = run(folder, writing, tuning=Tuning(rank=4), layout="fsdp")
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine["texts"], theirs["texts"])
        for name in ("loss", "divergence", "clipped"):
            assert mine[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-6)
    assert one[0]["divergence"] == pytest.approx(0, abs=1e-6) and one[1]["divergence"] > 1e-5


def test_the_loss_is_that_of_the_paper(folder):
    """Of the second update from the same texts, whose ratios are not one."""
    learner = Learner(settings_of(folder), OPTIONS)
    state = learner.start(folder)
    drawn = learner.roll_out(state, PROMPTS, 7)
    rewards = np.random.default_rng(0).normal(size=(4, 4))
    batch = learner.make_batch(drawn, rewards)
    advantage = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, keepdims=True) + 1e-4)
    np.testing.assert_allclose(batch["advantage"], advantage.ravel(), rtol=1e-5)
    for row, text, left in zip(
        batch["inputs"], drawn["sequences"].reshape(16, -1), batch["padding"], strict=True
    ):
        prompt = PROMPTS[[len(one) for one in PROMPTS].index(4 - left)]
        assert row[left] == prompt[0] and row[4:].tolist() == text[:-1].tolist()
    moved = {**batch, "before": batch["before"] + np.linspace(-0.5, 0.5, 9, dtype=np.float32)}
    _, results = learner.learn(state, **moved)
    ratio = np.exp(-np.linspace(-0.5, 0.5, 9)) * np.ones([16, 1])  # the model is as it was
    signed = batch["advantage"][:, None]
    gain = np.minimum(ratio * signed, np.clip(ratio, 0.8, 1.2) * signed) * batch["weights"]
    assert float(results["loss"]) == pytest.approx(-gain.sum() / batch["weights"].sum(), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("tuning", [None, Tuning(rank=4, frozen="int8")], ids=["all", "int8"])
def test_rewards_rise(folder, tuning):
    rows = run(folder, tuning=tuning, steps=25)
    first, last = (np.mean([row["reward"] for row in part]) for part in (rows[:5], rows[-5:]))
    assert last > first + 0.2
