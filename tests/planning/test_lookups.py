"""Lookups in tables that are split into rows: what sends the fewest bytes is done, and told."""

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.display.text import human
from namedmesh.layers import Adagrad, Adam, Sgd
from tests.checks import assert_sharded_same, uniform

ALL, TWO = nm.Mesh(all=8), nm.Mesh(data=2, model=4)
pytestmark = pytest.mark.filterwarnings("ignore:.*padded to")


def trace(users, batch, bag=0, width=16, **options):
    """Training of a table by lookups, one id each or the sum of a bag of them."""
    U, B, K, M = nm.dims(f"user={users} batch={batch} bag={max(bag, 1)} model={width}")

    def step(ids, target):
        table = nm.param("table", [U, M], nm.uniform_init(1.0))
        found = nm.gather(table, ids, U, **options)
        found = nm.sum(found, K) if bag else found
        loss = nm.sum(nm.square(found - target))
        nm.assign(table, table - nm.grad(loss, table) * 0.1)
        return {"loss": loss, "found": found}

    ids = [B, K] if bag else [B]
    return nm.trace(step, ids=nm.spec(ids, "int32"), target=nm.spec([B, M]))


def sent(plan):
    """The collectives of a plan, less those of the scalar loss: kind, tensor's elements."""
    return [(one.kind, one.elements) for one in plan.collectives if one.elements > 1]


def place_of(plan, name="table"):
    return plan.shardings[plan.program.variables[name].tensor].mapping


def test_a_large_table_stays_split_and_ids_and_rows_are_sent():
    """The table was kept whole on every device, without a word."""
    plan = nm.plan(trace(1_000_000, 4096), ALL, "batch:all, user:all")
    assert place_of(plan) == {"user": ("all",)}
    rows = 4096 * 16
    assert sent(plan) == [("AllGather", 4096), ("ReduceScatter", rows), ("AllGather", rows)]
    lookup, gradient = sorted(plan.decisions)
    assert "gather sends AllGather of ids, ReduceScatter of" in lookup
    assert "238.0 KiB on the wire); it could send AllGather of table (53.4 MiB" in lookup
    assert "it could send ReduceScatter of" in gradient
    assert not plan.warnings


def test_a_small_table_is_gathered():
    plan = nm.plan(trace(64, 4096), ALL, "batch:all, user:all")
    assert sent(plan) == [("AllGather", 64 * 16), ("ReduceScatter", 64 * 16)]


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize(
    "users, batch, bag, width",
    [(256, 64, 3, 1), (144, 24, 5, 1), (104, 64, 3, 3), (192, 96, 0, 2), (32, 64, 3, 1)],
)
def test_ids_that_the_gradient_reads_too_are_sent_where_a_table_alone_is_as_light(
    users, batch, bag, width, partitioner
):
    program = trace(users, batch, bag, width)
    plan = nm.plan(program, ALL, "batch:all, user:all")
    ids, rows, table = batch * max(bag, 1), batch * width, users * width
    least = min(ids + rows + min(rows, table), table + min(table, ids + rows))
    assert plan.total_wire_bytes() == 4 * (7 / 8 * least) + 7  # and the loss
    random = np.random.default_rng(0)
    shape = (batch, bag) if bag else (batch,)
    arrays = {"ids": random.integers(0, users, shape, np.int32), "target": uniform(0, batch, width)}
    state = program.initial_state()
    step = nm.Step(plan, strict=True, partitioner=partitioner)
    following, _ = step(step.place(state), **arrays)
    expected, _ = program.evaluate(state, **arrays)
    np.testing.assert_allclose(following.fetch("table"), expected["table"], atol=1e-5)


def test_a_table_that_is_gathered_over_two_axes_is_a_decision():
    """The same collective twice was taken for a part of what the other way sends."""
    plan = nm.plan(trace(64, 4096), TWO, "batch:data, user:model", params="model:data")
    assert any(
        "gather sends AllGather of table, AllGather of table" in one for one in plan.decisions
    )


