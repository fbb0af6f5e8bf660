"""Pipelines whose loop holds both passes: a microbatch goes back as soon as its loss is known."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.differentiate import (
    body_vjp,
    mark_cotangent,
    repeat_ops,
    reverse_ops,
    zeros_like,
)
from namedmesh.ir.literal import fill
from namedmesh.ir.op import Body
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import current, trace_body
from namedmesh.ops.broadcast import broadcast, sum
from namedmesh.ops.constants import constant, zeros
from namedmesh.ops.constants import range as count
from namedmesh.ops.control import AnyHere, cond, match_structure
from namedmesh.ops.custom import custom_vjp
from namedmesh.ops.elementwise import cast
from namedmesh.ops.gather import gather
from namedmesh.ops.indexing import take
from namedmesh.ops.join import concat
from namedmesh.ops.logic import equal, where
from namedmesh.ops.pipeline_schedule import Schedule
from namedmesh.ops.scan import scan
from namedmesh.ops.shape import name_apart, rename, transpose
from namedmesh.ops.slices import dynamic_update, roll, shift
from namedmesh.ops.vmap import vmap
from namedmesh.ops.weight_gradients import part_body
from namedmesh.signature.nest import flatten, unflatten

Carry = dict[str, Any]
Parts = tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any, Any], Any]]


def run_both_passes(
    parts: Parts, x: Any, schedule: Schedule, rounds: Dimension | None, gather_once: bool
) -> Any:
    """Return the mean of the microbatches' losses, whose gradients the same loop computes."""
    trace = current("pipeline")
    phase = trace.phase
    passes = BothPasses(parts, x, schedule, rounds)
    results, tensors, gradients = passes.run(gather_once)
    trace.phase = phase  # what follows is not an update yet: nm.grad is still to come

    def backward(saved: list[Tensor], dy: Any) -> list[Tensor]:
        (scale, *_) = flatten(dy)
        return [one * cast(scale, one.dtype) for one in saved]

    return custom_vjp(lambda *_: (results, gradients), backward)(*tensors)


