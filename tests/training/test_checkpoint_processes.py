"""Checkpoints by several processes: every element once, all or nothing, read by any number."""

import functools
import json
import pathlib
import socket
import subprocess
import sys

import pytest
import tensorstore

import namedmesh as nm
from tests.training.damage import flip
from tests.training.transfers import least_bytes

ROOT = pathlib.Path(__file__).parent.parent.parent
D, F, S = nm.dims("wide=10 tall=640 small=3")
LAYOUTS = {
    "split": ("data=4", "wide:data"),
    "mixed": ("data=2 tensor=2", "wide:data, tall:tensor"),
    "copies": ("data=4", ""),
    "two": ("data=2", "tall:data"),
}


def read(x: nm.Tensor) -> nm.Tensor:
    """A weight whose size does not divide, and a small one."""
    w, b = nm.param("layer/w", [D, F]), nm.param("layer/b", [S])
    return nm.einsum([x, w], [F]) + nm.sum(b)


@functools.cache
def exported(place: str) -> nm.Artifact:
    mesh, layout = LAYOUTS[place]
    return nm.export(nm.trace(read, nm.spec([D])), nm.Mesh.parse(mesh), layout)


def run(folder: pathlib.Path, place: str, count: int, *actions: str) -> list[list[dict]]:
    """What each of some processes prints."""
    artifact = folder.parent / f"{place}.nmesh"
    exported(place).save(artifact)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    devices = nm.Mesh.parse(LAYOUTS[place][0]).devices // count
    command = [sys.executable, "-m", "tests.training.checkpoint_worker", str(port), str(count)]
    started = [
        subprocess.Popen(
            [*command, str(index), str(devices), str(artifact), str(folder), *actions],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(count)
    ]
    rows = []
    for process in started:
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors[-2000:]
        lines = (line for line in output.splitlines() if line.startswith("{"))
        rows.append([json.loads(line) for line in lines])
    return rows


def stored_bytes(folder: pathlib.Path, step: int) -> int:
    """How much the processes have written, as tensorstore counts what is in their databases."""
    total = 0
    for part in (folder / str(step) / "arrays").glob("process_*"):
        database = {"driver": "ocdbt", "base": f"file://{part}/"}
        store = tensorstore.KvStore.open(database).result()
        for key in store.list().result():
            if b"/c" in key:
                total += len(store.read(key).result().value)
    return total


@pytest.mark.parametrize("place", ["split", "mixed", "copies"])
def test_two_processes_save_and_another_number_restores(tmp_path, place):
    folder = tmp_path / "checkpoints"
    saved = run(folder, place, 2, "save:1", "save:2", "restore")
    assert [row["result"] for row in saved[0]] == [[1], [1, 2], [2, {"p": "2"}, True, []]]
    assert [row["result"] for row in saved[1]] == [row["result"] for row in saved[0]]
    for other, count in (("two", 1), ("mixed" if place == "split" else "split", 4)):
        for (row,) in run(folder, other, count, "restore"):
            assert row["result"] == [2, {"p": "2"}, True, []]


def test_every_element_is_written_once(tmp_path):
    folder = tmp_path / "checkpoints"
    run(folder, "copies", 2, "save:1")
    assert stored_bytes(folder, 1) == (10 * 640 + 3) * 4 + 2 * 4  # a checksum for each chunk
    run(folder, "split", 4, "save:2")
    assert stored_bytes(folder, 2) == (12 * 640 + 3) * 4 + 5 * 4  # 10 is padded to 12


def test_a_full_disk_of_one_process_is_an_error_in_all_and_the_last_checkpoint_stays(tmp_path):
    folder = tmp_path / "checkpoints"
    rows = run(
        folder, "split", 2, "save:1", "fail:1", "save:2", "restore", "fix:", "save:2", "restore"
    )
    for index in (0, 1):
        failed = rows[index][2]
        assert failed["result"]["problem"] == (
            f"step 2 could not be saved in {folder}: process 1 could not write"
        )
        assert failed["result"]["details"] == ["process 1: No space left on device"]
        assert failed["result"]["fix"].startswith("free space on that disk")
        assert failed["seconds"] < 10
        assert rows[index][3]["result"] == [1, {"p": "1"}, True, []]
        assert [row["result"] for row in rows[index][5:]] == [[1, 2], [2, {"p": "2"}, True, []]]
    assert {path.name for path in folder.glob("[!.]*")} == {"1", "2"}


def test_damage_that_one_process_sees_makes_all_of_them_go_back(tmp_path):
    folder = tmp_path / "checkpoints"
    run(folder, "split", 2, "save:1", "save:2")
    for file in (folder / "2" / "arrays" / "process_1" / "d").iterdir():
        flip(file)
    rows = run(folder, "split", 2, "restore")
    for index, (row,) in enumerate(rows):
        step, extra, same, warned = row["result"]
        assert (step, extra, same, len(warned)) == (1, {"p": "1"}, True, 1 - index)
    assert {path.name for path in folder.glob("[!.]*")} == {"1", "2.damaged"}


@pytest.mark.parametrize(
    "place, other", [("split", "mixed"), ("mixed", "copies"), ("copies", "split")]
)
def test_a_state_moves_between_the_devices_of_several_processes(tmp_path, place, other):
    path = tmp_path / f"{other}-target.nmesh"
    exported(other).save(path)
    for count in (2, 4):
        rows = run(tmp_path / "none", place, count, f"transfer:{path}")
        least = least_bytes(exported(place), exported(other), 4 // count)
        assert all(row[0]["result"] == [True, *least] for row in rows)


def test_a_flipped_bit_is_named_by_process_device_and_parameter(tmp_path):
    for row, *_ in run(tmp_path / "none", "mixed", 2, "flip:1"):
        problem, details = row["result"]["problem"], row["result"]["details"]
        assert problem == "after step 7, copies of a shard of layer/b differ between devices"
        (other,) = [one for one in details if one.startswith("devices") and one.count(",") == 0]
        assert "of process 1: one value" in other
