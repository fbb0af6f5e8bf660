"""Scan: one body repeated along a dimension, and its derivative."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError, name_all
from namedmesh.errors.source import warn_caller
from namedmesh.ir.context import Context
from namedmesh.ir.differentiate import (
    body_vjp,
    follow_ops,
    mark_cotangent,
    repeat_op,
    zeros_like,
)
from namedmesh.ir.format import format_value
from namedmesh.ir.literal import as_tensor
from namedmesh.ir.op import (
    Body,
    LoopSpec,
    Number,
    Op,
    PlacementRules,
    UnrolledLoop,
    every_op,
    with_dim,
)
from namedmesh.ir.operands import check_callable, check_dimension, check_flag, check_has_dims
from namedmesh.ir.placement import Placement
from namedmesh.ir.recorder import recording
from namedmesh.ir.tensor import OPERATORS, Tensor
from namedmesh.ir.trace import Trace, current, trace_body
from namedmesh.ops.broadcast import broadcast
from namedmesh.ops.control import match_structure
from namedmesh.ops.elementwise import compute_once
from namedmesh.ops.join import pad
from namedmesh.ops.join import stack as stack_tensors
from namedmesh.ops.loop_lowering import LoopLowering, run_iterations
from namedmesh.ops.loop_storage import ToDevice, ToHost, check_remat, tensors_to_store
from namedmesh.ops.rows import add_rows, find_looked_up, find_terms
from namedmesh.ops.shape import name_apart, rename, reshape, transpose
from namedmesh.ops.show import print_iterations, take_printed
from namedmesh.signature.nest import flatten, unflatten
from namedmesh.signature.printed import PrintedLine


class Row(Op):
    """One row of a tensor along a dimension, that dimension removed."""

    linear_in = ((0,),)
    by_name = True
    rearranges = True
    dim: Dimension
    index: int

    def results(self) -> list[tuple[Shape, str]]:
        (x,) = self.inputs
        return [(x.shape.without(self.dim.name), x.dtype)]

    def lower(self, context: Context, x: Any) -> Any:
        at = x.shape.rank - len(self.inputs[0].shape) + self.inputs[0].shape.position(self.dim.name)
        return x[(*[slice(None)] * at, self.index)]

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        one, (x,) = Dimension(self.dim.name, 1), self.inputs
        row = broadcast(dy, [one if dim == self.dim else dim for dim in x.shape])
        return [pad(row, one, self.index, self.dim.size - self.index - 1)]

    def find_equal(self, known: Mapping[Tensor, Number]) -> Tensor | None:
        maker, name = current("scan").find_maker(self.inputs[0]), self.dim.name
        rows = None if maker is None else maker.find_rows(name, self.index, self.index + 1)
        if rows is None:
            return None
        part, first = rows
        dim = self.dim.resized(part.shape.size_of(name))
        return transpose(Row((part,), dim, self.index - first).output, self.output.shape)

    def placement(self) -> Placement:
        return Placement(whole=[self.dim.name])


class Scan(UnrolledLoop):
    """A loop over one dimension: first carries, tensors read along it, captures."""

    control = True
    keeps_rows = True
    remat: str | float | tuple[str, ...]
    unroll: int = 1  # how many iterations are written out one after the other
    offload: bool = False  # what derivatives read waits in the host's memory
    # Rows of the body that may be written where others, of its inputs, were read.
    overwrites: tuple[tuple[Tensor, Tensor], ...] = ()
    gather_once: bool = False  # weights at rest that inner loops read are gathered before it

    @property
    def loop(self) -> LoopSpec:
        return LoopSpec(self.body, self.carries, self.over, gather_once=self.gather_once)

    @property
    def iterations(self) -> Sequence[int]:
        written = self.unroll > 1 or self.over.size == 1
        order = range(self.unroll if written else 0)
        return order[::-1] if self.reverse else order

    def take_iteration(self, x: Tensor, iteration: int) -> Tensor:
        return Row((x,), self._round, iteration).output

    def join_iterations(self, values: Sequence[Tensor]) -> Tensor:
        return stack_tensors(values, self._round)

    @property
    def rounds(self) -> Dimension:
        return Dimension(self.over.name, self.over.size // self.unroll)

    @property
    def _round(self) -> Dimension:
        """The iterations that are unrolled: all of them, or those of a round."""
        if self.unroll == self.over.size:
            return self.over
        tensors = (*self.inputs, *self.outputs)
        return name_apart(Dimension(self.over.name, self.unroll), "iteration", *tensors)

    def split_rounds(self, x: Tensor) -> Tensor:
        return reshape(x, self.over, [self.rounds, self._round])

    def join_rounds(self, x: Tensor) -> Tensor:
        return reshape(x, [self.rounds, self._round], self.over)

    def repeat_rounds(self, inputs: Sequence[Tensor], body: Body) -> Scan:
        return dataclasses.replace(
            self, inputs=tuple(inputs), body=body, over=self.rounds, unroll=1, overwrites=()
        )

    def results(self) -> list[tuple[Shape, str]]:
        outputs = self.body.outputs
        last = [(tensor.shape, tensor.dtype) for tensor in outputs[: self.carries]]
        stacked = outputs[self.carries :]
        return last + [(Shape([self.over, *tensor.shape]), tensor.dtype) for tensor in stacked]

    def lower(self, context: Context, *values: Any) -> Any:
        if not context.compiled:
            return run_iterations(self, context, values)
        return LoopLowering(self, context, values, self.overwrites).run()

    def with_history(self, inner: Tensor) -> Scan:
        """Return this loop with one more result: a tensor of the body for every iteration."""
        shape = Shape([self.over, *inner.shape])
        history = self._tensor(shape, inner.dtype, f"{inner.label}_history")
        body = dataclasses.replace(self.body, outputs=(*self.body.outputs, inner))
        return self.rebuild(body=body, outputs=(*self.outputs, history))

    def keep(self, inner: Tensor) -> Tensor:
        """Return a tensor of the body for every iteration, as a result of the recorded loop."""
        trace = current("scan").find_owner(self)
        loop = trace.recorded(self)
        for form in (self, loop):  # what was saved of a loop that is computed again goes first
            pairs = zip(form.body.outputs, form.outputs, strict=True)
            for tensor, history in list(pairs)[self.carries :]:
                if tensor is inner:
                    return history
        longer = loop.with_history(inner)
        trace.replace(longer)
        return longer.outputs[-1]

    def offloaded(self, inner: Tensor) -> Tensor:
        """Return a tensor of the recorded loop's body in the host's memory."""
        trace = current("scan").find_owner(self)
        loop = trace.recorded(self)
        for op in loop.body.ops:
            if op.offloads and (op.inputs[0] is inner or op.output is inner):
                return op.output
        beside = Trace()
        beside.owned[inner] = loop
        with recording(beside), beside.like(loop, loop.phase):
            op = ToHost((inner,))
        op.output.describe(name=inner.name)
        trace.replace(loop.rebuild(body=dataclasses.replace(loop.body, ops=(*loop.body.ops, op))))
        return op.output

    def with_storage(self, active: Sequence[int]) -> Scan:
        """Return this loop with histories of what the derivatives of some results read."""
        loop, active = self, add_carries(self, active)
        if self.remat not in ("full", "dots") and not isinstance(self.remat, tuple):
            inner = store_in_body(self.body, active)
            loop = self if inner is self.body else self.rebuild(body=inner)
        body, floating = choose_results(loop, active)
        saved = tensors_to_store(body, floating, self.remat, self.over.name)
        for tensor in (*body.inputs[: self.carries], *saved):
            if not any(tensor is one for one in loop.body.outputs[self.carries :]):
                loop = loop.with_history(tensor)
        return loop

    def vjp(self, *cotangents: Tensor) -> list[Tensor | None]:
        return differentiate_scan(self, cotangents)

    def vmap(self, inputs: tuple[Tensor, ...], over: Dimension) -> Sequence[Tensor]:
        carried = zip(inputs[: self.carries], self.inputs, strict=False)
        first = [with_dim(x, over, old.shape) for x, old in carried]
        inputs = (*first, *inputs[self.carries :])
        inner = Trace(current("vmap"))
        arguments = tuple(
            inner.placeholder(
                Shape([over, *old.shape]) if over in x.shape else old.shape, x.dtype, old.label
            )
            for x, old in zip(inputs, self.body.arguments, strict=True)
        )
        with recording(inner):
            known = batch_body(self.body, arguments, over)
            outputs = [known[one] for one in self.body.outputs]
            for i, one in enumerate(self.body.outputs[: self.carries]):
                outputs[i] = with_dim(outputs[i], over, one.shape)
        assert not inner.captures, "a loop reads what it did not read before"
        count = len(self.body.inputs)
        body = Body(
            tuple(inner.ops), arguments[:count], arguments[count:], inputs[count:],
            tuple(outputs), self.body.stacked,
        )  # fmt: skip
        return dataclasses.replace(self, inputs=inputs, body=body, overwrites=()).outputs

    def flops(self) -> int:
        return self.over.size * super().flops()

    def placement(self) -> Placement:
        return Placement(whole=[self.over.name])

    def plan(self, rules: PlacementRules, times: int) -> None:
        rules.place_loop(self, times)


def differentiate_scan(loop: Scan, cotangents: Sequence[Tensor]) -> list[Tensor | None]:
    """Record the backward loop: the other way round, reading what the forward loop stored."""
    count, total = loop.carries, len(loop.body.inputs)
    active = find_active(loop, cotangents)
    if not active:
        return [None] * len(loop.inputs)
    if loop.remat not in ("full", "dots") and not isinstance(loop.remat, tuple):
        loop = store_in_loops(loop, active)
    body, floating = choose_results(loop, active)
    carried = [i for i in floating if i < count]
    read = [i for i in floating if count <= i < total]
    # Rows that iterations look up in large tables are stored, and added to the table after them.
    tables = find_looked_up(loop.body, loop.over)
    looked_up = [i for i in floating if i >= total and loop.body.arguments[i] in tables]
    captured = [i for i in floating if i >= total and i not in looked_up]
    store = lambda tensor: loop.keep(loop.offloaded(tensor) if loop.offload else tensor)
    histories = [store(tensor) for tensor in body.inputs[:count]]
    saved = tensors_to_store(body, floating, loop.remat, loop.over.name)
    rows = {
        "history": histories,
        "x": list(loop.inputs[count:total]),
        "dy": [cotangents[i] for i in active if i >= count],
        "saved": [store(tensor) for tensor in saved],
    }

    def backward(carry: dict[str, Any], row: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """Differentiate one iteration; what the body captures gets the sum over all iterations."""
        trace = current("scan")
        if loop.offload:
            for name in ("history", "saved"):
                row[name] = [ToDevice((x,)).output.describe(name=x.name) for x in row[name]]
        outside = [trace.bring(tensor) for tensor in loop.inputs[total:]]
        values = [*row["history"], *row["x"], *outside]
        incoming = [*carry["carry"], *row["dy"]]
        if loop.unroll == loop.over.size:
            # Written out, what is computed again would be merged with what was computed before.
            # Weights are the exception: their casts are as well kept.
            values[:total] = [
                compute_once(x) if i < count or not x.floating else x
                for i, x in enumerate(values[:total])
            ]
            row["saved"] = [compute_once(tensor) for tensor in row["saved"]]
        known = dict(zip(saved, row["saved"], strict=True))
        for old, new in (*known.items(), *zip(body.inputs, values, strict=False)):
            # Its cotangent is sharded like it, also if nothing reads it here.
            new.describe(origin=old)
        outgoing = body_vjp(body, values, incoming, floating, known)
        gradients = dict(zip(floating, outgoing, strict=True))
        more = [rename_loop_dim(loop, gradients[i]) for i in captured]
        sums = [total + one for total, one in zip(carry["sum"], more, strict=True)]
        following = {"carry": [gradients[i] for i in carried], "sum": sums}
        terms = [find_terms(gradients[i], tables[loop.body.arguments[i]]) for i in looked_up]
        return following, {"x": [gradients[i] for i in read], "terms": terms}

    start = {
        "carry": [cotangents[i] for i in carried],
        "sum": [start_sum(loop, loop.inputs[i]) for i in captured],
    }
    final, ys = scan(
        backward,
        start,
        rows,
        over=loop.over,
        reverse=not loop.reverse,
        unroll=loop.unroll,
        gather_once=loop.gather_once,
    )
    pairs = zip(captured, final["sum"], strict=True)
    sums = [rename_back(loop, total, loop.inputs[i]) for i, total in pairs]
    results = [*final["carry"], *sums, *ys["x"]]
    gradients = dict(zip(carried + captured + read, results, strict=True))
    for i, terms in zip(looked_up, ys["terms"], strict=True):
        gradients[i] = add_rows(loop.inputs[i], tables[loop.body.arguments[i]], terms)
    return [
        transpose(gradients[i], tensor.shape) if i in gradients else None
        for i, tensor in enumerate(loop.inputs)
    ]


def find_active(loop: Scan, cotangents: Sequence[Tensor]) -> list[int]:
    """Find the results of a loop's body whose cotangents are not known to be zero."""
    makers = map(current("scan").find_maker, cotangents)
    pairs = enumerate(zip(makers, loop.body.outputs, strict=False))
    return add_carries(loop, [i for i, (op, y) in pairs if y.floating and not (op and op.zero)])


