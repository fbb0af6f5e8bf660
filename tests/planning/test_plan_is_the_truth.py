"""The plan of the MoE layer under five kinds of layout, held against what the compiler made."""

from collections import Counter

import numpy as np
import pytest

import namedmesh as nm
from benchmarks.moe import Sizes, program

SIZES = Sizes(group=8, seq=32, model=16, hidden=32, expert=8)
LAYOUTS = {
    "group and expert on one axis": ("all=8", "group:all, expert:all", None),
    "two axes": ("data=2 expert=4", "group:data+expert, expert:expert", None),
    "three axes": (
        "data=2 expert=2 model=2",
        "group:data+expert, expert:expert, hidden:model",
        None,
    ),
    "data parallel": ("data=8", "group:data", None),
    "fully sharded": ("data=8", "group:data", "model:data"),
    "hidden split": ("model=8", "hidden:model", None),
}
KINDS = {
    "group and expert on one axis": {
        "forward": {"AllToAll": 2},
        "backward": {"AllToAll": 2, "AllReduce": 1},
    },
    "two axes": {"forward": {"AllToAll": 2}, "backward": {"AllToAll": 2, "AllReduce": 3}},
    "three axes": {
        "forward": {"AllToAll": 2, "AllReduce": 1},
        "backward": {"AllToAll": 2, "AllReduce": 4},
    },
    "data parallel": {"forward": {}, "backward": {"AllReduce": 3}},
    "fully sharded": {"forward": {"AllGather": 3}, "backward": {"ReduceScatter": 3}},
    "hidden split": {"forward": {"AllReduce": 1}, "backward": {"AllReduce": 1}},
}


@pytest.fixture(scope="module")
def layer():
    traced = program(SIZES)
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.normal(size=spec.shape.sizes).astype(np.float32)
        for name, spec in traced.specs.items()
    }
    state = {name: np.asarray(value) for name, value in traced.initial_state(0).items()}
    return traced, inputs, state, traced.evaluate(state, **inputs)[1]


@pytest.mark.parametrize("label", LAYOUTS)
def test_compiler_does_what_the_plan_says(label, layer):
    traced, inputs, state, wanted = layer
    mesh, layout, params = LAYOUTS[label]
    step = nm.compile(traced, mesh=nm.Mesh.parse(mesh), layout=layout, params=params, strict=True)
    for phase, kinds in KINDS[label].items():
        assert Counter(one.kind for one in step.plan.of_phase(phase)) == kinds
    assert step.audit.exact, str(step.audit)
    for planned, found in step.audit.matched:
        assert planned.bytes == found.elements * 4
        assert f"nm.{planned.op}" in found.op_name, "the compiler's metadata names the planned op"
    _, got = step(step.place(state), **inputs)
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-3, atol=1e-4, err_msg=name)


def test_all_to_all_bytes_are_those_of_the_dispatched_tokens(layer):
    plan = nm.plan(layer[0], nm.Mesh(all=8), "group:all, expert:all")
    one_device = SIZES.expert * SIZES.group * SIZES.capacity * SIZES.model * 4 // 8
    assert [one.bytes for one in plan.collectives if one.kind == "AllToAll"] == [one_device] * 4
    (gate,) = [one for one in plan.collectives if one.kind == "AllReduce"]
    assert (gate.tensor, gate.bytes) == ("d_wg", SIZES.model * SIZES.expert * 4)


def test_moved_axis_is_put_last_whatever_order_it_is_written_in(layer):
    mesh = nm.Mesh(data=2, expert=4)
    first, second = (
        nm.plan(layer[0], mesh, f"group:{order}, expert:expert")
        for order in ("data+expert", "expert+data")
    )
    assert [(one.kind, one.axes) for one in first.collectives] == [
        (one.kind, one.axes) for one in second.collectives
    ]
    assert second.count("CollectivePermute") == 0


