"""Ops as a user writes them, linear and not, in a module whose name must not matter."""

from __future__ import annotations

import namedmesh as nm


class OneShape(nm.Op):
    """An op whose result has the shape and dtype of its first operand."""

    def results(self):
        return [(self.inputs[0].shape, self.inputs[0].dtype)]


class Cube(OneShape):
    """Elementwise and not linear, which is the default."""

    elementwise = True

    def lower(self, context, x):
        return x * x * x

    def vjp(self, dy):
        return [dy * self.inputs[0] * self.inputs[0] * 3.0]


class Triple(OneShape):
    """Elementwise and linear."""

    elementwise = True
    linear_in = ((0,),)

    def lower(self, context, x):
        return x * 3.0

    def vjp(self, dy):
        return [Triple((dy,)).output]


class Blend(OneShape):
    """Linear in both operands together: 2a + 3b."""

    elementwise = True
    linear_in = ((0, 1),)

    def lower(self, context, a, b):
        return 2.0 * a + 3.0 * b

    def vjp(self, dy):
        return [dy * 2.0, dy * 3.0]


class Product(OneShape):
    """Linear in each operand by itself."""

    elementwise = True
    linear_in = ((0,), (1,))

    def lower(self, context, a, b):
        return a * b

    def vjp(self, dy):
        a, b = self.inputs
        return [Product((dy, b)).output, Product((dy, a)).output]


class Offset(OneShape):
    """Elementwise, but operands broadcast by position: [.., model] plus [model]."""

    elementwise = True

    def lower(self, context, x, bias):
        return x + bias

    def vjp(self, dy):
        (_, bias) = self.inputs
        return [dy, nm.sum(dy, [dim for dim in dy.shape if dim not in bias.shape])]


class FirstSoftmax(OneShape):
    """A softmax along the first axis, by its number."""

    def lower(self, context, x):
        return context.tf.nn.softmax(x, axis=0)

    def vjp(self, dy):
        y, first = self.output, self.inputs[0].shape[0]
        return [nm.transpose(y * (dy - nm.sum(dy * y, first)), dy.shape)]

    def placement(self):
        return nm.Placement(whole=[self.inputs[0].shape.names[0]])


class LastFlip(OneShape):
    """Linear: the elements of the last axis, by its number, from last to first."""

    linear_in = ((0,),)

    def lower(self, context, x):
        return context.tf.reverse(x, [len(self.inputs[0].shape) - 1])

    def vjp(self, dy):
        return [LastFlip((dy,)).output]

    def placement(self):
        return nm.Placement(whole=[self.inputs[0].shape.names[-1]])


class Reduction(nm.Op):
    """Reduces one dimension away."""

    by_name = True
    dim: nm.Dimension

    def results(self):
        return [(self.inputs[0].shape.without(self.dim.name), self.inputs[0].dtype)]

    @property
    def at(self):
        return self.inputs[0].shape.position(self.dim.name)

    def placement(self):
        return nm.Placement(reduced=[self.dim.name])


class ClosedMax(Reduction):
    """Would rather be lowered on shards, and reduces by something else than a sum."""

    closed = True

    def lower(self, context, x):
        return context.tf.reduce_max(x, self.at)


class ClosedSum(Reduction):
    """Would rather be lowered on shards, without saying that it sums."""

    closed = True

    def lower(self, context, x):
        return context.tf.reduce_sum(x, self.at)

    def vjp(self, dy):
        return [nm.broadcast(dy, self.inputs[0].shape)]


class ManualCubes(Reduction):
    """The sum of cubes on each device's own shard: linear in nothing, a sum nevertheless."""

    manual = True

    def lower(self, context, x):
        return context.tf.reduce_sum(x * x * x, self.at)

    def vjp(self, dy):
        (x,) = self.inputs
        return [nm.transpose(3.0 * dy * x * x, x.shape)]


class ShiftedSum(Reduction):
    """A sum besides the operand it sums: of two results, one keeps the dimension."""

    manual = True
    linear_in = ((0,),)

    def results(self):
        return [(self.inputs[0].shape, self.inputs[0].dtype), *super().results()]

    def lower(self, context, x):
        return [x * 2.0, context.tf.reduce_sum(x, self.at)]

    def vjp(self, dx, dy):
        return [dx * 2.0 + dy]
