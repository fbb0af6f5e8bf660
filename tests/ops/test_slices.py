"""Einsums in slices: shards go round the devices instead of one AllGather or ReduceScatter."""

import numpy as np
import pytest

import namedmesh as nm
from tests.checks import uniform

A, B, C = nm.dims("a=16 b=24 c=32")
MESH = nm.Mesh(all=8)


def product(slices, a=A, b=B, c=C, dtype="float32"):
    """A program: a product and its derivative."""

    def multiply(x, y):
        z = nm.einsum([x, y], [a, c], slices=slices)
        dx, dy = nm.grad(nm.sum(nm.cast(z * z, "float32")), [x, y])
        return {"z": z, "dx": dx, "dy": dy}

    return multiply, nm.spec([a, b], dtype=dtype), nm.spec([b, c], dtype=dtype)


def plan_of(slices, layout, mesh=MESH):
    """The plan of a product and its derivative."""
    return nm.plan(nm.trace(*product(slices)), mesh, layout)


def check_numbers(mesh, layout, partitioner="gspmd", sizes=(16, 24, 32)):
    """Compile a product in slices and compare it with NumPy."""
    a, b, c = (nm.Dimension(name, size) for name, size in zip("abc", sizes, strict=True))
    options = {"mesh": mesh, "layout": layout, "partitioner": partitioner}
    step = nm.compile(*product(True, a, b, c), strict=True, **options)
    x, y = uniform(0, a.size, b.size), uniform(1, b.size, c.size)
    _, found = step(step.init(0), x=x, y=y)
    expected = {"z": x @ y, "dx": 2 * (x @ y) @ y.T, "dy": 2 * x.T @ (x @ y)}
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-4)
    return step


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("layout", ["a:all, c:all", "b:all, a:all"])
def test_equal_to_numpy_and_exactly_as_planned(layout, partitioner):
    step = check_numbers(MESH, layout, partitioner)
    assert {one.kind for one in step.artifact.collectives} == {"CollectivePermute"}


@pytest.mark.parametrize(("devices", "sizes"), [(2, (16, 24, 32)), (7, (13, 11, 17))])
@pytest.mark.filterwarnings("ignore:.* is padded")
def test_any_number_of_devices_and_any_sizes(devices, sizes):
    check_numbers(nm.Mesh(all=devices), "a:all, c:all", sizes=sizes)
    check_numbers(nm.Mesh(all=devices), "b:all, a:all", sizes=sizes)


@pytest.mark.parametrize("devices", [2, 3, 4, 5, 8, 9, 16, 64])
def test_as_many_bytes_as_gathering_or_scattering(devices):
    D, E, F = (nm.Dimension(name, 64 * devices) for name in "abc")
    x, y = nm.spec([D, E]), nm.spec([E, F])
    program = nm.trace(lambda x, y: nm.einsum([x, y], [D, F], slices=True), x, y)
    for layout in ("a:all, c:all", "b:all, a:all"):
        plan = nm.plan(program, nm.Mesh(all=devices), layout)
        assert {one.kind for one in plan.collectives} == {"CollectivePermute"}
        assert plan.count("CollectivePermute") == devices - 1
        whole = D.size * E.size * 4
        assert plan.total_wire_bytes() == whole * (devices - 1) // devices


def test_the_layout_says_how_large_is_too_large():
    program = nm.trace(lambda x: nm.einsum([x, nm.param("w", [B, C])], [A, C]), x=nm.spec([A, B]))
    size = B.size * C.size * 4
    for limit, kind in ((size - 1, "CollectivePermute"), (size, "AllGather")):
        plan = nm.plan(program, MESH, f"a:all, slices={limit}B", params="b:all")
        assert {one.kind for one in plan.collectives} == {kind}
    decisions = nm.plan(program, MESH, "a:all, slices=0", params="b:all").decisions
    assert any("w goes round the devices in 8 slices: " in one for one in decisions)


def test_what_is_too_large_for_a_device_goes_round_without_a_word():
    D, E, F = nm.dims("a=262144 b=8192 c=262144")
    program = nm.trace(lambda x, y: nm.einsum([x, y], [D, F]), nm.spec([D, E]), nm.spec([E, F]))
    plan = nm.plan(program, MESH, "a:all, c:all")
    assert {one.kind for one in plan.collectives} == {"CollectivePermute"}
    assert all(plan.shardings[x].held for x in program.inputs.values())


def test_slices_are_refused_where_they_mean_nothing():
    program = nm.trace(lambda: nm.sum(nm.param("w", [A, B])))
    with pytest.raises(nm.NamedMeshError, match="limit of slices"):
        nm.plan(program, MESH, "a:all", params="b:all, slices=0")
    with pytest.raises(nm.NamedMeshError, match=r"(?s)slices=big is not a size.*slices=64MiB"):
        nm.Layout("a:all, slices=big")


def test_a_layout_keeps_its_limit():
    layout = nm.Layout("a:all, slices=1.5 MiB")
    assert layout.slices == 3 * 2**19 and layout.text == "a:all, slices=1536KiB"
    assert nm.Layout(layout) == nm.Layout(layout.text) == layout.only(["a"]) == layout
    assert layout != nm.Layout("a:all")


M, H, L = nm.dims("model=32 hidden=64 layer=3")
N, S = nm.dims("batch=16 seq=8")


def train_step(x):
    """Layers in a loop, and their weights' update."""

    def layer(x, _):
        wide = nm.relu(nm.einsum([x, nm.param("wi", [M, H])], [N, S, H]))
        return x + nm.einsum([wide, nm.param("wo", [H, M])], [N, S, M]), None

    loss = nm.mean(nm.square(nm.scan(layer, x, over=L, stack=True)[0]))
    for name, gradient in nm.grad(loss).items():
        nm.assign(nm.parameters()[name], nm.parameters()[name] - gradient * 0.1)
    return loss


@pytest.mark.parametrize(
    ("mesh", "layout", "params"),
    [
        (nm.Mesh(data=8), "batch:data", "model:data"),
        (nm.Mesh(data=2, tensor=4), "batch:data, hidden:tensor, seq:tensor", "model:data"),
    ],
)
def test_a_model_at_rest_trains_alike_in_slices(mesh, layout, params):
    losses = []
    for limit in ("", ", slices=0"):
        options = {"mesh": mesh, "layout": layout + limit, "params": params, "strict": True}
        step = nm.compile(train_step, x=nm.spec([N, S, M]), **options)
        state, found = step.init(0), []
        for _ in range(3):
            state, loss = step(state, x=uniform(0, 16, 8, 32))
            found.append(float(loss))
        losses.append(found)
    kinds = [one.kind for one in step.artifact.collectives]
    assert "CollectivePermute" in kinds
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_never_more_than_a_few_slices_on_a_device():
    D, E, F = nm.dims("a=512 b=2048 c=2048")
    memory = {}
    for slices in (True, None):
        function = lambda x, slices=slices: nm.einsum(
            [x, nm.param("w", [E, F])], [D, F], slices=slices
        )
        step = nm.compile(function, nm.spec([D, E]), mesh=MESH, layout="a:all", params="c:all")
        memory[slices] = step.report.temporary_bytes
    whole = E.size * F.size * 4
    assert memory[None] >= whole and memory[True] <= whole * 5 // 8
