"""Artifacts survive the disk, and damaged ones are recognised."""

import io
import json
import zipfile

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.runtime import Artifact

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


def rewritten(artifact: Artifact, change) -> bytes:
    """The artifact's file with its members changed."""
    with zipfile.ZipFile(io.BytesIO(artifact.to_bytes())) as file:
        members = {name: file.read(name) for name in file.namelist()}
    change(members)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)
    return buffer.getvalue()


def _edit_manifest(**changes):
    def change(members):
        manifest = json.loads(members["manifest.json"]) | changes
        members["manifest.json"] = json.dumps(
            {key: value for key, value in manifest.items() if value is not None}
        ).encode()

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda members: members.update({"step.mlir": members["step.mlir"][:-9]}),
            "the step module does not match its checksum",
        ),
        (lambda members: members.pop("init.mlir"), "is not a namedmesh artifact, or is damaged"),
        (_edit_manifest(format="something else"), "is not a namedmesh artifact"),
        (_edit_manifest(version=99), "has artifact version 99; this namedmesh reads 4"),
        (
            _edit_manifest(inputs=None),
            "has a manifest that is incomplete or wrong\n  inputs is missing",
        ),
    ],
)
def test_a_damaged_artifact_is_refused(artifact, change, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        Artifact.from_bytes(rewritten(artifact, change))


@pytest.mark.parametrize("cut", [0, 1, 100, -1, -200])
def test_a_truncated_artifact_is_refused(artifact, cut):
    with pytest.raises(nm.NamedMeshError):
        Artifact.from_bytes(artifact.to_bytes()[:cut])
