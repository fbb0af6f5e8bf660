"""Dispatch: tokens to the experts' buffers and back, as one-hot products or by index."""

from __future__ import annotations

from collections.abc import Sequence

import namedmesh as nm
from namedmesh.errors.errors import did_you_mean
from namedmesh.layers.routing import ExpertRouting, Routing


class EinsumDispatch:
    """The paper's form: products with one-hot masks of shape GSEC.

    Readable, and costs S/H of the experts' own FLOPs.

    Args:
        routing: The routing of a gating function.

    Attributes:
        combine_weights: The weight of each token at each place of each expert, GSEC.
        dispatch_mask: One where that weight is not zero, GSEC.

    Example:
        >>> G, S, E, C, M = nm.dims("group=2 seq=8 expert=4 capacity=4 model=6")
        >>> def expert_inputs(logits, x):
        ...     routing = top_k_gating(logits, S, E, C, second="all")
        ...     return EinsumDispatch(routing).to_experts(x, [E, G, C, M])
        >>> nm.trace(expert_inputs, nm.spec([G, S, E]), nm.spec([G, S, M])).outputs[0].shape
        [expert=4, group=2, capacity=4, model=6]
    """

    def __init__(self, routing: Routing | ExpertRouting):
        if isinstance(routing, ExpertRouting):
            taken = nm.one_hot(routing.token, routing.seq, routing.weight.dtype)  # GECS
            self.combine_weights = taken * routing.weight
            self.dispatch_mask = taken
            return
        dtype, E, C = routing.weight.dtype, routing.experts, routing.capacity
        tokens = [dim for dim in routing.weight.shape if dim.name != "choice"]  # GS
        expert = nm.one_hot(routing.expert, E, dtype)  # GSKE
        place = nm.one_hot(routing.place, C, dtype)  # GSKC
        self.combine_weights = nm.einsum([routing.weight, expert, place], [*tokens, E, C])
        self.dispatch_mask = nm.cast(self.combine_weights > 0, dtype)

    def to_experts(self, x: nm.Tensor, dims: Sequence[nm.Dimension]) -> nm.Tensor:
        """Copy tokens into the experts' buffers, zero at empty places.

        Args:
            x: Tokens, GSM.
            dims: The dimensions of the result: E, G, C, M.
        """
        return nm.einsum([nm.cast(self.dispatch_mask, x.dtype), x], dims)

    def to_tokens(self, y: nm.Tensor, dims: Sequence[nm.Dimension]) -> nm.Tensor:
        """Add up the experts' outputs for each token, by weight; zero where no expert serves it.

        Args:
            y: The experts' outputs, EGCM.
            dims: The dimensions of the result: G, S, M.
        """
        return nm.einsum([nm.cast(self.combine_weights, y.dtype), y], dims)


