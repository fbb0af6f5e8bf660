"""Functions along a dimension that they do not know, and pipelines, against jax and plain loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import namedmesh as nm
from namedmesh.layers import Heads, feed_forward, layer_norm, self_attention
from tests.checks import assert_same as same
from tests.checks import assert_sharded_same, number_leaves
from tests.checks import uniform as numbers

E, B, M, H, T = nm.dims("expert=4 batch=8 model=6 hidden=10 iteration=3")
S, R, K = nm.dims("seq=8 memory=8 key=6")
ARRAYS = {
    "x": numbers(0, 4, 8, 6),
    "w": 0.3 * numbers(1, 4, 6, 10),
    "u": 0.3 * numbers(2, 6, 10),
    "i": np.array([1, 0, 7, 3], "int32"),
}
SPECS = {
    "x": nm.spec([E, B, M]),
    "w": nm.spec([E, M, H]),
    "u": nm.spec([M, H]),
    "i": nm.spec([E], "int32"),
}
LAYOUTS = ["expert:a, batch:b", "expert:b", "hidden:a"]


def layer(x, w):
    weights = nm.softmax(nm.einsum([nm.sin(x), w], [B, H]), over=H)
    return nm.einsum([weights * nm.max(x, over=M), w], [B, M])


def in_jax(x, w):
    return (jax.nn.softmax(jnp.sin(x) @ w, -1) * x.max(-1, keepdims=True)) @ w.T


def iterations(x, u):
    return nm.scan(lambda c, _: (layer(c, u), nm.sum(c)), x, over=T)


def iterations_in_jax(x, u):
    sums = []
    for _ in range(3):
        sums.append(x.sum())
        x = in_jax(x, u)
    return x, jnp.stack(sums)


def compare(function, reference, names, layout, specs=None, arrays=None):
    """Values and gradients of the sum of the sines of all results."""
    specs = {name: (specs or SPECS)[name] for name in names}
    arrays = {name: (arrays or ARRAYS)[name] for name in names}
    wrt = [name for name in names if arrays[name].dtype == np.float32]

    def named(**given):
        results = function(*given.values())
        loss = nm.sum(nm.zeros([]))
        for leaf in jax.tree.leaves(results, is_leaf=lambda x: isinstance(x, nm.Tensor)):
            loss = loss + nm.sum(nm.sin(leaf))
        return results, nm.grad(loss, [given[name] for name in wrt])

    program = nm.trace(named, **specs)
    _, found = program.evaluate({}, **arrays)

    def loss(*floats):
        given = {**arrays, **dict(zip(wrt, floats, strict=True))}
        results = reference(*given.values())
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(results)), results

    floats = [jnp.asarray(arrays[name]) for name in wrt]
    positions = tuple(range(len(floats)))
    (_, results), grads = jax.value_and_grad(loss, positions, has_aux=True)(*floats)
    same(number_leaves(found), number_leaves((results, list(grads))), rtol=1e-4, atol=1e-4)
    assert_sharded_same(program, specs, arrays, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layer(layout):
    compare(nm.vmap(layer, E), jax.vmap(in_jax), "xw", layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_all_share(layout):
    compare(nm.vmap(layer, E), jax.vmap(in_jax, (0, None)), "xu", layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_loop(layout):
    compare(nm.vmap(iterations, E), jax.vmap(iterations_in_jax, (0, None)), "xu", layout)


@pytest.mark.parametrize("shared", [False, True])
def test_derivatives_of_their_own(shared):
    """Attention has one; that of shared keys is added up."""

    def attend(q, k):
        return nm.attention(q, k, k, R, K)

    def plain(q, k):
        return jax.nn.softmax(q @ k.T / np.sqrt(6), -1) @ k

    arrays = {"q": numbers(0, 4, 8, 6), "k": numbers(1, *([8, 6] if shared else [4, 8, 6]))}
    specs = {"q": nm.spec([E, S, K]), "k": nm.spec([R, K] if shared else [E, R, K])}
    batched = jax.vmap(plain, (0, None if shared else 0))
    compare(nm.vmap(attend, E), batched, "qk", "expert:a, seq:b", specs, arrays)


def test_many_ops():
    def several(x, i):
        return {
            "sort": nm.sort(x, M),
            "sums": nm.cumsum(x, B),
            "set": x.at[B, i].set(0.0),
            "read": x[B, i],
            "concat": nm.concat([x, nm.ones([B, M])], "batch"),
            "largest": nm.top_k(x, M, nm.Dimension("best", 2))[0],
            "again": nm.checkpoint(nm.sin)(x),
            "rows": x[B, 1:3],
            "windows": nm.pool(x, {B: 2}),
            "alone": nm.range(M),
        }

    program = nm.trace(nm.vmap(several, E), x=SPECS["x"], i=SPECS["i"])
    arrays = {name: ARRAYS[name] for name in "xi"}
    _, found = program.evaluate({}, **arrays)
    x, i, rows = ARRAYS["x"], ARRAYS["i"], np.arange(4)
    changed = x.copy()
    changed[rows, i] = 0
    expected = {
        "sort": np.sort(x, 2),
        "sums": x.cumsum(1),
        "set": changed,
        "read": x[rows, i],
        "concat": np.concatenate([x, np.ones_like(x)], 1),
        "largest": -np.sort(-x, 2)[..., :2],
        "again": np.sin(x),
        "rows": x[:, 1:3],
        "windows": np.maximum(x[:, ::2], x[:, 1::2]),
        "alone": np.broadcast_to(np.arange(6), (4, 6)),
    }
    same(found, expected)
    assert_sharded_same(program, {}, arrays, "expert:a, batch:b")


def test_convolution_of_each():
    """Images with windows of their own, against one at a time."""
    L, W, C, D = nm.dims("length=8 window=3 channels=2 out=3")
    x, w = numbers(0, 4, 8, 2), numbers(1, 4, 3, 2, 3)

    def slide(x, w):
        return nm.conv(x, w, {L: W})

    specs = nm.spec([E, L, C]), nm.spec([E, W, C, D])
    program = nm.trace(nm.vmap(slide, E), *specs)
    _, found = program.evaluate({}, x=x, w=w)
    for e in range(4):
        one = nm.evaluate(slide, x=([L, C], x[e]), w=([W, C, D], w[e]))
        np.testing.assert_allclose(found[e], one, rtol=1e-5, atol=1e-5)
    assert_sharded_same(program, {}, {"x": x, "w": w}, "expert:a, length:b")


def test_keys_along_the_dimension_draw_as_each_alone():
    def draw(number):
        key = nm.random.fold_in(nm.random.fold_in(nm.random.key(0), number), 3)
        return nm.random.uniform(key, [M, H])

    program = nm.trace(lambda: nm.vmap(draw, E)(nm.range(E)))
    assert not any(op.loop for op in program.ops)
    together = program.evaluate({})[1]
    for e in range(E.size):
        alone = nm.evaluate(lambda e=e: draw(nm.full([], e, "int32")))
        np.testing.assert_array_equal(together[e], alone)


def test_moves_are_of_the_named_dimensions_alone():
    move = nm.vmap(lambda x: nm.reshard(x, M), E)
    program = nm.trace(move, x=nm.spec([E, B, M], whole=[M]))
    plan = nm.plan(program, nm.Mesh(a=2, b=2), "expert:a, batch:b, model:b")
    assert [one.kind for one in plan.collectives] == ["AllToAll"]
    assert plan.shardings[program.outputs[0]].mapping == {"expert": ("a",), "model": ("b",)}


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda x: nm.vmap(lambda x: nm.cond(nm.sum(x) > 0, nm.sin, nm.cos, x), E)(x), "vmap over"),
        (lambda x: nm.vmap(nm.sin, T)(x), "vmap: no argument has"),
        (lambda x: nm.vmap(3, E), "function"),  # pyright: ignore[reportArgumentType]
        (lambda x: nm.pipeline(nm.sum, x, stages=T, batches=E), "scan: the body's carry"),
        (lambda x: nm.pipeline(nm.sin, x, stages=B, batches=E), "dimension of stages"),
        (lambda x: nm.pipeline(nm.sin, x, stages=T, batches=H), "no dimension hidden"),
    ],
)
def test_errors(wrong, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(wrong, x=SPECS["x"])


P, N, L, A = nm.dims("stage=4 micro=6 layer=2 heads=2")
BLOCK = nm.dims("batch=2 seq=4 model=8 hidden=16 key=4")


def block(x):
    _, s, m, h, k = BLOCK
    x = x + self_attention(layer_norm(x, m, name="first"), s, Heads(m, A, k))
    with nm.scope("ffn"):
        return x + feed_forward(layer_norm(x, m, name="second"), m, h)


def stage(x):
    return nm.scan(lambda x, _: (block(x), None), x, over=L, stack=True)[0]


def piped(x):
    y = nm.pipeline(stage, x, stages=P, batches=N)
    return y, nm.grad(nm.mean(nm.square(y)))


def plain(x):
    """The same layers one after the other: a loop over stages of a loop over layers."""
    b, s, m, h, k = BLOCK
    whole = nm.reshape(x, [N, b], nm.Dimension("batch", 12))

    def block_of_all(x):
        x = x + self_attention(layer_norm(x, m, name="first"), s, Heads(m, A, k))
        with nm.scope("ffn"):
            return x + feed_forward(layer_norm(x, m, name="second"), m, h)

    def stage_of_all(x, _):
        return nm.scan(lambda x, _: (block_of_all(x), None), x, over=L, stack=True)[0], None

    y = nm.scan(stage_of_all, whole, over=P, stack=True)[0]
    y = nm.reshape(y, nm.Dimension("batch", 12), [N, b])
    return y, nm.grad(nm.mean(nm.square(y)))


SPEC = nm.spec([N, *BLOCK[:3]])
BATCHES = numbers(7, 6, 2, 4, 8)


@pytest.mark.parametrize("layout", ["stage:b", "stage:b, batch:a", "stage:b, hidden:a, heads:a"])
def test_pipeline_is_the_stages_one_after_the_other(layout):
    program, reference = nm.trace(piped, x=SPEC), nm.trace(plain, x=SPEC)
    state = program.initial_state(3)
    assert {name: x.shape for name, x in state.items()} == {
        name: x.shape for name, x in reference.initial_state(3).items()
    }
    _, (y, gradients) = program.evaluate(state, x=BATCHES)
    _, (expected, others) = reference.evaluate(state, x=BATCHES)
    same({"y": y, **gradients}, {"y": expected, **others}, rtol=1e-4, atol=1e-5)
    one, many = (
        nm.compile(program, mesh=mesh, layout=rules, strict=True)
        for mesh, rules in ((nm.Mesh(a=1), ""), (nm.Mesh(a=2, b=4), layout))
    )
    alone, together = (number_leaves(step(step.init(3), x=BATCHES)[1]) for step in (one, many))
    same(together, alone)


def test_pipeline_of_one_stage():
    one = nm.Dimension("stage", 1)
    found = nm.evaluate(
        lambda x: nm.pipeline(lambda y: 2.0 * y, x, stages=one, batches=N),
        x=([N, B], np.ones((6, 8))),
    )
    np.testing.assert_array_equal(found, np.full((6, 8), 2.0))


def test_pipeline_sends_a_microbatch_in_every_iteration():
    """9 iterations of 6 microbatches and 4 stages; results come from the last stage once."""
    program = nm.trace(lambda x: nm.pipeline(stage, x, stages=P, batches=N), x=SPEC)
    plan = nm.plan(program, nm.Mesh(a=4), "stage:a")
    microbatch = 2 * 4 * 8 * 4  # bytes
    found = [(one.kind, one.times, one.bytes) for one in plan.collectives]
    assert found == [("CollectivePermute", 9, microbatch), ("AllReduce", 1, 6 * microbatch)]


def test_plans_say_how_often_a_stage_is_idle():
    """A stage works in as many iterations as there are microbatches, each one later."""

    def two(x):
        return nm.pipeline(nm.sin, nm.pipeline(stage, x, stages=P, batches=N), stages=P, batches=N)

    iterations = range(9)
    idle = [sum(not 0 <= iteration - place < 6 for iteration in iterations) for place in range(4)]
    assert idle == [3, 3, 3, 3]
    note = "pipeline (gpipe), stage=4, micro=6: idle in 3 of 9 iterations (33%), "
    note += "9 inputs of 256 bytes kept"
    for layout in ("stage:a", "batch:a"):
        plan = nm.plan(nm.trace(two, x=SPEC), nm.Mesh(a=2), layout)
        assert plan.to_json()["notes"] == [note] and f"\n  {note}\n" in str(plan)
    assert not nm.trace(stage, x=nm.spec(BLOCK[:3])).notes


def test_windows_that_start_elsewhere_for_each_element():
    rows, B, M = 3, *nm.dims("batch=3 model=4")
    x = np.arange(12, dtype=np.float32).reshape(rows, 4)
    starts = np.array([0, 2, 9], np.int32)

    def one(row, start):
        shard = nm.dynamic_slice(row, start, M, 2)
        return shard, nm.dynamic_update(row, nm.dynamic_slice(row, 0, M, 2) * 10.0, start, M)

    program = nm.trace(nm.vmap(one, over=B), nm.spec([B, M]), nm.spec([B], "int32"))
    step = nm.compile(program, mesh=nm.Mesh(data=3), layout="batch:data", strict=True)
    _, (shards, updated) = step(step.init(0), x, starts)
    for i, start in enumerate(np.minimum(starts, 2)):
        expected = x[i].copy()
        expected[start : start + 2] = x[i, :2] * 10
        np.testing.assert_array_equal(shards[i], x[i, start : start + 2])
        np.testing.assert_array_equal(updated[i], expected)
