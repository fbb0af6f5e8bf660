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
    # Activations are added up every turn; gradients of weights, of all turns together, once.
    backward = compiled.plan.of_phase("backward")
    assert [(one.tensor, one.axes, one.times) for one in backward] == [
        ("d_x_history", ("model",), 5),
        ("d_wi", ("data",), 1),
        ("d_wo", ("data",), 1),
    ]


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


def test_64_bits_are_refused_before_anything_is_compiled():
    (B,) = nm.dims("batch=8")
    with pytest.raises(
        nm.NamedMeshError, match="tensor x is float64, which does not run on devices"
    ):
        nm.compile(
            lambda x: x * 2.0, x=nm.spec([B], "float64"), mesh=nm.Mesh(a=2), layout="batch:a"
        )


def test_clipping_by_the_norm_of_all_gradients_is_one_all_reduce():
    B, M, H = nm.dims("batch=8 model=16 hidden=32")

    def train(x):
        h = x
        for i, (dims, out) in enumerate([([M, H], [B, H]), ([H, M], [B, M]), ([M, H], [B, H])]):
            h = nm.relu(nm.einsum([h, nm.param(f"w{i}", dims, nm.normal_init(1.0))], out))
        grads, norm = nm.layers.clip_by_global_norm(nm.grad(nm.mean(h * h)), 1.0)
        for name, weight in nm.parameters().items():
            nm.assign(weight, weight - grads[name] * 0.1)
        return norm

    program = nm.trace(train, x=nm.spec([B, M]))
    for mesh, layout, params in (
        (nm.Mesh(data=8), "batch:data", "model:data"),
        (nm.Mesh(data=8), "hidden:data", None),
        (nm.Mesh(data=4, tensor=2), "batch:data, hidden:tensor", "model:data, hidden:tensor"),
        (nm.Mesh(data=4, tensor=2), "batch:data, hidden:tensor", "model:data, hidden:tensor, !w1"),
    ):
        step = nm.compile(program, mesh=mesh, layout=layout, params=params, strict=True)
        assert [one.kind for one in step.plan.of_phase("update")] == ["AllReduce"]
        x = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
        state = program.initial_state(0)
        _, wanted = program.evaluate(state, x=x)
        _, norm = step(step.place({name: np.asarray(v) for name, v in state.items()}), x=x)
        np.testing.assert_allclose(norm, wanted, rtol=1e-5)


@pytest.mark.parametrize("remat", ["none", "dots", "full"])
def test_no_activation_is_gathered_whatever_is_stored(remat):
    """Cotangents of what a loop stored went back in another place, and were gathered there."""
    config = nm.layers.config("moe_128e_12l").but(
        experts=4, layers=4, model=16, hidden=32, heads=2, key=8, source_vocab=32, target_vocab=32,
        remat=remat, dispatch="gather",
    )  # fmt: skip
    model = nm.layers.Transformer(config, 8, 16, 16)

    def train(batch, seed):
        loss, _ = model.loss(nm.layers.batch_of(batch), nm.random.key_from_seed(seed))
        return nm.grad(loss)

    program = nm.trace(train, batch=model.specs(), seed=nm.spec([], "int32"))
    plan = nm.plan(program, nm.Mesh(data=2, expert=4), "group:data+expert, expert:expert")
    moves = [one for one in plan.collectives if one.kind != "AllReduce"]
    assert {one.kind for one in moves} == {"AllToAll"}
    # There and back, for encoder and decoder, forward and backward; "full" computes forward again.
    assert len(moves) == (12 if remat == "full" else 8)


def test_collectives_are_named_by_scope_and_line():
    B, M = nm.dims("batch=8 model=16")

    def network(x):
        for name in ("first", "second"):
            with nm.scope(name):
                x = nm.tanh(nm.einsum([x, nm.param("w", [M])], [B])) * x
        loss = nm.sum(x)
        return nm.grad(loss)

    program = nm.trace(network, x=nm.spec([B, M]))
    plan = nm.plan(program, nm.Mesh(data=8), "model:data")
    scopes = {(one.phase, one.scope) for one in plan.collectives}
    assert {("forward", "first"), ("forward", "second"), ("backward", "second")} <= scopes
    assert all(one.source.file == __file__ for one in plan.collectives)
    header = plan.communication.splitlines()[0].split()
    assert header[-2:] == ["scope", "line"]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bfloat16", "int32", "float32"])
