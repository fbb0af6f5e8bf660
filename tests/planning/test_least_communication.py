"""No more is communicated than needed: in loops, for weights at rest, in branches and sums."""

import warnings

import numpy as np
import pytest

import namedmesh as nm
from tests.checks import assert_all_near, assert_sharded_same


def assert_trains_alike(program, step, x, rtol, atol):
    """A step changes the weight w as one device does."""
    state = {"w": np.asarray(program.initial_state(0)["w"])}
    wanted, _ = program.evaluate(state, x=x)
    found, _ = step(step.place(state), x=x)
    np.testing.assert_allclose(found["w"], wanted["w"], rtol=rtol, atol=atol)


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
    """Shards are added up in the dtype of the result, also where zeros pad them."""
    B, M = nm.Dimension("batch", size), nm.Dimension("model", 4)
    program = nm.trace(lambda x: nm.sum(nm.cast(x, dtype), over=B), x=nm.spec([B, M], "int32"))
    step = nm.compile(program, mesh=nm.Mesh(data=8), layout="batch:data", strict=True)
    (one,) = step.plan.collectives
    assert one.dtype == dtype
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
    """The way used to pass through a dimension split into more shards than it has elements."""
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
    T, B, M, H = nm.dims("iteration=3 batch=8 model=16 hidden=32")

    def train(x):
        w = nm.param("w", [M, H], nm.normal_init(1.0))

        def iteration(total, rows):
            y = nm.einsum([nm.cast(rows, "bfloat16"), nm.cast(w, "bfloat16")], [B, H])
            return total + nm.grad(nm.mean(nm.square(nm.cast(y, "float32"))), w), None

        grad, _ = nm.scan(iteration, nm.zeros([M, H]), x, over=T)
        nm.assign(w, w - grad)

    program = nm.trace(train, x=nm.spec([T, B, M]))
    step = nm.compile(program, mesh=nm.Mesh(data=8), layout="batch:data", params=params)
    sums = [one for one in step.plan.collectives if one.kind in ("AllReduce", "ReduceScatter")]
    assert [(one.kind, one.dtype, one.times) for one in sums] == [
        ("AllReduce" if params is None else "ReduceScatter", "float32", 1)
    ]
    x = np.random.default_rng(0).normal(size=(3, 8, 16)).astype(np.float32)
    assert_trains_alike(program, step, x, rtol=2e-2, atol=2e-2)


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
        return nm.Placement(reduced=[self.dim.name])


class DoubleAndSumByHand(DoubleAndSum):
    """The same, on each device's own shard."""

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
    T, B, M, H = nm.dims("iteration=3 batch=8 model=16 hidden=32")

    def train(x):
        w = nm.param("w", [M, H], nm.normal_init(1.0))

        def iteration(total, rows):
            loss = nm.mean(nm.square(nm.einsum([rows, w], [B, H])))
            count = nm.sum(nm.cast(rows > 0.0, "float32"))
            return total + nm.grad(loss, w) * count, None

        grad, _ = nm.scan(iteration, nm.zeros([M, H]), x, over=T)
        nm.assign(w, w - grad)

    program = nm.trace(train, x=nm.spec([T, B, M]))
    step = nm.compile(
        program, mesh=nm.Mesh(data=8), layout="batch:data", params=params, strict=True
    )
    sums = [one for one in step.plan.collectives if one.elements > 1 and one.kind != "AllGather"]
    kind = "AllReduce" if params is None else "ReduceScatter"
    assert [(one.kind, one.times) for one in sums] == [(kind, 1)]
    x = np.random.default_rng(0).normal(size=(3, 8, 16)).astype(np.float32)
    assert_trains_alike(program, step, x, rtol=1e-4, atol=1e-3)


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
    assert_trains_alike(program, step, x, rtol=1e-4, atol=1e-5)


def test_what_follows_gradients_in_a_loop_is_the_update():
    T, B, M = nm.dims("iteration=3 batch=8 model=16")

    def train(x):
        w = nm.param("w", [M], nm.normal_init(1.0))

        def iteration(total, rows):
            return total + nm.grad(nm.mean(nm.square(rows * w)), w), None

        grad, _ = nm.scan(iteration, nm.zeros([M]), x, over=T)
        nm.assign(w, w - grad * nm.rsqrt(nm.sum(grad * grad)))

    program = nm.trace(train, x=nm.spec([T, B, M]))
    plan = nm.plan(program, nm.Mesh(data=8), "batch:data", "model:data")
    assert [one.kind for one in plan.of_phase("update")] == ["AllReduce"]


