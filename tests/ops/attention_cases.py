"""Inputs and layouts of attention, and a step that returns its gradients."""

import jax.numpy as jnp
import numpy as np
from jax import lax

import namedmesh as nm
from namedmesh.artifacts.stablehlo.attention_kernel import mix
from tests.checks import uniform

B, S, T, N, K = nm.dims("batch=8 seq=16 memory=32 heads=4 key=16")
SPECS = {
    "q": nm.spec([B, S, N, K]),
    "k": nm.spec([B, T, N, K]),
    "v": nm.spec([B, T, N, K]),
    "segments": nm.spec([B, S], "int32"),
    "memory_segments": nm.spec([B, T], "int32"),
}
ARRAYS = {
    "q": uniform(1, 8, 16, 4, 16) * 2,
    "k": uniform(2, 8, 32, 4, 16) * 2,
    "v": uniform(3, 8, 32, 4, 16),
    "segments": np.sort(np.random.default_rng(4).integers(0, 4, (8, 16)), 1).astype(np.int32),
    "memory_segments": np.sort(np.random.default_rng(5).integers(0, 4, (8, 32)), 1).astype(
        np.int32
    ),
}


def make_step(rate=0.0, masked=True, attend=None):
    """A step that returns attention's result and all its gradients."""

    def step(q, k, v, segments, memory_segments):
        mask = nm.equal(segments, memory_segments) & (memory_segments > 0)
        mask = mask & (nm.range(T) <= nm.range(S) + 16)
        key = nm.random.key(7)
        options = {"mask": mask if masked else None, "rate": rate, "dropout_key": key}
        y = (attend or nm.attention)(q, k, v, T, K, **options)
        loss = nm.sum(nm.square(y) * nm.cos(nm.cast(nm.range(K), "float32")))
        dq, dk, dv = nm.grad(loss, [q, k, v])
        return {"y": y, "dq": dq, "dk": dk, "dv": dv}

    return step


def by_matrices(options, reads):
    """Both passes in jax, without a call of a function, by matrices: stands in for a kernel."""
    masked, rate, scale = options["mask"] is not None, options["rate"], options["scale"]

    def weigh(q, k, *extra):
        scores = jnp.einsum("bsnk,btnk->bnst", q, k) * scale
        allowed = extra[0][:, None].astype(jnp.float32) if masked else 1.0
        parts = jnp.exp(scores) * allowed
        mass = parts.sum(-1, keepdims=True)
        mass = mass + (mass == 0).astype(jnp.float32)
        kept = 1.0
        if rate:
            words = mix(
                extra[-1][..., None] + lax.iota(jnp.uint32, k.shape[1]) * jnp.uint32(0x9E3779B9)
            )
            kept = (words >= jnp.uint32(int(rate * 2**32))).astype(jnp.float32) / (1.0 - rate)
        return parts / mass, kept, jnp.log(mass[..., 0])

    def forward(q, k, v, *extra):
        weights, kept, lse = weigh(q, k, *extra)
        return jnp.einsum("bnst,btnk->bsnk", weights * kept, v), lse

    def backward(q, k, v, *rest):
        *extra, _, _, dy = rest
        weights, kept, _ = weigh(q, k, *extra)
        d_weights = jnp.einsum("bsnk,btnk->bnst", dy, v) * kept
        mean = (weights * d_weights).sum(-1, keepdims=True)
        d_scores = weights * (d_weights - mean) * scale
        return (
            jnp.einsum("bnst,btnk->bsnk", d_scores, k),
            jnp.einsum("bnst,bsnk->btnk", d_scores, q),
            jnp.einsum("bnst,bsnk->btnk", weights * kept, dy),
        )

    return {"attention": forward, "attention_backward": backward}


LAYOUTS = ["", "batch:a", "heads:b", "batch:a, heads:b", "batch:a+b", "seq:b", "memory:b", "key:b"]
