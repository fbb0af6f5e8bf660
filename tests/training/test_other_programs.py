"""Checkpoints of one program restored into another: what does not fit is named, with the fix."""

import os

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.training import Checkpoints, MetricsLog

A, B = nm.dims("rows=4 columns=4")


def program(*dims, name="w", dtype="float32"):
    def total():
        return nm.sum(nm.param(name, dims, dtype=dtype))

    return nm.compile(total, mesh=nm.Mesh(data=1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    with Checkpoints(folder, keep=1) as checkpoints:
        checkpoints.save(3, program(A, B).init(1))
    return folder


@pytest.mark.parametrize(
    ("other", "details"),
    [
        ({"name": "v"}, ["v: float32[4, 4] is missing", "saved, and not in the program: w"]),
        ({"dtype": "bfloat16"}, ["w: expected bfloat16[4, 4], found float32[4, 4]"]),
        (
            {"dims": (B, A)},
            ["w: expected the dimensions [columns, rows], found [rows, columns]"],
        ),
        ({"dims": (A,)}, ["w: expected float32[4], found float32[4, 4]"]),
    ],
)
def test_the_weight_and_the_fix_are_named(folder, other, details):
    step = program(*other.pop("dims", (A, B)), **other)
    with pytest.raises(nm.NamedMeshError) as caught:
        Checkpoints(folder).restore(step)
    assert caught.value.problem.endswith("does not fit the program: 1 variable")
    assert list(caught.value.details) == details
    assert "as they were saved" in caught.value.fix and "missing='init'" in caught.value.fix


def test_dimensions_of_other_names_are_no_mistake(folder):
    C, D = nm.dims("height=4 width=4")
    restored = Checkpoints(folder).restore(program(C, D)).state
    np.testing.assert_array_equal(restored["w"], program(A, B).init(1)["w"])


def test_weights_replace_what_a_link_points_to_and_never_a_device(tmp_path):
    state = program(A, B).init(1)
    link, target = tmp_path / "link", tmp_path / "target"
    link.symlink_to(target)
    nm.save_weights(link, state)
    assert link.is_symlink() and target.is_file()
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(nm.NamedMeshError, match="it is not a file"):
            nm.save_weights(path, state)
    assert (tmp_path / "pipe").is_fifo()


def test_a_pipe_that_nobody_reads_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("namedmesh.files._PATIENCE", 0.1)
    os.mkfifo(tmp_path / "pipe")
    plan = nm.plan(nm.trace(nm.sum, nm.spec([A])), nm.Mesh(data=1))
    with pytest.raises(nm.NamedMeshError, match="cannot write the plan"):
        plan.save(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    plan.save(tmp_path / "pipe")
    assert os.read(reader, 1) == b"{"
    os.close(reader)


def test_a_link_in_place_of_the_record_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder = tmp_path / "run"
    with Checkpoints(folder, keep=1) as checkpoints:
        commit = checkpoints._files.commit

        def plant(record, processes):
            (folder / f"{record.step}.part" / "record.json").symlink_to(victim)
            commit(record, processes)

        checkpoints._files.commit = plant
        checkpoints.save(3, program(A, B).init(1))
    assert victim.read_text() == "mine" and not (folder / "3" / "record.json").is_symlink()
    assert Checkpoints(folder).restore(program(A, B)).step == 3


def test_summaries_in_a_file_are_refused(tmp_path):
    pytest.importorskip("tensorboardX")
    (tmp_path / "file").touch()
    with pytest.raises(nm.NamedMeshError, match="cannot write summaries"):
        MetricsLog(tmp_path / "metrics.jsonl", summaries=tmp_path / "file")
