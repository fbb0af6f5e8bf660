"""Attention with split positions, against attention of whole ones and the papers' formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import namedmesh as nm
from namedmesh.ir.op import every_op
from tests.checks import assert_same as same
from tests.checks import assert_sharded_same, number_leaves
from tests.checks import uniform as numbers

B, S, T, H, K, R = nm.dims("batch=2 seq=16 memory=32 heads=4 key=8 block=4")
SPECS = {
    "q": nm.spec([B, S, H, K]),
    "k": nm.spec([B, T, H, K]),
    "v": nm.spec([B, T, H, K]),
    "mine": nm.spec([B, S], "int32"),
    "theirs": nm.spec([B, T], "int32"),
}
ARRAYS = {
    "q": numbers(0, 2, 16, 4, 8),
    "k": numbers(1, 2, 32, 4, 8),
    "v": numbers(2, 2, 32, 4, 8),
    "mine": np.array([[0] * 5 + [1] * 6 + [3] * 5, [0] * 16], "int32"),
    "theirs": np.array([[0] * 16 + [1] * 16, [0] * 20 + [1] * 12], "int32"),
}
RING = "seq:a, memory:a, block:a, batch:b"
KINDS = {"plain": {}, "causal": {"causal": True}, "segments": {"packed": True, "causal": True}}


def in_jax(q, k, v, mine, theirs, causal=False, packed=False):
    """Softmax of all products at once; zeros for a query that may attend to nothing."""
    scores = jnp.einsum("bshk,bthk->bhst", q, k) / np.sqrt(8)
    allowed = jnp.ones((2, 1, 16, 32), bool)
    if causal:
        allowed &= jnp.arange(32)[None] <= jnp.arange(16)[:, None]
    if packed:
        allowed &= mine[:, None, :, None] == theirs[:, None, None, :]
    peak = jnp.max(jnp.where(allowed, scores, -1e30), -1, keepdims=True)
    weights = jnp.where(allowed, jnp.exp(jnp.where(allowed, scores - peak, 0.0)), 0.0)
    total = jnp.sum(weights, -1, keepdims=True)
    weights = weights / jnp.where(total > 0, total, 1.0)
    return jnp.einsum("bhst,bthk->bshk", weights, v)


def ring(q, k, v, mine, theirs, causal=False, packed=False):
    segments = (mine, theirs) if packed else None
    return nm.ring_attention(q, k, v, T, K, query=S, ring=R, causal=causal, segments=segments)


def with_gradients(attend, **options):
    def both(q, k, v, mine, theirs):
        y = attend(q, k, v, mine, theirs, **options)
        return y, nm.grad(nm.sum(nm.sin(y)), [q, k, v])

    return both


@pytest.mark.parametrize("kind", KINDS)
def test_ring_against_jax(kind):
    options = KINDS[kind]
    program = nm.trace(with_gradients(ring, **options), **SPECS)
    _, found = program.evaluate({}, **ARRAYS)

    def loss(q, k, v):
        y = in_jax(q, k, v, ARRAYS["mine"], ARRAYS["theirs"], **options)
        return jnp.sum(jnp.sin(y)), y

    (_, y), grads = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(
        *(ARRAYS[name] for name in "qkv")
    )
    same(number_leaves(found), number_leaves((y, list(grads))), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", [RING, "heads:b", "batch:a, heads:b", "seq:a, block:a"])
@pytest.mark.parametrize("kind", KINDS)
def test_ring_sharded(kind, layout):
    assert_sharded_same(with_gradients(ring, **KINDS[kind]), SPECS, ARRAYS, layout)


@pytest.mark.parametrize("ways", [2, 4])
def test_ring_sends_what_the_paper_says(ways):
    """Keys and values go round once forward; with their gradients, which come home, backward."""
    program = nm.trace(with_gradients(ring), **SPECS)
    plan = nm.plan(program, nm.Mesh(a=ways), "seq:a, memory:a, block:a")
    assert {one.kind for one in plan.collectives} == {"CollectivePermute"}
    block = 2 * (32 // 4) * 4 * 8 * 4  # bytes: batch, positions of a block, heads, key, float32
    iterations = 4 - 1
    sent = {
        "forward": 2 * iterations * block,
        "backward": (2 * iterations + 2 * (iterations + 1)) * block,
    }
    for phase, expected in sent.items():
        found = sum(one.total_bytes for one in plan.collectives if one.phase == phase)
        assert found == expected


def test_ring_in_bfloat16():
    """Near attention in float32 of the same rounded numbers."""

    def attend(q, k, v, mine, theirs):
        q, k, v = (nm.cast(x, "bfloat16") for x in (q, k, v))
        return ring(q, k, v, mine, theirs, causal=True)

    step = nm.compile(nm.trace(attend, **SPECS), mesh=nm.Mesh(a=4, b=2), layout=RING, strict=True)
    found = np.asarray(step(step.init(0), **ARRAYS)[1], "float32")
    expected = in_jax(*ARRAYS.values(), causal=True)
    np.testing.assert_allclose(found, expected, atol=0.06)


def test_gradients_go_home_in_the_dtype_of_keys_and_values():
    """They are added up in float32 on the way round, and were sent so on the last step too."""

    def step(q, k, v, mine, theirs):
        q16, k16, v16 = (nm.cast(x, "bfloat16") for x in (q, k, v))
        loss = nm.sum(nm.cast(ring(q16, k16, v16, mine, theirs), "float32"))
        return nm.grad(loss, [k, v])

    plan = nm.plan(nm.trace(step, **SPECS), nm.Mesh(a=4, b=2), RING)
    sent = [(one.dtype, one.times) for one in plan.collectives if one.phase == "backward"]
    assert sent.count(("bfloat16", 1)) == 2 and ("float32", 1) not in sent


def ulysses(q, k, v, mine, theirs, causal=False, block=None):
    mask = nm.range(T) <= nm.range(S) if causal else None
    return nm.ulysses_attention(q, k, v, T, K, query=S, heads=H, mask=mask, block=block)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("batch", ["", ", batch:a"])
@pytest.mark.parametrize("block", [None, 8])
def test_ulysses(batch, causal, block):
    """One AllToAll for each of the four tensors, forward and backward, and nothing of keys."""
    program = nm.trace(with_gradients(ulysses, causal=causal, block=block), **SPECS)
    _, found = program.evaluate({}, **ARRAYS)
    expected = in_jax(*ARRAYS.values(), causal=causal)
    same({"y": found[0]}, {"y": expected}, rtol=1e-4, atol=1e-5)
    step = assert_sharded_same(program, SPECS, ARRAYS, f"seq:b, memory:b, heads:b{batch}")
    moves = [one for one in step.plan.collectives if one.kind == "AllToAll"]
    assert len(moves) == 8
    assert len(step.plan.collectives) == len(moves), "masks are made where they are read"


def test_ulysses_makes_masks_by_blocks_in_layers_computed_again():
    """A causal mask of 4,096 positions, were it whole, would take 16 MiB."""
    L, Q, P = nm.dims("layer=2 seq=4096 memory=4096")

    def layer(x, _):
        k = nm.rename(x, Q, P)
        mask = nm.range(P) <= nm.range(Q)
        y = nm.ulysses_attention(x, k, k, P, K, query=Q, heads=H, mask=mask, block=128)
        return y, None

    def gradient(x):
        return nm.grad(nm.sum(nm.scan(layer, x, over=L, remat="full")[0]), [x])

    program = nm.trace(gradient, nm.spec([Q, H, K]))
    plan = nm.plan(program, nm.Mesh(a=4), "seq:a, memory:a, heads:a")
    loops = [op for op in every_op(program.ops) if op.bodies]
    read = [x for op in loops for x in op.inputs]
    assert len(loops) == 5 and not any(x.dtype == "bool" for x in read)
    assert {one.kind for one in plan.collectives} == {"AllToAll"}, "masks are not sent"


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda q, k: nm.ring_attention(q, k, k, T, K, query=S, ring=H), "already"),
        (lambda q, k: nm.ring_attention(q, k, k, T, K, query=S, ring=nm.Dimension("r", 3)),
         "r=3 does not divide seq=16"),
        (lambda q, k: nm.ring_attention(q, k, k, S, K, query=S, ring=R), "no dimension seq"),
        (lambda q, k: nm.ring_attention(q, q, q, S, K, query=S, ring=R), "do not fit"),
        (lambda q, k: nm.ulysses_attention(q, k, k, T, K, query=S, heads=R), "no dimension block"),
    ],
)  # fmt: skip
def test_errors(wrong, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(wrong, q=SPECS["q"], k=SPECS["k"])