B, S, M, H, K, R = nm.dims("batch=4 seq=4 model=8 hidden=16 kv=2 rep=4")


def parallel_block(x, bias=False):
    """x + attention(x) + feed_forward(x), as GPT-J and PaLM have it."""
    y = nm.tanh(x)
    heads = nm.tanh(nm.einsum([y, nm.param("wq", [M, K, R])], [B, S, K, R]))
    attended = nm.einsum([heads, nm.param("wo", [K, R, M])], [B, S, M])
    inner = nm.tanh(nm.einsum([y, nm.param("w1", [M, H])], [B, S, H]))
    if bias:
        attended = attended + nm.param("b", [M], nm.normal_init(1.0))
    total = x + attended
    return total + nm.einsum([inner, nm.param("w2", [H, M])], [B, S, M])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "layout", ["kv:a, rep:b, hidden:a+b", "kv:a, hidden:b", "rep:b, hidden:b", "kv:a, hidden:a+b"]
)
def test_sums_that_are_added_to_each_other_are_sent_once(layout, bias):
    """Each term was added up over devices by itself: forward, and over different axes backward."""

    def step(x):
        y = parallel_block(x, bias)
        return {"y": y} | nm.grad(y, cotangent=y)

    program = nm.trace(step, x=nm.spec([B, S, M]))
    with_input = nm.trace(
        lambda x: nm.grad(parallel_block(x, bias), x, cotangent=x), x=nm.spec([B, S, M])
    )
    mesh = nm.Mesh(a=2, b=4)
    x = np.random.default_rng(0).normal(size=(4, 4, 8)).astype(np.float32)
    for one, phase in ((program, "forward"), (with_input, "backward")):
        compiled = nm.compile(one, mesh=mesh, layout=layout, strict=True)
        sums = [(one.kind, one.elements) for one in compiled.plan.of_phase(phase)]
        assert sums == [("AllReduce", 4 * 4 * 8)]
        state = one.initial_state(0)
        _, wanted = one.evaluate(state, x=x)
        _, found = compiled(compiled.place(state), x=x)
        assert_all_near(found, wanted, 1e-5)


def test_partial_sums_over_fewer_axes_join_those_over_more():
    """Grouped queries: keys are added up over `rep` before, queries were so over both axes."""

    def slope(x, w, v):
        y = nm.tanh(x)
        q, k = nm.einsum([y, w], [B, K, R]), nm.einsum([y, v], [B, K])
        return nm.grad(nm.sum(q * q * k), x)

    specs = {"x": nm.spec([B, M]), "w": nm.spec([M, K, R]), "v": nm.spec([M, K])}
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.normal(size=one.shape.sizes).astype(np.float32) for name, one in specs.items()
    }
    step = assert_sharded_same(slope, specs, arrays, "kv:a, rep:b", mesh=nm.Mesh(a=2, b=4))
    sums = [(one.axes, one.elements) for one in step.plan.of_phase("backward")]
    assert sums == [(("b",), 4), (("a", "b"), 4 * 8)]


@pytest.mark.filterwarnings("ignore:.*padded to")
@pytest.mark.parametrize("heads, layout", [(5, "head:a+b"), (4, "head:a+b"), (6, "row:a, head:b")])
def test_sums_over_padded_shards_are_sent_once(heads, layout):
    """Heads that do not divide: the gradients of queries, keys and values were sent one by one."""
    D, N, W = nm.dims(f"key=2 head={heads} row=10")

    def slope(x):
        y = x * nm.param("scale", [M], nm.constant_init(0.5))
        weight = lambda name: nm.param(name, [M, N, D], nm.normal_init(0.3))
        q, k, v = (nm.einsum([y, weight(name)], [W, N, D]) for name in "qkv")
        return nm.grad(nm.sum(q * k * v), x)

    program = nm.trace(slope, x=nm.spec([W, M]))
    x = np.random.default_rng(0).normal(size=(10, 8)).astype(np.float32)
    mesh = nm.Mesh(a=2, b=4)
    step = assert_sharded_same(program, {}, {"x": x}, layout, mesh=mesh)
    rows = 5 if "row" in layout else 10
    assert [(one.kind, one.elements) for one in step.plan.collectives] == [("AllReduce", rows * 8)]


