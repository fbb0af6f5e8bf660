"""The training loop against a plain loop of steps: resuming, limits, signals and divergence."""

import json
import os
import shutil
import signal

import numpy as np
import pytest

from namedmesh.errors.errors import NamedMeshError
from namedmesh.training import (
    Checkpoints,
    Intervals,
    NumberedBatches,
    TraceWindow,
    read_metrics,
    trainer,
)
from tests.training.programs import batch, compiled, same
from tests.training.trainers import make, train


def plain(steps: int) -> tuple[dict[str, np.ndarray], list[float]]:
    """The state and the losses of a loop without a trainer."""
    executable = compiled("train", "two")
    state, losses = executable.init(0), []
    for number in range(steps):
        state, results = executable(state, **batch(number))
        losses.append(float(results["loss"]))
    return {name: np.asarray(state[name]) for name in state}, losses


def test_training_is_a_loop_of_steps(tmp_path):
    made = train(tmp_path, Intervals(12, log_every=4, save_every=5))
    state, losses = plain(12)
    assert all(same(made.state[name], state[name]) for name in state)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [4, 5, 8, 10, 12]  # saving logs first
    parts = ((0, 4), (4, 5), (5, 8), (8, 10), (10, 12))
    for row, (start, stop) in zip(rows, parts, strict=True):
        assert row["loss"] == pytest.approx(np.mean(losses[start:stop]), rel=1e-6)
        assert row["tokens"] == 60 * stop
        speed = 60 / row["seconds_per_step"]
        assert row["tokens_per_second"] == pytest.approx(speed)
    assert made.last == rows[-1] and Checkpoints(tmp_path / "checkpoints").steps == [5, 10, 12]


def test_results_are_fetched_once_the_next_step_runs(tmp_path):
    events = []

    class Fetched:
        def __init__(self, number, value):
            self.number, self.value = number, value

        def __float__(self):
            events.append(f"fetch {self.number}")
            return float(self.value)

    made = make(tmp_path, Intervals(5, log_every=2), checkpoints=None)
    step = made.executable

    class Watched:
        artifact = step.artifact
        number = 0

        def __call__(self, state, **inputs):
            self.number += 1
            events.append(f"step {self.number}")
            state, results = step(state, **inputs)
            return state, {"loss": Fetched(self.number, results["loss"])}

    made.executable = Watched()
    made.run()
    assert events == [
        *("step 1", "step 2", "step 3", "fetch 1", "fetch 2"),
        *("step 4", "step 5", "fetch 3", "fetch 4", "fetch 5"),
    ]


@pytest.mark.parametrize("stops", [(3,), (1, 2, 7)])
def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path, stops):
    said = []
    for last in (*stops, 10):
        made = train(tmp_path, Intervals(last, log_every=1), say=said.append)
    state, losses = plain(10)
    assert all(same(made.state[name], state[name]) for name in state)
    assert said == [f"resuming from step {step}" for step in stops]
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [(row["step"], row["loss"]) for row in rows] == list(enumerate(losses, 1))
    assert made.tokens == 600 and made.position == 10


def test_rows_beyond_the_checkpoint_are_cut_when_a_run_resumes(tmp_path):
    train(tmp_path, Intervals(8, log_every=1, save_every=4))
    shutil.rmtree(tmp_path / "checkpoints" / "8")
    train(tmp_path, Intervals(6, log_every=1))
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]


def test_a_finished_run_is_left_as_it_is(tmp_path):
    train(tmp_path, Intervals(4))
    before = (tmp_path / "metrics.jsonl").read_text()
    calls = []
    made = train(tmp_path, Intervals(4), evaluate=lambda state: calls.append(1) or {})
    assert (tmp_path / "metrics.jsonl").read_text() == before
    assert made.last == {"step": 4} and not calls


def test_a_run_resumes_under_another_layout(tmp_path):
    train(tmp_path, Intervals(5))
    made = train(tmp_path, Intervals(10), place="mixed")
    state, _ = plain(10)
    for name in state:
        np.testing.assert_allclose(
            np.asarray(made.state[name], np.float32),
            np.asarray(state[name], np.float32),
            rtol=2e-2 if name == "layer/scale" else 1e-4,
            atol=1e-5,
        )


