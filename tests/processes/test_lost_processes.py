"""Processes that die, stop, hang or do not fit: the others say so and end with a status."""

import time

import pytest

import namedmesh as nm
from tests.processes.workers import START, Ended, run_processes

B, M = nm.dims("batch=4 model=4")

STEPS = (
    START
    + """
import subprocess
from namedmesh.runtime import load
def stand_still(seconds):
    waker = f"sleep {seconds}; kill -CONT {os.getpid()}"
    subprocess.Popen(["sh", "-c", waker])
    os.kill(os.getpid(), signal.SIGSTOP)
step = load(sys.argv[1])
batch = step.feed({"x": np.ones((4, 4), np.float32)[step.rows("x")]})
state = step.init(0)
chosen = processes.index == int(sys.argv[3])
for number in range(10**6):
    if number == 3 and chosen:
        {"kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
         "raise": lambda: [][processes.count],
         "exit": lambda: sys.exit(0),
         "still": lambda: stand_still(10),
         "wait": lambda: time.sleep(8)}[sys.argv[2]]()
    if number == 5 and sys.argv[2] in ("wait", "still"):
        break
    state, _ = step(state, **batch)
print("done")
"""
)


def train(x):
    w = nm.param("w", [M])
    loss = nm.mean(nm.square(nm.einsum([x, w], [B]) - 1))
    nm.assign(w, w - nm.grad(loss, w))
    return loss


@pytest.fixture(scope="module")
def artifact(tmp_path_factory) -> str:
    program = nm.trace(train, nm.spec([B, M]))
    path = tmp_path_factory.mktemp("lost") / "train.nmesh"
    nm.export(program, nm.Mesh(data=2), "batch:data").save(path)
    return str(path)


def train_more(x):
    w, v, scale = nm.param("w", [M]), nm.param("v", [B, M]), nm.param("scale", [])
    loss = nm.mean(nm.square(nm.einsum([x, w], [B]) * scale + nm.sum(v, over=M) - 1))
    for name, gradient in nm.grad(loss).items():
        nm.assign(nm.parameters()[name], nm.parameters()[name] - gradient)
    return loss


@pytest.fixture(scope="module")
def four_devices(tmp_path_factory) -> str:
    """A program with several sums, of which gloo sends messages between devices of one process."""
    path = tmp_path_factory.mktemp("lost") / "more.nmesh"
    nm.export(nm.trace(train_more, nm.spec([B, M])), nm.Mesh(data=4), "batch:data").save(path)
    return str(path)


def run(
    artifact: str,
    what: str,
    index: int,
    variables: dict[str, str] | None = None,
    devices: int = 1,
) -> tuple[list[Ended], float]:
    """How two processes end if one of them does something, and the seconds it takes."""
    start = time.monotonic()
    arguments = (artifact, what, str(index))
    ended = run_processes(STEPS, 2, *arguments, devices=devices, timeout=90, variables=variables)
    return ended, time.monotonic() - start


@pytest.mark.slow
@pytest.mark.parametrize("what", ["kill", "raise"])
def test_devices_that_wait_for_each_other_do_not_keep_a_process(four_devices, what):
    ended, seconds = run(four_devices, what, 1, devices=2)
    assert [one.status for one in ended] == [1, {"kill": -9, "raise": 1}[what]], ended[0].errors
    errors = ended[0].errors
    assert "process 1 of 2 " in errors and "in step 4 of train_more for" in errors
    assert {"kill": "it was killed", "raise": "IndexError"}[what] in errors or "is gone" in errors
    assert "terminate called" not in errors and "Check failure" not in errors
    assert seconds < 60


@pytest.mark.slow
def test_a_process_that_stands_still_for_a_while_is_waited_for(artifact):
    ended, _ = run(artifact, "still", 1)
    assert [(one.status, one.output.splitlines()[-1]) for one in ended] == [(0, "done")] * 2


@pytest.mark.slow
def test_a_process_that_stands_still_for_long_is_named_before_jax_ends_all(artifact):
    ended, _ = run(artifact, "still", 1, {"TEST_OPTIONS": '{"heartbeat": 4}'})
    assert all(one.status for one in ended)
    assert "process 1 of 2 has given no sign of life for" in ended[0].errors


def test_a_killed_process_is_named_by_the_others(artifact):
    ended, _ = run(artifact, "kill", 1)
    assert [one.status for one in ended] == [1, -9], ended[0].errors
    errors = ended[0].errors
    assert "LostProcess: train failed on its devices: process 1 of 2 is gone" in errors
    assert "process 1 gives no sign of life" in errors
    assert "fix: look at the output of process 1; start all processes again" in errors


def test_a_process_that_is_killed_in_a_transfer_is_named(tmp_path):
    program = nm.trace(train, nm.spec([B, M]))
    for name, layout in (("before", "batch:data"), ("after", "model:data")):
        nm.export(program, nm.Mesh(data=2), layout).save(tmp_path / name)
    moving = """
import namedmesh as nm
from namedmesh.runtime import load
after, before = (load(f"{sys.argv[1]}/{name}") for name in ("after", "before"))
plan = nm.transfer(after, before, memory=8)
state = after.init(0)
plan(state)
for number in range(10**6):
    if number == 3 and processes.index:
        os.kill(os.getpid(), signal.SIGKILL)
    plan(state, verify=False)
"""
    first, _ = run_processes(START + moving, 2, str(tmp_path))
    assert first.status != 0
    assert "the transfer failed on its devices: process 1 of 2 is gone" in first.errors


