"""Arrays at the edge of a step: nobody's memory is shared, used up or misread behind his back."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import namedmesh as nm
from namedmesh.runtime import State

B, C, N = nm.dims("batch=8 odd=7 long=1024")
ONES = np.ones(8, np.float32)


def count(x, y):
    a, b = nm.state("a", [B]), nm.state("b", [B])
    nm.assign(a, a + x)
    nm.assign(b, b * 2.0 + y)
    return nm.sum(x)


@pytest.fixture(scope="module")
def step():
    spec = nm.spec([B])
    return nm.compile(count, spec, spec, mesh=nm.Mesh(data=2), layout="batch:data")


@pytest.fixture(scope="module")
def total():
    """A program whose input is padded from 7 to 8."""
    return nm.compile(lambda x: nm.sum(x), nm.spec([C]), mesh=nm.Mesh(data=2), layout="odd:data")


def aligned(size: int) -> np.ndarray:
    """An array at an address that jax takes over without a copy."""
    memory = np.zeros(size + 64, np.float32)
    start = -memory.ctypes.data // 4 % 64
    return memory[start : start + size]


def check_still_usable(step, state):
    state, _ = step(state, ONES, ONES)
    np.testing.assert_array_equal(state["a"], ONES)


def test_a_variable_given_as_an_input_is_an_error(step):
    state = step.init()
    with pytest.raises(nm.NamedMeshError, match="input x is the array of variable a, which count"):
        step(state, state["a"], ONES)
    check_still_usable(step, state)


def test_both_inputs_are_named(step):
    state = step.init()
    with pytest.raises(nm.NamedMeshError) as error:
        step(state, x=state["b"], y=state["a"])
    assert error.value.problem == (
        "input x is the array of variable b; input y is the array of variable a, "
        "which count uses up"
    )
    check_still_usable(step, state)


def test_another_array_on_the_same_memory_is_an_error_too(step):
    state = step.init()
    array = state.arrays["a"]
    shards = [shard.data for shard in array.addressable_shards]
    alias = jax.make_array_from_single_device_arrays(array.shape, array.sharding, shards)
    with pytest.raises(nm.NamedMeshError, match="input x is the array of variable a"):
        step(state, alias, ONES)
    check_still_usable(step, state)


def test_a_copy_of_a_variable_can_be_an_input(step):
    state, _ = step(step.init(), ONES, ONES)
    state, total = step(state, jax.numpy.copy(state["a"]), np.asarray(state["b"]))
    assert float(total) == 8
    np.testing.assert_array_equal(state["a"], 2 * ONES)
    np.testing.assert_array_equal(state["b"], 3 * ONES)


def test_one_array_can_be_two_inputs_and_two_variables(step):
    ones = step.put(x=ONES, y=ONES)["x"]
    state, _ = step(step.place({"a": ones, "b": ones}), ones, ones)
    np.testing.assert_array_equal(state["a"], 2 * ONES)
    np.testing.assert_array_equal(state["b"], 3 * ONES)
    np.testing.assert_array_equal(ones, ONES)


def test_a_state_of_one_array_under_two_names_is_an_error(step):
    array = step.init().arrays["a"]
    with pytest.raises(nm.NamedMeshError, match="variables a and b are one array, which count"):
        step(State({"a": array, "b": array}, step.variables), ONES, ONES)
    assert not array.is_deleted()


def test_place_leaves_arrays_and_states_to_their_owner(step):
    mine = jax.device_put(ONES, step.sharding(step.variables["a"]))
    first = step.init()
    for values in ({"a": mine, "b": mine}, first):
        step(step.place(values), ONES, ONES)
    np.testing.assert_array_equal(mine, ONES)
    np.testing.assert_array_equal(first["a"], 0 * ONES)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_numpy_array_can_be_written_again(devices):
    def add(x):
        return x + nm.param("w", [N])

    keep = nm.compile(add, nm.spec([N]), mesh=nm.Mesh(data=devices), layout="long:data")
    x, w = aligned(1024), aligned(1024)
    inputs, state = keep.put(x=x), keep.place({"w": w})
    x[:] = 5
    w[:] = 7
    assert float(np.max(inputs["x"])) == 0 and float(np.max(state["w"])) == 0
    assert float(np.max(keep(state, **inputs)[1])) == 0


def test_an_array_of_the_padded_size_is_not_one_of_the_smaller_size(total):
    mine = jax.device_put(np.ones(8, np.float32), NamedSharding(total.mesh, PartitionSpec("data")))
    with pytest.raises(nm.NamedMeshError, match=r"input x was given as float32\[8\], not"):
        total(None, mine)


def test_what_put_returns_keeps_its_size(total):
    placed = total.put(x=np.ones(7, np.float32))["x"]
    assert placed.shape == (8,)
    assert float(total(None, placed)[1]) == 7
    add_up, mesh = (lambda x: nm.sum(x)), nm.Mesh(data=2)
    elsewhere = nm.compile(add_up, nm.spec([C]), mesh=nm.Mesh(data=4), layout="")
    assert float(elsewhere(None, placed)[1]) == 7
    larger = nm.compile(add_up, nm.spec([B]), mesh=mesh, layout="batch:data")
    with pytest.raises(nm.NamedMeshError, match=r"input x was given as float32\[7\], not"):
        larger(None, placed)


def test_a_padded_state_is_placed_again():
    def double(x):
        w = nm.state("w", [C])
        nm.assign(w, w + x)

    step = nm.compile(double, nm.spec([C]), mesh=nm.Mesh(data=2), layout="odd:data")
    state, _ = step(step.init(), np.arange(7, dtype=np.float32))
    for values in (state, dict(state)):
        np.testing.assert_array_equal(step.place(values)["w"], np.arange(7))
    with pytest.raises(nm.NamedMeshError, match=r"variable w was given as float32\[8\]"):
        step.place({"w": jax.numpy.ones(8)})


class Strange:
    def __array__(self, *_, **__):
        raise KeyError("no")


@pytest.mark.parametrize(
    "value",
    [10**400, -(10**400), 1e300, None, "text", [[1], [1, 2]], {}, object(), Strange(), 2j, b"x"],
)
def test_what_is_not_a_number_is_a_mismatch(value):
    scalar = nm.compile(
        lambda i, x: x + nm.cast(i, "float32"), i=nm.spec([], "int32"), x=nm.spec([]),
        mesh=nm.Mesh(data=1),
    )  # fmt: skip
    with pytest.raises(nm.NamedMeshError):
        scalar(None, i=value, x=1.0)
    with pytest.raises(nm.NamedMeshError):
        scalar(None, i=1, x=value)
    assert float(scalar(None, i=1.0, x=2)[1]) == 3


def test_a_mask_is_not_lost(total):
    with pytest.raises(nm.NamedMeshError, match="is a masked array, whose mask would be lost"):
        total(None, np.ma.masked_array(np.ones(7, np.float32), mask=[True] * 7))
