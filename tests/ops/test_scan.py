import numpy as np
import pytest
import tensorflow as tf

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

B, T, M, L = nm.dims("batch=4 time=5 model=8 layer=3")


def recurrent(remat="none", reverse=False):
    """h = tanh(h w + x_t v), the hs stacked: carry, xs, captures and ys at once."""

    def function(x, w, v):
        def body(h, row):
            h = nm.tanh(nm.einsum([nm.rename(h, M, M2), w], [B, M]) + row * v)
            return h, nm.square(h) + row

        last, rows = nm.scan(body, nm.zeros([B, M]), x, over=T, remat=remat, reverse=reverse)
        return nm.concat([rows, nm.broadcast(last, [T.resized(1), B, M])], T)

    def reference(x, w, v):
        h, rows = np.zeros((4, 8)), np.zeros((5, 4, 8))
        for t in reversed(range(5)) if reverse else range(5):
            h = np.tanh(h @ w + x[:, t] * v)
            rows[t] = h**2 + x[:, t]
        return np.stack([*rows, h])

    return Case(function, reference, ("x", "w", "v"))


M2 = nm.Dimension("model_in", 8)


def stack(remat):
    """A stack of layers: the weights are the xs."""

    def function(y, k):
        def layer(h, w):
            return nm.sin(nm.einsum([nm.rename(h, M, M2), w], [B, M])) + h, None

        return nm.scan(layer, y, k, over=L, remat=remat)[0]

    def reference(y, k):
        for w in k:
            y = np.sin(y @ w) + y
        return y

    return Case(function, reference, ("y", "k"))


def nested(remat, inner):
    def function(y, k, x):
        def outer(h, w):
            def step(c, row):
                c = nm.tanh(nm.einsum([nm.rename(c, M, M2), w], [B, M]) + row)
                return c, nm.sum(c, over=M)

            h, sums = nm.scan(step, h, x, over=T, remat=inner)
            return h, nm.mean(sums, over=T)

        h, means = nm.scan(outer, y, k, over=L, remat=remat)
        return h + nm.broadcast(nm.sum(means, over=L), [B, M])

    def reference(y, k, x):
        total = np.zeros(4)
        for w in k:
            sums = 0
            for t in range(5):
                y = np.tanh(y @ w + x[:, t])
                sums = sums + y.sum(1)
            total = total + sums / 5
        return y + total[:, None]

    return Case(function, reference, ("y", "k", "x"))


def mixed(y, i):
    """A whole number in the carry and in the ys, structures, and a choice in the body."""

    def body(carry, row):
        h = nm.cond(row["i"] > 2, lambda: nm.sin(carry["h"]), lambda: carry["h"] * 0.5)
        return {"h": h, "n": carry["n"] + row["i"]}, (nm.sum(h, over=M), carry["n"])

    carry, (sums, counts) = nm.scan(body, {"h": y, "n": 0}, {"i": i}, over=T)
    weighted = nm.einsum([sums, nm.cast(counts, "float32")], [B])
    return carry["h"] * nm.cast(carry["n"], "float32") + nm.broadcast(weighted, [B, M])


def mixed_reference(y, i):
    n, total = 0, np.zeros(4)
    for value in i:
        y = np.sin(y) if value > 2 else y * 0.5
        total = total + y.sum(1) * n
        n += value
    return y * n + total[:, None]


CASES = {
    **{f"recurrent_{remat}": recurrent(remat) for remat in ("none", "full", "dots")},
    "recurrent_reverse": recurrent(reverse=True),
    **{f"stack_{remat}": stack(remat) for remat in ("none", "full", "dots")},
    "nested_none": nested("none", "none"),
    "nested_full": nested("full", "full"),
    "nested_mixed": nested("full", "dots"),
    "mixed": Case(mixed, mixed_reference, ("y", "i"), "y"),
    "without_xs": Case(
        lambda y: nm.scan(lambda c, _: (nm.sin(c), c), y, over=T)[1],
        lambda y: np.stack([y, s1 := np.sin(y), s2 := np.sin(s1), s3 := np.sin(s2), np.sin(s3)]),
        "y",
    ),
    "manual_inside": Case(
        lambda y: nm.scan(
            lambda c, _: (nm.manual(lambda c: nm.cumsum(c, M) * 0.5, c, over=B), None), y, over=L
        )[0],
        lambda y: np.cumsum(np.cumsum(np.cumsum(y, 1), 1), 1) / 8,
        "y",
    ),
    "reordered_carry": Case(
        lambda y: nm.scan(lambda c, _: (nm.transpose(nm.sin(c), [M, B]), None), y, over=L)[0],
        lambda y: np.sin(np.sin(np.sin(y))),
        "y",
    ),
}
SPECS = {
    "x": nm.spec([B, T, M]),
    "y": nm.spec([B, M]),
    "w": nm.spec([M2, M], whole=[M2]),
    "v": nm.spec([M]),
    "k": nm.spec([L, M2, M], whole=[M2]),
    "i": nm.spec([T], "int32"),
}
ARRAYS = {
    "x": uniform(1, 4, 5, 8) / 2,
    "y": uniform(2, 4, 8) / 2,
    "w": uniform(3, 8, 8) / 4,
    "v": uniform(4, 8),
    "k": uniform(5, 3, 8, 8) / 4,
    "i": np.array([3, 1, 4, 0, 5], np.int32),
}