class BothPasses:
    """The parts of a pipeline, and the units of work that a tick is made of."""

    def __init__(self, parts: Parts, x: Any, schedule: Schedule, rounds: Dimension | None):
        first, stage, last = parts
        stages, batches = schedule.stages, schedule.batches
        self.schedule, self.rounds, self.rows = schedule, rounds, flatten(x)
        self.device = count(stages)
        specs = [(row.shape.without(batches.name), row.dtype, row.label) for row in self.rows]
        self.first, entry = trace_body(lambda *row: first(unflatten(x, iter(row))), specs)
        self.enters = [(y.shape, y.dtype, y.label) for y in self.first.outputs]
        self.state = [(Shape([stages, *y.shape]), y.dtype, y.label) for y in self.first.outputs]
        size = len(self.state)

        def work(*values: Tensor) -> list[Tensor]:
            taken = unflatten(entry, iter(values))
            made = vmap(stage, stages, stack=True)(taken)
            return match_structure("pipeline: a stage's result", made, taken, "what it takes")

        def end(*values: Tensor) -> Any:
            return last(unflatten(entry, iter(values[:size])), unflatten(x, iter(values[size:])))

        self.stage, _ = trace_body(work, self.state, rounds)
        self.last, self.structure = trace_body(end, [*self.enters, *specs])
        self.check_loss()
        self.floating = [i for i, y in enumerate(self.first.outputs) if y.floating]
        bodies = self.first, self.stage, self.last
        captured = dict.fromkeys(tensor for body in bodies for tensor in body.captured)
        self.targets = [tensor for tensor in captured if tensor.floating]
        self.stacks = [one for one in self.stage.stacked if one.floating]
        blank = (zeros(shape, dtype) for shape, dtype, _ in self.state)
        self.slot = name_apart(Dimension("slot", schedule.slots), "kept", *blank)
        self.apart, self.saved = schedule.kind == "zero_bubble", list[Tensor]()
        self.pull = self.trace_gradients()
        self.apart = self.waiting < len(self.wanted)
        saved = self.part_gradients() if self.apart else 0
        schedule.note(sum_sizes(self.first.outputs), saved)

    def check_loss(self) -> None:
        """Raise unless the loss is a scalar, alone or the first of a pair."""
        pair = isinstance(self.structure, tuple) and len(self.structure) == 2
        value = self.structure[0] if pair else self.structure
        loss = self.last.outputs[0] if len(flatten(value)) == 1 else None
        if loss is None or len(loss.shape) or not loss.floating:
            raise NamedMeshError(
                "pipeline: the loss of a microbatch is not a floating point scalar",
                *map(str, self.last.outputs),
                fix="return a scalar from loss=, e.g. nm.mean(loss), or (scalar, anything else)",
            )

    def trace_gradients(self) -> Body:
        """Trace the derivative of all stages: of their input, of weights, and of what they read."""
        arguments = self.stage.arguments
        wanted = [i for i, one in enumerate(arguments) if one.floating]
        # Gradients of weights, which stages have of their own, last: they can wait.
        waits = lambda i: i >= len(self.state) and self.schedule.stages in arguments[i].shape
        self.wanted = sorted(wanted, key=waits)
        later = [i for i in wanted if waits(i)] if self.apart else []
        self.waiting = len(wanted) - len(later)  # the first of those that wait
        ends = [self.stage.outputs[i] for i in self.floating]
        specs = [(one.shape, one.dtype, one.label) for one in (*arguments, *ends)]

        def pull(*values: Tensor) -> list[Tensor]:
            dy: list[Any] = [None] * len(self.state)
            for i, one in zip(self.floating, values[len(arguments) :], strict=True):
                dy[i] = one
            return body_vjp(self.stage, values[: len(arguments)], dy, self.wanted)

        return trace_body(pull, specs)[0]

    def part_gradients(self) -> int:
        """Part the derivative from that of weights; return the bytes that a stage saves for it."""
        stages, count = self.schedule.stages, len(self.stage.arguments)
        self.pull, self.late = part_body(self.pull, self.waiting, self.slot.name, stages)
        read = set[int]().union(*self.late.read_arguments())
        self.needed = sorted(read.difference(range(len(self.state), count)))
        self.saved = [self.late.arguments[i] for i in self.needed]
        return sum_sizes(self.saved) // stages.size

    def run_where(
        self, exists: Tensor, body: Body, read: Callable[[], list[Any]], like: Tensor
    ) -> list[Tensor]:
        """Run a body on the devices that have a unit for it; in some schedules others skip it."""
        work = lambda: repeat_body(body, read())
        if not self.apart:
            return work()
        skip = lambda: [zeros(one.shape, one.dtype) for one in body.outputs]
        return cond(AnyHere((exists, like)).output, work, skip)

    def read_rows(self, batch: Tensor) -> list[Tensor]:
        """Return the rows of a microbatch, zeros where there is none."""
        return [take(row, self.schedule.batches, batch) for row in bring_all(self.rows)]

    def read_weights(self, number: Tensor) -> list[Tensor]:
        """Return the weights of the round that each device is in, and what else stages read."""
        weights = []
        for weight, row in zip(
            bring_all(self.stage.stacked), self.stage.inputs[len(self.state) :], strict=True
        ):
            assert self.rounds is not None, "weights of one round are captured"
            weights.append(transpose(gather(weight, number, self.rounds), row.shape))
        return [*weights, *bring_all(self.stage.captured)]

    def start(self) -> Carry:
        """Make what the first tick reads."""
        return {
            "y": [zeros(shape, dtype) for shape, dtype, _ in self.state],
            "dx": [zeros(self.state[i][0], self.state[i][1]) for i in self.floating],
            "kept": [zeros([self.slot, *shape], dtype) for shape, dtype, _ in self.state],
            "sum": [mark_cotangent(zeros_like(one), one) for one in self.targets],
            # The order of dimensions in which terms are made, so that each is only added.
            "rounds": [zeros(self.put_last(one), one.dtype) for one in self.stacks],
            "loss": zeros([], self.last.outputs[0].dtype),
            "saved": [zeros([self.slot, *one.shape], one.dtype) for one in self.saved],
        }  # fmt: skip

    def put_last(self, weight: Tensor) -> Shape:
        """Return the shape of weights with the rounds as the last dimension."""
        assert self.rounds is not None
        return Shape([*weight.shape.without(self.rounds.name), self.rounds])

    def move(self, x: Tensor, by: int) -> Tensor:
        """Move what stages made on to those after them, or back."""
        if self.schedule.stages.size == 1:
            return x
        return (shift if self.rounds is None else roll)(x, self.schedule.stages, by)

    def choose(self, device: int, number: Tensor) -> Tensor:
        """Return which device is the first or last, in the round that it begins or ends."""
        here = equal(self.device, device)
        return here if self.rounds is None else here & equal(number, 0)

    def forward(self, carry: Carry, tick: Tensor) -> Carry:
        """Do a forward unit on every device."""
        unit = tick - self.device
        number = self.schedule.round_of(unit)
        rows = self.read_rows(self.schedule.batch_of(tick))
        new = repeat_body(self.first, [*rows, *bring_all(self.first.captured)])
        moved = [self.move(old, 1) for old in carry["y"]]
        taken = choose_each(self.choose(0, number), new, moved)
        kept = [self.keep(old, x, tick) for old, x in zip(carry["kept"], taken, strict=True)]
        read = lambda: [*taken, *self.read_weights(number)]
        y = self.run_where(self.schedule.exists(unit), self.stage, read, taken[0])
        return {**carry, "y": y, "kept": kept}

    def keep(self, old: Tensor, x: Tensor, tick: Tensor) -> Tensor:
        """Write what this tick is to remember over what is needed no more."""
        if self.slot.size == 1:
            return broadcast(x, old.shape)
        row = broadcast(x, [self.slot.resized(1), *x.shape])
        return dynamic_update(old, row, tick % self.slot.size, self.slot)

    def read_slots(self, kept: Tensor, slot: Tensor) -> Tensor:
        """Return what each device kept in a slot of its own."""
        return transpose(gather(kept, slot, self.slot), kept.shape.without(self.slot.name))

    def end(self, carry: Carry, tick: Tensor) -> tuple[Carry, list[list[Tensor]], list[Tensor]]:
        """Compute the loss of the microbatch that leaves the last stage, and its derivative.

        Returns the carry, the rest of what the loss returns with the gradients of its row, and the
        cotangents of the last stage.
        """
        schedule, trace = self.schedule, current("pipeline")
        unit = tick - schedule.warm_up
        ends = [take(y, schedule.stages, -1) for y in carry["y"]]
        rows = self.read_rows(schedule.batch_of(unit))
        outside = [*ends, *rows, *bring_all(self.last.captured)]
        wanted = [i for i, one in enumerate(outside) if one.floating]

        def compute() -> list[Tensor]:
            values = bring_all(outside)
            ops, known = repeat_ops(self.last, values)
            value, *rest = (known[one] for one in self.last.outputs)
            inner = current("pipeline")
            with inner.at(inner.source, "backward", derived=True):
                share = fill(Shape(), 1.0 / schedule.batches.size, value.dtype, "full")
                found = reverse_ops(ops, {value: share}, [values[i] for i in wanted])
                zero = {values[i]: zeros_like(values[i]) for i in wanted if values[i] not in found}
            return [value, *rest, *({**found, **zero}[values[i]] for i in wanted)]

        def skip() -> list[Tensor]:
            results = (*self.last.outputs, *(outside[i] for i in wanted))
            return [zeros(one.shape, one.dtype) for one in results]

        if self.rounds is None:
            results = compute()
        else:  # the loss of a microbatch is computed in one of its rounds
            ends_now = equal(schedule.round_of(unit), 0) & schedule.exists(unit)
            results = cond(ends_now, compute, skip)
        count = len(self.last.outputs)
        value, *rest = results[:count]
        found = dict(zip(wanted, results[count:], strict=True))
        with trace.at(trace.source, "backward"):
            sums = self.add(carry["sum"], self.last, found)
        loss = carry["loss"] + value * (1.0 / schedule.batches.size)
        size = len(ends)
        more = [found[i] for i in wanted if size <= i < size + len(rows)]
        dlast = [found[i] for i in self.floating]
        return {**carry, "sum": sums, "loss": loss}, [rest, more], dlast

    def backward(
        self, carry: Carry, tick: Tensor, dlast: Sequence[Tensor] | None
    ) -> tuple[Carry, list[Tensor]]:
        """Do a backward unit on every device; return the gradients of the first one's rows too."""
        schedule = self.schedule
        unit = schedule.backward_unit(tick, self.device)
        after = schedule.round_of(unit)
        number = schedule.rounds - 1 - after
        dy = [self.move(old, -1) for old in carry["dx"]]
        if dlast is not None:
            dy = choose_each(self.choose(schedule.stages.size - 1, after), dlast, dy)
        # Idle devices send zeros back, of which all gradients are zero.
        exists = schedule.exists(unit)
        dy = [where(exists, one, 0.0) for one in dy]
        slot = schedule.forward_tick(unit, self.device) % self.slot.size
        x = [self.read_slots(old, slot) for old in carry["kept"]]
        read = lambda: [*x, *self.read_weights(number), *dy]
        results = self.run_where(exists, self.pull, read, dy[0])
        found = dict(zip(self.wanted, results[: self.waiting], strict=False))
        if self.apart:
            values = [*read(), *results[self.waiting :]]
            kept = zip(carry["saved"], self.needed, strict=True)
            carry |= {"saved": [self.keep(old, values[i], tick) for old, i in kept]}
        sums = self.add(carry["sum"], self.stage, found)
        rounds = list(carry["rounds"])
        # The arguments of all stages that are weights of the round that a device is in.
        weights = [i for i in self.wanted if len(self.state) <= i < len(self.stage.inputs)]
        for i, k in enumerate(weights):
            assert self.rounds is not None
            rounds[i] += where(equal(number, count(self.rounds)), found[k], 0.0)
        dx = [found[i] for i in self.floating]
        starts = self.choose(0, number) & exists
        new: list[Any] = [None] * len(self.state)
        for i, one in zip(self.floating, dx, strict=True):
            new[i] = sum(where(starts, one, 0.0), schedule.stages)
        rows = self.read_rows(schedule.batch_of(schedule.backward_unit(tick, 0)))
        values = [*rows, *bring_all(self.first.captured)]
        wanted = [i for i, one in enumerate(values) if one.floating]
        found = dict(zip(wanted, body_vjp(self.first, values, new, wanted), strict=True))
        sums = self.add(sums, self.first, found)
        following = {"dx": dx, "sum": sums, "rounds": rounds}
        return {**carry, **following}, [found[i] for i in wanted if i < len(rows)]

    def add_weights(self, carry: Carry, units: Tensor) -> Carry:
        """Add the gradients of weights of a unit of every device that went back before."""
        exists = units >= 0
        slot = self.schedule.backward_tick(units, self.device) % self.slot.size

        def read() -> list[Any]:
            values: list[Any] = [None] * len(self.late.arguments)
            values[len(self.state) : len(self.stage.arguments)] = self.read_weights(units)
            for i, old in zip(self.needed, carry["saved"], strict=True):
                values[i] = self.read_slots(old, slot)
            return values

        results = self.run_where(exists, self.late, read, carry["y"][0])
        terms = [transpose(where(exists, one, 0.0), one.shape) for one in results]
        found = dict(zip(self.wanted[self.waiting :], terms, strict=True))
        return {**carry, "sum": self.add(carry["sum"], self.stage, found)}

    def add(self, sums: Sequence[Tensor], body: Body, found: dict[int, Tensor]) -> list[Tensor]:
        """Add the gradients of what a body captures to their sums over all microbatches."""
        more = {tensor: found.get(i) for i, tensor in enumerate(body.captured, len(body.inputs))}
        pairs = [(old, more.get(one)) for old, one in zip(sums, self.targets, strict=True)]
        return [old if new is None else old + new for old, new in pairs]

    def run(self, gather_once: bool) -> tuple[Any, list[Tensor], list[Tensor]]:
        """Record all ticks; return the results, and tensors with their gradients."""
        schedule, name = self.schedule, self.schedule.stages.name
        carry, start = self.start(), schedule.warm_up
        main = Dimension(f"{name}_tick", schedule.ticks - start)
        ticks = main.resized(schedule.ticks)

        def warm_up(carry: Carry, row: list[Tensor]) -> tuple[Carry, None]:
            return self.forward(carry, row[0]), None

        def work(carry: Carry, row: list[Tensor]) -> tuple[Carry, Any]:
            trace, tick = current("pipeline"), row[0] + start
            carry, rest, dlast = self.end(self.forward(carry, tick), tick)
            with trace.at(trace.source, "backward"):
                carry, rows = self.backward(carry, tick, dlast)
                for one in row[1:2]:
                    carry = self.add_weights(carry, one)
            return carry, [rows, rest]

        def cool_down(carry: Carry, row: list[Tensor]) -> tuple[Carry, Any]:
            trace = current("pipeline")
            with trace.at(trace.source, "backward"):
                carry, rows = self.backward(carry, row[0] + schedule.ticks, None)
                for one in row[1:]:
                    carry = self.add_weights(carry, one)
            return carry, rows

        def loop(function: Any, carry: Carry, over: Dimension, begin: int) -> tuple[Carry, Any]:
            rows = [count(over)]
            if self.apart:
                at = itertools.product(range(begin, begin + over.size), range(schedule.stages.size))
                table = np.array([schedule.weight_units(*one) for one in at]).T
                shape = Shape([over, schedule.stages])
                rows += [constant(one.reshape(shape.sizes).tolist(), shape) for one in table]
            return scan(function, carry, rows, over=over, gather_once=gather_once)

        if start:
            carry, _ = loop(warm_up, carry, main.resized(start), 0)
        carry, (rows, (rest, more)) = loop(work, carry, main, start)
        if start:
            carry, later = loop(cool_down, carry, main.resized(start), schedule.ticks)
            rows = [concat(both, main.name) for both in zip(rows, later, strict=True)]
        first = schedule.stages.size - 1
        order = [first + unit for unit in schedule.units_of_batches(schedule.rounds - 1)]
        at_end = schedule.units_of_batches(0)
        rest, more = ([self.select(one, main, at_end) for one in some] for some in (rest, more))
        tensors = [row for row in self.rows if row.floating]
        terms = zip(tensors, rows, more, strict=True)
        gradients = [
            transpose(self.select(dx, ticks, order) + other, x.shape) for x, dx, other in terms
        ]
        pairs = zip(carry["rounds"], self.stacks, strict=True)
        gradients += [transpose(total, weight.shape) for total, weight in pairs]
        tensors += [*self.stacks, *self.targets]
        results = unflatten(self.structure, iter([carry["loss"], *rest]))
        return results, tensors, [*gradients, *carry["sum"]]

    def select(self, x: Tensor, ticks: Dimension, order: Sequence[int]) -> Tensor:
        """Return the rows of some ticks as those of the microbatches."""
        if list(order) == list(range(ticks.size)):
            return rename(x, ticks, self.schedule.batches)
        return gather(x, constant(list(order), [self.schedule.batches]), ticks)


def choose_each(mask: Tensor, new: Sequence[Tensor], old: Sequence[Tensor]) -> list[Tensor]:
    """Replace some devices' tensors by others that all devices have."""
    return [transpose(where(mask, x, y), y.shape) for x, y in zip(new, old, strict=True)]


def repeat_body(body: Body, values: Sequence[Tensor]) -> list[Tensor]:
    """Record a body on other values; return its results."""
    _, known = repeat_ops(body, values)
    return [known[one] for one in body.outputs]


def sum_sizes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of some tensors."""
    return int(np.sum([one.shape.elements * one.itemsize for one in tensors]))


def bring_all(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return what stands for tensors of enclosing traces here."""
    return list(map(current("pipeline").bring, tensors))