def add_carries(loop: Scan, active: Iterable[int]) -> list[int]:
    """Add the carries of which the next iteration makes some results, or such carries."""
    active = {*active}
    while True:
        read = find_differentiated(loop.body, active)
        more = {i for i in range(loop.carries) if loop.body.inputs[i] in read} - active
        if not more:
            return sorted(active)
        active |= more


def choose_results(loop: Scan, active: Sequence[int]) -> tuple[Body, list[int]]:
    """Return a loop's body with some results alone, and the operands that have a cotangent."""
    floating = [i for i, tensor in enumerate(loop.inputs) if tensor.floating]
    body = dataclasses.replace(loop.body, outputs=tuple(loop.body.outputs[i] for i in active))
    return body, [i for i in floating if i >= loop.carries or i in active]


def find_differentiated(body: Body, active: Iterable[int]) -> set[Tensor]:
    """Find the tensors of a body that some of its results depend on differentiably."""
    read = {body.outputs[i] for i in active}
    for op in reversed(body.ops):
        if not op.stops_gradient and not read.isdisjoint(op.outputs):
            read.update(tensor for tensor in op.inputs if tensor.floating)
    return read


def store_in_loops(loop: Scan, active: Sequence[int]) -> Scan:
    """Let the loops in a loop's body store what their derivatives read, or they would run twice."""
    trace = current("scan").find_owner(loop)
    recorded = trace.recorded(loop)  # its inner loops may store some of it already
    longer = store_in_body(recorded.body, active)
    if longer is not recorded.body:
        trace.replace(recorded.rebuild(body=longer))
    return loop.rebuild(body=dataclasses.replace(loop.body, ops=longer.ops))


