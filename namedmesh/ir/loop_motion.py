"""Loop motion: invariant ops move before loops, updates of weights into the backward loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.ir.op import Body, LoopSpec, Op, are_same, describe_options, options_of
from namedmesh.ir.prune import trace_back
from namedmesh.ir.simplify import read_others
from namedmesh.ir.tensor import Tensor


def hoist_invariants(
    ops: Sequence[Op], outputs: Sequence[Tensor]
) -> tuple[tuple[Op, ...], Sequence[Tensor]]:
    """Move reductions, reshards and shrinking ops that are loop-invariant before their loops."""
    result: list[Op] = []
    done: dict[object, Op] = {}
    for op in ops:
        if op.loop is not None and op.loop.gather_once:
            op = op.map_bodies(_cast_captured_stacks)
        op = op.map_bodies(_hoist_inside)
        if op.loop is not None:
            before, op = _split_loop(op, op.loop.body, done)
            result += before
        result.append(op)
    return tuple(ops if are_same(result, ops) else result), outputs


def _hoist_inside(body: Body) -> Body:
    """Return a body whose own loops have nothing invariant in them."""
    ops, _ = hoist_invariants(body.ops, body.outputs)
    return body if ops is body.ops else dataclasses.replace(body, ops=ops)


def _cast_captured_stacks(body: Body) -> Body:
    """Cast what a body captures and reads narrower rows of, before its inner loops do."""
    for inner, outer in zip(body.captures, body.captured, strict=True):
        if inner.origin is None:
            inner.describe(origin=outer)  # gradients are of it, also if casts alone are captured
    return _cast_stacks(body, body.captures)


def _cast_stacks(body: Body, stacks: Iterable[Tensor]) -> Body:
    """Cast some stacks as a whole where inner loops read nothing but narrower rows of them."""
    # Stacks that are gathered once are then gathered narrow. Otherwise rows are cast as they come.
    ops: list[Op] = []
    fixed: dict[Tensor, Op | None] = dict.fromkeys(stacks)  # and the barriers that pass them on
    for op in body.ops:
        if op.barrier and not fixed.keys().isdisjoint(op.inputs):
            fixed[op.output] = op
        elif op.loop is not None and op.loop.over is not None:
            before, op = _cast_rows(op, op.loop, fixed)
            ops += before
        ops.append(op)
    return body if are_same(ops, body.ops) else dataclasses.replace(body, ops=tuple(ops))


def _cast_rows(op: Op, loop: LoopSpec, fixed: Mapping[Tensor, Op | None]) -> tuple[list[Op], Op]:
    """Return casts of the stacks that a loop reads, and the loop that reads rows of the results."""
    pairs = [*zip(op.inputs, loop.body.arguments, strict=True)][loop.carries :]
    body = _cast_stacks(loop.body, [inner for x, inner in pairs if x in fixed])
    inputs, rows, before = [*op.inputs], [*body.inputs], list[Op]()
    stands: dict[Tensor, Tensor] = {}  # casts and rows, and what is read instead
    barriers: dict[Op, Op] = {}
    for i in range(loop.carries, len(rows)):
        stack, row = inputs[i], rows[i]
        casts = _find_casts(body, row) if stack in fixed else []
        if not casts:
            continue
        cast, dtype = casts[0], casts[0].output.dtype
        whole, narrow = (
            Tensor(x.shape, dtype, cast.kind, cast.source, x.name) for x in (stack, row)
        )
        before += _cast_before(fixed[stack], cast, stack, whole)
        inputs[i], rows[i], stands[row] = whole, narrow, narrow
        for one in body.ops:
            if one.barrier and row in {*one.inputs}:
                behind = Tensor(row.shape, dtype, one.kind, one.source, row.name)
                barriers[one] = one.rebuild(inputs=(narrow,), outputs=(behind,))
                stands[one.output] = behind
        for one in casts:
            stands[one.output] = stands[one.inputs[0]]
            if one.output.origin is None:
                one.output.describe(origin=stands[one.output])  # what its cotangent is placed like
    if before:
        ops = [barriers.get(one, one) for one in body.ops]
        ops = [one for one in ops if one.given or one.outputs[0] not in stands]
        ops = [
            body.bind([stands[one.output]])[0] if one.outputs[0] in stands else one for one in ops
        ]
        body = dataclasses.replace(
            body,
            ops=tuple(read_others(one, stands) for one in ops),
            inputs=tuple(rows),
            outputs=tuple(stands.get(x, x) for x in body.outputs),
        )
    return before, op if body is loop.body else op.rebuild(inputs=tuple(inputs), body=body)


def _cast_before(barrier: Op | None, cast: Op, stack: Tensor, whole: Tensor) -> list[Op]:
    """Return the ops that make a narrower stack, on the other side of a barrier if there is one."""
    if barrier is None:
        return [cast.rebuild(inputs=(stack,), outputs=(whole,), identity=object())]
    early = Tensor(whole.shape, whole.dtype, cast.kind, cast.source, stack.name)
    before = cast.rebuild(inputs=barrier.inputs, outputs=(early,), identity=object())
    behind = barrier.rebuild(inputs=(early,), outputs=(whole,), identity=object())
    return [before, behind]


def _find_casts(body: Body, row: Tensor) -> list[Op]:
    """Return the equal ops that narrow a row, behind barriers or not, if nothing else reads it."""
    casts, rows, kinds = list[Op](), {row}, set[object]()
    for op in body.ops:
        if rows.isdisjoint(op.inputs):
            continue
        if op.barrier and row in {*op.inputs}:
            rows.add(op.output)
        elif op.elementwise and op.nameless and len(op.inputs) == 1:
            casts.append(op)
            kinds.add(describe_options(op))
        else:
            return []
    narrows = len(kinds) == 1 and casts[0].output.itemsize < row.itemsize
    return casts if narrows and rows.isdisjoint(body.outputs) else []


def _split_loop(loop: Op, body: Body, done: dict[object, Op]) -> tuple[list[Op], Op]:
    """Return the ops to run before a loop, and the loop that reads their results."""
    invariant, roots = _find_invariants(body.ops, {*body.captures})
    if not roots:
        return [], loop
    moved_out = {*roots}
    needed = trace_back(invariant, (tensor for op in roots for tensor in op.inputs))
    outside = dict(zip(body.captures, body.captured, strict=True))
    before: list[Op] = []
    for op in invariant:
        if op in moved_out or any(tensor in needed for tensor in op.outputs):
            outputs = tuple(Tensor(t.shape, t.dtype, t.kind, t.source, t.name) for t in op.outputs)
            moved = read_others(op, outside).rebuild(outputs=outputs, identity=object())
            computes = describe_options(moved), tuple(map(id, moved.inputs))
            made = done.setdefault(computes, moved)
            if made is moved:
                before.append(moved)
            outside.update(zip(op.outputs, made.outputs, strict=True))
    results = [tensor for op in roots for tensor in op.outputs]
    bound = {op: body.bind(op.outputs) for op in roots}
    ops = tuple(one for op in body.ops for one in bound.get(op, [op]))
    brought = tuple(outside[tensor] for tensor in results)
    longer = dataclasses.replace(
        body, ops=ops, captures=(*body.captures, *results), captured=(*body.captured, *brought)
    )
    return before, loop.rebuild(inputs=(*loop.inputs, *brought), body=longer)


def _find_invariants(ops: Sequence[Op], known: set[Tensor]) -> tuple[list[Op], list[Op]]:
    """Find ops that depend on captures alone, and those of them that are worth doing once."""
    invariant: list[Op] = []
    made_of = {tensor: _count_bytes(tensor) for tensor in known}  # captures, in bytes
    for op in ops:
        endless = op.loop is not None and op.loop.over is None  # or it may be, if it is run
        if not (op.given or endless) and all(tensor in known for tensor in op.inputs):
            known.update(op.outputs)
            invariant.append(op)
            source = sum(made_of.get(tensor, 0) for tensor in op.inputs)
            made_of.update((tensor, source) for tensor in op.outputs)
    stays = {*invariant}
    read = {tensor for op in ops if op not in stays for tensor in op.inputs}
    roots = []
    for op in invariant:
        tensor = op.outputs[0]
        if op.bodies:  # which are not worth computing again
            roots.append(op)
            continue
        if len(op.outputs) > 1 or tensor.primal is not None or not made_of[tensor]:
            continue  # nothing is captured for what is made of constants alone
        small = tensor in read and _count_bytes(tensor) <= made_of[tensor]
        if small or op.placement().reduced or op.states_place or op.adds_operands:
            roots.append(op)
    return invariant, roots


def _count_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor, all devices together."""
    return tensor.shape.elements * tensor.itemsize


