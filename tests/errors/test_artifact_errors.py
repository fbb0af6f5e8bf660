"""Files that are no artifact, or were one; nothing has changed after any of them."""

# pyright: reportArgumentType=false

import io
import json
import pathlib
import zipfile

import numpy as np

import namedmesh as nm
from namedmesh.runtime import load
from tests.errors.running import assert_nothing_has_changed, compiled, given
from tests.errors.wrong import Table, message_of

wrong = Table()


def write(path: str, contents: bytes) -> None:
    pathlib.Path(path).write_bytes(contents)


def rezipped(contents: bytes, **members: bytes) -> bytes:
    """A zip file with some members replaced."""
    with zipfile.ZipFile(io.BytesIO(contents)) as file:
        kept = {name: file.read(name) for name in file.namelist()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, data in (
            kept | {name.replace("_", "."): data for name, data in members.items()}
        ).items():
            file.writestr(name, data)
    return buffer.getvalue()


def manifest(artifact: nm.Artifact, **changes: object) -> bytes:
    return json.dumps(artifact.manifest() | changes).encode()


@wrong("""
cannot read artifact 'nowhere.nmesh': No such file or directory
  at LINE: load("nowhere.nmesh")
  fix: check the path
""")
def artifact_that_is_not_there():
    load("nowhere.nmesh")


@wrong("""
cannot read artifact 'folder.nmesh': Is a directory
  at LINE: load("folder.nmesh")
  fix: check the path
""")
def artifact_that_is_a_folder():
    pathlib.Path("folder.nmesh").mkdir()
    load("folder.nmesh")


@wrong("""
'empty.nmesh' is not a namedmesh artifact, or is damaged: File is not a zip file
  at LINE: load("empty.nmesh")
  fix: export it again with nm.export
""")
def artifact_that_is_empty():
    write("empty.nmesh", b"")
    load("empty.nmesh")


@wrong("""
'short.nmesh' is not a namedmesh artifact, or is damaged: File is not a zip file
  at LINE: load("short.nmesh")
  fix: export it again with nm.export
""")
def artifact_that_is_cut_short(contents):
    write("short.nmesh", contents[: len(contents) // 2])
    load("short.nmesh")


@wrong("""
'random.nmesh' is not a namedmesh artifact, or is damaged: File is not a zip file
  at LINE: load("random.nmesh")
  fix: export it again with nm.export
""")
def artifact_of_random_bytes():
    write("random.nmesh", np.random.default_rng(0).bytes(5000))
    load("random.nmesh")


@wrong("""
'other.nmesh' is not a namedmesh artifact, or is damaged: \
There is no item named 'manifest.json' in the archive
  at LINE: load("other.nmesh")
  fix: export it again with nm.export
""")
def artifact_that_is_another_zip_file():
    with zipfile.ZipFile("other.nmesh", "w") as file:
        file.writestr("readme.txt", "hello")
    load("other.nmesh")


@wrong("""
'text.nmesh' is not a namedmesh artifact, or is damaged: Expecting value: line 1 column 1 (char 0)
  at LINE: load("text.nmesh")
  fix: export it again with nm.export
""")
def artifact_whose_manifest_is_no_json(contents):
    write("text.nmesh", rezipped(contents, manifest_json=b"hello"))
    load("text.nmesh")


@wrong("""
'other.nmesh' is not a namedmesh artifact
  at LINE: load("other.nmesh")
  fix: export it again with nm.export
""")
def artifact_of_another_format(contents):
    write("other.nmesh", rezipped(contents, manifest_json=b'{"format": "checkpoint"}'))
    load("other.nmesh")


@wrong("""
'future.nmesh' has artifact version 99; this namedmesh reads 4
  at LINE: load("future.nmesh")
  fix: export it again with nm.export
""")
def artifact_of_an_unknown_version(contents, artifact):
    write("future.nmesh", rezipped(contents, manifest_json=manifest(artifact, version=99)))
    load("future.nmesh")


@wrong("""
'less.nmesh' has a manifest that is incomplete or wrong
  sha256 is null, expected an object
  at LINE: load("less.nmesh")
  fix: export it again with nm.export
""")
def artifact_with_an_incomplete_manifest(contents, artifact):
    write("less.nmesh", rezipped(contents, manifest_json=manifest(artifact, sha256=None)))
    load("less.nmesh")


@wrong("""
'odd.nmesh' has a manifest that is incomplete or wrong
  inputs[0].dims[0] is ["batch"], expected [name, size]
  inputs[0].held is missing
  inputs[0].dtype is missing
  inputs[0].name is missing
  at LINE: load("odd.nmesh")
  fix: export it again with nm.export
""")
def artifact_with_inputs_that_are_none(contents, artifact):
    write(
        "odd.nmesh",
        rezipped(contents, manifest_json=manifest(artifact, inputs=[{"dims": [["batch"]]}])),
    )
    load("odd.nmesh")


@wrong("""
'typed.nmesh' has a manifest that is incomplete or wrong
  mesh.axes.data is "4", expected a non-negative whole number
  name is 3, expected text
  precision is "exact", expected one of default, high, highest
  inputs is {}, expected a list
  variables[0].trainable is missing
  variables[0].updated is "yes", expected true or false
  structure is 7, expected the number of one of 0 outputs
  collectives[0] is "AllReduce", expected an object
  ops.sum.1.source is "somewhere", expected file:line
  flops is -1, expected a non-negative whole number
  at LINE: load("typed.nmesh")
  fix: export it again with nm.export
""")
def artifact_with_wrong_types_everywhere(contents, artifact):
    changes = {
        "mesh": {"axes": {"data": "4"}, "device_assignment": None},
        "name": 3,
        "precision": "exact",
        "inputs": {},
        "variables": [{"name": "w", "dims": [], "dtype": "float32", "held": {}, "updated": "yes"}],
        "outputs": [],
        "structure": 7,
        "collectives": ["AllReduce"],
        "initial_collectives": [],
        "ops": {"sum.1": {"source": "somewhere", "results": []}},
        "flops": -1,
    }
    write("typed.nmesh", rezipped(contents, manifest_json=manifest(artifact, **changes)))
    load("typed.nmesh")


@wrong("""
'flipped.nmesh' is damaged: the step module does not match its checksum
  at LINE: load("flipped.nmesh")
  fix: export it again with nm.export
""")
def artifact_with_flipped_bytes_in_a_module(contents, artifact):
    flipped = bytes(
        [*artifact.step_module[:100], artifact.step_module[100] ^ 255, *artifact.step_module[101:]]
    )
    write("flipped.nmesh", rezipped(contents, step_mlir=flipped))
    load("flipped.nmesh")


@wrong("""
'flipped.nmesh' is not a namedmesh artifact, or is damaged: Bad CRC-32 for file 'step.mlir'
  at LINE: load("flipped.nmesh")
  fix: export it again with nm.export
""")
def artifact_with_a_flipped_byte_in_the_file(contents, artifact):
    stored = rezipped(contents)
    at = stored.index(artifact.step_module) + 100
    write("flipped.nmesh", bytes([*stored[:at], stored[at] ^ 255, *stored[at + 1 :]]))
    load("flipped.nmesh")


@wrong.rows
def test_message_and_nothing_has_changed(function, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    things = given()
    assert message_of(function, **things) == message
    assert_nothing_has_changed(things["step"], things["state"])


def test_every_flipped_byte_is_noticed():
    """Whatever byte of a file is damaged, loading it raises our error or gives the artifact."""
    artifact = compiled()["step"].artifact
    contents = artifact.to_bytes()
    for at in range(0, len(contents), max(1, len(contents) // 300)):
        damaged = bytes([*contents[:at], contents[at] ^ 255, *contents[at + 1 :]])
        try:
            assert nm.Artifact.from_bytes(damaged) == artifact
        except nm.NamedMeshError as error:
            assert error.fix == "export it again with nm.export"
