"""Tables of which optimizers update only the rows that a step looked up."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import namedmesh as nm
from namedmesh.layers import Adafactor, Adagrad, Adam, Sgd
from tests.checks import uniform

U, B, K, M = nm.dims("user=403 batch=16 bag=3 model=4")
E = nm.Dimension("expert", 2)
FEW, SIX = nm.dims("user=43")[0], nm.dims("user=6")[0]  # at most four rows for each lookup
ALL, TWO = nm.Mesh(all=8), nm.Mesh(data=2, model=4)
OPTIMIZERS = {
    "sgd": Sgd(0.1),
    "sgd, clipped": Sgd(0.1, clip_norm=0.5),
    "momentum": Sgd(0.1, momentum=0.9),
    "adagrad": Adagrad(0.1),
    "adagrad, row-wise": Adagrad(0.1, row_wise=U),
    "adam": Adam(0.1, weight_decay=0.1),
}
pytestmark = pytest.mark.filterwarnings("ignore:.*padded to")


def trace(optimizer, dense=False, bags=False, users=U, rows=None):
    """Two lookups in a table, and a dense weight beside it."""

    def step(ids, others, target):
        by = None if dense else rows or users
        table = nm.param("table", [users, M], nm.uniform_init(1.0), rows=by)
        found = nm.gather(table, ids, users)
        found = nm.sum(found, K) if bags else found
        found = nm.tanh(found) + nm.gather(table, others, users)
        loss = nm.mean(nm.square(found * nm.param("scale", [M]) - target))
        return {"loss": loss, **optimizer.apply(nm.grad(loss))}

    ids = nm.spec([B, K] if bags else [B], "int32")
    return nm.trace(step, ids=ids, others=nm.spec([B], "int32"), target=nm.spec([B, M]))


def batches(count, bags=False, all_rows=False, users=U):
    random = np.random.default_rng(0)
    sizes = (16, 3) if bags else (16,)
    for _ in range(count):
        ids = random.integers(-1, users.size + 1, sizes).astype(np.int32)
        if all_rows:
            ids = np.arange(48, dtype=np.int32).reshape(16, 3) % 43
        others = random.integers(0, 5, 16).astype(np.int32)  # most of them several times
        yield {"ids": ids, "others": others, "target": random.normal(size=(16, 4)).astype("f4")}


def train(program, count=3, **options):
    """The state and the losses of some steps, unsharded."""
    state, losses = program.initial_state(0), []
    for batch in batches(count, **options):
        state, results = program.evaluate(state, **batch)
        losses.append(results["loss"])
    return state, losses


@pytest.mark.parametrize("name", ["sgd", "sgd, clipped", "adagrad", "adagrad, row-wise"])
def test_rows_are_trained_as_the_whole_table(name):
    """Rows that are not looked up do not change in the dense form either."""
    dense, losses = train(trace(OPTIMIZERS[name], dense=True))
    state, found = train(trace(OPTIMIZERS[name]))
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    assert state.keys() == dense.keys()
    for key in dense:
        np.testing.assert_allclose(state[key], dense[key], rtol=1e-4, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_lazy_forms_are_dense_if_every_row_is_looked_up(name):
    options = {"bags": True, "all_rows": True}
    dense, _ = train(trace(OPTIMIZERS[name], dense=True, bags=True, users=FEW), **options)
    state, _ = train(trace(OPTIMIZERS[name], bags=True, users=FEW), **options)
    for key in dense:
        np.testing.assert_allclose(state[key], dense[key], rtol=1e-4, atol=1e-5, err_msg=key)


def test_lazy_adam_leaves_other_rows_and_their_moments():
    program = trace(OPTIMIZERS["adam"], users=FEW)
    first, second = (train(program, count, users=FEW)[0] for count in (1, 2))
    *_, batch = batches(2, users=FEW)
    looked_up = {*batch["ids"].tolist(), *batch["others"].tolist()}
    others = [row for row in range(43) if row not in looked_up]
    assert 5 < len(others) < 40
    for key in ("table", "adam/table/first", "adam/table/second"):
        changed = np.any(np.asarray(first[key]) != np.asarray(second[key]), 1)
        assert not changed[others].any()
        assert changed[[row for row in looked_up if 0 <= row < 43]].all()


LAYOUTS = {
    "one axis": (ALL, "batch:all, user:all", None),
    "two axes": (TWO, "batch:data, user:model", None),
    "columns": (TWO, "batch:data, model:model", None),
    "whole": (ALL, "batch:all", None),
    "at rest": (ALL, "batch:all", "user:all"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["sgd", "adagrad, row-wise", "adam"])
def test_split_tables_are_trained_alike(name, layout):
    mesh, text, params = LAYOUTS[layout]
    program = trace(OPTIMIZERS[name], bags=True)
    plan = nm.plan(program, mesh, text, params)
    assert all(one.elements <= 16 * 3 * 8 for one in plan.collectives)  # never the table
    step = nm.Step(plan, strict=True)
    state = step.init(0)
    wanted, losses = train(program, 2, bags=True)
    for batch, loss in zip(batches(2, bags=True), losses, strict=True):
        state, results = step(state, **batch)
        np.testing.assert_allclose(np.asarray(results["loss"]), loss, rtol=1e-5)
    for key, value in wanted.items():
        np.testing.assert_allclose(np.asarray(state[key]), value, rtol=1e-4, atol=1e-5)


def trace_lookup(optimizer, users=U, dtype="int32", dims=(B,)):
    """One lookup in a table, whose rows come near to targets."""

    def step(ids, target):
        table = nm.param("table", [users, M], nm.uniform_init(1.0), rows=users)
        loss = nm.sum(nm.square(nm.gather(table, ids, users) - target))
        return {"loss": loss, **optimizer.apply(nm.grad(loss))}

    return nm.trace(step, ids=nm.spec(dims, dtype), target=nm.spec([*dims, M]))


@pytest.mark.parametrize("optimizer", [Sgd(0.1), Adagrad(0.1, row_wise=U)])
def test_ids_and_rows_alone_are_sent(optimizer):
    plan = nm.plan(trace_lookup(optimizer), ALL, "batch:all, user:all")
    sent = [(one.kind, one.elements) for one in plan.collectives if one.elements > 1]
    assert sent == [("AllGather", 16), ("ReduceScatter", 64), ("AllGather", 64)]


@pytest.mark.parametrize("make", [Sgd, lambda rate: Adagrad(rate, row_wise=SIX)])
def test_of_a_small_table_gradients_are_added_up(make):
    program = trace_lookup(make(0.1), SIX)
    for mesh, layout, kind, size in (
        (ALL, "batch:all, user:all", "ReduceScatter", 32),
        (TWO, "batch:data, user:model", "AllReduce", 8),
    ):
        sent = [(one.kind, one.elements) for one in nm.plan(program, mesh, layout).collectives]
        assert sent == [("AllGather", 32), ("AllReduce", 1), (kind, size)]


@pytest.mark.parametrize("name, rows", [("sgd", 8000), ("sgd", 8001), ("adam", 8001)])
def test_no_table_is_copied(name, rows):
    """Neither to update it, nor to pad it where its rows do not divide."""
    users = nm.Dimension("user", rows)
    step = nm.compile(
        trace_lookup(OPTIMIZERS[name], users), mesh=ALL, layout="batch:all, user:all", strict=True
    )
    assert step.report.temporary_bytes < 4 * 1000 * M.size
    assert step.report.aliased_bytes > 4 * 1000 * M.size
    wanted = trace_lookup(OPTIMIZERS[name], users)
    ids = np.array([rows, 8007, -1, rows - 1, rows - 1, 7, 1001, 1000, *range(8)], np.int32)
    batch = {"ids": ids, "target": uniform(1, 16, 4)}
    state = step.init(0)
    dense, results = wanted.evaluate(wanted.initial_state(0), **batch)
    for _ in range(2):
        state, found = step(state, **batch)
        np.testing.assert_allclose(np.asarray(found["loss"]), results["loss"], rtol=1e-5)
        for key, value in dense.items():
            np.testing.assert_allclose(np.asarray(state[key]), value, rtol=1e-5, atol=1e-6)
        dense, results = wanted.evaluate(dense, **batch)


def test_a_table_read_in_a_loop_is_not_padded_there():
    """A lookup for each token, of a vocabulary that does not divide."""
    T, V = nm.dims("time=5 vocab=8001")

    def step(ids):
        table = nm.param("table", [V, M], nm.uniform_init(1.0))
        add = lambda total, i: (total + nm.gather(table, i, V), None)
        return nm.scan(add, nm.zeros([B, M]), ids, over=T)[0]

    program = nm.trace(step, ids=nm.spec([T, B], "int32"))
    compiled = nm.compile(program, mesh=ALL, layout="vocab:all", strict=True)
    assert compiled.report.temporary_bytes < 4 * 1000 * M.size
    ids = np.random.default_rng(0).integers(0, 8001, (5, 16)).astype(np.int32)
    state = compiled.init(0)
    _, found = compiled(state, ids=ids)
    table = np.asarray(state["table"])
    np.testing.assert_allclose(np.asarray(found), table[ids].sum(0), rtol=1e-5)


def trace_microbatches(optimizer, rows, dtype="float32"):
    """Lookups in a loop over microbatches, whose losses are added up."""
    T = nm.Dimension("time", 3)

    def step(ids, target):
        def add_loss(total, batch):
            table = nm.param("table", [U, M], nm.uniform_init(1.0), rows=rows)
            table = nm.cast(table, dtype)
            found = nm.cast(nm.gather(table, batch[0], U), "float32") * nm.param("scale", [M])
            found = found + nm.cast(nm.gather(table, batch[0] + 1, U), "float32")
            return total + nm.mean(nm.square(found - batch[1])), None

        loss, _ = nm.scan(add_loss, nm.zeros([]), (ids, target), over=T)
        return {"loss": loss, **optimizer.apply(nm.grad(loss))}

    return nm.trace(step, ids=nm.spec([T, B], "int32"), target=nm.spec([T, B, M]))


@pytest.mark.parametrize("name, dtype", [("adagrad, row-wise", "float32"), ("sgd", "bfloat16")])
def test_rows_looked_up_in_a_loop(name, dtype):
    program = trace_microbatches(OPTIMIZERS[name], U, dtype)
    dense = trace_microbatches(OPTIMIZERS[name], None, dtype)
    random = np.random.default_rng(0)
    ids = random.integers(0, 404, (3, 16)).astype(np.int32)
    batch = {"ids": ids, "target": random.normal(size=(3, 16, 4)).astype("f4")}
    wanted, results = dense.evaluate(dense.initial_state(0), **batch)
    found, _ = program.evaluate(program.initial_state(0), **batch)
    plan = nm.plan(program, ALL, "batch:all, user:all")
    assert all(one.elements <= 6 * 16 * 4 for one in plan.collectives)  # never the table
    step = nm.Step(plan, strict=True)
    assert step.report.aliased_bytes > 4 * 51 * M.size
    state, again = step(step.init(0), **batch)
    np.testing.assert_allclose(np.asarray(again["loss"]), results["loss"], rtol=1e-5)
    near = 1e-5 if dtype == "float32" else 1e-3
    for key, value in wanted.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=near)
        np.testing.assert_allclose(np.asarray(state[key]), value, rtol=1e-4, atol=near)


@pytest.mark.parametrize("dtype", ["int8", "uint32", "int64"])
def test_indices_of_every_dtype(dtype):
    ids = np.array([5, 42, 5, 0, 41, 100, 7, 42, 1, 2, 3, 4, 5, 6, 7, 120], dtype)
    target, states = uniform(1, 16, 4), []
    for one in ("int32", dtype):
        program = trace_lookup(OPTIMIZERS["adam"], FEW, one)
        batch = {"ids": ids.astype(one), "target": target}
        states.append(program.evaluate(program.initial_state(0), **batch)[0])
        if one not in ("int32", "int64"):  # devices compute in 32 bits
            step = nm.compile(program, mesh=ALL, layout="batch:all, user:all", strict=True)
            states.append(step(step.init(0), **batch)[0])
    for state in states[1:]:
        for key, value in states[0].items():
            np.testing.assert_allclose(np.asarray(state[key]), value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [2, 3, 64, 1000])
def test_rows_of_equal_indices_are_added_up(count):
    index, many = nm.Dimension("index", count), nm.Dimension("user", 2**30)
    random = np.random.default_rng(count)
    rows = random.normal(size=(count, 4)).astype("f4")

    def step(ids, rows):
        gradient = nm.scatter_add(rows, ids, many)
        return nm.row_gradient(gradient, many)

    program = nm.trace(step, ids=nm.spec([index], "int32"), rows=nm.spec([index, M]))
    compiled = nm.compile(program, mesh=nm.Mesh(all=1), layout="", strict=True)
    for ids in (
        random.integers(-2, 2**30 + 2, count),
        random.integers(0, max(count // 3, 1), count) << 20,  # equal but for their highest bits
        np.full(count, 7),
        np.full(count, -1),
    ):
        ids = ids.astype(np.int32)
        inside = (ids >= 0) & (ids < 2**30)
        wanted = {i: rows[ids == i].sum(0) for i in ids[inside]}
        _, found = program.evaluate({}, ids=ids, rows=rows)
        _, again = compiled(None, ids=ids, rows=rows)
        for indices, sums in (found, again):
            indices, sums = np.asarray(indices), np.asarray(sums)
            known = indices[indices >= 0]
            assert sorted(known.tolist()) == sorted(wanted)
            for i, total in zip(indices, sums, strict=True):
                np.testing.assert_allclose(total, wanted.get(i, np.zeros(4)), rtol=1e-4, atol=1e-5)


def test_a_gradient_as_rows_and_indices():
    def rows(table, ids, others):
        loss = nm.sum(nm.square(nm.gather(table, ids, FEW))) / 2.0 + nm.sum(table[FEW, others])
        gradient = nm.grad(loss, table)
        indices, values = nm.row_gradient(gradient * 3.0, FEW)
        return {"indices": indices, "values": values, "dense": gradient * 3.0}

    arrays = {
        "table": ([FEW, M], uniform(1, 43, 4)),
        "ids": ([B], np.arange(16, dtype=np.int32) * 5 % 45),
        "others": ([], 7),
    }
    found = nm.evaluate(rows, **arrays)
    indices = found["indices"]
    known = indices[indices >= 0]
    assert len({*known.tolist()}) == len(known) and len(indices) == 17
    total = np.zeros((43, 4), np.float32)
    total[known] = found["values"][indices >= 0]
    np.testing.assert_allclose(total, found["dense"], rtol=1e-6)
    assert not found["values"][indices < 0].any()


def test_what_has_no_rows_is_refused():
    def tied(ids):
        table = nm.param("table", [U, M], rows=U)
        logits = nm.einsum([nm.gather(table, ids, U), table], [B, U])
        return Sgd(0.1).apply(nm.grad(nm.sum(logits)))

    with pytest.raises(nm.NamedMeshError, match="rows along user=403: einsum reads the table") as e:
        nm.trace(tied, nm.spec([B], "int32"))
    assert e.value.source.code.startswith("logits = ")
    with pytest.raises(nm.NamedMeshError, match="has rows=user, which Adafactor does not update"):
        trace(Adafactor())
    with pytest.raises(nm.NamedMeshError, match="rows='batch' is not one of its dimensions"):
        trace(Sgd(0.1), rows=B)


def test_rows_are_updated_by_a_function_of_a_user():
    def step(table, sums, ids, values):
        change = lambda row, total, value: [row - value / (total + 1.0), total + value]
        return nm.update_rows(change, [table, sums], ids, FEW, values)

    specs = {"table": nm.spec([M, FEW]), "sums": nm.spec([FEW, M]), "ids": nm.spec([B], "int32")}
    program = nm.trace(step, **specs, values=nm.spec([B, M]))
    ids = np.random.default_rng(0).permutation(45)[:16].astype(np.int32) - 1
    table, sums, values = uniform(1, 4, 43), np.abs(uniform(2, 43, 4)), uniform(3, 16, 4)
    arrays = {"table": table, "sums": sums, "ids": ids, "values": values}
    wanted, total = table.copy(), sums.copy()
    for i, value in zip(ids, values, strict=True):
        if 0 <= i < 43:
            wanted[:, i] -= value / (sums[i] + 1.0)
            total[i] += value
    for mesh, layout in ((ALL, "user:all"), (TWO, "user:data, model:model")):
        _, results = nm.compile(program, mesh=mesh, layout=layout, strict=True)(None, **arrays)
        for one, want in zip(results, (wanted, total), strict=True):
            np.testing.assert_allclose(np.asarray(one), want, rtol=1e-5)


@pytest.mark.parametrize("optimizer", ["plain", "rows"])
def test_a_lookup_and_its_update_compile_to_no_more_kernels_than_plain_jax(optimizer):
    users, width, rate = 100, 4, 0.1

    def by_jax(table, ids, target):
        look_up = lambda table: jnp.mean(jnp.square(table[ids] - target))
        loss, gradient = jax.value_and_grad(look_up)(table)
        return table - rate * gradient, loss

    def by_name(ids, target):  # which counts its steps besides
        R = nm.Dimension("user", users)
        table = nm.param("table", [R, M], rows=R if optimizer == "rows" else None)
        loss = nm.mean(nm.square(nm.gather(table, ids, R) - target))
        Sgd(rate).apply(nm.grad(loss))
        return loss

    specs = nm.spec([B], "int32"), nm.spec([B, M])
    ours = nm.compile(by_name, *specs, mesh=nm.Mesh(all=1), strict=True).text
    types = ((users, width), "float32"), ((16,), "int32"), ((16, width), "float32")
    arguments = [jax.ShapeDtypeStruct(*one) for one in types]
    plain = jax.jit(by_jax, donate_argnums=0).lower(*arguments).compile().as_text()
    count = lambda text: text.partition("ENTRY")[2].count(" fusion(")
    assert 0 < count(ours) <= count(plain)


@pytest.mark.parametrize(
    "dims, options, cause",
    [
        ([B, E], {}, "ids and table share expert=2"),
        ([B], {"send_gradient": "table"}, "send_gradient='table' sends all of it"),
    ],
)
def test_the_reason_is_named_why_a_lookup_has_no_rows(dims, options, cause):
    def step(ids):
        table = nm.param("table", [*dims[1:], U, M], rows=U)
        rows = nm.gather(table, ids, U, **options)
        return Sgd(0.1).apply(nm.grad(nm.sum(rows)))

    with pytest.raises(nm.NamedMeshError, match=f"user=403: {cause}") as error:
        nm.trace(step, nm.spec(dims, "int32"))
    assert error.value.source.code.startswith("rows = nm.gather")


def test_row_wise_needs_a_parameter_that_has_it():
    with pytest.raises(
        nm.NamedMeshError, match="row_wise='expert' is not a dimension of any parameter"
    ):
        trace(Adagrad(0.1, row_wise=E))


def test_an_update_without_gradients_is_refused():
    with pytest.raises(nm.NamedMeshError, match="sgd: there are no gradients"):
        nm.trace(lambda: Sgd(0.1).apply({}))


@pytest.mark.parametrize("layout, by_row", [("", True), ("model:all", True), ("user:all", False)])
def test_a_device_that_has_all_of_a_small_table_adds_rows_to_it(layout, by_row):
    """It made zeros for the whole table's gradient and subtracted all of them."""

    def step(ids, target):
        table = nm.param("table", [M, FEW], nm.uniform_init(1.0), rows=FEW)
        loss = nm.mean(nm.square(nm.sum(nm.gather(table, ids, FEW), K) - target))
        Sgd(0.1).apply(nm.grad(loss))
        return loss

    program = nm.trace(step, ids=nm.spec([B, K], "int8"), target=nm.spec([B, M]))
    mesh = nm.Mesh(all=4 if layout else 1)
    compiled = nm.Step(nm.plan(program, mesh, layout), strict=True)
    added = re.search(r"descend_rows.\d+/TensorScatterAdd", compiled.text)
    assert (added is not None) == by_row
    random = np.random.default_rng(0)
    inputs = {
        "ids": random.integers(-2, 45, (16, 3)).astype("int8"),
        "target": random.normal(size=(16, 4)).astype("f4"),
    }
    state = program.initial_state(0)
    expected, _ = program.evaluate(state, **inputs)
    found, _ = compiled(compiled.place(state), **inputs)
    np.testing.assert_allclose(found["table"], expected["table"], rtol=1e-6, atol=1e-7)