@pytest.mark.parametrize("size", [8, 10])
def test_sums_of_few_bits_are_planned_as_they_are_made(dtype, size):
    """XLA adds up sizes that do not divide by itself, and narrow numbers in 32 bits."""
    B, M = nm.Dimension("batch", size), nm.Dimension("model", 4)
    program = nm.trace(lambda x: nm.sum(nm.cast(x, dtype), over=B), x=nm.spec([B, M], "int32"))
    step = nm.compile(program, mesh=nm.Mesh(data=8), layout="batch:data", strict=True)
    (one,) = step.plan.collectives
    wider = {"int8": "int32", "uint8": "uint32", "bfloat16": "float32"}
    assert one.dtype == (dtype if size == 8 else wider.get(dtype, dtype))
    x = np.arange(4 * size, dtype=np.int32).reshape(size, 4) % 3
    _, result = step(None, x=x)
    np.testing.assert_array_equal(np.asarray(result, np.float32), x.sum(0))


def test_the_order_of_one_element_takes_no_collective():
    B, M = nm.dims("batch=8 model=1")

    def function(x):
        return nm.sort(x, M), nm.argsort(x, M), nm.grad(nm.sum(nm.sort(x, M)), x)

    step = nm.compile(
        nm.trace(function, x=nm.spec([B, M])), mesh=nm.Mesh(data=8), layout="batch:data"
    )
    assert not step.plan.collectives
    x = np.random.default_rng(0).normal(size=(8, 1)).astype(np.float32)
    _, (ordered, order, grad) = step(None, x=x)
    np.testing.assert_array_equal(ordered, x)
    np.testing.assert_array_equal(order, np.zeros((8, 1)))
    np.testing.assert_array_equal(grad, np.ones((8, 1)))


@pytest.mark.parametrize("axes", [{"a": 2, "b": 2}, {"a": 2, "b": 4}, {"a": 4, "b": 2}])
def test_two_axes_change_places(axes):
    """The way used to pass through a dimension split into more pieces than it has elements."""
    X, Y = nm.dims("x=4 y=4")

    def function(x):
        return nm.shard(nm.shard(x, {X: "a", Y: "b"}) * 2.0, {X: "b", Y: "a"})

    program = nm.trace(function, x=nm.spec([X, Y]))
    step = nm.compile(program, mesh=nm.Mesh(**axes), strict=True)
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    np.testing.assert_array_equal(step(None, x=x)[1], 2 * x)
    kinds = [one.kind for one in step.plan.collectives]
    if axes["a"] == axes["b"]:
        assert kinds == ["CollectivePermute"]


@pytest.mark.parametrize("params", [None, "model:data"])
def test_gradients_in_bfloat16_are_added_up_once_for_all_microbatches(params):
    """Each is cast to the accumulator's float32, and used to be sent before that."""
    T, B, M, H = nm.dims("turn=3 batch=8 model=16 hidden=32")

    def train(x):
        w = nm.param("w", [M, H], nm.normal_init(1.0))

        def turn(total, rows):
            y = nm.einsum([nm.cast(rows, "bfloat16"), nm.cast(w, "bfloat16")], [B, H])
            return total + nm.grad(nm.mean(nm.square(nm.cast(y, "float32"))), w), None

        grad, _ = nm.scan(turn, nm.zeros([M, H]), x, over=T)
        nm.assign(w, w - grad)

    program = nm.trace(train, x=nm.spec([T, B, M]))
    step = nm.compile(program, mesh=nm.Mesh(data=8), layout="batch:data", params=params)
    sums = [one for one in step.plan.collectives if one.kind in ("AllReduce", "ReduceScatter")]
    assert [(one.kind, one.dtype, one.times) for one in sums] == [
        ("AllReduce" if params is None else "ReduceScatter", "float32", 1)
    ]
    x = np.random.default_rng(0).normal(size=(3, 8, 16)).astype(np.float32)
    state = {"w": np.asarray(program.initial_state(0)["w"])}
    wanted, _ = program.evaluate(state, x=x)
    found, _ = step(step.place(state), x=x)
    np.testing.assert_allclose(found["w"], wanted["w"], rtol=2e-2, atol=2e-2)


class DoubleAndSum(nm.Op):
    """Two results: one keeps the dimension over which the other is a sum."""

    dim: nm.Dimension

    def results(self):
        (x,) = self.inputs
        return [(x.shape, x.dtype), (x.shape.without(self.dim.name), x.dtype)]

    def lower(self, context, x):
        at = self.inputs[0].shape.position(self.dim.name)
        return [x * 2.0, context.tf.reduce_sum(x, at)]

    def placement(self):
        return nm.Placement(reduced=frozenset([self.dim.name]))


class DoubleAndSumByHand(DoubleAndSum):
    """The same, on each device's own piece."""

    manual = True


