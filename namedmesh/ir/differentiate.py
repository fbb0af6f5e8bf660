"""Reverse-mode differentiation over named ops: every cotangent knows its primal by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any

from namedmesh.errors.errors import NamedMeshError
from namedmesh.errors.mistakes import ByName
from namedmesh.ir.context import Context
from namedmesh.ir.format import format_value
from namedmesh.ir.literal import fill
from namedmesh.ir.op import Body, Op, PlacementRules
from namedmesh.ir.operands import check_tensor
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import Trace, current, record_body
from namedmesh.signature.nest import flatten, format_nest, match_leaves, unflatten


def follow_ops(ops: Iterable[Op], tensors: Iterable[Tensor]) -> set[Tensor]:
    """Return some tensors and all that depend on them differentiably."""
    reached = set(tensors)
    for op in ops:
        if not op.stops_gradient and any(tensor in reached for tensor in op.inputs):
            reached.update(tensor for tensor in op.outputs if tensor.floating)
    return reached


def find_sensitive(body: Body) -> list[set[int]]:
    """Find the arguments that each output of a body depends on differentiably."""
    reached = [follow_ops(body.ops, [argument]) for argument in body.arguments]
    return [{i for i, some in enumerate(reached) if y in some} for y in body.outputs]


def check_arguments(trace: Trace, results: Iterable[Tensor], reached: set[Tensor]) -> None:
    """Raise when results of a body depend on reached tensors through the body's arguments."""
    for inner, outer in trace.arguments.items():
        if outer in reached and not follow_ops(trace.ops, [inner]).isdisjoint(results):
            raise NamedMeshError(
                f"grad: inside a loop body or region, the loss depends on {outer.label} through "
                "an argument of the body, and wrt= names a tensor outside",
                str(outer),
                fix="name the body's own argument in wrt=, or call nm.grad outside the body",
            )


class Cotangent(Op):
    """The cotangent of a tensor: the sum of what its readers send back, sharded like the tensor."""

    elementwise = True
    adds_operands = True
    kept_by_dots = True

    @property
    def linear_in(self) -> tuple[tuple[int, ...], ...]:
        return (tuple(range(len(self.inputs))),)

    def results(self):
        return [(self.inputs[0].shape, self.inputs[0].dtype)]

    def lower(self, context: Context, *parts: Any) -> Any:
        return context.tf.add_n(list(parts))

    def vjp(self, dy: Tensor):
        return [Cotangent((dy,)).output for _ in self.inputs]

    def plan(self, rules: PlacementRules, times: int) -> None:
        rules.place_sum(self, times)

    def flops(self) -> int:
        return (len(self.inputs) - 1) * self.inputs[0].shape.elements


def grad(loss: Any, wrt: Any = None, cotangent: Any = None) -> Any:
    """Return the gradients of a scalar with respect to tensors, nested as `wrt` is.

    A tensor that the loss does not depend on has zeros. Ops traced before count as forward in
    plans, those made here as backward, later ones as update. Inside of loop bodies, branches and
    manual regions, the gradient also flows through ops outside; a loop's carry is a value of its
    own.

    Args:
        loss: The scalar; with cotangents, tensors of any shape, nested as you like.
        wrt: The tensors, nested as you like; by default `nm.parameters()`, by name.
        cotangent: Tensors like those of the loss, nested alike: the result is then the
            vector-Jacobian product.

    Example:
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.grad(nm.sum(x * x), x), x=([M], [1.0, 3.0]))
        array([2., 6.], dtype=float32)
    """
    if callable(loss):
        name = getattr(loss, "__name__", "f").replace("<lambda>", "f")
        raise NamedMeshError(
            f"grad: {name} is a function, and the gradient is taken of a tensor",
            fix=f"inside a traced function write nm.grad({name}(x), x), "
            f"or nm.value_and_grad({name})(x)",
        )
    trace = current("grad")
    if wrt is None:
        variables = trace.root.variables.values()
        wrt = {variable.name: variable.tensor for variable in variables if variable.trainable}
    targets = flatten(wrt)
    cotangents = [None] if cotangent is None else match_leaves(loss, cotangent)
    losses = [loss] if cotangent is None else flatten(loss)
    if cotangents is None:
        raise NamedMeshError(
            f"grad: the cotangents are {format_nest(cotangent, format_value)}, "
            f"expected {format_nest(loss, format_value)}",
            fix="give one like each tensor of the loss, nested alike",
        )
    for one in losses:
        if not check_tensor("grad", one).floating:
            raise NamedMeshError(
                f"grad: the loss is {one.dtype}, through which no gradient flows",
                str(one),
                fix="compute it in floating point: nm.cast its operands, not the loss",
            )
        if cotangent is None and len(one.shape):
            raise NamedMeshError(
                "grad: the loss is not a scalar",
                str(one),
                fix="reduce it, e.g. nm.mean(loss), or give cotangent=",
            )
    _check_targets(targets)
    with trace.at(trace.source, "backward", derived=True):
        seeds: dict[Tensor, Tensor] = {}
        for one, start in zip(losses, cotangents, strict=True):
            one, start = trace.bring(one), _start(one, start)
            seeds[one] = seeds[one] + start if one in seeds else start
        gradients = _reverse_traces(trace, seeds, targets)
    trace.phase = "update" if trace.phase == "forward" else trace.phase
    nested = unflatten(wrt, iter(gradients))
    return ByName(nested) if isinstance(nested, dict) else nested


