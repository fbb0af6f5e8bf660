"""The kernel of attention, run step by step without a GPU, against attention by matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from namedmesh.artifacts.stablehlo.attention_kernel import (
    GOLDEN,
    AttentionCall,
    Operands,
    Options,
    Tiles,
    mix,
    run_backward,
    run_forward,
)

B, S, T, N, K = 2, 64, 32, 2, 16
WIDE, SMALL = Tiles(32, 16, 4, 2), Tiles(16, 16, 4, 2)


def by_matrices(q, k, v, mask, words, options):
    """Attention with all its weights, by jnp."""
    scores = jnp.einsum("bsnk,btnk->bnst", q, k) * options.scale
    if mask is not None:
        scores = jnp.where(mask[:, None] != 0, scores, -jnp.inf)
    peak = jnp.maximum(jnp.max(scores, -1, keepdims=True), -1e30)
    parts = jnp.exp(scores - peak)
    weights = parts / jnp.maximum(parts.sum(-1, keepdims=True), 1e-30)
    if words is not None:
        numbers = jnp.arange(k.shape[1], dtype=jnp.uint32) * jnp.uint32(GOLDEN)
        kept = mix(words[..., None] + numbers) >= jnp.uint32(options.threshold)
        weights = jnp.where(kept, weights / (1 - options.rate), 0)
    return jnp.einsum("bnst,btnk->bsnk", weights, v)


def make_mask(kind):
    """Nothing, packed examples, packed examples and the past only, or one mask for all rows."""
    rng = np.random.default_rng(1)
    if kind == "none":
        return None
    if kind == "past":
        return jnp.asarray(np.arange(T)[None, None] <= np.arange(S)[None, :, None], jnp.int8)
    segments, memory = (np.sort(rng.integers(0, 4, (B, size)), 1) for size in (S, T))
    mask = (segments[:, :, None] == memory[:, None, :]) & (memory[:, None, :] > 0)
    if kind == "packed past":
        mask &= np.arange(T)[None, None] <= np.arange(S)[None, :, None]
    assert not mask.any(2).all()
    return jnp.asarray(mask, jnp.int8)


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, 2e-6), (jnp.bfloat16, 1e-2)])
@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["none", "packed", "packed past", "past"])
def test_both_passes(kind, rate, dtype, tolerance):
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(B, size, N, K)) for size in (S, T, T, S)]
    q, k, v, dy = (jnp.asarray(array, dtype) for array in arrays)
    words = jnp.asarray(rng.integers(0, 2**32, (B, N, S), dtype=np.uint32)) if rate else None
    mask, options = make_mask(kind), Options(0.25, rate)
    wide = [x.astype(jnp.float32) for x in (q, k, v)]
    plain = lambda q, k, v: by_matrices(q, k, v, mask, words, options)
    wanted, pull = jax.vjp(plain, *wide)
    operands = Operands(q, k, v, mask, words)
    y, lse = run_forward(operands, options, tiles=WIDE, interpret=True)
    made = run_backward(
        operands, y, lse, dy, options, by_keys=SMALL, by_queries=WIDE, interpret=True
    )
    for got, want in zip((y, *made), (wanted, *pull(dy.astype(jnp.float32))), strict=True):
        assert got.dtype == dtype
        off = np.abs(np.asarray(got, np.float32) - np.asarray(want)).max()
        assert off < tolerance * np.abs(np.asarray(want)).max()


TOLD = {"batch": 2, "queries": 1, "heads": 1, "scale": 0.25, "rate": 0.0}
ROWS = ["outer", "inner", "seq", "memory"]


def describe(shapes, mask=None, dtype=jnp.bfloat16, **told):
    """A call for operands of these shapes."""
    reads = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes[:3]]
    reads += [jax.ShapeDtypeStruct(shape, jnp.bool_) for shape in shapes[3:]]
    return AttentionCall.of({**TOLD, "mask": mask, "rows": ROWS, **told}, reads)


@pytest.mark.parametrize(
    "mask", [["seq", "memory"], ["inner", "memory"], ["outer", "inner", "memory"]]
)
def test_masks_lack_dimensions(mask):
    sizes = dict(zip(ROWS, (2, 3, 32, 16), strict=True))
    shapes = [
        (2, 3, 32, 2, 16),
        (2, 3, 16, 2, 16),
        (2, 3, 16, 2, 16),
        tuple(sizes[n] for n in mask),
    ]
    call = describe(shapes, mask)
    assert call is not None
    array = np.random.default_rng(0).integers(0, 2, shapes[3]).astype(bool)
    found = call.shared([*(np.zeros(shape) for shape in shapes[:3]), jnp.asarray(array)])[3]
    axes = tuple(i for i, name in enumerate(ROWS) if name not in mask)
    wanted = np.broadcast_to(np.expand_dims(array, axes), (2, 3, 32, 16)).reshape(6, 32, 16)
    assert np.array_equal(np.broadcast_to(np.asarray(found), wanted.shape), wanted)


@pytest.mark.parametrize(
    "shapes, options",
    [
        ([(2, 3, 32, 2, 24), (2, 3, 16, 2, 24), (2, 3, 16, 2, 24)], {}),  # no power of two
        ([(2, 3, 32, 2, 256), (2, 3, 16, 2, 256), (2, 3, 16, 2, 256)], {}),  # too large
        ([(2, 3, 8, 2, 16), (2, 3, 16, 2, 16), (2, 3, 16, 2, 16)], {}),  # too few queries
        ([(2, 3, 32, 2, 16), (2, 3, 9, 2, 16), (2, 3, 9, 2, 16)], {}),  # no tiles
        ([(2, 3, 32, 2, 16), (2, 3, 16, 2, 16), (2, 3, 16, 2, 16)], {"dtype": jnp.float32}),
        (
            [(2, 3, 32, 2, 16), (2, 3, 16, 2, 16), (2, 3, 16, 2, 16), (2, 32, 16)],
            {"mask": ["heads", "seq", "memory"]},
        ),
    ],
)
def test_what_it_does_not_do_is_left_to_named_ops(shapes, options):
    assert describe(shapes, **options) is None


def test_tiles_divide_sizes():
    shapes = [(2, 3, 96, 2, 16), (2, 3, 48, 2, 16), (2, 3, 48, 2, 16)]
    call = describe(shapes)
    assert call is not None
    assert call.tiles(Tiles(128, 64, 4, 2)) == Tiles(32, 16, 4, 2)
