"""The lowering of loops over a dimension: one while loop, or one iteration after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from namedmesh.dims.dimension import Dimension
from namedmesh.ir.context import Context
from namedmesh.ir.op import Body
from namedmesh.ir.tensor import Tensor


class ScanLike(Protocol):
    """What the lowering of a loop reads of its op."""

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The first carry, the tensors read along the dimension, and what the body captures."""
        ...

    @property
    def body(self) -> Body:
        """One iteration."""
        ...

    @property
    def over(self) -> Dimension:
        """The dimension."""
        ...

    @property
    def carries(self) -> int:
        """How many inputs and results are carried from turn to iteration."""
        ...

    @property
    def stacked(self) -> int:
        """How many inputs are read along the dimension."""
        ...

    @property
    def histories(self) -> tuple[Tensor, ...]:
        """The results that hold a value for every iteration."""
        ...

    @property
    def overwrites(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """Rows of the body that may be written where others, of its inputs, were read."""
        ...

    @property
    def reverse(self) -> bool:
        """Whether the last iteration comes first."""
        ...


def lower_loop(loop: ScanLike, context: Context, values: Sequence[Any]) -> list[Any]:
    """Lower a scan as one while loop over buffers: its size does not depend on the length."""
    tf, size = context.tf, loop.over.size
    carries, stacked = loop.carries, loop.stacked
    first, xs = values[:carries], values[carries : carries + stacked]
    captured = values[carries + stacked :]
    positions = row_positions(loop)
    shared = find_shared_buffers(loop, context)

    def step(i: Any, *carried: Any) -> list[Any]:
        index = i
        if loop.reverse:
            index = context.compute(("from the end", size), lambda i: size - 1 - i, i)
        slices = []
        for k, (x, at) in enumerate(zip(xs, positions, strict=True), carries):
            x = carried[shared[k]] if k in shared else x
            read = lambda x, index, at=at: read_row(tf, x, at, index)
            slices.append(context.compute(("read", at), read, context.hold(x, loop, k), index))
        results = context.run(loop.body, [*carried[:carries], *slices, *captured])
        written = []
        buffers = zip(carried[carries:], results[carries:], loop.histories, strict=True)
        for buffer, value, tensor in buffers:
            at = len(context.part_sizes(tensor))
            write = lambda buffer, value, index, at=at: write_row(context, buffer, value, at, index)
            buffer = context.place(buffer, tensor)
            buffer = context.compute(("write", at), write, buffer, value, index)
            written.append(context.place(buffer, tensor))
        following = context.compute("count", lambda i: i + 1, i)
        return [following, *results[:carries], *written]

    taken = {carried: values[k] for k, carried in shared.items()}
    start = context.compute("start", lambda: tf.constant(0))
    buffers = [
        taken[i] if i in taken else make_buffer(context, tensor)
        for i, tensor in enumerate(loop.histories, carries)
    ]
    _, *results = context.while_loop(
        lambda i, *_: context.compute(("is below", size), lambda i: i < size, i),
        step,
        [start, *first, *buffers],
    )
    return results


def find_shared_buffers(loop: ScanLike, context: Context) -> dict[int, int]:
    """Find histories that take the buffers of what is read along the loop.

    Every iteration reads its row before it writes it, and no other iteration reads it.
    """
    positions = row_positions(loop)
    results = {tensor: i for i, tensor in enumerate(loop.body.outputs)}
    inputs = {tensor: i for i, tensor in enumerate(loop.body.inputs)}
    shared = {}
    for written, read in loop.overwrites:
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


def unroll_loop(loop: ScanLike, context: Context, values: Sequence[Any]) -> list[Any]:
    """Run a scan iteration by iteration and stacks what each makes."""
    tf = context.tf
    carry, xs = list(values[: loop.carries]), values[loop.carries : loop.carries + loop.stacked]
    captured = values[loop.carries + loop.stacked :]
    positions = row_positions(loop)
    iterations = []
    order = range(loop.over.size)
    for index in reversed(order) if loop.reverse else order:
        slices = [read_row(tf, x, at, index) for x, at in zip(xs, positions, strict=True)]
        results = context.run(loop.body, [*carry, *slices, *captured])
        carry = results[: loop.carries]
        iterations.append(results[loop.carries :])
    if loop.reverse:
        iterations.reverse()
    return [*carry, *(tf.stack(column) for column in zip(*iterations, strict=True))]


def row_positions(loop: ScanLike) -> list[int]:
    """Return where the loop's dimension stands in each tensor that is read along it."""
    rows = loop.inputs[loop.carries : loop.carries + loop.stacked]
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
    tf = context.tf
    begin = slice_begin(tf, index, buffer.shape.rank, at)
    return context.xla.dynamic_update_slice(buffer, tf.expand_dims(value, at), begin)
