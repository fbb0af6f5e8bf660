"""Why a plan has a collective, or a tensor whole: the rule, the operands, what would change it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from namedmesh.dims.sharding import Sharding
from namedmesh.display.text import human
from namedmesh.errors.errors import NamedMeshError, did_you_mean, join_names
from namedmesh.ir.op import every_op
from namedmesh.ir.tensor import Tensor
from namedmesh.records.collective import KINDS, REDUCING, Collective


def explain(plan: Any, what: str | Tensor) -> str:
    """Explain collectives and shardings that a text or a tensor names."""
    label = what.label if isinstance(what, Tensor) else str(what)
    kind, _, rest = label.partition(" of ")
    kind, tensor = (kind, rest) if kind in KINDS else ("", label)
    found = [
        one
        for one in (*plan.collectives, *plan.initial_collectives)
        if kind in ("", one.kind) and tensor in ("", one.tensor)
    ]
    texts = ["\n".join(_explain_collective(plan, one)) for one in found]
    made = [x for op in every_op(plan.program.ops) for x in op.outputs if x.label == tensor]
    if not kind:
        texts += dict.fromkeys("\n".join(_explain_tensor(plan, x)) for x in made)
    if not texts:
        known = {x.label for op in every_op(plan.program.ops) for x in op.outputs}
        fix = did_you_mean(tensor, known) if tensor else "print the plan to see what it has"
        raise NamedMeshError(f"why: the plan has no {label}", fix=fix)
    decided = [text for text, names in plan.decisions.items() if tensor in names]
    return "\n\n".join([*texts, *decided])


def _explain_collective(plan: Any, one: Collective) -> Iterator[str]:
    ops = {name: op for op, name in plan.placements.names.items()}
    maker, reader = ops.get(one.producer), ops.get(one.op)
    axes = join_names([*one.axes])
    yield f"{one.kind} of {one.tensor} over {axes}: {human(one.bytes)}, {one.times} times"
    yield f"  at {one.source}: {one.source.code}"
    op = maker if one.kind in REDUCING and maker is not None else reader or maker
    if op is None:
        return
    moved = [x for x in op.inputs if x.label == one.tensor and one.kind not in REDUCING]
    dims = _sharded(plan, moved or op.inputs, one.axes)
    asked, placement = dims, op.placement()
    if one.kind in REDUCING:
        asked = [dim for dim in dims if dim in placement.reduced] or dims
        yield f"  rule: {op.kind} sums over {join_names(asked)}, which is sharded over {axes}: each"
        yield "  device has a partial sum, and the first reader that needs the value has them added"
    elif op.states_place:
        yield f"  rule: {op.kind} asks for the result elsewhere"
    elif set(dims) & placement.exchanged:
        yield f"  rule: {op.kind} works on {join_names(dims)} as it is split, and sends by itself"
    elif set(dims) & (placement.whole | {*placement.renames}):
        yield f"  rule: {op.kind} needs {join_names(dims)} whole, or under another name"
    else:
        yield f"  rule: {op.kind} has one dimension over each axis, and another one over {axes}"
    for role, tensors in (("operand", op.inputs), ("result", op.outputs)):
        for x in tensors:
            if len(x.shape):
                yield f"  {role} {x.label}: {plan.shardings.get(x, Sharding()).text(x.shape)}"
    mapped = [dim for dim in asked if plan.layout.axes(dim)]
    rests = any(set(plan.params.axes(dim)) & {*one.axes} for dim in asked) and not mapped
    if rests:
        yield "  change: params= shards it at rest, and it is gathered to be used"
    elif mapped:
        first = mapped[0]
        entry = f"{first}:{'+'.join(plan.layout.axes(first))}"
        yield f"  change: without {entry!r} in the layout it is not there, and {first} is not split"


def _sharded(plan: Any, tensors: Iterable[Tensor], axes: tuple[str, ...]) -> list[str]:
    """List the dimensions of tensors that some axes shard, before they are moved."""
    found: dict[str, None] = {}
    for x in tensors:
        known = (plan.placements.natural.get(x), plan.shardings.get(x))
        for sharding in [place for place in known if place is not None]:
            split = [dim.name for dim in x.shape if {*sharding.axes(dim.name)} & {*axes}]
            found.update(dict.fromkeys(split))
    return [*found]


def _explain_tensor(plan: Any, x: Tensor) -> Iterator[str]:
    place = plan.shardings.get(x, Sharding())
    yield f"{x.label}: {x.dtype}{place.text(x.shape)}"
    used = {axis: dim.name for dim in x.shape for axis in place.axes(dim.name)}
    for dim in x.shape:
        wanted, has = plan.layout.axes(dim.name), place.axes(dim.name)
        if has:
            yield f"  {dim.name} is sharded over {join_names([*has])}"
        elif not wanted:
            yield f"  {dim.name} is whole: the layout maps it to no axis"
        elif {*wanted} & used.keys():
            other = next(used[axis] for axis in wanted if axis in used)
            yield f"  {dim.name} is whole: {other} has the axis {join_names([*wanted])} here"
        else:
            yield f"  {dim.name} is whole: what makes or reads it needs it so, or it was asked"
