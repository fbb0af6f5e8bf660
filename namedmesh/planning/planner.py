"""Planner: the state and the steps that every rule of planning shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from namedmesh.dims.hop import Hop
from namedmesh.dims.layout import Layout
from namedmesh.dims.sharding import Sharding, Transfer, conversion
from namedmesh.ir.op import Op, every_op
from namedmesh.ir.tensor import BYTES, Tensor
from namedmesh.planning.crossing import count_crossing_bytes
from namedmesh.planning.plan import Plan
from namedmesh.records.collective import Collective

# An axis that a dimension of a tensor has because the layout says so, and nothing else.
Default: TypeAlias = tuple[Tensor, str, str]


def spell_in_ascii(name: str) -> str:
    """Spell other letters by their numbers: TensorFlow's scopes and XLA's metadata are ASCII."""
    return "".join(letter if letter.isascii() else f"u{ord(letter):x}" for letter in name)


class Planner(ABC):
    """Fill in a plan, op by op, by the rule that each op chooses."""

    def __init__(
        self,
        plan: Plan,
        separate: bool,
        label: str,
        take_cheapest: bool = False,
        yielded: Mapping[Default, str] = MappingProxyType({}),
    ):
        self.plan, self.mesh, self.separate = plan, plan.mesh, separate
        self.take_cheapest = take_cheapest
        self.yielded = yielded
        self.yielding: dict[Default, str] = {}  # what operands disagreed on in this pass
        self.resting: set[Tensor] = set()
        self.zero: set[Tensor] = set()  # free tensors that are zero everywhere
        self.open: set[Tensor] = set()  # accumulators that lie where the first addend lies
        self.running: set[Tensor] = set()  # sums of an accumulator and something
        self.captures: dict[Tensor, tuple[Op, int, int]] = {}  # of loops: loop, operand, times
        self.invariant: dict[Tensor, int] = {}  # in a loop; how often the loop itself runs
        self.summed_as: dict[Tensor, str] = {}  # the name of the sum that a tensor is a part of
        self.moved: set[tuple[object, Sharding]] = set()
        self.open_loops = 0  # how many loops of unknown length enclose what is being planned
        self.consumers: dict[Tensor, list[Op]] = {}
        self.givers: dict[
            Tensor, Op
        ] = {}  # the loops and branches that give bodies their arguments
        results = [*plan.program.outputs, *plan.program.updates.values()]
        self.final = {*results}
        for op in every_op(plan.program.ops):
            plan.names[op] = f"{spell_in_ascii(label + op.kind)}.{len(plan.names)}"
            plan.producers.update((tensor, op) for tensor in op.outputs)
            for tensor in op.inputs:
                self.consumers.setdefault(tensor, []).append(op)
            results += (tensor for body in op.bodies for tensor in body.outputs)
            self.givers.update((tensor, op) for body in op.bodies for tensor in body.arguments)
        self.returned = Counter(results)  # how often each is a result of a body or the program

    def plan_program(self, results: Sequence[Sharding] | None) -> None:
        """Plan inputs, variables, every op, then the program's results and updates."""
        program, shardings = self.plan.program, self.plan.shardings
        for name, tensor in program.inputs.items():
            shardings[tensor] = self.default_sharding(
                tensor, self.plan.layout, program.specs[name].whole
            )
        for variable in program.variables.values():
            exempt = self.plan.params.exempts(variable.owner or variable.name)
            layout = self.plan.layout if exempt or not variable.at_rest else self.plan.params
            if variable.owner is None:
                place = self.default_sharding(variable.tensor, layout, variable.whole)
            else:  # a slot lies beside its parameter, or the part of it that has its dimensions
                owner = shardings[program.variables[variable.owner].tensor]
                place = owner.only(variable.shape.names)
            shardings[variable.tensor] = place
            if variable.at_rest and self.separate and not exempt:
                self.resting.add(variable.tensor)
        self.plan_ops(program.ops, 1)
        for i, tensor in enumerate(program.outputs):
            sharding = shardings[tensor].with_partial(())
            uneven = [
                d.name for d in tensor.shape if d.size % self.mesh.size(sharding.axes(d.name))
            ]
            target = (
                sharding.only(set(tensor.shape.names) - set(uneven))
                if results is None
                else results[i]
            )
            self.bring_result(program, i, tensor, target, 1)
        for i, (name, tensor) in enumerate(program.updates.items(), len(program.outputs)):
            self.bring_result(program, i, tensor, shardings[program.variables[name].tensor], 1)

    @abstractmethod
    def plan_ops(self, ops: Sequence[Op], times: int) -> None:
        """Plan ops in order; times is how often each runs in one step."""

    def count_uses(self, tensor: Tensor) -> int:
        """Count how often a tensor is read, or is a result of a body or the program."""
        return len(self.consumers.get(tensor, ())) + self.returned[tensor]

    def sole_reader(self, tensor: Tensor) -> Op | None:
        """Return the only op that reads a tensor that nothing else uses."""
        readers = self.consumers.get(tensor, ())
        return readers[0] if len(readers) == 1 and not self.returned[tensor] else None

    def is_part(self, tensor: Tensor) -> bool:
        """Whether a tensor is one of several parts of a cotangent, and nothing else."""
        reader = self.sole_reader(tensor)
        return reader is not None and reader.adds_operands and len(reader.inputs) > 1

    def is_pending(self, tensor: Tensor) -> bool:
        """Whether a tensor is made of parts of a sum that are still to be added up."""
        place = self.plan.shardings.get(tensor)
        return tensor in self.open or (place is not None and bool(place.partial))

    def layout_axes(self, layout: Layout, name: str) -> tuple[str, ...]:
        """Return the axes of more than one device that a layout gives a name."""
        return tuple(axis for axis in layout.axes(name) if self.mesh.axes[axis] > 1)

    def default_sharding(self, tensor: Tensor, layout: Layout, whole: Iterable[str]) -> Sharding:
        """Return the layout's sharding of a tensor."""
        held, contested = self.give_due_axes(tensor, {}, frozenset(whole), layout)
        for axis, names in contested.items():
            held = self.give_axis(held, self.prefer(tensor, axis, names, layout), axis, layout)
        return Sharding.of(held, whole)

    def prefer(self, tensor: Tensor, axis: str, names: Sequence[str], layout: Layout) -> str:
        """Choose, of dimensions that want one axis, the one the layout has first, and notes it."""
        first, *others = sorted(names, key=list(layout.rules).index)
        stays = f"{', '.join(others)} stay{'s' if len(others) == 1 else ''} whole"
        self.plan.decisions[f"{first} holds {axis}, {stays}: the layout has {first} first"].append(
            tensor.label
        )
        return first

    def give_axis(
        self, held: Mapping[str, tuple[str, ...]], name: str, axis: str, layout: Layout
    ) -> dict[str, tuple[str, ...]]:
        """Return who holds what when a dimension takes an idle axis, in the layout's order."""
        now = held.get(name, ())
        return {
            **held,
            name: tuple(a for a in self.layout_axes(layout, name) if a == axis or a in now),
        }

    def give_due_axes(
        self,
        tensor: Tensor,
        held: dict[str, tuple[str, ...]],
        whole: frozenset[str],
        layout: Layout,
    ) -> tuple[dict[str, tuple[str, ...]], dict[str, list[str]]]:
        """Give every idle axis to the dimension that the layout maps to it.

        Returns the axes that each dimension then holds, and the axes that two dimensions want. At
        rest an axis goes to the dimension that the params layout has first.
        """
        busy = {axis for axes in held.values() for axis in axes}
        wants: dict[str, list[str]] = {}
        for dim in tensor.shape:
            if dim.name not in whole and dim.size > 1:
                for axis in self.layout_axes(layout, dim.name):
                    if axis not in busy and (tensor, dim.name, axis) not in self.yielded:
                        wants.setdefault(axis, []).append(dim.name)
        if self.separate and layout is self.plan.params:
            wants = {
                axis: [name for name in layout.rules if name in names][:1]
                for axis, names in wants.items()
            }
        full = dict(held)
        for dim in tensor.shape:
            more = [
                axis for axis in self.layout_axes(layout, dim.name) if wants.get(axis) == [dim.name]
            ]
            if more:
                full[dim.name] = (*full.get(dim.name, ()), *more)
        return full, {axis: names for axis, names in wants.items() if len(names) > 1}

    def layout_of(self, op: Op) -> Layout:
        """Return the layout of an op's results: params for what comes from parameters alone."""
        return self.plan.params if self.rests(op) else self.plan.layout

    def rests(self, op: Op) -> bool:
        """Whether an op works on parameters, their slots and gradients alone, where those rest."""
        ranked = [
            tensor
            for tensor in op.inputs
            if len(tensor.shape) and tensor not in self.plan.free and tensor not in self.open
        ]
        return bool(ranked) and all(tensor in self.resting for tensor in ranked)

    def bring_operand(self, op: Op, i: int, target: Sharding, times: int) -> None:
        """Bring an operand to where the op needs it."""
        tensor = op.inputs[i]
        if tensor in self.plan.free:
            self.plan.made[op, i] = target
            return
        steps = conversion(tensor.shape, self.mesh, self.plan.shardings[tensor], target)
        if steps:
            self.plan.operands[op, i] = steps
            if tensor in self.captures and any(step.kind != "Slice" for step in steps):
                self.bring_capture(tensor, target)
            else:
                self.record_transfers(op, tensor, self.new_steps(tensor, steps), times)

    def new_steps(self, tensor: Tensor, steps: Sequence[Transfer]) -> Sequence[Transfer]:
        """Return the steps of a way that no other reader's way begins with."""
        made = self.plan.count_made(tensor, steps, self.moved)
        self.moved.update((self.plan.value_of(tensor), step.result) for step in steps)
        return steps[made:]

    def bring_capture(self, inner: Tensor, target: Sharding) -> None:
        """Bring what a loop captures to where its body reads it, once, before the loop."""
        loop, i, times = self.captures[inner]
        places = self.plan.captured.setdefault(loop, {})
        if (inner, target) in places:
            return
        outer, source = loop.inputs[i], self.plan.shardings[inner]
        steps = conversion(inner.shape, self.mesh, source, target)
        places[inner, target] = i, steps
        if outer in self.captures and source == self.plan.shardings[outer]:
            self.bring_capture(outer, target)
        else:
            self.record_transfers(loop, outer, self.new_steps(outer, steps), times)

    def bring_result(
        self, owner: object, i: int, tensor: Tensor, target: Sharding, times: int
    ) -> None:
        """Bring a result of the program or of a body to where it is wanted."""
        if tensor in self.plan.free:
            self.plan.made[owner, i] = target
            return
        steps = conversion(tensor.shape, self.mesh, self.plan.shardings[tensor], target)
        if steps:
            self.plan.results[owner, i] = steps
            producer = self.plan.producers[tensor]
            self.record_transfers(producer, tensor, self.new_steps(tensor, steps), times)

    def settle(
        self,
        op: Op,
        tensor: Tensor,
        natural: Sharding,
        final: Sharding,
        times: int,
        reduced: Sequence[Sequence[str]] = (),
    ) -> None:
        """Settle a result.

        Parts of a sum that a single reader reads stay as they are: it may add to them, or want
        them split.
        """
        if natural.partial:
            parts = [x for x in op.inputs if self.is_pending(x)]
            sums = (self.plan.summed_by[x] for x in parts if x in self.plan.summed_by)
            self.plan.summed_by.setdefault(tensor, next(sums, op))
            named = (self.summed_as[x] for x in parts if x in self.summed_as)
            if tensor.name is not None or tensor.primal is not None:
                self.summed_as.setdefault(tensor, next(named, tensor.label))
            else:
                self.summed_as.update((tensor, name) for name in [*named][:1])
            single = self.count_uses(tensor) == 1 and tensor not in self.final
            final = final.with_partial(
                axis for axis in natural.partial if single and axis not in final.used
            )
        if not self.count_uses(tensor) and tensor not in self.final:
            final = natural  # a loop's last carry that nothing reads
        steps = conversion(tensor.shape, self.mesh, natural, final)
        self.plan.natural[tensor], self.plan.shardings[tensor] = natural, final
        self.plan.moves[tensor] = steps
        elements = natural.local_elements(tensor.shape, self.mesh)
        for axes in reduced:
            scattered = bool(steps) and steps[0].kind == "Slice" and {*steps[0].axes} == {*axes}
            kind = "ReduceScatter" if scattered else "AllReduce"
            self.record_collective(op, tensor, kind, axes, elements, times, dtype=op.summed_in)
        self.record_transfers(op, tensor, steps, times)
        primal = self.planned_form(tensor.primal)
        inherits = self.rests(op) and not op.states_place and not op.adds_operands
        if primal in self.resting if primal is not None else inherits:
            self.resting.add(tensor)

    def record_transfers(
        self, op: Op, tensor: Tensor, steps: Sequence[Transfer], times: int
    ) -> None:
        """Record the collectives among some transfers."""
        for step in steps:
            if step.kind not in ("Slice", "Alone"):
                owner, label = op, tensor.label
                if step.sums:
                    owner = self.plan.summed_by.get(tensor, op)
                    label = self.summed_as.get(tensor, label)
                way = (step.source, step.result)
                self.record_collective(
                    owner, tensor, step.kind, step.axes, step.elements, times, label, way=way
                )

    def record_collective(
        self,
        op: Op,
        tensor: Tensor,
        kind: str,
        axes: Sequence[str],
        elements: int,
        times: int,
        label: str | None = None,
        dtype: str | None = None,
        hop: Hop | None = None,
        way: tuple[Sharding, Sharding] | None = None,
    ) -> None:
        """Record one collective."""
        dtype = dtype or tensor.dtype
        mesh = self.mesh
        ordered = tuple(axis for axis in mesh.axes if axis in axes)
        size = elements * BYTES.get(dtype, 1)
        host_bytes, slice_bytes = (
            count_crossing_bytes(kind, size, ordered, mesh, blocks, hop or way)
            for blocks in (mesh.hosts, mesh.slices)
        )
        producer = self.givers.get(tensor) or self.plan.producers.get(tensor)
        self.plan.collectives.append(
            Collective(
                kind,
                ordered,
                elements,
                dtype,
                size,
                times,
                label or tensor.label,
                self.plan.names[op],
                op.phase,
                op.source.user,
                mesh.size(ordered),
                self.open_loops > 0,
                op.scope.rstrip("/"),
                self.plan.names[producer] if producer else "",
                self.invariant.get(tensor, 0),
                hop,
                host_bytes,
                slice_bytes,
            )
        )

    def place_in_use(self, op: Op, i: int, rests: bool) -> Sharding:
        """Return where the op uses an operand: a resting one is first laid out."""
        tensor = op.inputs[i]
        if tensor in self.open:
            return Sharding()
        sharding = self.plan.shardings[tensor].with_partial(())
        if tensor in self.plan.free:
            return Sharding.of({}, sharding.whole)
        if tensor in self.resting and not rests:
            return self.default_sharding(tensor, self.plan.layout, sharding.whole)
        return sharding

    def target(self, op: Op) -> Sharding | None:
        """Return where the first result must lie as the cotangent of a tensor that lies there."""
        return self.place_of(op.outputs[0].primal)

    def place_of(self, tensor: Tensor | None) -> Sharding | None:
        """Return where a tensor lies, if that is planned."""
        tensor = self.planned_form(tensor)
        return None if tensor is None else self.plan.shardings[tensor].with_partial(())

    def planned_form(self, tensor: Tensor | None) -> Tensor | None:
        """Return the tensor, or the one it repeats: a dead copy is not planned itself."""
        while tensor is not None and tensor not in self.plan.shardings:
            tensor = tensor.origin
        return tensor
