"""Checkpoints against numpy and tensorstore itself, under other meshes, layouts and paddings."""

import json

import jax
import numpy as np
import pytest
import tensorstore

import namedmesh as nm
from namedmesh.errors.errors import NamedMeshError
from namedmesh.runtime import State
from namedmesh.training import Checkpoints, share_state
from tests.training.programs import PLACES, batch, compiled, nm_dtype, same, values


def save(folder, state, step: int = 1, **options) -> None:
    with Checkpoints(folder, keep=3) as checkpoints:
        checkpoints.save(step, state, **options)


def restore(folder, executable, **options) -> State:
    with Checkpoints(folder) as checkpoints:
        return checkpoints.restore(executable, **options).state


def bytes_read() -> int:
    """What tensorstore has read from files so far."""
    metrics = tensorstore.experimental_collect_matching_metrics(
        "/tensorstore/kvstore/file/bytes_read"
    )
    return sum(value["value"] for metric in metrics for value in metric["values"])


@pytest.mark.parametrize("first", PLACES)
@pytest.mark.parametrize("second", PLACES)
def test_every_layout_and_padding_restores_every_other(tmp_path, first, second):
    expected = values()
    save(tmp_path, compiled("train", first).place(expected))
    executable = compiled("train", second)
    state = restore(tmp_path, executable)
    assert list(state) == list(executable.variables)
    for name, spec in executable.variables.items():
        array = state.arrays[name]
        assert same(state[name], expected[name]), name
        assert array.shape == spec.padded(executable.artifact.mesh)
        assert array.sharding.is_equivalent_to(executable.sharding(spec), array.ndim)
    executable(state, **batch())  # the program accepts it


def test_some_paddings_differ():
    shapes = {
        place: compiled("train", place).variables["layer/w"].padded(nm.Mesh.parse(mesh))
        for place, (mesh, _) in PLACES.items()
    }
    assert shapes == {
        "one": (5, 7), "two": (6, 7), "three": (6, 7), "four": (5, 8), "mixed": (6, 8)
    }  # fmt: skip


def dirty(executable) -> State:
    """A state whose padding is not zero."""
    whole = values()

    def make(name):
        spec = executable.variables[name]
        shape = spec.padded(executable.artifact.mesh)
        array = np.full(shape, 9, nm_dtype(spec.dtype))
        array[tuple(slice(size) for size in spec.sizes)] = whole[name]
        return jax.device_put(array, executable.sharding(spec))

    return State({name: make(name) for name in executable.variables}, executable.variables)


def test_padding_of_another_size_becomes_zero(tmp_path):
    save(tmp_path, dirty(compiled("train", "two")))
    array = np.asarray(restore(tmp_path, compiled("train", "mixed")).arrays["layer/w"])
    assert same(array[:5, :7], values()["layer/w"])
    assert not array[5:].any() and not array[:, 7:].any()


def test_padding_of_the_same_size_stays_so_that_a_run_continues_bit_for_bit(tmp_path):
    before = dirty(compiled("train", "two"))
    save(tmp_path, before)
    after = restore(tmp_path, compiled("train", "two"))
    assert all(same(after.arrays[name], before.arrays[name]) for name in before)


def test_tensorstore_alone_reads_the_same_values(tmp_path):
    expected = values(3)
    save(tmp_path, compiled("train", "one").place(expected), extra={"position": [1, 2]})
    for name, values_then in expected.items():
        database = {"driver": "ocdbt", "base": f"file://{tmp_path}/1/arrays/", "path": f"{name}/"}
        array = tensorstore.open({"driver": "zarr3", "kvstore": database}, open=True).result()
        assert same(array.read().result(), values_then), name
        codecs = array.spec().to_json()["metadata"]["codecs"]
        assert [codec["name"] for codec in codecs] == ["bytes", "crc32c"]
    record = json.loads((tmp_path / "1" / "record.json").read_text())["record"]
    assert record["step"] == 1 and record["extra"] == {"position": [1, 2]}


@pytest.fixture(scope="module")
def large():
    """A program with a weight and two slots of 256 KiB each, and one that only reads it."""
    D, F = nm.dims("wide=256 tall=256")

    def read(x):
        return nm.einsum([x, nm.param("w", [D, F], nm.normal_init(1.0))], [F])

    def update(x):
        loss = nm.sum(read(x))
        weight = nm.parameters()["w"]
        for number in (1, 2):
            slot = nm.state(f"slot{number}", weight.shape, of=weight)
            nm.assign(slot, slot + weight)
        return loss

    mesh = nm.Mesh(data=4)
    make = lambda function: nm.compile(function, nm.spec([D]), mesh=mesh, layout="wide:data")
    return make(update), make(read)