@pytest.mark.parametrize("users", [1001, 50_257])
def test_rows_that_do_not_divide_send_what_others_send(users):
    """One row more made every device gather the whole table."""
    for batch in (64, 62):
        even = nm.plan(trace(users - users % 8, batch), ALL, "batch:all, user:all")
        uneven = nm.plan(trace(users, batch), ALL, "batch:all, user:all")
        assert place_of(uneven) == {"user": ("all",)}
        assert uneven.total_wire_bytes() == even.total_wire_bytes()


def test_the_price_decides_between_nodes_that_divide_and_those_that_do_not():
    """A graph with 64 nodes sent 115 KB, one with 61 sent 15."""
    totals = {}
    for nodes in (61, 64):
        N, E, M = nm.dims(f"node={nodes} edge=512 model=16")

        def layer(x, source, to, N=N, M=M):
            messages = nm.tanh(nm.gather(x, source, N))
            y = nm.scatter_add(messages, to, N)
            loss = nm.sum(nm.square(y))
            return loss, nm.sum(nm.square(nm.grad(loss, x)))

        edges = nm.spec([E], "int32")
        program = nm.trace(layer, x=nm.spec([N, M]), source=edges, to=edges)
        totals[nodes] = nm.plan(program, ALL, "edge:all, node:all").total_wire_bytes()
    assert totals[61] <= totals[64] <= 1.1 * totals[61]


@pytest.mark.parametrize("send", ["rows", "table"])
@pytest.mark.parametrize("send_gradient", ["rows", "table"])
def test_a_word_overrides_the_price(send, send_gradient):
    program = trace(256, 64, send=send, send_gradient=send_gradient)
    plan = nm.plan(program, ALL, "batch:all, user:all")
    forward = {"rows": [("AllGather", 64), ("ReduceScatter", 1024)], "table": [("AllGather", 4096)]}
    ids = [] if send == "rows" else [("AllGather", 64)]  # they are gathered already
    backward = {"rows": [*ids, ("AllGather", 1024)], "table": [("ReduceScatter", 4096)]}
    assert sorted(sent(plan)) == sorted(forward[send] + backward[send_gradient])
    arrays = {"ids": np.arange(64, dtype=np.int32) * 3 % 256, "target": uniform(2, 64, 16)}
    assert_sharded_same(program, {}, arrays, "batch:all, user:all", mesh=ALL)


def test_an_unknown_word_is_refused():
    with pytest.raises(nm.NamedMeshError, match="there is no thing that gather sends 'row'"):
        trace(256, 64, send="row")


def test_a_bag_is_added_up_before_it_is_sent():
    plan = nm.plan(trace(1_000_000, 512, bag=8), ALL, "batch:all, user:all")
    rows = 512 * 16
    assert sent(plan) == [("AllGather", 4096), ("ReduceScatter", rows), ("AllGather", rows)]


@pytest.mark.parametrize("layout", ["bag:data, user:model", "bag:model, batch:data"])
def test_bags_whose_size_does_not_divide(layout):
    """Padding of a bag has no row: its gradient is not added to the first one."""
    program = trace(37, 16, bag=3, send_gradient="table")
    ids = np.random.default_rng(0).integers(-1, 38, (16, 3)).astype(np.int32)
    arrays = {"ids": ids, "target": uniform(2, 16, 16)}
    assert_sharded_same(program, {}, arrays, layout, mesh=TWO)


def test_a_table_at_rest_is_not_gathered_for_a_lookup():
    plan = nm.plan(trace(100_000, 64), ALL, "batch:all", params="user:all")
    assert sent(plan) == [("AllGather", 64), ("ReduceScatter", 1024), ("AllGather", 1024)]


def test_tied_embeddings_share_one_sum():
    """The output layer's gradient is added up anyway: the lookup's own part goes with it."""
    V, B, M = nm.dims("vocab=4096 batch=64 model=16")

    def step(ids):
        table = nm.param("table", [V, M], nm.uniform_init(1.0))
        logits = nm.einsum([nm.tanh(nm.gather(table, ids, V)), table], [B, V])
        return nm.grad(nm.sum(nm.logsumexp(logits, V)))

    plan = nm.plan(nm.trace(step, nm.spec([B], "int32")), ALL, "batch:all")
    assert sent(plan) == [("AllReduce", 4096 * 16)]


