import numpy as np
import pytest

import namedmesh as nm
from tests.checks import (
    Case,
    assert_same,
    assert_sharded_same,
    evaluated,
    expected_of,
    function_of,
    uniform,
)

B, S, M = nm.dims("batch=4 seq=3 model=10")
H, D, P, Q, T, K = nm.dims("head=2 depth=5 rows=12 flat=40 three=3 pair=2")

CASES = {
    "broadcast": Case(
        lambda w: nm.broadcast(w, [M, B, S]),
        lambda w: np.broadcast_to(w.T[:, None], (10, 4, 3)),
        "w",
    ),
    "broadcast_scalar": Case(
        lambda w: nm.broadcast(nm.sum(w), [B, S]), lambda w: np.full((4, 3), w.sum()), "w"
    ),
    "transpose": Case(lambda x: nm.transpose(x, [M, B, S]), lambda x: x.transpose(2, 0, 1)),
    "rename": Case(lambda x: nm.rename(x, S, T), lambda x: x),
    "rename_mapped": Case(
        lambda x: nm.rename(x, M, nm.Dimension("other", 10)) * 2.0, lambda x: x * 2
    ),
    "merge": Case(lambda x: nm.reshape(x, [B, S], P), lambda x: x.reshape(12, 10)),
    "merge_apart": Case(
        lambda x: nm.reshape(x, [B, M], Q), lambda x: x.transpose(0, 2, 1).reshape(40, 3)
    ),
    "merge_backwards": Case(
        lambda x: nm.reshape(x, [M, B], Q), lambda x: x.transpose(2, 0, 1).reshape(40, 3)
    ),
    "split": Case(lambda x: nm.reshape(x, M, [H, D]), lambda x: x.reshape(4, 3, 2, 5)),
    "split_first": Case(lambda x: nm.reshape(x, B, [H, K]), lambda x: x.reshape(2, 2, 3, 10)),
    "split_keeping_the_name": Case(
        lambda x: nm.reshape(x, M, [M.resized(2), D]), lambda x: x.reshape(4, 3, 2, 5)
    ),
    "merge_keeping_the_name": Case(
        lambda x: nm.reshape(x, [M, S], M.resized(30)),
        lambda x: x.transpose(0, 2, 1).reshape(4, 30),
    ),
    "regroup": Case(
        lambda x: nm.reshape(x, [S, M], [nm.Dimension("six", 6), D]), lambda x: x.reshape(4, 6, 5)
    ),
    "there_and_back": Case(lambda x: nm.reshape(nm.reshape(x, [B, S], P), P, [B, S]), lambda x: x),
    "concat": Case(
        lambda x, y: nm.concat([x, y, x], M), lambda x, y: np.concatenate([x, y, x], 2), ("x", "y")
    ),
    "concat_by_name": Case(
        lambda x, z: nm.concat([x, nm.transpose(z, [S, M.resized(2), B])], "model"),
        lambda x, z: np.concatenate([x, z], 2),
        ("x", "z"),
    ),
    "concat_batch": Case(
        lambda x, y: nm.concat([x, y], B), lambda x, y: np.concatenate([x, y], 0), ("x", "y")
    ),
    "stack": Case(lambda x, y: nm.stack([x, y], K), lambda x, y: np.stack([x, y]), ("x", "y")),
    "chunk": Case(lambda x: nm.chunk(x, M, 5)[3], lambda x: x[:, :, 6:8]),
    "chunk_sizes": Case(lambda x: nm.chunk(x, M, [3, 1, 6])[2], lambda x: x[:, :, 4:]),
    "chunk_batch": Case(
        lambda x: nm.chunk(x, B, 2)[1] + nm.chunk(x, B, 2)[0] * 2.0, lambda x: x[2:] + 2 * x[:2]
    ),
    "bool": Case(
        lambda x: nm.transpose(nm.concat([x > 0, x > 1], M), [M.resized(20), S, B]),
        lambda x: np.concatenate([x > 0, x > 1], 2).transpose(2, 1, 0),
        wrt=(),
    ),
}
SPECS = {
    "x": nm.spec([B, S, M]),
    "y": nm.spec([B, S, M]),
    "z": nm.spec([B, S, M.resized(2)]),
    "w": nm.spec([S, M]),
}
ARRAYS = {
    "x": uniform(1, 4, 3, 10),
    "y": uniform(2, 4, 3, 10),
    "z": uniform(3, 4, 3, 2),
    "w": uniform(4, 3, 10),
}