def _reverse_traces(
    trace: Trace, seeds: dict[Tensor, Tensor], targets: Sequence[Tensor]
) -> list[Tensor]:
    """Record the reverse pass in the innermost trace, also through the traces around it."""
    traces = [trace]
    while traces[-1].parent is not None:
        traces.append(traces[-1].parent)
    brought = [trace.bring(target) for target in targets]
    reached = {*targets}  # and what depends on them
    for level in reversed(traces):
        reached.update(inner for outer, inner in level.captures.items() if outer in reached)
        reached = follow_ops(level.ops, reached)
    gradients: dict[int, Tensor] = {}
    goals = dict(enumerate(brought))
    for level in traces:
        check_arguments(level, seeds, reached)
        outside = {inner: outer for outer, inner in level.captures.items() if outer in reached}
        found = reverse_ops(list(level.ops), seeds, [*goals.values(), *outside])
        gradients |= {i: found[goal] for i, goal in goals.items() if goal in found}
        crossing = {*outside}.difference(goals.values())
        if not any(tensor in found for tensor in crossing):
            break
        seeds = {outer: found[inner] for inner, outer in outside.items() if inner in found}
        goals = {i: outside[goal] for i, goal in goals.items() if goal in outside}
    by_tensor = {brought[i]: gradient for i, gradient in gradients.items()}
    return [_or_zeros(by_tensor, tensor) for tensor in brought]


def _check_targets(targets: Sequence[Any]) -> None:
    for target in targets:
        if not isinstance(target, Tensor) or not target.floating:
            raise NamedMeshError(
                f"grad: cannot differentiate with respect to {format_value(target)}",
                fix="name floating point tensors in wrt=",
            )
    if not targets:
        raise NamedMeshError(
            "grad: there is nothing to differentiate with respect to",
            fix="make parameters with nm.param (trainable=True), or name tensors in wrt=",
        )


def _start(loss: Tensor, cotangent: Tensor | None) -> Tensor:
    """Return the cotangent that the reverse pass starts from."""
    if cotangent is None:
        return fill(loss.shape, 1.0, loss.dtype, "full")
    start = check_tensor("grad: cotangent", cotangent)
    if start.shape != loss.shape or start.dtype != loss.dtype:
        raise NamedMeshError(
            "grad: the cotangent is not like the loss",
            f"loss: {loss.dtype}{loss.shape}",
            f"cotangent: {start.dtype}{start.shape}",
            fix="give it the same dimensions, order and dtype",
        )
    # A stand-in: the user's tensor, which may be the loss itself, is no cotangent elsewhere.
    return Cotangent((start,)).output


def zeros_like(tensor: Tensor) -> Tensor:
    """Make zeros of a tensor's shape and dtype."""
    return fill(tensor.shape, 0.0 if tensor.floating else 0, tensor.dtype, "zeros")


def _or_zeros(cotangents: dict[Tensor, Tensor], target: Tensor) -> Tensor:
    return (
        cotangents[target] if target in cotangents else mark_cotangent(zeros_like(target), target)
    )


def mark_cotangent(cotangent: Tensor, primal: Tensor) -> Tensor:
    """Mark a tensor as the cotangent of another; one that is shared gets a stand-in."""
    if cotangent.primal is not None or cotangent.kind == "placeholder":
        cotangent = Cotangent((cotangent,)).output
    return cotangent.describe(primal=primal)


def reverse_ops(
    ops: Sequence[Op], seeds: dict[Tensor, Tensor], targets: Sequence[Tensor]
) -> dict[Tensor, Tensor]:
    """Record the reverse pass through some ops."""
    trace = current("grad")
    reached = follow_ops(ops, targets)
    path = [op for op in ops if not op.stops_gradient and not reached.isdisjoint(op.inputs)]
    parts = {tensor: [mark_cotangent(seed, tensor)] for tensor, seed in seeds.items()}
    cotangents: dict[Tensor, Tensor] = {}

    def settle(tensor: Tensor) -> None:
        """Add up what the readers of a tensor sent back, once all of them have."""
        if tensor in parts and tensor not in cotangents:
            sent = parts[tensor]
            if len(sent) > 1:
                sent = [mark_cotangent(Cotangent(tuple(sent)).output, tensor)]
            (cotangents[tensor],) = sent

    for op in reversed(path):
        if not any(tensor in parts for tensor in op.outputs):
            continue
        with trace.at(op.source, derived=True, scope=op.scope):
            for tensor in op.outputs:
                settle(tensor)
            incoming = [_or_zeros(cotangents, tensor) for tensor in op.outputs]
            before = len(trace.ops)
            outgoing = _check_cotangents(op, op.vjp(*incoming))
            fresh = {tensor for new in trace.ops[before:] for tensor in new.outputs}
            useful = _find_useful(op, cotangents)
            for i, (x, dx) in enumerate(zip(op.inputs, outgoing, strict=True)):
                if dx is None or x not in reached or i not in useful:
                    continue
                if dx not in fresh:
                    dx = Cotangent((dx,)).output
                parts.setdefault(x, []).append(mark_cotangent(dx, x))
    for target in targets:
        settle(target)
    return cotangents


