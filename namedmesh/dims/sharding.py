"""The sharding algebra: the mesh axes of each dimension, and what moving them costs."""

import itertools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from namedmesh.dims.dimension import Shape
from namedmesh.dims.mesh import Mesh


@dataclass(frozen=True)
class Sharding:
    """For one tensor, the mesh axes that each of its dimensions is sharded over."""

    held: tuple[tuple[str, tuple[str, ...]], ...] = ()  # each axis at most once
    # Dimensions that were asked to stay whole under every layout; no part of where the data is.
    whole: frozenset[str] = field(default=frozenset(), compare=False)
    partial: tuple[str, ...] = ()  # axes along which every device has its own partial sum

    @classmethod
    def of(
        cls,
        held: Mapping[str, Iterable[str]],
        whole: Iterable[str] = (),
        partial: Iterable[str] = (),
    ) -> "Sharding":
        """Make a sharding from the axes of each dimension."""
        pairs = sorted((name, tuple(axes)) for name, axes in held.items())
        present = tuple((name, axes) for name, axes in pairs if axes)
        return cls(present, frozenset(whole), tuple(sorted(partial)))

    @property
    def mapping(self) -> dict[str, tuple[str, ...]]:
        """The axes by dimension name."""
        return dict(self.held)

    def axes(self, name: str) -> tuple[str, ...]:
        """Return the axes that a dimension is sharded over."""
        for dim, axes in self.held:  # planning spends much of its time here
            if dim == name:
                return axes
        return ()

    def dimension_over(self, axis: str) -> str | None:
        """Return the dimension that is sharded over an axis, or None."""
        return next((name for name, axes in self.held if axis in axes), None)

    @property
    def used(self) -> tuple[str, ...]:
        """Every axis that some dimension is sharded over."""
        return tuple(axis for _, axes in self.held for axis in axes)

    def with_partial(self, axes: Iterable[str]) -> "Sharding":
        """Return the same sharding, with partial sums along these axes."""
        partial = tuple(sorted(axes))
        return self if partial == self.partial else Sharding(self.held, self.whole, partial)

    def only(self, names: Iterable[str]) -> "Sharding":
        """Return the sharding of some dimensions."""
        names = set(names)
        held = {name: axes for name, axes in self.held if name in names}
        return Sharding.of(held, self.whole & names, self.partial)

    def kept_whole(self, names: Iterable[str]) -> "Sharding":
        """Return the same sharding, with these dimensions asked to stay whole."""
        return Sharding(self.held, frozenset(names), self.partial)

    def local_sizes(self, shape: Shape, mesh: Mesh) -> tuple[int, ...]:
        """Return the sizes of one device's shard, with the padding of those that do not divide."""
        return tuple(-(-dim.size // mesh.size(self.axes(dim.name))) for dim in shape)

    def local_elements(self, shape: Shape, mesh: Mesh) -> int:
        """Count the elements of one device's shard, padding included."""
        return math.prod(self.local_sizes(shape, mesh)) if self.held else shape.elements

    def divides(self, shape: Shape, mesh: Mesh) -> bool:
        """Return whether every sharded dimension divides evenly."""
        return all(dim.size % mesh.size(self.axes(dim.name)) == 0 for dim in shape)

    def waste(self, shape: Shape, mesh: Mesh) -> float:
        """Return the share of all devices' elements that is padding."""
        padded = math.prod(
            local * mesh.size(self.axes(dim.name))
            for dim, local in zip(shape, self.local_sizes(shape, mesh), strict=True)
        )
        return 1 - shape.elements / padded

    def text(self, shape: Shape) -> str:
        """Format a shape with its axes: [group=64/data+expert, model=512]."""
        parts = []
        for dim in shape:
            axes = self.axes(dim.name)
            parts.append(f"{dim}/{'+'.join(axes)}" if axes else str(dim))
        text = f"[{', '.join(parts)}]"
        return f"{text} parts/{'+'.join(self.partial)}" if self.partial else text


@dataclass(frozen=True)
class Transfer:
    """One step on the way from one sharding to another."""

    # AllGather, AllToAll, CollectivePermute, AllReduce or ReduceScatter; or, free, Slice, or Alone:
    # the value, or each device's shard of it, becomes a partial sum that is zero elsewhere.
    kind: str
    axes: tuple[str, ...]
    result: Sharding
    elements: int  # that one device sends or receives
    sums: bool = False  # adds up partial sums
    source: Sharding = field(default=Sharding(), compare=False)


def conversion(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding) -> list[Transfer]:
    """Find the steps that take a tensor from source to target: collectives and local slices."""
    if source == target:
        return []
    pending = [axis for axis in source.partial if axis not in target.partial]
    alone = [axis for axis in target.partial if axis not in source.partial]
    current = {dim.name: list(source.axes(dim.name)) for dim in shape}
    goal = {dim.name: list(target.axes(dim.name)) for dim in shape}
    for name, axes in source.held if source.divides(shape, mesh) else ():
        goal[name] += [axis for axis in axes if axis in alone]  # a shard among zeros is a term
    sizes = {dim.name: dim.size for dim in shape}
    wanted_by = {axis: name for name, axes in goal.items() for axis in axes}
    steps: list[Transfer] = []

    def local(name: str) -> int:
        """Return the size of one device's shard of a dimension."""
        return -(-sizes[name] // mesh.size(current[name]))

    def emit(kind: str, axes: Iterable[str], elements: int, sums: bool = False) -> None:
        """Append a step to the current sharding."""
        partial = (*pending, *(axis for axis in target.partial if axis in source.partial))
        place = Sharding.of(current, target.whole, target.partial if kind == "Alone" else partial)
        before = steps[-1].result if steps else source
        steps.append(Transfer(kind, tuple(axes), place, elements, sums, before))

    def shards() -> int:
        """Return the elements of one device's shard of the tensor."""
        return math.prod(local(name) for name in current)

    def ragged(name: str) -> bool:
        """Return whether to gather a dimension first: XLA re-tiles uneven shards expensively."""
        lists = (current[name], goal[name])
        uneven = [axes for axes in lists if sizes[name] % mesh.size(axes)]
        split_twice = bool(current[name]) and bool(goal[name])
        return any(len(axes) > 1 for axes in uneven) or (split_twice and bool(uneven))

    def swap() -> None:
        """Exchange shards, where only the devices that have them change."""
        ways = ([mesh.size(axes[name]) for name in sizes] for axes in (current, goal))
        held = ({axis for axes in all.values() for axis in axes} for all in (current, goal))
        if operator.eq(*ways) and operator.eq(*held):
            axes = [axis for name in sizes for axis in current[name] if current[name] != goal[name]]
            current.update((name, list(goal[name])) for name in sizes)
            if axes:
                emit("CollectivePermute", axes, shards())

    def fits(name: str, axes: Sequence[str]) -> bool:
        """Return whether a dimension divides by more axes, beside those that will leave it."""
        settled = all(axis in goal[name] for axis in current[name])
        return settled or sizes[name] % mesh.size([*current[name], *axes]) == 0

    def leaving(name: str) -> list[tuple[str, list[str]]]:
        """Return the dimensions that axes of a dimension go to, in order, each with its axes."""
        axes = [axis for axis in current[name] if wanted_by.get(axis, name) != name]
        groups = itertools.groupby(sorted(axes, key=wanted_by.__getitem__), wanted_by.get)
        return [(str(other), list(axes)) for other, axes in groups if not ragged(str(other))]

    def permute(name: str, order: list[str]) -> None:
        """Put the axes of a dimension in another order."""
        if order != current[name]:
            current[name] = order
            emit("CollectivePermute", order, shards())

    def append_missing(name: str) -> None:
        """Shard a dimension over those of its axes that are not in use."""
        used = {axis for axes in current.values() for axis in axes}
        # An axis of a pending sum cuts its shard first: axes after it wait.
        ready = itertools.takewhile(lambda axis: axis not in pending, goal[name])
        missing = [axis for axis in ready if axis not in used]
        if missing:
            current[name] = current[name] + missing
            emit("Slice", missing, shards())

    def gather(name: str, keep: list[str]) -> None:
        """Gather a dimension along all axes but the first ones, which it keeps."""
        axes = current[name][len(keep) :]
        ways = mesh.size(axes)
        if not axes:
            return
        if 2 * sizes[name] <= ways:
            # Mostly padding: XLA sums shards that are zero elsewhere instead.
            received, kind = shards() // local(name) * sizes[name], "AllReduce"
        else:
            received, kind = shards() * ways, "AllGather"
        current[name] = keep
        emit(kind, axes, received)

    def scatter(name: str) -> None:
        """Add up partial sums, of which every device keeps a shard along a dimension."""
        more = goal[name][len(current[name]) :]
        taken = list(itertools.takewhile(lambda axis: axis in pending, more))
        ways = mesh.size([*current[name], *taken])
        padded = -(-sizes[name] // ways) * ways
        # Rows that do not divide are padded, unless they are so few that a sum sends less.
        even = padded == sizes[name]
        fits = even or (not current[name] and taken == goal[name] and padded <= 2 * sizes[name])
        if taken and goal[name][: len(current[name])] == current[name] and fits:
            elements = shards() // sizes[name] * padded if not even else shards()
            current[name] = current[name] + taken
            pending[:] = [axis for axis in pending if axis not in taken]
            emit("ReduceScatter", taken, elements, True)

    def slice_early() -> None:
        """Cut dimensions that no axis leaves, so that later steps move less."""
        for name in current:
            if all(axis in goal[name] for axis in current[name]) and not ragged(name):
                append_missing(name)

    # Partial sums are added up before anything moves: first where they end up sharded
    # (ReduceScatter), then the rest (AllReduce).
    slice_early()
    for name in current:
        scatter(name)
    if pending:
        axes, pending = pending, []
        emit("AllReduce", axes, shards(), True)
    slice_early()
    swap()
    # An axis leaves a dimension only from the end of its list, and joins another at the end; one
    # that is not at the end is put there by a CollectivePermute first. AllToAlls come before
    # AllGathers, so that they move less, and no dimension is split on the way into more shards
    # than divide it.
    waiting = [name for name in current if current[name] != goal[name] and not ragged(name)]
    while waiting:
        ready = (name for name in waiting if all(itertools.starmap(fits, leaving(name))))
        name = next(ready, waiting[0])
        waiting.remove(name)
        staying = [axis for axis in current[name] if axis in goal[name]]
        groups = [(other, axes) for other, axes in leaving(name) if fits(other, axes)]
        moving = [axis for _, axes in groups for axis in axes]
        dropped = [axis for axis in current[name] if axis not in (*staying, *moving)]
        permute(name, staying + dropped + moving)
        for other, group in reversed(groups):
            ways = mesh.size(group)
            sent = shards() // local(other) * (-(-local(other) // ways) * ways)
            current[name] = current[name][: -len(group)]
            current[other] = current[other] + group
            emit("AllToAll", group, sent)
        gather(name, staying)
    for name in current:
        if current[name] != goal[name] and ragged(name):
            gather(name, [])
    for name in current:
        append_missing(name)
    for name in current:
        permute(name, goal[name])
    if alone:
        current.update((dim.name, list(target.axes(dim.name))) for dim in shape)
        emit("Alone", alone, 0)
    return steps
