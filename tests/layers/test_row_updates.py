"""Tables of which optimizers update only the rows that a step looked up."""

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.layers import Adafactor, Adagrad, Adam, Sgd
from tests.checks import uniform

U, B, K, M = nm.dims("user=43 batch=16 bag=3 model=4")
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


def trace(optimizer, rows: nm.Dimension | None = U, bags=False):
    """Two lookups in a table, and a dense weight beside it."""

    def step(ids, others, target):
        table = nm.param("table", [U, M], nm.uniform_init(1.0), rows=rows)
        found = nm.gather(table, ids, U)
        found = nm.sum(found, K) if bags else found
        found = nm.tanh(found) + nm.gather(table, others, U)
        loss = nm.mean(nm.square(found * nm.param("scale", [M]) - target))
        return {"loss": loss, **optimizer.apply(nm.grad(loss))}

    ids = nm.spec([B, K] if bags else [B], "int32")
    return nm.trace(step, ids=ids, others=nm.spec([B], "int32"), target=nm.spec([B, M]))


def batches(count, bags=False, all_rows=False):
    random = np.random.default_rng(0)
    sizes = (16, 3) if bags else (16,)
    for _ in range(count):
        ids = random.integers(-1, 44, sizes).astype(np.int32)
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
    dense, losses = train(trace(OPTIMIZERS[name], rows=None))
    state, found = train(trace(OPTIMIZERS[name]))
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    assert state.keys() == dense.keys()
    for key in dense:
        np.testing.assert_allclose(state[key], dense[key], rtol=1e-4, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_lazy_forms_are_dense_if_every_row_is_looked_up(name):
    options = {"bags": True, "all_rows": True}
    dense, _ = train(trace(OPTIMIZERS[name], rows=None, bags=True), **options)
    state, _ = train(trace(OPTIMIZERS[name], bags=True), **options)
    for key in dense:
        np.testing.assert_allclose(state[key], dense[key], rtol=1e-4, atol=1e-5, err_msg=key)


def test_lazy_adam_leaves_other_rows_and_their_moments():
    program = trace(OPTIMIZERS["adam"])
    first, second = (train(program, count)[0] for count in (1, 2))
    *_, batch = batches(2)
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


@pytest.mark.parametrize("optimizer", [Sgd(0.1), Adagrad(0.1, row_wise=U)])
def test_ids_and_rows_alone_are_sent(optimizer):
    def step(ids, target):
        table = nm.param("table", [U, M], rows=U)
        loss = nm.sum(nm.square(nm.gather(table, ids, U) - target))
        return optimizer.apply(nm.grad(loss))

    program = nm.trace(step, ids=nm.spec([B], "int32"), target=nm.spec([B, M]))
    plan = nm.plan(program, ALL, "batch:all, user:all")
    sent = [(one.kind, one.elements) for one in plan.collectives]
    assert sent == [("AllGather", 16), ("ReduceScatter", 64), ("AllGather", 64)]


def test_a_gradient_as_rows_and_indices():
    def rows(table, ids, others):
        loss = nm.sum(nm.square(nm.gather(table, ids, U))) / 2.0 + nm.sum(table[U, others])
        gradient = nm.grad(loss, table)
        indices, values = nm.row_gradient(gradient * 3.0, U)
        return {"indices": indices, "values": values, "dense": gradient * 3.0}

    arrays = {
        "table": ([U, M], uniform(1, 43, 4)),
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

    with pytest.raises(nm.NamedMeshError, match="is not made of rows along user=43"):
        nm.trace(tied, nm.spec([B], "int32"))
    with pytest.raises(nm.NamedMeshError, match="has rows=user, which Adafactor does not update"):
        trace(Adafactor())
    with pytest.raises(nm.NamedMeshError, match="rows: whole='batch' is not one of its dimensions"):
        trace(Sgd(0.1), rows=B)


def test_rows_are_updated_by_a_function_of_a_user():
    def step(table, sums, ids, values):
        change = lambda row, total, value: [row - value / (total + 1.0), total + value]
        return nm.update_rows(change, [table, sums], ids, U, values)

    specs = {"table": nm.spec([M, U]), "sums": nm.spec([U, M]), "ids": nm.spec([B], "int32")}
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