def sink_into_loops(
    ops: Sequence[Op], outputs: Sequence[Tensor], wanted: Mapping[Tensor, Tensor]
) -> tuple[Op, ...]:
    """Return the ops, of which those that lead to some tensors are in loops where possible."""
    for op in list(ops) if wanted else ():
        if op.loop is not None and op.loop.over is not None and op.histories:
            ops = _Rows(op, op.loop, op.loop.over).sink(ops, outputs, wanted)
    return tuple(ops)


class _Rows:
    """The rows, inside of a loop, of tensors outside that have its dimension."""

    def __init__(self, loop: Op, spec: LoopSpec, dim: Dimension):
        self.loop, self.dim, self.body = loop, dim, spec.body
        carries, total = spec.carries, len(self.body.inputs)
        made = self.body.outputs[carries:]
        self.histories = dict(zip(loop.histories, made, strict=True))
        self.known = dict(self.histories)
        self.read = dict(zip(loop.inputs[carries:total], self.body.inputs[carries:], strict=True))
        self.captured = dict(zip(self.body.captured, self.body.captures, strict=True))
        self.ops: dict[Op, Op] = {}  # what each op outside is inside

    def sink(
        self, ops: Sequence[Op], outputs: Sequence[Tensor], wanted: Mapping[Tensor, Tensor]
    ) -> Sequence[Op]:
        """Return the ops with a loop that makes more, and without what it makes."""
        at = ops.index(self.loop)
        before, after = ops[:at], ops[at + 1 :]
        late = {*self.loop.outputs}  # what depends on the loop
        for op in after:
            if all(tensor in self.known or tensor not in late for tensor in op.inputs):
                self.try_op(op)
            if not late.isdisjoint(op.inputs):
                late.update(op.outputs)
        needed, chosen = {*wanted}, list[Op]()  # the ops that lead to wanted tensors
        for op in reversed(after):
            if op in self.ops and not needed.isdisjoint(op.outputs):
                chosen.insert(0, op)
                needed.update(op.inputs)
        if not any(tensor in self.histories for op in chosen for tensor in op.inputs):
            return ops
        sunk = {*chosen}
        others = [op for op in after if op not in sunk]
        read = {tensor for op in others for tensor in op.inputs} | {*outputs}
        longer = self.extend_loop(chosen, read, wanted)
        early = [op for op in others if late.isdisjoint(op.outputs)]
        return [*before, *early, longer, *(op for op in others if not late.isdisjoint(op.outputs))]

    def try_op(self, op: Op) -> None:
        """Note what an op is for one iteration, if it treats every row by itself."""
        asked = op.placement()
        touched = asked.whole | asked.reduced | asked.exchanged
        touched |= {*asked.renames, *asked.renames.values()}
        rowwise = (op.elementwise or op.sums) and (op.inherits_sharding or op.adds_operands)
        if not rowwise or op.manual or op.bodies or not op.inputs or self.dim.name in touched:
            return
        if any(tensor.shape.dims[:1] != (self.dim,) for tensor in op.outputs):
            return
        options = {name: self._drop_dim(value) for name, value in options_of(op).items()}
        if any(value is _HAS_DIM for value in options.values()):
            return
        inputs = tuple(self._find_row(tensor) for tensor in op.inputs)
        outputs = tuple(_make_row(tensor, self.dim) for tensor in op.outputs)
        row = op.rebuild(inputs=inputs, outputs=outputs, identity=object(), **options)
        if [(shape, dtype) for shape, dtype in row.results()] == [
            (tensor.shape, tensor.dtype) for tensor in outputs
        ]:
            self.ops[op] = row
            self.known.update(zip(op.outputs, outputs, strict=True))

    def _find_row(self, tensor: Tensor) -> Tensor:
        """Return the row of a tensor, or inside what is captured of one that has none."""
        if tensor in self.known:
            return self.known[tensor]
        if tensor.shape.named(self.dim.name) is None:
            return self.captured.setdefault(tensor, _make_row(tensor, self.dim))
        return self.read.setdefault(tensor, _make_row(tensor, self.dim))

    def _drop_dim(self, value: Any) -> Any:
        """Return an option without the loop's dimension."""
        if isinstance(value, Shape):
            return value.without(self.dim.name) if value.named(self.dim.name) else value
        if isinstance(value, tuple):
            return tuple(self._drop_dim(one) for one in value if one != self.dim)
        return _HAS_DIM if value in (self.dim, self.dim.name) else value

    def extend_loop(
        self, chosen: Sequence[Op], read: Collection[Tensor], wanted: Mapping[Tensor, Tensor]
    ) -> Op:
        """Return the loop that does some ops in every iteration."""
        body, loop = self.body, self.loop
        ops = [self.ops[op] for op in chosen]
        new = {tensor for op in ops for tensor in op.inputs}.difference(body.arguments)
        total = len(body.inputs)
        xs = [(x, row) for x, row in self.read.items() if row in new]
        more = [(x, inner) for x, inner in self.captured.items() if inner in new]
        kept = [tensor for op in chosen for tensor in op.outputs if tensor in read]
        longer = dataclasses.replace(
            body,
            ops=(*body.bind(inner for _, inner in (*xs, *more)), *body.ops, *ops),
            inputs=(*body.inputs, *(row for _, row in xs)),
            captures=(*body.captures, *(t for _, t in more)),
            captured=(*body.captured, *(x for x, _ in more)),
            outputs=(*body.outputs, *(self.known[tensor] for tensor in kept)),
            stacked=(),
        )
        inputs = (*loop.inputs[:total], *(x for x, _ in xs), *loop.inputs[total:])
        return loop.rebuild(
            inputs=(*inputs, *(x for x, _ in more)),
            outputs=(*loop.outputs, *kept),
            body=longer,
            overwrites=tuple(
                (self.known[tensor], self.read[wanted[tensor]])
                for tensor in kept
                if tensor in wanted and wanted[tensor] in self.read
            ),
        )


_HAS_DIM = object()


def _make_row(tensor: Tensor, dim: Dimension) -> Tensor:
    """Make the tensor that is a row of another, or the same where that has none."""
    own = tensor.shape.named(dim.name)
    shape = tensor.shape if own is None else tensor.shape.without(dim.name)
    return Tensor(shape, tensor.dtype, tensor.kind, tensor.source, tensor.name or tensor.label)
