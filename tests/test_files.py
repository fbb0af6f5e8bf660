"""Files are written whole, and what is not a file stays what it is."""

import os
import re
import secrets
import stat
import threading
import time

import pytest

import namedmesh as nm
from namedmesh.errors.source import Source
from namedmesh.files import write_file
from namedmesh.hardware.hardware import EXAMPLE


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


B, M = nm.dims("batch=4 model=2")


def program():
    return nm.trace(lambda x: nm.sum(x * nm.param("w", [M])), x=nm.spec([B, M]))


def load_weights(path):
    return nm.load_weights(path, {"w": nm.training.SavedVariable((2,), "float32")})


READERS = {
    "weights": (load_weights, "model.safetensors"),
    "hardware": (lambda path: nm.cost(nm.plan(program(), nm.Mesh(a=1)), path), "chip.yaml"),
    "plan": (nm.load_plan, "plan.json"),
    "comparison": (lambda path: nm.diff(path, path), "plan.json"),
    "artifact": (nm.Artifact.load, "step.nmesh"),
    "layout": (nm.Layout.from_yaml, "layout.yaml"),
    "journal": (lambda path: nm.search(program(), 2, "cpu", resume=path), "journal.json"),
    "metrics": (nm.training.read_metrics, "metrics.jsonl"),
    "log": (nm.training.MetricsLog, "metrics.jsonl"),
}


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("name", READERS)
def test_what_is_not_a_file_is_refused_at_once(tmp_path, name, kind):
    read, file = READERS[name]
    path = tmp_path / file
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(nm.NamedMeshError, match=r"not a file|a folder|a directory") as error:
        read(path)
    assert error.value.fix


@pytest.mark.parametrize("name", ["hardware", "plan", "comparison", "artifact", "layout"])
def test_terabytes_are_not_read(tmp_path, name):
    read, file = READERS[name]
    with open(tmp_path / file, "wb") as sparse:
        sparse.truncate(2**41)
    with pytest.raises(nm.NamedMeshError, match="2,199,023,255,552 bytes, more than"):
        read(tmp_path / file)


@pytest.mark.parametrize("name", ["/dev/zero", "pipe", "large.py"])
def test_source_lines_that_a_record_names_are_read_from_files_alone(tmp_path, name):
    path = tmp_path / name
    if name == "pipe":
        os.mkfifo(path)
    elif name == "large.py":
        with open(path, "wb") as sparse:
            sparse.truncate(2**41)
    assert Source(str(path), 1).code == ""


@pytest.mark.parametrize("write", ["file", "weights"])
def test_no_link_is_written_through_on_the_way(tmp_path, monkeypatch, write):
    """Of a file that is being written nobody knows the name, and one that is there is not taken."""
    path, target = tmp_path / "plan.json", tmp_path / "target"
    target.write_text("mine")
    step = nm.compile(program(), mesh=nm.Mesh(a=1)) if write == "weights" else None

    def save():
        if step is None:
            return write_file(str(path), b"plan", "the plan")
        return nm.save_weights(path, step.init())

    seen = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (seen.append(str(a)), replace(a, b))[1])
    save()
    save()
    assert len({*seen}) == 2 and all(str(os.getpid()) not in one for one in seen)
    monkeypatch.setattr(secrets, "token_hex", lambda count: "0" * 16)
    (tmp_path / ("." + "0" * 16 + ".partial")).symlink_to(target)
    with pytest.raises(nm.NamedMeshError, match="File exists"):
        save()
    assert target.read_text() == "mine"


DEEP = "[" * 20_000
LAUGHS = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 8)
)
HOSTILE_YAML = {
    "deep": DEEP,
    "deep mapping": "a: " * 3 + "{a: " * 5000,
    "deep block": "- " * 20_000,
    "laughs": LAUGHS,
    "laughs in the value": f"{LAUGHS}name: *a7\n",
    "merges": "a: &a {x: 1}\n<<: [" + ",".join(["*a"] * 2000) + "]\n",
    "itself": "name: &a [*a]\n",
    "no date": "name: 2001-99-99\n",
    "a long number": f"memory_bytes: {'9' * 5000}\n",
    "a long real": f"vector_flops: {'9' * 400}\n",
    "a tag": "name: !!python/object/apply:os.system [true]\n",
    "not Unicode": "name: \ud800\n",
    "an escape": "name: \x1b[2J\n",
    "a huge key": f"? {'k' * 60_000}\n: 1\n",
    "a set of lists": "? [1, 2]\n: 1\n",
}


@pytest.mark.parametrize("case", HOSTILE_YAML)
@pytest.mark.parametrize("read", [nm.Layout.from_yaml, nm.Hardware.parse])
def test_yaml_that_means_harm_is_refused_in_time(case, read, tmp_path):
    path = tmp_path / "file.yaml"
    path.write_bytes(HOSTILE_YAML[case].encode("utf-8", "surrogatepass"))
    start = time.process_time()
    with pytest.raises(nm.NamedMeshError) as error:
        read(path)
    assert time.process_time() - start < 2
    assert error.value.fix and len(str(error.value)) < 30_000


@pytest.mark.parametrize("number", ["9" * 400, "1e400", "-1e400", ".inf", "1e-320", "[]", "1e200"])
@pytest.mark.parametrize("field", ["memory_bytes", "vector_flops", "start", "inside", "float32"])
def test_figures_that_no_hardware_has_are_refused(field, number, tmp_path):
    path = tmp_path / "gpu.yaml"
    text = re.sub(rf"\b{field}: [0-9e]+", f"{field}: {number}", f"{EXAMPLE}start: 1\n")
    path.write_text(text)
    with pytest.raises(nm.NamedMeshError, match=field):
        nm.Hardware.parse(path)
