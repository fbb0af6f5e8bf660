"""Trace: a program under construction, the one place with state while a function is traced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.errors.source import Source
from namedmesh.ir.format import format_value
from namedmesh.ir.interface import Variable
from namedmesh.ir.literal import as_tensor, plain_number
from namedmesh.ir.op import Body, Op
from namedmesh.ir.prune import live_ops
from namedmesh.ir.recorder import Recorder, recording, require_recorder
from namedmesh.ir.tensor import Tensor
from namedmesh.signature.nest import flatten
from namedmesh.signature.printed import PrintedLine

# What remat="fit" stands for while a function is traced: see Program.retrace.
FITTED: ContextVar[str | float] = ContextVar("namedmesh_remat", default="full")


class Placeholder(Op):
    """A value given from outside: an input, a variable, a loop's carry, a captured tensor."""

    given = True
    shape: Shape
    dtype: str

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.shape, self.dtype)]


@dataclass
class Deal:
    """Layers dealt to stages: what is stacked along some dimensions is stacked along one."""

    home: Trace  # where the stages are recorded
    layers: Dimension
    dims: tuple[Dimension, ...]  # into which the layers are dealt
    split: Callable[[Tensor], Tensor]
    tensors: dict[str, Tensor] = field(default_factory=dict)  # what was dealt, by name


class Trace(Recorder):
    """A list of ops under construction, at the top or inside a loop body or branch."""

    def __init__(self, parent: Trace | None = None):
        self.parent = parent
        self.ops: list[Op] = []
        self.owned: dict[Tensor, Op] = {}  # each tensor with the op that makes it
        self.captures: dict[Tensor, Tensor] = {}
        self.arguments: dict[Tensor, Tensor] = {}  # what a body is called with, by the tensor here
        self.variables: dict[str, Variable] = {}
        self.updates: dict[str, Tensor] = {}
        self.updated_in_loops: set[str] = set()  # variables; see nm.update_in_loops
        self.assigned: dict[str, Source] = {}  # where each update was written
        self.next_slices: dict[str, Tensor] = {}  # what a stacked variable's slice is set to
        self.printed: list[PrintedLine] = []
        self.notes: dict[str, None] = {}  # at the top: what plans say of the program
        self.fits = False  # at the top: whether remat="fit" was met
        self.stack: Dimension | None = None  # along which variables made here are stacked
        self.stacked: dict[str, tuple[Tensor, Tensor]] = {}  # the stack outside, the slice inside
        self.deal: Deal | None = parent.deal if parent else None
        self.claimed: dict[str, Source] = parent.claimed if parent else {}  # by layers, in a scope
        self.phase = parent.phase if parent else "forward"
        self.scope = parent.scope if parent else ""
        self.source: Source | None = parent.source if parent else None
        self.derived = False
        self.recomputed = parent.recomputed if parent else False
        self._positions: dict[object, int] = {}  # of each record in ops

    def record(self, op: Op) -> None:
        """Append an op and own its results."""
        self._positions[op.identity] = len(self.ops)
        self.ops.append(op)
        for tensor in op.outputs:
            self.owned[tensor] = op

    def find_owner(self, op: Op) -> Trace:
        """Return this trace or the enclosing one in which an op is recorded."""
        if op.identity in self._positions or self.parent is None:
            return self
        return self.parent.find_owner(op)

    def recorded(self, op: Op) -> Op:
        """Return the form in which an op stands in this trace now."""
        return self.ops[self._positions[op.identity]]

    def replace(self, op: Op) -> None:
        """Put a rebuilt op, which binds the same tensors or more, in the place of its record."""
        self.ops[self._positions[op.identity]] = op
        self.owned.update(dict.fromkeys(op.outputs, op))

    def find_maker(self, tensor: Tensor) -> Op | None:
        """Return the op of this trace or an enclosing one that makes a tensor."""
        if tensor in self.owned or self.parent is None:
            return self.owned.get(tensor)
        return self.parent.find_maker(tensor)

    def bring(self, tensor: Tensor) -> Tensor:
        """Return the tensor itself, or its stand-in here when it belongs to an enclosing trace."""
        if tensor in self.owned:
            return tensor
        if self.parent is None:
            raise NamedMeshError(
                f"tensor {tensor.label} belongs to another program, "
                "or to a loop body or branch that has ended",
                str(tensor),
                f"made at {tensor.source}: {tensor.source.code}",
                fix="return it from that function and use the returned tensor",
            )
        outer = self.parent.bring(tensor)
        if outer not in self.captures:
            inner = self.placeholder(outer.shape, outer.dtype, outer.label)
            self.captures[outer] = inner.describe(origin=outer)  # where it is not read any more
        return self.captures[outer]

    def placeholder(self, shape: Shape, dtype: str, name: str) -> Tensor:
        """Make a tensor whose value is given from outside."""
        with recording(self):
            return Placeholder((), shape, dtype).output.describe(name=name)

    @property
    def root(self) -> Trace:
        """The outermost trace."""
        return self if self.parent is None else self.parent.root

    def choose_remat(self, remat: Any) -> Any:
        """Return what remat="fit" stands for now, and note that it was met; or another remat."""
        self.root.fits |= remat == "fit"
        return FITTED.get() if remat == "fit" else remat

    @contextlib.contextmanager
    def change(self, **facts: Any) -> Iterator[None]:
        """Change some attributes for a while."""
        saved = {name: getattr(self, name) for name in facts}
        vars(self).update(facts)
        try:
            yield
        finally:
            vars(self).update(saved)

    def at(
        self,
        source: Source | None,
        phase: str | None = None,
        derived: bool = False,
        scope: str | None = None,
        recomputed: bool = False,
    ) -> contextlib.AbstractContextManager[None]:
        """Attribute the ops made within to a line, phase, scope and derivative rule."""
        facts = {"source": source, "phase": phase or self.phase, "derived": derived}
        facts["recomputed"] = self.recomputed or recomputed
        return self.change(**facts, scope=self.scope if scope is None else scope)

    def like(self, op: Op, phase: str | None = None) -> contextlib.AbstractContextManager[None]:
        """Attribute the ops made within to the line, scope and rule of an op, not to its phase."""
        return self.at(op.source, phase, op.derived, op.scope, op.recomputed)

    def continue_at(self, op: Op) -> None:
        """Attribute the ops made from now on to the line, phase, scope and rule of an op."""
        self.source, self.phase, self.derived = op.source, op.phase, op.derived
        self.scope, self.recomputed = op.scope, op.recomputed

    def in_scope(self, scope: str) -> contextlib.AbstractContextManager[None]:
        """Give the variables and ops made within a name prefix."""
        return self.change(scope=f"{self.scope}{scope}/", claimed={})


