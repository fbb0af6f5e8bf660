"""Damage is found, named, and never restored; the newest checkpoint that verifies is."""

import functools
import json
import warnings

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.errors.errors import NamedMeshError
from namedmesh.training import Checkpoints
from namedmesh.training.chunks import choose_chunk
from tests.training.damage import PATTERNS, WAYS, flip, remove
from tests.training.programs import same

W, T = nm.dims("wide=60 tall=48")
PLACES = {"one": ("data=1", ""), "two": ("data=2", "wide:data")}


def program(x: nm.Tensor) -> nm.Tensor:
    """A weight whose chunks are too large for the nodes of the database, and a small one."""
    w, scale = nm.param("layer/w", [W, T]), nm.param("scale", [T])
    nm.assign(w, w * 0.5)
    return nm.einsum([x, w], [T]) * scale


@functools.cache
def compiled(place: str) -> nm.Step:
    mesh, layout = PLACES[place]
    return nm.compile(program, nm.spec([W]), mesh=nm.Mesh.parse(mesh), layout=layout)


def values(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    whole = {"layer/w": random.normal(size=(60, 48)), "scale": random.normal(size=48)}
    return {name: value.astype(np.float32) for name, value in whole.items()}


@pytest.fixture
def folder(tmp_path):
    """A folder with checkpoints of steps 10, 20 and 30, with different values."""
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        for step in (10, 20, 30):
            state = compiled("two").place(values(step))
            checkpoints.save(step, state, {"position": step}, {"dev_loss": float(step)})
    return tmp_path


def file_in(folder, step, pattern):
    """The largest file of a kind."""
    return max((folder / str(step)).glob(pattern), key=lambda path: path.stat().st_size)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_damage_is_found_and_named(folder, pattern, way):
    way(file_in(folder, 30, pattern))
    with Checkpoints(folder) as checkpoints, pytest.raises(NamedMeshError) as error:
        checkpoints.restore(compiled("one"), 30)
    assert error.value.problem == f"the checkpoint of step 30 in {folder} is damaged"
    assert "tensorstore_spec" not in str(error.value)
    assert error.value.fix == f"delete {folder}/30 to continue from an older one, or train again"


def test_every_byte_of_a_checkpoint_is_verified_or_unused(folder):
    executable, expected = compiled("one"), values(30)
    files = [path for path in (folder / "30").rglob("*") if path.is_file()]
    found = 0
    for file in files:
        whole = file.read_bytes()
        for position in range(0, len(whole), max(1, len(whole) // 40)):
            changed = bytearray(whole)
            changed[position] ^= 1 << (position % 8)
            file.write_bytes(changed)
            try:
                with Checkpoints(folder) as checkpoints:
                    state = checkpoints.restore(executable, 30).state
            except NamedMeshError as error:
                assert error.problem.endswith("is damaged")
                found += 1
            else:
                assert all(same(state[name], expected[name]) for name in expected), file
        file.write_bytes(whole)
    assert found > 60


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pattern", ["record.json", "arrays/process_0/d/*"])
def test_the_newest_that_verifies_is_restored(folder, pattern, way):
    way(file_in(folder, 30, pattern))
    executable = compiled("one")
    with Checkpoints(folder, keep=3) as checkpoints:
        with pytest.warns(UserWarning) as warned:
            step, state, extra = checkpoints.restore(executable)
        assert (step, extra) == (20, {"position": 20})
        assert all(same(state[name], value) for name, value in values(20).items())
        (message,) = [str(one.message) for one in warned]
        assert message.startswith(f"the checkpoint of step 30 in {folder} is damaged (")
        assert message.endswith(
            "; step 20 was restored instead, and the damaged one is now 30.damaged"
        )
        assert checkpoints.steps == [10, 20] and (folder / "30.damaged").is_dir()
        checkpoints.save(30, state)  # the step can be saved again
    assert Checkpoints(folder).steps == [10, 20, 30]
    with Checkpoints(folder) as checkpoints, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checkpoints.restore(executable).step == 30


def test_several_damaged_ones_are_passed_over(folder):
    flip(file_in(folder, 30, "arrays/process_0/d/*"))
    remove(folder / "20" / "record.json")
    with Checkpoints(folder, keep=3) as checkpoints, pytest.warns(UserWarning) as warned:
        assert checkpoints.restore(compiled("one")).step == 10
    assert len(warned) == 2
    assert {path.name for path in folder.glob("[!.]*")} == {"10", "20.damaged", "30.damaged"}


def test_a_reader_renames_nothing(folder):
    flip(folder / "30" / "record.json")
    with Checkpoints(folder) as checkpoints, pytest.warns(UserWarning) as warned:
        assert checkpoints.restore(compiled("one")).step == 20
    assert str(warned[0].message).endswith("step 20 was restored instead")
    assert {path.name for path in folder.glob("[!.]*")} == {"10", "20", "30"}


def test_if_all_are_damaged_nothing_is_renamed_and_training_does_not_start_again(folder):
    for step in (10, 20, 30):
        flip(folder / str(step) / "record.json")
    with Checkpoints(folder, keep=3) as checkpoints, pytest.raises(NamedMeshError) as error:
        checkpoints.restore(compiled("one"))
    assert error.value.problem == f"all 3 checkpoints in {folder} are damaged"
    assert [detail.split(":")[0] for detail in error.value.details] == ["30", "20", "10"]
    assert {path.name for path in folder.glob("[!.]*")} == {"10", "20", "30"}


def test_a_program_that_does_not_fit_is_not_damage(folder):
    D = nm.Dimension("model", 9)
    other = nm.compile(lambda x: x * nm.param("layer/w", [D]), nm.spec([D]), mesh=nm.Mesh(data=1))
    with Checkpoints(folder, keep=3) as checkpoints:
        with pytest.raises(NamedMeshError, match="does not fit the program"):
            checkpoints.restore(other)
        assert checkpoints.steps == [10, 20, 30]


def test_a_file_that_may_not_be_read_is_not_damage(folder, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied", "record.json")

    monkeypatch.setattr("namedmesh.training.checkpoint_files.read_bytes", refuse)
    with Checkpoints(folder, keep=3) as checkpoints:
        with pytest.raises(NamedMeshError) as error:
            checkpoints.restore(compiled("one"))
    assert error.value.problem == f"the checkpoint of step 30 in {folder} cannot be read"
    assert {path.name for path in folder.glob("[!.]*")} == {"10", "20", "30"}


def rewrite(folder, change) -> None:
    """Changes the record of step 30, with a checksum that is right."""
    import hashlib

    record = json.loads((folder / "30" / "record.json").read_text())["record"]
    change(record)
    body = json.dumps(record)
    digest = hashlib.sha256(body.encode()).hexdigest()
    (folder / "30" / "record.json").write_text(f'{{"sha256": "{digest}", "record": {body}}}')


@pytest.mark.parametrize(
    "key, value",
    [
        ("shape", [10**18, 48]),
        ("shape", [60]),
        ("chunk", [10**18, 10**18]),
        ("chunk", [0, 48]),
        ("sizes", "many"),
        ("dtype", "object"),
        ("dtype", 3),
    ],
)
def test_sizes_that_cannot_be_right_are_refused_before_memory_is_taken(folder, key, value):
    rewrite(folder, lambda record: record["variables"]["layer/w"].update({key: value}))
    with Checkpoints(folder) as checkpoints, pytest.raises(NamedMeshError):
        checkpoints.restore(compiled("one"), 30)


def test_another_checkpoint_in_its_place_is_found(folder):
    rewrite(folder, lambda record: record.update(step=20))
    with Checkpoints(folder) as checkpoints, pytest.raises(NamedMeshError, match="of step 20"):
        checkpoints.restore(compiled("one"), 30)


@pytest.mark.parametrize("name", ["record.json", "arrays/manifest.ocdbt"])
def test_gigabytes_are_not_read(folder, name):
    with open(folder / "30" / name, "r+b") as file:
        file.truncate(2**40)  # sparse: it takes no space
    with Checkpoints(folder) as checkpoints, pytest.raises(NamedMeshError) as error:
        checkpoints.restore(compiled("one"), 30)
    assert "has 1,099,511,627,776 bytes, more than 67,108,864" in error.value.details[0]


def test_deeply_nested_json_is_refused(folder):
    import hashlib

    body = b"[" * 10**6
    digest = hashlib.sha256(body).hexdigest().encode()
    (folder / "30" / "record.json").write_bytes(
        b'{"sha256": "' + digest + b'", "record": ' + body + b"}"
    )
    with Checkpoints(folder) as checkpoints, pytest.raises(NamedMeshError, match="nested"):
        checkpoints.restore(compiled("one"), 30)


def test_the_newest_is_that_of_the_largest_step_whatever_the_clock_says(folder):
    import os

    for step, time in ((10, 2e9), (20, 1e9), (30, 0)):
        for path in (folder / str(step), *(folder / str(step)).rglob("*")):
            os.utime(path, (time, time))
    with Checkpoints(folder, keep=2) as checkpoints:
        assert checkpoints.latest == 30
        checkpoints.save(40, compiled("one").init())
    assert Checkpoints(folder).steps == [10, 30, 40]  # 10 is the best


@pytest.mark.parametrize("shard", [(), (7,), (50257, 768), (4099, 4099), (3, 2, 2**24)])
def test_chunks_divide_shards(shard):
    chunk = choose_chunk(shard, 4)
    assert all(size % part == 0 for size, part in zip(shard, chunk, strict=True))
    count = np.prod(shard, dtype=int) // np.prod(chunk, dtype=int)
    size = np.prod(chunk, dtype=int) * 4
    assert count == 1 or size >= 2**20
    assert size <= 2**24 or shard == (4099, 4099)


def test_a_step_after_a_restore_is_the_same(folder):
    executable, x = compiled("two"), np.ones(60, np.float32)
    with Checkpoints(folder) as checkpoints:
        restored, _ = executable(checkpoints.restore(executable).state, x)
    direct, _ = executable(executable.place(values(30)), x)
    assert all(same(restored[name], direct[name]) for name in direct)
