"""Accumulation: sums that loops carry, and partial sums that are worth adding up after them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from namedmesh.ir.op import LoopSpec, Op
from namedmesh.ir.tensor import Tensor
from namedmesh.planning.planner import Planner


def find_accumulators(planner: Planner, op: Op, loop: LoopSpec) -> list[int]:
    """Find the carries that are only added to, iteration by iteration, and note their sums."""
    # They start at zero, or as partial sums: those of an enclosing loop, or of a first iteration
    # that is written out.
    state, found = planner.state, []
    for i in range(loop.carries):
        start = op.inputs[i]
        if start in state.zeros or state.is_pending(start):
            sums = follow_carry(planner, loop, i)
            state.running_sums.update(sums)
            found += [i] if sums else []
    return found


def follow_carry(planner: Planner, loop: LoopSpec, i: int) -> list[Tensor]:
    """Return the sums that a body makes of its input and other terms; none if it does more."""
    uses, body = planner.uses, loop.body
    if loop.test is not None and uses.count_uses(loop.test.inputs[i]):
        return []
    total, sums = body.inputs[i], []
    while uses.count_uses(total) == 1:
        reader = uses.sole_reader(total)
        if reader is None:
            return sums if total is body.outputs[i] else []
        result = _add_to(planner, reader, total)
        if result is None:
            return []
        sums.append(result)
        total = result
    return []


def _add_to(planner: Planner, reader: Op, total: Tensor) -> Tensor | None:
    """Return the sum of a tensor and other terms, if that is what its reader makes."""
    if reader.loop is not None:
        i = _find_operand(reader, total)
        carried = i < reader.loop.carries and follow_carry(planner, reader.loop, i)
        return reader.outputs[i] if carried else None
    adds = reader.elementwise and reader.additive and reader.late_sums
    several = len({*reader.inputs} - planner.state.constants.keys()) > 1
    return reader.output if adds and several and reader.output.shape == total.shape else None


def _find_operand(op: Op, tensor: Tensor) -> int:
    """Return the position of an operand."""
    return next(i for i, x in enumerate(op.inputs) if x is tensor)


def is_accumulated(planner: Planner, tensor: Tensor) -> bool:
    """Return whether all that becomes of a tensor is a term of a sum that is sent less often."""
    # Such a sum is carried by a loop, is one over a dimension, or of several gradients of one
    # parameter. On the way there, through the results of inner loops and branches too, are only ops
    # that partial sums pass.
    state, known = planner.state, planner.state.accumulated
    way: list[tuple[Tensor, Tensor | None]] = []
    primal, following, answer = None, tensor, None
    while answer is None:
        primal = primal if following.primal is None else following.primal
        way.append((following, primal))
        answer = True if following in state.running_sums else known.get(way[-1])
        if answer is None:
            answer, following = _follow_term(planner, following, primal)
    # All that is on the way has the same answer: a long chain is walked once.
    known.update(dict.fromkeys(way, answer))
    return answer


def _follow_term(
    planner: Planner, tensor: Tensor, primal: Tensor | None
) -> tuple[bool | None, Tensor]:
    """Return whether the reader of a term answers the question, or else what it makes of it."""
    reader = planner.uses.sole_reader(tensor)
    if reader is None:
        following = _leave_body(planner, tensor)
    else:
        # What is added to partial sums of its size is sent with them.
        alike = reader.additive and reader.output.shape.elements == tensor.shape.elements
        joins = alike and any(map(planner.state.pending_axes, {*reader.inputs} - {tensor}))
        if joins or _is_summed_by(planner, reader, tensor):
            return True, tensor
        if primal is not None and _adds_gradients(planner, reader, tensor, primal):
            return True, tensor
        following = _pass_on(planner, reader, tensor)
    return (False, tensor) if following is None else (None, following)


def _is_summed_by(planner: Planner, reader: Op, tensor: Tensor) -> bool:
    """Return whether a reader adds up a tensor over iterations, or over a dimension."""
    if reader.loop is not None:
        i = _find_operand(reader, tensor)
        return i < reader.loop.carries and bool(follow_carry(planner, reader.loop, i))
    return reader.sums and 2 * reader.output.shape.elements <= tensor.shape.elements


def _adds_gradients(planner: Planner, reader: Op, tensor: Tensor, primal: Tensor) -> bool:
    """Return whether a reader adds up gradients of a parameter, which are all sums alike."""
    others = [x for x in reader.inputs if x is not tensor]
    if primal not in planner.parameters or not others or not reader.additive:
        return False
    # Each is made, by linear ops alone, of a gradient of that parameter.
    return all(any(x.primal is primal for x in _list_terms(planner, other)) for other in others)


def _list_terms(
    planner: Planner, tensor: Tensor, follows: Callable[[Op, Tensor], bool] = lambda *_: True
) -> Iterator[Tensor]:
    """Yield a tensor and, as far as they are followed, those that linear ops make it of."""
    pending, seen = [tensor], {tensor}
    while pending:
        yield (tensor := pending.pop())
        producer = planner.uses.producers[tensor]
        if producer.elementwise and producer.linear_in:
            terms = [x for x in producer.inputs if x not in seen and follows(producer, x)]
            pending += terms
            seen.update(terms)


def _pass_on(planner: Planner, reader: Op, tensor: Tensor) -> Tensor | None:
    """Return what a linear op makes of a tensor, if that is no more in the end."""
    i = _find_operand(reader, tensor)
    if reader.passes_through:
        return reader.outputs[i] if i < len(reader.outputs) else None
    linear = any(i in group for group in reader.linear_in)
    passes = reader.late_sums or reader.elementwise
    by_rule = reader.inherits_sharding or reader.adds_operands
    if not (linear and passes and by_rule) or len(reader.outputs) > 1:
        return None
    times = count_terms(planner, reader.output)
    return reader.output if reader.output.shape.elements <= times * tensor.shape.elements else None


def count_terms(planner: Planner, tensor: Tensor) -> int:
    """Return how many such terms a loop adds to a sum, which is sent once, or else 1."""
    uses = planner.uses
    reader = uses.sole_reader(tensor)
    if reader is None or reader.bodies or reader.output not in planner.state.running_sums:
        return 1
    op, _ = uses.returners.get(reader.output, (reader, 0))
    return 1 if op.loop is None or op.loop.over is None else op.loop.over.size


def is_lighter_as_sum(planner: Planner, tensor: Tensor) -> bool:
    """Return whether gradients of a parameter behind casts send less as a sum than each alone."""
    term = planner.uses.find_term(tensor)
    total = None if term is None else planner.uses.sole_reader(term)
    if term is None or total is None or term.primal not in planner.parameters:
        return False
    return len(total.inputs) * tensor.itemsize > term.itemsize


def _leave_body(planner: Planner, tensor: Tensor) -> Tensor | None:
    """Return the result of a loop or branch that a tensor of its body becomes, if only that."""
    uses = planner.uses
    if uses.count_uses(tensor) != 1 or tensor in uses.final:
        return None
    op, i = uses.returners[tensor]
    stacked = op.loop is not None and op.loop.over is not None and i >= op.loop.carries
    return op.outputs[i] if stacked or op.branches else None


def find_accumulated(planner: Planner, op: Op, total: Tensor) -> Tensor | None:
    """Find the tensor outside a loop whose gradients the loop adds up, such as a parameter."""
    follows = lambda op, x: op.late_sums and x.shape == total.shape
    for tensor in _list_terms(planner, total, follows):
        producer, primal = planner.uses.producers[tensor], tensor.primal
        if primal is None and producer.loop is not None:  # a sum that an inner loop carries on
            results = zip(producer.outputs, producer.loop.body.outputs, strict=True)
            inner = next(inner for result, inner in results if result is tensor)
            primal = find_accumulated(planner, producer, inner)
        capture = None if primal is None else planner.state.captures.get(primal)
        if capture is not None and capture.loop is op:
            outer = op.inputs[capture.operand]
            return outer if outer.shape == total.shape else None
        # Of what is cast before the loop, the body captures no more than that.
        outside = planner.planned_form(primal) if capture is None else None
        known = outside is not primal or outside in planner.parameters
        if outside is not None and known and outside.shape == total.shape:
            return outside
    return None