@pytest.mark.filterwarnings("ignore:.*padded to")
def test_padded_microbatches_are_added_up_once():
    """A batch that does not divide was added up over devices in every iteration."""
    T, W = nm.dims("micro=3 row=10")

    def train(x):
        w = nm.param("w", [M, H], nm.normal_init(0.3))

        def add(total, x):
            hidden = nm.tanh(nm.einsum([x, w], [W, H]))
            return total + nm.grad(nm.sum(hidden * hidden), w), None

        return nm.scan(add, nm.zeros([M, H]), x, over=T)[0]

    x = np.random.default_rng(0).normal(size=(3, 10, 8)).astype(np.float32)
    step = assert_sharded_same(
        train, {"x": nm.spec([T, W, M])}, {"x": x}, "row:data", mesh=nm.Mesh(data=8)
    )
    assert [(one.kind, one.times) for one in step.plan.collectives] == [("AllReduce", 1)]


def test_a_cotangent_is_gathered_once_for_a_product_and_a_sum():
    """The second gather was planned too, and strict refused what XLA made: one."""

    def step(x):
        h = x
        for i in range(2):
            inner = nm.tanh(nm.einsum([h, nm.param(f"w{i}", [M, H])], [B, S, H]))
            h = h + nm.einsum([inner, nm.param(f"v{i}", [H, M])], [B, S, M])
        return nm.grad(nm.mean(h * h))

    specs = {"x": nm.spec([B, S, M])}
    x = np.random.default_rng(0).normal(size=(4, 4, 8)).astype(np.float32)
    layout, mesh = "hidden:a, seq:a", nm.Mesh(a=4)
    compiled = assert_sharded_same(step, specs, {"x": x}, layout, mesh=mesh)
    assert compiled.plan.count("AllGather") == 1


def bfloat16(x):
    return nm.cast(x, "bfloat16")


@pytest.mark.parametrize("params", [None, "model:data"])
@pytest.mark.parametrize("layers", [2, 3])
def test_gradients_of_a_weight_that_is_cast_at_each_use(params, layers):
    """Three terms in bfloat16 are lighter as one sum in float32; weights at rest sent all three."""
    L = nm.dims("batch=8")[0]

    def step(x):
        h = bfloat16(x)
        for _ in range(layers):
            w = bfloat16(nm.param("w", [M, H]))
            h = h + nm.einsum([nm.tanh(nm.einsum([h, w], [L, S, H])), w], [L, S, M])
        return nm.grad(nm.mean(nm.square(nm.cast(h, "float32"))))["w"]

    program = nm.trace(step, x=nm.spec([L, S, M]))
    compiled = nm.compile(
        program, mesh=nm.Mesh(data=8), layout="batch:data", params=params, strict=True
    )
    kind = "AllReduce" if params is None else "ReduceScatter"
    sums = [(one.kind, one.dtype) for one in compiled.plan.of_phase("backward")]
    assert sums == ([(kind, "bfloat16")] * 2 if layers == 2 else [(kind, "float32")])
    x = np.random.default_rng(0).normal(size=(8, 4, 8)).astype(np.float32)
    state = program.initial_state(0)
    alone = nm.compile(program, mesh=nm.Mesh(data=1), strict=True)
    _, wanted = alone(alone.place(state), x=x)
    _, found = compiled(compiled.place(state), x=x)
    np.testing.assert_allclose(found, wanted, atol=0.02 * float(np.abs(wanted).max()))


def test_a_tied_table_in_bfloat16_sends_its_gradient_in_bfloat16():
    """The gradient of the lookup was sent as rows, and that of the projection in float32."""
    L, V = nm.dims("batch=8 vocab=256")

    def step(ids):
        table = nm.param("table", [V, M])
        rows = nm.take(bfloat16(table), V, ids)
        logits = nm.einsum([rows, bfloat16(table)], [L, S, V])
        return nm.grad(nm.mean(nm.square(nm.cast(logits, "float32"))))

    program = nm.trace(step, ids=nm.spec([L, S], "int32"))
    plan = nm.plan(program, nm.Mesh(data=8), "batch:data")
    sums = [(one.kind, one.dtype) for one in plan.collectives if one.kind == "AllReduce"]
    assert sums == [("AllReduce", "bfloat16")]
    assert plan.total_wire_bytes() < 1.2 * 2 * 7 / 8 * 2 * 256 * 8


