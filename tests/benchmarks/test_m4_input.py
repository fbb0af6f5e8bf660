import json
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import m4_input
from examples.m4.run import Run
from examples.m4.settings import preset


def batch(source: int, target: int) -> dict[str, np.ndarray]:
    """Two rows of eight places, some of them filled; a place without a segment is padding."""
    made = {}
    for side, count in (("source", source), ("target", target)):
        made[side] = np.zeros((2, 8), np.int32)
        made[f"{side}_segments"] = (np.arange(16) < count).astype(np.int32).reshape(2, 8) * 3
    return made


def test_tokens_are_those_that_are_not_padding():
    assert m4_input.count_tokens(batch(11, 5)) == 16
    assert m4_input.count_tokens(batch(0, 16)) == 16


def test_rates_are_tokens_by_time_without_the_first_iteration(monkeypatch):
    now, steps = [0.0], []
    monkeypatch.setattr(m4_input.time, "perf_counter", lambda: now[0])

    def stream():
        while True:
            now[0] += 0.5  # for 12 tokens
            yield batch(8, 4)

    def step(given):
        steps.append(given)
        now[0] += 4.0 if len(steps) <= 2 else 2.0  # the first iteration is slow

    streamed, consumed = m4_input.measure_rates(
        stream(), batches=3, step=step, steps=2, iterations=4
    )
    np.testing.assert_allclose(streamed, [24.0] * 4)
    np.testing.assert_allclose(consumed, [6.0] * 4)
    assert len(steps) == 2 * 5


def test_an_iteration_of_the_pipeline_stays_on_one_core():
    allowed = m4_input.os.sched_getaffinity(0)
    with m4_input.use_one_core():
        assert len(m4_input.os.sched_getaffinity(0)) == 1
    assert m4_input.os.sched_getaffinity(0) == allowed


@pytest.mark.slow
def test_the_pipeline_is_compared_with_a_step(tmp_path):
    """In a process of its own, where nothing else has said how many devices there are."""
    path, run = tmp_path / "result.json", tmp_path / "run"
    command = [sys.executable, "-m", "benchmarks.m4_input", "--json", path, "--run", run]
    command += ["--preset", "tiny_dense", "--iterations", "2", "--steps_an_iteration", "2"]
    subprocess.run(command, check=True)
    result = json.loads(path.read_text())
    assert result["ratio_to_step"] == pytest.approx(
        result["input_tokens_per_second"] / result["step_tokens_per_second"]
    )
    assert result["batches_an_iteration"] > 50 and result["step_tokens_per_second"] > 10
    assert Run(run).settings.but(source_vocab=400, target_vocab=400) == preset("tiny_dense")
