import numpy as np
import pytest

import namedmesh as nm
from tests.checks import (
    MESH,
    Case,
    assert_same,
    assert_sharded_same,
    evaluated,
    expected_of,
    function_of,
    uniform,
)

B, S, M, V, T = nm.dims("batch=4 seq=6 model=8 vocab=10 token=8")


def take(table, indices):
    """Rows of a table; zeros for an index outside it."""
    inside = (indices >= 0) & (indices < len(table))
    return table[np.where(inside, indices, 0)] * inside.reshape(
        inside.shape + (1,) * (table.ndim - 1)
    )


def take_each(table, indices):
    """table: [batch, vocab], indices: [batch, seq]."""
    return np.stack(
        [take(row[:, None], index)[..., 0] for row, index in zip(table, indices, strict=True)]
    )


def put(updates, indices, size):
    """updates: [n, ...] added at indices: [n]; what lies outside is left out."""
    made = np.zeros((size, *updates.shape[1:]))
    for index, update in zip(indices, updates, strict=True):
        if 0 <= index < size:
            made[index] += update
    return made


CASES = {
    "one_hot": Case(
        lambda i: nm.one_hot(i, V),
        lambda i: (i[..., None] == np.arange(10)).astype(np.float32),
        "i",
        (),
    ),
    "one_hot_int": Case(
        lambda i: nm.one_hot(i, V, "int32"),
        lambda i: (i[..., None] == np.arange(10)).astype(np.int32),
        "i",
        (),
    ),
    "embed": Case(lambda t, i: nm.gather(t, i, V), take, "ti", "t"),
    "embed_transposed": Case(
        lambda t, i: nm.gather(nm.transpose(t, [M, V]), nm.transpose(i, [S, B]), V),
        lambda t, i: take(t, i.T),
        "ti",
        "t",
    ),
    "pick": Case(lambda q, i: nm.gather(q, i, V), take_each, "qi", "q"),
    "pick_scalar": Case(
        lambda q, j: nm.gather(q, j, V), lambda q, j: take_each(q, j[:, None])[:, 0], "qj", "q"
    ),
    "reorder_own_dim": Case(
        lambda x, k: nm.gather(x, k, S),
        lambda x, k: np.stack([take(a, b) for a, b in zip(x, k, strict=True)]),
        "xk",
        "x",
    ),
    "reorder_shared": Case(
        lambda x, n: nm.gather(x, n, S), lambda x, n: take(x.transpose(1, 0, 2), n), "xn", "x"
    ),
    "fewer_own_dim": Case(
        lambda x, f: nm.gather(x, f, S), lambda x, f: take(x.transpose(1, 0, 2), f), "xf", "x"
    ),
    "scatter": Case(
        lambda x, i: nm.scatter_add(x, i, V),
        lambda x, i: put(x.reshape(24, 8), i.ravel(), 10),
        "xi",
        "x",
    ),
    "scatter_batch": Case(
        lambda x, i: nm.scatter_add(x, i, V, batch=[B]),
        lambda x, i: np.stack([put(a, b, 10) for a, b in zip(x, i, strict=True)]),
        "xi",
        "x",
    ),
    "scatter_other_batch": Case(
        lambda x, i: nm.scatter_add(x, i, V, batch=[S]),
        lambda x, i: np.stack([put(x[:, s], i[:, s], 10) for s in range(6)]),
        "xi",
        "x",
    ),
    "scatter_both_batch": Case(
        lambda x, i: nm.scatter_add(x, i, V, batch=[B, S]),
        lambda x, i: np.stack(
            [np.stack([put(x[b, s][None], i[b, s][None], 10) for s in range(6)]) for b in range(4)]
        ),
        "xi",
        "x",
    ),
    "scatter_some_indices": Case(
        lambda x, j: nm.scatter_add(x, j, V), lambda x, j: put(x, j, 10), "xj", "x"
    ),
    "scatter_own_dim": Case(
        lambda x, n: nm.scatter_add(x, n, S),
        lambda x, n: put(x.transpose(1, 0, 2), n, 6),
        "xn",
        "x",
    ),
    "scatter_int": Case(
        lambda i: nm.scatter_add(nm.ones([B, S], "int32"), i, V),
        lambda i: np.bincount(i[(i >= 0) & (i < 10)], minlength=10),
        "i",
        (),
    ),
}
SPECS = {
    "x": nm.spec([B, S, M]),
    "t": nm.spec([V, M]),
    "q": nm.spec([B, V]),
    "i": nm.spec([B, S], "int32"),
    "j": nm.spec([B], "int32"),
    "k": nm.spec([B, S], "int32"),
    "n": nm.spec([S], "int32"),
    "f": nm.spec([S.resized(3)], "int32"),
}
ARRAYS = {
    "x": uniform(1, 4, 6, 8),
    "t": uniform(2, 10, 8),
    "q": uniform(3, 4, 10),
    "i": np.array(
        [[0, 9, -1, 3, 3, 10], [5, 5, 5, 5, 2, 1], [9, 8, 7, 6, 5, 4], [100, 0, -7, 2, 1, 9]],
        np.int32,
    ),
    "j": np.array([3, 0, 9, 12], np.int32),
    "k": np.array(
        [[5, 4, 3, 2, 1, 0], [0, 0, 1, 1, 6, -1], [1, 2, 3, 4, 5, 0], [3, 3, 3, 3, 3, 3]], np.int32
    ),
    "n": np.array([4, -1, 0, 0, 6, 2], np.int32),
    "f": np.array([5, 0, 7], np.int32),
}


