"""From program, mesh and layout to a Plan: a handful of rules, applied op by op."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from namedmesh.dims.dimension import Shape
from namedmesh.dims.errors import NamedMeshError
from namedmesh.dims.layout import Layout
from namedmesh.dims.mesh import Mesh
from namedmesh.dims.sharding import Sharding, Step, conversion
from namedmesh.lowering.plan import Collective, Plan
from namedmesh.ops.constants import Fill, Range
from namedmesh.ops.control import Cond, While
from namedmesh.ops.custom import CustomVjp
from namedmesh.ops.op import Op
from namedmesh.ops.placement import Move
from namedmesh.ops.program import Body, Placeholder, Program, every_op
from namedmesh.ops.scan import Scan
from namedmesh.ops.structure import Broadcast, Reshape
from namedmesh.ops.tensor import Tensor


def plan(
    program: Program,
    mesh: Mesh,
    layout: Layout | str,
    params: Layout | str | None = None,
    results: Sequence[Sharding] | None = None,
    label: str = "",
) -> Plan:
    """Decides where every tensor lies; raises where that would mean guessing.

    results, where given, says where the program's outputs must lie; label is put before the names of its ops.
    """
    layout = Layout(layout)
    at_rest = layout if params is None else Layout(params)
    layout.check(mesh, program.dims)
    at_rest.check(mesh, program.dims, "params layout")
    planner = Planner(Plan(program, mesh, layout, at_rest), params is not None, label)
    planner.program(results)
    if results is None:
        planner.check_all_used()
    return planner.plan


class Planner:
    """The rules. Each fills in the plan for one op."""

    def __init__(self, plan: Plan, separate: bool, label: str):
        self.plan, self.mesh, self.separate = plan, plan.mesh, separate
        self.resting: set[Tensor] = set()
        self.moved: set[tuple[Tensor, Sharding]] = set()
        self.consumers: dict[Tensor, list[Op]] = {}
        for op in every_op(plan.program.ops):
            plan.names[op] = f"{label}{op.kind}.{len(plan.names)}"
            for tensor in op.inputs:
                self.consumers.setdefault(tensor, []).append(op)

    def program(self, results: Sequence[Sharding] | None) -> None:
        """Plans inputs, variables, every op, then the program's results and updates."""
        program, shardings = self.plan.program, self.plan.shardings
        for name, tensor in program.inputs.items():
            shardings[tensor] = self.default(tensor, self.plan.layout, program.specs[name].whole)
        for variable in program.variables.values():
            layout = self.plan.params if variable.at_rest else self.plan.layout
            shardings[variable.tensor] = self.default(variable.tensor, layout, variable.whole)
            if variable.at_rest and self.separate:
                self.resting.add(variable.tensor)
        self.ops(program.ops, 1)
        for i, tensor in enumerate(program.outputs):
            sharding = shardings[tensor]
            uneven = [d.name for d in tensor.shape if d.size % self.mesh.size(sharding.axes(d.name))]
            target = sharding.only(set(tensor.shape.names) - set(uneven)) if results is None else results[i]
            self.result(program, i, tensor, target, 1)
        for i, (name, tensor) in enumerate(program.updates.items(), len(program.outputs)):
            self.result(program, i, tensor, shardings[program.variables[name].tensor], 1)

    def ops(self, ops: Sequence[Op], times: int) -> None:
        """Plans ops in order; times is how often each runs in one step."""
        for op in ops:
            if isinstance(op, Placeholder):
                continue
            if isinstance(op, Scan):
                self.scan(op, times)
            elif isinstance(op, While):
                self.while_loop(op, times)
            elif isinstance(op, Cond):
                self.cond(op, times)
            elif isinstance(op, Move):
                self.move(op, times)
            elif isinstance(op, CustomVjp):
                self.pass_through(op, times)
            else:
                self.generic(op, times)

    # Where a tensor lies when nothing but the layout says so.

    def axes(self, layout: Layout, name: str) -> tuple[str, ...]:
        """The axes of more than one device that a layout gives a name."""
        return tuple(axis for axis in layout.axes(name) if self.mesh.axes[axis] > 1)

    def default(self, tensor: Tensor, layout: Layout, whole: Iterable[str]) -> Sharding:
        """The layout's own sharding of a tensor; two dimensions that want one axis are an error."""
        held, contested = self.due(tensor.shape, {}, frozenset(whole), layout)
        for axis, names in contested.items():
            raise self.ambiguous(tensor, axis, names, f"whole=[{names[-1]}] where it is declared")
        return Sharding.of(held, whole)

    def due(
        self, shape: Shape, held: dict[str, tuple[str, ...]], whole: frozenset[str], layout: Layout
    ) -> tuple[dict[str, tuple[str, ...]], dict[str, list[str]]]:
        """Held axes with every idle axis given to the dimension that is due it, and the axes that two are due."""
        busy = {axis for axes in held.values() for axis in axes}
        wants: dict[str, list[str]] = {}
        for dim in shape:
            if dim.name not in whole:
                for axis in self.axes(layout, dim.name):
                    if axis not in busy:
                        wants.setdefault(axis, []).append(dim.name)
        full = dict(held)
        for dim in shape:
            more = [axis for axis in self.axes(layout, dim.name) if wants.get(axis) == [dim.name]]
            if more:
                full[dim.name] = (*full.get(dim.name, ()), *more)
        return full, {axis: names for axis, names in wants.items() if len(names) > 1}

    def ambiguous(self, tensor: Tensor, axis: str, names: Sequence[str], fix: str) -> NamedMeshError:
        """The error for a tensor of which nobody can tell the holder."""
        return NamedMeshError(
            f"tensor {tensor.label}: dimensions {names[0]} and {names[1]} both map to mesh axis {axis!r}, and nothing says which holds it",
            str(tensor),
            f"layout: {self.plan.layout.text}",
            f"mesh: {self.mesh}",
            source=tensor.producer.source,
            fix=fix,
        )

    def layout_of(self, op: Op) -> Layout:
        """The layout that rules an op's results: the parameters' own for what is computed from them alone."""
        return self.plan.params if self.rests(op) else self.plan.layout

    def rests(self, op: Op) -> bool:
        """Whether an op works on parameters, their slots and gradients alone, where those rest."""
        ranked = [tensor for tensor in op.inputs if len(tensor.shape)]
        return bool(ranked) and all(tensor in self.resting for tensor in ranked)

    # Moving.

    def operand(self, op: Op, i: int, target: Sharding, times: int) -> None:
        """Brings an operand to where the op needs it."""
        tensor = op.inputs[i]
        steps = conversion(tensor.shape, self.mesh, self.plan.shardings[tensor], target)
        if steps:
            self.plan.operands[op, i] = steps
            if (tensor, target) not in self.moved:
                self.moved.add((tensor, target))
                self.record(op, tensor, steps, times)

    def result(self, owner: object, i: int, tensor: Tensor, target: Sharding, times: int) -> None:
        """Brings a result of the program or of a body to where it is due."""
        steps = conversion(tensor.shape, self.mesh, self.plan.shardings[tensor], target)
        if steps:
            self.plan.results[owner, i] = steps
            self.record(tensor.producer, tensor, steps, times)

    def finish(self, op: Op, tensor: Tensor, natural: Sharding, final: Sharding, times: int, partial: Sequence[str] = ()) -> None:
        """Settles a result: as the op makes it, its partial sums added up, then moved."""
        steps = conversion(tensor.shape, self.mesh, natural, final)
        self.plan.natural[tensor], self.plan.shardings[tensor] = natural, final
        self.plan.moves[tensor] = steps
        if partial:
            scattered = bool(steps) and steps[0].kind == "Slice" and {*steps[0].axes} == {*partial}
            elements = 1
            for size in natural.local_sizes(tensor.shape, self.mesh):
                elements *= size
            self.add(op, tensor, "ReduceScatter" if scattered else "AllReduce", partial, elements, times)
        self.record(op, tensor, steps, times)
        primal = tensor.primal
        if self.separate and (self.rests(op) if primal is None else primal in self.resting) and not isinstance(op, Move):
            self.resting.add(tensor)
        elif isinstance(op, Move) and primal in self.resting:
            self.resting.add(tensor)

    def record(self, op: Op, tensor: Tensor, steps: Sequence[Step], times: int) -> None:
        """Notes the collectives among some moves."""
        for step in steps:
            if step.kind != "Slice":
                self.add(op, tensor, step.kind, step.axes, step.elements, times)

    def add(self, op: Op, tensor: Tensor, kind: str, axes: Sequence[str], elements: int, times: int) -> None:
        """Notes one collective."""
        ordered = tuple(axis for axis in self.mesh.axes if axis in axes)
        self.plan.collectives.append(
            Collective(
                kind, ordered, elements, tensor.dtype, elements * tensor.itemsize, times,
                tensor.label, self.plan.names[op], op.phase, op.source,
            )  # fmt: skip
        )

    def in_use(self, op: Op, i: int, rests: bool) -> Sharding:
        """Where an operand is for the op's purposes: a resting one is brought to the layout's place for it first."""
        tensor = op.inputs[i]
        sharding = self.plan.shardings[tensor]
        if tensor in self.resting and not rests:
            return self.default(tensor, self.plan.layout, sharding.whole)
        return sharding

    # The rule for every ordinary op.

    def generic(self, op: Op, times: int) -> None:
        """Operands agree on a holder for every axis; the results inherit by name."""
        asked, rests, target = op.placement(), self.rests(op), self.target(op)
        given = [self.in_use(op, i, rests) for i in range(len(op.inputs))]
        claims = self.claims(op, given, asked.whole, target)
        renamed = self.renamed(op, claims, asked.renames, target)
        for i, tensor in enumerate(op.inputs):
            self.operand(op, i, Sharding.of({n: a for n, a in claims.items() if n in tensor.shape.names}, given[i].whole), times)
        partial = tuple(axis for name in sorted(asked.reduced) for axis in claims.get(name, ()))
        if op.manual and partial:
            self.plan.partial[op] = partial
        for tensor in op.outputs:
            self.settle(op, tensor, claims | renamed, asked.whole, given, partial, times)

    def target(self, op: Op) -> Sharding | None:
        """Where the first result must lie because it is the cotangent of a tensor that lies there."""
        primal = op.outputs[0].primal
        return None if primal is None else self.plan.shardings.get(primal)

    def claims(self, op: Op, given: Sequence[Sharding], whole: frozenset[str], target: Sharding | None) -> dict[str, tuple[str, ...]]:
        """The axes each dimension of the op holds, agreed between the operands."""
        claims: dict[str, tuple[str, ...]] = {}
        owner: dict[str, tuple[str, int]] = {}
        order = list(range(len(given)))
        if target is not None:
            order.sort(key=lambda i: -sum(target.axes(name) == axes for name, axes in given[i].held))
        for i in order:
            for name, axes in given[i].held:
                if name in whole or not self.fits(op, i, name, axes):
                    continue
                rivals = [axis for axis in axes if axis in owner and owner[axis][0] != name]
                shorter, longer = sorted((claims.get(name, ()), axes), key=len)
                if not rivals and longer[: len(shorter)] == shorter:
                    claims[name] = longer
                    owner.update({axis: (name, i) for axis in longer if axis not in owner})
                elif not op.derived and op.phase != "backward":
                    raise self.conflict(op, given, name, i, *(owner[rivals[0]] if rivals else (name, owner[claims[name][0]][1])), rivals or axes)
        return claims

    def fits(self, op: Op, i: int, name: str, axes: Sequence[str]) -> bool:
        """Whether an op can run split that way: manual regions and reshapes need sizes that divide."""
        size = op.inputs[i].shape.named(name).size  # type: ignore[union-attr]
        if isinstance(op, Reshape) and name in (op.old[0].name,):
            return size % self.mesh.size(axes) == 0 and op.new[0].size % self.mesh.size(axes) == 0
        return not op.manual or size % self.mesh.size(axes) == 0

    def conflict(
        self, op: Op, given: Sequence[Sharding], name: str, i: int, other: str, j: int, axes: Sequence[str]
    ) -> NamedMeshError:
        """The error for operands that disagree on the holder of an axis."""
        mine, theirs = op.inputs[i], op.inputs[j]
        return NamedMeshError(
            f"{op.kind}: mesh axis {axes[0]!r} is held by dimension {other} in {theirs.label} and by {name} in {mine.label}",
            f"{theirs.label}: {given[j].text(theirs.shape)}",
            f"{mine.label}: {given[i].text(mine.shape)}",
            f"layout: {self.plan.layout.text}",
            source=op.source,
            fix=f"write nm.reshard({theirs.label}, {name}) or nm.replicate({mine.label}, {name}) before it"
            + (f", or whole=[{name}] where parameter {mine.label} is declared" if isinstance(mine.producer, Placeholder) else ""),
        )

    def renamed(
        self, op: Op, claims: dict[str, tuple[str, ...]], renames: dict[str, str], target: Sharding | None
    ) -> dict[str, tuple[str, ...]]:
        """What passes from a dimension to the one that takes its place; drops claims that cannot pass."""
        found = {}
        for old, new in renames.items():
            axes = claims.get(old, ())
            legal = [self.axes(self.layout_of(op), new)] + ([target.axes(new)] if target is not None else [])
            if axes and any(candidate[: len(axes)] == axes for candidate in legal):
                found[new] = axes
            else:
                claims.pop(old, None)
        return found

    def settle(
        self,
        op: Op,
        tensor: Tensor,
        claims: dict[str, tuple[str, ...]],
        needs_whole: frozenset[str],
        given: Sequence[Sharding],
        partial: Sequence[str],
        times: int,
    ) -> None:
        """Decides one result: what it inherits, what new dimensions take, what the freed axes go to."""
        target = self.plan.shardings.get(tensor.primal) if tensor.primal is not None else None
        inherited = {name: axes for name, axes in claims.items() if name in tensor.shape.names}
        whole = frozenset(name for sharding in given for name in sharding.whole if name in tensor.shape.names)
        known = {name for x in op.inputs for name in x.shape.names}
        fresh = [name for name in tensor.shape.names if name not in known and name not in claims and name not in needs_whole]
        natural = dict(inherited)
        layout = self.layout_of(op)
        if target is not None:
            busy = {axis for axes in natural.values() for axis in axes} | {*partial}
            for name in fresh:
                natural[name] = tuple(axis for axis in target.axes(name) if axis not in busy)
            self.finish(op, tensor, self.dividing(op, tensor, natural, fresh, whole), target, times, partial)
            return
        if op.derived:
            plain = Sharding.of(natural, whole)
            self.finish(op, tensor, plain, plain, times, partial)
            return
        full, contested = self.due(tensor.shape, natural, whole, layout)
        if contested:
            full = self.decided(op, tensor, full, whole, contested, layout)
        if not partial:
            natural |= {name: full[name] for name in fresh if name in full}
        self.finish(op, tensor, self.dividing(op, tensor, natural, fresh, whole), Sharding.of(full, whole), times, partial)

    def dividing(self, op: Op, tensor: Tensor, held: dict[str, tuple[str, ...]], fresh: Iterable[str], whole: frozenset[str]) -> Sharding:
        """What an op can make directly: a manual op makes new dimensions split only where they divide."""
        if op.manual:
            for name in fresh:
                if name in held and tensor.shape.named(name).size % self.mesh.size(held[name]):  # type: ignore[union-attr]
                    held = {key: axes for key, axes in held.items() if key != name}
        return Sharding.of(held, whole)

    def decided(
        self,
        op: Op,
        tensor: Tensor,
        held: dict[str, tuple[str, ...]],
        whole: frozenset[str],
        contested: dict[str, list[str]],
        layout: Layout,
    ) -> dict[str, tuple[str, ...]]:
        """Axes that two dimensions are due go to the one its first reader wants; else they stay idle or it is an error."""
        held = dict(held)
        for axis, names in contested.items():
            holder = self.hint(tensor, axis, names)
            if holder is not None:
                order = self.axes(layout, holder)
                held[holder] = tuple(a for a in order if a == axis or a in held.get(holder, ()))
            elif not isinstance(op, (Fill, Range, Broadcast)) and op.phase == "forward":
                fix = f"write nm.reshard({tensor.label}, {names[0]}) right after it, or nm.replicate({tensor.label})"
                raise self.ambiguous(tensor, axis, names, fix)
        return held

    def hint(self, tensor: Tensor, axis: str, names: Sequence[str]) -> str | None:
        """The dimension that a reader of the tensor, directly or through elementwise ops, expects to hold an axis."""
        for reader in self.consumers.get(tensor, ()):
            if isinstance(reader, Move) and reader.called != "cotangent":
                taken = [name for name in (*reader.take, *(reader.exact or ())) if name in names]
                if taken:
                    return taken[0]
            elif reader.elementwise:
                for other in reader.inputs:
                    holder = self.plan.shardings[other].holder(axis) if other in self.plan.shardings else None
                    if holder in names:
                        return holder
                found = self.hint(reader.outputs[0], axis, names)
                if found:
                    return found
        return None

    # Ops with rules of their own.

    def move(self, op: Move, times: int) -> None:
        """The one op that states where its result lies."""
        (tensor,) = op.inputs
        target = self.target(op)
        if op.called == "cotangent":
            current = self.plan.shardings[tensor]
            self.finish(op, op.output, current, current if target is None else target, times)
            return
        current = self.in_use(op, 0, False)
        self.operand(op, 0, current, times)
        for axes in (op.exact or {}).values():
            for axis in axes:
                if axis not in self.mesh.axes:
                    raise op.error(
                        f"the mesh has no axis {axis!r}", str(tensor), f"mesh: {self.mesh}", fix=f"use one of: {', '.join(self.mesh.axes)}"
                    )
        taken = {name: self.axes(self.plan.layout, name) for name in op.take}
        wanted = [axis for axes in taken.values() for axis in axes]
        for axis in wanted:
            if wanted.count(axis) > 1:
                raise self.ambiguous(tensor, axis, [name for name, axes in taken.items() if axis in axes], "reshard one of them only")
        if op.exact is not None:
            held, whole = {name: tuple(a for a in axes if self.mesh.axes[a] > 1) for name, axes in op.exact.items()}, frozenset(tensor.shape.names) - {*op.exact}
        else:
            held = {
                name: tuple(axis for axis in axes if axis not in wanted)
                for name, axes in current.held
                if name not in op.give
            } | taken
            whole = (current.whole - {*op.take}) | {*op.give}
            if op.give:
                whole |= {name for name in tensor.shape.names if not held.get(name)}
        self.finish(op, op.output, current, Sharding.of(held, whole), times)

    def pass_through(self, op: CustomVjp, times: int) -> None:
        """Every result lies where the operand it passes on lies."""
        for x, y in zip(op.inputs, op.outputs, strict=False):
            self.finish(op, y, self.plan.shardings[x], self.plan.shardings[x], times)
            if x in self.resting:
                self.resting.add(y)

    def scan(self, op: Scan, times: int) -> None:
        """The carry keeps the place it starts in; xs are read whole along the loop, the rest as they lie."""
        body, shardings, total = op.body, self.plan.shardings, len(op.body.inputs)
        for i, tensor in enumerate(op.inputs):
            inner = (*body.inputs, *body.captures)[i]
            if i < op.carries:
                target = self.start(op, i)
            elif i < total:
                target = shardings[tensor].only(set(tensor.shape.names) - {op.over.name})
                if tensor in self.resting:
                    self.resting.add(inner)
            else:
                target = self.in_use(op, i, False)
            self.operand(op, i, target, times)
            shardings[inner] = target.only(inner.shape.names).kept_whole(target.whole & {*inner.shape.names})
        repeats = times * op.over.size
        self.ops(body.ops, repeats)
        for i, tensor in enumerate(body.outputs):
            if i < op.carries:
                place = shardings[body.inputs[i]]
                self.result(body, i, tensor, place, repeats)
            else:
                place = shardings[tensor]
            self.outcome(op, op.outputs[i], place, times)

    def start(self, op: Op, i: int) -> Sharding:
        """Where a loop's carry lies: where it starts, or, for a constant, where the layout says."""
        tensor = op.inputs[i]
        sharding = self.in_use(op, i, False)
        if isinstance(tensor.producer, (Fill, Range, Broadcast)) and tensor.primal is None:
            full, _ = self.due(tensor.shape, sharding.mapping, sharding.whole, self.plan.layout)
            return Sharding.of(full, sharding.whole)
        return sharding

    def outcome(self, op: Op, tensor: Tensor, natural: Sharding, times: int) -> None:
        """Settles a result of a loop or branch."""
        target = self.plan.shardings.get(tensor.primal) if tensor.primal is not None else None
        if target is None and not op.derived:
            full, contested = self.due(tensor.shape, natural.mapping, natural.whole, self.plan.layout)
            target = natural if contested else Sharding.of(full, natural.whole)
        self.finish(op, tensor, natural, natural if target is None else target, times)

    def while_loop(self, op: While, times: int) -> None:
        """As scan, but how often the body runs is not known: its collectives count once."""
        shardings, carries, tests = self.plan.shardings, len(op.body.inputs), len(op.test.captures)
        for i in range(carries):
            target = self.start(op, i)
            self.operand(op, i, target, times)
            shardings[op.body.inputs[i]] = shardings[op.test.inputs[i]] = target
        self.captured(op, op.test, carries, times)
        self.captured(op, op.body, carries + tests, times)
        self.ops(op.test.ops, times)
        self.result(op.test, 0, op.test.outputs[0], Sharding(), times)
        self.ops(op.body.ops, times)
        for i, tensor in enumerate(op.body.outputs):
            self.result(op.body, i, tensor, shardings[op.body.inputs[i]], times)
            self.outcome(op, op.outputs[i], shardings[op.body.inputs[i]], times)

    def captured(self, op: Op, body: Body, first: int, times: int) -> None:
        """Brings what a body captures to where it is used."""
        for i, inner in enumerate(body.captures, first):
            target = self.in_use(op, i, False)
            self.operand(op, i, target, times)
            self.plan.shardings[inner] = target

    def cond(self, op: Cond, times: int) -> None:
        """Both branches leave their results where the first does."""
        self.operand(op, 0, Sharding(), times)
        self.captured(op, op.yes, 1, times)
        self.captured(op, op.no, 1 + len(op.yes.captures), times)
        for body in op.bodies:
            self.ops(body.ops, times)
        for i, (yes, no) in enumerate(zip(op.yes.outputs, op.no.outputs, strict=True)):
            place = self.plan.shardings[yes]
            self.result(op.no, i, no, place, times)
            self.outcome(op, op.outputs[i], place, times)

    def check_all_used(self) -> None:
        """Raises for a dimension the layout maps to an axis on which no tensor of the program has it."""
        held = {(name, axis) for sharding in self.plan.shardings.values() for name, axes in sharding.held for axis in axes}
        for label, layout in (("layout", self.plan.layout), ("params layout", self.plan.params)):
            for name in layout.rules:
                for axis in self.axes(layout, name):
                    if (name, axis) not in held:
                        raise NamedMeshError(
                            f"the {label} maps dimension {name} to mesh axis {axis!r}, but every tensor keeps it whole there",
                            f"{label}: {layout.text}",
                            f"mesh: {self.mesh}",
                            source=self.plan.program.ops[0].source if self.plan.program.ops else None,
                            fix=f"write nm.reshard(x, {name}) where {name} should take over the axis, or leave it out of the {label}",
                        )

