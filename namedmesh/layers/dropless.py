"""A mixture of experts that drops no token: rows in blocks, each of one expert."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import namedmesh as nm
from namedmesh.layers.dispatch import GatherDispatch
from namedmesh.layers.linear import feed_forward
from namedmesh.layers.mistakes import claim_name
from namedmesh.layers.mixture import run_experts, score_experts
from namedmesh.layers.routing import ExpertRouting, Routing
from namedmesh.layers.weights import get_weights


class _BlockDispatch(GatherDispatch):
    """Tokens sorted by expert into blocks of rows; every block is of one expert."""

    def __init__(
        self, routing: Routing, shards: nm.Dimension, rows: nm.Dimension, bound: float | None
    ):
        S, E, K = routing.seq, routing.experts, routing.weight.shape.dims[-1]
        self.routing, self.within = routing, nm.Dimension("expert_of_shard", E.size // shards.size)
        # Only the last block of an expert has rows to spare, so a shard needs room for its choices
        # and for one row less than a block for each of its experts.
        most = S.size * min(K.size, self.within.size)
        if bound is not None:
            most = min(most, -(-int(bound * S.size * K.size) // shards.size))
        spare = self.within.size * (rows.size - 1)
        self.blocks = nm.Dimension("block", (most + spare) // rows.size)
        self.places = [shards, self.blocks, rows]
        self.slots = nm.Dimension("slot", shards.size * self.blocks.size * rows.size)
        self.groups = [dim for dim in routing.weight.shape if dim.name not in (K.name, S.name)]
        served = nm.stop_gradient(routing.weight) > 0  # GSK
        ends = nm.where(served, routing.place + 1, 0)
        # Replicated along E, as the gates are: every device counts for all experts.
        chosen = nm.replicate(nm.one_hot(routing.expert, E, "int32"), E)  # GSKE
        tokens = nm.max(chosen * ends, over=[S, K])  # GE
        used = nm.reshape((tokens + (rows.size - 1)) // rows.size, E, [shards, self.within])
        last = nm.cumsum(used, self.within)  # the block after an expert's last one
        first = nm.gather(nm.reshape(last - used, [shards, self.within], E), routing.expert, E)
        row = first * rows.size + routing.place
        size = self.blocks.size * rows.size
        self.fits = served & (row < size)
        slot = routing.expert // self.within.size * size + row
        self._number(nm.where(self.fits, slot, self.slots.size))
        # A block belongs to the first expert whose last block is not before it.
        finished = nm.cast(last <= nm.range(self.blocks), "int32")
        expert = nm.sum(finished, over=self.within)  # G shard block
        self.expert = nm.minimum(expert, self.within.size - 1)
        self.served = served

    def count_left_over(self, routing: Routing) -> Routing:
        """Count the choices that exceed the bound as without room."""
        over = [*self.groups, routing.seq]
        served = nm.sum(nm.cast(self.served, "float32"), over=over)  # K
        fitting = nm.sum(nm.cast(self.fits, "float32"), over=over)
        left = 1.0 - fitting / nm.maximum(served, 1.0)
        reached = 1.0 - routing.left_out - routing.no_room
        no_room = routing.no_room + reached * nm.cast(left, routing.no_room.dtype)
        return dataclasses.replace(routing, no_room=no_room)


def dropless_moe(
    x: nm.Tensor,
    gate: Callable[[nm.Tensor], Routing | ExpertRouting],
    dims: Sequence[nm.Dimension],
    *,
    rows: int | None = None,
    shards: nm.Dimension | None = None,
    bound: float | None = None,
    shared: nm.Dimension | None = None,
    activation: str = "relu",
    gated: bool = False,
    routed: nm.Tensor | None = None,
    rate: float = 0.0,
    dropout_key: nm.Tensor | None = None,
) -> tuple[nm.Tensor, Routing]:
    """Send every token to its experts, however many choose the same one, and combine.

    A group's tokens are sorted by expert into blocks of rows, each of which is multiplied by its
    expert's weights. A group computes S K + E (rows - 1) rows; buffers of a capacity compute E C.
    Experts that a layout shards are gathered where they are used. With `shards` the rows go to them
    instead, by an AllToAll, and a shard has room for everything that a group may send it, or for
    `bound` times its even share. The parameters are those of `moe`.

    Args:
        x: Tokens, GSM.
        gate: A function from logits (GSE) to a routing: `top_k_gating` with a capacity of S.
        dims: The five dimensions G, S, E, M, H.
        rows: The rows of a block; by default half of an expert's even share.
        shards: A dimension that divides E, which the layout maps to the axes of E.
        bound: The room of a shard as a multiple of its even share; what exceeds it is dropped.
        shared, activation, gated, routed, rate, dropout_key: As in `moe`.

    Returns:
        The combined outputs, GSM, and the routing, where what exceeds the bound has no room.

    Example:
        >>> G, S, E, M, H = nm.dims("group=4 seq=8 expert=4 model=6 hidden=12")
        >>> def layer(x):
        ...     room = nm.Dimension("capacity", S.size)
        ...     gate = lambda logits: top_k_gating(logits, S, E, room, second="all")
        ...     return dropless_moe(x, gate, (G, S, E, M, H))[0]
        >>> nm.plan(nm.trace(layer, nm.spec([G, S, M])), nm.Mesh(all=4), "group:all").collectives
        ()
    """
    G, S, E, M, H = _check_dims(x, dims, shards, bound)
    claim_name("dropless_moe", "wg")
    logits = score_experts(x if routed is None else routed, (G, S, E), M)
    routing = _check_routing(gate(logits), S)
    D = nm.Dimension("shard", 1) if shards is None else shards
    K = routing.weight.shape.dims[-1]
    R = nm.Dimension("block_row", rows or max(1, S.size * K.size // (2 * E.size)))
    dispatch = _BlockDispatch(routing, D, R, bound)
    N, L = dispatch.blocks, dispatch.within

    def of_blocks(weight: nm.Tensor) -> nm.Tensor:
        """Give every block the weights of its expert."""
        weight = nm.reshape(nm.cast(weight, x.dtype), E, [D, L])
        if shards is None:
            weight = nm.replicate(weight, L)
        return nm.gather(weight, expert, L)

    reshard = get_weights().reshard
    expert_inputs = reshard(dispatch.to_experts(x, [D, G, N, R, M]), D)
    expert = nm.reshard(dispatch.expert, D)
    y = run_experts(expert_inputs, (E, M, H), of_blocks, activation, gated, (rate, dropout_key))
    outputs = dispatch.to_tokens(reshard(y, G), [G, S, M])
    if shared is not None:
        with nm.scope("shared"):
            outputs = outputs + feed_forward(x, M, shared, activation=activation, gated=gated)
    return outputs, routing if bound is None else dispatch.count_left_over(routing)


def _check_dims(
    x: nm.Tensor, dims: Sequence[nm.Dimension], shards: nm.Dimension | None, bound: float | None
) -> Sequence[nm.Dimension]:
    """Return the five dimensions, or raise for them or for an option."""
    problem, fix = "", ""
    if len(dims) != 5:
        problem = f"{len(dims)} dimensions: {', '.join(map(str, dims))}"
        fix = "pass five: group, sequence, expert, model, hidden"
    elif shards is not None and dims[2].size % shards.size:
        problem, fix = f"{shards} does not divide {dims[2]}", "choose a number that divides it"
    elif bound is not None and not bound >= 1:
        problem, fix = f"bound={bound} is less than the even share", "pass at least 1.0"
    elif bound is not None and shards is None:
        problem, fix = "bound= is about shards, and there are none", "pass shards="
    if problem:
        raise nm.NamedMeshError(f"dropless_moe: {problem}", str(x), fix=fix)
    return dims


def _check_routing(routing: Routing | ExpertRouting, seq: nm.Dimension) -> Routing:
    """Return the routing of a gate that has room for all tokens of a group, or raise."""
    if not isinstance(routing, Routing) or routing.capacity.size < seq.size:
        capacity = getattr(routing, "capacity", None)
        raise nm.NamedMeshError(
            f"dropless_moe: the gate may drop tokens: its capacity is {capacity}, of {seq}",
            fix=f"gate with top_k_gating and nm.Dimension('capacity', {seq.size})",
        )
    return routing
