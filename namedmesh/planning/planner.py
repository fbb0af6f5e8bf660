"""Planner: the steps that every rule of planning shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from namedmesh.dims.hop import Hop
from namedmesh.dims.layout import Layout
from namedmesh.dims.mesh import Mesh
from namedmesh.dims.sharding import Sharding, Transfer, conversion
from namedmesh.display.text import human
from namedmesh.ir.op import Op
from namedmesh.ir.placement import find_ring
from namedmesh.ir.program import Program
from namedmesh.ir.tensor import BYTES, Tensor
from namedmesh.planning.state import Default, PlanState, Uses
from namedmesh.records.collective import ORDERED, REDUCING, Collective, count_wire_bytes
from namedmesh.records.crossing import count_crossing_bytes

Axes = dict[str, tuple[str, ...]]  # the mesh axes that each dimension is sharded over
LARGE = 2**32  # bytes that no operand of a product takes whole on a device, unless asked to
Way = Hop | tuple[Sharding, Sharding] | None  # a hop, or the shardings before and after a move


class Planner(ABC):
    """One pass over a program, which fills in its state."""

    def __init__(
        self,
        program: Program,
        mesh: Mesh,
        layout: Layout,
        params: Layout | None = None,
        label: str = "",
        take_cheapest: bool = False,
        yielded: Mapping[Default, str] = MappingProxyType({}),
    ):
        self.program, self.mesh, self.layout = program, mesh, layout
        # What parameters at rest add to the layout, and whether that was said; and both together.
        self.params, self.separate = params or layout, params is not None
        self.at_rest = layout if params is None else layout.at_rest(params)
        self.take_cheapest = take_cheapest  # a conflict is solved by the cheapest move, no error
        self.yielded = yielded  # axes that earlier passes found better left to other operands
        self.parameters = frozenset(one.tensor for one in program.variables.values())
        self.uses = Uses.of_program(program, label)
        self.state = PlanState(self.uses.names, self.uses.producers)

    @abstractmethod
    def plan_ops(self, ops: Sequence[Op], times: int) -> None:
        """Plan ops in order; times is how often each runs in one step."""

    def plan_program(self, results: Sequence[Sharding] | None = None) -> None:
        """Plan inputs, variables, every op, then the program's results and updates."""
        program, shardings = self.program, self.state.shardings
        for name, tensor in program.inputs.items():
            whole = program.specs[name].whole
            self.state.shardings[tensor] = self.default_sharding(tensor, self.layout, whole)
        self._plan_variables()
        self.plan_ops(program.ops, 1)
        for i, tensor in enumerate(program.outputs):
            sharding = shardings[tensor].with_partial(())
            self.move_result(program, i, tensor, results[i] if results else sharding, 1)
        for i, (name, tensor) in enumerate(program.updates.items(), len(program.outputs)):
            self.move_result(program, i, tensor, shardings[program.variables[name].tensor], 1)

    def _plan_variables(self) -> None:
        """Shard parameters by their own layout, if they have one, and slots as their parameters."""
        state, variables = self.state, self.program.variables
        for variable in variables.values():
            exempt = self.params.exempts(variable.owner or variable.name)
            rests = variable.at_rest and self.separate and not exempt
            if variable.owner is not None:  # a slot may have some of its parameter's dims alone
                owner = state.shardings[variables[variable.owner].tensor]
                sharding = owner.only(variable.shape.names)
            else:
                sharding = self.default_sharding(variable.tensor, self.layout, variable.whole)
                if rests:
                    sharding = self.resting_sharding(variable.tensor, sharding)
            state.shardings[variable.tensor] = sharding
            if rests:
                state.resting.add(variable.tensor)
        self.stored_at_rest = self._find_stored_at_rest()

    def _find_stored_at_rest(self) -> dict[Tensor, Tensor]:
        """Find what becomes, by ops on elements alone, the next value of a variable at rest."""
        found: dict[Tensor, Tensor] = {}
        for name, updated in self.program.updates.items():
            variable = self.program.variables[name].tensor
            pending = [updated] if variable in self.state.resting else []
            while pending:
                tensor = pending.pop()
                if tensor not in found:
                    found[tensor] = variable
                    producer = self.uses.producers[tensor]
                    pending += producer.inputs if producer.elementwise else ()
        return found

    def resting_sharding(self, tensor: Tensor, in_use: Sharding) -> Sharding:
        """Return the sharding in use with the axes that `params` takes away or adds."""
        taken = self.params.removed
        axes = {
            name: tuple(axis for axis in used if axis not in taken.get(name, ()))
            for name, used in in_use.held
        }
        full, _ = self.take_idle_axes(tensor, axes, in_use.whole, self.params)
        return Sharding.of(full, in_use.whole)

    def is_sliced(self, op: Op, size: int, limit: int | None = None) -> bool:
        """Return whether an op takes or makes what has so many bytes on a device in slices."""
        if limit is None:
            limit = LARGE if self.layout.slices is None else self.layout.slices
        return op.sliced == "all" or (op.sliced == "large" and size > limit)

    def degree(self, sharding: Sharding, name: str) -> int:
        """Return the number of shards of a dimension."""
        return self.mesh.size(sharding.axes(name))

    def layout_axes(self, layout: Layout, name: str) -> tuple[str, ...]:
        """Return the axes of more than one device that a layout maps a dimension to."""
        return tuple(axis for axis in layout.axes(name) if self.mesh.axes[axis] > 1)

    def default_sharding(self, tensor: Tensor, layout: Layout, whole: Iterable[str]) -> Sharding:
        """Return the layout's sharding of a tensor."""
        axes, contested = self.take_idle_axes(tensor, {}, frozenset(whole), layout)
        for axis, names in contested.items():
            axes = self.assign_axis(axes, self.prefer(tensor, axis, names, layout), axis, layout)
        return Sharding.of(axes, whole)

    def prefer(self, tensor: Tensor, axis: str, names: Sequence[str], layout: Layout) -> str:
        """Choose, of dimensions mapped to one axis, the one the layout has first; a decision."""
        first, *others = sorted(names, key=list(layout.rules).index)
        stays = f"{', '.join(others)} stay{'s' if len(others) == 1 else ''} whole"
        self.state.decide(f"{first} takes {axis}, {stays}: the layout has {first} first", tensor)
        return first

    def assign_axis(
        self, axes: Mapping[str, tuple[str, ...]], name: str, axis: str, layout: Layout
    ) -> Axes:
        """Return the axes with an idle one given to a dimension, in the layout's order."""
        now = (*axes.get(name, ()), axis)
        return {**axes, name: tuple(a for a in self.layout_axes(layout, name) if a in now)}

    def take_idle_axes(
        self,
        tensor: Tensor,
        axes: Mapping[str, tuple[str, ...]],
        whole: frozenset[str],
        layout: Layout,
    ) -> tuple[Axes, dict[str, list[str]]]:
        """Shard dimensions over idle axes of the layout; return those that several want, too."""
        busy = {axis for used in axes.values() for axis in used}
        rests = layout is not self.layout
        wanted: dict[str, list[str]] = {}
        for dim in tensor.shape:
            if dim.name not in whole and dim.size > 1:
                for axis in self.layout_axes(layout, dim.name):
                    if axis not in busy and (rests or (tensor, dim.name, axis) not in self.yielded):
                        wanted.setdefault(axis, []).append(dim.name)
        if rests:
            # At rest nothing is computed, so that the order of the layout may decide silently.
            order = list(layout.rules)
            wanted = {axis: [min(names, key=order.index)] for axis, names in wanted.items()}
        full = dict(axes)
        for dim in tensor.shape:
            mapped = self.layout_axes(layout, dim.name)
            more = [axis for axis in mapped if wanted.get(axis) == [dim.name]]
            if more:
                full[dim.name] = (*full.get(dim.name, ()), *more)
        return full, {axis: names for axis, names in wanted.items() if len(names) > 1}

    def layout_of(self, op: Op) -> Layout:
        """Return the layout of an op's results: params for what comes from parameters alone."""
        return self.at_rest if self.rests(op) else self.layout

    def rests(self, op: Op) -> bool:
        """Return whether an op works on parameters, slots and gradients alone, where they rest."""
        state, inputs = self.state, op.inputs
        if op.rests_like is not None:
            inputs = [inputs[i] for i in op.rests_like]
        placed = [
            tensor
            for tensor in inputs
            if len(tensor.shape) and tensor not in state.constants
            if tensor not in state.accumulators
        ]
        resting = [tensor for tensor in placed if tensor in state.resting]
        if len(resting) < len(placed):
            return bool(resting) and self._updates_at_rest(op, placed, resting)
        return bool(placed) and not self._is_gathered_before(op, placed)

    def _updates_at_rest(
        self, op: Op, operands: Sequence[Tensor], resting: Sequence[Tensor]
    ) -> bool:
        """Return whether an op updates what rests by others, of which devices cut their shards."""
        # A gradient that is an input is whole: the slots beside it need not be gathered.
        result = op.output
        alike = [x for x in resting if x.shape == result.shape]
        if not op.elementwise or result.primal is not None or not alike:
            return False
        if not self._is_read_at_rest(result):
            return False
        place = self.state.shardings[alike[0]].with_partial(())
        for x in operands:
            now = self.state.shardings[x].with_partial(())
            steps = self.conversion(x, now, place.only(x.shape.names))
            if any(step.kind != "Slice" for step in steps):
                return False
        return True

    def rest_of_update(self, tensor: Tensor) -> Sharding | None:
        """Return where what a tensor alone updates rests: there a sum is scattered to."""
        variable = self.stored_at_rest.get(tensor)
        if variable is None or variable.shape != tensor.shape or not self._is_read_at_rest(tensor):
            return None
        return self.state.shardings[variable]

    def _is_read_at_rest(self, tensor: Tensor) -> bool:
        """Return whether what reads a tensor by element is summed up, or updates what rests."""
        if tensor not in self.stored_at_rest:
            return False
        pending, seen = [tensor], {tensor}
        while pending:
            one = pending.pop()
            for reader in self.uses.readers.get(one, ()):
                result = reader.output
                if reader.sums and len(reader.inputs) == 1:
                    continue
                stored = result in self.stored_at_rest
                if not reader.elementwise or (result in self.uses.returned and not stored):
                    return False
                if not stored and result not in seen:
                    pending.append(result)
                    seen.add(result)
        return True

    def _is_gathered_before(self, op: Op, parameters: Sequence[Tensor]) -> bool:
        """Return whether parameters have fewer bytes than what an op makes of them for use."""
        # Frozen weights in eight bits are gathered so, and then cast. What is stored again stays
        # where it rests, and so do gradients and what a gradient flows back to.
        gradients = any(x.primal is not None for x in parameters)
        if gradients or not op.elementwise or op.phase == "update":
            return False
        if op.output in self.uses.primals:
            return False
        sizes = [x.shape.elements * x.itemsize for x in (op.output, *parameters)]
        return sizes[0] > sum(sizes[1:]) and not self.uses.is_stored(op.output)

    def sharding_in_use(self, op: Op, i: int, rests: bool) -> Sharding:
        """Return the sharding in which an op would read an operand, before operands agree."""
        tensor, state = op.inputs[i], self.state
        if tensor in state.accumulators:
            return Sharding()
        sharding = state.shardings[tensor].with_partial(())
        if tensor in state.constants:
            return Sharding.of({}, sharding.whole)
        if tensor in state.resting and not rests:  # parameters are gathered before they are used
            return self.default_sharding(tensor, self.layout, sharding.whole)
        return sharding

    def sharding_of(self, tensor: Tensor | None) -> Sharding | None:
        """Return the sharding of a tensor, if that is planned."""
        tensor = self.planned_form(tensor)
        return None if tensor is None else self.state.shardings[tensor].with_partial(())

    def target_of(self, cotangent: Tensor) -> Sharding | None:
        """Return where a cotangent goes: to where its primal is, or was before it was gathered."""
        target, reader = self.sharding_of(cotangent.primal), self.uses.sole_reader(cotangent)
        while target is not None and reader is not None and reader.adds_operands:
            before = self.sharding_of(reader.output.primal)
            if before is None:
                break
            # Devices would only cut their shards out again of what they had gathered.
            steps = self.conversion(cotangent, before, target)
            if any(step.kind != "AllGather" for step in steps):
                break
            target, reader = before, self.uses.sole_reader(reader.output)
        return target

    def planned_form(self, tensor: Tensor | None) -> Tensor | None:
        """Return the tensor, or the one it repeats: a dead copy is not planned itself."""
        while tensor is not None and tensor not in self.state.shardings:
            tensor = tensor.origin
        return tensor

    def conversion(self, tensor: Tensor, source: Sharding, target: Sharding) -> list[Transfer]:
        """Return the moves of a tensor from one sharding to another."""
        return conversion(tensor.shape, self.mesh, source, target)

    def price_steps(self, tensor: Tensor, steps: Sequence[Transfer]) -> tuple[int, tuple[str, ...]]:
        """Return what a device sends in some steps of a tensor's way, and their kinds."""
        sent, kinds = 0, []
        for step in steps:
            if step.kind not in ("Slice", "Alone"):
                size = step.elements * tensor.itemsize
                sent += count_wire_bytes(step.kind, size, self.mesh.size(step.axes))
                kinds.append(step.kind)
        return sent, tuple(kinds)

    def price_moves(
        self, tensor: Tensor, source: Sharding, target: Sharding
    ) -> tuple[int, tuple[str, ...]]:
        """Return what a device sends to move a tensor, and the kinds of its collectives."""
        return self.price_steps(tensor, self.conversion(tensor, source, target))

    def find_way(self, tensor: Tensor, source: Sharding, target: Sharding) -> list[Transfer]:
        """Return the moves of a tensor, from where others have it gathered in part if that pays."""
        state, direct = self.state, self.conversion(tensor, source, target)
        several = any(step.kind == "AllGather" and len(step.axes) > 1 for step in direct)
        ways = [direct]
        apart = source.partial or state.find_capture(tensor) is not None
        for place in state.places.get(state.value_of(tensor), ()) if several and not apart else ():
            before = self.conversion(tensor, source, place)
            if state.count_shared_moves(tensor, before, state.moved) == len(before):
                ways.append(before + self.conversion(tensor, place, target))

        def price(way: list[Transfer]) -> int:
            made = state.count_shared_moves(tensor, way, state.moved)
            return self.price_steps(tensor, way[made:])[0]

        return min(ways, key=price)

    def move_operand(
        self, op: Op, i: int, target: Sharding, times: int, reads: bool = True
    ) -> None:
        """Move an operand to the sharding in which the op reads it, or passes it on to readers."""
        tensor, state = op.inputs[i], self.state
        state.operand_moves |= self._move(op, (op, i), tensor, target, times)
        if reads:
            state.read(tensor, target)

    def move_result(
        self, owner: object, i: int, tensor: Tensor, target: Sharding, times: int
    ) -> None:
        """Move a result of the program or of a body to the sharding in which it is wanted."""
        op, state = self.uses.producers[tensor], self.state
        state.result_moves |= self._move(op, (owner, i), tensor, target, times)
        state.read(tensor, target)

    def _move(
        self, op: Op, reader: tuple[object, int], tensor: Tensor, target: Sharding, times: int
    ) -> dict[tuple[object, int], list[Transfer]]:
        """Move a tensor for one reader; return the steps, by reader, if there are any."""
        state = self.state
        if tensor in state.constants:  # which are made where they are read
            state.constant_uses[reader] = target
            return {}
        steps = self.find_way(tensor, state.shardings[tensor], target)
        if not steps:
            return {}
        # What a loop captures moves before the loop. Free slices too: XLA would shard the capture
        # itself so, and gather it again for others.
        captured = state.find_capture(tensor)
        if captured is not None:
            self.move_capture(captured, state.shardings[tensor], target)
        else:
            self.record_new_moves(op, tensor, steps, times)
        return {reader: steps}

    def record_new_moves(
        self, op: Op, tensor: Tensor, steps: Sequence[Transfer], times: int
    ) -> None:
        """Record the moves that were not made for another reader."""
        state, value = self.state, self.state.value_of(tensor)
        for step in steps[state.count_shared_moves(tensor, steps, state.moved) :]:
            before = len(state.collectives)
            self.record_moves(op, tensor, [step], times)
            made = state.collectives[before:]
            state.note_move((value, step.result), (value, step.source), made)

    def move_capture(self, inner: Tensor, through: Sharding, target: Sharding) -> None:
        """Move what a loop captures to where its body reads it: once, before the loop."""
        state = self.state
        loop, i, times, open_loops = state.captures[inner]
        moves = state.captured_moves.setdefault(loop, {})
        if (inner, target) in moves or target == state.shardings[inner]:
            return
        outer, source = loop.inputs[i], state.shardings[inner]
        steps = self.conversion(inner, source, through)
        steps += self.conversion(inner, through, target)
        moves[inner, target] = i, steps
        # An outer loop that captures it too moves it before that one, and so on.
        if outer in state.captures and source == state.shardings[outer]:
            self.move_capture(outer, through, target)
        else:
            with state.in_open_loops(open_loops):
                self.record_new_moves(loop, outer, steps, times)
        state.note_move((inner, target), (state.value_of(outer), target), [])

    def place_result(
        self,
        op: Op,
        tensor: Tensor,
        natural: Sharding,
        final: Sharding,
        times: int,
        reduced: Sequence[Sequence[str]] = (),
    ) -> None:
        """Decide the sharding of an op's result: as the op makes it, and as readers find it."""
        state, uses = self.state, self.uses
        if natural.partial:
            adds = op.reduction in ("", "add")
            state.name_sum(tensor, op, op.inputs if adds and not op.bodies else ())
            # A single reader may add to partial sums, or want them scattered: they stay partial.
            single = adds and uses.count_uses(tensor) == 1 and tensor not in uses.final
            late = single or (adds and uses.shrinks_later(tensor))
            idle = [axis for axis in natural.partial if axis not in final.used]
            final = final.with_partial(idle if late else ())
            pooled = self.find_pool(tensor, natural) is not None
            if single and (pooled or self.joins_sums(tensor)):
                final = natural
        if not uses.count_uses(tensor) and tensor not in uses.final:
            final, reduced = natural, ()  # one of several results, which nothing reads
        steps = self.conversion(tensor, natural, final)
        if self.take_slices(op, tensor, steps[:1], "ReduceScatter", times):
            natural, steps = steps[0].result, steps[1:]
        state.natural[tensor], state.shardings[tensor] = natural, final
        state.moves[tensor] = steps
        elements = natural.local_elements(tensor.shape, self.mesh)
        for axes in reduced:  # groups of axes along which XLA itself adds up the result
            scattered = bool(steps) and steps[0].kind == "Slice" and {*steps[0].axes} == {*axes}
            kind = "ReduceScatter" if scattered else "AllReduce"
            order = steps[0].axes if scattered else tuple(axes)
            sum_up = Transfer(kind, order, natural, elements)
            facts = (op, tensor, sum_up, times)
            self.record_collective(*facts, dtype=op.summed_in, reduction=op.reduction)
        self.record_moves(op, tensor, steps, times)
        primal = self.planned_form(tensor.primal)
        if primal is not None:
            rests = primal in state.resting
        else:
            rests = self.rests(op) and not op.states_place and not op.adds_operands
        if rests:
            state.resting.add(tensor)

    def find_pool(self, tensor: Tensor, natural: Sharding) -> Tensor | None:
        """Return what readers add partial sums up to, if it and what they weigh with are few."""
        # Of rows that a lookup found in a split table: those of a bag, weighed or masked, are one.
        first, names, needed = tensor, {*tensor.shape.names}, 0
        most = first.shape.elements
        while True:
            reader = self.uses.sole_reader(tensor)
            if reader is None or len(reader.outputs) != 1:
                return None
            if reader.same_value and not reader.late_sums:  # a cast to a narrower dtype
                return None
            i = next(i for i, x in enumerate(reader.inputs) if x is tensor)
            group = next((group for group in reader.linear_in if i in group), ())
            zero = all(j == i or self.uses.producers[reader.inputs[j]].zero for j in group)
            others = [x for j, x in enumerate(reader.inputs) if j not in group]
            # Each element is used once: devices do with all of a tensor what each did with a part.
            if not group or not zero or any({*x.shape.names} - names for x in others):
                return None
            if not reader.takes_padding and not natural.divides(tensor.shape, self.mesh):
                return None
            needed += sum(x.shape.elements for x in others)
            tensor = reader.output
            if reader.sums and reader.late_sums:
                reduced = reader.placement().reduced
                left = tensor.shape.elements + needed
                few = 2 * left <= most and left * tensor.itemsize < most * first.itemsize
                return None if any(map(natural.axes, reduced)) or not few else tensor
            if not reader.elementwise or tensor.shape.elements != most:
                return None

    def joins_sums(self, tensor: Tensor) -> bool:
        """Return whether what a tensor is added to may have other partial sums."""
        # x + attention(x) + feed_forward(x): what is not planned yet may be a partial sum, too.
        known, state = self.state.shardings, self.state
        while True:
            reader = self.uses.sole_reader(tensor)
            if reader is None or reader.same_value or not (reader.elementwise and reader.additive):
                return False
            others = [x for x in reader.inputs if x is not tensor]
            if any(x not in known or state.is_pending(x) for x in others):
                return True
            tensor = reader.output

    def slice_operand(self, op: Op, i: int, place: Sharding, times: int) -> Sharding:
        """Return where a product reads an operand: before an AllGather that it makes in slices.

        Shards then go round by CollectivePermutes, which send what the AllGather would.
        """
        tensor, state = op.inputs[i], self.state
        # What a loop captures is gathered once, before it, and constants are not moved at all.
        captured = state.find_capture(tensor) is not None
        if op.sliced == "none" or tensor in state.constants or captured:
            return place
        steps = self.find_way(tensor, state.shardings[tensor], place)
        shared = state.count_shared_moves(tensor, steps, state.moved)
        sliced = self.take_slices(op, tensor, steps[shared:][-1:], "AllGather", times)
        return steps[-1].source if sliced else place

    def take_slices(
        self, op: Op, tensor: Tensor, steps: Sequence[Transfer], kind: str, times: int
    ) -> bool:
        """Let shards go round a ring in place of a step, if the op, or the layout, asks for it."""
        if [one.kind for one in steps] != [kind] or op in self.state.in_slices:
            return False
        (step,) = steps
        if not self.is_sliced(op, step.elements * tensor.itemsize):
            return False
        places = step.source, step.result
        ring = find_ring([tensor.shape] * 2, places, self.mesh)
        assert ring is not None, "one dimension changes its axes"
        # Shards of shards begin elsewhere than slices of larger ones where sizes do not divide.
        twice = all(place.axes(ring.dim.name) for place in places)
        if twice and ring.dim.size % self.degree(places[ring.tensor], ring.dim.name):
            return False
        self.state.local_ops.add(op)
        self.state.in_slices.add(op)
        if op.sliced == "large":
            line = f"{op.source.user}: {tensor.label} goes round the devices in {ring.size} slices"
            size = human(step.elements * tensor.itemsize)
            self.state.decide(f"{line}: it would take {size} whole", tensor)
        elements = step.elements // ring.size
        sent = Transfer("CollectivePermute", ring.axes, Sharding(), elements)
        for way, often in ring.hops:
            self.record_collective(op, tensor, sent, times * often, way=ring.hop(way))
        return True

    def record_moves(self, op: Op, tensor: Tensor, steps: Sequence[Transfer], times: int) -> None:
        """Record the collectives among some moves."""
        for step in steps:
            if step.kind not in ("Slice", "Alone"):
                owner, label, reduction = op, tensor.label, "add"
                if step.sums:  # it belongs to the op whose sum this is, whoever reads it
                    owner = self.state.sum_owners.get(tensor, op)
                    label = self.state.sum_names.get(tensor, label)
                    reduction = owner.reduction or "add"
                ends = (step.source, step.result)
                self.record_collective(
                    owner, tensor, step, times, label, way=ends, reduction=reduction
                )

    def record_collective(
        self,
        op: Op,
        tensor: Tensor,
        step: Transfer,
        times: int,
        label: str | None = None,
        dtype: str | None = None,
        way: Way = None,
        reduction: str = "add",
    ) -> None:
        """Record one collective; where nothing else is known, reductions add up."""
        dtype, mesh, names = dtype or tensor.dtype, self.mesh, self.uses.names
        ordered = tuple(axis for axis in mesh.axes if axis in step.axes)
        size = step.elements * BYTES.get(dtype, 1)
        host_bytes, slice_bytes = (
            count_crossing_bytes(step.kind, size, ordered, mesh, blocks, way)
            for blocks in (mesh.hosts, mesh.slices)
        )
        producer = self.uses.binders.get(tensor) or self.uses.producers.get(tensor)
        order, receivers = _order_devices(step, way)
        if step.kind not in REDUCING:
            reduction = ""
        elif dtype == "bool" and reduction == "add":
            reduction = "or"
        self.state.collectives.append(
            Collective(
                kind=step.kind,
                axes=ordered,
                elements=step.elements,
                dtype=dtype,
                bytes=size,
                times=times,
                tensor=label or tensor.label,
                op=names[op],
                phase=op.phase,
                source=op.source.user,
                devices=mesh.size(ordered),
                open_ended=self.state.open_loops > 0,
                scope=op.scope.rstrip("/"),
                producer=names[producer] if producer else "",
                times_outside=self.state.invariant.get(tensor, 0),
                hop=way if isinstance(way, Hop) else None,
                reduction=reduction,
                order=order,
                receivers=receivers,
                host_bytes=host_bytes,
                slice_bytes=slice_bytes,
            )
        )


def _order_devices(step: Transfer, way: Way) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the axes that number the devices of a transfer, where their order matters."""
    if step.kind in ORDERED:
        return step.axes, ()
    if not isinstance(way, tuple) or step.kind != "CollectivePermute":
        return (), ()
    # A shard goes from the device that has its number to the one that has it afterwards.
    before, after = (side.mapping for side in way)
    moved = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    senders, receivers = (
        tuple(axis for name in moved for axis in side.get(name, ())) for side in (before, after)
    )
    return senders, receivers