def test_plan_prints_every_collective_with_its_line(layer):
    text = str(nm.plan(layer[0], nm.Mesh(all=8), "group:all, expert:all"))
    assert "xe = nm.reshard(xe, E)  # group -> expert: one AllToAll" in text
    assert "total forward: 2 AllToAll" in text
    assert "total backward: 2 AllToAll, 1 AllReduce" in text
    assert "wi float32[expert=8/all, model=16, hidden=32]" in " ".join(text.split())


def test_scan_counts_its_collectives_once_an_iteration():
    B, M, H, L = nm.dims("batch=8 model=8 hidden=16 layer=5")

    def step(x):
        wi, wo = nm.param("wi", [L, M, H]), nm.param("wo", [L, H, M])

        def body(h, w):
            return h + nm.einsum([nm.relu(nm.einsum([h, w[0]], [B, H])), w[1]], [B, M]), None

        y, _ = nm.scan(body, x, (wi, wo), over=L, remat="full")
        return nm.grad(nm.sum(y * y))

    compiled = nm.compile(
        step,
        nm.spec([B, M]),
        mesh=nm.Mesh(data=4, model=2),
        layout="batch:data, hidden:model",
        strict=True,
    )
    assert compiled.audit.exact, str(compiled.audit)
    assert compiled.plan.count("AllReduce", "forward") == 5
    # Activations are added up every iteration; small gradients, of all iterations together, once.
    backward = compiled.plan.of_phase("backward")
    assert [(one.tensor, one.axes, one.times) for one in backward] == [
        ("d_x_history", ("model",), 5),
        ("d_wi", ("data",), 1),
        ("d_wo", ("data",), 1),
    ]


@pytest.mark.parametrize(
    ("params", "kind", "times"),
    [
        (None, "AllReduce", 2),
        ("model:data", "ReduceScatter", 2),
        ("layer:data", "ReduceScatter", 1),  # along the loop itself
    ],
)
def test_large_gradients_of_a_stack_are_added_up_iteration_by_iteration(params, kind, times):
    B, M, H, L = nm.dims("batch=8 model=512 hidden=1024 layer=2")

    def step(x):
        w = nm.param("w", [L, M, H])

        def layer(h, w):
            return h + nm.einsum([nm.tanh(nm.einsum([h, w], [B, H])), w], [B, M]), None

        y, _ = nm.scan(layer, x, w, over=L, remat="full")
        nm.assign(w, w - 0.1 * nm.grad(nm.mean(y * y))["w"])

    compiled = nm.compile(
        step, nm.spec([B, M]), mesh=nm.Mesh(data=2), layout="batch:data", params=params, strict=True
    )
    assert compiled.audit.exact, str(compiled.audit)
    gradients = [one for one in compiled.plan.of_phase("backward") if one.tensor == "d_w"]
    assert [(one.kind, one.times) for one in gradients] == [(kind, times)]


def test_fully_sharded_stack_gathers_one_layer_at_a_time():
    B, M, H, L = nm.dims("batch=8 model=16 hidden=16 layer=4")

    def step(x):
        w = nm.param("w", [L, M, H])
        v = nm.param("v", [L, H, M])
        y, _ = nm.scan(
            lambda h, ws: (h + nm.einsum([nm.einsum([h, ws[0]], [B, H]), ws[1]], [B, M]), None),
            x,
            (w, v),
            over=L,
        )
        grads = nm.grad(nm.mean(y * y))
        for name, weight in nm.parameters().items():
            slot = nm.state(f"{name}_slot", weight.shape, of=weight)
            nm.assign(slot, slot * 0.9 + grads[name])
            nm.assign(weight, weight - grads[name] * 0.1)

    compiled = nm.compile(
        step,
        nm.spec([B, M]),
        mesh=nm.Mesh(data=8),
        layout="batch:data",
        params="model:data",
        strict=True,
    )
    gathers = [one for one in compiled.plan.collectives if one.kind == "AllGather"]
    assert gathers and all(
        one.bytes == M.size * H.size * 4 and one.times == L.size for one in gathers
    )
    assert compiled.plan.of_phase("update") == []
    assert compiled.audit.exact, str(compiled.audit)


