"""A Trainer in several real processes: one stop, agreement, and batches that stay the same."""

from __future__ import annotations

import pathlib
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

import namedmesh as nm
from namedmesh.training import Checkpoints, read_metrics

ROOT = pathlib.Path(__file__).parent.parent.parent
B, M, N = nm.dims("batch=8 model=6 out=6")
STEPS = 40
WORKER = """
import os, pathlib, sys, time
import numpy as np
from namedmesh.errors.errors import NamedMeshError
from namedmesh.runtime import load, start_processes
from namedmesh.training import Checkpoints, Intervals, NumberedBatches, Trainer, save_weights

folder, options = pathlib.Path(sys.argv[1]), eval(sys.argv[2])
processes = start_processes()
(folder / f"{processes.index}.pid").write_text(str(os.getpid()))
own = options.get("wrong", {}) if processes.index == processes.count - 1 else {}

def batch(number):
    x = np.random.default_rng(number).normal(size=(8, 6)).astype(np.float32)
    return {"x": x, "y": x[:, ::-1].copy()}

def feed(inputs, steps_taken):
    time.sleep(options.get("pause", 0.0))
    return inputs

step = load(folder / "train.nmesh", strict=True)
limits = {"log_every": 1, "save_every": 10, "minutes": options.get("minutes", 0.0)}
try:
    with Checkpoints(folder / "checkpoints", keep=3) as checkpoints:
        trainer = Trainer(
            step,
            NumberedBatches(batch, own.get("data", "normal")),
            Intervals(own.get("steps", options["steps"]), **limits),
            checkpoints=checkpoints,
            metrics=folder / "metrics.jsonl",
            feed=feed,
        )
        trainer.run()
except NamedMeshError as error:
    print(error, flush=True)
    sys.exit(1)
print(f"ended after step {trainer.steps_taken}", flush=True)
save_weights(folder / "final.safetensors", trainer.state, everything=True)
sys.exit(trainer.stop.exit_status)
"""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory) -> pathlib.Path:
    """A train step on four devices."""

    def train(x, y):
        w = nm.param("w", [M, N], nm.normal_init(0.1))
        error = nm.einsum([x, w], [B, N]) - y
        loss = nm.mean(nm.square(error))
        nm.assign(w, w - nm.grad(loss)["w"] * 0.3)
        return {"loss": loss}

    program = nm.trace(train, x=nm.spec([B, M]), y=nm.spec([B, N]))
    path = tmp_path_factory.mktemp("program") / "train.nmesh"
    nm.export(program, nm.Mesh(data=4), "batch:data").save(path)
    return path


def launch(
    artifact: pathlib.Path, folder: pathlib.Path, processes: int, **options
) -> subprocess.Popen[str]:
    """Processes that train in a folder, on four devices together."""
    folder.mkdir(exist_ok=True)
    if not (folder / "train.nmesh").exists():
        (folder / "train.nmesh").symlink_to(artifact)
    words = ["launch", "-n", str(processes), "--devices", str(4 // processes), "--grace", "20"]
    worker = [sys.executable, "-c", WORKER, str(folder), repr({"steps": STEPS, **options})]
    return subprocess.Popen(
        [sys.executable, "-m", "namedmesh", *words, "--", *worker],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The status and what was printed."""
    text, _ = process.communicate(timeout=120)
    return process.returncode, text


def last_steps(text: str) -> list[tuple[int, int]]:
    """The last step of each process that said it."""
    found = re.findall(r"^\[(\d)\] ended after step (\d+)$", text, re.MULTILINE)
    return sorted((int(index), int(step)) for index, step in found)


def wait_for(folder: pathlib.Path, process: subprocess.Popen[str], step: int) -> None:
    """Waits until a step is logged."""
    end = time.monotonic() + 90
    while max([row["step"] for row in read_metrics(folder / "metrics.jsonl")] or [0]) < step:
        assert process.poll() is None and time.monotonic() < end, finish(process)
        time.sleep(0.01)


def expected_weights(artifact: pathlib.Path) -> np.ndarray:
    """The weights after all steps, by numpy."""
    step = nm.runtime.load(artifact)
    w = np.asarray(step.init(0)["w"], np.float64)
    for number in range(STEPS):
        x = np.random.default_rng(number).normal(size=(8, 6)).astype(np.float32).astype(float)
        error = x @ w - x[:, ::-1]
        w = w - 0.3 * 2.0 * x.T @ error / error.size
    return w


def test_a_signal_to_one_stops_all_and_other_numbers_of_processes_go_on(artifact, tmp_path):
    folder, reached = tmp_path / "run", 0
    for processes, victim in ((4, 2), (2, 0)):
        process = launch(artifact, folder, processes, pause=0.1)
        wait_for(folder, process, reached + 5)
        pid = int((folder / f"{victim}.pid").read_text())
        subprocess.run(["kill", f"-{int(signal.SIGTERM)}", str(pid)], check=True)
        status, text = finish(process)
        assert status == 143, text
        ends = last_steps(text)
        reached = ends[0][1]
        assert ends == [(index, reached) for index in range(processes)], text
        assert text.count("stopped by SIGTERM") == 1  # one process prints
        assert Checkpoints(folder / "checkpoints").latest == reached
        for old in folder.glob("*.pid"):
            old.unlink()
    status, text = finish(launch(artifact, folder, 1))
    assert status == 0 and f"[0] resuming from step {reached}" in text, text
    rows = [row["step"] for row in read_metrics(folder / "metrics.jsonl")]
    assert rows == list(range(1, STEPS + 1))
    weights = load_file(folder / "final.safetensors")["w"]
    np.testing.assert_allclose(weights, expected_weights(artifact), rtol=1e-4, atol=1e-5)


def test_a_time_limit_ends_all_after_the_same_step(artifact, tmp_path):
    process = launch(artifact, tmp_path / "run", 2, steps=10_000, minutes=0.05, pause=0.02)
    status, text = finish(process)
    ends = last_steps(text)
    assert status == 0 and len(ends) == 2 and ends[0][1] == ends[1][1], text
    assert Checkpoints(tmp_path / "run" / "checkpoints").latest == ends[0][1]


@pytest.mark.parametrize(
    "wrong, what", [({"data": "other"}, "the data"), ({"steps": 41}, "the settings")]
)
def test_a_process_with_other_data_or_settings_is_refused_by_all(artifact, tmp_path, wrong, what):
    status, text = finish(launch(artifact, tmp_path / "run", 2, wrong=wrong))
    assert status == 1 and not (tmp_path / "run" / "metrics.jsonl").exists()
    for index in range(2):
        assert f"[{index}] the processes do not agree on {what}\n" in text, text
