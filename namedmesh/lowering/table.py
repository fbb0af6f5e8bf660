"""The plan as a table a person reads."""

from __future__ import annotations

from namedmesh.dims.text import columns, human
from namedmesh.ir.program import every_op
from namedmesh.lowering.plan import PHASES, Plan


def plan_table(plan: Plan) -> str:
    """Tensors, then collectives, then totals."""
    params = f", params {plan.params.text!r}" if plan.params != plan.layout else ""
    header = f"plan of {plan.program.name} on {plan.mesh}, layout {plan.layout.text!r}{params}"
    return "\n\n".join([header, tensor_table(plan), communication_table(plan)])


def tensor_table(plan: Plan) -> str:
    """Every tensor with the axes its dimensions hold; alike ones of a line once, scalars left out."""
    rows = [("tensor", "dims with the axes they hold", "bytes/device", "padding", "line")]
    for op in every_op(plan.program.ops):
        for tensor in op.outputs:
            if (
                tensor not in plan.shardings
                or not len(tensor.shape)
                or (op.derived and tensor.primal is None)
            ):
                continue
            sharding = plan.shardings[tensor]
            waste = sharding.waste(tensor.shape, plan.mesh)
            place = f"{tensor.dtype}{sharding.text(tensor.shape)}"
            row = (
                tensor.label,
                place,
                human(plan.bytes_per_device(tensor)),
                f"{waste:.0%}" if waste else "",
                str(op.source),
            )
            if row not in rows:
                rows.append(row)
    return "\n".join(columns(rows))


def communication_table(plan: Plan) -> str:
    """Every collective with the line it comes from, and the totals."""
    rows = [("phase", "collective", "axes", "tensor", "bytes/device", "times", "line")]
    for phase in PHASES:
        for one in plan.of_phase(phase):
            place = f"{one.source}: {one.source.code}"
            rows.append(
                (
                    phase,
                    one.kind,
                    "+".join(one.axes),
                    one.tensor,
                    human(one.bytes),
                    str(one.times),
                    place,
                )
            )
    lines = [*columns(rows), ""] if len(rows) > 1 else []
    for phase in PHASES:
        kinds: dict[str, int] = {}
        for one in plan.of_phase(phase):
            kinds[one.kind] = kinds.get(one.kind, 0) + one.times
        text = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "nothing"
        lines.append(f"  total {phase}: {text}, {human(plan.total_bytes([phase]))} per device")
    return "\n".join(lines)
