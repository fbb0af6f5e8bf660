"""Explicit placement, in names: which dimension is sharded over which mesh axes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from namedmesh.dims.dimension import Dimension
from namedmesh.dims.hop import list_groups
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError, check_identifier, join_names
from namedmesh.ir.differentiate import Cotangent
from namedmesh.ir.format import format_value
from namedmesh.ir.op import PlacementRules, vmap_error
from namedmesh.ir.operands import as_tuple, check_has_dims, check_int, check_tensor
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.elementwise import SameValue


class Partitions(NamedTuple):
    """Into how many parts dimensions are split, over any mesh axes, and on which devices."""

    ways: dict[str, int]
    ids: tuple[int, ...] = ()  # the device of each part, row-major; none: any axes of that number

    def find_axes(self, mesh: Mesh, usual: Sequence[str]) -> dict[str, tuple[str, ...]] | None:
        """Find the axes of a mesh that split so, rather the usual ones; None if there are none."""
        if not self.ids:
            (name,) = self.ways
            counts = range(len(mesh.axes) + 1)
            lists = [some for count in counts for some in combinations(mesh.axes, count)]
            fits = [some for some in [*lists, tuple(usual)] if mesh.size(some) == self.ways[name]]
            return {name: fits[-1]} if fits else None
        strides, stride = {}, mesh.devices
        for axis, size in mesh.axes.items():
            stride //= size
            strides.setdefault(stride, axis)  # those of one device come after
        grid, held = np.reshape(self.ids, [*self.ways.values()]), dict[str, tuple[str, ...]]()
        for at, name in enumerate(self.ways):
            line, axes = np.moveaxis(grid, at, 0).reshape(grid.shape[at], -1)[:, 0], list[str]()
            while len(line) > 1:
                axis = strides.get(int(line[1] - line[0]))
                if axis is None or axis in axes or len(line) % mesh.axes[axis]:
                    return None
                axes.insert(0, axis)
                line = line[:: mesh.axes[axis]]
            held[name] = tuple(axes)
        used = [axis for axes in held.values() for axis in axes]
        alike = len({*used}) == len(used) and tuple(list_groups(used, mesh)[0]) == self.ids
        return held if alike else None

    def __str__(self) -> str:
        parts = " x ".join(f"{ways} of {name}" for name, ways in self.ways.items() if ways > 1)
        return f"{parts} on devices {format_value(self.ids)}" if self.ids else parts


class Move(SameValue):
    """The same value elsewhere: an op that states the sharding of its result."""

    states_place = True
    kept_by_dots = True
    take: tuple[str, ...] = ()  # dimensions that take the axes that the layout gives them
    give: tuple[str, ...] = ()  # dimensions that become whole
    # These axes and no others, by dimension; or as many as partitions say.
    exact: Mapping[str, tuple[str, ...]] | Partitions | None = None
    called: str = "reshard"

    @property
    def kind(self) -> str:
        return self.called

    @property
    def taken_dims(self) -> tuple[str, ...]:
        exact = self.exact.ways if isinstance(self.exact, Partitions) else self.exact
        return (*self.take, *(exact or ()))

    @property
    def given_dims(self) -> tuple[str, ...]:
        return self.give

    @property
    def stated_axes(self) -> tuple[str, ...]:
        exact = {} if isinstance(self.exact, Partitions) else self.exact or {}
        return tuple(axis for axes in exact.values() for axis in axes)

    def vmap(self, inputs: tuple[Tensor, ...], over: Dimension) -> Sequence[Tensor]:
        if self.exact is not None:  # which says where every dimension is, and not this one
            raise vmap_error(self, inputs, over)
        return Move(inputs, take=self.take, give=self.give, called=self.called).outputs

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


def split(x: Tensor, dim: Dimension, num_partitions: int | None = None) -> Tensor:
    """Return a tensor with one dimension alone sharded, over its mesh axes in the layout.

    Args:
        x: The tensor.
        dim: The dimension. (To cut a tensor into parts use `nm.chunk`.)
        num_partitions: Into how many parts, over axes of the mesh of so many devices: those of the
            layout where they are, or else the last ones.

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
    if num_partitions is not None:
        parts = check_int("split", "num_partitions", num_partitions, x)
        return Move((x,), exact=Partitions({dim.name: parts}), called="split").output
    others = tuple(name for name in x.shape.names if name != dim.name)
    return Move((x,), take=(dim.name,), give=others, called="split").output


def shard(x: Tensor, axes: Mapping[Dimension, str | Sequence[str]] | Any) -> Tensor:
    """Return a tensor with dimensions on exactly these mesh axes: prefer `nm.reshard`.

    Args:
        x: The tensor.
        axes: A mesh axis, or a list of them, for each dimension that is split. Or a device
            assignment: an array of as many dimensions as the tensor has, each as long as that is
            split into parts, of the number in the mesh of the device that has the part. Its order
            must be one that axes of the mesh have; that of a permutation costs a CollectivePermute.

    Example:
        >>> B, M = nm.dims("batch=8 model=4")
        >>> program = nm.trace(lambda x: nm.shard(x, {M: "model"}), x=nm.spec([B, M]))
        >>> nm.plan(program, nm.Mesh(model=4)).shardings[program.outputs[0]].mapping
        {'model': ('model',)}
        >>> program = nm.trace(lambda x: nm.shard(x, [[0, 2], [1, 3]]), x=nm.spec([B, M]))
        >>> plan = nm.plan(program, nm.Mesh(data=2, model=2), "batch:data, model:model")
        >>> plan.count("CollectivePermute"), plan.shardings[program.outputs[0]].mapping
        (1, {'batch': ('model',), 'model': ('data',)})
    """
    if not isinstance(axes, Mapping):
        ids: Any = np.zeros(())
        with contextlib.suppress(ValueError):  # numpy's for lists of several lengths
            ids = np.asarray(axes)
        right = ids.dtype.kind in "iu" and ids.ndim == len(check_tensor("shard", x).shape)
        if not right or not 0 < ids.size == len({*ids.flat}):
            problem = f"shard: {format_value(axes)} does not map dimensions to mesh axes"
            fix = "write e.g. nm.shard(x, {B: 'data'}), or the number of a device for each part"
            raise NamedMeshError(problem, str(x), fix=fix)
        ways = dict(zip(x.shape.names, ids.shape, strict=True))
        parts = Partitions(ways, tuple(ids.ravel().tolist()))
        return Move((x,), exact=parts, called="shard").output
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
