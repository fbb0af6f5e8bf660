"""Results passed on with another derivative: computed again in the backward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Self

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.context import Context
from namedmesh.ir.differentiate import body_vjp
from namedmesh.ir.literal import as_tensor
from namedmesh.ir.op import Body, Op, PlacementRules, with_dim
from namedmesh.ir.operands import check_callable, check_flag
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import current
from namedmesh.ops.elementwise import compute_once
from namedmesh.ops.loop_storage import (
    ToDevice,
    ToHost,
    check_remat,
    drop_cheapest,
    find_by_name,
)
from namedmesh.ops.scan import batch_body
from namedmesh.signature.nest import flatten, unflatten


class PassThrough(Op):
    """The first operands passed on as they are; the others are what the derivative reads."""

    elementwise = True
    passes_through = True
    count: int  # how many operands are passed on

    @property
    def repeatable(self) -> bool:
        return True

    def vmap(self, inputs: tuple[Tensor, ...], over: Dimension) -> Sequence[Tensor]:
        return inputs[: self.count]

    def results(self) -> list[tuple[Shape, str]]:
        return [(x.shape, x.dtype) for x in self.inputs[: self.count]]

    def lower(self, context: Context, *values: Any) -> Any:
        return [context.tf.identity(value) for value in values[: self.count]]

    def narrow(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], bodies: Sequence[Body]
    ) -> Self:
        shorter = super().narrow(inputs, outputs, bodies)
        return self if shorter is self else shorter.rebuild(count=len(outputs))

    def plan(self, rules: PlacementRules, times: int) -> None:
        rules.place_pass_through(self, times)


POLICIES = ("full", "dots", "fit")


class Recompute(PassThrough):
    """Results, what made them and what is kept; its derivative computes the results again."""

    ops: tuple[Op, ...]
    read: tuple[Tensor, ...]
    made: tuple[Tensor, ...]
    kept: tuple[Tensor, ...]
    offload: bool = False

    @property
    def repeated_ops(self) -> tuple[Op, ...]:
        return self.ops

    def vmap(self, inputs: tuple[Tensor, ...], over: Dimension) -> Sequence[Tensor]:
        body = Body(self.ops, self.read, (), (), self.made)

        def compute(*values: Tensor) -> list[Tensor]:
            known = batch_body(body, values, over)
            return [with_dim(known[x], over, x.shape) for x in self.made]

        values = inputs[self.count : self.count + len(self.read)]
        return checkpoint(compute, "dots" if self.kept else "full", self.offload)(*values)

    def vjp(self, *cotangents: Tensor) -> list[Tensor | None]:
        first, last = self.count, self.count + len(self.read)
        # Behind a barrier: XLA would find that all of it was computed before, and store that.
        values = [compute_once(x).describe(name=x.name) for x in self.inputs[first:last]]
        wanted = [i for i, x in enumerate(values) if x.floating]
        body = Body(self.ops, self.read, (), (), self.made)
        stored = self.inputs[last:]
        if self.offload:
            stored = [ToDevice((x,)).output.describe(name=x.name) for x in stored]
        saved = dict(zip(self.kept, stored, strict=True))
        found = dict(zip(wanted, body_vjp(body, values, cotangents, wanted, saved), strict=True))
        return [*[None] * first, *(found.get(i) for i in range(last - first)),
                *[None] * len(self.kept)]  # fmt: skip


def checkpoint(
    function: Callable[..., Any],
    policy: str | float | Sequence[str] = "full",
    offload: bool = False,
) -> Callable[..., Any]:
    """Return a function whose backward pass computes it again instead of storing what it made.

    Only its arguments, and the parameters that it reads, are kept. Layers in a loop have the same
    by `remat` of `nm.scan`, which saves memory on CPUs too; outside of loops XLA for CPUs merges
    what is computed twice.

    Args:
        function: Takes tensors, nested as you like, and return some.
        policy: "full" computes everything again; "dots" keeps the results of einsums and reshards,
            so that no product and no communication is made twice; a number from 0 to 1 keeps so
            much of them, and "fit" as much as fits the memory of a target, as for `nm.scan`; a
            list of names keeps the tensors that variables of these names hold.
        offload: Whether what the policy keeps waits in the memory of the host, on GPUs and TPUs.

    Example:
        >>> M = nm.Dimension("model", 2)
        >>> def slope(x):
        ...     return nm.grad(nm.sum(nm.checkpoint(nm.exp)(x)), x)
        >>> nm.evaluate(slope, x=([M], [0.0, 0.0]))
        array([1., 1.], dtype=float32)
    """
    check_callable("checkpoint", function)
    policy = check_remat("policy", policy, POLICIES)
    check_flag("checkpoint: offload", offload)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        trace = current("checkpoint")
        stored = trace.choose_remat(policy)
        if stored in ("none", 1):
            return function(*arguments, **named)
        start = len(trace.ops)
        structure = function(*arguments, **named)
        results = tuple(as_tensor("checkpoint", leaf) for leaf in flatten(structure))
        if not results:
            raise NamedMeshError("checkpoint: the function returned no tensor", fix="return one")
        ops = tuple(op for op in trace.ops[start:] if not op.given)
        inside = {tensor for op in ops for tensor in op.outputs}
        everything = [x for op in ops for x in op.inputs] + list(results)
        read = tuple(dict.fromkeys(x for x in everything if x not in inside))
        kept = [x for op in ops if stored != "full" and op.kept_by_dots for x in op.outputs]
        if isinstance(stored, tuple):
            kept = [*find_by_name(ops, stored)]
        kept = tuple(drop_cheapest(ops, kept, stored))
        stored = [ToHost((x,)).output.describe(name=x.name) for x in kept] if offload else kept
        inputs = (*results, *read, *stored)
        outputs = Recompute(inputs, len(results), ops, read, results, kept, offload).outputs
        return unflatten(structure, iter(outputs))

    return call
