"""Waste: warnings of what a layout leaves unused."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from namedmesh.display.text import human
from namedmesh.ir.op import every_op
from namedmesh.ir.tensor import Tensor
from namedmesh.planning.plan import Plan

MOST_PADDING = 0.1
LARGE = 1 << 20  # bytes of a tensor that may be whole on every device without a word


def find_waste(plan: Plan, resting: Collection[Tensor]) -> Iterator[str]:
    """Yield a sentence for each thing a layout asks for in vain, or pays for without use."""
    yield from _find_idle_axes(plan)
    if plan.params.prefetch and not plan.placements.pipelines:
        yield (
            "params has prefetch, but no loop has a weight at rest that can be gathered an "
            f"iteration ahead, or a gradient to add up late (params: {plan.params.text})"
        )
    yield from _find_whole_dims(plan, resting)
    yield from _find_large_tensors(plan)
    yield from _find_padding(plan)
    yield from _find_gathered_blocks(plan)


def _find_idle_axes(plan: Plan) -> Iterator[str]:
    """Find mesh axes that no dimension is mapped to."""
    layouts = (plan.layout, plan.params)
    used = {axis for one in layouts for name in one.rules for axis in one.axes(name)}
    for axis, size in plan.mesh.axes.items():
        if size > 1 and axis not in used:
            yield (
                f"no dimension is mapped to mesh axis {axis!r}: its {size} devices all do the same "
                f"work (layout: {plan.layout.text or 'empty'})"
            )


def _find_whole_dims(plan: Plan, resting: Collection[Tensor]) -> Iterator[str]:
    """Find dimensions that no tensor has on the axis the layout maps them to."""
    dims = {dim for place in plan.shardings.values() for dim in place.held}
    held = {(name, axis) for name, axes in dims for axis in axes}
    for label, layout in {"layout": plan.layout, "params layout": plan.params}.items():
        at_rest = label == "params layout"
        if at_rest and plan.params is plan.layout:
            continue
        chosen = [tensor for tensor in plan.shardings if tensor in resting or not at_rest]
        for name in layout.rules:
            named = (tensor for tensor in chosen if tensor.shape.named(name))
            tensors = [tensor for tensor in named if tensor.shape.size_of(name) > 1]
            for axis in layout.axes(name) if tensors else ():
                if plan.mesh.axes[axis] > 1 and (name, axis) not in held:
                    first = tensors[0]
                    move = f"write nm.reshard({first.label}, {name}) where {name} should take it"
                    holder = plan.shardings[first].dimension_over(axis)
                    if holder is not None and axis in plan.layout.axes(holder):
                        earlier = f"take the axis away from {holder} with {holder}:-{axis}"
                    else:
                        earlier = "write it before what takes the axis"
                    fix = earlier if at_rest else move
                    yield (
                        f"the {label} maps dimension {name} to mesh axis {axis!r}, but every "
                        f"tensor keeps it whole there, such as {first.label}: "
                        f"{plan.shardings[first].text(first.shape)}; "
                        f"{fix}, or leave it out of the {label}"
                    )


def _find_large_tensors(plan: Plan) -> Iterator[str]:
    """Find large inputs, variables and activations that keep a mapped dimension whole."""
    program, constants = plan.program, plan.placements.constants
    variables = {one.tensor: one for one in program.variables.values()}
    written = [op for op in every_op(program.ops) if op.phase == "forward" and not op.derived]
    made = [tensor for op in written if not op.given for tensor in op.outputs]
    found: dict[tuple[str, str], list[Tensor]] = {}
    for tensor in dict.fromkeys([*program.inputs.values(), *variables, *made]):
        place = plan.shardings.get(tensor)
        if place is None or tensor in constants:
            continue
        rests = tensor in variables and variables[tensor].at_rest
        layout = plan.params if rests else plan.layout
        size = plan.bytes_per_device(tensor)
        for dim in tensor.shape if size >= LARGE else ():
            mapped = () if dim.name in place.whole else layout.axes(dim.name)
            for axis in mapped:
                taken = axis in place.used or axis in place.partial
                if dim.size > 1 and plan.mesh.axes[axis] > 1 and not taken:
                    found.setdefault((dim.name, axis), []).append(tensor)
    for (name, axis), tensors in found.items():
        first = max(tensors, key=plan.bytes_per_device)
        size = human(plan.bytes_per_device(first))
        more = f" (and {len(tensors) - 1} more)" if len(tensors) > 1 else ""
        yield (
            f"{first.label}{more} keeps dimension {name} whole, which the layout maps to mesh axis "
            f"{axis!r}: {plan.shardings[first].text(first.shape)}, {size} on every "
            f"device; write nm.reshard({first.label}, {name}) where it should take the axis, or "
            f"nm.replicate({first.label}, {name}) where it should not"
        )


def _find_padding(plan: Plan) -> Iterator[str]:
    """Find dimensions of which more than a tenth is padding."""
    seen = {
        (dim, place.axes(dim.name))
        for tensor, place in plan.shardings.items()
        for dim in tensor.shape
        if place.axes(dim.name)
    }
    for dim, axes in sorted(seen, key=str):
        ways = plan.mesh.size(axes)
        padded = -(-dim.size // ways) * ways
        if 1 - dim.size / padded > MOST_PADDING:
            yield (
                f"{dim} over the {ways} devices of {'+'.join(axes)} is padded to {padded}: "
                f"{1 - dim.size / padded:.0%} of the work and memory is for nothing; choose a size "
                f"that {ways} divides, or map it to a smaller axis"
            )


def _find_gathered_blocks(plan: Plan) -> Iterator[str]:
    """Find split dimensions that a loop takes by blocks, on whose axes it has nothing else."""
    for loop in every_op(plan.program.ops):
        over = None if loop.loop is None else loop.loop.over
        if over is None:
            continue
        places = [plan.shardings[y] for y in loop.outputs if y in plan.shardings]
        busy = {axis for place in places for axis in place.used}
        for i, x in enumerate(loop.inputs):
            maker = plan.placements.producers.get(x)
            if maker is None or maker.kind != "reshape" or over not in x.shape:
                continue
            (source,), place = maker.inputs, plan.shardings[maker.inputs[0]]
            kept = busy.union(plan.placements.operand_sharding(loop, i).used)
            for dim in source.shape:
                idle = [axis for axis in place.axes(dim.name) if axis not in kept]
                if idle and dim not in x.shape:
                    yield (
                        f"{source.label} is split along {dim} over {'+'.join(idle)}, but a loop "
                        f"takes it by blocks ({over}): it is gathered, and these "
                        f"devices all do the same work ({loop.source}); for nm.attention, "
                        f"block={dim.size} keeps it split, or map the queries' positions instead"
                    )
