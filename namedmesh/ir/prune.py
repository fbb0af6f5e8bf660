"""Pruning: what no result depends on is left out, inside loops, branches and regions too.

XLA drops it in any case: a collective that is planned there would not be made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence

from namedmesh.ir.op import Body, Op, are_same
from namedmesh.ir.tensor import Tensor


def live_ops(
    ops: Sequence[Op], outputs: Iterable[Tensor], bound: Iterable[Tensor] = ()
) -> tuple[Op, ...]:
    """Return the ops that some output depends on, in order, as they are."""
    needed = trace_back(ops, {*outputs, *bound})
    return tuple(op for op in ops if not needed.isdisjoint(op.outputs))


def trace_back(ops: Sequence[Op], tensors: Iterable[Tensor]) -> set[Tensor]:
    """Return some tensors and all that the ops that make them read."""
    needed = {*tensors}
    for op in reversed(ops):
        if not needed.isdisjoint(op.outputs):
            needed.update(op.inputs)
    return needed


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
            if bodies and op.applies_body:
                self.index_bodies(op)
            elif bodies:
                inside = (tensor for body in bodies for tensor in body.outputs)
                self.link(op.outputs, *op.inputs, *inside)
            elif self.passes_on(op):
                self.link_each(op.outputs, op.inputs[: len(op.outputs)])
                self.link(op.outputs, *_read_by_kernel(op))
            else:  # most ops; a function may ignore some operands
                read = op.read_operands if self.final else None
                for i, tensor in enumerate(op.outputs):
                    operands = op.inputs if read is None else [op.inputs[j] for j in read[i]]
                    self.reads.setdefault(tensor, []).append(operands)

    def index_bodies(self, op: Op) -> None:
        """Note what bodies are called with and return: a carry is one if anything reads it."""
        for outer, inner in zip(op.inputs, name_inside(op), strict=True):
            self.link(inner, outer)
        loop = op.loop
        if loop is None:
            for body in op.bodies:
                self.link_each(op.outputs, body.outputs)
            if op.branches:
                self.link(op.outputs, op.inputs[0])
            return
        carries, made = loop.body.inputs[: loop.carries], loop.body.outputs
        self.link_each(op.outputs, (*carries, *made[loop.carries :]))
        self.link_each(carries, made[: loop.carries])
        if loop.test is not None:
            self.link(op.outputs, *loop.test.outputs)
            self.link_each(loop.test.inputs, carries)

    def passes_on(self, op: Op) -> bool:
        """Return whether an op is an identity, whose other operands no derivative reads now."""
        return self.final and op.passes_through

    def prune(self, ops: Sequence[Op], bound: Collection[Tensor]) -> tuple[Op, ...]:
        """Return the ops that are needed, or that bind some tensors, each without the rest."""
        live = self.live.union(bound)
        return tuple(self.prune_op(op) for op in ops if not live.isdisjoint(op.outputs))

    def prune_op(self, op: Op) -> Op:
        """Return an op without the operands, results and ops of its bodies that nobody needs."""
        if op.bodies:
            return self.prune_bodies(op) if op.applies_body else op.map_bodies(prune_body)
        if self.passes_on(op):
            stays = [i for i, tensor in enumerate(op.outputs) if tensor in self.live]
            inputs = [*(op.inputs[i] for i in stays), *_read_by_kernel(op)]
            return op.narrow(inputs, [op.outputs[i] for i in stays], [])
        read = op.read_operands if self.final else None
        if read is None:
            return op
        pairs = zip(op.outputs, read, strict=True)
        used = {i for tensor, operands in pairs if tensor in self.live for i in operands}
        ignored = {*range(len(op.inputs))} - used
        return op.drop_operands(ignored) if ignored else op

    def prune_bodies(self, op: Op) -> Op:
        """Return an op with what is needed of its bodies, and what they are then called with."""
        inside, loop = name_inside(op), op.loop
        given = [i for i, names in enumerate(inside) if not (names and self.live.isdisjoint(names))]
        carries = 0 if loop is None else loop.carries
        results = [i for i in given if i < carries]  # then histories, or all results
        results += [i for i, y in enumerate(op.outputs) if i >= carries and y in self.live]
        bodies = []
        for body in op.bodies:
            tests = loop is not None and body is loop.test
            made = body.outputs if tests else [body.outputs[i] for i in results]
            inputs = [tensor for i, tensor in enumerate(body.inputs) if i in given]
            bodies.append(self.prune_body(body, inputs, made))
        inputs = [op.inputs[i] for i in given]
        return op.narrow(inputs, [op.outputs[i] for i in results], bodies)

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


def name_inside(op: Op) -> list[tuple[Tensor, ...]]:
    """Return what each operand of an op with bodies is called inside: its inputs, then captures."""
    inside: list[tuple[Tensor, ...]] = [(tensor,) for tensor in op.bodies[-1].inputs]
    if op.branches:
        inside = [()]  # the condition
    elif op.loop is not None and op.loop.test is not None:
        inside = list(zip(op.bodies[-1].inputs, op.loop.test.inputs, strict=True))
    return [*inside, *((tensor,) for body in op.bodies for tensor in body.captures)]