def test_reductions_over_two_split_dimensions_are_sent_once():
    """XLA sends each over one axis after the other; of what does not divide it still does."""
    A, C, U = nm.dims("a=4 c=8 uneven=7")

    def step(x, y):
        over = [A, C]
        sums = {one.__name__: one(x, over=over) for one in (nm.max, nm.min, nm.prod)}
        sums |= {one.__name__: one(x > 0.0, over=over) for one in (nm.any, nm.all)}
        wholes = nm.max(nm.cast(x * 9.0, "int32"), over=over)
        # The partial sums of a product are added up before, and by their own op.
        product = nm.max(nm.einsum([x, x], [A, C]), over=over)
        slope = nm.grad(nm.sum(nm.square(nm.max(x, over=over))), x)
        return sums, wholes, product, slope, nm.max(y, over=[A, U])

    specs = {"x": nm.spec([A, C, M]), "y": nm.spec([A, U])}
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.normal(size=one.shape.sizes).astype(np.float32) for name, one in specs.items()
    }
    layout, mesh = "a:x, c:y, model:z, uneven:y", nm.Mesh(x=2, y=2, z=2)
    compiled = assert_sharded_same(step, specs, arrays, layout, mesh=mesh)
    over_two = [
        one.reduction for one in compiled.plan.of_phase("forward") if one.axes == ("x", "y")
    ]
    assert sorted(over_two) == ["and", "max", "max", "max", "max", "min", "mul", "or"]
    assert [one.axes for one in compiled.plan.collectives if one.elements == 1][-2:] == [
        ("x",),
        ("y",),
    ]


ROW = nm.Dimension("row", 4)


def add_branches(x, count, dtype="float32"):
    """x + a(x) + b(x) + ...: a residual stream whose rows are split, under another name."""
    y, total = nm.rename(nm.cast(nm.tanh(x), dtype), ROW, S), x
    for i in range(count):
        inner = nm.tanh(nm.einsum([y, nm.cast(nm.param(f"w{i}", [M, H]), dtype)], [B, S, H]))
        out = nm.einsum([inner, nm.cast(nm.param(f"v{i}", [H, M]), dtype)], [B, S, M])
        total = total + nm.cast(nm.rename(out, S, ROW), x.dtype)
    return total


L = nm.Dimension("layer", 2)
BRANCHES = {
    "two": lambda x: add_branches(x, 2),
    "three": lambda x: add_branches(x, 3),
    "loop": lambda x: nm.scan(
        lambda x, _: (add_branches(x, 2), None), x, over=L, stack=True
    )[0],
    "remat": lambda x: nm.checkpoint(lambda x: add_branches(x, 2))(x),
}  # fmt: skip


@pytest.mark.parametrize("name", BRANCHES)
def test_sums_that_are_added_to_shards_are_scattered_once(name):
    """Sequence parallelism: each branch was scattered by itself, before it was added."""

    def step(x):
        y = BRANCHES[name](x)
        return y, nm.grad(nm.mean(y * y), {"x": x} | dict(nm.parameters()))

    specs = {"x": nm.spec([B, ROW, M])}
    x = np.random.default_rng(0).normal(size=(4, 4, 8)).astype(np.float32)
    layout, mesh = "row:t, hidden:t, batch:d", nm.Mesh(d=2, t=4)
    compiled = assert_sharded_same(step, specs, {"x": x}, layout, mesh=mesh)
    for phase in ("forward", "backward"):
        kinds = [one.kind for one in compiled.plan.of_phase(phase) if one.axes == ("t",)]
        assert kinds.count("ReduceScatter") == 1 and kinds.count("AllReduce") == 0
        assert kinds.count("AllGather") == 1 + (name == "remat" and phase == "backward")


E_, G_, C_ = nm.dims("expert=4 group=4 capacity=4")