def test_at_rest_an_axis_goes_to_the_dimension_written_first():
    G, E, M, H = nm.dims("group=8 expert=8 model=8 hidden=12")

    def step(x):
        w, v = nm.param("w", [M, H]), nm.param("v", [E, H, M])
        h = nm.reshard(nm.einsum([x, w], [G, E, H]), E)
        y = nm.reshard(nm.einsum([h, v], [G, E, M]), G)
        grads = nm.grad(nm.mean(nm.square(y)))
        for name, weight in nm.parameters().items():
            nm.assign(weight, weight - grads[name])
        return grads

    traced = nm.trace(step, x=nm.spec([G, E, M], whole=[E]))
    mesh, layout, params = nm.Mesh(all=8), "group:all, expert:all", "expert:all, model:all"
    compiled = nm.compile(traced, mesh=mesh, layout=layout, params=params, strict=True)
    assert compiled.audit.exact, str(compiled.audit)
    assert [one.sharded_text for one in compiled.artifact.variables] == [
        "float32[model=8/all, hidden=12]", "float32[expert=8/all, hidden=12, model=8]",
    ]  # fmt: skip
    x = np.random.default_rng(0).normal(size=(8, 8, 8)).astype(np.float32)
    state = {name: np.asarray(value) for name, value in traced.initial_state(0).items()}
    wanted, (_, got) = traced.evaluate(state, x=x)[1], compiled(compiled.place(state), x=x)
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-5)


def test_two_casts_of_a_weight_at_rest_are_gathered_once():
    B, M, V = nm.dims("batch=8 model=16 vocab=24")

    def step(x):
        w = nm.param("w", [V, M])
        h = nm.einsum([nm.cast(x, "bfloat16"), nm.cast(w, "bfloat16")], [B, V])
        y = nm.einsum([h, nm.cast(w, "bfloat16")], [B, M])
        return nm.mean(nm.cast(y, "float32"))

    compiled = nm.compile(
        step,
        nm.spec([B, M]),
        mesh=nm.Mesh(data=8),
        layout="batch:data",
        params="model:data",
        strict=True,
    )
    assert [one.kind for one in compiled.plan.collectives].count("AllGather") == 1
    assert compiled.audit.exact, str(compiled.audit)


def test_permutations_match_whichever_devices_they_leave_alone():
    B, M = nm.dims("batch=8 model=12")
    back = lambda x: nm.reshard(nm.reshard(x, M) * 2.0, B)
    mesh = nm.Mesh(p=2, q=2, r=2)
    step = nm.compile(
        back, nm.spec([B, M], whole=[M]), mesh=mesh, layout="batch:p+q+r, model:r+q", strict=True
    )
    assert step.audit.exact and step.plan.count("CollectivePermute") == 2


def test_a_mapped_loop_dimension_is_gathered_once():
    B, M, L = nm.dims("batch=8 model=12 layer=4")

    def step(x):
        w = nm.param("w", [L, M])
        h, _ = nm.scan(lambda h, w: ((h - nm.mean(h, over=M)) * w + h, None), x, w, over=L)
        loss = nm.mean(nm.square(h))
        nm.assign(w, w - nm.grad(loss, w))
        return loss

    compiled = nm.compile(step, nm.spec([B, M]), mesh=nm.Mesh(m=2), layout="layer:m", strict=True)
    assert [(one.kind, one.tensor) for one in compiled.plan.collectives] == [("AllGather", "w")]
    assert compiled.audit.exact, str(compiled.audit)


def test_a_params_layout_must_name_dimensions_of_parameters():
    B, M = nm.dims("batch=8 model=8")
    program = nm.trace(lambda x: x * nm.param("w", [M]), nm.spec([B, M]))
    with pytest.raises(
        nm.NamedMeshError, match="the params layout maps dimension 'batch', which no parameter has"
    ):
        nm.plan(program, nm.Mesh(a=2), "batch:a", params="batch:a")
