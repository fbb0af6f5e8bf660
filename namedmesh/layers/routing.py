"""The decision of a gating function: the tokens that each expert serves, and their weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import namedmesh as nm


@dataclass(frozen=True)
class Routing:
    """The place of each choice (K) of each token (GS) when tokens choose experts.

    Attributes:
        expert: The expert of each choice, GSK int32.
        place: The place in the expert's buffer, GSK int32.
        weight: The combine weight, GSK; zero means that the choice is not served.
        seq, capacity, experts: The dimensions S, C and E.
        aux_loss: The paper's auxiliary loss, averaged over the groups that have tokens; scalar.
        z_loss: The mean squared logsumexp of the logits; scalar.
        left_out: The share of tokens whose choice the rule for later choices leaves out, K.
        no_room: The share of tokens whose choice finds no place in the expert's buffer, K.
        load: The share of a group's tokens that each expert serves, GE.

    Example:
        >>> G, S, E, C = nm.dims("group=2 seq=8 expert=4 capacity=4")
        >>> route = lambda logits: top_k_gating(logits, S, E, C, k=1).place
        >>> nm.trace(route, nm.spec([G, S, E])).outputs[0].shape
        [group=2, seq=8, choice=1]
    """

    expert: nm.Tensor
    place: nm.Tensor
    weight: nm.Tensor
    seq: nm.Dimension
    capacity: nm.Dimension
    experts: nm.Dimension
    aux_loss: nm.Tensor
    z_loss: nm.Tensor
    left_out: nm.Tensor
    no_room: nm.Tensor
    load: nm.Tensor

    @property
    def dropped(self) -> nm.Tensor:
        """The share of tokens whose choice is not served, K."""
        return self.left_out + self.no_room


@dataclass(frozen=True)
class ExpertRouting:
    """The token of each place (C) of each expert (E) when experts choose tokens.

    Attributes:
        token: The token's index along S, GEC int32.
        weight: The combine weight, GEC.
        seq, z_loss, load: As in `Routing`.
        aux_loss: Zero: the load is even by construction; scalar.
        left_out: The share of tokens that no expert takes, K=1.
        no_room: Zero: experts take as many as they have room for, K=1.

    Example:
        >>> G, S, E, C = nm.dims("group=2 seq=8 expert=4 capacity=3")
        >>> route = lambda logits: expert_choice_gating(logits, S, E, C).weight
        >>> nm.trace(route, nm.spec([G, S, E])).outputs[0].shape
        [group=2, expert=4, capacity=3]
    """

    token: nm.Tensor
    weight: nm.Tensor
    seq: nm.Dimension
    aux_loss: nm.Tensor
    z_loss: nm.Tensor
    left_out: nm.Tensor
    no_room: nm.Tensor
    load: nm.Tensor

    @property
    def dropped(self) -> nm.Tensor:
        """The share of tokens that no expert takes, K=1."""
        return self.left_out + self.no_room


def expert_capacity(
    seq: nm.Dimension, experts: nm.Dimension, factor: float = 2.0, name: str = "capacity"
) -> nm.Dimension:
    """Return the dimension of an expert's buffer for one group: at least 1, at most its tokens.

    Args:
        seq: The dimension of a group's tokens.
        experts: The dimension of experts.
        factor: The size as a multiple of the even share; two is the paper's.
        name: The dimension's name.

    Example:
        >>> expert_capacity(*nm.dims("seq=2048 expert=128"))
        Dimension(name='capacity', size=32)
    """
    if not 0 < factor < math.inf:
        raise nm.NamedMeshError(
            f"expert_capacity: factor={factor} is not a positive number",
            f"{seq} tokens over {experts}",
            fix="pass a positive number; two is the paper's",
        )
    return nm.Dimension(name, min(max(1, int(factor * seq.size / experts.size)), seq.size))