@pytest.mark.parametrize("kind", [DoubleAndSum, DoubleAndSumByHand])
def test_of_several_results_only_the_sums_are_added_up(kind):
    B, M = nm.dims("batch=16 model=32")
    program = nm.trace(lambda x: tuple(kind((x,), M).outputs), x=nm.spec([B, M]))
    step = nm.compile(program, mesh=nm.Mesh(a=2, b=4), layout="batch:a, model:b", strict=True)
    assert [one.elements for one in step.plan.collectives] == [8]
    x = np.random.default_rng(0).normal(size=(16, 32)).astype(np.float32)
    _, (double, total) = step(None, x=x)
    np.testing.assert_allclose(double, 2 * x)
    np.testing.assert_allclose(total, x.sum(1), rtol=1e-5, atol=1e-5)


def test_a_backward_pass_takes_the_cheaper_way():
    """With model and hidden on one axis, the gradient of h was added up over the axis."""
    B, M, H = nm.dims("batch=1024 model=64 hidden=256")

    def step(x):
        h = nm.relu(nm.einsum([x, nm.param("wi", [M, H])], [B, H]))
        y = nm.einsum([h, nm.param("wo", [H, M])], [B, M])
        return nm.grad(nm.mean(nm.square(y)))

    program = nm.trace(step, x=nm.spec([B, M]))
    plan = nm.plan(program, nm.Mesh(data=2, tensor=4), "batch:data, hidden:tensor, model:tensor")
    activations = [one for one in plan.of_phase("backward") if one.elements >= 1024 // 2 * 64]
    assert [one.kind for one in activations] == ["AllGather"], plan.communication


@pytest.mark.parametrize("params", [None, "model:data"])
def test_gradients_are_weighed_by_a_number_and_added_up_once(params):
    """The number is a sum over devices too: it is added up first, the gradient after the loop."""
    T, B, M, H = nm.dims("turn=3 batch=8 model=16 hidden=32")

    def train(x):
        w = nm.param("w", [M, H], nm.normal_init(1.0))

        def turn(total, rows):
            loss = nm.mean(nm.square(nm.einsum([rows, w], [B, H])))
            count = nm.sum(nm.cast(rows > 0.0, "float32"))
            return total + nm.grad(loss, w) * count, None

        grad, _ = nm.scan(turn, nm.zeros([M, H]), x, over=T)
        nm.assign(w, w - grad)

    program = nm.trace(train, x=nm.spec([T, B, M]))
    step = nm.compile(
        program, mesh=nm.Mesh(data=8), layout="batch:data", params=params, strict=True
    )
    sums = [one for one in step.plan.collectives if one.elements > 1 and one.kind != "AllGather"]
    kind = "AllReduce" if params is None else "ReduceScatter"
    assert [(one.kind, one.times) for one in sums] == [(kind, 1)]
    x = np.random.default_rng(0).normal(size=(3, 8, 16)).astype(np.float32)
    state = {"w": np.asarray(program.initial_state(0)["w"])}
    wanted, _ = program.evaluate(state, x=x)
    found, _ = step(step.place(state), x=x)
    np.testing.assert_allclose(found["w"], wanted["w"], rtol=1e-4, atol=1e-3)


def test_a_branch_on_what_rests_gathers_nothing():
    B, M, H = nm.dims("batch=8 model=16 hidden=32")

    def train(x):
        w = nm.param("w", [M, H], nm.normal_init(1.0))
        loss = nm.mean(nm.square(nm.einsum([x, w], [B, H])))
        grad = nm.grad(loss, w)
        nm.assign(w, nm.cond(loss < 1e9, lambda: w - grad, lambda: w))
        return loss

    program = nm.trace(train, x=nm.spec([B, M]))
    step = nm.compile(
        program, mesh=nm.Mesh(data=8), layout="batch:data", params="model:data", strict=True
    )
    assert not step.plan.of_phase("update")
    x = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
    state = {"w": np.asarray(program.initial_state(0)["w"])}
    wanted, _ = program.evaluate(state, x=x)
    found, _ = step(step.place(state), x=x)
    np.testing.assert_allclose(found["w"], wanted["w"], rtol=1e-4, atol=1e-5)


def test_what_follows_gradients_in_a_loop_is_the_update():
    T, B, M = nm.dims("turn=3 batch=8 model=16")

    def train(x):
        w = nm.param("w", [M], nm.normal_init(1.0))

        def turn(total, rows):
            return total + nm.grad(nm.mean(nm.square(rows * w)), w), None

        grad, _ = nm.scan(turn, nm.zeros([M]), x, over=T)
        nm.assign(w, w - grad * nm.rsqrt(nm.sum(grad * grad)))

    program = nm.trace(train, x=nm.spec([T, B, M]))
    plan = nm.plan(program, nm.Mesh(data=8), "batch:data", "model:data")
    assert [one.kind for one in plan.of_phase("update")] == ["AllReduce"]