def test_a_table_in_a_loop_is_added_up_once_after_it():
    V, T, B, M = nm.dims("vocab=64 time=4 batch=64 model=16")

    def step(ids):
        table = nm.param("table", [V, M], nm.uniform_init(1.0))
        look_up = lambda total, ids: (total + nm.sum(nm.square(nm.gather(table, ids, V))), None)
        return nm.grad(nm.scan(look_up, 0.0, ids, over=T)[0])

    plan = nm.plan(nm.trace(step, nm.spec([T, B], "int32")), ALL, "batch:all")
    assert [(one.kind, one.elements, one.times) for one in plan.collectives] == [
        ("AllReduce", 1024, 1)
    ]


LAYOUTS = {
    "one axis": (ALL, "batch:all, user:all"),
    "two axes": (TWO, "batch:data, user:model"),
    "shared axis": (TWO, "batch:data+model, user:model"),
    "both axes": (TWO, "batch:data, user:data+model"),
    "columns too": (TWO, "batch:data, user:data, model:model"),
}


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_numbers_and_collectives_are_as_planned(layout, partitioner):
    """Strict runs beside unsharded ones: rows that divide and not, ids outside of the table."""
    users = {"gspmd": (203, 62, 3), "shardy": (203, 62, 0)}[partitioner]
    mesh, text = LAYOUTS[layout]
    program = trace(*users)
    sizes = (62, 3) if users[2] else (62,)
    ids = np.random.default_rng(0).integers(-1, 205, sizes).astype(np.int32)
    arrays = {"ids": ids, "target": uniform(2, 62, 16)}
    assert_sharded_same(program, {}, arrays, text, mesh=mesh, partitioner=partitioner)


@pytest.mark.parametrize("layout", ["batch:all, user:all", "user:all", "batch:all"])
def test_tensors_are_changed_at_indices_of_split_rows(layout):
    U, B, M = nm.dims("user=37 batch=16 model=3")

    def change(x, ids, value):
        place = x.at[U, ids]
        return {
            "add": place.add(value), "set": place.set(value), "max": place.max(value),
            "take": nm.take(x, U, ids), "one": x[U, 36],
            "gradient": nm.grad(nm.sum(nm.square(place.add(value))), {"x": x, "v": value}),
        }  # fmt: skip

    specs = {"x": nm.spec([U, M]), "ids": nm.spec([B], "int32"), "value": nm.spec([B, M])}
    ids = np.random.default_rng(0).integers(-1, 38, 16).astype(np.int32)
    arrays = {"x": uniform(1, 37, 3), "ids": ids, "value": uniform(2, 16, 3)}
    program = nm.trace(change, **specs)
    step = nm.compile(program, mesh=ALL, layout=layout, strict=True)
    _, results = step(None, **arrays)
    _, wanted = program.evaluate({}, **arrays)
    for name in ("add", "set", "max", "take", "one"):
        np.testing.assert_allclose(np.asarray(results[name]), wanted[name], rtol=1e-5)
    for name in "xv":
        np.testing.assert_allclose(
            np.asarray(results["gradient"][name]), wanted["gradient"][name], rtol=1e-5
        )


def test_a_large_tensor_that_keeps_a_mapped_dimension_whole_is_told():
    """The subtraction of an update was split, and so nothing was told of the table itself."""
    B, U, M = nm.dims("batch=512 user=100000 model=16")

    def step(x):
        w = nm.param("w", [U, M], nm.uniform_init(1.0))
        y = nm.einsum([x, w], [B, U])
        nm.assign(w, w - nm.grad(nm.sum(nm.square(y)), w))

    program = nm.trace(step, nm.spec([B, M]))
    with pytest.warns(UserWarning, match=r"w keeps dimension user whole.* 6\.1 MiB on every"):
        plan = nm.plan(program, ALL, "batch:all, user:all")
    assert plan.shardings[program.variables["w"].tensor].mapping == {}