def test_rows_that_are_updated_as_a_whole_stay_whole():
    """Each device divided by the norm of its own columns."""

    def step(table, ids):
        normalize = lambda row: row / nm.sqrt(nm.sum(nm.square(row), over=M))
        return nm.update_rows(normalize, table, ids, U)[0]

    program = nm.trace(step, nm.spec([U, M]), ids=nm.spec([B], "int32"))
    table, ids = uniform(0, 403, 4), np.arange(16, dtype=np.int32)
    mesh = nm.Mesh(x=2, y=2)
    compiled = nm.compile(program, mesh=mesh, layout="user:x, model:y", strict=True)
    expected = table.copy()
    expected[:16] /= np.linalg.norm(table[:16], axis=1, keepdims=True)
    np.testing.assert_allclose(compiled(None, table, ids=ids)[1], expected, rtol=1e-6)


def test_rows_are_not_updated_by_one_another():
    """Each device took the mean of its own rows, and of others that it does not have."""

    def step(table, ids):
        return nm.update_rows(lambda row: row - nm.mean(row, over=B), table, ids, U)[0]

    with pytest.raises(nm.NamedMeshError, match="mixes rows along batch=16") as error:
        nm.trace(step, nm.spec([U, M]), ids=nm.spec([B], "int32"))
    assert "nm.gather" in str(error.value)


def test_rows_of_a_partial_sum_are_not_updated_in_a_region():
    """The check of what is linear in a sum raised a ValueError."""
    P = nm.Dimension("piece", 8)

    def square_rows(residual, dy):
        change = nm.einsum([dy, residual], [U, M])
        return None, nm.update_rows(nm.square, change, nm.range(B), U)[0]

    function = nm.custom_vjp(lambda x, w: (nm.einsum([x, w], [P, U]), x), square_rows)

    def step(x, w):
        return nm.grad(nm.sum(nm.manual(function, x, w, over=P)), w)

    with pytest.raises(nm.NamedMeshError, match="update_rows: is not linear in a sum over"):
        nm.trace(step, nm.spec([P, M]), nm.spec([M, U]))


def test_an_update_that_returns_nothing_is_explained():
    """It was a TypeError."""
    with pytest.raises(nm.NamedMeshError, match="None of type NoneType is not a Tensor"):
        nm.trace(
            lambda table, ids: nm.update_rows(lambda _: None, table, ids, U),  # pyright: ignore
            nm.spec([U, M]),
            ids=nm.spec([B], "int32"),
        )
