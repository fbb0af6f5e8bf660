"""Weights against the safetensors package itself: bfloat16, names, padding, and mistakes."""

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

import namedmesh as nm
from namedmesh.errors.errors import NamedMeshError
from namedmesh.runtime import State
from namedmesh.training import load_weights, save_weights
from tests.training.programs import PLACES, B, M, batch, compiled, decode, same, values


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def weights() -> dict[str, np.ndarray]:
    return {name: value for name, value in values().items() if name.startswith("layer/")}


@pytest.mark.parametrize("place", PLACES)
def test_the_package_reads_weights_without_padding_and_without_slots(path, place):
    save_weights(path, compiled("train", place).place(values()), metadata={"step": "7"})
    found = safetensors.numpy.load_file(path)
    assert found.keys() == weights().keys()
    assert all(same(found[name], weights()[name]) for name in found)
    with safetensors.safe_open(path, framework="numpy") as file:
        assert file.metadata() == {"step": "7"}
        assert file.get_slice("layer/scale").get_dtype() == "BF16"
    assert found["layer/scale"].dtype == ml_dtypes.bfloat16


def test_every_variable_is_saved_if_asked(path):
    save_weights(path, compiled("train", "two").place(values()), everything=True)
    found = safetensors.numpy.load_file(path)
    assert found.keys() == values().keys()
    assert all(same(found[name], values()[name]) for name in found)


@pytest.mark.parametrize("place", PLACES)
def test_weights_of_the_package_are_loaded_under_every_layout(path, place):
    safetensors.numpy.save_file({**weights(), "unused": np.zeros(3)}, path)
    executable = compiled("decode", place)
    state = load_weights(path, executable)
    assert isinstance(state, State) and list(state) == list(executable.variables)
    for name, spec in executable.variables.items():
        array = state.arrays[name]
        padding = np.array(array, np.float32)
        padding[tuple(slice(size) for size in spec.sizes)] = 0
        assert same(state[name], weights()[name]) and not padding.any()
        assert array.sharding.is_equivalent_to(executable.sharding(spec), array.ndim)
    x = batch()["x"]
    scaled = x * weights()["layer/scale"].astype(np.float32)
    result = np.asarray(executable(state, x=x)[1])
    np.testing.assert_allclose(result, scaled @ weights()["layer/w"], rtol=1e-5, atol=1e-5)


def test_specs_give_whole_arrays(path):
    save_weights(path, compiled("train", "mixed").place(values()))
    found = load_weights(path, compiled("decode", "two").variables)
    assert isinstance(found, dict) and all(isinstance(one, np.ndarray) for one in found.values())
    assert all(same(found[name], weights()[name]) for name in weights())


NAMES = {"layer/w": "encoder.w", "layer/scale": "encoder.scale"}


@pytest.mark.parametrize(
    "names", [NAMES, lambda name: name.replace("layer/", "encoder.")], ids=["dict", "function"]
)
def test_names_map_variables_to_names_in_the_file_in_both_directions(path, names):
    save_weights(path, compiled("train", "two").place(values()), names)
    assert safetensors.numpy.load_file(path).keys() == {"encoder.w", "encoder.scale"}
    state = load_weights(path, compiled("decode", "three"), names)
    assert all(same(state[name], weights()[name]) for name in weights())


def test_a_dict_may_leave_names_as_they_are_and_variables_out(path):
    state = compiled("train", "two").place(values())
    save_weights(path, state, {"layer/w": "w"})
    assert safetensors.numpy.load_file(path).keys() == {"w", "layer/scale"}
    save_weights(path, state, {"layer/scale": None})
    assert safetensors.numpy.load_file(path).keys() == {"layer/w"}
    executable = compiled("decode", "two")
    loaded = load_weights(path, executable, {"layer/scale": None}, seed=5)
    assert same(loaded["layer/w"], weights()["layer/w"])
    assert same(loaded["layer/scale"], executable.init(5)["layer/scale"])


def test_names_that_are_not_variables_or_not_unique_are_errors(path):
    state = compiled("decode", "one").init()
    with pytest.raises(NamedMeshError) as error:
        save_weights(path, state, {"layer/v": "v", "layer/u": "u"})
    assert error.value.details == ("layer/v", "layer/u")
    with pytest.raises(NamedMeshError) as error:
        save_weights(path, state, lambda name: "w")
    assert error.value.details == ("w: layer/w, layer/scale",)
    assert not path.exists()


def test_every_missing_and_mismatching_variable_is_reported(path):
    arrays = {
        "layer.w": np.zeros((5, 8), np.float32),
        "layer.scale": np.zeros(5, np.float32),
        "slots.layer.w": np.zeros((5, 7), np.float64),
    }
    safetensors.numpy.save_file(arrays, path)
    with pytest.raises(NamedMeshError) as error:
        load_weights(path, compiled("train", "one"), lambda name: name.replace("/", "."))
    assert error.value.problem.endswith("does not fit the program: 4 variables")
    assert sorted(error.value.details) == [
        "layer/scale (saved as layer.scale): expected bfloat16[5], found float32[5]",
        "layer/w (saved as layer.w): expected float32[5, 7], found float32[5, 8]",
        "slots/layer/scale (saved as slots.layer.scale): float32[5] is missing",
        "slots/layer/w (saved as slots.layer.w): expected float32[5, 7], found float64[5, 7]",
    ]


