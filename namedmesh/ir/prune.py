"""Pruning: what no result depends on is left out, inside loops, branches and regions too.

XLA drops it in any case: a collective that is planned there would not be made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence

from namedmesh.ir.op import Body, LoopSpec, Op, are_same
from namedmesh.ir.tensor import Tensor


def live_ops(
    ops: Sequence[Op], outputs: Iterable[Tensor], bound: Iterable[Tensor] = ()
) -> tuple[Op, ...]:
    """Return the ops that some output depends on, in order, as they are."""
    needed = {*outputs, *bound}
    kept = []
    for op in reversed(ops):
        if any(tensor in needed for tensor in op.outputs):
            kept.append(op)
            needed.update(op.inputs)
    return tuple(reversed(kept))


def prune_ops(
    ops: Sequence[Op], outputs: Iterable[Tensor], bound: Iterable[Tensor] = ()
) -> tuple[Op, ...]:
    """Return the ops that some output depends on, without what nothing reads inside of them.

    No derivative is taken of what remains: operands that derivatives alone read are left out.
    """
    return _Pruner(ops, outputs, final=True).prune(ops, {*bound})


def prune_body(body: Body) -> Body:
    """Return a body without what its outputs, and their derivatives, do not depend on."""
    pruner = _Pruner(body.ops, body.outputs, final=False)
    return dataclasses.replace(body, ops=pruner.prune(body.ops, {*body.arguments}))


class _Pruner:
    """The tensors of some ops, and of all bodies in them, that some outputs depend on."""

    def __init__(self, ops: Sequence[Op], outputs: Iterable[Tensor], final: bool):
        self.final = final  # whether no derivative will be taken any more
        self.reads: dict[Tensor, list[Sequence[Tensor]]] = {}  # what each tensor is made of
        self.index_ops(ops)
        self.live = {*outputs}
        pending = [*self.live]
        while pending:
            for tensors in self.reads.get(pending.pop(), ()):
                if not self.live.issuperset(tensors):
                    pending += [tensor for tensor in tensors if tensor not in self.live]
                    self.live.update(tensors)

    def link(self, tensors: Iterable[Tensor], *read: Tensor) -> None:
        """Note that some tensors are made of others."""
        for tensor in tensors:
            self.reads.setdefault(tensor, []).append(read)

    def link_each(self, tensors: Sequence[Tensor], read: Sequence[Tensor]) -> None:
        """Note that each of some tensors is made of another one."""
        for tensor, other in zip(tensors, read, strict=True):
            self.link([tensor], other)

    def index_ops(self, ops: Sequence[Op]) -> None:
        """Note what the results of ops, and what is inside of them, are made of."""
        for op in ops:
            bodies = op.bodies
            for body in bodies:
                self.index_ops(body.ops)
            if not bodies and not self.passes_on(op):  # most ops
                self.index_plain(op)
            elif op.loop is not None:
                self.index_loop(op, op.loop)
            elif op.branches:
                self.link(op.outputs, op.inputs[0])
                for body, captured in zip(op.bodies, captured_by(op), strict=True):
                    self.link_each(op.outputs, body.outputs)
                    self.link_each(body.captures, captured)
            elif bodies and op.applies_body:
                (body,) = bodies
                self.link_each(op.outputs, body.outputs)
                self.link_each(body.arguments, op.inputs)
            elif bodies:
                inside = (tensor for body in bodies for tensor in body.outputs)
                self.link(op.outputs, *op.inputs, *inside)
            else:
                self.link_each(op.outputs, op.inputs[: len(op.outputs)])
                self.link(op.outputs, *_read_by_kernel(op))

    def index_plain(self, op: Op) -> None:
        """Note what the results of an op without bodies are made of; a function may ignore some."""
        read = op.read_operands if self.final else None
        for i, tensor in enumerate(op.outputs):
            operands = op.inputs if read is None else [op.inputs[j] for j in read[i]]
            self.reads.setdefault(tensor, []).append(operands)

    def index_loop(self, op: Op, loop: LoopSpec) -> None:
        """Note what a loop makes its results of: a carry is one if anything reads it."""
        body, count = loop.body, loop.carries
        carries = body.inputs[:count]
        self.link_each(op.outputs[:count], carries)
        self.link_each(op.outputs[count:], body.outputs[count:])
        self.link_each(carries, body.outputs[:count])
        rest = op.inputs[len(body.inputs) :]
        if loop.test is not None:
            self.link(op.outputs, *loop.test.outputs)
            self.link_each(loop.test.inputs, carries)
            self.link_each(loop.test.captures, rest[: len(loop.test.captures)])
            rest = rest[len(loop.test.captures) :]
        self.link_each(body.arguments, (*op.inputs[: len(body.inputs)], *rest))

    def passes_on(self, op: Op) -> bool:
        """Return whether an op is an identity, whose other operands no derivative reads now."""
        return self.final and op.passes_through

    def prune(self, ops: Sequence[Op], bound: Collection[Tensor]) -> tuple[Op, ...]:
        """Return the ops that are needed, or that bind some tensors, each without the rest."""
        live = self.live.union(bound)
        return tuple(self.prune_op(op) for op in ops if not live.isdisjoint(op.outputs))

    def prune_op(self, op: Op) -> Op:
        """Return an op without the operands, results and ops of its bodies that nobody needs."""
        if not op.bodies and not self.passes_on(op):
            return self.prune_plain(op)
        if op.loop is not None:
            return self.prune_loop(op, op.loop)
        stays = [i for i, tensor in enumerate(op.outputs) if tensor in self.live]
        outputs = [op.outputs[i] for i in stays]
        if op.branches:
            inputs, bodies = [op.inputs[0]], []
            for body, captured in zip(op.bodies, captured_by(op), strict=True):
                bodies.append(self.prune_body(body, [], [body.outputs[i] for i in stays]))
                pairs = zip(captured, body.captures, strict=True)
                inputs += [outer for outer, inner in pairs if inner in self.live]
            return op.narrow(inputs, outputs, bodies)
        if op.bodies and not op.applies_body:
            return op.map_bodies(prune_body)
        if op.bodies:
            (body,) = op.bodies
            given = [tensor for tensor in body.inputs if tensor in self.live]
            shorter = self.prune_body(body, given, [body.outputs[i] for i in stays])
            pairs = zip(op.inputs, body.arguments, strict=True)
            inputs = [outer for outer, inner in pairs if inner in self.live]
            return op.narrow(inputs, outputs, [shorter])
        inputs = [*(op.inputs[i] for i in stays), *_read_by_kernel(op)]
        return op.narrow(inputs, outputs, [])

    def prune_plain(self, op: Op) -> Op:
        """Return an op without bodies, and without the operands that it ignores."""
        read = op.read_operands if self.final else None
        if read is None:
            return op
        pairs = zip(op.outputs, read, strict=True)
        used = {i for tensor, operands in pairs if tensor in self.live for i in operands}
        ignored = {*range(len(op.inputs))} - used
        return op.drop_operands(ignored) if ignored else op

    def prune_loop(self, op: Op, loop: LoopSpec) -> Op:
        """Return a loop without the carries, rows and captures that nobody needs."""
        body, count, total = loop.body, loop.carries, len(loop.body.inputs)
        carries = [i for i in range(count) if body.inputs[i] in self.live]
        histories = range(count, len(op.outputs))
        results = [*carries, *(i for i in histories if op.outputs[i] in self.live)]
        given = [*carries, *(i for i in range(count, total) if body.inputs[i] in self.live)]
        made = [body.outputs[i] for i in results]
        shorter = [self.prune_body(body, [body.inputs[i] for i in given], made)]
        arguments: list[Tensor] = [*body.captures]
        if loop.test is not None:
            test = [loop.test.inputs[i] for i in carries]
            shorter.insert(0, self.prune_body(loop.test, test, loop.test.outputs))
            arguments = [*loop.test.captures, *arguments]
        pairs = zip(op.inputs[total:], arguments, strict=True)
        captured = [outer for outer, inner in pairs if inner in self.live]
        inputs = [*(op.inputs[i] for i in given), *captured]
        return op.narrow(inputs, [op.outputs[i] for i in results], shorter)

    def prune_body(self, body: Body, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Body:
        """Return a body with some of its inputs and outputs, and the captures that it needs."""
        pairs = zip(body.captures, body.captured, strict=True)
        taken = [(inner, outer) for inner, outer in pairs if inner in self.live]
        captures, captured = zip(*taken, strict=True) if taken else ((), ())
        ops = self.prune(body.ops, {*inputs, *captures})
        shorter = Body(ops, tuple(inputs), captures, captured, tuple(outputs))
        pairs = (ops, body.ops), (shorter.arguments, body.arguments), (outputs, body.outputs)
        return body if all(are_same(*pair) for pair in pairs) else shorter


def _read_by_kernel(op: Op) -> Sequence[Tensor]:
    """Return the operands of an op from which a backend's kernel may compute what it passes on."""
    return op.inputs[len(op.outputs) :] if op.offers_kernel else ()


def captured_by(choice: Op) -> list[Sequence[Tensor]]:
    """Return the operands of a choice that each of its branches captures."""
    captured, start = [], 1  # the first operand is the condition
    for body in choice.bodies:
        captured.append(choice.inputs[start : start + len(body.captures)])
        start += len(body.captures)
    return captured
