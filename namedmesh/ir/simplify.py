"""Simplifying: what changes nothing, and what a known number decides, is left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from namedmesh.dims.dimension import Shape
from namedmesh.ir.literal import fill
from namedmesh.ir.op import Body, LoopSpec, Number, Op, are_same
from namedmesh.ir.recorder import recording
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import Trace

Numbers = Mapping[Tensor, Number]
FEW_CONSTANTS = 2**16  # elements that are computed sooner than anybody notices


def simplify_ops(
    ops: Sequence[Op],
    outputs: Sequence[Tensor],
    known: Numbers | None = None,
    constants: Mapping[Tensor, Callable[[], Any]] | None = None,
) -> tuple[tuple[Op, ...], tuple[Tensor, ...]]:
    """Return ops that compute the same, and the tensors that are then the outputs."""
    simplifier = _Simplifier(known or {}, constants or {})
    with recording(simplifier.trace):
        for op in ops:
            simplifier.add(op)
    left = simplifier.trace.ops
    return tuple(ops if are_same(left, ops) else left), tuple(map(simplifier.find, outputs))


def read_others(op: Op, stands: Mapping[Tensor, Tensor]) -> Op:
    """Return an op that reads what stands for its operands."""
    if not any(tensor in stands for tensor in op.inputs):
        return op

    def replace(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(stands.get(tensor, tensor) for tensor in tensors)

    op = op.map_bodies(lambda body: dataclasses.replace(body, captured=replace(body.captured)))
    return op.rebuild(inputs=replace(op.inputs))


class _Simplifier:
    """The ops that are left so far, and what is known of their tensors."""

    def __init__(self, known: Numbers, constants: Mapping[Tensor, Callable[[], Any]]):
        self.trace = Trace()
        self.stands: dict[Tensor, Tensor] = {}  # what each tensor that is left out is equal to
        self.known = dict(known)  # tensors that are one number everywhere
        # Tensors made of constants alone, and what makes arrays of them, or None.
        self.constants: dict[Tensor, Callable[[], Any]] = {**constants}
        self.spread: dict[Tensor, Tensor] = {}  # tensors that are a scalar everywhere

    def find(self, tensor: Tensor) -> Tensor:
        """Return what stands for a tensor."""
        return self.stands.get(tensor, tensor)

    def add(self, op: Op) -> None:
        """Record an op in a simpler form, unless there is nothing left of it."""
        op = self.simplify_bodies(read_others(op, self.stands))
        if op.loop is not None:
            op, unchanged = _capture_unchanged(op, op.loop)
            if unchanged:  # what was carried and is captured now may be a known number
                self.stands.update(unchanged)
                op = self.simplify_bodies(op)
        if op.branches and op.inputs[0] in self.known:
            taken = 0 if self.known[op.inputs[0]] else 1
            self.inline(op, op.bodies[taken], op.bodies[taken].captured)
            return
        constant = self.constants.keys() >= {*op.inputs}
        if not op.placed or (constant and op.manual and op.bodies):
            # Nothing tells where a region of constants runs: XLA computes them while it compiles.
            self.inline(op, op.bodies[0], op.inputs)
            return
        before = len(self.trace.ops)
        self.trace.continue_at(op)
        op = self.read_scalars(op)
        same = op.find_equal(self.known)
        same = self.spread_scalar(op) if same is None else same
        if same is not None:
            for one in self.trace.ops[before:]:
                self.note_number(one)
            self.stands[op.output] = same
            if before < len(self.trace.ops) and same.primal is None:
                same.describe(primal=op.output.primal)
            return
        self.note_number(op)
        self.trace.record(op)

    def read_scalars(self, op: Op) -> Op:
        """Return an op that reads a scalar for a tensor which is that everywhere."""
        others = [x for x in op.inputs if x not in self.spread]
        if op.broadcasts and any(x.shape == op.output.shape for x in others):
            return read_others(op, self.spread)
        return op

    def spread_scalar(self, op: Op) -> Tensor | None:
        """Compute what an op makes of scalars and single numbers once, and repeat that."""
        # XLA does, and moves nothing of it.
        unknown = [x for x in op.inputs if x not in self.known]
        if not op.broadcasts or not unknown or not len(op.output.shape):
            return None
        if any(len(x.shape) for x in unknown):
            return None
        scalar = lambda x: fill(Shape(), self.known[x], x.dtype) if len(x.shape) else x
        once = dataclasses.replace(op, inputs=tuple(map(scalar, op.inputs))).output
        result = once.broadcast(op.output.shape)
        self.spread[result] = once
        return result

    def note_number(self, op: Op) -> None:
        """Note constants, and the number that every element of a result is, if that is known."""
        folds = op.folds or op.adds_operands or op.states_place
        if folds and not op.given and self.constants.keys() >= {*op.inputs}:
            self.constants.update(dict.fromkeys(op.outputs, cache(lambda: self.fold(op))))
        if len(op.outputs) != 1:
            return
        number = op.find_number(self.known)
        if number is None and op.output.dtype == "bool" and op.output in self.constants:
            # Of what is computed here, conditions alone decide what else is.
            array = self.constants[op.output]()
            if array is not None and array.size and (array == array.flat[0]).all():
                number = array.flat[0].item()
        if number is not None:
            self.known[op.output] = number

    def fold(self, op: Op) -> Any:
        """Compute an op of constants by NumPy; None if it is large, or cannot be computed so."""
        tensors = (*op.inputs, *op.outputs)
        if len(op.outputs) > 1 or any(x.shape.elements > FEW_CONSTANTS for x in tensors):
            return None
        arrays = [self.constants[x]() for x in op.inputs]
        array = None if any(one is None for one in arrays) else op.fold(*arrays)
        return None if array is None else np.asarray(array)

    def simplify_bodies(self, op: Op) -> Op:
        """Return an op with simpler bodies, which know the numbers that they capture."""

        def simplify(body: Body) -> Body:
            pairs = [*zip(body.captures, body.captured, strict=True)]
            known = {inner: self.known[outer] for inner, outer in pairs if outer in self.known}
            constants = {
                inner: self.constants[outer] for inner, outer in pairs if outer in self.constants
            }
            ops, outputs = simplify_ops(body.ops, body.outputs, known, constants)
            same = ops is body.ops and are_same(outputs, body.outputs)
            return body if same else dataclasses.replace(body, ops=ops, outputs=outputs)

        return op.map_bodies(simplify)

    def inline(self, op: Op, body: Body, operands: Sequence[Tensor]) -> None:
        """Record the ops of a body in the place of the op that has it."""
        for inner, outer in zip(body.arguments, operands, strict=True):
            self.stands[inner] = outer
            if inner.origin is None:
                inner.describe(origin=outer)  # cotangents of the one are sharded like the other
        inside = {tensor for one in body.ops if not one.given for tensor in one.outputs}
        for one in body.ops:
            if not one.given:
                self.add(one)
        for old, made in zip(op.outputs, body.outputs, strict=True):
            self.stands[old] = new = self.find(made)
            if old.origin is None:
                old.describe(origin=new)
            if new in inside and new.primal is None:
                new.describe(primal=old.primal)


def _capture_unchanged(op: Op, loop: LoopSpec) -> tuple[Op, dict[Tensor, Tensor]]:
    """Return the loop that captures what it would carry without ever changing it."""
    body, equal = loop.body, _find_equal_operands(loop.body.ops)
    same = []
    for i, tensor in enumerate(body.outputs[: loop.carries]):
        while tensor in equal:
            tensor = equal[tensor]
        if tensor is body.inputs[i]:
            same.append(i)
    if not same:
        return op, {}

    def keep(values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(value for i, value in enumerate(values) if i not in same)

    def capture(one: Body, outputs: Sequence[Tensor]) -> Body:
        return dataclasses.replace(
            one,
            inputs=keep(one.inputs),
            captures=(*one.captures, *(one.inputs[i] for i in same)),
            captured=(*one.captured, *unchanged.values()),
            outputs=tuple(outputs),
        )

    unchanged = {op.outputs[i]: op.inputs[i] for i in same}
    bodies = [capture(body, keep(body.outputs))]
    if loop.test is not None:
        bodies.insert(0, capture(loop.test, loop.test.outputs))
    captured = (tensor for one in bodies for tensor in one.captured)
    inputs = (*keep(op.inputs[: len(body.inputs)]), *captured)
    return op.narrow(inputs, keep(op.outputs), bodies), unchanged


def _find_equal_operands(ops: Sequence[Op]) -> dict[Tensor, Tensor]:
    """Find the operand that each result equals, wherever the two are placed."""
    equal: dict[Tensor, Tensor] = {}
    for op in ops:
        alone = len(op.inputs) == 1 and (op.adds_operands or op.states_place or op.copies)
        if alone or (op.passes_through and not op.offers_kernel):
            pairs = zip(op.outputs, op.inputs, strict=False)
            equal.update((y, x) for y, x in pairs if y.shape == x.shape)
    return equal
