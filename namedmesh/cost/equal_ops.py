"""Which ops of a body compute the same, so that XLA makes them once."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from namedmesh.dims.sharding import Sharding
from namedmesh.ir.contents import describe_options
from namedmesh.ir.op import Op
from namedmesh.ir.tensor import Tensor
from namedmesh.planning.plan import Plan


class Contents:
    """What tells the ops of one body apart: contents, operands and places."""

    def __init__(self, plan: Plan, resolve: Callable[[Tensor], Tensor]):
        self.plan, self.resolve = plan, resolve
        self._numbers: dict[Hashable, int] = {}
        self._constants: dict[Tensor, int] = {}

    def describe(self, op: Op) -> Hashable:
        """Return what an op has in common with those that compute the same where it does."""
        operands = [
            (self._describe_operand(x), self._place(op, i)) for i, x in enumerate(op.inputs)
        ]
        places = [self.plan.shardings[tensor] for tensor in op.outputs]
        return describe_options(op), tuple(operands), tuple(places)

    def _place(self, op: Op, i: int) -> Sharding | None:
        """Where an operand is moved to, if it is."""
        steps = self.plan.operands.get((op, i))
        return steps[-1].result if steps else None

    def _describe_operand(self, tensor: Tensor) -> Hashable:
        """What equal operands have in common; constants are equal if they are made alike."""
        if tensor not in self.plan.free:
            return self.resolve(tensor)
        tensor = self.plan.free[tensor]
        if tensor not in self._constants:
            op = self.plan.producers[tensor]
            inputs = tuple(map(self._describe_operand, op.inputs))
            key = describe_options(op), inputs, tensor.shape
            self._constants[tensor] = self._numbers.setdefault(key, len(self._numbers))
        return self._constants[tensor]
