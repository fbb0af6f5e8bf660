"""The rule for every ordinary op: operands agree on a holder for each axis, results inherit by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from namedmesh.dims.errors import NamedMeshError
from namedmesh.dims.layout import Layout
from namedmesh.dims.sharding import Sharding
from namedmesh.ir.op import Op
from namedmesh.ir.tensor import Tensor
from namedmesh.lowering.planner import Planner


def settle_generic(planner: Planner, op: Op, times: int) -> None:
    """Operands agree on a holder for every axis; the results inherit by name."""
    asked, rests, target = op.placement(), planner.rests(op), planner.target(op)
    given = [planner.in_use(op, i, rests) for i in range(len(op.inputs))]
    claims = agreed(planner, op, given, asked.whole, target)
    renamed = passed_on(planner, op, claims, asked.renames, target)
    for i, tensor in enumerate(op.inputs):
        planner.operand(
            op,
            i,
            Sharding.of(
                {n: a for n, a in claims.items() if n in tensor.shape.names}, given[i].whole
            ),
            times,
        )
    partial = [claims[name] for name in sorted(asked.reduced) if name in claims]
    if op.manual and partial:
        partial = [tuple(axis for axes in partial for axis in axes)]
        planner.plan.partial[op] = partial[0]
    for tensor in op.outputs:
        settle(planner, op, tensor, claims | renamed, asked.whole, given, partial, times)


def agreed(
    planner: Planner,
    op: Op,
    given: Sequence[Sharding],
    whole: frozenset[str],
    target: Sharding | None,
) -> dict[str, tuple[str, ...]]:
    """The axes each dimension of the op holds, agreed between the operands."""
    claims: dict[str, tuple[str, ...]] = {}
    owner: dict[str, tuple[str, int]] = {}
    order = list(range(len(given)))
    if target is not None:
        order.sort(key=lambda i: -sum(target.axes(name) == axes for name, axes in given[i].held))
    for i in order:
        for name, axes in given[i].held:
            if name in whole or not fits(planner, op, i, name, axes):
                continue
            rivals = [axis for axis in axes if axis in owner and owner[axis][0] != name]
            shorter, longer = sorted((claims.get(name, ()), axes), key=len)
            if not rivals and longer[: len(shorter)] == shorter:
                claims[name] = longer
                owner.update({axis: (name, i) for axis in longer if axis not in owner})
            elif not op.derived and op.phase != "backward":
                raise conflict(
                    planner,
                    op,
                    given,
                    name,
                    i,
                    *(owner[rivals[0]] if rivals else (name, owner[claims[name][0]][1])),
                    rivals or axes,
                )
    return claims


def fits(planner: Planner, op: Op, i: int, name: str, axes: Sequence[str]) -> bool:
    """Whether an op can run split that way: manual regions and reshapes need sizes that divide."""
    size = op.inputs[i].shape.named(name).size  # type: ignore[union-attr]
    ways = planner.mesh.size(axes)
    divisible = op.placement().divisible
    if name in divisible:
        return size % ways == 0 and divisible[name] % ways == 0
    return not op.manual or size % ways == 0


def conflict(
    planner: Planner,
    op: Op,
    given: Sequence[Sharding],
    name: str,
    i: int,
    other: str,
    j: int,
    axes: Sequence[str],
) -> NamedMeshError:
    """The error for operands that disagree on the holder of an axis, or on the axes of a dimension."""
    mine, theirs = op.inputs[i], op.inputs[j]
    if other == name:
        on = ["+".join(sharding.axes(name)) for sharding in (given[j], given[i])]
        problem = f"{op.kind}: mesh axis {on[0]!r} is held by dimension {name} in {theirs.label}, mesh axis {on[1]!r} in {mine.label}"
        fix = f"write nm.replicate({theirs.label}, {name}) or nm.replicate({mine.label}, {name}) before it"
    else:
        problem = f"{op.kind}: mesh axis {axes[0]!r} is held by dimension {other} in {theirs.label} and by {name} in {mine.label}"
        moves = [
            f"nm.reshard({t.label}, {to})"
            for t, to in ((theirs, name), (mine, other))
            if to in t.shape.names
        ]
        fix = f"write {' or '.join([*moves, f'nm.replicate({mine.label}, {name})'])} before it"
    if planner.plan.producers[mine].given:
        fix += f", or whole=[{name}] where {mine.label} is declared"
    return NamedMeshError(
        problem,
        f"{theirs.label}: {given[j].text(theirs.shape)}",
        f"{mine.label}: {given[i].text(mine.shape)}",
        f"layout: {planner.plan.layout.text or 'empty'}",
        f"mesh: {planner.mesh}",
        source=op.source,
        fix=fix,
    )


def passed_on(
    planner: Planner,
    op: Op,
    claims: dict[str, tuple[str, ...]],
    renames: dict[str, str],
    target: Sharding | None,
) -> dict[str, tuple[str, ...]]:
    """What passes from a dimension to the one that takes its place; drops claims that cannot pass."""
    found = {}
    for old, new in renames.items():
        axes = claims.get(old, ())
        legal = [planner.axes(planner.layout_of(op), new)] + (
            [target.axes(new)] if target is not None else []
        )
        if axes and any(candidate[: len(axes)] == axes for candidate in legal):
            found[new] = axes
        else:
            claims.pop(old, None)
    return found


def settle(
    planner: Planner,
    op: Op,
    tensor: Tensor,
    claims: dict[str, tuple[str, ...]],
    needs_whole: frozenset[str],
    given: Sequence[Sharding],
    partial: Sequence[Sequence[str]],
    times: int,
) -> None:
    """Decides one result: what it inherits, what new dimensions take, what the freed axes go to."""
    target = planner.place_of(tensor.primal)
    inherited = {name: axes for name, axes in claims.items() if name in tensor.shape.names}
    whole = frozenset(
        name for sharding in given for name in sharding.whole if name in tensor.shape.names
    )
    known = {name for x in op.inputs for name in x.shape.names}
    fresh = [
        name
        for name in tensor.shape.names
        if name not in known and name not in claims and name not in needs_whole
    ]
    natural = dict(inherited)
    layout = planner.layout_of(op)
    if target is not None:
        busy = {axis for axes in natural.values() for axis in axes} | {
            axis for axes in partial for axis in axes
        }
        for name in fresh:
            natural[name] = tuple(axis for axis in target.axes(name) if axis not in busy)
        planner.finish(
            op, tensor, dividing(planner, op, tensor, natural, fresh, whole), target, times, partial
        )
        return
    if op.derived:
        plain = Sharding.of(natural, whole)
        planner.finish(op, tensor, plain, plain, times, partial)
        return
    full, contested = planner.due(tensor.shape, natural, whole, layout)
    if contested:
        full = decided(planner, op, tensor, full, contested, layout)
    if not partial:
        natural |= {name: full[name] for name in fresh if name in full}
    planner.finish(
        op,
        tensor,
        dividing(planner, op, tensor, natural, fresh, whole),
        Sharding.of(full, whole),
        times,
        partial,
    )


def dividing(
    planner: Planner,
    op: Op,
    tensor: Tensor,
    held: dict[str, tuple[str, ...]],
    fresh: Iterable[str],
    whole: frozenset[str],
) -> Sharding:
    """What an op can make directly: a manual op makes new dimensions split only where they divide."""
    if op.manual:
        for name in fresh:
            if name in held and tensor.shape.named(name).size % planner.mesh.size(held[name]):  # type: ignore[union-attr]
                held = {key: axes for key, axes in held.items() if key != name}
    return Sharding.of(held, whole)


def decided(
    planner: Planner,
    op: Op,
    tensor: Tensor,
    held: dict[str, tuple[str, ...]],
    contested: dict[str, list[str]],
    layout: Layout,
) -> dict[str, tuple[str, ...]]:
    """Axes that two dimensions are due go to the one its first reader wants; else they stay idle or it is an error."""
    held = dict(held)
    for axis, names in contested.items():
        holder = hint(planner, tensor, axis, names)
        if holder is not None:
            order = planner.axes(layout, holder)
            held[holder] = tuple(a for a in order if a == axis or a in held.get(holder, ()))
        elif not op.constant and op.phase == "forward":
            fix = f"write nm.reshard({tensor.label}, {names[0]}) right after it, or nm.replicate({tensor.label})"
            raise planner.ambiguous(tensor, axis, names, fix, layout)
    return held


def hint(planner: Planner, tensor: Tensor, axis: str, names: Sequence[str]) -> str | None:
    """Finds the dimension that a reader, directly or through elementwise ops, expects to hold an axis."""
    seen: set[Tensor] = set()

    def search(tensor: Tensor) -> str | None:
        seen.add(tensor)
        for reader in planner.consumers.get(tensor, ()):
            if reader.rule == "move":
                taken = [name for name in reader.taken_dims if name in names]
                if taken:
                    return taken[0]
            elif reader.elementwise:
                places = (planner.plan.shardings.get(other) for other in reader.inputs)
                for holder in (place.holder(axis) for place in places if place is not None):
                    if holder in names:
                        return holder
                found = None if reader.outputs[0] in seen else search(reader.outputs[0])
                if found:
                    return found
        return None

    return search(tensor)
