"""The paper's MoE layer (Algorithm 2) in its one-hot form, with top-2 gating (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import namedmesh as nm


@dataclass(frozen=True)
class Sizes:
    """The reference shapes of every benchmark."""

    group: int = 8
    seq: int = 64
    model: int = 256
    hidden: int = 1024
    expert: int = 8

    @property
    def capacity(self) -> int:
        """Twice the even share of a group's tokens."""
        return 2 * self.seq // self.expert


def top2_gating(
    gates: nm.Tensor, S: nm.Dimension, E: nm.Dimension, C: nm.Dimension
) -> tuple[nm.Tensor, nm.Tensor, nm.Tensor]:
    """Return combine weights and dispatch mask (GSEC), and each group's auxiliary loss (G).

    gates are GSE.
    """
    first = nm.one_hot(nm.argmax(gates, E), E)  # GSE
    density, proxy = nm.mean(first, over=S), nm.mean(gates, over=S)  # GE
    aux = nm.mean(density * proxy, over=E)  # G
    second = nm.one_hot(nm.argmax(nm.where(first > 0, -1.0, gates), E), E)
    gate1, gate2 = nm.sum(gates * first, over=E), nm.sum(gates * second, over=E)  # GS
    total = gate1 + gate2 + 1e-9
    place1 = nm.cumsum(first, S, exclusive=True)  # GSE: how many came before
    place2 = nm.cumsum(second, S, exclusive=True) + nm.sum(first, over=S)
    combine1 = _place(first, place1, gate1 / total, E, C)
    combine = combine1 + _place(second, place2, gate2 / total, E, C)
    return combine, nm.cast(combine > 0, "float32"), aux


def _place(
    mask: nm.Tensor, place: nm.Tensor, gate: nm.Tensor, E: nm.Dimension, C: nm.Dimension
) -> nm.Tensor:
    """Put every token's gate at its place in its expert's buffer, unless beyond the capacity."""
    kept = mask * nm.cast(place < C.size, "float32")  # GSE
    position = nm.cast(nm.sum(place * kept, over=E), "int32")  # GS
    return nm.einsum([gate, kept, nm.one_hot(position, C)], [*kept.shape, C])  # GSEC


def layer(
    sizes: Sizes,
) -> tuple[Callable[[nm.Tensor], tuple[nm.Tensor, nm.Tensor]], list[nm.Dimension]]:
    """Return the function of one layer and the dimensions it is written in."""
    G, S, E, C, M, H = nm.dims(
        f"group={sizes.group} seq={sizes.seq} expert={sizes.expert} capacity={sizes.capacity} "
        f"model={sizes.model} hidden={sizes.hidden}"
    )

    def moe(x: nm.Tensor) -> tuple[nm.Tensor, nm.Tensor]:  # x: GSM
        wg = nm.param("wg", [M, E], whole=[E])
        wi = nm.param("wi", [E, M, H], nm.fan_in_init(M))
        wo = nm.param("wo", [E, H, M], nm.fan_in_init(H))
        gates = nm.softmax(nm.einsum([x, wg], [G, S, E]), over=E)
        combine, dispatch, aux = top2_gating(gates, S, E, C)
        xe = nm.einsum([dispatch, x], [E, G, C, M])
        xe = nm.reshard(xe, E)  # group -> expert: one AllToAll
        h = nm.relu(nm.einsum([xe, wi], [E, G, C, H]))
        ye = nm.reshard(nm.einsum([h, wo], [E, G, C, M]), G)  # and one back
        return nm.einsum([combine, ye], [G, S, M]), aux

    return moe, [G, S, E, C, M, H]


def program(sizes: Sizes = Sizes()) -> nm.Program:
    """Trace the layer forward and backward: y and the gradients of input and weights."""
    moe, (G, S, _E, _C, M, _H) = layer(sizes)

    def step(x, dy):
        y, aux = moe(x)
        loss = nm.sum(y * dy) + nm.mean(aux)
        return {"y": y, **nm.grad(loss, {"x": x, **nm.parameters()})}

    return nm.trace(step, x=nm.spec([G, S, M]), dy=nm.spec([G, S, M]))
