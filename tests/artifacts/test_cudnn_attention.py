"""Attention by cuDNN: what it is asked for, in its order of dimensions, and where it is chosen."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import namedmesh as nm
from namedmesh.aot import Target
from namedmesh.aot.absent_devices import devices_of
from namedmesh.artifacts.stablehlo import cudnn_attention, prepare
from namedmesh.artifacts.stablehlo.attention_kernel import AttentionCall, Options
from namedmesh.artifacts.stablehlo.cudnn_attention import CudnnAttentionCall
from namedmesh.jax_internals import find_gpu_compiler
from namedmesh.layers import causal_mask
from namedmesh.processes.devices import arrange_devices
from namedmesh.runtime import compiling
from tests.artifacts.test_attention_kernel import by_matrices

B, N, K, SCALE = 2, 3, 16, 0.25


def cudnn_by_matrices(q, k, v, *saved, scale, causal):
    """What cuDNN computes of [batch, positions, heads, key], where heads may share keys."""
    mask = jnp.asarray(np.tril(np.ones((1, q.shape[1], k.shape[1]))), jnp.int8) if causal else None

    def attend(q, k, v):
        k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
        return by_matrices(q, k, v, mask, None, Options(scale))

    y, pull = jax.vjp(attend, q, k, v)
    if saved:
        lse, before, dy = saved
        np.testing.assert_allclose(before, y, rtol=1e-5, atol=1e-5)
        assert lse.shape == (q.shape[0], q.shape[2], q.shape[1])
        return pull(dy)
    # A number for each head and position by which the test sees where they end up.
    return y, jnp.einsum("bsnk->bns", q)


@pytest.fixture
def present(monkeypatch):
    """A cuDNN that multiplies matrices, and takes small ones."""
    monkeypatch.setattr(cudnn_attention, "find_cudnn", lambda: 1)
    monkeypatch.setattr(cudnn_attention, "cudnn_attention", cudnn_by_matrices)
    monkeypatch.setattr(cudnn_attention, "LEAST", 4)


def describe(queries, memory=8, rate=0.0, mask=None, dtype=jnp.bfloat16, key=K, **more):
    """The options and the operands of a call."""
    names = [f"q{i}" for i in range(len(queries))]
    rows = ["batch", *names, "memory"]
    options = {"batch": 1, "queries": len(queries), "rows": rows, "scale": SCALE, "rate": rate}
    shapes = [(B, *queries, N, key), (B, memory, N, key), (B, memory, N, key)]
    sizes = dict(zip(rows, (B, *queries, memory), strict=True))
    reads = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    if mask is not None:
        reads.append(jax.ShapeDtypeStruct(tuple(sizes[one] for one in mask), jnp.bool_))
    return {**options, "mask": mask, **more}, reads


@pytest.mark.parametrize(
    ("queries", "causal"),
    [((8,), 0), ((8, 2), 0), ((2, 8), 1), ((2, 8, 3), 1), ((8, 2), None), ((5,), None)],
)
def test_both_passes(queries, causal, present):
    mask = None if causal is None else [f"q{causal}", "memory"]
    more = {} if causal is None else {"causal": causal}
    call = CudnnAttentionCall.of(*describe(queries, mask=mask, **more))
    assert call is not None
    rng = np.random.default_rng(0)
    q, k, v, dy = (
        jnp.asarray(rng.normal(size=shape), jnp.float32)
        for shape in ((B, *queries, N, K), (B, 8, N, K), (B, 8, N, K), (B, *queries, N, K))
    )
    masked = None
    if causal is not None:
        places = np.indices(queries)[causal].reshape(-1)
        masked = jnp.asarray(np.arange(8)[None, None] <= places[None, :, None], jnp.int8)

    def plain(q, k, v):
        y = by_matrices(q.reshape(B, -1, N, K), k, v, masked, None, Options(SCALE))
        return y.reshape(dy.shape)

    wanted, pull = jax.vjp(plain, q, k, v)
    extra = [] if mask is None else [jnp.zeros(())]  # cuDNN knows the mask by its name
    y, lse = call.forward(q, k, v, *extra)
    made = call.backward(q, k, v, *extra, y, lse, dy)
    for got, want in zip((y, *made), (wanted, *pull(dy)), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    # Of every head and query, in the order of named ops: batch, heads, queries.
    np.testing.assert_allclose(lse, jnp.moveaxis(q.sum(-1), -1, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("chosen", "case"),
    [
        (True, {"queries": (8,), "mask": ["q0", "memory"], "causal": 0}),
        (True, {"queries": (8,)}),
        (False, {"queries": (8,), "rate": 0.1}),
        (False, {"queries": (8,), "mask": ["batch", "memory"]}),
        (False, {"queries": (4,), "mask": ["q0", "memory"], "causal": 0}),  # a shard of queries
        (False, {"queries": (8,), "dtype": jnp.float32}),
        (False, {"queries": (8,), "key": 12}),
        (False, {"queries": (2,)}),  # too few
    ],
)
def test_what_it_takes(chosen, case, present):
    assert (CudnnAttentionCall.of(*describe(**case)) is not None) == chosen


@pytest.mark.parametrize(
    ("there", "use", "kind"),
    [
        (True, "auto", CudnnAttentionCall),
        (False, "auto", AttentionCall),
        (True, "own", AttentionCall),
    ],
)
def test_where_it_is_chosen(there, use, kind, present, monkeypatch):
    """On GPUs that are here, unless kernels of our own are wanted."""
    monkeypatch.setenv("NAMEDMESH_KERNELS", use)
    options, reads = describe((64,), memory=64)
    options |= {"library": there, "results": [0]}
    find = lambda: prepare.find_kernel("attention", options, reads, ["cuda"])
    assert type(getattr(find(), "__self__", None)) is kind
    monkeypatch.setattr(cudnn_attention, "find_cudnn", lambda: 0)
    assert type(getattr(find(), "__self__", None)) is AttentionCall


S, T, G, H, D = nm.dims("seq=1024 memory=1024 group=2 heads=2 key=64")
MASKS = {
    "past": lambda: nm.range(T) <= nm.range(S),
    "past, the other way round": lambda: nm.range(S) >= nm.range(T),
    "of layers": lambda: causal_mask(S, T),
    "strictly past": lambda: nm.range(T) < nm.range(S),
    "shifted": lambda: nm.range(T) <= nm.range(S) + 1,
    "future": lambda: nm.range(T) >= nm.range(S),
}


def train(q, k, v, mask):
    loss = nm.mean(nm.cast(nm.attention(q, k, v, T, D, mask=MASKS[mask]()), "float32"))
    return nm.grad(loss, [q, k, v])


@pytest.mark.parametrize("mask", MASKS)
def test_causal_masks_are_known(mask):
    specs = [nm.spec(dims, "bfloat16") for dims in ([S, H, G, D], [T, H, D], [T, H, D])]
    program = nm.trace(functools.partial(train, mask=mask), *specs)
    kernels = [op for op in program.ops if op.offers_kernel]
    assert len(kernels) == 2
    known = [*MASKS].index(mask) < 3
    assert [op.options.get("causal") for op in kernels] == [0 if known else None] * 2


@pytest.mark.skipif(find_gpu_compiler() is None, reason="XLA's GPU compiler is not here")
@pytest.mark.parametrize("devices", [1, 2])
def test_one_gpu_calls_cudnn_and_several_do_not(devices, monkeypatch):
    """As if the GPUs of a cluster were here: copies of a weight may not part on several."""
    monkeypatch.setattr(cudnn_attention, "find_cudnn", lambda: 1)
    monkeypatch.setattr(compiling, "is_present", lambda device: True)
    specs = [nm.spec(dims, "bfloat16") for dims in ([S, H, G, D], [T, H, D], [T, H, D])]
    program = nm.trace(functools.partial(train, mask="past"), *specs)
    mesh = nm.Mesh(a=devices)
    artifact = nm.export(program, mesh, "heads:a" if devices > 1 else "")
    gpus = devices_of(Target.parse(f"h200:1x{devices}"))
    text = compiling.lower_step(artifact, arrange_devices(gpus, mesh)).lowered.as_text()
    alone = devices == 1
    for name in ("fmhaSoftmax(", "fmhaSoftmaxBackward("):
        assert text.count(f"@__cudnn${name}") == alone
    assert text.count("CAUSAL") == 2 * alone and ("triton" in text) != alone
    assert ("tensor<1x1024x4x64xbf16>" in text) == alone