def current(what: str) -> Trace:
    """Return the trace under construction, or raise outside a traced function."""
    trace = require_recorder(what)
    assert isinstance(trace, Trace)
    return trace


def check_result(value: Any, what: str) -> Tensor:
    """Return a result that is a Tensor or a plain number as a tensor, or raise."""
    if isinstance(value, Tensor) or plain_number(value) is not None:
        return as_tensor(what, value)
    raise NamedMeshError(
        f"{what} is {format_value(value)}, not a Tensor",
        fix="return tensors, or tuples, lists and dicts of them",
    )


def record_body(
    body: Body,
    outside: Mapping[Tensor, Tensor],
    record: Callable[[Sequence[Tensor]], Iterable[Tensor]],
) -> Body:
    """Copy a body, as a function records it on other arguments, with other tensors captured."""
    inner = Trace(current("a loop body"))
    values = tuple(inner.placeholder(t.shape, t.dtype, t.label) for t in body.arguments)
    with recording(inner):
        outputs = tuple(record(values))
    count, captured = len(body.inputs), tuple(outside[tensor] for tensor in body.captured)
    return Body(tuple(inner.ops), values[:count], values[count:], captured, outputs)


def trace_body(
    function: Callable[..., Any],
    specs: Sequence[tuple[Shape, str, str]],
    stack: Dimension | None = None,
    outer: Sequence[Tensor] = (),
) -> tuple[Body, Any]:
    """Trace a loop body or a branch inside the program being traced."""
    inner = Trace(current("a loop body"))
    inner.stack = stack
    inputs = tuple(inner.placeholder(shape, dtype, name) for shape, dtype, name in specs)
    inner.arguments = dict(zip(inputs, outer, strict=False))
    with recording(inner):
        structure = function(*inputs)
        if inner.printed:
            raise NamedMeshError(
                "nm.print is called in a branch, a manual region, a loop of unknown length or a "
                "function that is called again elsewhere",
                *(str(value) for line in inner.printed for value in line.values),
                fix="return the tensor and print it outside, or loop with nm.scan",
            )
        if inner.next_slices:
            name = next(iter(inner.next_slices))
            raise NamedMeshError(
                f"assign: {name} is assigned in a body that may run again for its derivative",
                fix="assign in nm.scan(..., stack=True), or return the value",
            )
        leaves = flatten(structure)
        outputs = tuple(inner.bring(check_result(leaf, "a result of the body")) for leaf in leaves)
    inputs += tuple(slice_ for _, slice_ in inner.stacked.values())
    stand_ins = tuple(inner.captures.values())
    ops = live_ops(inner.ops, outputs, (*inputs, *stand_ins))
    stacks = tuple(stack_ for stack_, _ in inner.stacked.values())
    return Body(ops, inputs, stand_ins, tuple(inner.captures), outputs, stacks), structure
