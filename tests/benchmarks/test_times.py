"""Published steps: rows are read as people write them, and predicted without their times."""

import json
import pathlib

import pytest

from benchmarks.times.__main__ import predict_row, summarize
from benchmarks.times.paper import all_to_all_growth
from benchmarks.times.predict import lay_out, predict
from benchmarks.times.table import TABLE as PATH
from benchmarks.times.table import Inexpressible, read_step, read_table

ROWS = {row["id"]: row for row in read_table(PATH)}
RESULTS = pathlib.Path(PATH).parents[1] / "results" / "times" / "times.json"


def test_every_row_is_read():
    steps = [read_step(row) for row in ROWS.values()]
    assert len(steps) == 58 and all(step.measured > 0 for step in steps)
    assert {step.system for step in steps} >= {"MaxText", "torchtitan", "NeMo", "GShard", "Meta"}
    for step in steps:
        assert step.data * step.tensor * step.context * step.stages == step.devices


def test_what_people_write_in_columns():
    mixtral = read_step(ROWS["v6e-mixtral-8x7b-256"])
    assert (mixtral.experts, mixtral.choices, mixtral.capacity) == (8, 2, 1.25)
    deepseek = read_step(ROWS["mb-h100-dsv3-1024"])
    assert (deepseek.experts, deepseek.choices, deepseek.shared) == (256, 8, 1)
    assert (deepseek.hidden, deepseek.expert_hidden, deepseek.dense_layers) == (18432, 2048, 3)
    assert (deepseek.stages, deepseek.rounds, deepseek.expert, deepseek.latent) == (8, 4, 64, True)
    ironwood = read_step(ROWS["tpu7x-llama31-70b-64"])
    assert (ironwood.chip, ironwood.devices) == ("tpu-v7x", 128)
    assert ironwood.saved == ("wq", "wk", "wv", "attention")
    capped = read_step(ROWS["tt-8b-8-bf16"])
    assert (capped.watts, capped.bandwidth, capped.micro) == (500, 2.4e12, 2)
    slices = read_step(ROWS["v6e-llama31-405b-2x256"])
    assert (slices.slices, slices.slices_sharded) == (2, True)
    mesh, _, params = lay_out(slices)
    assert mesh.slices == 2 and params == "model:slice+data"
    plain = read_step(ROWS["mb-b200-8b-8"])
    assert (plain.sharded, plain.zero, plain.microbatches) == (False, True, 8)


@pytest.mark.parametrize(
    "column, text, why",
    [
        ("hardware", "Cerebras CS-3", "no chip of ours"),
        ("devices", "", "devices are not stated"),
        ("global_batch", "", "the batch is not stated"),
        ("heads", "", "heads is not stated"),
        ("parallelism", "TP7", "not a multiple of 7"),
    ],
)
def test_a_row_that_cannot_be_expressed_says_why(column, text, why):
    row = ROWS["tt-8b-8-bf16"] | {column: text}
    with pytest.raises(Inexpressible, match=why):
        read_step(row)
    found = predict_row(row)
    assert found["predicted_seconds"] is None and why in found["why"]


def test_a_prediction_does_not_look_at_the_time():
    row = ROWS["tt-8b-64-bf16-tp8"]
    found = predict_row(row)
    assert found["ratio"] == pytest.approx(1.0, abs=0.25) and not found["used_for_calibration"]
    other = predict_row(row | {"step_seconds": "100", "published_value": ""})
    assert other["predicted_seconds"] == found["predicted_seconds"]


def test_a_pipeline_waits_for_its_first_microbatches():
    found = predict(read_step(ROWS["meg-a100-gpt3-1024"]))
    assert found.bubble == pytest.approx(15 / 192)


def test_recorded_predictions_are_as_good_as_is_said():
    rows = json.loads(RESULTS.read_text())["rows"]
    found = summarize(rows)
    assert found["rows"] == found["expressed"] == 58
    assert found["used_for_calibration"] <= 58 / 3
    assert found["held_out_rows_of_grade_a_and_b"] >= 30
    assert found["median_error"] <= 0.1 and found["share_within_25_percent"] >= 0.9
    of_paper = [row for row in rows if row["system"] == "GShard"]
    assert len(of_paper) == 6 and all(abs(row["ratio"] - 1) <= 0.25 for row in of_paper)


def test_all_to_alls_grow_as_the_paper_measured():
    assert all_to_all_growth() == pytest.approx(3.75, rel=0.25)
    assert all_to_all_growth((16, 2048)) == pytest.approx(9, rel=0.25)
