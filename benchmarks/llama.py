"""A Llama-style stack of layers: rotary positions, RMS norm, SwiGLU, grouped-query attention.

The residual stream has its sequence under a name of its own, so that a layout can split the two
differently: "row:tensor" alone is sequence parallelism, "row:context, seq:context" is context
parallelism.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import namedmesh as nm
from namedmesh.layers import moe, rms_norm, top_k_gating

B = nm.Dimension("batch", 8)
ROW = nm.Dimension("row", 16)  # the sequence, in the residual stream
S = nm.Dimension("seq", 16)  # the sequence, in attention and feed-forward layers
T = nm.Dimension("key_seq", 16)  # the sequence, of keys and values
M = nm.Dimension("model", 64)
H = nm.Dimension("hidden", 128)
N = nm.Dimension("head", 8)  # of keys and values
R = nm.Dimension("query", 2)  # query heads that share a head of keys and values
D = nm.Dimension("depth", 8)
E, C = nm.Dimension("expert", 8), nm.Dimension("capacity", 4)
HALF, PAIR = nm.Dimension("half", 2), nm.Dimension("pair", 4)


def rotate(x: nm.Tensor, sequence: nm.Dimension) -> nm.Tensor:
    """Turns pairs of elements by angles that grow with the position."""
    frequency = nm.exp(nm.range(PAIR, "float32") * (-math.log(10_000.0) / PAIR.size))
    angle = nm.range(sequence, "float32") * frequency
    order = x.shape
    x = nm.reshape(x, [D], [HALF, PAIR])
    first, second = (nm.sum(nm.slice(x, HALF, i, 1), over=HALF.resized(1)) for i in (0, 1))
    turned = (
        first * nm.cos(angle) - second * nm.sin(angle),
        second * nm.cos(angle) + first * nm.sin(angle),
    )
    return nm.transpose(nm.reshape(nm.stack(turned, HALF), [HALF, PAIR], [D]), order)


def attend(h: nm.Tensor) -> nm.Tensor:
    """Causal grouped-query attention."""
    q = rotate(nm.einsum([h, nm.param("wq", [M, N, R, D])], [B, S, N, R, D]), S)
    k = rotate(nm.einsum([h, nm.param("wk", [M, N, D])], [B, S, N, D]), S)
    v = nm.einsum([h, nm.param("wv", [M, N, D])], [B, S, N, D])
    k, v = (nm.rename(x, S, T) for x in (k, v))
    scores = nm.einsum([q, k], [B, N, R, S, T]) * (1 / math.sqrt(D.size))
    causal = nm.range(T) <= nm.range(S)
    weights = nm.softmax(nm.where(causal, scores, -1e9), over=T)
    mixed = nm.einsum([weights, v], [B, S, N, R, D])
    return nm.einsum([mixed, nm.param("wo", [N, R, D, M])], [B, S, M])


def feed_forward(h: nm.Tensor) -> nm.Tensor:
    """SwiGLU."""
    gate = nm.swish(nm.einsum([h, nm.param("wg", [M, H])], [B, S, H]))
    inner = gate * nm.einsum([h, nm.param("wi", [M, H])], [B, S, H])
    return nm.einsum([inner, nm.param("wd", [H, M])], [B, S, M])


def mix_experts(h: nm.Tensor) -> nm.Tensor:
    """A mixture of experts in the place of SwiGLU; the rows of a batch are its groups."""
    mixed, _ = moe(
        h, lambda logits: top_k_gating(logits, S, E, C, second="all"), (B, S, E, C, M, H)
    )
    return mixed


def layer(x: nm.Tensor, second: Callable[[nm.Tensor], nm.Tensor] = feed_forward) -> nm.Tensor:
    """One layer of the stack, on a residual stream [batch, row, model]."""
    for name, part in (("attention", attend), ("feed_forward", second)):
        with nm.scope(name):
            h = nm.rename(rms_norm(x, M), ROW, S)
            x = x + nm.rename(part(h), S, ROW)
    return x
