"""Copies of the state in memory: restored on any mesh, verified, and what a lost process gets."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.processes.processes import Processes, forget_run
from namedmesh.training import copies
from namedmesh.training.copies import StateCopies

ROOT = pathlib.Path(__file__).parent.parent.parent
B, D, F = nm.dims("batch=4 wide=10 tall=6")


def compile_on(mesh: nm.Mesh, layout: str) -> nm.Step:
    """A program with a weight that meshes pad, a scalar and a bfloat16."""

    def use(x):
        h = nm.einsum([x, nm.param("w", [D, F])], [B, F])
        return h * nm.param("scale", []) + nm.cast(nm.param("b", [F], dtype="bfloat16"), "float32")

    return nm.compile(use, nm.spec([B, D]), mesh=mesh, layout=layout)


@pytest.fixture
def rerun(monkeypatch):
    """The program runs again in the same Python, as after the end of another process."""
    monkeypatch.setattr(copies, "_memories", {})
    monkeypatch.setattr("namedmesh.processes.processes._rounds", Counter())
    monkeypatch.setattr("namedmesh.processes.processes.leaving", [])
    return forget_run


def whole(step: nm.Step) -> dict[str, np.ndarray]:
    """Values of the variables."""
    random = np.random.default_rng(0)
    return {
        name: random.normal(size=one.sizes).astype(one.dtype)
        for name, one in step.variables.items()
    }


@pytest.mark.parametrize("mesh, layout", [("a=4", "wide:a"), ("a=2 b=3", "wide:a, tall:b")])
def test_a_copy_is_restored_on_another_mesh(rerun, mesh, layout):
    step = compile_on(nm.Mesh(a=3), "wide:a")
    values = whole(step)
    first = StateCopies(Processes())
    assert first.newest() is None
    for number in (10, 20):
        first.copy(number, step.place(values), {"position": number})
    first.wait()
    rerun()
    again = StateCopies(Processes())
    other = compile_on(nm.Mesh.parse(mesh), layout)
    assert again.newest() == 20
    found = again.restore(20, other)
    assert found.step == 20 and found.extra == {"position": 20}
    for name, value in values.items():
        np.testing.assert_array_equal(np.asarray(found.state[name]), value)


def test_bytes_that_changed_in_memory_are_noticed(rerun):
    step = compile_on(nm.Mesh(a=2), "wide:a")
    first = StateCopies(Processes())
    first.copy(10, step.place(whole(step)), {})
    first.wait()
    shard = copies._memories[1].parts[10][0].shards[-1]
    shard.values[0] ^= 4
    rerun()
    again = StateCopies(Processes())
    assert again.newest() == 10
    with pytest.raises(nm.NamedMeshError, match=f"the bytes of {shard.name} have changed"):
        again.restore(10, step)


def test_parts_of_a_copy_that_was_not_finished_are_forgotten(rerun):
    step = compile_on(nm.Mesh(a=2), "wide:a")
    first = StateCopies(Processes())
    first.copy(10, step.place(whole(step)), {})
    first.wait()
    parts = copies._memories[1].parts
    parts[20] = {1: dataclasses.replace(parts[10][0], count=2)}  # of two processes: one was lost
    rerun()
    assert StateCopies(Processes()).newest() == 10
    assert list(parts) == [10]  # fewer processes may copy step 20 next


def test_a_copy_that_lacks_a_part_is_not_taken_for_zeros(rerun):
    step = compile_on(nm.Mesh(a=2), "wide:a")
    first = StateCopies(Processes())
    first.copy(10, step.place(whole(step)), {})
    first.wait()
    lost = copies._memories[1].parts[10][0].shards.pop(0)
    rerun()
    again = StateCopies(Processes())
    assert again.newest() == 10
    with pytest.raises(nm.NamedMeshError, match=f"a part of {lost.name} is not there"):
        again.restore(10, step)
    assert not copies._memories[1].parts


def test_another_trainer_of_the_same_run_does_not_get_them(rerun):
    step = compile_on(nm.Mesh(a=2), "wide:a")
    first = StateCopies(Processes())
    first.copy(10, step.place(whole(step)), {})
    first.wait()
    assert StateCopies(Processes()).newest() is None


def test_memory_is_within_what_was_said(rerun):
    step = compile_on(nm.Mesh(a=2), "wide:a")
    state = step.place(whole(step))
    first = StateCopies(Processes())
    for number in range(1, 6):
        first.copy(number, state, {})
        parts = first._held.parts.values()
        own = [one.values for each in parts for part in each.values() for one in part.shards]
        free = first._held._free
        assert sum(one.nbytes for one in [*own, *free]) <= first.memory_bytes(state)
    first.wait()
    first.close(forget=True)
    assert not copies._memories


TRAIN = """
import os, signal, sys, time
import numpy as np
from namedmesh.runtime import load, start_processes
from namedmesh.training import Intervals, NumberedBatches, Trainer

