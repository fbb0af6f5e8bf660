"""Conflicts: two operands that want one mesh axis for two dimensions, and what to write then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from namedmesh.display.text import human
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.op import Op


@dataclass(frozen=True)
class Claim:
    """The axes that a dimension of an operand is sharded over."""

    name: str
    axes: tuple[str, ...]
    operand: int


@dataclass(frozen=True)
class Conflict:
    """Two claims that cannot both be granted, and the axis they are about."""

    claims: tuple[Claim, Claim]
    axis: str

    @property
    def dims(self) -> frozenset[str]:
        """The two dimensions; one where it is sharded over different axes."""
        return frozenset(claim.name for claim in self.claims)


def describe_solution(op: Op, given_up: Claim, kept: Claim) -> str:
    """Describe for `Plan.decisions` which of two claims an op gives up."""
    tensor = op.inputs[given_up.operand]
    word = f"replicate({tensor.label}, {given_up.name})"
    if kept.name != given_up.name and kept.name in tensor.shape.names:
        word = f"reshard({tensor.label}, {kept.name})"
    return f"{op.source.user}: {op.kind} is computed as if nm.{word} stood before it"


@dataclass(frozen=True)
class Fix:
    """One thing to write that ends a conflict."""

    text: str  # what to write, and where: `nm.reshard(x, expert) before it`
    wire_bytes: int  # what one device then sends each time, the op's own reduction included
    kinds: tuple[str, ...] = ()  # the collectives that the written word itself takes
    memory: int = 0  # what one device then keeps more

    def __str__(self) -> str:
        price = f"{human(self.wire_bytes)} on the wire" if self.wire_bytes else "nothing is sent"
        memory = [f"{human(self.memory)} more in memory"] if self.memory else []
        return f"{self.text}: {', '.join([*self.kinds, price, *memory])}"


class LayoutConflict(NamedMeshError):
    """Two operands of an op want one mesh axis for different dimensions.

    Attributes:
        fixes: Everything that can be written to end it; the first sends and keeps the fewest bytes.
        dims: The two dimensions; one where it is sharded over different axes.

    Example:
        >>> import namedmesh as nm
        >>> B, M, H = nm.dims("batch=8 model=4 hidden=16")
        >>> def layer(x):
        ...     w = nm.split(nm.param("weight", [M, H]), H)
        ...     return nm.einsum([x, w], [B, H])
        >>> program = nm.trace(layer, x=nm.spec([B, M]))
        >>> try:
        ...     nm.plan(program, nm.Mesh(all=4), "batch:all, hidden:all")
        ... except nm.LayoutConflict as error:
        ...     print(*error.fixes, sep="\\n")
        whole=[batch] where x is declared: nothing is sent, 96 B more in memory
        nm.replicate(x, batch) before it: AllGather, 96 B on the wire
        nm.replicate(w, hidden) before it: AllGather, 192 B on the wire
    """

    fixes: Sequence[Fix]
    dims: frozenset[str]

    def __init__(self, *text: str, fixes: Sequence[Fix], dims: frozenset[str], **more: Any):
        self.fixes, self.dims = tuple(fixes), dims
        listed = "".join(f"\n    {fix}" for fix in self.fixes)
        taken = "or plan with conflicts='cheapest' to take the cheapest move"
        ways = f"write one of these, the cheapest first, {taken}{listed}"
        super().__init__(*text, fix=ways, **more)
