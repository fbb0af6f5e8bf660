"""Writing out: loops that were asked to have all of their turns one after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from namedmesh.ir.differentiate import mark_cotangent
from namedmesh.ir.op import Body, Op, every_op
from namedmesh.ir.recorder import recording
from namedmesh.ir.simplify import read_others
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import Trace, current


def write_out_loops(
    ops: Sequence[Op], outputs: Sequence[Tensor]
) -> tuple[Sequence[Op], tuple[Tensor, ...]]:
    """Returns ops without the loops that are to be written out, and what are then the outputs.

    What one such loop stores for another is handed over turn by turn, without being stacked.

    Args:
        ops: The ops of a program or a body, in order.
        outputs: The tensors that are needed of them.

    Returns:
        The ops, and a tensor for each output.
    """
    if not any(op.turns for op in every_op(ops)):
        return ops, tuple(outputs)
    return _Writer({}, {}).write_all(ops, outputs)


class _Writer:
    """The ops written so far, and what stands for the tensors of loops that are gone.

    Bodies have writers of their own, which know the same tensors: a backward loop's are made in
    place of a forward loop's.
    """

    def __init__(
        self, stands: dict[Tensor, Tensor], copies: dict[tuple[Tensor, int], Tensor]
    ) -> None:
        self.trace = Trace()
        self.stands = stands
        self.copies = copies  # of a body's tensors, by turn
        self.histories: dict[Tensor, tuple[Op, list[Tensor]]] = {}  # loop, and a value for a turn
        self.rows: dict[tuple[Tensor, int], Tensor] = {}  # the first that was taken for a turn

    def write_all(
        self, ops: Sequence[Op], outputs: Sequence[Tensor]
    ) -> tuple[Sequence[Op], tuple[Tensor, ...]]:
        """Writes ops, and returns them and what stands for their outputs."""
        with recording(self.trace):
            for op in ops:
                self.write(op)
            results = tuple(self.find(tensor) for tensor in outputs)
        return self.trace.ops, results

    def write(self, op: Op) -> None:
        """Writes an op that reads what stands for its operands, or all turns of a loop."""
        bodies = {name: self.write_body(body) for name, body in op.body_fields().items()}
        op = op.rebuild(**bodies) if bodies else op
        if op.turns:
            self.write_turns(op)
            return
        for tensor in op.inputs:
            self.find(tensor)
        self.trace.record(read_others(op, self.stands))

    def write_body(self, body: Body) -> Body:
        """Returns a body whose own loops are written out."""
        if not any(op.turns for op in every_op(body.ops)):
            return body
        writer = _Writer(self.stands, self.copies)
        ops, outputs = writer.write_all(body.ops, body.outputs)
        return dataclasses.replace(body, ops=tuple(ops), outputs=outputs)

    def find(self, tensor: Tensor) -> Tensor:
        """Returns what stands for a tensor; values of turns are stacked when first asked for."""
        if tensor in self.histories and tensor not in self.stands:
            loop, values = self.histories[tensor]
            with self.at(loop):
                self.replace(tensor, loop.join_turns(values))
        return self.stands.get(tensor, tensor)

    def at(self, op: Op):
        """Attributes what is made within to an op's line, phase and scope."""
        return self.trace.at(op.source, op.phase, op.derived, op.scope)

    def replace(self, old: Tensor, new: Tensor) -> None:
        """Lets a tensor stand for one that a loop made."""
        if old.primal is not None:
            new = mark_cotangent(new, self.stands.get(old.primal, old.primal))
        elif new.name is None and old.name is not None:
            new.describe(name=old.name)
        self.stands[old] = new
        if old.origin is None:
            old.describe(origin=new)  # cotangents of the old one lie where the new one lies

    def write_turns(self, loop: Op) -> None:
        """Writes every turn of a loop."""
        (body,) = loop.bodies
        total, carries = len(body.inputs), len(loop.outputs) - len(loop.histories)
        captured = [self.find(tensor) for tensor in loop.inputs[total:]]
        carry = [self.find(tensor) for tensor in loop.inputs[:carries]]
        rows: dict[int, list[Tensor]] = {}
        for turn in loop.turns:
            with self.at(loop):
                xs = [self.take_turn(loop, i, turn) for i in range(carries, total)]
            known = dict(zip(body.arguments, [*carry, *xs, *captured], strict=True))
            for op in body.ops:
                if not op.given:
                    self.copy_op(op, known, turn)
            results = [known[tensor] for tensor in body.outputs]
            carry, rows[turn] = results[:carries], results[carries:]
        with self.at(loop):
            for old, new in zip(loop.outputs[:carries], carry, strict=True):
                self.replace(old, new)
        for i, history in enumerate(loop.histories):
            self.histories[history] = loop, [rows[turn][i] for turn in sorted(rows)]

    def take_turn(self, loop: Op, i: int, turn: int) -> Tensor:
        """Returns what a turn reads of an operand along the loop."""
        tensor = loop.inputs[i]
        if tensor in self.histories and self.histories[tensor][0].turn_dim == loop.turn_dim:
            return self.histories[tensor][1][turn]
        source = self.find(tensor)
        row = loop.take_turn(source, turn)
        # A forward loop's row is read by its turn; a backward loop's may be read by nothing.
        first = self.rows.setdefault((source, turn), row)
        origin = None if first is row else first
        return row.describe(name=loop.bodies[0].arguments[i].label, origin=origin)

    def copy_op(self, op: Op, known: dict[Tensor, Tensor], turn: int) -> None:
        """Records an op of a body anew for one turn; known has what stands for its tensors."""
        with current("a loop").at(op.source, op.phase, op.derived, op.scope):
            inputs = tuple(known[tensor] for tensor in op.inputs)
            bodies = {n: self.copy_body(body, known, turn) for n, body in op.body_fields().items()}
            again = dataclasses.replace(op, inputs=inputs, **bodies)
        self.note_copies(op.outputs, again.outputs, known, turn)

    def copy_body(self, body: Body, known: Mapping[Tensor, Tensor], turn: int) -> Body:
        """Copies a loop or a branch inside of a turn, with ops and tensors of its own."""
        inner = Trace(self.trace)
        values = tuple(inner.placeholder(t.shape, t.dtype, t.label) for t in body.arguments)
        ours: dict[Tensor, Tensor] = {}
        self.note_copies(body.arguments, values, ours, turn)
        with recording(inner):
            for op in body.ops:
                if not op.given:
                    self.copy_op(op, ours, turn)
        count = len(body.inputs)
        return Body(
            tuple(inner.ops),
            values[:count],
            values[count:],
            tuple(known[tensor] for tensor in body.captured),
            tuple(ours[tensor] for tensor in body.outputs),
        )

    def note_copies(
        self,
        tensors: Sequence[Tensor],
        copies: Sequence[Tensor],
        known: dict[Tensor, Tensor],
        turn: int,
    ) -> None:
        """Notes the copies of tensors, which stand to each other as the tensors do."""

        def translate(tensor: Tensor | None) -> Tensor | None:
            # What was computed again in place of another has left the program, or will.
            form = tensor
            while form is not None:
                if form in known:
                    return known[form]
                if (form, turn) in self.copies or form in self.stands:
                    return (
                        self.copies[form, turn]
                        if (form, turn) in self.copies
                        else self.stands[form]
                    )
                form = form.origin
            return tensor

        for old, new in zip(tensors, copies, strict=True):
            name = old.name if new.name is None else None
            new.describe(name=name, origin=translate(old.origin), primal=translate(old.primal))
            known[old] = self.copies[old, turn] = new
