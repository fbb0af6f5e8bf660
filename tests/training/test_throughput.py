"""Step times, tokens per second, MFU and profiler traces."""

import gzip
import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from namedmesh.errors.errors import NamedMeshError
from namedmesh.runtime import State
from namedmesh.training import (
    StepProfiler,
    StepTimes,
    TraceWindow,
    device_peak_flops,
    model_flops_utilization,
    time_steps,
)
from tests.training.programs import batch, compiled


def test_utilization_is_work_over_what_the_devices_could_do():
    # 6 N T FLOPs of a model of 7 billion weights on 4 million tokens, in 25 s on 32 H100
    flops = 6 * 7e9 * 4e6
    assert model_flops_utilization(flops, 25, 32, 989.4e12) == pytest.approx(0.21225, rel=1e-3)


@pytest.mark.parametrize(
    "kind, peak",
    [
        ("NVIDIA H200", 989.4),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("TPU v2", 22.5),
        ("TPU v3", 61.5),
        ("TPU v4", 275),
        ("TPU v5 lite", 197),
        ("TPU v5p", 459),
        ("TPU v5", 459),
        ("TPU v6 lite", 918),
        ("TPU v6e", 918),
    ],
)
def test_peaks_are_those_of_the_vendors(kind, peak):
    assert device_peak_flops(kind) == peak * 1e12


def test_the_peak_of_an_unknown_device_is_an_error():
    with pytest.raises(NamedMeshError, match="the peak FLOPs of 'cpu' are not known"):
        device_peak_flops(jax.devices()[0])


def test_percentiles_are_those_of_numpy():
    seconds = (0.5, 0.1, 0.4, 0.2, 0.3)
    times = StepTimes(seconds)
    assert times.median == 0.3 and times.tokens_per_second(60) == pytest.approx(200)
    for percent in (0, 10, 37.5, 90, 100):
        assert times.percentile(percent) == pytest.approx(np.percentile(seconds, percent))
    assert str(times) == "300 ms median, 460 ms 90th percentile of 5 steps"


def test_a_step_is_timed_until_its_results_are_there():
    work = jax.jit(lambda x: jax.pure_callback(lambda y: (time.sleep(0.05), y)[1], x, x))

    def step(state, x):  # returns at once, and works afterwards
        return state, {"y": work(x)}

    _, times = time_steps(step, State({}, {}), [{"x": jnp.ones(2)}] * 4, warmup=1)
    assert len(times.seconds) == 3 and min(times.seconds) >= 0.05


def test_warmup_is_not_counted_and_the_state_advances():
    now = iter([0, 100, 100, 101, 101, 103.0])
    executable = compiled("train", "two")
    first = executable.init()
    batches = [batch(number) for number in range(3)]
    state, times = time_steps(executable, first, batches, warmup=1, clock=lambda: next(now))
    assert times.seconds == (1, 2)
    expected = executable.init()
    for inputs in batches:
        expected, _ = executable(expected, **inputs)
    np.testing.assert_array_equal(state["layer/w"], expected["layer/w"])
    with pytest.raises(NamedMeshError, match="2 steps were taken, and 2 of them only warm up"):
        time_steps(executable, state, batches[:2], warmup=2)


def trace_events(folder) -> list[dict]:
    """The events of the one trace in a folder."""
    (path,) = folder.rglob("*.trace.json.gz")
    assert (next(iter(folder.rglob("*.xplane.pb")))).stat().st_size > 100
    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


def test_a_trace_has_the_chosen_steps(tmp_path):
    executable = compiled("train", "one")
    state = executable.init()
    with StepProfiler(TraceWindow(tmp_path / "trace", first=3, count=2)).open() as profiler:
        for number in range(1, 7):
            assert (tmp_path / "trace").exists() == (number > 4)
            profiler.before(number)
            state, results = executable(state, **batch(number))
            profiler.after(number, results)
            assert profiler.tracing == (number == 3)
    steps = [
        event["args"]["step_num"]
        for event in trace_events(tmp_path / "trace")
        if "step_num" in event.get("args", {})
    ]
    assert sorted(set(map(int, steps))) == [3, 4]


def test_a_loop_that_ends_inside_the_window_still_writes_its_trace(tmp_path):
    with pytest.raises(KeyError):
        with StepProfiler(TraceWindow(tmp_path / "trace", first=1, count=9)).open() as profiler:
            profiler.before(1)
            jnp.ones(3).block_until_ready()
            raise KeyError
    assert not profiler.tracing and trace_events(tmp_path / "trace")


@pytest.mark.parametrize("options", [{"first": 0}, {"count": 0}])
def test_a_window_has_at_least_one_step(tmp_path, options):
    with pytest.raises(NamedMeshError, match="a trace of"):
        TraceWindow(tmp_path, **options)