def store_in_body(body: Body, active: Iterable[int]) -> Body:
    """Return a body whose loops store what the derivatives of some results read of them."""
    read = find_differentiated(body, active)
    reached = follow_ops(body.ops, (tensor for tensor in body.arguments if tensor.floating))
    ops = []
    for op in body.ops:
        # An op that no derivative passes may have none.
        passed = [i for i, tensor in enumerate(op.outputs) if tensor in read & reached]
        if passed and isinstance(op, Scan):
            op = op.with_storage(passed)
        ops.append(op)
    changed = any(new is not old for new, old in zip(ops, body.ops, strict=True))
    return dataclasses.replace(body, ops=tuple(ops)) if changed else body


def start_sum(loop: Scan, tensor: Tensor) -> Tensor:
    """Make the zeros to which every iteration adds the cotangent of a captured tensor."""
    zeros = rename_loop_dim(loop, zeros_like(tensor))
    return zeros if tensor.shape.named(loop.over.name) else mark_cotangent(zeros, tensor)


def rename_loop_dim(loop: Scan, tensor: Tensor) -> Tensor:
    """Rename the loop's own dimension, which no carry may have, where a captured tensor has it."""
    own = tensor.shape.named(loop.over.name)
    return tensor if own is None else rename(tensor, own, name_apart(own, "captured", tensor))


