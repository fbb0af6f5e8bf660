"""The program being traced: the one place that holds state while a user's function runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.dims.errors import NamedMeshError
from namedmesh.dims.source import Source

if TYPE_CHECKING:
    from namedmesh.ir.op import Op
    from namedmesh.ir.program import Variable
    from namedmesh.ir.tensor import Tensor

_stack: list[Trace] = []


class Trace:
    """A list of ops under construction, at the top or inside a loop body or branch."""

    def __init__(self, parent: Trace | None = None):
        self.parent = parent
        self.ops: list[Op] = []
        self.owned: set[int] = set()
        self.captures: dict[Tensor, Tensor] = {}
        self.variables: dict[str, Variable] = {}
        self.updates: dict[str, Tensor] = {}
        self.assigned: dict[str, Source] = {}  # where each update was written
        self.stack: Dimension | None = None  # along which variables made here are stacked
        self.stacked: dict[str, tuple[Tensor, Tensor]] = {}  # the stack outside, the slice inside
        self.phase = parent.phase if parent else "forward"
        self.scope = parent.scope if parent else ""
        self.source: Source | None = parent.source if parent else None
        self.derived = False

    def add(self, op: Op) -> None:
        """Records an op and owns its results."""
        self.ops.append(op)
        self.owned.update(id(tensor) for tensor in op.outputs)

    def bring(self, tensor: Tensor) -> Tensor:
        """The tensor itself, or its stand-in here when it belongs to an enclosing trace."""
        if id(tensor) in self.owned:
            return tensor
        if self.parent is None:
            raise NamedMeshError(
                f"tensor {tensor.label} belongs to another program, or to a loop body or branch that has ended",
                str(tensor),
                f"made at {tensor.producer.source}: {tensor.producer.source.code}",
                fix="return it from that function and use the returned tensor",
            )
        outer = self.parent.bring(tensor)
        if outer not in self.captures:
            self.captures[outer] = self.placeholder(outer.shape, outer.dtype, outer.label)
        return self.captures[outer]

    def placeholder(self, shape: Shape, dtype: str, name: str) -> Tensor:
        """A tensor whose value is given from outside."""
        from namedmesh.ir.program import Placeholder

        with pushed(self):
            tensor = Placeholder((), shape, dtype).output
        tensor.name = name
        return tensor

    @property
    def root(self) -> Trace:
        """The outermost trace."""
        return self if self.parent is None else self.parent.root

    @contextlib.contextmanager
    def at(
        self, source: Source | None, phase: str | None = None, derived: bool = False
    ) -> Iterator[None]:
        """Ops made within are attributed to a line and to a phase; derived marks those a derivative rule makes."""
        saved = self.source, self.phase, self.derived
        self.source, self.phase, self.derived = source, phase or self.phase, derived
        try:
            yield
        finally:
            self.source, self.phase, self.derived = saved

    @contextlib.contextmanager
    def named(self, scope: str) -> Iterator[None]:
        """Parameters and ops made within carry a name prefix."""
        saved = self.scope
        self.scope = f"{saved}{scope}/"
        try:
            yield
        finally:
            self.scope = saved


@contextlib.contextmanager
def pushed(trace: Trace) -> Iterator[Trace]:
    """Makes a trace the current one."""
    _stack.append(trace)
    try:
        yield trace
    finally:
        _stack.pop()


def current(what: str) -> Trace:
    """The trace under construction."""
    if not _stack:
        raise NamedMeshError(
            f"{what} was called outside a traced function",
            fix="call it inside the function given to nm.trace or nm.compile",
        )
    return _stack[-1]


def tracing() -> bool:
    """Whether a program is being traced."""
    return bool(_stack)