@pytest.mark.parametrize("form", ["gather", "einsum"])
@pytest.mark.parametrize("rows", [False, True])
def test_experts_under_tensor_parallelism_are_added_up_as_tokens(form, rows):
    """Partial sums of the experts' outputs were added up as buffers, before they were combined."""
    Q, STREAM = nm.dims("seq=8 row=8")

    def layer(x):
        h = nm.rename(nm.tanh(x), STREAM, Q)
        gate = lambda logits: nm.layers.top_k_gating(logits, Q, E_, C_, second="all")
        y, _ = nm.layers.moe(h, gate, (G_, Q, E_, C_, M, H), form=form)
        return x + nm.rename(y, Q, STREAM)

    def step(x):
        y, _ = nm.scan(lambda x, _: (layer(x), None), x, over=L, stack=True)
        loss = nm.mean(y * y)
        return loss, nm.grad(loss, {"x": x} | dict(nm.parameters()))

    program = nm.trace(step, x=nm.spec([G_, STREAM, M]))
    x = np.random.default_rng(0).normal(size=(4, 8, 8)).astype(np.float32)
    layout = "group:data+expert, expert:expert, hidden:tensor" + ", row:tensor" * rows
    mesh = nm.Mesh(data=2, expert=2, tensor=2)
    compiled = nm.compile(program, mesh=mesh, layout=layout, strict=True)
    state = program.initial_state(0)
    assert_all_near(compiled(compiled.place(state), x=x)[1], program.evaluate(state, x=x)[1], 1e-5)
    tokens, choices = 4 * 8 * 8 // 4, 4 * 8 * 2 // 4
    sums = sorted(
        (one.kind, one.elements)
        for one in compiled.plan.collectives
        if one.axes == ("tensor",) and one.times == 2 and one.kind != "AllGather"
    )
    kind = "ReduceScatter" if rows else "AllReduce"
    assert sums == sorted([(kind, tokens), (kind, tokens), ("AllReduce", choices)])
    assert compiled.plan.count("AllToAll") == 2 * 4


def test_a_rename_keeps_axes_that_its_new_name_would_take():
    """The layout maps e to y first, which b has: x is what e has left."""
    b, d, e = nm.dims("b=8 d=8 e=8")
    program = nm.trace(lambda x: nm.sin(nm.rename(x * 2.0, d, e)), x=nm.spec([b, d]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = nm.plan(program, nm.Mesh(x=2, y=2, z=2), "b:z+y, d:x+y, e:y+x")
    assert not plan.collectives


GATHERED = {
    "read in shards": lambda x, y, C, A: y * nm.replicate(x, C),
    "split along another": lambda x, y, C, A: y * nm.split(x, A),
    "gathered twice": lambda x, y, C, A: y * nm.replicate(nm.split(x, A), C),
    "captured by a loop": lambda x, y, C, A: nm.scan(
        lambda carry, _, y=nm.replicate(nm.sin(y), C): (carry * y, None),
        x,
        over=nm.Dimension("layer", 3),
    )[0],
    "carried by a loop": lambda x, y, C, A: nm.scan(
        lambda carry, _: (nm.replicate(carry * x, C), None), y, over=nm.Dimension("layer", 3)
    )[0],
    "read whole, too": lambda x, y, C, A: y * nm.replicate(x, C) + nm.cumsum(nm.replicate(x, C), C),
}


@pytest.mark.parametrize("name", GATHERED)
def test_what_devices_only_cut_shards_out_of_is_not_gathered(name):
    """GPUs' compiler leaves such an AllGather out, and no other does."""
    C, A = nm.dims("channel=16 angle=24")

    def train(x, y):
        w = nm.param("w", [C, A], nm.normal_init(1.0))
        loss = nm.mean(nm.square(GATHERED[name](nm.sin(x) * w, y, C, A)))
        nm.assign(w, w - nm.grad(loss)["w"] * 0.1)
        return loss

    program = nm.trace(train, x=nm.spec([C, A]), y=nm.spec([C, A]))
    needed = 2 if name == "read whole, too" else 0
    assert nm.plan(program, nm.Mesh(x=8), "channel:x").count("AllGather") == needed
    rng = np.random.default_rng(0)
    arrays = {key: rng.normal(size=(16, 24)).astype(np.float32) for key in "xy"}
    mesh, layout = nm.Mesh(x=4, y=2), "channel:x, angle:y"
    step = assert_sharded_same(program, {}, arrays, layout, mesh=mesh)
    assert step.plan.count("AllGather") == needed