def rename_back(loop: Scan, total: Tensor, tensor: Tensor) -> Tensor:
    """Give a sum the names of the captured tensor that it is the cotangent of."""
    own = tensor.shape.named(loop.over.name)
    return total if own is None else rename(total, name_apart(own, "captured", tensor), own)


def scan(
    function: Callable[[Any, Any], Any],
    carry: Any,
    xs: Any = None,
    *,
    over: Dimension,
    reverse: bool = False,
    remat: str | float | Sequence[str] = "none",
    stack: bool = False,
    unroll: bool | int = False,
    gather_once: bool = False,
    offload: bool = False,
) -> tuple[Any, Any]:
    """Repeat a function along a dimension: a loop over time, layers or microbatches.

    The program's size does not depend on the length. The backward pass runs the other way round.

    Args:
        function: Called with the carry and a slice of `xs`; return (carry, y): the next carry,
            nested as the first and of the same dimensions and dtypes, and what to keep of this
            iteration, nested as you like, or None.
        carry: The first carry: tensors, numbers, or tuples, lists and dicts of them.
        xs: Tensors that have the dimension, nested as you like; the function sees slices.
        over: The dimension.
        reverse: Whether to start at the end.
        remat: What is stored for the backward pass. "none": the fewest bytes from which it follows
            without a product, a reduction or a communication made twice. "full": the carries; each
            iteration is computed again. "dots": the results of einsums and reshards besides. A
            number from 0 to 1: so much of what "none" stores, what is dearest to compute again.
            "fit": as much as fits the memory of the `target` of `nm.plan`, `nm.export` and
            `nm.compile`. A list of names: the carries, and tensors that the function's variables
            of these names hold.
        stack: Whether a variable made in the function has a slice for each iteration, stacked along
            the dimension: a stack of layers. Otherwise all iterations share it.
        unroll: Whether all iterations are written out one after the other, or how many of them,
            which divides their number. What these store needs no buffer, which can save a GPU a
            fifth of a step; program and compile time grow.
        gather_once: Whether weights at rest (`params=`) of a stack of layers inside are gathered
            before the loop, all at once, and their gradients scattered after it; otherwise each
            iteration gathers layer by layer, which takes less memory and sends more.
        offload: Whether what is stored for the backward pass waits in the memory of the host, on
            GPUs and TPUs; `plan.offloaded` has the bytes.

    Returns:
        The last carry, and what was kept, stacked along the dimension, which comes first.

    Example:
        >>> T = nm.Dimension("time", 4)
        >>> def add(total, x):
        ...     return total + x, total + x
        >>> nm.evaluate(lambda x: nm.scan(add, 0.0, x, over=T), x=([T], [1.0, 2.0, 3.0, 4.0]))
        (array(10., dtype=float32), array([ 1.,  3.,  6., 10.], dtype=float32))
    """
    check_dimension("scan", over)
    check_callable("scan", function)
    remat = check_remat("remat", remat)
    check_flag("scan: offload", offload)
    written = check_unroll(unroll, over)
    first, rows = [as_tensor("scan", leaf) for leaf in flatten(carry)], flatten(xs)
    for row in rows:
        check_has_dims("scan", row, over)
    _check_without(over, first, "carry", "carries")
    specs = [(leaf.shape, leaf.dtype, leaf.label) for leaf in first]
    specs += [(row.shape.without(over.name), row.dtype, row.label) for row in rows]
    structures: list[Any] = []
    lines: list[PrintedLine] = []
    slices: dict[str, Tensor] = {}

    def body(*values: Tensor) -> list[Tensor]:
        row = unflatten(xs, iter(values[len(first) :]))
        pair = function(unflatten(carry, iter(values[: len(first)])), row)
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise NamedMeshError(
                "scan: the body did not return (carry, y)", fix="return a pair; y may be None"
            )
        following, iteration = pair
        structures.append(iteration)
        ys = [*(as_tensor("scan", y) for y in flatten(iteration)), *take_printed(lines)]
        _check_without(over, ys, "result", "results")
        expected = unflatten(carry, iter(first))
        carried = match_structure("scan: the body's carry", following, expected, "the carry")
        return [*carried, *ys, *take_assigned(slices)]

    traced, _ = trace_body(body, specs, over if stack else None, [*first, *rows])
    inputs = (*first, *rows, *traced.stacked, *traced.captured)
    stored = current("scan").choose_remat(remat)
    loop = Scan(
        inputs, traced, over, len(first), reverse, stored, written, offload,
        gather_once=gather_once,
    )  # fmt: skip
    if loop.phase == "forward" and any(op.phase == "backward" for op in every_op(traced.ops)):
        current("scan").phase = "update"  # as after nm.grad
    results = iter(loop.outputs)
    last, ys = unflatten(carry, results), unflatten(structures[0], results)
    print_iterations(lines, results, over)
    assign_stacks(slices, results)
    return last, ys