def test_what_the_program_replicates_is_not_told():
    B, U, M = nm.dims("batch=512 user=100000 model=16")

    def step(x):
        w = nm.replicate(nm.param("w", [U, M], nm.uniform_init(1.0)), U)
        return nm.sum(nm.einsum([x, w], [B, U])), nm.sum(nm.reshard(x, B))

    assert not nm.plan(nm.trace(step, nm.spec([B, M])), ALL, "batch:all, user:all").warnings


def test_columns_at_rest_take_no_axis_from_the_batch():
    """The whole stream of a model stayed whole along its batch, and split into columns."""
    mesh, layout = nm.Mesh(data=2, tensor=4), "batch:data, user:tensor"
    plan = nm.plan(trace(1000, 64), mesh, layout, params="model:data")
    assert place_of(plan) == {"user": ("tensor",), "model": ("data",)}
    found = plan.program.outputs[1]
    assert plan.shardings[found].mapping == {"batch": ("data",)}
    assert sent(plan)[:2] == [("AllGather", 250 * 16), ("AllReduce", 32 * 16)]
    arrays = {"ids": np.arange(64, dtype=np.int32), "target": uniform(0, 64, 16)}
    assert_sharded_same(plan.program, {}, arrays, layout, mesh=mesh, params="model:data")


POOLS = {
    "einsum": lambda rows, w, K: nm.einsum([rows, w], over=K),
    "product": lambda rows, w, K: nm.sum(rows * w, K),
    "softmax": lambda rows, w, K: nm.sum(rows * nm.softmax(w, K), K),
    "masked": lambda rows, w, K: nm.sum(rows, K, where=w > 0.0),
    "masked mean": lambda rows, w, K: nm.mean(rows, K, where=w > 0.0),
}


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("pool", POOLS)
def test_weighted_and_masked_bags_are_pooled_before_they_are_sent(pool, rows):
    """Every row was sent, in the lookup and in the gradient: those of a bag are sent as one."""
    U, B, K, M = nm.dims("user=1003 batch=16 bag=5 model=8")

    def step(ids, w, target):
        table = nm.param("table", [U, M], nm.uniform_init(1.0), rows=U if rows else None)
        found = POOLS[pool](nm.gather(table, ids, U), w, K)
        loss = nm.sum(nm.square(found - target))
        nm.layers.Adagrad(0.1).apply(nm.grad(loss))
        return {"loss": loss}

    specs = {"ids": nm.spec([B, K], "int32"), "w": nm.spec([B, K]), "target": nm.spec([B, M])}
    rng = np.random.default_rng(0)
    arrays = {
        "ids": rng.integers(0, 1003, (16, 5)).astype(np.int32),
        "w": np.r_[np.ones((1, 16)), rng.normal(size=(4, 16))].T.astype(np.float32),
        "target": uniform(0, 16, 8),
    }
    compiled = assert_sharded_same(step, specs, arrays, "batch:all, user:all", mesh=ALL)
    bags = ("ReduceScatter", 16 * 8), ("AllGather", 16 * 8)
    assert sent(compiled.plan) == [("AllGather", 16 * 5), ("AllGather", 16 * 5), *bags]


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("pool", POOLS)
def test_bags_of_bfloat16_rows_that_are_pooled_in_float32_are_sent_as_one(pool, rows):
    """Every row was sent, and one for each in the gradient: the cast kept sums from being late."""
    U, B, K, M = nm.dims("user=1003 batch=16 bag=5 model=8")

    def step(ids, w, target):
        table = nm.param("table", [U, M], nm.uniform_init(1.0), rows=U if rows else None)
        found = nm.cast(nm.gather(nm.cast(table, "bfloat16"), ids, U), "float32")
        loss = nm.sum(nm.square(POOLS[pool](found, w, K) - target))
        nm.layers.Adagrad(0.1).apply(nm.grad(loss))
        return {"loss": loss}

    specs = {"ids": nm.spec([B, K], "int32"), "w": nm.spec([B, K]), "target": nm.spec([B, M])}
    program = nm.trace(step, **specs)
    plan = nm.plan(program, ALL, "batch:all, user:all")
    bags = ("ReduceScatter", 16 * 8), ("AllGather", 16 * 8)
    assert sent(plan)[-2:] == [*bags], plan.communication
    if pool != "masked":
        return
    rng = np.random.default_rng(0)
    ids, w = rng.integers(0, 1003, (16, 5)).astype(np.int32), uniform(1, 16, 5)
    arrays = {"ids": ids, "w": w, "target": uniform(0, 16, 8)}
    state = {name: np.asarray(one) for name, one in program.initial_state(0).items()}
    wanted, result = program.evaluate(state, **arrays)
    compiled = nm.Step(plan, strict=True)
    found, other = compiled(compiled.place(state), **arrays)
    np.testing.assert_allclose(other["loss"], result["loss"], rtol=1e-2)
    np.testing.assert_allclose(found["table"], wanted["table"], atol=0.02)


