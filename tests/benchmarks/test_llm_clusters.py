"""The benchmark of published models on clusters: counts, rows and the page of them, no compiler."""

import argparse
import json
import pathlib
import subprocess
import time

import pytest

import namedmesh as nm
from benchmarks import llm_clusters
from benchmarks.llm_clusters import CASES, Case, count_flops, count_weights

ROWS = llm_clusters.read_rows(llm_clusters.RESULTS / "clusters.json")
MADE = [row for row in ROWS.values() if "why" not in row]


def test_weights_and_flops_are_those_of_the_published_sizes():
    # By hand: two tables, and of each layer q, k, v, o, three matrices of the network, two norms.
    layer = 4096 * (4096 + 2 * 1024 + 4096 + 3 * 14_336) + 2 * 4096
    table = 128_256 * 4096
    case = Case("llama-3.1-8b", "h200:1x8", 8, 8192)
    weights, active = count_weights(case.make("none", row=True), case.architecture)
    assert weights == 2 * table + 32 * layer + 4096
    assert active == weights - table
    # Scores and averages of 32 heads of 128 and 8,192 keys for each query, and thrice that.
    attention = 3 * 32 * 8 * 8192 * 8192 * 32 * (128 + 128) * 2
    assert count_flops(case.architecture, active, 8, 8192) == 6 * active * 8 * 8192 + attention


def test_of_experts_those_are_active_that_are_chosen():
    case = Case("qwen3-235b-a22b", "h200:32x8", 8, 1024)
    program = case.make("full", row=True, routed=True)
    weights, active = count_weights(program, case.architecture)
    assert (weights / 1e9, active / 1e9) == pytest.approx((235.1, 22.2 - 0.62), abs=0.05)
    expert = 94 * 3 * 4096 * 1536
    rest = weights - 128 * expert - 151_936 * 4096
    assert active == rest + 8 * expert


def test_a_further_prediction_scores_the_vocabulary_again():
    case = Case("deepseek-v3", "h200:64x8", 512, 4096)
    a = case.architecture
    weights, active = count_weights(case.make("full", row=False), a)
    before = a.but(predictions=0)
    alone, fewer = count_weights(_trace(before), before)
    layer = 3 * 7168 * 2048 * 9 + 256 * 7168  # eight experts and a shared one, and the gate
    latent = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    more = active - fewer - (2 * 7168**2 + 129_280 * 7168 + layer + latent)
    assert 0 < more < 40_000  # norms, and the biases of the gate
    assert alone / 1e9 == pytest.approx(671.0, abs=0.1) and weights > alone + 11e9
    # Keys have 192 elements, values 128.
    attention = count_flops(a, active, 2, 4096) - 6 * active * 2 * 4096
    assert attention == 3 * 62 * 2 * 4096 * 4096 * 128 * (192 + 128) * 2


def _trace(architecture):
    from examples.llm.model import train_program
    from examples.llm.settings import Settings

    return train_program(
        Settings(architecture, batch=1, length=64, capacity_factor=1.25, layout="one")
    )


@pytest.mark.parametrize(
    ("name", "devices", "tera"),
    [
        ("llama-3.1-70b-tpu-v6e_16x16", [256, 32], 462.297),
        ("llama-3.1-8b-tpu-v6e_2x4", [8], 413.433),
    ],
)
def test_published_steps_are_of_the_same_model_and_chip_and_reach_what_they_say(
    name, devices, tera
):
    case = CASES[name]
    _, active = count_weights(case.make("full", row=False), case.architecture)
    found = llm_clusters.find_published(case, active)
    assert [one["devices"] for one in found] == devices
    assert found[0]["mfu"] == pytest.approx(tera / 918, rel=2e-3)  # published, of a chip's peak
    assert not llm_clusters.find_published(CASES["llama-3.1-70b-h200_8x8"], active)


def test_rows_that_fail_say_why_and_only_missing_ones_are_made_again(tmp_path, monkeypatch, capsys):
    first, second, third = list(CASES)[:3]
    ran = []

    def run(command, log, limit):
        name, part = command[4], command[-1]
        ran.append(name)
        if name == second:
            raise subprocess.TimeoutExpired(command, limit)
        if name == first:
            row = {**llm_clusters.describe_case(CASES[first]), **MADE[0], "name": first}
            with open(part, "w") as file:
                json.dump(row, file)
        return -9

    monkeypatch.setattr(llm_clusters, "run_limited", run)
    monkeypatch.setattr(
        llm_clusters, "CASES", {name: CASES[name] for name in (first, second, third)}
    )
    path = tmp_path / "rows" / "clusters.json"
    options = argparse.Namespace(names=[], folder=tmp_path, json=path, limit=9.0)
    assert not llm_clusters.compile_all(options)
    rows = llm_clusters.read_rows(path)
    assert list(rows) == [first, second, third] == ran
    assert rows[second]["why"] == "not done in 9 s"
    assert rows[third]["why"] == "it ended with status -9"
    page = llm_clusters.format_readme(list(rows.values()))
    assert "not compiled: not done in 9 s" in page
    llm_clusters.compile_all(options)
    assert ran == [first, second, third, second, third]
    assert f"{first}: as planned" in capsys.readouterr().out


def test_what_a_row_has_started_ends_with_it(tmp_path):
    path = tmp_path / "pid"
    command = ["bash", "-c", f"sleep 60 & echo $! > {path}; wait"]
    with open(tmp_path / "log", "w") as log, pytest.raises(subprocess.TimeoutExpired):
        llm_clusters.run_limited(command, log, 2.0)
    state = pathlib.Path(f"/proc/{int(path.read_text())}/status")
    for _ in range(100):
        if not state.exists() or "zombie" in state.read_text():
            return
        time.sleep(0.05)
    raise AssertionError("it still runs")


@pytest.mark.parametrize("row", MADE, ids=lambda row: row["name"])
def test_rows_of_the_table_are_what_they_say(row):
    case = CASES[row["name"]]
    place = nm.aot.Target.parse(row["target"])
    assert (row["devices"], row["batch"], row["length"]) == (
        place.cores, case.batch, case.length)  # fmt: skip
    assert row["exact"] == (not row["problems"])  # what is not as planned, the page says
    assert row["fits"] == (row["gib"] <= row["hbm_gib"])
    flops = count_flops(case.architecture, row["active"], case.batch, case.length)
    peak = llm_clusters.peak_of(row["target"])
    assert row["mfu"] == pytest.approx(flops / (row["seconds"] * peak), rel=1e-3)
    assert row["exposed_seconds"] <= row["collective_seconds"] + 1e-3 and row["mfu"] < 1
    assert row["published"] == llm_clusters.find_published(case, row["active"])


def test_the_page_is_what_the_program_writes():
    page = (llm_clusters.RESULTS / "README.md").read_text()
    assert page == llm_clusters.format_readme(list(ROWS.values()))
    assert [*ROWS] == [name for name in CASES if name in ROWS]
