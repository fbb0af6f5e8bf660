"""Files made to harm who reads them are refused with a fix, in a bounded time and memory.

Each case took seconds to minutes, gigabytes, or ended in an error of another kind.
"""

import copy
import functools
import io
import resource
import struct
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from typing import Any

import pytest

import namedmesh as nm
from namedmesh.artifacts.container import _MARK, seal_file
from namedmesh.runtime import Artifact
from tests.artifacts.files import replace_manifest

B, M = nm.dims("batch=4 model=6")
SECONDS, BYTES = 2.0, 100 * 2**20


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    program = nm.trace(lambda x: {"loss": nm.sum(x)}, x=nm.spec([B, M]))
    return nm.export(program, nm.Mesh(data=2), "batch:data")


def refuse(read: Callable[[], Any], most: int = BYTES) -> str:
    """The error of reading a file, which is ours, and comes soon and without much memory."""
    tracemalloc.start()
    start = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    try:
        with pytest.raises(nm.NamedMeshError) as error:
            read()
        seconds = resource.getrusage(resource.RUSAGE_SELF).ru_utime - start
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
    assert seconds < 5 * SECONDS, seconds  # tracing memory takes most of it
    assert error.value.fix
    assert len(str(error.value)) < 4000
    return str(error.value)


def pack(method: int, size: int, claimed: int | None = None) -> bytes:
    """A sealed file whose step is zeros, packed by a method; the directory claims another size."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name in ("manifest.json", "step.mlir", "init.mlir"):
            content = bytes(size) if name == "step.mlir" else b"{}"
            file.writestr(zipfile.ZipInfo(name), content, method)
        file.comment = _MARK + b"0" * 64
    data, at = bytearray(buffer.getvalue()), -1
    while claimed is not None and (at := data.find(b"PK\1\2", at + 1)) >= 0:
        data[at + 20 : at + 24] = struct.pack("<I", claimed)
    return seal_file(bytes(data))


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("claimed", [None, 2**24, 2**31, 2**32 - 1])
def test_a_small_file_does_not_unpack_to_a_large_one(method, claimed):
    contents = pack(method, 24 * 2**20, claimed)
    assert len(contents) < 2**18
    refuse(lambda: Artifact.from_bytes(contents), most=2**23)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("at", range(0, 60, 7))
def test_other_compressions_are_refused_whatever_their_bytes(method, at):
    contents = bytearray(pack(method, 1000))
    start = contents.find(b"step.mlir") + len("step.mlir")
    contents[start + at : start + at + 7] = b"\xff" * 7
    text = refuse(lambda: Artifact.from_bytes(seal_file(bytes(contents))))
    assert "not packed by deflate" in text or "damaged" in text


ENTRIES: dict[str, Any] = {
    "number": 1, "null": None, "object": {}, "list": [1], "deep": [[[[[[1]]]]]], "text": "x" * 5,
}  # fmt: skip


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    "field", ["collectives", "inputs", "variables", "outputs", "ops", "groups"]
)
def test_long_lists_of_wrong_entries_stop_after_some(artifact, field, entry):
    manifest = dict(artifact.manifest())
    count, value = 100_000, ENTRIES[entry]
    is_object = isinstance(manifest[field], dict)
    manifest[field] = {f"n{i}": value for i in range(count)} if is_object else [value] * count
    contents = replace_manifest(artifact, manifest)
    text = refuse(lambda: Artifact.from_bytes(contents))
    assert text.count("\n") < 40


@pytest.mark.parametrize("field", ["collectives", "inputs", "outputs"])
def test_long_lists_of_right_entries_are_read_in_time(artifact, field):
    manifest = dict(artifact.manifest())
    one = copy.deepcopy(manifest[field][0])
    manifest[field] = [{**one, "axes": ["nowhere"]} if "axes" in one else one] * 5000
    contents, start = replace_manifest(artifact, manifest), time.process_time()
    with pytest.raises(nm.NamedMeshError):
        Artifact.from_bytes(contents)
    assert time.process_time() - start < 5 * SECONDS


NUMBERS = ("flops", "activation_bytes")
OF_COLLECTIVES = (
    "elements",
    "bytes",
    "times",
    "devices",
    "times_outside",
    "host_bytes",
    "wire_bytes",
)


@pytest.mark.parametrize("field", [*NUMBERS, *OF_COLLECTIVES])
@pytest.mark.parametrize("digits", [40, 400, 4000])
def test_numbers_of_thousands_of_digits_are_refused(artifact, field, digits):
    manifest = copy.deepcopy(artifact.manifest())
    place = manifest if field in NUMBERS else manifest["collectives"][0]
    place[field] = int("9" * digits)
    contents = replace_manifest(artifact, manifest)
    refuse(lambda: nm.diff(Artifact.from_bytes(contents), artifact))


@pytest.mark.parametrize("digits", [40, 400, 4000])
def test_plans_with_such_numbers_are_refused(artifact, tmp_path, digits):
    program = nm.trace(lambda x: {"loss": nm.sum(x)}, x=nm.spec([B, M]))
    plan, path = nm.plan(program, nm.Mesh(data=2), "batch:data"), tmp_path / "plan.json"
    plan.save(path)
    text = path.read_text()
    for number in {one for one in text.replace("]", ",").split(",") if one.isdigit()}:
        path.write_text(text.replace(f",{number},", f",{'9' * digits},"))
        if path.read_text() != text:
            refuse(lambda: str(nm.diff(path, plan)))


@pytest.mark.parametrize("escape", ["\x1b[2J", "\x9b2J", "\x07", "\r", "\u202e", "\x00", "\ud800"])
def test_what_a_terminal_obeys_does_not_reach_it(artifact, escape):
    for field in ("name", "layout"):
        manifest = copy.deepcopy(artifact.manifest()) | {field: f"a{escape}b"}
        contents = replace_manifest(artifact, manifest)
        assert escape not in refuse(functools.partial(Artifact.from_bytes, contents))
    manifest = copy.deepcopy(artifact.manifest())
    manifest["outputs"][0]["name"] = manifest["inputs"][0]["name"] = escape
    assert escape not in refuse(lambda: Artifact.from_bytes(replace_manifest(artifact, manifest)))
    assert escape not in str(nm.NamedMeshError(escape, escape, fix=escape))