def test_missing_variables_are_initialized_only_if_asked(path):
    executable = compiled("train", "two")
    safetensors.numpy.save_file(weights(), path)
    with pytest.raises(NamedMeshError, match=r"slots/layer/w: float32\[5, 7\] is missing"):
        load_weights(path, executable)
    state = load_weights(path, executable, missing="init")
    assert same(state["layer/w"], weights()["layer/w"])
    assert not np.asarray(state["slots/layer/w"]).any()
    executable(state, **batch())
    assert load_weights(path, executable.variables, missing="init").keys() == weights().keys()


def test_a_file_without_any_variable_of_the_program_is_an_error_even_then(path):
    safetensors.numpy.save_file({"w": np.zeros(3)}, path)
    with pytest.raises(NamedMeshError, match="has no variable of the program"):
        load_weights(path, compiled("train", "one"), missing="init")


def test_floats_are_converted_only_if_asked(path):
    executable = compiled("decode", "four")
    exact = {name: value.astype(np.float32) for name, value in weights().items()}
    safetensors.numpy.save_file(exact, path)
    with pytest.raises(NamedMeshError, match=r"expected bfloat16\[5\], found float32\[5\]"):
        load_weights(path, executable)
    for found in (
        load_weights(path, executable, cast=True),
        load_weights(path, executable.variables, cast=True),
    ):
        assert all(same(found[name], weights()[name]) for name in weights())
    whole = {"layer/w": np.zeros((5, 7), np.int32), "layer/scale": weights()["layer/scale"]}
    safetensors.numpy.save_file(whole, path)
    with pytest.raises(NamedMeshError, match=r"found int32\[5, 7\]"):
        load_weights(path, executable, cast=True)


def test_scalars_and_bits_survive(path):
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40], ml_dtypes.bfloat16)
    D = nm.Dimension("model", 6)

    def program(x):
        nm.assign(nm.state("count", [], dtype="int32"), nm.state("count", [], dtype="int32") + 1)
        return x * nm.param("w", [D], dtype="bfloat16")

    executable = nm.compile(
        program, nm.spec([D], "bfloat16"), mesh=nm.Mesh(data=4), layout="model:data"
    )
    save_weights(path, executable.place({"count": np.int32(7), "w": special}), everything=True)
    assert same(safetensors.numpy.load_file(path)["w"], special)
    state = load_weights(path, executable)
    assert same(state["w"], special) and int(state["count"]) == 7


def test_a_file_that_cannot_be_read_or_written_is_an_error(path, tmp_path):
    executable = compiled("decode", "one")
    with pytest.raises(NamedMeshError, match="cannot read the weights"):
        load_weights(tmp_path / "none.safetensors", executable)
    with pytest.raises(NamedMeshError, match=r"has no safetensors files\n[\s\S]*fix: name a file"):
        load_weights(tmp_path, executable)
    path.write_bytes(b"")
    with pytest.raises(NamedMeshError, match="cannot write the weights"):
        save_weights(path / "inside", executable.init())
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("damage", ["cut", "cut in the header", "junk", "empty"])
def test_a_damaged_file_is_said_to_be_damaged(path, damage):
    executable = compiled("decode", "one")
    save_weights(path, executable.init())
    whole = path.read_bytes()
    shards = {
        "cut": whole[:-9],
        "cut in the header": whole[:30],
        "junk": b"junk" * 99,
        "empty": b"",
    }
    path.write_bytes(shards[damage])
    with pytest.raises(NamedMeshError) as error:
        load_weights(path, executable)
    assert error.value.problem == f"the file '{path}' is damaged, or not a safetensors file"
    assert error.value.fix == "save it again with save_weights, or copy it again"


def test_only_a_compiled_step_or_specs_are_targets(path):
    save_weights(path, compiled("decode", "one").init())
    program = nm.trace(decode, nm.spec([B, M]))
    with pytest.raises(NamedMeshError) as error:
        load_weights(path, program)  # pyright: ignore
    assert error.value.problem == ("the target of the weights is a Program, expected an Executable")
    assert error.value.fix.startswith("give a compiled step: nm.compile(function")


@pytest.mark.parametrize("use", ["save", "load"])
@pytest.mark.parametrize("wrong", ["None", "swapped"])
def test_the_path_comes_first(path, use, wrong):
    executable = compiled("decode", "one")
    state = executable.init()
    first = None if wrong == "None" else (state if use == "save" else executable)
    with pytest.raises(NamedMeshError) as error:
        save_weights(first, path) if use == "save" else load_weights(first, path)  # pyright: ignore
    kind = type(first).__name__
    assert error.value.problem == f"the file of the weights is a {kind}, expected a path"
    assert error.value.fix == "give a string or a pathlib.Path"


def test_only_a_state_with_its_values_is_saved(path):
    with pytest.raises(NamedMeshError) as error:
        save_weights(path, {"wi": np.zeros(3)})  # pyright: ignore
    assert error.value.problem == "the state to save is a dict, expected a State"
    executable = compiled("train", "one")
    state = executable.init()
    executable(state, **batch())
    with pytest.raises(NamedMeshError) as error:
        save_weights(path, state)
    assert error.value.problem == "the state to save was used up by a step"
    assert error.value.details[0] == "layer/w: float32[model=5, hidden=7]"
    assert len(error.value.details) == 4
    assert not path.exists()


def test_pytorch_reads_bfloat16(path):
    torch = pytest.importorskip("torch")
    load_file = pytest.importorskip("safetensors.torch").load_file
    save_weights(path, compiled("train", "two").place(values()))
    found = load_file(path)["layer/scale"]
    assert found.dtype == torch.bfloat16
    expected = weights()["layer/scale"].astype(np.float32)
    np.testing.assert_array_equal(found.float().numpy(), expected)
