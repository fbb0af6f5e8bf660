"""Files that are no artifact, or were one; nothing has changed after any of them."""

# pyright: reportArgumentType=false

import json
import pathlib
import zipfile

import numpy as np

import namedmesh as nm
from namedmesh.artifacts.container import seal_file
from namedmesh.runtime import load
from tests.artifacts.files import read_members, replace_members
from tests.errors.running import assert_nothing_has_changed, given
from tests.errors.wrong import Table, message_of

wrong = Table()


def write(path: str, contents: bytes) -> None:
    pathlib.Path(path).write_bytes(contents)


def rezipped(contents: bytes, **members: bytes) -> bytes:
    """A file with some members replaced, and its checksum with them."""
    named = {name.replace("_", "."): data for name, data in members.items()}
    return replace_members(contents, named)


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
'other.nmesh' is not a namedmesh artifact, or one of an earlier version: it has no checksum
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
'future.nmesh' has version 99 of namedmesh-artifact; this namedmesh reads version 8
  at LINE: load("future.nmesh")
  fix: export it again with nm.export
""")
def artifact_of_an_unknown_version(contents, artifact):
    write("future.nmesh", rezipped(contents, manifest_json=manifest(artifact, version=99)))
    load("future.nmesh")


@wrong("""
'less.nmesh' has a manifest that is incomplete or wrong
  groups is null, expected an object
  at LINE: load("less.nmesh")
  fix: export it again with nm.export
""")
def artifact_with_an_incomplete_manifest(contents, artifact):
    write("less.nmesh", rezipped(contents, manifest_json=manifest(artifact, groups=None)))
    load("less.nmesh")


@wrong("""
'odd.nmesh' has a manifest that is incomplete or wrong
  inputs[0].name is missing
  inputs[0].shape[0] is ["batch"], expected [name, size]
  inputs[0].dtype is missing
  inputs[0].sharding is missing
  at LINE: load("odd.nmesh")
  fix: export it again with nm.export
""")
def artifact_with_inputs_that_are_none(contents, artifact):
    write(
        "odd.nmesh",
        rezipped(contents, manifest_json=manifest(artifact, inputs=[{"shape": [["batch"]]}])),
    )
    load("odd.nmesh")


@wrong("""
'typed.nmesh' has a manifest that is incomplete or wrong
  name is 3, expected text
  mesh.axes.data is "4", expected a non-negative whole number
  precision is "exact", expected one of default, high, highest
  inputs is {}, expected a list
  variables[0].sharding is missing
  variables[0].trainable is missing
  variables[0].updated is "yes", expected true or false
  collectives[0] is "AllReduce", expected an object
  ops.sum.1.source is 1, expected file:line
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
        "variables": [{"name": "w", "shape": [], "dtype": "float32", "updated": "yes"}],
        "outputs": [],
        "structure": 7,
        "collectives": ["AllReduce"],
        "initial_collectives": [],
        "ops": {"sum.1": {"source": 1, "results": []}},
        "flops": -1,
    }
    write("typed.nmesh", rezipped(contents, manifest_json=manifest(artifact, **changes)))
    load("typed.nmesh")


@wrong("""
'odd.nmesh' is not a namedmesh artifact: it has other members than \
manifest.json, step.mlir, init.mlir
  member: manifest.json
  member: step.mlir
  member: init.mlir
  member: more.txt
  at LINE: load("odd.nmesh")
  fix: export it again with nm.export
""")
def artifact_with_another_member(contents):
    write("odd.nmesh", rezipped(contents, more_txt=b"hello"))
    load("odd.nmesh")


@wrong("""
'bomb.nmesh' would unpack to far more than its size
  step.mlir: 100000000 bytes
  at LINE: load("bomb.nmesh")
  fix: export it again with nm.export
""")
def artifact_that_unpacks_to_far_more_than_its_size(contents):
    members = read_members(contents) | {"step.mlir": bytes(100_000_000)}
    with zipfile.ZipFile("bomb.nmesh", "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        file.comment = contents[-81:]
    path = pathlib.Path("bomb.nmesh")
    path.write_bytes(seal_file(path.read_bytes()))
    load("bomb.nmesh")


@wrong("""
a module of the artifact cannot be read: failed to deserialize module
  at LINE: load("none.nmesh")
  fix: export it again with nm.export
""")
def artifact_with_a_module_that_is_none(contents):
    write("none.nmesh", rezipped(contents, step_mlir=b"hello"))
    load("none.nmesh")


@wrong("""
a module of the artifact does not take or return what its manifest says
  module: tensor<8x6xf32>, tensor<f32>, tensor<6x4xf32>, tensor<i32> to \
tensor<f32>, tensor<6x4xf32>, tensor<i32>
  manifest: tensor<8x6xf32>, tensor<f32>, tensor<6x5xf32>, tensor<i32> to \
tensor<f32>, tensor<6x5xf32>, tensor<i32>
  at LINE: load("sized.nmesh")
  fix: export it again with nm.export
""")
def artifact_whose_manifest_has_another_size(contents, artifact):
    text = json.dumps(artifact.manifest()).replace('["hidden", 4]', '["hidden", 5]')
    text = text.replace('"sharding": {"hidden": ["model"]}', '"sharding": {}')
    write("sized.nmesh", rezipped(contents, manifest_json=text.encode()))
    load("sized.nmesh")


@wrong("""
'flipped.nmesh' is damaged, or was changed: it does not match its checksum
  at LINE: load("flipped.nmesh")
  fix: export it again with nm.export
""")
def artifact_with_a_flipped_byte_in_the_file(contents):
    write("flipped.nmesh", bytes([*contents[:99], contents[99] ^ 255, *contents[100:]]))
    load("flipped.nmesh")


@wrong("""
cannot read artifact '/dev/zero': it is not a file
  at LINE: load("/dev/zero")
  fix: check the path
""")
def artifact_without_an_end():
    load("/dev/zero")


@wrong("""
the file of the artifact is a int, expected a path
  at LINE: load(0)
  fix: give a string or a pathlib.Path
""")
def artifact_that_is_a_number():
    load(0)


@wrong("""
cannot write artifact 'nowhere/a.nmesh': No such file or directory
  at LINE: artifact.save("nowhere/a.nmesh")
  fix: check the path, that you may write there, and the space that is left
""")
def artifact_saved_in_no_folder(artifact):
    artifact.save("nowhere/a.nmesh")


@wrong.rows
def test_message_and_nothing_has_changed(function, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    things = given()
    assert message_of(function, **things) == message
    assert_nothing_has_changed(things["step"], things["state"])