def test_values_and_gradients():
    program = nm.trace(function_of(CASES), **SPECS)
    assert_same(evaluated(program, ARRAYS), expected_of(CASES, ARRAYS), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("layout", ["batch:a, model:b", "batch:b, time:a, layer:a"])
def test_sharded(layout):
    left_out = (
        "recurrent_none",
        "recurrent_full",
        "stack_none",
        "stack_dots",
        "nested_none",
        "nested_full",
    )
    cases = {name: case for name, case in CASES.items() if name not in left_out}
    assert_sharded_same(function_of(cases), SPECS, ARRAYS, layout)


def gradients(case, remat_of):
    cases = {"one": case(*remat_of)}
    program = nm.trace(function_of(cases), **{key: SPECS[key] for key in cases["one"].inputs})
    return evaluated(program, {key: ARRAYS[key] for key in cases["one"].inputs})


@pytest.mark.parametrize(
    "case, choices", [(recurrent, ["none", "full", "dots"]), (stack, ["none", "full", "dots"])]
)
def test_what_is_kept_does_not_change_the_gradient(case, choices):
    first, *others = (gradients(case, (remat,)) for remat in choices)
    for other in others:
        assert_same(other, first, rtol=1e-6, atol=1e-6)


def kept_bytes(remat):
    """What the forward loop of a deep stack stores for the backward one."""
    layers = nm.Dimension("layer", 16)

    def deep(y, k):
        def layer(h, w):
            y = nm.tanh(nm.einsum([nm.rename(h, M, M2), w], [B, M]) * 2.0)
            return nm.sin(nm.softmax(y, over=M) + h), None

        return nm.grad(nm.sum(nm.scan(layer, y, k, over=layers, remat=remat)[0]), k)

    program = nm.trace(deep, y=nm.spec([B, M]), k=nm.spec([layers, M2, M]))
    (loop,) = (op for op in program.ops if op.kind == "scan" and op.phase == "forward")
    return sum(tensor.shape.elements * tensor.itemsize for tensor in loop.outputs[1:])


def test_remat_decides_what_is_stored():
    carries = 16 * 4 * 8 * 4
    assert kept_bytes("full") == carries
    assert kept_bytes("dots") == 2 * carries
    assert 2 * carries < kept_bytes("none") < 3 * carries  # its sums besides


def test_program_size_does_not_depend_on_the_length():
    def size(length):
        layers = nm.Dimension("layer", length)

        def deep(y, k):
            body = lambda h, w: (nm.sin(nm.einsum([nm.rename(h, M, M2), w], [B, M])), None)
            return nm.grad(nm.sum(nm.scan(body, y, k, over=layers)[0]), k)

        artifact = nm.export(
            nm.trace(deep, y=SPECS["y"], k=nm.spec([layers, M2, M])), MESH, "batch:b"
        )
        return len(artifact.step_module)

    assert abs(size(40) - size(4)) < 200


def test_second_derivative_through_a_loop():
    def twice(v):
        y = nm.scan(lambda c, _: (nm.sin(c) * v, None), v, over=L)[0]
        return nm.grad(nm.sum(nm.square(nm.grad(nm.sum(y), v))), v)

    def slope(v):
        c, d = v, np.ones(8)
        for _ in range(3):
            c, d = np.sin(c) * v, np.cos(c) * v * d + np.sin(c)
        return d

    v = ARRAYS["v"].astype(np.float64)
    step = 1e-6
    expected = 2 * slope(v) * (slope(v + step) - slope(v - step)) / (2 * step)
    found = evaluated(nm.trace(twice, v=SPECS["v"]), {"v": ARRAYS["v"]})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_every_kind_of_op_inside_a_loop():
    """Sorting, choosing, indexing, a TensorFlow function and a while loop, with gradients."""
    kept = nm.Dimension("kept", 2)

    def body(c, _):
        values, places = nm.top_k(c, M, kept)
        picked = nm.sum(values * nm.gather(c, places, M), over=kept)
        ordered = nm.call_tf(lambda c: tf.sort(c, axis=1), c, result=nm.spec([B, M]), batch=[B])
        limit = nm.while_loop(lambda z: z > 0.3, lambda z: z * 0.5, nm.stop_gradient(nm.max(c)))
        return nm.tanh(ordered + picked * 0.1) + limit, nm.sort(c, M)

    def looped(y):
        last, rows = nm.scan(body, y, over=L)
        return {
            "last": last,
            "rows": rows,
            "dy": nm.grad(nm.sum(nm.square(last)) + nm.sum(rows * rows), y),
        }

    def unrolled(y):
        c, rows = y, []
        for _ in range(L.size):
            c, row = body(c, None)
            rows.append(row)
        stacked = nm.stack(rows, L)
        return {
            "last": c,
            "rows": stacked,
            "dy": nm.grad(nm.sum(nm.square(c)) + nm.sum(stacked * stacked), y),
        }

    specs, arrays = {"y": SPECS["y"]}, {"y": ARRAYS["y"]}
    assert_same(
        evaluated(nm.trace(looped, **specs), arrays), evaluated(nm.trace(unrolled, **specs), arrays)
    )
    assert_sharded_same(looped, specs, arrays, "batch:a, model:b")


@pytest.mark.parametrize(
    "wrong, message",
    [
        (
            lambda y: nm.scan(lambda c, _: (c, None), y, over=3),  # pyright: ignore
            "not a Dimension",
        ),
        (lambda y: nm.scan(lambda c, _: (c, None), y, over=L, remat="some"), "there is no remat"),
        (lambda y: nm.scan(lambda c, _: c, y, over=L), "return"),
        (lambda y: nm.scan(lambda c, _: (nm.sum(c), None), y, over=L), "expected"),
        (lambda y: nm.scan(lambda c, _: (c, None), y, over=M), "loop's own dimension"),
        (lambda y: nm.scan(lambda c, _: (c, nm.range(L)), y, over=L), "loop's own dimension"),
        (lambda y: nm.scan(lambda c, r: (c, r), y, y, over=L), "no dimension layer"),
    ],
)
def test_misuse_is_explained(wrong, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(wrong, y=SPECS["y"])


def test_a_tensor_of_the_body_does_not_leave_it():
    def leaking(y):
        seen = []

        def body(c, _):
            seen.append(nm.sin(c))
            return c, None

        nm.scan(body, y, over=L)
        return seen[0] * 2.0

    with pytest.raises(nm.NamedMeshError, match="has ended"):
        nm.trace(leaking, y=SPECS["y"])


A, D = nm.dims("a=4 d=16")


def read_captures_elsewhere(x, y):
    """What loops return of a capture, while they read it sharded further or not at all."""
    coarse = nm.replicate(x, A)
    fine = nm.reshard(nm.replicate(y, A), D)
    add = lambda carry, _: (nm.tanh(carry + coarse), coarse)
    loop = lambda carry, _: (nm.scan(add, carry, over=L)[0], coarse)
    loss = nm.sum(nm.manual(send_along, nm.sin(x), over=D))
    return [
        nm.scan(add, fine, over=L),
        nm.scan(lambda carry, _: (fine, nm.sin(carry)), coarse, over=L),
        nm.scan(loop, fine, over=nm.Dimension("outer", 2)),
        nm.grad(loss, x),
    ]


def send_along(x):
    """Return a loop in a region that sends its carry, and adds what the region reads."""
    send = lambda carry, _: (nm.tanh(nm.collective.permute(carry, D, by=1) + x), None)
    return nm.scan(send, x, over=L)[0]


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_what_a_loop_captures_stays_where_it_is(partitioner):
    """XLA sharded it further for one reader, and gathered it again for the history."""
    specs = {"x": nm.spec([A, D]), "y": nm.spec([A, D])}
    arrays = {"x": uniform(1, 4, 16), "y": uniform(2, 4, 16)}
    step = assert_sharded_same(
        read_captures_elsewhere, specs, arrays, "a:y, d:x+y",
        mesh=nm.Mesh(x=2, y=2), partitioner=partitioner,
    )  # fmt: skip
    gathers = [one for one in step.plan.of_phase("forward") if one.kind == "AllGather"]
    assert all(one.times == 1 for one in gathers if one.tensor == "fine")
