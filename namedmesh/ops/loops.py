"""How loops over a dimension are lowered: compiled as one while loop, evaluated turn by turn."""

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
        """One turn."""
        ...

    @property
    def over(self) -> Dimension:
        """The dimension."""
        ...

    @property
    def carries(self) -> int:
        """How many inputs and results are carried from turn to turn."""
        ...

    @property
    def stacked(self) -> int:
        """How many inputs are read along the dimension."""
        ...

    @property
    def histories(self) -> tuple[Tensor, ...]:
        """The results that hold a value for every turn."""
        ...

    @property
    def reverse(self) -> bool:
        """Whether the last turn comes first."""
        ...


def lower_loop(loop: ScanLike, context: Context, values: Sequence[Any]) -> list[Any]:
    """Lowers a scan as one while loop over buffers: its size does not depend on the length."""
    tf = context.tf
    carries, stacked = loop.carries, loop.stacked
    first, xs = values[:carries], values[carries : carries + stacked]
    captured = values[carries + stacked :]
    positions = row_positions(loop)
    buffers = [
        context.place(
            tf.zeros(
                [*context.part_sizes(tensor), *context.sizes(tensor.shape)],
                context.dtype(tensor.dtype),
            ),
            tensor,
        )
        for tensor in loop.histories
    ]

    def step(i: Any, carry: list[Any], buffers: list[Any]) -> tuple[Any, list[Any], list[Any]]:
        index = loop.over.size - 1 - i if loop.reverse else i
        rows = [context.hold(x, loop, i) for i, x in enumerate(xs, carries)]
        begins: dict[tuple[int, int], Any] = {}
        slices = [read_row(tf, x, at, index, begins) for x, at in zip(rows, positions, strict=True)]
        results = context.run(loop.body, [*carry, *slices, *captured])
        written = []
        for buffer, value, tensor in zip(buffers, results[carries:], loop.histories, strict=True):
            at = len(context.part_sizes(tensor))
            begin = slice_begin(tf, index, value.shape.rank + 1, at, begins)
            row = tf.expand_dims(value, at)
            buffer = context.xla.dynamic_update_slice(context.place(buffer, tensor), row, begin)
            written.append(context.place(buffer, tensor))
        return i + 1, results[:carries], written

    _, carry, buffers = tf.while_loop(
        lambda i, *_: i < loop.over.size,
        step,
        [tf.constant(0), list(first), buffers],
        parallel_iterations=1,
    )
    return [*carry, *buffers]


def unroll_loop(loop: ScanLike, context: Context, values: Sequence[Any]) -> list[Any]:
    """Runs a scan turn by turn and stacks what each makes."""
    tf = context.tf
    carry, xs = list(values[: loop.carries]), values[loop.carries : loop.carries + loop.stacked]
    captured = values[loop.carries + loop.stacked :]
    positions = row_positions(loop)
    turns = []
    order = range(loop.over.size)
    for index in reversed(order) if loop.reverse else order:
        slices = [read_row(tf, x, at, index, {}) for x, at in zip(xs, positions, strict=True)]
        results = context.run(loop.body, [*carry, *slices, *captured])
        carry = results[: loop.carries]
        turns.append(results[loop.carries :])
    if loop.reverse:
        turns.reverse()
    return [*carry, *(tf.stack(column) for column in zip(*turns, strict=True))]


def row_positions(loop: ScanLike) -> list[int]:
    """Returns where the loop's dimension stands in each tensor that is read along it."""
    rows = loop.inputs[loop.carries : loop.carries + loop.stacked]
    return [x.shape.position(loop.over.name) for x in rows]


def slice_begin(tf: Any, index: Any, rank: int, at: int, begins: dict[tuple[int, int], Any]) -> Any:
    """Returns the start of a slice, computed once for all slices of a turn that start alike."""
    if (rank, at) not in begins:
        begins[rank, at] = tf.stack([index if i == at else 0 for i in range(rank)])
    return begins[rank, at]


def read_row(tf: Any, x: Any, at: int, index: Any, begins: dict[tuple[int, int], Any]) -> Any:
    """Reads one slice along a dimension, that dimension removed."""
    sizes = x.shape.as_list()
    begin = slice_begin(tf, index, len(sizes), at, begins)
    piece = tf.slice(x, begin, [1 if i == at else size for i, size in enumerate(sizes)])
    return tf.squeeze(piece, at)
