"""The kernel of attention on TPUs: run step by step on CPUs, and compiled by the real compiler."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import namedmesh as nm
from namedmesh.artifacts.stablehlo import prepare, tpu_attention_kernel
from namedmesh.artifacts.stablehlo.attention_kernel import Options
from namedmesh.artifacts.stablehlo.tpu_attention_kernel import (
    Core,
    Tile,
    TpuAttentionCall,
    find_spans,
)
from namedmesh.cost import fusion
from tests.aot.test_aot_tpu import aot
from tests.artifacts.test_attention_kernel import by_matrices

SIZES = {"batch": 2, "seq": 128, "group": 2, "memory": 192}
N, K = 2, 16
TOLD = {"batch": 1, "queries": 2, "rows": [*SIZES], "scale": 0.25}
RNG = np.random.default_rng(0)
PLACES, KEYS = np.arange(128)[:, None] + 64, np.arange(192)[None]
MASKS = {
    "none": ((), None),
    "past": (("seq", "memory"), KEYS <= PLACES),
    "window": (("seq", "memory"), (KEYS <= PLACES) & (KEYS > PLACES - 70)),
    "padding, and a row of it alone": (("batch", "memory"), np.array([[100], [0]]) > KEYS),
    "packed": (("batch", "seq", "memory"), RNG.integers(0, 2, (2, 128, 192)) > 0),
    "of each group": (("seq", "group", "memory"), RNG.integers(0, 2, (128, 2, 192)) > 0),
}


@pytest.fixture
def small_tiles(monkeypatch):
    """Sizes are multiples of fewer numbers than a TPU's registers have."""
    monkeypatch.setattr(tpu_attention_kernel, "TILE", 64)


@pytest.mark.parametrize("widens", [False, True])
@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("kind", MASKS)
def test_both_passes(kind, rate, widens, small_tiles):
    names, array = MASKS[kind]
    b, s, g, t = SIZES.values()
    rng = np.random.default_rng(0)
    shapes = (b, s, g, N, K), (b, t, N, K), (b, t, N, K), (b, s, g, N, K)
    q, k, v, dy = (jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for shape in shapes)
    reads, mask, words = [q, k, v], None, None
    if array is not None:
        reads.append(jnp.asarray(array))
        lacking = tuple(i for i, name in enumerate(SIZES) if name not in names)
        spread = np.broadcast_to(np.expand_dims(array, lacking), (*SIZES.values(),))
        mask = jnp.asarray(spread.reshape(b, s * g, t), jnp.int8)
    if rate:
        words = jnp.asarray(rng.integers(0, 2**32, (b, N, s, g), dtype=np.uint32))
        reads.append(words)
        words = words.reshape(b, N, -1)
    told = {**TOLD, "rate": rate, "mask": [*names] if names else None}
    call = TpuAttentionCall.of(told, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in reads])
    assert call is not None

    def plain(q, k, v):
        q = q.reshape(b, -1, N, K)
        return by_matrices(q, k, v, mask, words, Options(0.25, rate)).reshape(dy.shape)

    wanted, pull = jax.vjp(plain, *(x.astype(jnp.float32) for x in (q, k, v)))
    way = {"core": Core(Tile(64, 64), widens), "interpret": True}
    y, lse = call.forward(*reads, **way)
    made = call.backward(*reads, y, lse, dy, **way)
    for got, want in zip((y, *made), (wanted, *pull(dy.astype(jnp.float32))), strict=True):
        assert got.dtype == jnp.bfloat16 and got.shape == want.shape
        # A result has 8 bits, and cotangents are made of the averages in as many.
        off = np.abs(np.asarray(got, np.float32) - np.asarray(want)).max()
        assert off < 1e-2 * np.abs(np.asarray(want)).max()


def describe(queries, keys, key, dtype=jnp.bfloat16):
    """A call for operands of these sizes."""
    shapes = (2, *queries, 2, key), (2, keys, 2, key), (2, keys, 2, key)
    reads = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    told = {**TOLD, "queries": len(queries), "rate": 0.0, "mask": None}
    return TpuAttentionCall.of(told, reads)


