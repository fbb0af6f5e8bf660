"""Lowering of loops along a dimension: one while loop over buffers, or iteration by iteration."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from namedmesh.ir.context import Context
from namedmesh.ir.op import UnrolledLoop
from namedmesh.ir.tensor import Tensor

Overwrites = Sequence[tuple[Tensor, Tensor]]  # rows made, and those read whose places they take


class _State(NamedTuple):
    """The values that an iteration hands to the next one."""

    carry: Sequence[Any]
    buffers: Sequence[Any]  # of the histories
    ahead: Sequence[Any] = ()  # what was gathered for the next iteration
    waiting: Sequence[Any] = ()  # sums that the next iteration adds up


class LoopLowering:
    """Lowers a loop as one while loop over buffers: its size does not depend on the length.

    A loop that gathers ahead has its first gathers before it and its last iteration behind it; one
    that adds up late has its first iteration before it and its last sums behind it.
    """

    def __init__(
        self, loop: UnrolledLoop, context: Context, values: Sequence[Any], overwrites: Overwrites
    ):
        self.loop, self.context, self.size = loop, context, loop.over.size
        count = len(loop.body.inputs)
        self.first, self.xs = values[: loop.carries], values[loop.carries : count]
        self.captured = values[count:]
        self.shared = find_shared_buffers(loop, context, overwrites)
        self.gathers, self.sums, _, self.late = context.pipeline(loop)

    def run(self) -> list[Any]:
        """Run all iterations; return the last carries and the histories."""
        context, size = self.context, self.size
        shared = {result: self.xs[k - self.loop.carries] for k, result in self.shared.items()}
        buffers = [
            shared[i] if i in shared else make_buffer(context, tensor)
            for i, tensor in enumerate(self.loop.histories, self.loop.carries)
        ]
        state = _State(self.first, buffers)
        begin, end = int(bool(self.sums)), size - int(bool(self.gathers))
        zero = self.number(0)
        if self.gathers or self.sums:
            zero = context.stay_apart(zero, self.first, self.xs)
        if self.gathers:
            ahead = context.gather_ahead(self.loop, self.read(self.find_row(zero), buffers))
            state = state._replace(ahead=ahead)
        if self.sums:
            state = self.run_iteration(zero, state, begins=True)
        if end - begin == 1 < size:  # XLA would write it out, too
            state = self.run_iteration(self.add(zero, begin), state)
        elif begin < end:
            state = self.repeat(begin, end, state)
        if self.gathers:
            state = self.run_iteration(self.add(zero, size - 1), state, ends=True)
        if self.sums:
            state = state._replace(buffers=self.finish(self.add(zero, size - 1), state))
        return [*state.carry, *state.buffers]

    def repeat(self, begin: int, end: int, state: _State) -> _State:
        """Repeat some iterations in a while loop."""
        compute = self.context.compute

        def split(values: Iterable[Any]) -> _State:
            rest = iter(values)
            return _State(*([*itertools.islice(rest, len(part))] for part in state))

        def step(i: Any, *carried: Any) -> list[Any]:
            following = self.run_iteration(i, split(carried))
            return [self.add(i, 1), *itertools.chain(*following)]

        _, *results = self.context.while_loop(
            lambda i, *_: compute(("is below", end), lambda i: i < end, i),
            step,
            [self.number(begin), *itertools.chain(*state)],
        )
        return split(results)

    def run_iteration(
        self, i: Any, state: _State, begins: bool = False, ends: bool = False
    ) -> _State:
        """Run an iteration, with what is gathered for the next and added up of the one before."""
        context, loop, buffers = self.context, self.loop, state.buffers
        ahead: Sequence[Any] = []
        if self.gathers and not ends:
            following = self.find_row(self.add(i, 1))
            ahead = context.gather_ahead(loop, self.read(following, buffers))
        if self.sums and not begins:
            buffers = self.finish(self.add(i, -1), state)
        row = self.find_row(i)
        operands = [*state.carry, *self.read(row, buffers)]
        results, waiting = context.run_ahead(loop, operands, state.ahead)
        early = [k for k in range(loop.carries, len(loop.outputs)) if k not in self.late]
        buffers = self.write(row, buffers, early, results[loop.carries :])
        return _State(results[: loop.carries], buffers, ahead, waiting)

    def finish(self, i: Any, state: _State) -> list[Any]:
        """Add up what waits for it since an iteration; return the buffers with the results."""
        row = self.find_row(i)
        values = self.context.finish_late(self.loop, self.read(row, state.buffers), state.waiting)
        return self.write(row, state.buffers, self.late, values)

    def number(self, i: int) -> Any:
        """Make a number."""
        return self.context.compute(("number", i), lambda: self.context.tf.constant(i))

    def add(self, i: Any, more: int) -> Any:
        """Return the number of another iteration."""
        return self.context.compute(("count", more), lambda i: i + more, i)

    def find_row(self, i: Any) -> Any:
        """Return the number of an iteration's row."""
        if not self.loop.reverse:
            return i
        size = self.size
        return self.context.compute(("from the end", size), lambda i: size - 1 - i, i)

    def read(self, row: Any, buffers: Sequence[Any]) -> list[Any]:
        """Read the rows of an iteration; return them and what is captured."""
        context, loop, slices = self.context, self.loop, list[Any]()
        for k, (x, at) in enumerate(zip(self.xs, row_positions(loop), strict=True), loop.carries):
            if k in self.shared:
                x = buffers[self.shared[k] - loop.carries]
            else:
                at += context.count_parts(loop, k)
            read = lambda x, row, at=at: read_row(context.tf, x, at, row)
            slices.append(context.compute(("read", at), read, context.hold(x, loop, k), row))
        return [*slices, *self.captured]

    def write(
        self, row: Any, buffers: Sequence[Any], results: Iterable[int], values: Sequence[Any]
    ) -> list[Any]:
        """Write rows of some results; return all buffers."""
        context, loop, written = self.context, self.loop, [*buffers]
        for k, value in zip(results, values, strict=True):
            tensor = loop.outputs[k]
            at = len(context.part_sizes(tensor))
            write = lambda buffer, value, row, at=at: write_row(context, buffer, value, at, row)
            buffer = context.place(buffers[k - loop.carries], tensor)
            buffer = context.compute(("write", at), write, buffer, value, row)
            written[k - loop.carries] = context.place(buffer, tensor)
        return written