class GatherDispatch:
    """The same by index: no tensor of size SEC is made.

    Both directions, and their derivatives, are gathers, which stay on the group's devices.

    Args:
        routing: The routing of a gating function.

    Example:
        >>> G, S, E, C, M = nm.dims("group=2 seq=8 expert=4 capacity=4 model=6")
        >>> def outputs(logits, y):
        ...     routing = top_k_gating(logits, S, E, C, second="all")
        ...     return GatherDispatch(routing).to_tokens(y, [G, S, M])
        >>> nm.trace(outputs, nm.spec([G, S, E]), nm.spec([E, G, C, M])).outputs[0].shape
        [group=2, seq=8, model=6]
    """

    def __init__(self, routing: Routing | ExpertRouting):
        self.routing = routing
        if isinstance(routing, ExpertRouting):
            return
        E, C, S = routing.experts, routing.capacity, routing.seq
        self.places = [E, C]
        self.slots = nm.Dimension("slot", E.size * C.size)
        self.groups = [dim for dim in routing.weight.shape if dim.name not in ("choice", S.name)]
        slot = routing.expert * C.size + routing.place
        served = nm.stop_gradient(routing.weight) > 0
        self._number(nm.where(served, slot, self.slots.size))

    def _number(self, slot: nm.Tensor) -> None:
        """Record the slot of every choice, GSK, and find the token of every slot."""
        # A choice that is not served has a slot beyond the last, which gathers read as zero.
        self.slot = slot
        # Tokens are numbered from one, so that empty slots become -1, which reads as zero too.
        numbers = nm.broadcast(nm.range(self.routing.seq) + 1, slot.shape)
        self.token = nm.scatter_add(numbers, slot, self.slots, batch=self.groups) - 1  # G slot

    def to_experts(self, x: nm.Tensor, dims: Sequence[nm.Dimension]) -> nm.Tensor:
        """Copy tokens into the experts' buffers, as `EinsumDispatch.to_experts` does."""
        if isinstance(self.routing, ExpertRouting):
            return nm.transpose(nm.gather(x, self.routing.token, self.routing.seq), dims)
        S, K = self.routing.seq, self.routing.weight.shape.dims[-1]

        def forward(x: nm.Tensor) -> tuple[nm.Tensor, tuple[nm.Tensor, nm.Tensor]]:
            return nm.gather(x, self.token, S), (self.slot, x)

        def backward(saved: tuple[nm.Tensor, nm.Tensor], dy: nm.Tensor) -> list[nm.Tensor]:
            # The inverse gather: a token's gradient is the sum over the slots it was copied to.
            slot, x = saved
            return [nm.transpose(nm.sum(nm.gather(dy, slot, self.slots), over=K), x.shape)]

        taken = nm.custom_vjp(forward, backward)(x)  # G slot M
        return nm.transpose(nm.reshape(taken, self.slots, self.places), dims)

    def to_tokens(self, y: nm.Tensor, dims: Sequence[nm.Dimension]) -> nm.Tensor:
        """Add up the experts' outputs for each token, as `EinsumDispatch.to_tokens` does."""
        if isinstance(self.routing, ExpertRouting):
            return _scatter_to_tokens(self.routing, y, dims)
        S, K = self.routing.seq, self.routing.weight.shape.dims[-1]
        rest = [dim for dim in dims if dim not in self.routing.weight.shape.dims]
        y = nm.transpose(y, [*self.groups, *self.places, *rest])
        y = nm.reshape(y, self.places, self.slots)  # G slot M

        def forward(y: nm.Tensor, weight: nm.Tensor) -> tuple[nm.Tensor, tuple[nm.Tensor, ...]]:
            picked = nm.gather(y, self.slot, self.slots)  # GSKM
            return nm.einsum([picked, weight], dims), (picked, weight, self.token, self.slot)

        def backward(saved: tuple[nm.Tensor, ...], dy: nm.Tensor) -> list[nm.Tensor]:
            picked, weight, token, slot = saved
            at_slot = nm.scatter_add(weight, slot, self.slots, batch=self.groups)  # G slot
            dy_at_slot = nm.gather(dy, token, S) * at_slot
            return [dy_at_slot, nm.einsum([picked, dy], [*weight.shape.without(K.name), K])]

        return nm.custom_vjp(forward, backward)(y, nm.cast(self.routing.weight, y.dtype))


DISPATCHES = {"einsum": EinsumDispatch, "gather": GatherDispatch}


def make_dispatch(
    routing: Routing | ExpertRouting, form: str = "gather"
) -> EinsumDispatch | GatherDispatch:
    """Return the dispatch of a routing in one of its two forms, which have equal results.

    Args:
        routing: The routing of a gating function.
        form: `"gather"` or `"einsum"`.

    Example:
        >>> make_dispatch(None, "gathr")
        Traceback (most recent call last):
        namedmesh.errors.errors.NamedMeshError: dispatch: 'gathr' is not a form
        ...
    """
    if form not in DISPATCHES:
        raise nm.NamedMeshError(
            f"dispatch: {form!r} is not a form", fix=did_you_mean(str(form), DISPATCHES)
        )
    return DISPATCHES[form](routing)


def _scatter_to_tokens(
    routing: ExpertRouting, y: nm.Tensor, dims: Sequence[nm.Dimension]
) -> nm.Tensor:
    """Add the weighted outputs of every place to the token that the expert took."""
    places = routing.token.shape  # GEC
    groups = [dim for dim in places if dim in dims]
    rest = [dim for dim in y.shape if dim not in places.dims]
    weighted = nm.transpose(y * nm.cast(routing.weight, y.dtype), [*places, *rest])
    return nm.transpose(nm.scatter_add(weighted, routing.token, routing.seq, batch=groups), dims)
