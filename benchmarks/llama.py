"""A Llama-style stack of layers: rotary positions, RMS norm, SwiGLU, grouped-query attention.

The residual stream has its sequence under a name of its own, so that a layout can split the two
differently: "row:tensor" alone is sequence parallelism, "row:context, seq:context" is context
parallelism.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import namedmesh as nm
from namedmesh.layers import moe, rms_norm, top_k_gating

HALF = nm.Dimension("half", 2)


@dataclass(frozen=True)
class Llama:
    """The layers of a model of some sizes; weights are float32, whatever they are used in."""

    B: nm.Dimension
    ROW: nm.Dimension  # the sequence, in the residual stream
    S: nm.Dimension  # the sequence, in attention and feed-forward layers
    T: nm.Dimension  # the sequence, of keys and values
    M: nm.Dimension
    H: nm.Dimension
    N: nm.Dimension  # heads of keys and values
    R: nm.Dimension  # query heads that share a head of keys and values
    D: nm.Dimension
    E: nm.Dimension
    C: nm.Dimension
    dtype: str = "float32"
    repeated: bool = False  # heads of keys and values are repeated, by nm.repeat
    kernel: bool = False  # attention as one op, for which backends have kernels

    @classmethod
    def of(
        cls,
        batch: int = 8,
        length: int = 16,
        model: int = 64,
        hidden: int = 128,
        heads: int = 8,
        depth: int = 8,
        dtype: str = "float32",
    ) -> Llama:
        """Return the layers for so many rows of so many tokens."""
        sizes = (
            f"batch={batch} row={length} seq={length} key_seq={length} model={model} "
            f"hidden={hidden} head={heads} query=2 depth={depth} expert=8 capacity=4"
        )
        B, ROW, S, T, M, H, N, R, D, E, C = nm.dims(sizes)
        return cls(B, ROW, S, T, M, H, N, R, D, E, C, dtype)

    def weight(self, name: str, dims: list[nm.Dimension]) -> nm.Tensor:
        """Return a parameter, in the dtype that it is used in."""
        value = nm.param(name, dims)
        return value if self.dtype == "float32" else nm.cast(value, self.dtype)

    def rotate(self, x: nm.Tensor, sequence: nm.Dimension) -> nm.Tensor:
        """Rotate pairs of elements by angles that grow with the position."""
        D, PAIR = self.D, nm.Dimension("pair", self.D.size // 2)
        frequency = nm.exp(nm.range(PAIR, "float32") * (-math.log(10_000.0) / PAIR.size))
        angle = nm.range(sequence, "float32") * frequency
        order = x.shape
        x = nm.reshape(x, [D], [HALF, PAIR])
        first, second = (nm.sum(nm.slice(x, HALF, i, 1), over=HALF.resized(1)) for i in (0, 1))
        cosine, sine = (nm.cast(iteration(angle), x.dtype) for iteration in (nm.cos, nm.sin))
        turned = first * cosine - second * sine, second * cosine + first * sine
        return nm.transpose(nm.reshape(nm.stack(turned, HALF), [HALF, PAIR], [D]), order)

    def attend(self, h: nm.Tensor) -> nm.Tensor:
        """Causal grouped-query attention."""
        B, S, T, M, N, R, D = self.B, self.S, self.T, self.M, self.N, self.R, self.D
        q = self.rotate(nm.einsum([h, self.weight("wq", [M, N, R, D])], [B, S, N, R, D]), S)
        k = self.rotate(nm.einsum([h, self.weight("wk", [M, N, D])], [B, S, N, D]), S)
        v = nm.einsum([h, self.weight("wv", [M, N, D])], [B, S, N, D])
        k, v = (nm.rename(x, S, T) for x in (k, v))
        if self.repeated:  # as many heads as queries have, in one dimension
            ALL = N.resized(N.size * R.size)
            q, k, v = nm.reshape(q, [N, R], ALL), nm.repeat(k, N, R.size), nm.repeat(v, N, R.size)
            scores = nm.einsum([q, k], [B, ALL, S, T]) * (1 / math.sqrt(D.size))
            weights = nm.softmax(nm.where(nm.range(T) <= nm.range(S), scores, -1e9), over=T)
            mixed = nm.reshape(nm.einsum([weights, v], [B, S, ALL, D]), ALL, [N, R])
            return nm.einsum([mixed, self.weight("wo", [N, R, D, M])], [B, S, M])
        causal = nm.range(T) <= nm.range(S)
        if self.kernel:
            mixed = nm.attention(q, k, v, T, D, mask=causal, block=T.size)
            return nm.einsum([mixed, self.weight("wo", [N, R, D, M])], [B, S, M])
        scores = nm.einsum([q, k], [B, N, R, S, T]) * (1 / math.sqrt(D.size))
        weights = nm.softmax(nm.where(causal, scores, -1e9), over=T)
        mixed = nm.einsum([weights, v], [B, S, N, R, D])
        return nm.einsum([mixed, self.weight("wo", [N, R, D, M])], [B, S, M])

    def feed_forward(self, h: nm.Tensor) -> nm.Tensor:
        """SwiGLU."""
        B, S, M, H = self.B, self.S, self.M, self.H
        gate = nm.swish(nm.einsum([h, self.weight("wg", [M, H])], [B, S, H]))
        inner = gate * nm.einsum([h, self.weight("wi", [M, H])], [B, S, H])
        return nm.einsum([inner, self.weight("wd", [H, M])], [B, S, M])

    def mix_experts(self, h: nm.Tensor) -> nm.Tensor:
        """Apply a mixture of experts instead of SwiGLU; the rows of a batch are its groups."""
        B, S, M, H, E, C = self.B, self.S, self.M, self.H, self.E, self.C
        mixed, _ = moe(
            h, lambda logits: top_k_gating(logits, S, E, C, second="all"), (B, S, E, C, M, H)
        )
        return mixed

    def layer(
        self, x: nm.Tensor, second: Callable[[nm.Tensor], nm.Tensor] | None = None
    ) -> nm.Tensor:
        """Apply one layer to a residual stream [batch, row, model]; SwiGLU by default."""
        for name, part in (
            ("attention", self.attend),
            ("feed_forward", second or self.feed_forward),
        ):
            with nm.scope(name):
                h = nm.rename(rms_norm(x, self.M), self.ROW, self.S)
                x = x + nm.rename(part(h), self.S, self.ROW)
        return x

    def residual(
        self, name: str, part: Callable[[nm.Tensor], nm.Tensor], x: nm.Tensor
    ) -> nm.Tensor:
        """Return what a part of a layer adds to the residual stream."""
        with nm.scope(name):
            h = nm.rename(rms_norm(x, self.M), self.ROW, self.S)
            return nm.rename(part(h), self.S, self.ROW)

    def parallel_layer(self, x: nm.Tensor) -> nm.Tensor:
        """Apply attention and SwiGLU to the same rows, and add both (GPT-J, PaLM)."""
        h = nm.rename(rms_norm(x, self.M), self.ROW, self.S)
        for part in (self.attend, self.feed_forward):
            x = x + nm.rename(part(h), self.S, self.ROW)
        return x
