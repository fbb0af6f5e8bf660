"""Unrolling: loops whose iterations, all or a few, are written one after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from namedmesh.ir.differentiate import mark_cotangent
from namedmesh.ir.op import Body, Op, UnrolledLoop, every_op
from namedmesh.ir.recorder import recording
from namedmesh.ir.simplify import read_others
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import Trace, current, record_body


def write_out_loops(
    ops: Sequence[Op], outputs: Sequence[Tensor]
) -> tuple[Sequence[Op], tuple[Tensor, ...]]:
    """Return ops without the loops that are to be written out, and what are then the outputs."""
    if not any(op.unrolled for op in every_op(ops)):
        return ops, tuple(outputs)
    return _Writer({}, {}, {}).write_all(ops, outputs)


class _Writer:
    """The ops written so far, and what stands for the tensors of loops that are gone."""

    def __init__(
        self,
        stands: dict[Tensor, Tensor],
        copies: dict[tuple[Tensor, int], Tensor],
        taken: dict[Tensor, tuple[Tensor, int]],
    ) -> None:
        self.trace = Trace()
        self.stands = stands
        self.copies = copies  # of a body's tensors, by iteration
        self.taken = taken  # of what, and for which iteration, each row was taken
        self.readers: dict[Tensor, list[Op]] = {}
        # The loop of each history, and a value for each iteration.
        self.histories: dict[Tensor, tuple[UnrolledLoop, list[Tensor]]] = {}
        # The first row that was taken for an iteration.
        self.rows: dict[tuple[Tensor, int], Tensor] = {}

    def write_all(
        self, ops: Sequence[Op], outputs: Sequence[Tensor]
    ) -> tuple[Sequence[Op], tuple[Tensor, ...]]:
        """Write ops, and return them and what stands for their outputs."""
        with recording(self.trace):
            for op in ops:
                for tensor in op.inputs:
                    self.readers.setdefault(tensor, []).append(op)
            for op in ops:
                self.write(op)
            results = tuple(self.find(tensor) for tensor in outputs)
        return self.trace.ops, results

    def write(self, op: Op) -> None:
        """Write an op that reads what stands for its operands, or all iterations of a loop."""
        op = op.map_bodies(self.write_body)
        loop = op.unrolled
        if loop is not None:
            (self.write_rounds if loop.rounds.size > 1 else self.write_iterations)(loop)
            return
        for tensor in op.inputs:
            self.find(tensor)
        self.trace.record(read_others(op, self.stands))

    def write_body(self, body: Body) -> Body:
        """Return a body whose own loops are written out."""
        if not any(op.unrolled for op in every_op(body.ops)):
            return body
        writer = _Writer(self.stands, self.copies, self.taken)
        ops, outputs = writer.write_all(body.ops, body.outputs)
        return dataclasses.replace(body, ops=tuple(ops), outputs=outputs)

    def find(self, tensor: Tensor) -> Tensor:
        """Return the replacement of a tensor; values of iterations are stacked on first use."""
        if tensor in self.histories and tensor not in self.stands:
            loop, values = self.histories[tensor]
            with self.trace.like(loop, loop.phase):
                rows = loop.join_iterations(values)
                self.replace(tensor, loop.join_rounds(rows) if loop.rounds.size > 1 else rows)
        return self.stands.get(tensor, tensor)

    def replace(self, old: Tensor, new: Tensor) -> None:
        """Let a tensor stand for one that a loop made."""
        if old.primal is not None:
            new = mark_cotangent(new, self.stands.get(old.primal, old.primal))
        elif new.name is None and old.name is not None:
            new.describe(name=old.name)
        self.stands[old] = new
        if old.origin is None:
            old.describe(origin=new)  # cotangents of the old one are sharded like the new one

    def write_iterations(self, loop: UnrolledLoop) -> None:
        """Write every iteration of a loop."""
        body, carries, total = loop.body, loop.carries, len(loop.body.inputs)
        captured = [self.find(tensor) for tensor in loop.inputs[total:]]
        carry = [self.find(tensor) for tensor in loop.inputs[:carries]]
        rows: dict[int, list[Tensor]] = {}
        for iteration in loop.iterations:
            with self.trace.like(loop, loop.phase):
                xs = [self.take_iteration(loop, i, iteration) for i in range(carries, total)]
            results = self.copy_iteration(body, [*carry, *xs, *captured], iteration)
            carry, rows[iteration] = results[:carries], results[carries:]
        with self.trace.like(loop, loop.phase):
            for old, new in zip(loop.outputs[:carries], carry, strict=True):
                self.replace(old, new)
        for i, history in enumerate(loop.histories):
            self.histories[history] = loop, [rows[iteration][i] for iteration in sorted(rows)]

    def write_rounds(self, loop: UnrolledLoop) -> None:
        """Write a loop of fewer rounds, each of several iterations."""
        carries, total = loop.carries, len(loop.body.inputs)
        first = [self.find(tensor) for tensor in loop.inputs[:carries]]
        captured = [self.find(tensor) for tensor in loop.inputs[total:]]
        operands = [self.take_rounds(loop, i) for i in range(carries, total)]
        body = self.write_round(loop, operands, captured)
        with self.trace.like(loop, loop.phase):
            read = [*first, *(x for operand in operands for x in operand), *body.captured]
            results = iter(loop.repeat_rounds(read, body).outputs)
            for old in loop.outputs[:carries]:
                self.replace(old, next(results))
            for history in loop.histories:
                if self.is_read_by_iterations(history, loop):
                    self.histories[history] = loop, [next(results) for _ in loop.iterations]
                else:
                    self.replace(history, loop.join_rounds(next(results)))

    def write_round(
        self, loop: UnrolledLoop, operands: Sequence[Sequence[Tensor]], captured: Sequence[Tensor]
    ) -> Body:
        """Return the iterations of a round as one body."""
        body, carries = loop.body, loop.carries
        inner = Trace(self.trace)
        carry = [inner.placeholder(x.shape, x.dtype, x.label) for x in body.inputs[:carries]]
        rows = [
            [
                inner.placeholder(x.shape.without(loop.over.name), x.dtype, old.label)
                for x in operand
            ]
            for old, operand in zip(body.inputs[carries:], operands, strict=True)
        ]
        inputs = (*carry, *(x for row in rows for x in row))
        made: dict[int, Sequence[Tensor]] = {}
        with recording(inner), inner.like(loop, loop.phase):
            outside = [inner.bring(tensor) for tensor in captured]
            for iteration in loop.iterations:
                xs = [
                    row[iteration] if len(row) > 1 else loop.take_iteration(row[0], iteration)
                    for row in rows
                ]
                self.note_copies(body.inputs[carries:], xs, {}, iteration)
                results = self.copy_iteration(body, [*carry, *xs, *outside], iteration)
                carry, made[iteration] = results[:carries], results[carries:]
            outputs = list(carry)
            for i, history in enumerate(loop.histories):
                values = [made[iteration][i] for iteration in sorted(made)]
                apart = self.is_read_by_iterations(history, loop)
                outputs += values if apart else [loop.join_iterations(values)]
            outputs = [inner.bring(tensor) for tensor in outputs]
        stand_ins = tuple(inner.captures.values())
        return Body(tuple(inner.ops), inputs, stand_ins, tuple(inner.captures), tuple(outputs))

    def take_rounds(self, loop: UnrolledLoop, i: int) -> list[Tensor]:
        """Return what rounds read of an operand: one tensor per iteration, or all in one."""
        tensor = loop.inputs[i]
        if self.is_handed_over(tensor, loop):
            return self.histories[tensor][1]
        with self.trace.like(loop, loop.phase):
            return [loop.split_rounds(self.find(tensor))]

    def is_read_by_iterations(self, history: Tensor, loop: UnrolledLoop) -> bool:
        """Return whether what a loop makes is read by such loops alone."""
        readers = self.readers.get(history, ())
        return bool(readers) and all(_form(other) == _form(loop) for other in readers)

    def is_handed_over(self, tensor: Tensor, loop: UnrolledLoop) -> bool:
        """Return whether a loop reads iteration by iteration what another one made so."""
        maker = self.histories[tensor][0] if tensor in self.histories else None
        return maker is not None and _form(maker) == _form(loop)

    def copy_iteration(self, body: Body, values: Sequence[Tensor], iteration: int) -> list[Tensor]:
        """Record the ops of an iteration anew, on some values, and return its results."""
        known = dict(zip(body.arguments, values, strict=True))
        for op in body.ops:
            if not op.given:
                self.copy_op(op, known, iteration)
        return [known[tensor] for tensor in body.outputs]

    def take_iteration(self, loop: UnrolledLoop, i: int, iteration: int) -> Tensor:
        """Return what an iteration reads of an operand along the loop."""
        tensor = loop.inputs[i]
        if self.is_handed_over(tensor, loop):
            return self.histories[tensor][1][iteration]
        source = self.find(tensor)
        row = loop.take_iteration(source, iteration)
        self.note_row(row, source, iteration)
        return row.describe(name=loop.body.arguments[i].label)

    def note_row(self, row: Tensor, source: Tensor, iteration: int) -> None:
        """Note what an iteration reads of a tensor, and the same of an earlier loop."""
        # A forward loop's row is read by its iteration; a backward loop's may be read by nothing.
        self.taken[row] = source, iteration
        first = self.rows.setdefault((source, iteration), row)
        if first is not row and row.origin is None:  # a copy of a row has it already
            row.describe(origin=first)

    def copy_op(self, op: Op, known: dict[Tensor, Tensor], iteration: int) -> None:
        """Record an op of a body anew for one iteration; known has what stands for its tensors."""
        with current("a loop").like(op, op.phase):
            inputs = tuple(known[tensor] for tensor in op.inputs)
            bodies = {
                n: self.copy_body(body, known, iteration) for n, body in op.body_fields().items()
            }
            again = dataclasses.replace(op, inputs=inputs, **bodies)
        self.note_copies(op.outputs, again.outputs, known, iteration)
        for old, new in zip(op.outputs, again.outputs, strict=True):
            if old in self.taken:  # by a loop inside of this one
                source, inner = self.taken[old]
                self.note_row(new, known.get(source, source), inner)

    def copy_body(self, body: Body, known: Mapping[Tensor, Tensor], iteration: int) -> Body:
        """Copy a loop or a branch inside of an iteration, with ops and tensors of its own."""

        def record(values: Sequence[Tensor]) -> list[Tensor]:
            self.note_copies(body.arguments, values, {}, iteration)
            return self.copy_iteration(body, values, iteration)

        return record_body(body, known, record)

    def note_copies(
        self,
        tensors: Sequence[Tensor],
        copies: Sequence[Tensor],
        known: dict[Tensor, Tensor],
        iteration: int,
    ) -> None:
        """Note the copies of tensors, which stand to each other as the tensors do."""

        def translate(tensor: Tensor | None) -> Tensor | None:
            # What was computed again in place of another has left the program, or will.
            form = tensor
            while form is not None:
                if form in known:
                    return known[form]
                other = self.copies.get((form, iteration), self.stands.get(form))
                if other is not None:
                    return other
                form = form.origin
            return tensor

        for old, new in zip(tensors, copies, strict=True):
            name = old.name if new.name is None else None
            new.describe(name=name, origin=translate(old.origin), primal=translate(old.primal))
            known[old] = self.copies[old, iteration] = new


def _form(op: Op) -> object:
    """Return what two loops share where one reads iteration by iteration what the other made."""
    loop = op.unrolled
    return None if loop is None else (loop.over, len(loop.iterations))
