"""Products in slices: shards of an operand, or of a sum, go round a ring of devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from namedmesh.dims.dimension import Shape
from namedmesh.ir.context import Context
from namedmesh.ir.placement import Ring
from namedmesh.ops.halo import cut_rows


@dataclasses.dataclass(frozen=True)
class SlicedProduct:
    """A product of two values on a device's own shards, one slice of it at a time.

    Shards go both ways round, half of them each: both directions of a link are in use. Each is sent
    on before it is multiplied, so that a device computes while it sends.
    """

    context: Context
    ring: Ring
    shapes: Sequence[Shape]  # of the operands and the result
    values: Sequence[Any]
    multiply: Callable[[Any, Any], Any]

    def gather(self) -> Any:
        """Multiply with all shards of one operand, of which a device has two at a time."""
        ring, pass_on = self.ring, self.context.pass_on
        own, here = self.values[ring.tensor], self.context.place_in_ring()
        size = own.shape[self._at(ring.tensor)]

        def add(total: Any, shard: Any, number: Any) -> Any:
            return self._add(total, self._multiply(number, size, shard), number, size)

        def add_both(distance: Any, ahead: Any, behind: Any, total: Any) -> Any:
            return add(add(total, ahead, here - distance), behind, here + distance)

        def iterate(number: Any, ahead: Any, behind: Any, total: Any) -> list[Any]:
            following = pass_on(ahead, 1), pass_on(behind, -1)
            return [*following, add_both(number + 1, ahead, behind, total)]

        ahead, total, rounds = pass_on(own, 1), add(None, own, here), (ring.size - 1) // 2
        if rounds:
            start = [ahead, pass_on(own, -1), total]
            ahead, behind, total = self._repeat(rounds - 1, iterate, start)
            last = pass_on(ahead, 1) if ring.size % 2 == 0 else None
            total, ahead = add_both(rounds, ahead, behind, total), last
        if ring.size % 2 == 0:
            total = add(total, ahead, here - ring.size // 2)
        if ring.dim not in self.shapes[2]:
            return total
        return cut_rows(self.context.tf, total, self._at(2), 0, self.context.size(ring.dim))

    def scatter(self) -> Any:
        """Add up a sum of all devices' products, of which each device gets its own shard."""
        ring, pass_on = self.ring, self.context.pass_on
        here, rounds = self.context.place_in_ring(), (ring.size - 1) // 2
        size = self.context.size(ring.dim)

        def multiply(number: Any) -> Any:
            return self._multiply(number, size)

        def iterate(number: Any, ahead: Any, behind: Any) -> list[Any]:
            distance = rounds - 1 - number
            ahead = pass_on(ahead, 1) + multiply(here + distance)
            return [ahead, pass_on(behind, -1) + multiply(here - distance)]

        ahead = multiply(here + ring.size // 2)
        if not rounds:
            return multiply(here) + pass_on(ahead, 1)
        if ring.size % 2 == 0:
            ahead = pass_on(ahead, 1) + multiply(here + rounds)
        ahead, behind = self._repeat(rounds - 1, iterate, [ahead, multiply(here - rounds)])
        return multiply(here) + pass_on(ahead, 1) + pass_on(behind, -1)

    def _at(self, tensor: int) -> int:
        """Return the position of the ring's dimension in an operand or the result."""
        return self.shapes[tensor].position(self.ring.dim.name)

    def _repeat(self, count: int, body: Callable[..., list[Any]], start: list[Any]) -> Any:
        """Repeat a body so many times; a loop gives it the number of each as a value."""
        if count < 2:
            return body(0, *start) if count else start
        tf = self.context.tf
        start = [tf.constant(0), *start]
        step = lambda number, *carried: [number + 1, *body(number, *carried)]
        return self.context.while_loop(lambda number, *_: number < count, step, start)[1:]

    def _multiply(self, number: Any, size: int, shard: Any = None) -> Any:
        """Multiply what operands have of one shard of the ring's dimension, given or cut out."""
        ring, tf, operands = self.ring, self.context.tf, list(self.values)
        number = tf.math.floormod(number, ring.size)
        for i, value in enumerate(operands):
            if shard is not None and i == ring.tensor:
                operands[i] = shard
            elif ring.dim in self.shapes[i]:
                at = self._at(i)
                more = [[0, 0] for _ in value.shape]
                more[at][1] = ring.size * size - value.shape[at]
                value = tf.pad(value, more) if more[at][1] else value
                operands[i] = cut_rows(tf, value, at, number * size, size)
        return self.multiply(*operands)

    def _add(self, total: Any, product: Any, number: Any, size: int) -> Any:
        """Add a product to a sum of others, or put it to those beside it."""
        context, ring = self.context, self.ring
        if ring.dim not in self.shapes[2]:
            if total is None:
                return product
            # XLA would keep all products, and add them up at the end.
            return context.xla.optimization_barrier(total + product)[0]
        at, sizes = self._at(2), product.shape.as_list()
        if total is None:
            sizes[at] *= ring.size
            total = context.tf.zeros(sizes, product.dtype)
        first = context.tf.math.floormod(number, ring.size) * size
        begin = [first if i == at else 0 for i in range(len(sizes))]
        return context.xla.dynamic_update_slice(total, product, context.tf.stack(begin))