def run_iterations(loop: UnrolledLoop, context: Context, values: Sequence[Any]) -> list[Any]:
    """Run a loop iteration by iteration and stack what each makes."""
    tf = context.tf
    count = len(loop.body.inputs)
    carry, xs, captured = values[: loop.carries], values[loop.carries : count], values[count:]
    positions = row_positions(loop)
    made: dict[int, list[Any]] = {}
    order = range(loop.over.size)
    for index in reversed(order) if loop.reverse else order:
        slices = [read_row(tf, x, at, index) for x, at in zip(xs, positions, strict=True)]
        results = context.run(loop.body, [*carry, *slices, *captured])
        carry, made[index] = results[: loop.carries], results[loop.carries :]
    columns = zip(*(made[index] for index in order), strict=True)
    return [*carry, *(tf.stack(column) for column in columns)]


def find_shared_buffers(
    loop: UnrolledLoop, context: Context, overwrites: Overwrites
) -> dict[int, int]:
    """Find histories that take the buffers of what is read along the loop."""
    positions = row_positions(loop)
    results = {tensor: i for i, tensor in enumerate(loop.body.outputs)}
    inputs = {tensor: i for i, tensor in enumerate(loop.body.inputs)}
    shared = {}
    for written, read in overwrites:
        if written in results and read in inputs:
            result, k = results[written], inputs[read]
            first = positions[k - loop.carries] == 0
            if first and context.lies_alike(loop.histories[result - loop.carries], loop, k):
                shared[k] = result
    return shared


def make_buffer(context: Context, tensor: Tensor) -> Any:
    """Make the buffer that holds a value for every iteration."""
    sizes = (*context.part_sizes(tensor), *context.sizes(tensor.shape))
    zeros = lambda: context.tf.zeros(sizes, context.dtype(tensor.dtype))
    return context.place(context.compute(("buffer", sizes, tensor.dtype), zeros), tensor)


def row_positions(loop: UnrolledLoop) -> list[int]:
    """Return where the loop's dimension stands in each tensor that is read along it."""
    rows = loop.inputs[loop.carries : len(loop.body.inputs)]
    return [x.shape.position(loop.over.name) for x in rows]


def slice_begin(tf: Any, index: Any, rank: int, at: int) -> Any:
    """Return where a slice along one dimension starts."""
    return tf.stack([index if i == at else 0 for i in range(rank)])


def read_row(tf: Any, x: Any, at: int, index: Any) -> Any:
    """Read one slice along a dimension, that dimension removed."""
    sizes = x.shape.as_list()
    begin = slice_begin(tf, index, len(sizes), at)
    shard = tf.slice(x, begin, [1 if i == at else size for i, size in enumerate(sizes)])
    return tf.squeeze(shard, at)


def write_row(context: Context, buffer: Any, value: Any, at: int, index: Any) -> Any:
    """Write one slice along a dimension, which the value lacks."""
    begin = slice_begin(context.tf, index, buffer.shape.rank, at)
    return context.xla.dynamic_update_slice(buffer, context.tf.expand_dims(value, at), begin)
