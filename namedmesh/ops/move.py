"""Explicit placement, in names: which dimension is sharded over which mesh axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from namedmesh.dims.dimension import Dimension
from namedmesh.errors.errors import NamedMeshError, check_identifier, join_names
from namedmesh.ir.differentiate import Cotangent
from namedmesh.ir.format import format_value
from namedmesh.ir.op import PlacementRules, vmap_error
from namedmesh.ir.operands import as_tuple, check_has_dims, check_tensor
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.elementwise import SameValue


class Move(SameValue):
    """The same value elsewhere: an op that states the sharding of its result."""

    states_place = True
    kept_by_dots = True
    take: tuple[str, ...] = ()  # dimensions that take the axes that the layout gives them
    give: tuple[str, ...] = ()  # dimensions that become whole
    exact: Mapping[str, tuple[str, ...]] | None = None  # these axes and no others, by dimension
    called: str = "reshard"

    @property
    def kind(self) -> str:
        return self.called

    @property
    def taken_dims(self) -> tuple[str, ...]:
        return (*self.take, *(self.exact or ()))

    @property
    def given_dims(self) -> tuple[str, ...]:
        return self.give

    @property
    def stated_axes(self) -> tuple[str, ...]:
        return tuple(axis for axes in (self.exact or {}).values() for axis in axes)

    def vmap(self, inputs: tuple[Tensor, ...], over: Dimension) -> Sequence[Tensor]:
        raise vmap_error(self, inputs, over)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [Cotangent((dy,)).output]

    def plan(self, rules: PlacementRules, times: int) -> None:
        rules.place_move(self, times, self.take, self.give, self.exact)


def reshard(x: Tensor, *dims: Dimension) -> Tensor:
    """Return a tensor with the mesh axes that the layout gives some dimensions moved to them.

    This is an AllToAll if another dimension is sharded over the axes; otherwise nothing is sent.

    Args:
        x: The tensor.
        *dims: The dimensions that take the axes the layout gives them.

    Example:
        >>> G, E = nm.dims("group=8 expert=8")
        >>> program = nm.trace(lambda x: nm.reshard(x, E), x=nm.spec([G, E], whole=[E]))
        >>> nm.plan(program, nm.Mesh(all=8), "group:all, expert:all").count("AllToAll")
        1
    """
    check_has_dims("reshard", x, *dims)
    if not dims:
        raise NamedMeshError(
            "reshard: no dimension given", str(x), fix="name the dimension that takes its axes"
        )
    return Move((x,), take=tuple(dim.name for dim in dims), called="reshard").output


def replicate(x: Tensor, *dims: Dimension) -> Tensor:
    """Return a tensor with dimensions whole on every device: an AllGather if they were split.

    Args:
        x: The tensor.
        *dims: The dimensions; all of them where none is named.

    Example:
        >>> program = nm.trace(nm.replicate, x=nm.spec(nm.dims("batch=8 model=4")))
        >>> nm.plan(program, nm.Mesh(data=8), "batch:data").count("AllGather")
        1
    """
    check_has_dims("replicate", x, *dims)
    names = tuple(dim.name for dim in dims) or x.shape.names
    return Move((x,), give=names, called="replicate").output


def split(x: Tensor, dim: Dimension) -> Tensor:
    """Return a tensor with one dimension alone sharded, over its mesh axes in the layout.

    Args:
        x: The tensor.
        dim: The dimension. (To cut a tensor into parts use `nm.chunk`.)

    Example:
        >>> B, M = nm.dims("batch=8 model=4")
        >>> program = nm.trace(lambda x: nm.split(x, M), x=nm.spec([B, M]))
        >>> nm.plan(program, nm.Mesh(data=8), "batch:data").count("AllGather")
        1
    """
    if not isinstance(dim, Dimension):
        problem = f"split: {format_value(dim)} is not a Dimension"
        fix = "to cut a tensor into parts use nm.chunk"
        raise NamedMeshError(problem, str(check_tensor("split", x)), fix=fix)
    check_has_dims("split", x, dim)
    others = tuple(name for name in x.shape.names if name != dim.name)
    return Move((x,), take=(dim.name,), give=others, called="split").output


def shard(x: Tensor, axes: Mapping[Dimension, str | Sequence[str]]) -> Tensor:
    """Return a tensor with dimensions on exactly these mesh axes: prefer `nm.reshard`.

    Args:
        x: The tensor.
        axes: A mesh axis, or a list of them, for each dimension that is split.

    Example:
        >>> B, M = nm.dims("batch=8 model=4")
        >>> program = nm.trace(lambda x: nm.shard(x, {M: "model"}), x=nm.spec([B, M]))
        >>> nm.plan(program, nm.Mesh(model=4)).shardings[program.outputs[0]].mapping
        {'model': ('model',)}
    """
    if not isinstance(axes, Mapping):
        problem = f"shard: {format_value(axes)} does not map dimensions to mesh axes"
        fix = "write e.g. nm.shard(x, {B: 'data'})"
        raise NamedMeshError(problem, str(check_tensor("shard", x)), fix=fix)
    check_has_dims("shard", x, *axes)
    exact = {dim.name: as_tuple(on) for dim, on in axes.items()}
    used = [axis for on in exact.values() for axis in on]
    for axis in used:
        check_identifier(axis, "shard: mesh axis", str(x))
    twice = sorted({axis for axis in used if used.count(axis) > 1})
    if twice:
        raise NamedMeshError(
            f"shard: mesh axis {join_names([repr(axis) for axis in twice])} "
            f"is given to two dimensions of {x.label}",
            str(x),
            fix="give each axis to one dimension",
        )
    return Move((x,), exact=exact, called="shard").output
