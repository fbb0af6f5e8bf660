"""The whole experiment on a small grid: stopped, gone on with, and its tables and figures."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from examples.m4.run import Run
from tests.m4.runs import BLOCKED, ROOT, environment

pytestmark = pytest.mark.slow

FLAGS = {
    "preset": "tiny", "grid_experts": "2,4", "depths": "1", "bilingual": "qaa",
    "bilingual_steps": 4, "bilingual_vocabulary": 300, "steps": 8, "dev_every": 4, "save_every": 4,
    "log_every": 2, "sentences": 4, "bootstrap": 20, "mesh": "all=2", "source_length": 48,
    "target_length": 32,
}  # fmt: skip
MODELS = ["dense", "moe2", "moe4"]
TRIES = ["bilingual_qaa_plain", "bilingual_qaa_dropout", "bilingual_qaa_narrow"]


def start(out, *commands, blocked=False, **more):
    given = [f"--{name}={value}" for name, value in {"out": out, **FLAGS, **more}.items()]
    code = "from absl import app; from examples.m4.experiment.__main__ import main; app.run(main)"
    return subprocess.Popen(
        [sys.executable, "-c", (BLOCKED if blocked else "") + code, *commands, *given],
        cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def done(corpus, tmp_path_factory):
    """An experiment: prepared, killed while it ran, and gone on with without TensorFlow."""
    out = tmp_path_factory.mktemp("experiment") / "out"
    prepared = start(out, "prepare", data=corpus)
    said, _ = prepared.communicate(timeout=1200)
    assert prepared.returncode == 0, said[-3000:]
    running = start(out, "run", blocked=True)
    until = time.monotonic() + 600
    while not (out / "cells" / "dense" / "evaluation.json").exists():
        assert running.poll() is None and time.monotonic() < until
        time.sleep(0.1)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    first = (out / "cells" / "dense" / "evaluation.json").stat().st_mtime_ns
    again = start(out, "run", "report", blocked=True)
    said, _ = again.communicate(timeout=3000)
    assert again.returncode == 0, said[-3000:]
    assert "dense: done" in said
    assert (out / "cells" / "dense" / "evaluation.json").stat().st_mtime_ns == first
    return out, said


def test_the_table_has_a_row_for_each_model(done):
    out, said = done
    rows = {row["model"]: row for row in json.loads((out / "table.json").read_text())}
    assert [*rows] == MODELS + TRIES
    assert rows["moe4"]["weights"] > rows["moe2"]["weights"] > rows["dense"]["weights"]
    assert len({rows[name]["tokens"] for name in MODELS}) == 1, "equal tokens"
    for name, row in rows.items():
        assert row["dev_loss"] > 0 and row["flops_per_token"] > 0 and row["minutes"] > 0, name
        assert f"{row['chrf']}" in said


def test_models_share_data_and_baselines_have_their_own(done):
    out, _ = done
    digests = {Run(out / "cells" / name).tokens("train").digest for name in MODELS}
    assert digests == {Run(out / "data").tokens("train").digest}
    for name in TRIES:
        run = Run(out / "cells" / name)
        assert run.tokens("train").languages == ("qaa",)
        shared = Run(out / "data").tests
        assert {name: of["qaa"] for name, of in run.tests.items()} == {
            name: of["qaa"] for name, of in shared.items()
        }


def test_the_report_compares_with_dense_models_and_baselines(done):
    out, _ = done
    result = json.loads((out / "report.json").read_text())
    pairs = {(one["system"], one["baseline"]) for one in result["significance"]}
    assert {("moe2", "dense"), ("moe4", "dense")} <= pairs
    (baseline,) = {other for _, other in pairs} - {"dense"}
    assert baseline in TRIES
    assert {system for system, other in pairs if other == baseline} == {*MODELS}
    (row,) = result["bilingual"]
    assert row["language"] == "qaa" and {*MODELS} <= {*row} and row["train_pairs"] > 0


def test_every_figure_is_drawn(done):
    out, _ = done
    names = {path.name for path in (out / "figures").iterdir() if path.stat().st_size > 5000}
    assert names == {
        "quality.png", "curves.png", "cost.png", "dropped.png", "delta_bleu.png", "routing.png",
    }  # fmt: skip
