"""Reverse-mode differentiation over named ops: every cotangent is a named tensor that knows its primal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from namedmesh.dims.errors import NamedMeshError
from namedmesh.ir.nest import flatten, unflatten
from namedmesh.ir.op import Op
from namedmesh.ir.operands import operand, shown
from namedmesh.ir.program import Body, Placeholder
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import Trace, current, pushed
from namedmesh.ops.constants import full, zeros
from namedmesh.ops.elementwise import StopGradient, add
from namedmesh.ops.placement import Move
from namedmesh.ops.variables import parameters


def grad(loss: Tensor, wrt: Any = None, cotangent: Tensor | None = None) -> Any:
    """The gradient of a scalar with respect to tensors (by default, to every parameter, as a dict by name).

    With a cotangent, loss may have any shape: the result is the vector-Jacobian product. Ops traced before
    count as forward in the plan, those made here as backward, and those after as update.
    """
    trace = current("grad")
    if wrt is None:
        wrt = parameters()
    targets = flatten(wrt)
    for target in targets:
        if not isinstance(target, Tensor) or not target.floating:
            raise NamedMeshError(
                f"grad: cannot differentiate with respect to {shown(target)}",
                fix="name floating point tensors in wrt=",
            )
    if not targets:
        raise NamedMeshError(
            "grad: there is nothing to differentiate with respect to",
            fix="make parameters with nm.param, or name tensors in wrt=",
        )
    if not operand("grad", loss).floating:
        raise NamedMeshError(
            f"grad: the loss is {loss.dtype}, through which no gradient flows",
            str(loss),
            fix="compute it in floating point: nm.cast its operands, not the loss",
        )
    if cotangent is None and len(loss.shape):
        raise NamedMeshError(
            "grad: the loss is no scalar",
            str(loss),
            fix="reduce it, e.g. nm.mean(loss), or give cotangent=",
        )
    targets = [trace.bring(target) for target in targets]
    with trace.at(trace.source, "backward", derived=True):
        start = (
            full([], 1, loss.dtype) if cotangent is None else operand("grad: cotangent", cotangent)
        )
        if start.shape != loss.shape or start.dtype != loss.dtype:
            raise NamedMeshError(
                "grad: the cotangent is not like the loss",
                f"loss: {loss.dtype}{loss.shape}",
                f"cotangent: {start.dtype}{start.shape}",
                fix="give it the same dimensions, order and dtype",
            )
        found = _reverse(list(trace.ops), {loss: start}, targets)
        made = [
            found.get(target)
            if found.get(target) is not None
            else _primal(zeros(target.shape, target.dtype), target)
            for target in targets
        ]
    trace.phase = "update" if trace.phase == "forward" else trace.phase
    return unflatten(wrt, iter(made))


def _primal(cotangent: Tensor, primal: Tensor) -> Tensor:
    """The cotangent of a tensor, marked as such; one that is shared gets a stand-in of its own."""
    if cotangent.primal is not None or isinstance(cotangent.producer, Placeholder):
        cotangent = Move((cotangent,)).output
    cotangent.primal = primal
    return cotangent


def _reverse(
    ops: Sequence[Op], seeds: dict[Tensor, Tensor], targets: Sequence[Tensor]
) -> dict[Tensor, Tensor]:
    """Cotangents of the targets, given those of some results."""
    trace = current("grad")
    reached = set(targets)
    path = []
    for op in ops:
        if any(tensor in reached for tensor in op.inputs) and not isinstance(op, StopGradient):
            reached.update(tensor for tensor in op.outputs if tensor.floating)
            path.append(op)
    cotangents = {tensor: _primal(seed, tensor) for tensor, seed in seeds.items()}
    for op in reversed(path):
        if not any(tensor in cotangents for tensor in op.outputs):
            continue
        with trace.at(op.source, derived=True):
            given = [
                cotangents[tensor]
                if tensor in cotangents
                else _primal(zeros(tensor.shape, tensor.dtype), tensor)
                for tensor in op.outputs
            ]
            before = len(trace.ops)
            made = op.vjp(*given)
            fresh = {id(tensor) for new in trace.ops[before:] for tensor in new.outputs}
            for x, dx in zip(op.inputs, made, strict=True):
                if dx is None or x not in reached:
                    continue
                if id(dx) not in fresh:
                    dx = Move((dx,)).output
                dx = _primal(dx, x)
                cotangents[x] = _primal(add(cotangents[x], dx), x) if x in cotangents else dx
    return cotangents


def clone(
    body: Body, values: Sequence[Tensor], saved: dict[Tensor, Tensor] | None = None
) -> dict[Tensor, Tensor]:
    """The ops of a body recorded anew on other values.

    A tensor in saved stands for the result of its op: what follows reads it, the reverse pass still goes
    through the op, and the op itself is dead unless something else of it is needed.
    """
    known = dict(zip((*body.inputs, *body.captures), values, strict=True))
    saved = saved or {}
    for op in body.ops:
        if isinstance(op, Placeholder):
            continue
        again = op.again(tuple(known[tensor] for tensor in op.inputs))
        for old, new in zip(op.outputs, again.outputs, strict=True):
            new.name, new.origin = old.name, old
            if old.primal is not None:
                new.primal = known.get(old.primal, old.primal)
        again.outputs = tuple(
            saved.get(old, new) for old, new in zip(op.outputs, again.outputs, strict=True)
        )
        known.update(zip(op.outputs, again.outputs, strict=True))
    return known


def copied(body: Body) -> Body:
    """The same body with ops and tensors of its own, so that every loop and branch is planned by itself."""
    inner = Trace(current("a loop body"))
    given = [inner.placeholder(t.shape, t.dtype, t.label) for t in (*body.inputs, *body.captures)]
    with pushed(inner):
        known = clone(body, given)
    count = len(body.inputs)
    outputs = tuple(known[tensor] for tensor in body.outputs)
    return Body(
        tuple(inner.ops), tuple(given[:count]), tuple(given[count:]), body.captured, outputs
    )


def body_vjp(
    body: Body,
    values: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    wanted: Sequence[int],
    saved: dict[Tensor, Tensor] | None = None,
    seen: Callable[[dict[Tensor, Tensor], int], None] | None = None,
) -> list[Tensor]:
    """Cotangents of some values of a body, by computing it again (less what is saved) and reversing that."""
    trace = current("grad")
    start = len(trace.ops)
    with trace.at(trace.source, "backward"):
        known = clone(body, values, saved)
        middle = len(trace.ops)
        seeds: dict[Tensor, Tensor] = {}
        for old, cotangent in zip(body.outputs, cotangents, strict=True):
            if old.floating:
                new = known[old]
                seeds[new] = add(seeds[new], cotangent) if new in seeds else cotangent
        targets = [values[i] for i in wanted]
        found = _reverse(trace.ops[start:middle], seeds, targets)
        if seen is not None:
            seen(known, middle)
        return [found[t] if t in found else _primal(zeros(t.shape, t.dtype), t) for t in targets]
