"""Manual regions: a function that every device runs on its own shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from namedmesh.dims.dimension import Dimension
from namedmesh.errors.errors import NamedMeshError, join_names, name_all
from namedmesh.ir.differentiate import body_vjp
from namedmesh.ir.op import Body, Op
from namedmesh.ir.operands import as_tuple, check_callable, check_dimension, check_tensor
from namedmesh.ir.placement import Placement
from namedmesh.ir.prune import prune_body
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import trace_body
from namedmesh.ops.broadcast import group_by_missing
from namedmesh.ops.custom import place_batch
from namedmesh.ops.partial_sums import check_partial_sums
from namedmesh.ops.region import Enclosing, RegionCutter, active_region, mixes_shards, region_over
from namedmesh.signature.nest import unflatten


class Manual(Enclosing):
    """A region that each device runs on its own shard; its results are sums over summed."""

    manual = True
    over: tuple[Dimension, ...]
    summed: tuple[Dimension, ...] = ()

    def vjp(self, *cotangents: Tensor) -> list[Tensor | None]:
        count = len(self.inputs)
        gradients: dict[int, Tensor] = {}
        for missing, group in group_by_missing(self.inputs, self.over).items():
            wanted = [i for i in group if self.depends_on(i)]
            if not wanted:
                continue

            def backward(*values: Tensor, wanted: Sequence[int] = wanted) -> list[Tensor]:
                return body_vjp(self.body, values[:count], values[count:], wanted)

            region = _Region((*self.inputs, *cotangents), self.over, missing)
            gradients.update(zip(wanted, region.record(backward), strict=True))
        return [gradients.get(i) for i in range(count)]

    @property
    def placed(self) -> bool:
        """True if the inputs have every dimension over which the region runs."""
        names = {name for tensor in self.inputs for name in tensor.shape.names}
        return all(dim.name in names for dim in self.over)

    def placement(self) -> Placement:
        return place_batch(self, self.over, self.summed)


def manual(
    function: Callable[..., Any], *tensors: Tensor, over: Dimension | Sequence[Dimension]
) -> Any:
    """Return what a function makes of each device's own shard of some dimensions.

    Inside, only the collectives of `nm.collective` mix the elements of the dimensions in `over`
    (that is checked), so the result is the same under every layout. All other dimensions are
    gathered before. The gradient of a tensor that lacks a dimension of `over` is an AllReduce after
    the region.

    Args:
        function: Called with the tensors; return tensors, nested as you like, that all have the
            dimensions in `over`. It may use tensors from outside.
        *tensors: What it is called with.
        over: One dimension or several that may stay sharded inside.

    Example:
        >>> B, M = nm.dims("batch=8 model=4")
        >>> def sort_rows(x):
        ...     return nm.manual(lambda x: nm.sort(x, M), x, over=B)
        >>> program = nm.trace(sort_rows, x=nm.spec([B, M]))
        >>> nm.plan(program, nm.Mesh(data=8), "batch:data").collectives
        ()
    """
    check_callable("manual", function)
    for tensor in tensors:
        check_tensor("manual", tensor)
    dims = tuple(check_dimension("manual", dim, *tensors) for dim in as_tuple(over))
    outer, names = active_region(), frozenset(dim.name for dim in dims)
    with region_over(names):
        region = _Region(tensors, dims)
        body, structure = region.trace(function)
    if not body.outputs:
        raise NamedMeshError(
            "manual: the function returned no tensor", *map(str, tensors), fix="return one"
        )
    if outer is not None and mixes_shards(body.ops):
        raise NamedMeshError(
            "manual: a region with collectives is inside another region",
            *map(str, tensors),
            fix="make one region, over the dimensions of both",
        )
    if not mixes_shards(body.ops):
        return unflatten(structure, iter(region.record_body(body)))

    def record_part(part: Callable[..., Any], values: Sequence[Tensor], names: Any) -> Any:
        return _Region(values, tuple(dim for dim in dims if dim.name in names)).record(part)

    results = RegionCutter(record_part, names, body).record((*tensors, *body.captured))
    return unflatten(structure, iter(results))


@dataclass(frozen=True)
class _Region:
    """A region: its operands, the dimensions over which it is split, and those it sums over."""

    tensors: Sequence[Tensor]
    over: tuple[Dimension, ...]
    summed: tuple[Dimension, ...] = ()  # which the results are sums over; they have the others

    def record(self, function: Callable[..., Any]) -> Any:
        """Record the region of a function, and return its results."""
        body, structure = self.trace(function)
        return unflatten(structure, iter(self.record_body(body)))

    def record_body(self, body: Body) -> Sequence[Tensor]:
        """Record a region that is traced and has no collectives."""
        self.check_results(body)
        if self.summed:
            check_partial_sums(body, frozenset(dim.name for dim in self.summed))
        return Manual((*self.tensors, *body.captured), body, self.over, self.summed).outputs

    def trace(self, function: Callable[..., Any]) -> tuple[Body, Any]:
        """Trace the function of a region, and check what its ops mix."""
        specs = [(tensor.shape, tensor.dtype, tensor.label) for tensor in self.tensors]
        body, structure = trace_body(function, specs, outer=self.tensors)
        body = prune_body(body)
        names, sums = {dim.name for dim in self.over}, {dim.name for dim in self.summed}
        for op in _ops_on_shards(body.ops):
            asked = op.placement()
            mixing = asked.whole | (asked.reduced - sums) | set(asked.renames) | asked.exchanged
            if op.states_place:
                raise op.error(
                    "nothing moves inside a manual region",
                    *map(str, op.inputs),
                    fix="move the tensor before the region",
                )
            if dims := sorted(mixing & names):
                raise op.error(
                    f"mixes elements of {name_all('dimension', dims)}, over which the region is "
                    "split",
                    *map(str, op.inputs),
                    fix=f"leave {join_names(dims)} out of over=, do this outside the region, "
                    "or use nm.collective",
                )
        return body, structure

    def check_results(self, body: Body) -> None:
        """Raise unless every result has the dimensions over which the region is split."""
        tensors = (*self.tensors, *body.captured)
        known = {name for tensor in tensors for name in tensor.shape.names}
        names = {dim.name for dim in self.over if dim not in self.summed}
        for tensor in body.outputs:
            missing = sorted(names - {*tensor.shape.names})
            unknown = [name for name in missing if name not in known]
            if unknown:
                raise NamedMeshError(
                    f"manual: none of the tensors has {name_all('dimension', unknown)} of over=",
                    *map(str, self.tensors),
                    fix=f"leave {join_names(unknown)} out of over=",
                )
            if missing:
                raise NamedMeshError(
                    f"manual: the result {tensor.label} lacks {name_all('dimension', missing)}, "
                    "over which the region is split",
                    str(tensor),
                    fix="compute it outside the region, "
                    f"or nm.broadcast it to include {join_names(missing)}",
                    source=tensor.source,
                )


def _ops_on_shards(ops: Sequence[Op]) -> Iterator[Op]:
    """Yield every op that works on a device's own shard, those in loops and branches included."""
    for op in ops:
        if not op.mixes_shards:
            yield op
            for body in op.bodies:
                yield from _ops_on_shards(body.ops)