def test_other_data_is_an_error(tmp_path):
    train(tmp_path, Intervals(2))
    with pytest.raises(NamedMeshError, match="was trained on other data"):
        make(tmp_path, Intervals(4), stream=NumberedBatches(batch, "other"))


def test_the_best_checkpoint_is_that_of_the_evaluation(tmp_path):
    losses = iter([5.0, 2.0, 7.0, 6.0])
    seen = []

    def evaluate(state):
        seen.append(np.asarray(state["layer/w"]).copy())
        return {"dev_loss": np.float32(next(losses))}

    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    intervals = Intervals(20, log_every=5, save_every=5, evaluate_every=5)
    train(tmp_path, intervals, evaluate=evaluate, checkpoints=checkpoints)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    found = [(row["step"], row["dev_loss"], row["tokens"]) for row in rows if "dev_loss" in row]
    assert found == [(5, 5.0, 300), (10, 2.0, 600), (15, 7.0, 900), (20, 6.0, 1200)]
    assert same(seen[1], plain(10)[0]["layer/w"])
    read = Checkpoints(tmp_path / "checkpoints")
    assert (read.steps, read.best, read.latest) == ([10, 20], 10, 20)


def test_a_time_limit_ends_the_run_with_a_checkpoint(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(trainer.time, "monotonic", lambda: now[0])

    def slow(number):
        return batch(number)

    def feed(inputs, step):
        now[0] += 20.0
        return inputs

    made = train(tmp_path, Intervals(100, minutes=1.0), feed=feed, stream=NumberedBatches(slow))
    assert made.steps_taken == 4  # the step that passes the limit is the last
    assert Checkpoints(tmp_path / "checkpoints").latest == 4


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_after_its_step_without_an_evaluation(tmp_path, number):
    def feed(inputs, step):
        if step == 3:
            os.kill(os.getpid(), number)
        return inputs

    calls, said = [], []
    intervals = Intervals(100, evaluate_every=50)
    evaluate = lambda state: calls.append(1) or {}
    made = train(tmp_path, intervals, feed=feed, evaluate=evaluate, say=said.append)
    where = f"stopped by {number.name} after step 4"
    assert said == [f"{where}; the same command continues from there"]
    assert made.stop.name == number.name and made.steps_taken == 4 and not calls
    assert Checkpoints(tmp_path / "checkpoints").latest == 4


def poisoned(at: int):
    """Batches of which one has an infinite number."""

    def poison(number):
        inputs = batch(number)
        if number == at:
            inputs["y"][0, 0] = np.inf
        return inputs

    return NumberedBatches(poison, "data")


def test_a_loss_that_is_not_finite_stops_and_the_last_good_checkpoint_is_kept(tmp_path):
    intervals, handler = Intervals(20, log_every=10, save_every=2), signal.getsignal(signal.SIGTERM)
    with pytest.raises(NamedMeshError) as error:
        train(tmp_path, intervals, stream=poisoned(6), advice="do better")
    assert error.value.problem == "the loss of step 7 is inf"
    assert error.value.details == ("the last good checkpoint, of step 4, is kept",)
    assert error.value.fix == "do better"
    assert Checkpoints(tmp_path / "checkpoints").steps == [2, 4]
    assert signal.getsignal(signal.SIGTERM) is handler
    made = train(tmp_path, Intervals(10, log_every=1))  # with good data it continues
    state, losses = plain(10)
    assert all(same(made.state[name], state[name]) for name in state)
    rows = {row["step"]: row["loss"] for row in read_metrics(tmp_path / "metrics.jsonl")}
    assert [rows[step] for step in range(5, 11)] == losses[4:]


def test_without_a_checkpoint_the_error_says_so(tmp_path):
    with pytest.raises(NamedMeshError) as error:
        train(tmp_path, Intervals(20), stream=poisoned(1))
    assert error.value.problem == "the loss of step 2 is inf"
    assert error.value.details == ("there is no checkpoint yet",)


def test_what_is_not_watched_may_be_anything(tmp_path):
    made = train(tmp_path, Intervals(3), stream=poisoned(1), watch=())
    assert not np.isfinite(made.last["loss"])


def test_utilization_is_logged_where_flops_and_peak_are_given(tmp_path):
    row = train(tmp_path, Intervals(4), flops=1e6, peak_flops=1e9).last
    expected = 1e6 / (row["seconds_per_step"] * 2 * 1e9)  # on two devices
    assert row["mfu"] == pytest.approx(expected)


def test_steps_are_traced(tmp_path):
    train(tmp_path, Intervals(6), profile=TraceWindow(tmp_path / "trace", first=2, count=2))
    assert list((tmp_path / "trace").rglob("*.xplane.pb"))


def test_an_initial_state_and_a_finite_stream(tmp_path):
    executable = compiled("train", "two")
    before = executable.init(9)
    expected, _ = executable(executable.init(9), **batch(0))

    class Two:
        digest = ""

        def read_from(self, position):
            yield batch(0), {"chunk": 0, "row": 1}

    made = make(tmp_path, Intervals(10), initial=before, stream=Two(), checkpoints=None)
    made.run()
    assert made.steps_taken == 1 and same(made.state["layer/w"], expected["layer/w"])
    assert not (tmp_path / "checkpoints").exists()


def test_positions_are_saved_as_json(tmp_path):
    train(tmp_path, Intervals(3))
    record = json.loads((tmp_path / "checkpoints" / "3" / "record.json").read_text())["record"]
    assert record["extra"] == {"position": 3, "stream": "data", "tokens": 180}


@pytest.mark.parametrize(
    "options, problem",
    [
        ({"steps": 0}, "steps=0"),
        ({"steps": 5, "log_every": 0, "minutes": -1}, "log_every=0, minutes=-1"),
        ({"steps": 5, "repeat_every": -1}, "repeat_every=-1"),
    ],
)
def test_intervals_are_checked(options, problem):
    with pytest.raises(NamedMeshError, match=f"intervals cannot have {problem}"):
        Intervals(**options)


def test_the_time_of_each_step_is_its_own(tmp_path, monkeypatch):
    """Steps that are done when their call returns, and others that are waited for."""
    clock = [100.0]
    monkeypatch.setattr(trainer.time, "monotonic", lambda: clock[0])
    lengths = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)

    class Result:
        """The result of a step that is done at a time."""

        def __init__(self, end):
            self.end = end

        def is_ready(self):
            return clock[0] >= self.end

        def __float__(self):
            clock[0] = max(clock[0], self.end)
            return 0.5

    for place, waits in (("now", False), ("later", True)):
        made = make(tmp_path / place, Intervals(6, log_every=1, save_every=4), checkpoints=None)
        ends = [clock[0]]

        def step(state, *, x, y, waits=waits, ends=ends):
            ends.append(max(ends[-1], clock[0]) + lengths[len(ends) - 1])
            clock[0] = clock[0] if waits else ends[-1]
            return state, {"loss": Result(ends[-1])}

        made.executable = step
        made.run()
        rows = read_metrics(tmp_path / place / "metrics.jsonl")
        assert [row["seconds_per_step"] for row in rows] == [*lengths], place


def test_what_a_save_waits_for_is_time_of_the_step(tmp_path, monkeypatch):
    """A row that is written because of a save is not taken from the time of the next one."""
    clock = [100.0]
    monkeypatch.setattr(trainer.time, "monotonic", lambda: clock[0])

    class Result:
        def is_ready(self):
            return False

        def __float__(self):
            clock[0] += 3.0
            return 0.5

    made = make(tmp_path, Intervals(4, log_every=4, save_every=2), checkpoints=None)
    made.executable = lambda state, **_: (state, {"loss": Result()})
    made.run()
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [(row["step"], row["seconds_per_step"]) for row in rows] == [(2, 3.0), (4, 3.0)]
