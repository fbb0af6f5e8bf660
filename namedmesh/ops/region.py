"""Collectives inside manual regions, and how regions are recorded between them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from namedmesh.dims.dimension import Shape
from namedmesh.ir.context import Context
from namedmesh.ir.differentiate import body_vjp, follow_ops, repeat_op, repeat_ops
from namedmesh.ir.op import Body, Op, every_op
from namedmesh.ir.recorder import set_variable
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import current, record_body, trace_body
from namedmesh.ops.move import Move

# The dimensions over which the region being traced is split; None outside of regions.
_region: ContextVar[frozenset[str] | None] = ContextVar("namedmesh_region", default=None)


def region_over(names: frozenset[str]) -> contextlib.AbstractContextManager[None]:
    """Trace a function as that of a region which is split over some dimensions."""
    return set_variable(_region, names)


def active_region() -> frozenset[str] | None:
    """Return the dimensions over which the region being traced is split; None outside of one."""
    return _region.get()


class Enclosing(Op):
    """Some ops as one."""

    body: Body

    @property
    def bodies(self) -> tuple[Body, ...]:
        """The ops, for passes that look at every one."""
        return (self.body,)

    def results(self) -> list[tuple[Shape, str]]:
        return [(tensor.shape, tensor.dtype) for tensor in self.body.outputs]

    def lower(self, context: Context, *values: Any) -> Any:
        return context.run(self.body, values)

    @property
    def read_operands(self) -> list[set[int]]:
        return self.body.read_arguments()

    def depends_on(self, i: int) -> bool:
        """Return whether a result depends differentiably on an input."""
        reached = follow_ops(self.body.ops, [self.body.arguments[i]])
        return not reached.isdisjoint(self.body.outputs)


class RegionCollective(Enclosing):
    """Ops that mix the shards of a manual region: one of its collectives."""

    mixes_shards = True

    def vjp(self, *cotangents: Tensor) -> list[Tensor | None]:
        count = len(self.inputs)
        reached = [i for i in range(count) if self.depends_on(i)]

        def backward(*values: Tensor) -> list[Tensor]:
            return body_vjp(self.body, values[:count], values[count:], reached)

        found = dict(
            zip(reached, record_collective(backward, (*self.inputs, *cotangents)), strict=True)
        )
        return [found.get(i) for i in range(count)]


def record_collective(
    function: Callable[..., Sequence[Tensor]], tensors: Sequence[Tensor]
) -> Sequence[Tensor]:
    """Record ops that mix shards: as one op in a region, and as they are outside of one."""
    if active_region() is None:
        return function(*tensors)
    specs = [(tensor.shape, tensor.dtype, tensor.label) for tensor in tensors]
    body, _ = trace_body(function, specs, outer=tensors)
    return RegionCollective((*tensors, *body.captured), body).outputs


def mixes_shards(ops: Sequence[Op]) -> bool:
    """Return whether some ops, those of loops and branches included, have a collective."""
    return any(op.mixes_shards for op in every_op(ops))


class RegionCutter:
    """Records a region with collectives: what is between two of them is a region of its own."""

    def __init__(
        self, record_region: Callable[..., Sequence[Tensor]], over: frozenset[str], body: Body
    ):
        self._record_region, self._over, self._body = record_region, over, body
        self._free = _made_of_constants(body.ops)

    def record(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Record what the region does with some values, and return its results."""
        known = dict(zip(self._body.arguments, map(self._make_whole, values), strict=True))
        run: list[Op] = []
        for op in self._body.ops:
            if op.given or op.outputs[0] in self._free:
                continue
            # What has a derivative of its own may use collectives there: it stands outside regions.
            apart = mixes_shards([op]) or op.own_backward
            if run and (apart or self._over_of(run[-1]) != self._over_of(op)):
                self._record_run(run, known)
                run = []
            if apart:
                self._repeat(op, known)
            else:
                run.append(op)
        if run:
            self._record_run(run, known)
        return [self._find(tensor, known) for tensor in self._body.outputs]

    def _over_of(self, op: Op) -> frozenset[str]:
        """The dimensions over which all results of an op are split."""
        return self._over.intersection(*(tensor.shape.names for tensor in op.outputs))

    def _record_run(self, run: Sequence[Op], known: dict[Tensor, Tensor]) -> None:
        """Record ops without a collective among them as one region."""
        made = {tensor for op in run for tensor in op.outputs}
        read = dict.fromkeys(tensor for op in run for tensor in op.inputs)
        outside = [tensor for tensor in read if tensor not in made and tensor not in self._free]
        later = [tensor for op in self._body.ops if op not in run for tensor in op.inputs]
        results = [one for one in dict.fromkeys([*later, *self._body.outputs]) if one in made]
        over = self._over_of(run[0])
        if not over <= {name for tensor in outside for name in tensor.shape.names}:
            for op in run:  # nothing says where a region would run
                self._repeat(op, known)
            return

        def replay(*values: Tensor) -> list[Tensor]:
            inside = dict(zip(outside, values, strict=True))
            for op in run:
                self._repeat(op, inside)
            return [inside[tensor] for tensor in results]

        found = self._record_region(replay, [known[tensor] for tensor in outside], over)
        known.update(zip(results, found, strict=True))

    def _find(self, tensor: Tensor, known: dict[Tensor, Tensor]) -> Tensor:
        """Return what stands for a tensor; what is made of constants is made where it is read."""
        if tensor not in known:
            self._repeat(self._free[tensor], known)
        return known[tensor]

    def _repeat(self, op: Op, known: dict[Tensor, Tensor]) -> None:
        """Record an op again; collectives as the ops they are, loops with their bodies cut."""
        if mixes_shards(op.repeated_ops):
            raise op.error(
                "a function with collectives cannot be computed again inside a manual region",
                fix="put nm.checkpoint around nm.manual",
            )
        inputs = tuple(self._find(tensor, known) for tensor in op.inputs)
        found: Sequence[Tensor]
        if op.mixes_shards:
            (body,) = op.bodies
            _, inside = repeat_ops(body, inputs)
            found = [inside[tensor] for tensor in body.outputs]
        elif mixes_shards([op]):
            found = self._record_loop(op, inputs)
        else:
            found = repeat_op(op, inputs).outputs
        for old, new in zip(op.outputs, found, strict=True):
            if new.name is None:
                new.describe(name=old.name)
        known.update(zip(op.outputs, found, strict=True))

    def _record_loop(self, op: Op, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """Record a loop or a branch that has collectives; as in a region, all else is whole."""
        inputs = tuple(map(self._make_whole, inputs))
        others = dict(zip(op.inputs, inputs, strict=True))
        bodies = {name: self._cut(body, others) for name, body in op.body_fields().items()}
        with current(op.kind).like(op):
            return dataclasses.replace(op, inputs=inputs, **bodies).outputs

    def _make_whole(self, tensor: Tensor) -> Tensor:
        """Gather the dimensions over which the region is not split."""
        give = tuple(name for name in tensor.shape.names if name not in self._over)
        return Move((tensor,), give=give, called="replicate").output if give else tensor

    def _cut(self, body: Body, others: Mapping[Tensor, Tensor]) -> Body:
        """Copy the body of a loop or a branch, with regions between its collectives."""
        cutter = RegionCutter(self._record_region, self._over, body)
        return record_body(body, others, cutter.record)


def _made_of_constants(ops: Sequence[Op]) -> dict[Tensor, Op]:
    """Return what is made of nothing but constants, each with the op that makes it."""
    free: dict[Tensor, Op] = {}
    for op in ops:
        if not op.given and not mixes_shards([op]) and free.keys() >= {*op.inputs}:
            free.update(dict.fromkeys(op.outputs, op))
    return free