def test_slots_are_not_read_for_a_program_without_them(tmp_path, large):
    training, decoding = large
    random = np.random.default_rng(0)  # random numbers do not compress
    whole = {
        name: random.normal(size=(256, 256)).astype(np.float32) for name in ("w", "slot1", "slot2")
    }
    save(tmp_path, training.place(whole))
    size, amounts = 256 * 256 * 4, {}
    for name, executable in (("decoding", decoding), ("training", training)):
        before = bytes_read()
        state = restore(tmp_path, executable)
        amounts[name] = bytes_read() - before
        assert list(state) == list(executable.variables) and same(state["w"], whole["w"])
    assert 0.8 * size < amounts["decoding"] < 1.2 * size
    assert 2.4 * size < amounts["training"] < 3.6 * size


def test_each_device_gets_its_own_shard_only(tmp_path, large):
    training, decoding = large
    save(tmp_path, training.init())
    shards = restore(tmp_path, decoding).arrays["w"].addressable_shards
    assert [shard.data.shape for shard in shards] == [(64, 256)] * 4


def test_a_state_may_be_used_up_while_it_is_saved(tmp_path):
    executable = compiled("train", "two")
    expected = values()
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        state = executable.place(expected)
        checkpoints.save(1, state)
        after, _ = executable(state, **batch())
    assert not same(after["layer/w"], expected["layer/w"])
    assert same(restore(tmp_path, executable)["layer/w"], expected["layer/w"])


def other_programs():
    """Programs that do not fit the checkpoint of the train step, each in its own way."""
    D = nm.Dimension("model", 6)
    H = nm.Dimension("hidden", 7)

    def wrong(x):
        w = nm.param("layer/w", [D, H])
        scale = nm.param("layer/scale", [nm.Dimension("model", 5)])
        more = nm.param("more/w", [D]) + nm.param("more/b", [D])
        return nm.einsum([x, w], [H]), scale, more

    return nm.compile(wrong, nm.spec([D]), mesh=nm.Mesh(data=1))


def test_every_missing_and_mismatching_variable_is_reported(tmp_path):
    save(tmp_path, compiled("train", "one").init(), step=4)
    with pytest.raises(NamedMeshError) as error:
        restore(tmp_path, other_programs())
    assert error.value.problem == ("the checkpoint of step 4 does not fit the program: 4 variables")
    *details, unused = error.value.details
    assert unused.startswith("saved, and not in the program: ")
    assert sorted(details) == [
        "layer/scale: expected float32[5], found bfloat16[5]",
        "layer/w: expected float32[6, 7], found float32[5, 7]",
        "more/b: float32[6] is missing",
        "more/w: float32[6] is missing",
    ]
    assert error.value.fix.startswith("make the variables as they were saved")


def test_a_size_that_only_the_padding_hides_is_a_mismatch(tmp_path):
    save(tmp_path, compiled("train", "two").init())  # model=5 padded to 6
    D, E = nm.dims("model=6 hidden=7")
    executable = nm.compile(
        lambda x: nm.einsum([x, nm.param("layer/w", [D, E])], [E]),
        nm.spec([D]),
        mesh=nm.Mesh(data=1),
    )
    with pytest.raises(NamedMeshError, match=r"expected float32\[6, 7\], found float32\[5, 7\]"):
        restore(tmp_path, executable)


def test_missing_variables_are_initialized_only_if_asked(tmp_path):
    decoding, training = compiled("decode", "two"), compiled("train", "two")
    whole = {name: value for name, value in values().items() if name in decoding.variables}
    save(tmp_path, decoding.place(whole))
    with pytest.raises(NamedMeshError, match=r"slots/layer/w: float32\[5, 7\] is missing"):
        restore(tmp_path, training)
    state = restore(tmp_path, training, missing="init")
    assert same(state["layer/w"], whole["layer/w"])
    assert not np.asarray(state["slots/layer/w"]).any()
    with pytest.raises(NamedMeshError, match="missing='nope' is not a choice"):
        restore(tmp_path, training, missing="nope")


