"""The one place that writes shardings, as GSPMD annotations.

Where Shardy partitions a module, `namedmesh.artifacts.stablehlo.shardy` rewrites them as its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorflow.compiler.tf2xla.python import xla as tf2xla
from tensorflow.compiler.xla import xla_data_pb2

from namedmesh.dims.mesh import Mesh


class GspmdAnnotator:
    """XlaSharding ops in the iota form, whose size does not depend on the number of devices."""

    def __init__(self, mesh: Mesh):
        self.mesh = mesh
        self._protos: dict[tuple[tuple[str, ...], ...], bytes] = {}

    def proto(self, axes: Sequence[Sequence[str]]) -> Any:
        """The serialized OpSharding that lays positional dimension i on axes[i]."""
        key = tuple(map(tuple, axes))
        if key not in self._protos:
            self._protos[key] = self._proto(key)
        return self._protos[key]

    def _proto(self, axes: Sequence[Sequence[str]]) -> bytes:
        used = [axis for on in axes for axis in on]
        if not used:
            return xla_data_pb2.OpSharding(
                type=xla_data_pb2.OpSharding.REPLICATED
            ).SerializeToString()
        names = list(self.mesh.axes)
        rest = [axis for axis in names if axis not in used]
        copies = self.mesh.size(rest)
        return xla_data_pb2.OpSharding(
            type=xla_data_pb2.OpSharding.OTHER,
            tile_assignment_dimensions=[self.mesh.size(on) for on in axes]
            + ([copies] if copies > 1 else []),
            iota_reshape_dims=list(self.mesh.axes.values()),
            iota_transpose_perm=[names.index(axis) for axis in (*used, *rest)],
            replicate_on_last_tile_dim=copies > 1,
        ).SerializeToString()

    def annotate(self, value: Any, axes: Sequence[Sequence[str]]) -> Any:
        """The value, said to lie on these axes; what was just said is not said again."""
        proto = self.proto(axes)
        if value.op.type == "XlaSharding" and value.op.get_attr("sharding") == proto:
            return value
        return tf2xla.sharding(value, sharding=proto)

    def to_local(self, value: Any, axes: Sequence[Sequence[str]]) -> Any:
        """Each device's own shard of a value that lies on these axes."""
        return tf2xla.spmd_full_to_shard_shape(
            self.annotate(value, axes),
            manual_sharding=self.proto(axes),
            dim=-1,
            unspecified_dims=[],
        )

    def from_local(self, value: Any, axes: Sequence[Sequence[str]], sizes: Sequence[int]) -> Any:
        """The whole value, of which each device has whole its own shard."""
        whole = tf2xla.spmd_shard_to_full_shape(
            value,
            manual_sharding=self.proto(axes),
            full_shape=list(sizes),
            dim=-1,
            unspecified_dims=[],
        )
        return self.annotate(whole, axes)