def test_when_the_coordinator_is_killed_the_others_say_so(artifact):
    ended, seconds = run(artifact, "kill", 0)
    assert ended[0].status == -9
    # jax ends a process by itself when its coordinator is gone, sometimes before Python can speak.
    assert ended[1].status in (1, -6)
    said = ("process 0 of 2 is gone", "LostProcess", "the JAX distributed service")
    assert any(text in ended[1].errors for text in said), ended[1].errors
    assert seconds < 60


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1])
def test_an_error_in_one_process_is_told_to_the_others(artifact, index):
    ended, seconds = run(artifact, "raise", index)
    assert [one.status for one in ended] == [1, 1]
    assert "IndexError" in ended[index].errors and "LostProcess" not in ended[index].errors
    other = ended[1 - index].errors
    assert f"process {index}" in other and "IndexError: list index out of range" in other, other
    assert seconds < 60


@pytest.mark.slow
def test_a_process_that_ends_too_early_does_not_leave_the_others_waiting(artifact):
    ended, _ = run(artifact, "exit", 1)
    assert ended[0].status == 1
    assert "process 1 of 2 has stopped: it has come to its end" in ended[0].errors


@pytest.mark.slow
def test_a_step_that_waits_is_reported_with_the_collective_that_every_process_is_in(artifact):
    variables = {"TEST_OPTIONS": '{"hang_seconds": 3}', "NAMEDMESH_TRACE_COLLECTIVES": "1"}
    ended, _ = run(artifact, "wait", 1, variables)
    assert [one.status for one in ended] == [0, 0], ended[0].errors
    report = ended[0].errors.splitlines()
    first = next(i for i, line in enumerate(report) if line.startswith("a step has taken"))
    assert "more than hang_seconds=3" in report[first]
    assert "process 0: in step 4 of train for" in report[first + 1]
    assert ", in AllReduce of " in report[first + 1] and " along data " in report[first + 1]
    assert "process 1: " in report[first + 2] and "after step 3 of train, at " in report[first + 2]
    assert "collective_thunk" not in ended[0].errors
    assert "a step has taken" not in ended[1].errors  # one process reports


LOAD = (
    START
    + """
from namedmesh.runtime import load
load(sys.argv[1])
"""
)


@pytest.mark.slow
def test_a_mesh_that_leaves_a_process_out_is_refused(artifact):
    ended = run_processes(LOAD, 3, artifact, timeout=90)
    assert [one.status for one in ended] == [1, 1, 1]
    problem = "process 2 of 3 would have no device of the mesh of train"
    assert all(problem in one.errors for one in ended)


DIFFERENT = (
    START
    + """
from namedmesh.runtime import load
load(sys.argv[1 + processes.index])
"""
)


@pytest.mark.slow
def test_processes_with_other_programs_are_refused(artifact, tmp_path):
    program = nm.trace(lambda x: train(x * 2), nm.spec([B, M]))
    nm.export(program, nm.Mesh(data=2), "batch:data").save(tmp_path / "other.nmesh")
    ended = run_processes(DIFFERENT, 2, artifact, str(tmp_path / "other.nmesh"), timeout=90)
    assert [one.status for one in ended] == [1, 1]
    for one in ended:
        assert "the processes do not agree on program" in one.errors
        assert "process 0: train " in one.errors and "process 1: " in one.errors


OLD = (
    """
import os, namedmesh.processes.starting as starting
if os.environ["JAX_PROCESS_ID"] == "1":
    starting.__version__ = "0.0.1"
"""
    + START
)


def test_a_process_with_another_version_is_refused():
    ended = run_processes(OLD, 2, timeout=60)
    assert [one.status for one in ended] == [1, 1]
    for one in ended:
        assert "NamedMeshError: the processes do not agree on versions" in one.errors
        assert "process 1: namedmesh 0.0.1, jax " in one.errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({1: {"JAX_PROCESS_ID": "2"}}, "two processes say that they are process 2"),
        ({1: {"JAX_NUM_PROCESSES": "4"}}, "process 1 was told 4, and process 0 was told 3"),
        ({1: {"JAX_COORDINATOR_ADDRESS": "127.0.0.1:9"}}, "process 1 of 3 has not come to"),
    ],
)
def test_processes_that_do_not_fit_are_named_to_all_who_came(overrides, problem):
    code = START.replace("timeout=60", "timeout=20")
    ended = run_processes(code, 3, timeout=90, overrides=overrides)
    assert [one.status for one in ended] == [1, 1, 1]
    told = [index for index, one in enumerate(ended) if problem in one.errors]
    assert 0 in told and 2 in told
    assert all("fix:" in one.errors for one in ended)


def test_the_first_process_keeps_the_service_until_the_others_have_ended(tmp_path):
    # An answer of the service that came too late made jax abort others after a good run.
    last = """
import atexit, pathlib, sys, time
def end():
    if processes.index:
        time.sleep(1.5)
    pathlib.Path(sys.argv[1], str(processes.index)).write_text(str(time.monotonic()))
atexit.register(end)  # before jax's own: is called after it
"""
    ended = run_processes(last + START, 2, str(tmp_path))
    assert [one.status for one in ended] == [0, 0]
    first, second = (float((tmp_path / str(index)).read_text()) for index in range(2))
    assert first > second
