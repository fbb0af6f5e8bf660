"""Steps after the first: what was checked once is not checked again, and nothing slips through."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

import namedmesh as nm
from namedmesh.runtime import compiling
from namedmesh.runtime.state import State

B, M = nm.dims("batch=4 model=2")


def add_rows(x):
    total = nm.state("total", [M])
    fixed = nm.param("fixed", [M], nm.constant_init(2.0))
    nm.assign(total, total + nm.sum(x, over=B) * fixed)
    return nm.sum(total)


def read_only(x):
    return nm.sum(x * nm.state("total", [M]) * nm.param("fixed", [M], nm.constant_init(2.0)))


def make(function=add_rows, mesh=None):
    program = nm.trace(function, x=nm.spec([B, M]))
    return nm.Step(nm.plan(program, mesh or nm.Mesh(all=1)), strict=True)


ONES = np.ones((4, 2), np.float32)


@pytest.mark.parametrize("devices", [1, 4])
def test_states_and_inputs_of_every_kind_give_the_same_numbers(devices):
    program = nm.trace(add_rows, x=nm.spec([B, M]))
    step = nm.Step(nm.plan(program, nm.Mesh(all=devices), "batch:all"), strict=True)
    state, totals = step.init(0), []
    for i in range(6):
        ready = step.put(x=ONES * i)["x"]
        given = [ONES * i, ready, jax.numpy.asarray(ONES * i), np.asfortranarray(ONES * i)][i % 4]
        state, total = step(state, given) if i % 2 else step(state, x=given)
        totals.append(float(total))
    assert totals == [0.0, 0.0, 16.0, 48.0, 96.0, 160.0]
    np.testing.assert_array_equal(np.asarray(state["total"]), [120.0, 120.0])


def test_inputs_may_be_written_to_after_the_call():
    step, batch = make(), ONES.copy()
    state = step.init(0)
    for i in range(20):
        batch[:] = i
        state, _ = step(state, x=batch)
        batch[:] = -1000
    np.testing.assert_array_equal(np.asarray(state["total"]), np.full(2, 8.0 * sum(range(20))))


@pytest.mark.parametrize("rows", [2, 256, 1024])  # few bytes are copied, and nobody waits
@pytest.mark.parametrize("devices", [1, 2])
def test_inputs_that_jax_reads_in_place_may_be_written_to_after_the_call(devices, rows):
    R, C = nm.dims(f"batch={rows} model=256")

    def add(x):
        total = nm.state("total", [])
        nm.assign(total, total + nm.mean(nm.exp(nm.sin(nm.cos(x)))))

    step = nm.compile(add, nm.spec([R, C]), mesh=nm.Mesh(all=devices), layout="batch:all")
    memory = np.zeros(rows * 256 + 16, np.float32)
    first = -memory.ctypes.data % 64 // 4  # aligned, so that XLA does not copy it
    batch = memory[first : first + rows * 256].reshape(rows, 256)
    state = step.init(0)
    for i in range(5):
        batch[:] = i
        state, _ = step(state, batch)
        batch[:] = -1000
    expected = np.exp(np.sin(np.cos(np.arange(5.0)))).sum()
    np.testing.assert_allclose(float(state["total"]), expected, rtol=1e-5)


def test_a_state_that_was_used_up_is_said_every_time():
    step = make()
    state = step.init(0)
    step(state, x=ONES)
    for _ in range(2):
        with pytest.raises(nm.NamedMeshError, match="total of this state was used up"):
            step(state, x=ONES)


def test_wrong_inputs_leave_the_state_usable():
    step = make()
    state = step.init(0)
    with pytest.raises(nm.NamedMeshError, match="float64"):
        step(state, x=ONES.astype(np.float64))
    with pytest.raises(nm.NamedMeshError, match="missing"):
        step(state)
    _, total = step(state, x=ONES)
    assert float(total) == 0.0


@pytest.mark.parametrize("devices", [1, 2])
def test_inputs_by_name_in_any_order_and_results_in_that_of_the_function(devices):
    def subtract(x, y, rate):
        total = nm.state("total", [M])
        nm.assign(total, total + nm.sum(x - y, over=B) * rate)
        return {"z": nm.sum(x), "a": {"deep": nm.sum(y), "b": (rate, None)}}

    program = nm.trace(subtract, x=nm.spec([B, M]), y=nm.spec([B, M]), rate=nm.spec([]))
    step = nm.Step(nm.plan(program, nm.Mesh(all=devices), "batch:all"), strict=True)
    state, twice, half = step.init(0), ONES * 2, np.float32(0.5)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((twice, ONES, half), {}),
        ((twice, ONES), {"rate": np.asarray(half)}),
        ((twice,), {"rate": 0.5, "y": ONES}),
        ((), {"rate": half, "y": ONES, "x": twice}),
        ((), {"x": twice, "y": jax.numpy.asarray(ONES), "rate": np.asarray(half)}),
        ((), {"x": twice, "y": ONES, "rate": np.asarray(half)}),
    ]
    for given, named in calls:
        state, results = step(state, *given, **named)
        assert [*results] == ["z", "a"] and [*results["a"]] == ["deep", "b"]
        values = (results["z"], results["a"]["deep"], results["a"]["b"][0])
        assert [float(value) for value in values] == [16.0, 8.0, 0.5]
    np.testing.assert_array_equal(np.asarray(state["total"]), [12.0, 12.0])
    for given, named in [
        ((twice, ONES), {}),
        ((twice, ONES, half), {"x": twice}),
        ((), {"x": ONES}),
    ]:
        with pytest.raises(nm.NamedMeshError, match=r"missing|twice"):
            step(state, *given, **named)
    assert float(step(state, twice, ONES, 0.5)[1]["z"]) == 16.0


@pytest.mark.parametrize(
    "results", ["one", "tuple", "list", "sorted", "unsorted", "none", "numbers"]
)
def test_results_are_nested_as_the_function_nests_them(results):
    def step(x):
        nm.assign(nm.state("total", [M]), x)
        y, z = x + 1, x + 2
        nests = {"one": y, "tuple": (y, z), "list": [y, None, z], "sorted": {"a": y, "b": z}}
        nests |= {"unsorted": {"b": y, "a": z}, "none": None, "numbers": {1: y, 0: z}}
        return nests[results]

    compiled = nm.compile(step, nm.spec([M]), mesh=nm.Mesh(all=1), strict=True)
    x = np.arange(2, dtype=np.float32)
    for executable in (compiled, nm.runtime.Executable(compiled.artifact)):
        _, value = executable(executable.init(0), x)
        expected = nm.trace(step, nm.spec([M])).evaluate({"total": x}, x=x)[1]
        assert jax.tree.structure(value) == jax.tree.structure(expected)
        if isinstance(value, dict):
            assert [*value] == [*expected]
        for one, other in zip(jax.tree.leaves(value), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_padded_array_is_not_taken_for_one_of_its_padded_size():
    odd, even = nm.dims("row=7 other=8")
    step = lambda D: nm.compile(
        lambda x: nm.assign(nm.state("total", []), nm.sum(x)),
        nm.spec([D]),
        mesh=nm.Mesh(all=2),
        layout={D.name: "all"},
    )
    seven, eight = step(odd), step(even)
    placed = seven.put(x=np.ones(7, np.float32))["x"]
    assert placed.shape == (8,) and float(seven(seven.init(0), placed)[0]["total"]) == 7.0
    with pytest.raises(nm.NamedMeshError, match=r"x was given as float32\[7\], not"):
        eight(eight.init(0), placed)


def test_an_array_that_was_exchanged_is_checked():
    step = make()
    state = step.init(0)
    state.arrays["total"] = jax.numpy.ones(3)
    with pytest.raises(nm.NamedMeshError, match=r"total is float32\[3\]"):
        step(state, x=ONES)
    state.arrays["total"] = jax.device_put(
        np.ones(2, np.float32), step.sharding(step.variables["total"])
    )
    assert float(step(state, x=ONES)[1]) == 2.0


def test_an_array_that_was_deleted_is_named():
    step = make()
    state = step.init(0)
    state.arrays["fixed"].delete()
    with pytest.raises(nm.NamedMeshError, match="fixed of this state was used up"):
        step(state, x=ONES)


def test_one_state_serves_many_evaluations_and_then_another_step():
    train, evaluate = make(), make(read_only)
    state = train.init(0)
    state, _ = train(state, x=ONES)
    assert [float(evaluate(state, x=ONES)[1]) for _ in range(3)] == [128.0] * 3
    after, _ = train(state, x=ONES)
    assert float(after["total"][0]) == 16.0
    with pytest.raises(nm.NamedMeshError, match="used up"):
        evaluate(state, x=ONES)


def test_variables_of_the_same_array_are_an_error_though_the_state_is_known():
    def swap(x):
        a, b = nm.state("a", [B, M]), nm.state("b", [B, M])
        nm.assign(a, b + x)
        nm.assign(b, a)
        return nm.sum(x)

    step = make(swap)
    state = step.init(0)
    with pytest.raises(nm.NamedMeshError, match="input x is the array of variable a"):
        step(state, x=state["a"])
    state.arrays["b"] = state.arrays["a"]
    with pytest.raises(nm.NamedMeshError, match="one array"):
        step(state, x=ONES)


def test_a_state_made_by_hand_is_checked():
    step = make()
    arrays = dict(step.init(0).arrays)
    assert float(step(State(arrays, step.variables), x=ONES)[1]) == 0.0


def test_options_of_backends_are_known_to_the_compiler():
    """They are parsed wherever a program is compiled, but for those that libtpu alone knows."""
    step = make()
    lowered = compiling.lower_step(step.artifact, step.mesh)
    for donates in (True, False):
        options = compiling.choose_options(step.artifact, "gpu", donates)
        assert bool(options) == donates
        assert compiling.compile_lowered(dataclasses.replace(lowered, options=options)).as_text()


def test_products_of_float8_are_never_those_of_triton():
    """Its kernels of float8 take minutes to compile, where cuBLAS has them ready."""
    B, M, H = nm.dims("batch=16 model=16 hidden=16")
    wide, narrow = (
        nm.export(
            nm.trace(lambda x, w, f=multiply: f([x, w], [B, H]), *map(nm.spec, ([B, M], [M, H]))),
            nm.Mesh(one=1),
            "",
        )
        for multiply in (nm.einsum, nm.scaled_einsum)
    )
    option = "xla_gpu_enable_triton_gemm"
    assert option not in compiling.choose_options(wide, "gpu", donates=True)
    assert compiling.choose_options(narrow, "gpu", donates=False)[option] is False
    assert not compiling.choose_options(narrow, "cpu", donates=True)
