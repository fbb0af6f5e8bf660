"""A folder of checkpoints has one writer at a time, and all processes see the same folder."""

import gc
import json
import os
import platform
import subprocess
import sys

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.errors.errors import NamedMeshError
from namedmesh.training import Checkpoints
from namedmesh.training.catalog import WRITER, WriterLock
from namedmesh.training.checkpoint_files import CheckpointFolder
from tests.processes.workers import ROOT, START, run_processes

B = nm.Dimension("batch", 4)

HOLD = """
import sys
from namedmesh.training import Checkpoints
checkpoints = Checkpoints(sys.argv[1], keep=1)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_a_second_run_is_refused_and_told_who_has_the_folder(other, tmp_path):
    (tmp_path / "10.part").mkdir()  # what the other one is writing
    with pytest.raises(NamedMeshError) as error:
        Checkpoints(tmp_path, keep=1)
    who = f"process {other.pid} on {platform.node()}"
    assert error.value.problem == f"{tmp_path} is in use: {who} saves checkpoints there"
    assert (tmp_path / "10.part").exists()
    assert Checkpoints(tmp_path).steps == []  # reading is no second run
    other.kill()
    other.wait()
    with Checkpoints(tmp_path, keep=1):  # the lock has gone with its process
        assert not (tmp_path / "10.part").exists()
        assert f"process {os.getpid()} on" in (tmp_path / WRITER).read_text()
    assert list(tmp_path.iterdir()) == []


def test_a_second_user_in_one_process_leaves_alone_what_the_first_is_writing(tmp_path):
    with Checkpoints(tmp_path, keep=1):
        (tmp_path / "10.part").mkdir()
        with Checkpoints(tmp_path, keep=1):
            assert (tmp_path / "10.part").exists()
    with Checkpoints(tmp_path, keep=1):
        assert not (tmp_path / "10.part").exists()


def open_elsewhere(folder) -> str:
    """What another process is told that opens the folder and ends at once."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    return done.stdout + done.stderr


def test_a_process_may_open_its_folder_again_and_keeps_it_until_it_closes_all(tmp_path):
    first = Checkpoints(tmp_path, keep=1)
    Checkpoints(tmp_path, keep=1).close()
    assert f"is in use: process {os.getpid()} on" in open_elsewhere(tmp_path)
    first.close()
    assert open_elsewhere(tmp_path) == "ready\n"


def test_all_who_open_a_folder_see_what_is_saved_in_it(tmp_path):
    step = nm.compile(lambda: nm.param("w", [B]) * 1.0, mesh=nm.Mesh(d=1))

    def state(value):
        return step.place({"w": np.full(4, value, np.float32)})

    with Checkpoints(tmp_path, keep=1) as one, Checkpoints(tmp_path, keep=1) as two:
        one.save(1, state(1))
        one.wait()
        reader = Checkpoints(tmp_path)
        assert reader.restore(step).step == 1
        two.save(2, state(2))
        two.wait()
        assert one.steps == two.steps == reader.steps == [2]
        assert reader.latest == reader.best == 2
        with pytest.raises(NamedMeshError, match="step 2 is saved already"):
            one.save(2, state(3))
        with pytest.raises(NamedMeshError, match="step 1 cannot be saved after step 2"):
            one.save(1, state(1))
        assert np.asarray(reader.restore(step).state["w"])[0] == 2
        two.save(3, state(3))
        two.wait()
        with pytest.raises(NamedMeshError, match="no complete checkpoint of step 2"):
            reader.restore(step, 2)
        assert np.asarray(one.restore(step).state["w"])[0] == 3


def test_a_checkpoint_deleted_while_it_is_read_is_not_damaged(tmp_path, monkeypatch):
    step = nm.compile(lambda: nm.param("w", [B]) * 1.0, mesh=nm.Mesh(d=1))
    with Checkpoints(tmp_path, keep=1) as writer:
        writer.save(1, step.init(0))
        writer.wait()
        read = CheckpointFolder.read_record

        def save_first(folder, number):
            monkeypatch.setattr(CheckpointFolder, "read_record", read)
            writer.save(2, step.init(0))
            writer.wait()
            return read(folder, number)

        reader = Checkpoints(tmp_path)
        monkeypatch.setattr(CheckpointFolder, "read_record", save_first)
        assert reader.restore(step).step == 2


def test_what_is_dropped_or_fails_to_open_is_not_kept(tmp_path, monkeypatch):
    gc.collect()  # files of other tests
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        Checkpoints(tmp_path, keep=1)
    monkeypatch.setattr(CheckpointFolder, "remove_leftovers", lambda folder: [][0])
    with pytest.raises(IndexError):
        Checkpoints(tmp_path, keep=1)
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_its_owner_has_just_removed_is_not_taken(tmp_path, monkeypatch):
    opened = os.open

    def open_and_lose_it(path, *options):
        number = opened(path, *options)
        monkeypatch.setattr(os, "open", opened)
        os.unlink(path)
        return number

    monkeypatch.setattr(os, "open", open_and_lose_it)
    lock = WriterLock(tmp_path)
    assert (tmp_path / WRITER).read_text() == lock.text != ""
    lock.release()


def test_where_nothing_can_be_written_nobody_is_kept_away(tmp_path):
    lock = WriterLock(tmp_path / "absent")
    assert lock.text == ""
    lock.release()


OPEN = (
    START
    + """
from namedmesh import NamedMeshError
from namedmesh.training import Checkpoints, catalog
said = []
def attempt(folder):
    try:
        Checkpoints(folder, keep=1).close()
        said.append("opened")
    except NamedMeshError as error:
        said.append([error.problem, *error.details, error.fix])
import subprocess
attempt(f"{sys.argv[1]}/{processes.index}")
with Checkpoints(f"{sys.argv[1]}/held", keep=1):
    third = [sys.executable, "-c", sys.argv[2], f"{sys.argv[1]}/held"]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    if processes.first:
        done = subprocess.run(third, env=alone, stdin=subprocess.DEVNULL, capture_output=True)
        said.append(done.stderr.decode())
    else:
        said.append("")
    processes.exchange("all have tried", "yes")
if processes.index == 1:  # a folder of the same name on a disk of its own
    catalog.read_writer = lambda folder: "another"
attempt(f"{sys.argv[1]}/same")
print(json.dumps(said))
"""
)


@pytest.mark.slow
def test_processes_must_share_one_folder(tmp_path):
    ended = run_processes(OPEN, 2, str(tmp_path), HOLD, timeout=90)
    assert [one.status for one in ended] == [0, 0], ended[0].errors
    for one in ended:
        different, third, private = json.loads(one.output.splitlines()[-1])
        assert f"{tmp_path / 'held'} is in use: process " in third or one is ended[1]
        assert different[0] == "the processes do not agree on the folder of the checkpoints"
        assert different[1:3] == [f"process {i}: {tmp_path / str(i)}" for i in (0, 1)]
        assert private[0] == f"{tmp_path / 'same'} is not the same folder for all processes"
        assert private[1] == "process 1 sees another folder than process 0"
        assert "share" in private[-1]