processes = start_processes(timeout=60)
step = load(f"{sys.argv[1]}/{processes.count}.nmesh")

def batch(number):
    x = np.random.default_rng(number).normal(size=(12, 8)).astype(np.float32)
    return {"x": x, "y": x @ np.linspace(-1, 1, 8).astype(np.float32)}

def feed(inputs, taken):
    time.sleep(0.02)
    for victim, at in (one.split(":") for one in sys.argv[2:]):
        mark = f"{sys.argv[1]}/killed-{at}"
        if int(at) == taken and processes.index == int(victim) and not os.path.exists(mark):
            open(mark, "w").close()
            time.sleep(0.5)  # the copy of the step before is there
            os.kill(os.getpid(), signal.SIGKILL)
    return inputs

trainer = Trainer(step, NumberedBatches(batch, "b"), Intervals(40, copy_every=5), feed=feed)
print("from", trainer.first_step, "pid", os.getpid(), flush=True)
trainer.run()
print("state", trainer.state.digest(), np.asarray(trainer.state["w"]).tolist(), flush=True)
"""


def train(folder: pathlib.Path, *options: str, faults: tuple[str, ...] = ()) -> list[str]:
    """Train in three processes, some of which are killed; return what they printed."""
    N, M = nm.dims("rows=12 model=8")

    def step(x, y):
        w = nm.param("w", [M], nm.constant_init(0.0))
        loss = nm.mean(nm.square(nm.einsum([x, w], [N]) - y))
        nm.assign(w, w - nm.grad(loss)["w"] * 0.1)
        return {"loss": loss}

    program = nm.trace(step, x=nm.spec([N, M]), y=nm.spec([N]))
    for count in (2, 3):
        nm.export(program, nm.Mesh(data=count), "rows:data").save(folder / f"{count}.nmesh")
    (folder / "train.py").write_text(TRAIN)
    command = [sys.executable, "-m", "namedmesh", "launch", "-n", "3", "--devices", "1"]
    command += [*options, "--", sys.executable, str(folder / "train.py"), str(folder), *faults]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=ROOT, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def states(lines: list[str]) -> set[str]:
    """The last states of all processes."""
    return {line.partition("] state ")[2] for line in lines if "] state " in line}


@pytest.mark.slow
def test_the_group_goes_on_from_memory_with_a_spare_bit_for_bit(tmp_path):
    (tmp_path / "calm").mkdir()
    calm = train(tmp_path / "calm")
    lines = train(tmp_path, "--restarts", "3", "--spares", faults=("1:23", "0:31"))
    starts = re.findall(r"^\[(\d)\] from (\d+) pid (\d+)$", "\n".join(lines), re.MULTILINE)
    assert sorted(first for _, first, _ in starts) == sorted(3 * ["0"] + 3 * ["20"] + 3 * ["30"])
    pids = {index: {pid for one, _, pid in starts if one == index} for index in "012"}
    assert [len(pids[index]) for index in "012"] == [2, 2, 1]  # who lives stays
    assert states(lines) == states(calm) and len(states(calm)) == 1


@pytest.mark.slow
def test_without_a_replacement_fewer_go_on_with_the_mesh_that_they_choose(tmp_path):
    lines = train(tmp_path, "--restarts", "1", "--least", "2", faults=("0:23",))
    starts = re.findall(r"^\[(\d)\] from (\d+) pid (\d+)$", "\n".join(lines), re.MULTILINE)
    assert sorted(first for _, first, _ in starts) == 3 * ["0"] + 2 * ["20"]
    (tmp_path / "calm").mkdir()
    calm = train(tmp_path / "calm")
    (one,), (other,) = states(lines), states(calm)
    weights = [np.array(eval(text.partition(" ")[2])) for text in (one, other)]
    np.testing.assert_allclose(*weights, rtol=1e-5)
