"""Published steps: rows are read as people write them, and predicted without their times."""

import dataclasses
import json
import pathlib

import pytest

from benchmarks.times import __main__ as command
from benchmarks.times import systems
from benchmarks.times.__main__ import predict_row, summarize
from benchmarks.times.paper import all_to_all_growth
from benchmarks.times.predict import lay_out, predict
from benchmarks.times.systems import calibration_rows, constant_of, describe_hardware
from benchmarks.times.table import FURTHER, KEPT, Inexpressible, read_step, read_table
from benchmarks.times.table import TABLE as PATH

ROWS = {row["id"]: row for row in read_table(PATH)}
MORE = {row["id"]: row for path in (FURTHER, KEPT) for row in read_table(path)}
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
    "row, changes, read",
    [
        ("tt-8b-8-bf16", {"remat": "not stated"}, {"remat": ""}),
        ("tt-8b-8-bf16", {"remat": "n/a"}, {"remat": ""}),
        ("tt-8b-8-bf16", {"dtype": "NVFP4"}, {"dtype": "fp4"}),
        ("tt-8b-8-bf16", {"dtype": "fp32"}, {"dtype": "fp32"}),
        ("tt-8b-8-bf16", {"devices": "2 nodes of 8"}, {"devices": 16, "data": 16}),
        ("tt-8b-8-bf16", {"devices": "64 (4x4x4)"}, {"devices": 64}),
        ("tt-8b-8-bf16", {"seq_len": "8K"}, {"length": 8192}),
        ("tt-8b-8-bf16", {"global_batch": "16 (128k tokens)"}, {"batch": 16}),
        ("tt-8b-8-bf16", {"global_batch": "1M tokens"}, {"batch": 128}),
        ("tt-8b-8-bf16", {"global_batch": ""}, {"batch": 16, "micro": 2}),
        ("tt-8b-8-bf16", {"parallelism": "ZeRO stage 3"}, {"sharded": True}),
        ("tt-8b-8-bf16", {"parallelism": "not stated"}, {"sharded": True}),
        ("tt-8b-8-bf16", {"parallelism": "DDP"}, {"sharded": False}),
        (
            "tt-70b-256-bf16-tp8",
            {"parallelism": "8-way tensor parallel, pipeline parallel size 4"},
            {"tensor": 8, "stages": 4, "data": 8},
        ),
        (
            "mpt-7b-512-h100",
            {"microbatch_accum": "micro_bsz 2, micro_num 3"},
            {"micro": 2, "microbatches": 3},
        ),
        (
            "v6e-mixtral-8x7b-256",
            {"d_ff": "16 experts (top 4), 10752 each", "model": "DBRX"},
            {"experts": 16, "choices": 4, "expert_hidden": 10752, "dropless": True, "gated": True},
        ),
        ("v6e-llama31-8b-8", {"parallelism": "2 slices x FSDP4"}, {"slices": 2}),
        (
            "v6e-llama31-8b-8",
            {"attention": "flash; sliding window 1024 in 5 of 6 layers"},
            {"window": 1024, "local": 5 / 6},
        ),
        (
            "v6e-llama31-8b-8",
            {"attention": "flash, window of 128 in every other layer"},
            {"window": 128, "local": 0.5},
        ),
        ("v6e-llama31-8b-8", {"model": "Gemma3-27B"}, {"window": 1024, "local": 5 / 6}),
        ("fms-70b-96-h100", {}, {"across": 12.5e9}),
        ("fms-7b-128-a100", {}, {"across": 0.0}),  # 400 Gbps of whom?
        ("bs-176b-384", {}, {"across": 6.25e9}),
        ("internlm-7b-8-a100", {}, {"across": 6.25e9}),
        ("nemo-mixtral-8x7b-256-h200", {}, {"across": 50e9}),
        ("tt-8b-8-bf16", {}, {"across": 50e9}),
        ("tt-8b-8-bf16", {"hardware": "H100 80GB, 400 GB/s"}, {"across": 0.0}),
        (
            "pax-175b-256-h100",
            {"source": "NVIDIA/JAX-Toolbox docs/frameworks/maxtext/README.md"},
            {"system": "MaxText"},
        ),
    ],
)
def test_columns_are_read_however_they_are_written(row, changes, read):
    step = read_step({**ROWS, **MORE}[row] | changes)
    assert {name: getattr(step, name) for name in read} == pytest.approx(read)


def test_no_column_of_the_further_tables_is_misread():
    assert not {*ROWS} & {*MORE} and len(MORE) == 94
    for row in MORE.values():
        step = read_step(row)
        assert step.data * step.tensor * step.context * step.stages == step.devices, row["id"]
        assert step.measured > 0 and step.grade in ("A", "B", "C")


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
    row = ROWS["tt-8b-8-bf16"] | {"microbatch_accum": "", column: text}
    with pytest.raises(Inexpressible, match=why):
        read_step(row)
    found = predict_row(row)
    assert found["predicted_seconds"] is None and why in found["why"]