def test_values_and_gradients():
    program = nm.trace(function_of(CASES), **SPECS)
    assert_same(evaluated(program, ARRAYS), expected_of(CASES, ARRAYS))


@pytest.mark.parametrize(
    "layout",
    ["batch:a, model:b, rows:a", "batch:b, model:a, head:a, flat:b", "model:a+b, three:b, other:b"],
)
def test_sharded(layout):
    assert_sharded_same(function_of(CASES), SPECS, ARRAYS, layout)


def test_a_split_dimension_stays_split_through_a_reshape_that_lets_it():
    """Heads taken from a split model dimension, and merged again, cost nothing."""
    model, head, depth = nm.dims("model=16 head=4 depth=4")

    def heads(x):
        return nm.reshape(nm.reshape(x, model, [head, depth]) * 2.0, [head, depth], model)

    x = uniform(5, 4, 16)
    step = assert_sharded_same(
        heads, {"x": nm.spec([B, model])}, {"x": x}, "model:b, head:b, batch:a"
    )
    assert step.plan.total_bytes() == 0


def test_rename_between_two_names_of_one_axis_is_free():
    source, target = nm.dims("query=8 memory=8")
    step = assert_sharded_same(
        lambda x: nm.rename(x, source, target),
        {"x": nm.spec([source])},
        {"x": uniform(6, 8)},
        "query:b, memory:b",
    )
    assert step.plan.total_bytes() == 0


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda x: nm.reshape(x, M, [H, nm.Dimension("depth", 4)]), "elements"),
        (lambda x: nm.reshape(x, M, []), "names no dimension"),
        (lambda x: nm.rename(x, S, M), "size"),
        (lambda x: nm.rename(x, S, nm.Dimension("batch", 3)), "already has"),
        (lambda x: nm.transpose(x, [B, S]), "once each"),
        (lambda x: nm.broadcast(x, [B, S]), "lacks dimension model"),
        (lambda x: nm.chunk(x, M, 3), "whole parts"),
        (lambda x: nm.chunk(x, M, [5, 4]), "whole parts"),
        (lambda x: nm.stack([x, x], T), "count the tensors"),
        (lambda x: nm.concat([x, nm.zeros([B, M])], M), "differ"),
        (lambda x: nm.concat([x, nm.zeros([B, S])], M), "no dimension model"),
    ],
)
def test_misuse_is_explained(wrong, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(wrong, x=SPECS["x"])


def test_repeat_tile_unstack_and_renames():
    B, S, T = nm.dims("batch=2 seq=3 other=3")
    x = np.arange(18).reshape(2, 3, 3)

    def shapes(x):
        return {
            "repeat": nm.repeat(x, S, 2),
            "tile": nm.tile(x, S, 3),
            "swap": nm.rename(x, {S: T, T: S}),
            "cycle": nm.rename(x, {S: T, T: nm.Dimension("last", 3)}),
            **{f"unstack {i}": one for i, one in enumerate(nm.unstack(x, T))},
        }

    program = nm.trace(shapes, x=nm.spec([B, S, T], "int32"))
    assert [str(one.shape) for one in program.outputs[2:4]] == [
        "[batch=2, other=3, seq=3]",
        "[batch=2, other=3, last=3]",
    ]
    _, found = program.evaluate({}, x=x.astype("int32"))
    expected = {
        "repeat": x.repeat(2, 1),
        "tile": np.tile(x, (1, 3, 1)),
        "swap": x,
        "cycle": x,
        **{f"unstack {i}": x[:, :, i] for i in range(3)},
    }
    assert_same(found, expected)
    step = nm.compile(program, mesh=nm.Mesh(a=2, b=3), layout="batch:a, seq:b", strict=True)
    assert_same(step(step.init(0), x=x.astype("int32"))[1], expected)
