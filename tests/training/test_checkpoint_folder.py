"""What is in a folder of checkpoints besides them: the user's own files, links, pipes, devices."""

import functools
import json
import os
import shutil
import warnings

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.errors.errors import NamedMeshError
from namedmesh.training import Checkpoints
from namedmesh.training.checkpoint_files import MARK
from tests.training.programs import same

W = nm.Dimension("wide", 600)


def program(x):
    return x * nm.param("w", [W])


@functools.cache
def compiled(devices: int = 1) -> nm.Step:
    layout = "wide:data" if devices > 1 else ""
    return nm.compile(program, nm.spec([W]), mesh=nm.Mesh(data=devices), layout=layout)


def values(step: int) -> np.ndarray:
    return np.random.default_rng(step).normal(size=600).astype(np.float32)


def save(folder, *steps, keep=3):
    with Checkpoints(folder, keep=keep) as checkpoints:
        for step in steps:
            checkpoints.save(step, compiled().place({"w": values(step)}), {"step": step})


def restore(folder, step=None, devices=1):
    with Checkpoints(folder) as checkpoints:
        return checkpoints.restore(compiled(devices), step)


def names(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


OWN = ["2024.participants", "7.partial-results", "7.parts", "8.deleted_scenes", "9.deleted-old",
       "10.part2", "010.part", "1.part.old", "٣.part", "20.part", "30.deleted", "40.deleted-2",
       "2024", "0", "50", ".60.part-1", ".60.part-0123456789abcdef"]  # fmt: skip


def test_the_users_own_folders_are_left_alone(tmp_path):
    for name in OWN:
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "inner" / "notes.txt").write_text("mine")
    for step in (100, 200, 300):
        save(tmp_path, step, keep=1)
    assert names(tmp_path) == {*OWN, "300"}
    assert Checkpoints(tmp_path).steps == [300]
    for name in OWN:
        assert (tmp_path / name / "inner" / "notes.txt").read_text() == "mine"


def test_a_folder_in_the_way_of_a_step_is_an_error(tmp_path):
    (tmp_path / "50").mkdir()
    (tmp_path / "50" / "notes.txt").write_text("mine")
    (tmp_path / "60.part").mkdir()
    (tmp_path / "60.part" / "notes.txt").write_text("mine")
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        state = compiled().init()
        with pytest.raises(NamedMeshError, match="50 is in the way"):
            checkpoints.save(50, state)
        checkpoints.save(60, state)
        with pytest.raises(NamedMeshError, match="is in the way, and was not written by this run"):
            checkpoints.wait()
        checkpoints.save(70, state)
    assert names(tmp_path) == {"50", "60.part", "70"}
    assert (tmp_path / "60.part" / "notes.txt").read_text() == "mine"


def test_files_that_a_user_puts_into_a_checkpoint_outlive_it(tmp_path):
    save(tmp_path, 10)
    (tmp_path / "10" / "notes.txt").write_text("mine")
    (tmp_path / "10" / "arrays" / "plot.png").write_text("mine")
    save(tmp_path, 20, keep=1)
    kept = {str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*") if one.is_file()}
    assert {one for one in kept if not one.startswith("20/")} == {
        "10.deleted/namedmesh", "10.deleted/notes.txt", "10.deleted/arrays/plot.png",
    }  # fmt: skip
    assert Checkpoints(tmp_path).steps == [20]


def test_what_a_killed_process_was_writing_or_deleting_is_removed(tmp_path):
    save(tmp_path, 10, 20, 30)
    os.rename(tmp_path / "10", tmp_path / "10.deleted")
    os.remove(tmp_path / "10.deleted" / "record.json")
    os.rename(tmp_path / "20", tmp_path / "20.part")
    shutil.copytree(tmp_path / "20.part", tmp_path / ".40.part-0123456789abcdef")
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        assert checkpoints.steps == [30]
        assert names(tmp_path) == {"30", ".writer"}


def test_checkpoints_without_a_mark_are_not_deleted(tmp_path):
    save(tmp_path, 10, 20)
    os.remove(tmp_path / "10" / MARK)
    save(tmp_path, 30, keep=1)
    assert names(tmp_path) == {"10", "30"}
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        with pytest.raises(NamedMeshError, match="namedmesh has not written it"):
            checkpoints.delete(10)


def test_links_are_neither_followed_nor_deleted(tmp_path):
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "run"
    save(elsewhere, 10)
    folder.mkdir()
    before = {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()}
    for name in ("30.part", "5.deleted", "10"):
        (folder / name).symlink_to(elsewhere / "10")
    with Checkpoints(folder, keep=1) as checkpoints:
        assert checkpoints.steps == [10]  # a link to a checkpoint can be read
        checkpoints.save(30, compiled().init())
        with pytest.raises(NamedMeshError, match=r"30\.part"):
            checkpoints.wait()
        checkpoints.save(40, compiled().init())  # 10 would be too old to be kept
        checkpoints.wait()
    assert names(folder) == {"30.part", "5.deleted", "10", "40"}
    assert {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("keep", [None, 3])
@pytest.mark.parametrize("kind", ["dangling", "elsewhere", "itself", "empty", "text"])
def test_what_took_the_place_of_the_newest_checkpoint_is_told(tmp_path, kind, keep):
    save(tmp_path, 10, 20)
    for step, latest in ((20, 10), (10, None)):
        path = tmp_path / str(step)
        shutil.rmtree(path)
        if kind == "empty":
            path.mkdir()
        elif kind == "text":
            path.write_text("mine")
        else:
            path.symlink_to({"dangling": "nothing", "elsewhere": "/dev", "itself": path}[kind])
        with pytest.warns(UserWarning, match="/20 is ignored: there is nothing of a"):
            with Checkpoints(tmp_path, keep=keep) as checkpoints:
                assert checkpoints.latest == latest
        assert os.path.lexists(path)


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "text", "folder"])
def test_something_else_of_the_locks_name_is_not_written_to(tmp_path, kind):
    folder, target = tmp_path / "run", tmp_path / "notes.txt"
    folder.mkdir()
    target.write_text("mine, and long enough to be cut")
    lock = folder / ".writer"
    if kind in ("link", "dangling"):
        lock.symlink_to(target if kind == "link" else tmp_path / "nothing")
    elif kind == "pipe":
        os.mkfifo(lock)
    elif kind == "text":
        lock.write_text("mine")
    else:
        lock.mkdir()
    with pytest.raises(NamedMeshError, match="is not the lock of a run"):
        Checkpoints(folder, keep=1)
    assert os.path.lexists(lock) and not (tmp_path / "nothing").exists()
    assert target.read_text() == "mine, and long enough to be cut"
    assert Checkpoints(folder).steps == []


