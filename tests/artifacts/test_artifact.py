"""Artifacts survive the disk, and damaged ones are recognised."""

import os
import stat
import subprocess
import sys

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.artifacts.container import pack_members, unpack_members
from namedmesh.runtime import Artifact
from tests.artifacts.files import replace_manifest

B, M = nm.dims("batch=8 model=4")


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    def f(x):
        w = nm.param("w", [M, B], whole=[B])
        return (x, {"total": nm.sum(x), "pair": [nm.max(x), None]}, nm.einsum([x, w], []))

    program = nm.trace(f, nm.spec([B, M]))
    return nm.export(
        program, nm.Mesh(data=4, model=2, device_assignment=range(8)), "batch:data, model:model"
    )


def test_a_saved_artifact_is_the_same(artifact, tmp_path):
    artifact.save(tmp_path / "a.nmesh")
    again = Artifact.load(tmp_path / "a.nmesh")
    assert again == artifact
    assert again.digest == artifact.digest
    assert [path.name for path in tmp_path.iterdir()] == ["a.nmesh"]


def test_results_keep_their_structure(artifact):
    step = nm.runtime.Executable(artifact)
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    _, (same, named, _) = step(step.init(0), x)
    np.testing.assert_array_equal(same, x)
    assert float(named["total"]) == x.sum()
    assert float(named["pair"][0]) == 31 and named["pair"][1] is None


def test_exporting_needs_no_devices_of_the_mesh():
    P, Q = nm.dims("rows=2048 columns=2048")
    program = nm.trace(lambda x: nm.reshard(x, Q), nm.spec([P, Q], whole=[Q]))
    artifact = nm.export(program, nm.Mesh(all=2048), "rows:all, columns:all")
    assert artifact.mesh.devices == 2048
    with pytest.raises(
        nm.NamedMeshError, match="the mesh needs 2048 devices, and this process has 8"
    ):
        nm.runtime.Executable(artifact)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "something else"}, "is not a namedmesh artifact"),
        ({"version": 99}, "has version 99 of namedmesh-artifact; this namedmesh reads version 8"),
        ({"inputs": ...}, "has a manifest that is incomplete or wrong\n  inputs is missing"),
        ({"variables": []}, "init.mlir is there without variables, or missing with them"),
        (
            {"structure": {"tuple": [0, 0, 1, 2]}},
            "structure does not have each of 4 outputs once",
        ),
        ({"groups": {"batch": ["y"]}}, 'groups.batch is \\["y"\\], expected inputs that follow'),
    ],
)
def test_a_manifest_that_is_wrong_is_refused(artifact, changes, message):
    manifest = artifact.manifest() | changes
    kept = {key: value for key, value in manifest.items() if value is not ...}
    with pytest.raises(nm.NamedMeshError, match=message):
        Artifact.from_bytes(replace_manifest(artifact, kept))


@pytest.mark.parametrize("cut", [0, 1, 100, -1, -200])
def test_a_truncated_artifact_is_refused(artifact, cut):
    with pytest.raises(nm.NamedMeshError):
        Artifact.from_bytes(artifact.to_bytes()[:cut])


def test_every_flipped_byte_is_noticed(artifact):
    contents = artifact.to_bytes()
    for at in range(0, len(contents), max(1, len(contents) // 400)):
        damaged = bytes([*contents[:at], contents[at] ^ 255, *contents[at + 1 :]])
        with pytest.raises(nm.NamedMeshError) as error:
            Artifact.from_bytes(damaged)
        assert error.value.fix == "export it again with nm.export"


def test_a_saved_file_is_on_the_disk_before_it_has_its_name(artifact, tmp_path, monkeypatch):
    events = []
    sync, replace = os.fsync, os.replace

    def record_sync(descriptor):
        folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        events.append("sync folder" if folder else "sync file")
        sync(descriptor)

    def record_replace(old, new):
        events.append("rename")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "replace", record_replace)
    artifact.save(tmp_path / "a.nmesh")
    assert events == ["sync file", "rename", "sync folder"]


def test_a_failed_save_leaves_the_old_file_and_nothing_else(artifact, tmp_path, monkeypatch):
    artifact.save(tmp_path / "a.nmesh")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(nm.NamedMeshError, match="No space left on device"):
        artifact.save(tmp_path / "a.nmesh")
    assert [path.name for path in tmp_path.iterdir()] == ["a.nmesh"]
    assert Artifact.load(tmp_path / "a.nmesh") == artifact


def test_what_compresses_too_well_is_still_read(artifact):
    members = {"manifest.json": b"{}", "step.mlir": bytes(3_000_000), "init.mlir": b""}
    assert unpack_members(pack_members(members), list(members), "x") == members


EXPORT = """
import namedmesh as nm
B, S, K = nm.dims("batch=8 seq=3 key=4")

def step(x):
    w = nm.param("w", [B], nm.normal_init(1.0))
    total, _ = nm.scan(lambda c, row: (c + nm.sum(row), row), nm.zeros([]), x, over=S)
    some = nm.cond(total > 0, lambda: total * 2.0, lambda: total)
    ended = nm.while_loop(lambda v: v < 9.0, lambda v: v + 1.0, some)
    nm.assign(w, w - nm.grad(nm.sum(nm.sort(x * w, B)), w))
    return ended

def export():
    return nm.export(nm.trace(step, nm.spec([S, B])), nm.Mesh(data=2), "batch:data")
"""


def test_exports_are_the_same_in_one_process_and_in_two(tmp_path):
    (tmp_path / "exporting.py").write_text(EXPORT)
    code = "import exporting; exporting.export(); exporting.export().save('theirs.nmesh')"
    environment = os.environ | {"PYTHONPATH": f"{os.getcwd()}{os.pathsep}{tmp_path}"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=environment)
    names: dict = {}
    exec(compile(EXPORT, str(tmp_path / "exporting.py"), "exec"), names)
    first, second = names["export"](), names["export"]()
    assert first.to_bytes() == second.to_bytes()
    assert (tmp_path / "theirs.nmesh").read_bytes() == first.to_bytes()
    assert b"site-packages" not in first.step_module + first.init_module