def take_assigned(slices: dict[str, Tensor]) -> list[Tensor]:
    """Take what the body being traced sets slices of variables to; return the values."""
    trace = current("scan")
    slices |= trace.next_slices
    trace.next_slices = {}
    return [*slices.values()]


def assign_stacks(slices: Iterable[str], stacks: Iterator[Tensor]) -> None:
    """Set variables whose slices were set: whole ones, or slices of a loop around this one."""
    trace = current("scan")
    for name, value in zip(slices, stacks, strict=True):
        inside = name in trace.stacked
        whole = trace.stacked[name][1] if inside else trace.root.variables[name].tensor
        OPERATORS["assign"](whole, value)


def _check_without(over: Dimension, tensors: Sequence[Tensor], role: str, roles: str) -> None:
    """Raise for tensors that have the loop's dimension, which the loop takes away or adds."""
    having = [tensor for tensor in tensors if tensor.shape.named(over.name)]
    if having:
        verb = "has" if len(having) == 1 else "have"
        other = f"nm.Dimension('{over.name}_2', {having[0].shape.size_of(over.name)})"
        raise NamedMeshError(
            f"scan: the {name_all(role, [tensor.label for tensor in having], roles)} {verb} "
            f"the loop's own dimension {over.name}",
            *map(str, having),
            fix=f"rename it, e.g. nm.rename(x, {over.name}, {other})",
        )


