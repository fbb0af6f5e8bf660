"""Dispatch: tokens to the experts' buffers and back, in the paper's one-hot form or by index, with equal results."""

from __future__ import annotations

import namedmesh as nm
from namedmesh.dims.dimension import Dimension
from namedmesh.dims.errors import NamedMeshError, did_you_mean
from namedmesh.ir.tensor import Tensor
from namedmesh.layers.gating import ExpertRouting, Routing


class EinsumDispatch:
    """The paper's form: one-hot masks of shape GSEC. Readable; costs S/H of the experts' own FLOPs."""

    def __init__(self, routing: Routing | ExpertRouting):
        if isinstance(routing, ExpertRouting):
            taken = nm.one_hot(routing.token, routing.seq, routing.weight.dtype)  # GECS
            self.combine_weights = taken * routing.weight
            self.mask = taken
            return
        dtype, E, C = routing.weight.dtype, routing.experts, routing.capacity
        dims = [dim for dim in routing.weight.shape if dim.name != "choice"]
        expert, place = (
            nm.one_hot(routing.expert, E, dtype),
            nm.one_hot(routing.place, C, dtype),
        )  # GSKE, GSKC
        self.combine_weights = nm.einsum([routing.weight, expert, place], [*dims, E, C])  # GSEC
        self.mask = nm.cast(self.combine_weights > 0, dtype)

    def expert_inputs(self, x: Tensor, dims: list[Dimension]) -> Tensor:
        """Tokens (GSM) in the experts' buffers (dims: EGCM)."""
        return nm.einsum([nm.cast(self.mask, x.dtype), x], dims)

    def outputs(self, y: Tensor, dims: list[Dimension]) -> Tensor:
        """The experts' results (EGCM) back at their tokens (dims: GSM), weighted."""
        return nm.einsum([nm.cast(self.combine_weights, y.dtype), y], dims)


class GatherDispatch:
    """By index: no tensor of size SEC is made, and both directions, and their derivatives, are gathers."""

    def __init__(self, routing: Routing | ExpertRouting):
        self.routing = routing
        if isinstance(routing, ExpertRouting):
            return
        E, C = routing.experts, routing.capacity
        self.slots = Dimension("slot", E.size * C.size)
        self.groups = [
            dim for dim in routing.weight.shape if dim.name not in ("choice", routing.seq.name)
        ]
        slot = routing.expert * C.size + routing.place
        self.slot = nm.where(
            nm.stop_gradient(routing.weight) > 0, slot, self.slots.size
        )  # GSK; outside where not served
        numbers = nm.broadcast(nm.range(routing.seq) + 1, slot.shape)
        self.token = (
            nm.scatter_add(numbers, self.slot, self.slots, batch=self.groups) - 1
        )  # G slot; -1 where empty

    def expert_inputs(self, x: Tensor, dims: list[Dimension]) -> Tensor:
        """Tokens (GSM) in the experts' buffers (dims: EGCM)."""
        if isinstance(self.routing, ExpertRouting):
            return nm.transpose(nm.gather(x, self.routing.token, self.routing.seq), dims)
        S, K = self.routing.seq, self.routing.weight.shape.dims[-1]

        def forward(x: Tensor):
            return nm.gather(x, self.token, S), (self.slot, x)

        def backward(saved, dy: Tensor):
            slot, x = saved
            return [nm.transpose(nm.sum(nm.gather(dy, slot, self.slots), over=K), x.shape)]

        taken = nm.custom_vjp(forward, backward)(x)  # G slot M
        return nm.transpose(
            nm.reshape(taken, self.slots, [self.routing.experts, self.routing.capacity]), dims
        )

    def outputs(self, y: Tensor, dims: list[Dimension]) -> Tensor:
        """The experts' results (EGCM) back at their tokens (dims: GSM), weighted."""
        if isinstance(self.routing, ExpertRouting):
            groups = [dim for dim in self.routing.token.shape if dim in dims]
            rest = [dim for dim in y.shape if dim not in self.routing.token.shape.dims]
            weighted = nm.transpose(
                y * nm.cast(self.routing.weight, y.dtype), [*self.routing.token.shape, *rest]
            )
            return nm.transpose(
                nm.scatter_add(weighted, self.routing.token, self.routing.seq, batch=groups), dims
            )
        S, K = self.routing.seq, self.routing.weight.shape.dims[-1]
        rest = [dim for dim in dims if dim not in self.routing.weight.shape.dims]
        y = nm.reshape(
            nm.transpose(y, [*self.groups, self.routing.experts, self.routing.capacity, *rest]),
            [self.routing.experts, self.routing.capacity],
            self.slots,
        )  # G slot M

        def forward(y: Tensor, weight: Tensor):
            picked = nm.gather(y, self.slot, self.slots)  # GSKM
            return nm.einsum([picked, weight], dims), (picked, weight, self.token, self.slot)

        def backward(saved, dy: Tensor):
            picked, weight, token, slot = saved
            at_slot = nm.scatter_add(weight, slot, self.slots, batch=self.groups)  # G slot
            return [
                nm.gather(dy, token, S) * at_slot,
                nm.einsum([picked, dy], [*weight.shape.without(K.name), K]),
            ]

        return nm.custom_vjp(forward, backward)(y, nm.cast(self.routing.weight, y.dtype))


FORMS = {"einsum": EinsumDispatch, "gather": GatherDispatch}


def dispatcher(
    routing: Routing | ExpertRouting, form: str = "gather"
) -> EinsumDispatch | GatherDispatch:
    """The dispatch of a routing in one of its two forms."""
    if form not in FORMS:
        raise NamedMeshError(
            f"dispatch: {form!r} is not a form", fix=did_you_mean(str(form), FORMS)
        )
    return FORMS[form](routing)