def test_values_and_gradients():
    program = nm.trace(function_of(CASES), **SPECS)
    assert_same(evaluated(program, ARRAYS), expected_of(CASES, ARRAYS))


@pytest.mark.parametrize("layout", ["batch:a, vocab:b", "seq:a, model:b", "seq:b, vocab:a"])
def test_sharded(layout):
    assert_sharded_same(function_of(CASES), SPECS, ARRAYS, layout)


def test_an_embedding_split_over_its_rows_moves_no_table():
    """Each device reads the rows it has: rows and ids are sent, nothing of the table's size."""
    vocab, model = nm.dims("vocab=1024 model=8")

    def embed(t, i):
        y = nm.gather(t, i, vocab)
        return y, nm.grad(nm.sum(nm.square(y)), t)

    specs = {"t": nm.spec([vocab, model]), "i": nm.spec([B, S], "int32")}
    arrays = {
        "t": uniform(4, 1024, 8),
        "i": np.random.default_rng(5).integers(-5, 1030, (4, 6)).astype(np.int32),
    }
    step = assert_sharded_same(embed, specs, arrays, "vocab:b, batch:a")
    rows = 4 * 6 * 8 * 4
    assert all(one.bytes <= rows for one in step.plan.collectives)


def test_gather_by_batch_is_local():
    """Shared dimensions are batch dimensions: split ones cost nothing, forward or backward."""

    def pick(q, i):
        y = nm.gather(q, i, V)
        return y, nm.grad(nm.sum(nm.square(y)), q)

    program = nm.trace(pick, q=SPECS["q"], i=SPECS["i"])
    assert nm.plan(program, MESH, "batch:b").total_bytes() == 0


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda x, i: nm.gather(x, x, S), "not integers"),
        (lambda x, i: nm.gather(x, i, V), "no dimension vocab"),
        (lambda x, i: nm.one_hot(i, S), "new dimension"),
        (lambda x, i: nm.one_hot(x, V), "not integers"),
        (lambda x, i: nm.scatter_add(i, nm.cast(x, "int32"), V), "no dimension model"),
        (lambda x, i: nm.scatter_add(x, i, V, batch=[M]), "no dimension model"),
        (lambda x, i: nm.gather(x, nm.zeros([B.resized(3)], "int32"), S), "size 4 in x and 3"),
    ],
)
def test_misuse_is_explained(wrong, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(wrong, x=SPECS["x"], i=SPECS["i"])


def test_the_name_of_renamed_indices_may_be_taken():
    V, taken = nm.dims("V=5 V_index=3")
    few = V.resized(2)
    table = np.arange(15, dtype=np.float32).reshape(5, 3)
    indices = np.array([1, 4], np.int32)
    found = nm.evaluate(lambda t, i: nm.gather(t, i, V), t=([V, taken], table), i=([few], indices))
    np.testing.assert_array_equal(found, table[indices])
    added = nm.evaluate(
        lambda u, i: nm.scatter_add(u, i, V), u=([few, taken], table[:2]), i=([few], indices)
    )
    np.testing.assert_array_equal(added[indices], table[:2])


def test_the_name_of_a_sorted_dimension_may_be_taken():
    V, taken = nm.dims("V=5 V_sorted=3")
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    found, slope = nm.evaluate(
        lambda x: (nm.sort(x, V), nm.grad(nm.sum(nm.sort(x, V) * nm.range(V, "float32")), x)),
        x=([V, taken], x),
    )
    np.testing.assert_array_equal(found, np.sort(x, 0))
    np.testing.assert_array_equal(slope, np.argsort(np.argsort(x, 0), 0))


def test_the_gradient_of_a_gather_at_one_index():
    V, M = nm.dims("vocab=5 model=3")
    table = np.arange(15, dtype=np.float32).reshape(5, 3)
    found = nm.evaluate(
        lambda t, i: nm.grad(nm.sum(nm.square(nm.gather(t, i, V))), t), t=([V, M], table), i=([], 3)
    )
    np.testing.assert_array_equal(found, 2 * table * (np.arange(5) == 3)[:, None])


@pytest.mark.parametrize("layout", ["", "token:a", "token:a, model:b"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_rows_add_up_in_float32(dtype, layout):
    """In the narrow dtype itself the sum would stop growing at 256 or 2,048."""
    token, vocab, model = nm.dims("token=4096 vocab=4 model=2")

    def train(table, tokens):
        rows = nm.gather(nm.cast(table, dtype), tokens, vocab)
        return nm.grad(nm.sum(nm.cast(rows, "float32")), table)

    program = nm.trace(train, table=nm.spec([vocab, model]), tokens=nm.spec([token], "int32"))
    step = nm.compile(program, mesh=nm.Mesh(a=2, b=2), layout=layout, strict=True)
    tokens = np.zeros(4096, np.int32)
    _, gradient = step(None, table=np.ones((4, 2), np.float32), tokens=tokens)
    np.testing.assert_array_equal(gradient, [[4096, 4096], [0, 0], [0, 0], [0, 0]])