FILES = ["record.json", "arrays/manifest.ocdbt", "arrays/d/*", "arrays/process_0/d/*"]


@pytest.mark.parametrize("pattern", FILES)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_not_a_file_is_damage_and_does_not_hang(tmp_path, pattern, kind):
    save(tmp_path, 10, 20)
    for path in list((tmp_path / "20").glob(pattern)):
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        else:
            path.mkdir()
    with pytest.raises(NamedMeshError) as error:
        restore(tmp_path, 20)
    assert error.value.problem.endswith("is damaged")
    with pytest.warns(UserWarning, match="step 10 was restored instead"):
        assert restore(tmp_path).step == 10


def test_a_folder_of_arrays_that_leads_elsewhere_is_not_searched(tmp_path):
    save(tmp_path, 10)
    (tmp_path / "10" / "arrays" / "more").symlink_to("/")
    with pytest.raises(NamedMeshError, match="is damaged"):
        restore(tmp_path, 10)


def copy_whole(source, target):
    shutil.rmtree(target)
    shutil.copytree(source, target)


def copy_over(source, target):
    shutil.copytree(source, target, dirs_exist_ok=True)


def copy_manifest(source, target):
    shutil.copy(source / "manifest.ocdbt", target)
    shutil.copytree(source / "d", target / "d", dirs_exist_ok=True)
    shutil.copytree(source / "process_0" / "d", target / "process_0" / "d", dirs_exist_ok=True)


@pytest.mark.parametrize("copy", [copy_whole, copy_over, copy_manifest])
@pytest.mark.parametrize("other_run", [False, True])
def test_arrays_of_another_checkpoint_are_not_restored(tmp_path, copy, other_run):
    folder = tmp_path / "run"
    save(folder, 10, 20)
    source = folder / "10"
    if other_run:
        save(tmp_path / "other", 20)
        source = tmp_path / "other" / "20"
    copy(source / "arrays", folder / "20" / "arrays")
    with pytest.raises(NamedMeshError) as error:
        restore(folder, 20)
    assert error.value.problem == f"the checkpoint of step 20 in {folder} is damaged"
    assert "another checkpoint" in error.value.details[0]
    with pytest.warns(UserWarning, match="step 10 was restored instead"):
        checkpoint = restore(folder, devices=2)
    assert same(checkpoint.state["w"], values(10))


def test_a_checkpoint_that_moves_as_a_whole_is_restored(tmp_path):
    save(tmp_path / "one", 10, 20)
    (tmp_path / "two").mkdir()
    shutil.copytree(tmp_path / "one" / "20", tmp_path / "two" / "20")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(restore(tmp_path / "two").state["w"], values(20))


def test_a_record_without_a_token_is_damaged(tmp_path):
    import hashlib

    save(tmp_path, 10)
    path = tmp_path / "10" / "record.json"
    record = json.loads(path.read_text())["record"]
    del record["token"]  # else the arrays of any checkpoint would do
    body = json.dumps(record)
    digest = hashlib.sha256(body.encode()).hexdigest()
    path.write_text(f'{{"sha256": "{digest}", "record": {body}}}')
    with pytest.raises(NamedMeshError, match=r"the checkpoint of step 10 in .* is damaged"):
        restore(tmp_path)