def check_unroll(unroll: bool | int, over: Dimension) -> int:
    """Return how many iterations are written out one after the other, or raise."""
    if isinstance(unroll, bool):
        return over.size if unroll else 1
    divisors = [str(n) for n in range(2, over.size) if over.size % n == 0]
    if not isinstance(unroll, int) or unroll < 1 or over.size % unroll:
        raise NamedMeshError(
            f"scan: unroll={format_value(unroll)} does not divide the {over.size} iterations "
            f"of {over}",
            fix=f"give True for all of them{', or ' if divisors else ''}{' or '.join(divisors)}",
        )
    return unroll


def batch_body(body: Body, values: Sequence[Tensor], over: Dimension) -> dict[Tensor, Tensor]:
    """Record the ops of a body with a dimension more; return what stands for each tensor."""
    pairs = zip(body.arguments, values, strict=True)
    known = {inner: _put_first(value, over, inner.shape) for inner, value in pairs}
    for op in body.ops:
        if op.given:
            continue
        inputs = tuple(known[x] for x in op.inputs)
        if any(over in x.shape for x in inputs):
            outputs = _batch_op(op, inputs, over)
        else:
            outputs = repeat_op(op, inputs).outputs
        for old, new in zip(op.outputs, outputs, strict=True):
            if new.name is None and old.name is not None:
                new.describe(name=old.name)
            known[old] = _put_first(new, over, old.shape)
    return known


def _put_first(x: Tensor, over: Dimension, shape: Shape) -> Tensor:
    """Put the dimension first, where a tensor has it."""
    return transpose(x, [over, *shape]) if over in x.shape else x


def _batch_op(op: Op, inputs: tuple[Tensor, ...], over: Dimension) -> Sequence[Tensor]:
    """Record an op along a dimension as it says, or else once for each element, in a loop."""
    with current("vmap").like(op):
        outputs = op.vmap(inputs, over)
        if outputs is None:
            return _run_each(op, inputs, over)
    expected = [({over, *x.shape}, x.dtype) for x in op.outputs]
    if [({over, *x.shape}, x.dtype) for x in outputs] != expected:
        raise op.error(
            f"its vmap() over {over} returned {', '.join(map(str, outputs))}",
            *(f"expected {over} and {x}" for x in op.outputs),
            fix="return every result with the dimension, or None to have the op run in a loop",
        )
    return outputs


def _run_each(op: Op, inputs: Sequence[Tensor], over: Dimension) -> Sequence[Tensor]:
    """Record an op once, in a loop over the elements of a dimension that some operands have."""
    if op.users_own:
        text = f"nm.vmap runs {op.kind} in a loop, with its collectives, for each of {over}: set "
        warn_caller(
            f"{text}by_name = True in it if it finds its dimensions by name, or define vmap"
        )
    rows = {str(i): x for i, x in enumerate(inputs) if over in x.shape}

    def run(_: Any, row: dict[str, Tensor]) -> tuple[list[Any], list[Tensor]]:
        values = (row.get(str(i), x) for i, x in enumerate(inputs))
        return [], list(repeat_op(op, tuple(values)).outputs)

    return scan(run, [], rows, over=over)[1]