def _find_useful(op: Op, cotangents: Container[Tensor]) -> Collection[int]:
    """Return the operands that results with a cotangent are made of."""
    sensitive = op.sensitive_operands
    if sensitive is None:
        return range(len(op.inputs))
    pairs = zip(op.outputs, sensitive, strict=True)
    return {i for tensor, operands in pairs if tensor in cotangents for i in operands}


def _check_cotangents(op: Op, cotangents: Any) -> Sequence[Tensor | None]:
    """Return what an op's derivative returned, or raise unless there is one like each input."""
    several = cotangents if isinstance(cotangents, (list, tuple)) else ()
    problems = [
        f"{format_value(dx)} for {x}"
        for x, dx in zip(op.inputs, several, strict=False)
        if dx is not None
        and not (isinstance(dx, Tensor) and dx.shape == x.shape and dx.dtype == x.dtype)
    ]
    if len(several) != len(op.inputs):
        problems = [f"{format_value(cotangents)} for {len(op.inputs)} inputs"]
    if problems:
        raise op.error(
            f"its derivative returned {'; '.join(problems)}",
            *map(str, op.inputs),
            fix="return a list from vjp() with None or a tensor of the same dims and dtype "
            "for each input",
        )
    return cotangents


def repeat_ops(
    body: Body,
    values: Sequence[Tensor],
    saved: dict[Tensor, Tensor] | None = None,
    repeat: Callable[[Op, tuple[Tensor, ...]], Op] | None = None,
) -> tuple[list[Op], dict[Tensor, Tensor]]:
    """Record the ops of a body anew on other values, less what is saved; repeat records one."""
    known = dict(zip(body.arguments, values, strict=True))
    saved, repeat = saved or {}, repeat or repeat_op
    ops = []
    for op in body.ops:
        if op.given:
            continue
        again = repeat(op, tuple(known[tensor] for tensor in op.inputs))
        for old, new in zip(op.outputs, again.outputs, strict=True):
            primal = None if old.primal is None else known.get(old.primal, old.primal)
            new.describe(name=old.name if new.name is None else None, origin=old, primal=primal)
        pairs = zip(op.outputs, again.outputs, strict=True)
        bound = tuple(saved.get(old, new) for old, new in pairs)
        ops.append(again.rebuild(outputs=bound) if saved else again)
        known.update(zip(op.outputs, bound, strict=True))
    return ops, known


def repeat_op(op: Op, inputs: tuple[Tensor, ...]) -> Op:
    """Record the same op on other inputs, with loop bodies and branches of its own."""
    inputs = tuple(current(op.kind).bring(tensor) for tensor in inputs)
    others = dict(zip(op.inputs, inputs, strict=True))
    bodies = {name: copy_body(body, others) for name, body in op.body_fields().items()}
    with current(op.kind).like(op):
        return dataclasses.replace(op, inputs=inputs, **bodies)


def copy_body(body: Body, others: Mapping[Tensor, Tensor]) -> Body:
    """Copy a body with ops and tensors of its own: every loop and branch is planned by itself."""

    def record(values: Sequence[Tensor]) -> list[Tensor]:
        _, known = repeat_ops(body, values)
        return [known[tensor] for tensor in body.outputs]

    return record_body(body, others, record)


def body_vjp(
    body: Body,
    values: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    wanted: Sequence[int],
    saved: dict[Tensor, Tensor] | None = None,
    watch: Callable[[dict[Tensor, Tensor], int], None] | None = None,
) -> list[Tensor]:
    """Record a body again (less what is saved) and its reverse pass."""
    trace = current("grad")
    with trace.at(trace.source, "backward"):
        with trace.at(trace.source, recomputed=True):
            ops, known = repeat_ops(body, values, saved)
        reverse_start = len(trace.ops)
        seeds: dict[Tensor, Tensor] = {}
        for old, cotangent in zip(body.outputs, cotangents, strict=True):
            if old.floating:
                new = known[old]
                seeds[new] = seeds[new] + cotangent if new in seeds else cotangent
        targets = [values[i] for i in wanted]
        found = reverse_ops(ops, seeds, targets)
        if watch is not None:
            watch(known, reverse_start)
        return [_or_zeros(found, target) for target in targets]
