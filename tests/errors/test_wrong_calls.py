"""Calls of the runtime, the training tools and what leads to them with arguments of every type.

Errors of ours have a fix, and the state that was there still runs.
"""

import enum
import inspect
import pathlib
import random
from typing import Any

import jax
import numpy as np
import pytest

import namedmesh as nm
from namedmesh import runtime, training
from namedmesh.dims.sharding import Sharding

B, M = nm.dims("batch=8 model=4")
X = np.ones((8, 4), np.float32)
MESH = nm.Mesh(data=2)


def train(x, rate):
    w, count = nm.param("w", [M]), nm.state("count", [], dtype="int32")
    nm.assign(count, count + 1)
    nm.assign(w, w - rate)
    return nm.sum(x * w)


class Color(enum.Enum):
    RED = 1


@pytest.fixture(scope="module")
def things() -> dict[str, Any]:
    program = nm.trace(train, nm.spec([B, M]), nm.spec([]))
    step = nm.compile(program, mesh=MESH, layout="batch:data")
    return {"program": program, "step": step, "plan": step.plan, "artifact": step.artifact}


def values(things: dict[str, Any]) -> list[Any]:
    """Arguments of every type."""
    step = things["step"]
    return [
        None, True, False, 0, 1, -1, 3, 10**30, 1.5, float("nan"), float("inf"), 2j, "", "x",
        "data", "batch:data", "model:nope", "a.nmesh", "none/x", "\0", "\ud800", "x" * 300,
        "data=2", "a=0", "::,", b"x", [], [1], ["x"], [B], [B, M], [B, B], [None], (B,), {},
        {"x": 1}, {"batch": "data"}, {1: 2}, {"w": X}, {"x": nm.spec([B, M])}, set(), {1},
        object(), int, print, lambda: 1, lambda x: x, train, MESH, B, nm.spec([B]),
        nm.Layout("batch:data"), X, X[0], np.float32(3), np.array(3), np.array([1, 2]),
        np.array("x"), np.array(None), np.int64(4), np.zeros(0), jax.numpy.ones(3),
        jax.random.key(0), Color.RED, range(3),
        pathlib.Path("a.nmesh"), Sharding(), nm.Shape([B]), slice(1), ..., memoryview(b"abc"),
        b"PK\x05\x06" + bytes(18), "default", "float32", "init", step.init(), *things.values(),
    ]  # fmt: skip


def functions(things: dict[str, Any]) -> dict[str, Any]:
    """What is called; what compiles takes long and is called with wrong arguments only below."""
    step, plan, artifact, program = (things[k] for k in ("step", "plan", "artifact", "program"))
    state = step.init()
    return {
        "Mesh": nm.Mesh, "Mesh.parse": nm.Mesh.parse, "Layout": nm.Layout, "dims": nm.dims,
        "Layout.from_yaml": nm.Layout.from_yaml, "Dimension": nm.Dimension, "Shape": nm.Shape,
        "spec": nm.spec, "trace": nm.trace, "plan": nm.plan, "evaluate": nm.evaluate,
        "Mesh.size": MESH.size, "Mesh.check_axis": MESH.check_axis, "load": nm.Artifact.load,
        "from_bytes": nm.Artifact.from_bytes, "save": artifact.save, "State": runtime.State,
        "assign devices": artifact.with_device_assignment, "use_cpu": runtime.use_cpu_devices,
        "step": step, "put": step.put, "place": step.place, "init": step.init,
        "sharding": step.sharding, "program.evaluate": program.evaluate, "flops": program.flops,
        "of_phase": plan.of_phase, "count": plan.count, "total": plan.total_bytes,
        "plan.save": plan.save, "bytes": plan.bytes_per_device,
        "state": state.__getitem__, "get": state.get, "in": state.__contains__,
        "state.fetch": state.fetch, "shards": state.shards,
        "save_weights": training.save_weights, "load_weights": training.load_weights,
        "Intervals": training.Intervals, "metrics": training.read_metrics,
        "MetricsLog": training.MetricsLog, "table": training.render_table,
        "duration": training.format_duration, "share": training.share_state,
        "average": training.average_results, "time_steps": training.time_steps,
        "TraceWindow": training.TraceWindow, "ProgressBar": training.ProgressBar,
        "feed": step.feed, "rows": step.rows, "fetch": step.fetch, "prefetch": training.prefetch,
        "peak": training.device_peak_flops, "use": training.model_flops_utilization,
    }  # fmt: skip


def draw_call(function: Any, pool: list[Any], good: dict[str, Any], rng: random.Random):
    """Arguments for every parameter, about half of them right where that is known."""
    arguments, named = [], {}
    for parameter in inspect.signature(function).parameters.values():
        value = rng.choice(pool)
        if rng.random() < 0.55:
            value = good.get(parameter.name, value)
        optional = parameter.default is not parameter.empty
        if parameter.kind is parameter.VAR_POSITIONAL:
            arguments += rng.choices(pool, k=rng.randrange(3))
        elif parameter.kind is parameter.VAR_KEYWORD:
            named |= {rng.choice(["x", "rate", "data", "w"]): rng.choice(pool) for _ in range(2)}
        elif parameter.kind is parameter.KEYWORD_ONLY:
            if not optional or rng.random() < 0.4:
                named[parameter.name] = value
        elif optional and rng.random() < 0.5:
            break
        else:
            arguments.append(value)
    return arguments, named


@pytest.mark.parametrize("seed", range(4))
def test_wrong_calls_leave_the_state_as_it_was(things, tmp_path, monkeypatch, seed):
    monkeypatch.chdir(tmp_path)
    rng, pool, called = random.Random(seed), values(things), functions(things)
    good = {"mesh": MESH, "layout": "batch:data", "path": "a.nmesh", "target": things["step"]}
    good |= things | {"executable": things["step"], "state": things["step"].init()}
    errors = 0
    for _ in range(1200):
        name = rng.choice(list(called))
        arguments, named = draw_call(called[name], pool, good, rng)
        try:
            called[name](*arguments, **named)
        except nm.NamedMeshError as error:
            errors += 1
            assert error.fix
        except Exception:
            pass  # Python's own error, for arguments that nobody passes
    assert errors > 300
    step = things["step"]
    state, total = step(step.place({"w": np.ones(4, np.float32), "count": 3}), X, 0.5)
    assert float(total) == 32 and int(state["count"]) == 4


@pytest.mark.parametrize("value", [None, 3, "a.nmesh", {}, X, train, MESH])
def test_what_compiles_says_what_it_needs(things, value):
    for function in (nm.Step, runtime.Executable, nm.compile, nm.export, nm.plan):
        options: dict[str, Any] = (
            {"mesh": MESH} if function in (nm.compile, nm.export, nm.plan) else {}
        )
        with pytest.raises(nm.NamedMeshError) as error:
            made: Any = function(value, **options)
            made(None, 1)  # nm.compile waits for its first inputs
        assert error.value.fix
    wrong: tuple[Any, ...] = (None, 3, X, "exact", [])
    for precision in wrong:
        with pytest.raises(nm.NamedMeshError, match="is not a choice"):
            nm.Step(things["plan"], precision)
