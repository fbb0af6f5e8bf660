"""The lowering of single ops and moves to TensorFlow, every result annotated."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla as tf2xla
from tensorflow.compiler.xla import xla_data_pb2

from namedmesh.artifacts.stablehlo.prepare import ALL_TO_ALL, GATHER, PERMUTE, SUM
from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.dims.hop import Hop
from namedmesh.dims.mesh import Mesh
from namedmesh.dims.sharding import Sharding, Transfer
from namedmesh.ir.context import Context
from namedmesh.ir.evaluate import Eager, lower_op
from namedmesh.ir.op import Op
from namedmesh.ir.placement import Ring, find_ring
from namedmesh.ir.tensor import Tensor
from namedmesh.lowering.fragments import custom_call


class GspmdAnnotator:
    """XlaSharding ops in the iota form, whose size does not depend on the number of devices."""

    def __init__(self, mesh: Mesh):
        self.mesh = mesh
        self._cached_proto = functools.cache(self._make_proto)

    def proto(self, axes: Sequence[Sequence[str]]) -> Any:
        """Return the serialized OpSharding that shards dimension i over axes[i]."""
        return self._cached_proto(tuple(map(tuple, axes)))

    def _make_proto(self, axes: Sequence[Sequence[str]]) -> bytes:
        used = [axis for on in axes for axis in on]
        if not used:
            kind = xla_data_pb2.OpSharding.REPLICATED
            return xla_data_pb2.OpSharding(type=kind).SerializeToString()
        names = list(self.mesh.axes)
        rest = [axis for axis in names if axis not in used]
        copies = self.mesh.size(rest)
        tiles = [*map(self.mesh.size, axes), *([copies] if copies > 1 else [])]
        return xla_data_pb2.OpSharding(
            type=xla_data_pb2.OpSharding.OTHER,
            tile_assignment_dimensions=tiles,
            iota_reshape_dims=list(self.mesh.axes.values()),
            iota_transpose_perm=[names.index(axis) for axis in (*used, *rest)],
            replicate_on_last_tile_dim=copies > 1,
        ).SerializeToString()

    def annotate(self, value: Any, axes: Sequence[Sequence[str]]) -> Any:
        """Annotate a value with the axes of its dimensions; skip it if unchanged."""
        proto = self.proto(axes)
        if value.op.type == "XlaSharding" and value.op.get_attr("sharding") == proto:
            return value
        return tf2xla.sharding(value, sharding=proto)

    def to_local(self, value: Any, axes: Sequence[Sequence[str]]) -> Any:
        """Return each device's own shard of a value that is sharded over these axes."""
        return tf2xla.spmd_full_to_shard_shape(self.annotate(value, axes), self.proto(axes))

    def from_local(self, value: Any, axes: Sequence[Sequence[str]], sizes: Sequence[int]) -> Any:
        """Return the whole value of which each device has its own shard."""
        whole = tf2xla.spmd_shard_to_full_shape(value, self.proto(axes), list(sizes))
        return self.annotate(whole, axes)


