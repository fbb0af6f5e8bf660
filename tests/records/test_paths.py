"""Files are written whole, and what is not a file stays what it is."""

import os
import stat
import threading

import pytest

import namedmesh as nm
from namedmesh.records.paths import write_file


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()), daemon=True)
    reader.start()
    write_file(str(path), b"plan", "the plan")
    assert stat.S_ISFIFO(path.stat().st_mode)
    reader.join(10)
    assert read == [b"plan"] and os.listdir(tmp_path) == ["pipe"]


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="the system has no /dev/fd")
def test_a_descriptor_such_as_that_of_dev_stdout_is_written_to():
    reading, writing = os.pipe()
    write_file(f"/dev/fd/{writing}", b"plan", "the plan")
    assert os.read(reading, 10) == b"plan"
    os.close(reading)
    os.close(writing)


def test_a_link_leads_to_the_new_contents(tmp_path):
    file, link = tmp_path / "kept" / "golden.json", tmp_path / "golden.json"
    file.parent.mkdir()
    file.write_text("old")
    link.symlink_to(file)
    write_file(str(link), b"new", "the plan")
    assert link.is_symlink() and file.read_text() == "new"


def test_a_folder_is_refused_and_nothing_is_left_behind(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(nm.NamedMeshError, match=r"cannot write the plan .*: Is a directory"):
        write_file(str(folder), b"plan", "the plan")
    with pytest.raises(nm.NamedMeshError, match="No such file or directory"):
        write_file(str(tmp_path / "absent" / "plan.json"), b"plan", "the plan")
    assert os.listdir(tmp_path) == ["folder"] and not os.listdir(folder)