@pytest.mark.parametrize("batch", [8, 64])
def test_a_gradient_is_gathered_over_the_axes_alone_that_another_operand_needs(batch):
    """It was gathered over all of its dimension's axes, or the weights in its place."""
    U, B, M, H = nm.dims(f"user=1000 batch={batch} model=16 hidden=32")

    def step(ids, target):
        table = nm.param("table", [U, M], nm.uniform_init(1.0))
        w = nm.param("w", [M, H], nm.normal_init(0.1))
        y = nm.einsum([nm.gather(table, ids, U), w], [B, H])
        loss = nm.sum(nm.square(y - target))
        Sgd(0.1).apply(nm.grad(loss))
        return {"loss": loss}

    specs = {"ids": nm.spec([B], "int32"), "target": nm.spec([B, H])}
    ids = np.random.default_rng(0).integers(0, 1000, batch).astype(np.int32)
    arrays = {"ids": ids, "target": uniform(0, batch, 32)}
    layout, mesh = "batch:data+model, user:data, model:model", nm.Mesh(data=4, model=2)
    compiled = assert_sharded_same(step, specs, arrays, layout, mesh=mesh)
    backward = [one for one in compiled.plan.collectives if one.phase == "backward"]
    assert [(one.kind, one.axes, one.elements) for one in backward] == [
        ("AllGather", ("model",), batch * 32 // 4),
        ("AllGather", ("data",), batch * 16 // 2),
        ("AllReduce", ("data",), 16 * 32 // 2),
    ]


def test_bags_that_a_cast_makes_no_fewer_bytes_are_sent_as_rows():
    U, B, K, M = nm.dims("user=1000 batch=16 bag=2 model=8")

    def pool(ids):
        table = nm.param("table", [U, M], nm.uniform_init(1.0))
        found = nm.gather(nm.cast(table, "bfloat16"), ids, U)
        return nm.sum(nm.cast(found, "float32"), K)

    plan = nm.plan(nm.trace(pool, nm.spec([B, K], "int32")), ALL, "batch:all, user:all")
    assert plan.collectives[-1].dtype == "bfloat16" and sent(plan)[-1] == ("ReduceScatter", 256)


@pytest.mark.parametrize("optimizer", [Sgd(0.1), Adam(0.1), Adagrad(0.1)])
@pytest.mark.parametrize(
    ("mesh", "layout", "other"),
    [
        (ALL, "batch:all, user:all", "ReduceScatter of d_table (5.3 MiB on the wire)"),
        (TWO, "batch:data, user:model", "AllReduce of d_table (1.5 MiB on the wire)"),
    ],
)
def test_what_an_update_by_rows_gathers_is_a_decision(optimizer, mesh, layout, other):
    """It was not in the decisions."""
    U, B, M = nm.dims("user=100000 batch=512 model=16")

    def step(ids, target):
        found = nm.gather(nm.param("table", [U, M], rows=U), ids, U)
        optimizer.apply(nm.grad(nm.mean(nm.square(found - target))))

    program = nm.trace(step, ids=nm.spec([B], "int32"), target=nm.spec([B, M]))
    plan = nm.plan(program, mesh, layout)
    (text,) = (one for one in plan.decisions if "the update of table sends" in one)
    sent = sum(one.total_wire_bytes for one in plan.collectives if one.phase == "update")
    assert f"({human(sent)} on the wire); it could send {other}, without rows=" in text
    assert not any("the update of" in one for one in nm.plan(program, nm.Mesh(all=1)).decisions)


THREE = nm.Mesh(x=2, y=2, z=2)
# By layout: how many devices share an id, and how many parts of the batch there are.
SHARED = {
    "batch:x+z+y, user:y": (2, 8),
    "batch:y+x+z, user:y": (2, 8),
    "batch:x+y+z, user:z+y": (4, 8),
    "batch:y+x, user:y+z": (2, 4),
}


@pytest.mark.parametrize("layout", SHARED)
def test_ids_move_along_the_axes_of_the_table_alone(layout):
    """They were gathered along all axes of the batch, and every device looked up all of it."""
    shared, parts = SHARED[layout]
    plan = nm.plan(trace(8192, 512), THREE, layout)
    ids, *_ = plan.collectives
    assert (ids.kind, ids.tensor, ids.devices) == ("AllGather", "ids", shared)
    assert ids.elements == 512 * shared // parts
    (lookup,) = (op for op in plan.program.ops if op.kind == "gather")
    made = plan.placements.natural[lookup.output]
    assert THREE.size(made.axes("batch")) == parts // shared
    # The rest of the ids moves for the gradient, which devices with the same rows need whole.
    sent = sum(one.total_wire_bytes for one in plan.collectives if one.tensor == "ids")
    assert sent == 4 * 512 * (parts - 1) // parts


def test_gradients_move_along_the_axes_of_a_table_that_is_not_large():
    """Each device made the gradient of the whole table, and all of it was sent."""
    plan = nm.plan(trace(4096, 4096, send="rows"), THREE, "batch:x+z+y, user:y")
    moves = [(one.kind, one.axes, one.elements) for one in plan.collectives if one.elements > 1]
    rows = 4096 // 4 * 16
    assert moves == [
        ("AllGather", ("y",), 4096 // 4),
        ("ReduceScatter", ("y",), rows),
        ("AllGather", ("y",), rows),
        ("AllReduce", ("x", "z"), 4096 // 2 * 16),
    ]


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize(
    ("layout", "sizes"),
    [("batch:x+z+y, user:y", (203, 64, 3)), ("batch:x+y+z, user:z+y", (1024, 61, 0))],
)
def test_lookups_of_a_batch_on_more_axes_than_the_table(layout, sizes, partitioner):
    users, batch, bag = sizes
    shape = (batch, bag) if bag else (batch,)
    ids = np.random.default_rng(0).integers(-1, users + 2, shape).astype(np.int32)
    arrays = {"ids": ids, "target": uniform(2, batch, 16)}
    options = {"mesh": THREE, "partitioner": partitioner}
    assert_sharded_same(trace(*sizes), {}, arrays, layout, **options)


def test_two_tables_on_two_axes_of_the_batch():
    """Axes of a batch come in one order, of which each table has another one."""
    U, J, B, M = nm.dims("user=512 item=256 batch=64 model=16")

    def step(users, items):
        found = nm.gather(nm.param("of_users", [U, M], nm.uniform_init(1.0)), users, U)
        found *= nm.gather(nm.param("of_items", [J, M], nm.uniform_init(1.0)), items, J)
        loss = nm.sum(nm.square(found))
        Sgd(0.1).apply(nm.grad(loss))
        return {"loss": loss}

    specs = {"users": nm.spec([B], "int32"), "items": nm.spec([B], "int32")}
    arrays = {name: np.arange(64, dtype=np.int32) * 7 % 300 for name in specs}
    layout = "batch:x+y+z, user:y, item:z"
    plan = assert_sharded_same(step, specs, arrays, layout, mesh=THREE).plan
    lookups = [op for op in plan.program.ops if op.kind == "gather"]
    natural = [plan.placements.natural[op.output].axes("batch") for op in lookups]
    assert natural == [("x",), ("x", "y")]


def test_a_device_holds_the_rows_that_it_looks_up_and_no_more():
    """The lookup of the whole batch was held on every device."""
    program = trace(512, 4096, width=64, send="rows", send_gradient="table")
    step = nm.compile(program, mesh=THREE, layout="batch:x+z+y, user:y", strict=True)
    assert step.report.peak_bytes < 4096 * 64 * 4