def test_what_it_does_not_do_is_left_to_named_ops():
    assert describe((512,), 768, 192) and describe((128, 2), 256, 16)
    assert describe((512,), 768, 192, jnp.float32) is None
    assert describe((512,), 768, 24) is None  # no whole registers
    assert describe((512,), 768, 512) is None  # too large
    assert describe((384,), 768, 64) is None and describe((512,), 64, 64) is None  # no tiles
    assert describe((2**15, 2), 2**15, 64) and describe((2**16,), 2**16, 64) is None  # large masks
    assert fusion.MOST_PAIRS == tpu_attention_kernel.MOST_PAIRS


def test_tokens_of_decoding_are_left_to_named_ops():
    options = {"batch": 1, "queries": 0, "rows": [], "scale": 1.0, "rate": 0.0, "mask": None}
    shapes = (2, 8, 128), (2, 512, 8, 128), (2, 512, 8, 128)
    reads = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    assert prepare.find_kernel("attention", options, reads, ["tpu"]) is None


def test_a_run_of_tiles_in_which_everything_is_allowed():
    places = np.arange(8)
    window = (places[None] <= places[:, None]) & (places[None] > places[:, None] - 5)
    mask = np.stack([window, np.zeros((8, 8), bool), np.ones((8, 8), bool)]).astype(np.int8)
    found = np.asarray(find_spans(jnp.asarray(mask), 2, 2)).reshape(3, 4, 4).tolist()
    # Tile with something, from and to; then full ones, from and to.
    assert found[0] == [[0, 1, 1, 1], [0, 2, 0, 1], [0, 3, 1, 2], [1, 4, 2, 3]]
    assert found[1] == [[0, 0, 0, 0]] * 4 and found[2] == [[0, 4, 0, 4]] * 4


def train_step(mesh, layout, params=None, rate=0.0):
    """A train step of two layers of attention with grouped queries, exported."""
    sizes = "batch=8 seq=1024 memory=1024 model=256 heads=4 group=2 key=128 layer=2"
    B, S, T, M, H, G, D, L = nm.dims(sizes)

    def layer(x, ws):
        w, u, v, o = (nm.cast(one, "bfloat16") for one in ws)
        q = nm.einsum([x, w], [B, S, G, H, D])
        k, z = (nm.rename(nm.einsum([x, one], [B, S, H, D]), S, T) for one in (u, v))
        mask = nm.range(T) <= nm.range(S)
        key = nm.random.key(1) if rate else None
        y = nm.attention(q, k, z, T, D, mask=mask, rate=rate, dropout_key=key)
        return x + nm.einsum([y, o], [B, S, M]), None

    def train(x):
        shapes = {"w": [L, M, G, H, D], "u": [L, M, H, D], "v": [L, M, H, D], "o": [L, G, H, D, M]}
        ws = tuple(nm.param(name, shape) for name, shape in shapes.items())
        y, _ = nm.scan(layer, nm.cast(x, "bfloat16"), ws, over=L, remat="full")
        loss = nm.mean(nm.square(nm.cast(y, "float32")))
        for name, grad in nm.grad(loss).items():
            nm.assign(nm.parameters()[name], nm.parameters()[name] - grad)
        return loss

    return nm.export(nm.trace(train, x=nm.spec([B, S, M])), mesh, layout, params)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not here")
@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize(
    "target", ["tpu-v3:2x2", "tpu-v4:2x2x2", "tpu-v5e:2x4", "tpu-v5p:2x2x2", "tpu-v6e:2x4"]
)
def test_tpus_have_the_kernel(target, partitioner, tmp_path, monkeypatch):
    """Where weights are gathered and heads split: the collectives are those of named ops."""
    monkeypatch.setenv("NAMEDMESH_PARTITIONER", partitioner)
    mesh = nm.Mesh(data=4, model=2)
    artifact = train_step(mesh, "batch:data, heads:model", "model:data", 0.1)
    (kernel,) = aot(tmp_path, artifact, target=target)
    monkeypatch.setenv("NAMEDMESH_KERNELS", "off")
    (plain,) = aot(tmp_path, artifact, target=target)
    for row in (kernel, plain):
        assert row["collectives_match_plan"], row["problems"]
    # The compiler does not count what kernels do.
    assert kernel["compiler_flops_per_core"] < plain["compiler_flops_per_core"] / 2