@pytest.mark.parametrize("mode, best", [("min", 2), ("max", 1)])
def test_the_newest_and_the_best_checkpoints_are_kept(tmp_path, mode, best):
    losses = {1: 9.0, 2: 3.0, 3: 4.0, 4: float("nan"), 5: None, 6: 8.0}
    with Checkpoints(tmp_path, keep=2, metric="score", mode=mode) as checkpoints:
        for step, loss in losses.items():
            metrics = None if loss is None else {"score": loss, "other": 1.0}
            checkpoints.save(step, State({"w": jax.numpy.ones(3)}, {}), {}, metrics)
    with Checkpoints(tmp_path, metric="score", mode=mode) as found:
        assert found.steps == [best, 5, 6]
        assert sorted(int(path.name) for path in tmp_path.glob("[!.]*")) == [best, 5, 6]
        assert (found.find("best"), found.find("newest"), found.find("5")) == (best, 6, 5)
        with pytest.raises(NamedMeshError) as error:
            found.find("bset")
    assert error.value.problem == "there is no checkpoint 'bset'"
    assert error.value.fix == "give best, newest or a number of steps"


def test_the_newest_is_the_best_where_none_was_measured(tmp_path):
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.best is None and checkpoints.latest is None
        for step in (3, 7):
            checkpoints.save(step, State({"w": jax.numpy.ones(3)}, {}))
    assert Checkpoints(tmp_path).best == 7


def test_a_folder_without_the_checkpoint_is_an_error_and_reading_makes_no_folder(tmp_path):
    executable = compiled("decode", "one")
    with pytest.raises(NamedMeshError, match=r"none does not exist\n[\s\S]*fix: train first"):
        restore(tmp_path / "none", executable)
    assert not (tmp_path / "none").exists()
    for step in (1, 2, 3):
        save(tmp_path, executable.init(), step)
    with pytest.raises(NamedMeshError) as error:
        restore(tmp_path, executable, step=9)
    assert error.value.problem.endswith("has no complete checkpoint of step 9")
    assert error.value.fix == "it has 1, 2 and 3"


def test_deleting_spares_the_only_checkpoint(tmp_path):
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, State({"w": jax.numpy.ones(3)}, {}))
        checkpoints.delete(2)
        checkpoints.delete(1)
        assert checkpoints.steps == [1]


def test_variables_and_extra_are_read_without_the_values(tmp_path):
    save(tmp_path, compiled("train", "mixed").init(), extra={"tokens": 5})
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.read_extra() == {"tokens": 5}
        found = {name: str(one) for name, one in checkpoints.read_variables(1).items()}
    assert found == {
        "layer/w": "float32[5, 7]", "layer/scale": "bfloat16[5]",
        "slots/layer/w": "float32[5, 7]", "slots/layer/scale": "float32[5]",
    }  # fmt: skip


@pytest.mark.parametrize(
    "options, problem",
    [
        ({"keep": 0}, "keep=0 is not a count"),
        ({"keep": "a"}, "keep='a' is not a count"),
        ({"keep": 1.5}, "keep=1.5 is not a count"),
        ({"keep": 1, "mode": "least"}, "mode='least' is not a choice"),
    ],
)
def test_options_are_checked(tmp_path, options, problem):
    with pytest.raises(NamedMeshError) as error:
        Checkpoints(tmp_path, **options)
    assert error.value.problem == problem


def test_the_folder_must_be_one(tmp_path):
    with pytest.raises(NamedMeshError, match="the folder of the checkpoints is a NoneType"):
        Checkpoints(None)  # pyright: ignore
    (tmp_path / "file").touch()
    with pytest.raises(NamedMeshError, match="file is not a folder"):
        Checkpoints(tmp_path / "file", keep=1)


@pytest.mark.parametrize("place", ["one", "three", "mixed"])
def test_a_state_is_shared_with_another_program(place):
    state = compiled("train", "three").place(values())
    decoding = compiled("decode", place)
    shared = share_state(state, decoding)
    assert {*shared} == {"layer/w", "layer/scale"}
    assert all(same(shared[name], values()[name]) for name in shared)
    assert (shared.arrays["layer/w"] is state.arrays["layer/w"]) == (place == "three")
    with pytest.raises(NamedMeshError, match="has no variable 'slots/"):
        share_state(shared, compiled("train", place))


def test_scalars_come_back(tmp_path):
    def count(x):
        for index in range(8):
            counter = nm.state(f"counter_{index}", [], dtype="int32")
            nm.assign(counter, counter * 31 + 1000 * index + 7)
        return nm.sum(x)

    step = nm.compile(count, nm.spec([nm.Dimension("model", 4)]), mesh=nm.Mesh(data=2))
    state = step.init(0)
    for _ in range(3):
        state, _ = step(state, np.ones(4, np.float32))
    expected = {name: int(state[name]) for name in state}
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(3, state)
        restored = checkpoints.restore(step).state
    assert {name: int(restored[name]) for name in restored} == expected
    assert len(set(expected.values())) == 8