def test_large_weights_are_gathered_whole():
    # Of 256 experts 7 GB a layer: in slices round a ring the step took twice as long.
    assert predict_row(ROWS["tpu7x-dsv3-128"])["ratio"] == pytest.approx(1.0, abs=0.25)


def test_local_attention_sees_its_window():
    row = ROWS["v6e-llama31-8b-8"] | {"seq_len": "32768", "global_batch": "8"}
    whole = predict_row(row)["predicted_seconds"]
    local = predict_row(row | {"attention": "flash; sliding window 1024"})["predicted_seconds"]
    wide = predict_row(row | {"attention": "flash; sliding window 32768"})["predicted_seconds"]
    assert local < 0.8 * whole and wide == whole


def test_attention_kernels_are_those_of_systems_and_chips():
    def find(row: str, **changes) -> float:
        return describe_hardware(
            dataclasses.replace(read_step(ROWS[row]), **changes)
        ).kernel_product_share

    second = "tt-8b-8-bf16"  # FlashAttention-2, which is slower on Hopper than cuDNN's
    assert find(second) < find(second, system="NeMo")
    assert find(second, chip="a100") == find(second, chip="a100", system="NeMo")
    tpu = "v6e-llama31-8b-8"
    assert find(tpu, head=64) == find(tpu) / 2 and find(tpu, head=256) == find(tpu)


def test_a_network_that_a_row_names_is_priced():
    row = MORE["fms-70b-96-h100"]
    fast = predict_row(row | {"hardware": "H100 80GB (400 Gbps per GPU)"})
    assert predict_row(row)["exposed_seconds"] > 2 * fast["exposed_seconds"]


def test_narrow_products_are_faster_and_wide_ones_slower():
    row = ROWS["mb-b200-8b-8"]
    rates = [
        describe_hardware(read_step(row | {"dtype": dtype})).flops["bfloat16"]
        for dtype in ("nvfp4", "fp8", "bf16", "fp32")
    ]
    assert rates == sorted(rates, reverse=True) and len({*rates}) == 4


def test_a_system_without_a_constant_on_a_chip_takes_what_is_next_to_it(monkeypatch):
    known = {"Pax h100": 1.4, "Pax a100": 1.2, "llm-foundry h100": 1.5, "MaxText tpu-v5e": 1.0}
    constants = {key: {"constant": value, "rows": []} for key, value in known.items()}
    monkeypatch.setattr(systems, "read_constants", lambda: constants)

    def find(system: str, chip: str) -> float:
        return constant_of(dataclasses.replace(step, system=system, chip=chip))

    step = read_step(ROWS["mpt-7b-512-h100"])
    assert find("llm-foundry", "h100") == 1.5
    assert find("llm-foundry", "a100") == pytest.approx(1.5 * 1.2 / 1.4)  # as Pax on both
    assert find("MaxText", "a100") == pytest.approx(1.2)  # and not what it takes on TPUs
    assert find("MaxText", "tpu-v4") == 1.0
    assert find("nobody", "tpu-v3") == 1.0


def test_nothing_is_fitted_on_rows_that_are_kept_back():
    kept = {row["id"] for row in read_table(KEPT)}
    assert not kept & calibration_rows() and calibration_rows() <= {*ROWS, *MORE}


def test_results_say_with_which_command_they_were_made(tmp_path, capsys):
    table, result = tmp_path / "one.tsv", tmp_path / "one.json"
    lines = PATH.read_text().splitlines(keepends=True)
    table.write_text(lines[0] + next(line for line in lines if line.startswith("mb-b200-8b-8")))
    command.main(["--rows", str(table), "--json", str(result)])
    written = json.loads(result.read_text())
    assert written["command"] == f"python -m benchmarks.times --rows {table} --json {result}"
    assert written["rows"][0]["id"] == "mb-b200-8b-8" and "mb-b200-8b-8" in capsys.readouterr().out


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


@pytest.mark.parametrize(
    "name, table, median, within",
    [
        ("further_first", FURTHER, 0.0914, 0.783),  # before anything was mended
        ("further", FURTHER, 0.08, 0.9),
        ("kept_first", KEPT, 0.0636, 0.866),  # before anybody looked at a row of it
        ("kept", KEPT, 0.07, 0.9),
    ],
)
def test_results_of_the_further_tables_are_recorded(name, table, median, within):
    rows = json.loads((RESULTS.parent / f"{name}.json").read_text())["rows"]
    assert [row["id"] for row in rows] == [row["id"] for row in read_table(table)]
    found = summarize(rows)
    assert found["expressed"] == found["rows"]
    assert found["median_error"] <= median and found["share_within_25_percent"] >= within
    if name.endswith("first"):
        assert not found["used_for_calibration"]


def test_all_to_alls_grow_as_the_paper_measured():
    assert all_to_all_growth() == pytest.approx(3.75, rel=0.25)
    assert all_to_all_growth((16, 2048)) == pytest.approx(9, rel=0.25)