class OpLowering(Context):
    """Lowers one op, or moves one value, on a mesh; values are TensorFlow's."""

    compiled = True

    def __init__(self, mesh: Mesh, precision: str):
        self.mesh, self.precision = mesh, precision
        self.annotator = GspmdAnnotator(mesh)
        self._natural: dict[Tensor, Sharding] = {}  # where the op being lowered makes its results

    def at(self, value: Any, shape: Shape, sharding: Sharding) -> Any:
        """Annotate a value with a sharding of its shape; scalars need no annotation."""
        axes = position_axes(shape, sharding)
        return self.annotator.annotate(value, axes) if axes else value

    def part_sizes(self, tensor: Tensor) -> list[int]:
        return [self.mesh.axes[axis] for axis in self._natural[tensor].partial]

    def lower(
        self,
        op: Op,
        values: Sequence[Any],
        places: Sequence[Sharding],
        natural: Sequence[Sharding],
        local: bool,
        kernel: bool,
    ) -> list[Any]:
        """Lower an op on operands in their places; if local, on each device's own shard.

        Results that shards do not divide come twice if the op takes any padding: cut, and padded.
        """
        self._natural = dict(zip(op.outputs, natural, strict=True))
        if local:
            axes = {name: on for place in (*places, *natural) for name, on in place.held}
            ring = None
            if op.sliced != "none":
                shapes = [tensor.shape for tensor in (*op.inputs, *op.outputs)]
                ring = find_ring(shapes, (*places, *natural), self.mesh)
            if ring is not None:
                axes[ring.dim.name] = natural[0].axes(ring.dim.name)
            inside = Local(self, axes, op if kernel else None, ring)
            operands = zip(values, op.inputs, places, strict=True)
            shards = [self._cut_shard(value, x.shape, place) for value, x, place in operands]
            lowered = zip(lower_op(op, inside, shards), op.outputs, natural, strict=True)
            padded = [self._join_shards(shard, y.shape, place) for shard, y, place in lowered]
        else:
            padded = lower_op(op, self, values)
            for value, tensor in zip(padded, op.outputs, strict=True):
                value.set_shape([*self.part_sizes(tensor), *tensor.shape.sizes])
        results, kept = [], []
        for value, tensor, place in zip(padded, op.outputs, natural, strict=True):
            cut = self._cut_padding(value, tensor.shape) if local else value
            results.append(self.at(cut, tensor.shape, place))
            if cut is not value and op.any_padding:
                kept.append(self.at(value, tensor.shape, place))
        return [*results, *kept]

    def move(
        self, value: Any, shape: Shape, source: Sharding, step: Transfer, reduction: str
    ) -> Any:
        """Make a transfer that annotations cannot express: partial sums are added up, or made."""
        if not step.sums:
            value = self._leave_alone(value, shape, source, step.result)
            return self.at(value, shape, step.result)
        value = self._join_parts(value, shape, source, step.axes)
        ways = {dim.name: self.mesh.size(step.result.axes(dim.name)) for dim in shape}
        cut = [dim.name for dim in shape if step.result.axes(dim.name) != source.axes(dim.name)]
        more = [-dim.size % ways[dim.name] if dim.name in cut else 0 for dim in shape]
        if any(more):  # shards of a sum are equal: XLA would add up all of it for each device
            others = len(step.result.partial)
            value = tf.pad(value, [[0, 0]] * (1 + others) + [[0, size] for size in more])
            value = self.at(reduce_parts(value, reduction), shape, step.result)
            value = value[(..., *(slice(dim.size) for dim in shape))]
        else:
            value = reduce_parts(value, reduction)
        return self.at(value, shape, step.result)

    def _join_parts(self, value: Any, shape: Shape, source: Sharding, axes: Sequence[str]) -> Any:
        """Put the partial sums along some axes into one leading dimension."""
        # XLA adds up every dimension by itself, one collective after the other.
        others = [axis for axis in source.partial if axis not in axes]
        order = [source.partial.index(axis) for axis in (*axes, *others)]
        rest = list(range(len(order), value.shape.rank))
        if order != sorted(order):
            value = tf.transpose(value, order + rest)
        if len(axes) > 1:
            value = tf.reshape(value, [self.mesh.size(axes), *value.shape[len(axes) :]])
        leading = [tuple(axes), *((axis,) for axis in others)]
        return self.annotator.annotate(value, [*leading, *(source.axes(dim.name) for dim in shape)])

    def _leave_alone(self, value: Any, shape: Shape, source: Sharding, result: Sharding) -> Any:
        """Make a value the first device's partial sum, or a shard its own; others add zero."""
        shard = self._cut_shard(value, shape, source)
        for at, dim in enumerate(shape):
            spread = source.axes(dim.name)[len(result.axes(dim.name)) :]
            if spread:
                ways, sizes = self.mesh.size(spread), list[Any](shard.shape)
                own = tf.equal(tf.range(ways), self.find_position(spread))
                own = tf.reshape(own, [ways, *[1] * (len(shape) - at)])
                rows = tf.where(own, tf.expand_dims(shard, at), tf.zeros([], shard.dtype))
                shard = tf.reshape(rows, [*sizes[:at], ways * sizes[at], *sizes[at + 1 :]])
        for axis in result.partial:
            if axis not in source.partial and axis not in source.used:
                index = self.find_position((axis,))
                shard = tf.where(tf.equal(index, 0), shard, tf.zeros([], shard.dtype))
        return self._cut_padding(self._join_shards(shard, shape, result), shape)

    def find_position(self, axes: tuple[str, ...]) -> Any:
        """Return a device's own position along some axes, inside a manual region."""
        # Not a constant: XLA would merge those of equal values, and move them.
        numbers = tf.range(self.mesh.size(axes))
        return tf.squeeze(self.annotator.to_local(numbers, [axes]), [0])

    def _cut_shard(self, value: Any, shape: Shape, place: Sharding) -> Any:
        """Cut out a device's own shard, padded with zeros to the length of the first."""
        axes = position_axes(shape, place)
        padded, sizes = self._padded_sizes(shape, place), value.shape.as_list()
        if padded != sizes:
            value = tf.pad(
                value, [[0, more - size] for more, size in zip(padded, sizes, strict=True)]
            )
        shard = self.annotator.to_local(value, axes)
        leading = list(range(len(place.partial)))
        return tf.squeeze(shard, leading) if leading else shard

    def _padded_sizes(self, shape: Shape, place: Sharding) -> list[int]:
        """Return the sizes of a value, with those rounded up that shards do not divide."""
        parts = [self.mesh.axes[axis] for axis in place.partial]
        ways = [self.mesh.size(place.axes(dim.name)) for dim in shape]
        return [*parts, *(-(-dim.size // n) * n for dim, n in zip(shape, ways, strict=True))]

    def _join_shards(self, shard: Any, shape: Shape, place: Sharding) -> Any:
        """Make the value of which every device has its shard, partial sums side by side."""
        sizes = self._padded_sizes(shape, place)
        if place.partial:
            shard = tf.reshape(shard, [*[1] * len(place.partial), *shard.shape])
        return self.annotator.from_local(shard, position_axes(shape, place), sizes)

    def _cut_padding(self, value: Any, shape: Shape) -> Any:
        """Cut off what pads the shards of a value."""
        sizes = value.shape.as_list()
        exact = [*sizes[: len(sizes) - len(shape)], *shape.sizes]
        return value if sizes == exact else value[tuple(map(slice, exact))]


def position_axes(shape: Shape, sharding: Sharding) -> tuple[tuple[str, ...], ...]:
    """Return the axes of each position of a value: of partial sums first, then of its dims."""
    leading = ((axis,) for axis in sharding.partial)
    return (*leading, *(sharding.axes(dim.name) for dim in shape))


# Parts of other results than sums: those of `Op.reduction`.
REDUCTIONS = {
    "and": tf.reduce_all, "or": tf.reduce_any, "max": tf.reduce_max, "min": tf.reduce_min,
    "mul": tf.reduce_prod,
}  # fmt: skip


def reduce_parts(value: Any, reduction: str) -> Any:
    """Reduce parts along the first dimension, sums in their own dtype, as they are sent."""
    if reduction in REDUCTIONS:
        return REDUCTIONS[reduction](value, 0)
    if value.dtype in (tf.float32, tf.int32, tf.float64, tf.int64):
        return tf.reduce_sum(value, 0)
    # tf.reduce_sum adds narrow dtypes in wider ones, and the parts would travel so.
    scalar = tf.TensorSpec([], value.dtype)
    add = tf.function(lambda a, b: a + b).get_concrete_function(scalar, scalar)
    results: Any = tf2xla.variadic_reduce(
        [value], [tf.zeros([], value.dtype)], dimensions_to_reduce=[0], reducer=add
    )
    return results[0]


class Local(Eager):
    """Lowering inside a manual region: sizes are those of one device's shard."""

    compiled = True

    def __init__(
        self,
        around: OpLowering,
        axes: dict[str, tuple[str, ...]],
        kernel: Op | None,
        ring: Ring | None,
    ):
        self.mesh, self.axes, self.precision = around.mesh, axes, around.precision
        self._kernel, self.ring = kernel, ring
        self._around, self._graph = around, tf.compat.v1.get_default_graph()
        self._positions: dict[tuple[str, ...], Any] = {}

    def calls_kernel(self, op: Op) -> bool:
        return op is self._kernel

    def size(self, dim: Dimension) -> int:
        return -(-dim.size // self.ways(dim))

    def ways(self, dim: Dimension) -> int:
        return self.mesh.size(self.axes.get(dim.name, ()))

    def position(self, dim: Dimension) -> Any:
        return self._find_position(self.axes.get(dim.name, ()))

    def _find_position(self, on: tuple[str, ...]) -> Any:
        """Return a device's position along some axes."""
        if not on:
            return 0
        if on not in self._positions:
            with self._graph.as_default():  # also if it is asked for in the body of a loop
                self._positions[on] = self._around.find_position(on)
        return self._positions[on]

    def permute(self, value: Any, dim: Dimension, hop: Hop) -> Any:
        hop = dataclasses.replace(hop, axes=self.axes[dim.name])
        return custom_call(PERMUTE, [value], value.shape, value.dtype, str(hop))

    def place_in_ring(self) -> Any:
        return self._find_position(self.ring.axes if self.ring else ())

    def pass_on(self, value: Any, way: int) -> Any:
        assert self.ring is not None
        hop = self.ring.hop(way)
        return custom_call(PERMUTE, [value], value.shape, value.dtype, str(hop))

    def gather(self, value: Any, dim: Dimension) -> Any:
        sizes, axes = [self.ways(dim), *value.shape], "+".join(self.axes[dim.name])
        return custom_call(GATHER, [value[None]], sizes, value.dtype, axes)

    def sum(self, value: Any, dim: Dimension) -> Any:
        axes = "+".join(self.axes[dim.name])
        return custom_call(SUM, [value], value.shape, value.dtype, axes)

    def all_to_all(self, value: Any, dim: Dimension, cut: int, join: int) -> Any:
        sizes, ways = value.shape.as_list(), self.ways(dim)
        sizes[cut] //= ways
        sizes[join] *= ways
        config = f"{'+'.join(self.axes[dim.name])} {cut} {join}"
        return custom_call(ALL_TO_ALL, [value], sizes, value.dtype, config)

    def offset(self, dim: Dimension) -> Any | None:
        return self.position(dim) * self.size(dim) if self.axes.get(dim.name) else None
