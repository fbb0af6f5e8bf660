"""Planning: from program, mesh and layout to a Plan, by a handful of rules applied op by op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from namedmesh.dims.errors import NamedMeshError
from namedmesh.dims.layout import Layout, LayoutLike
from namedmesh.dims.mesh import Mesh
from namedmesh.ir.op import Op
from namedmesh.ir.program import Program
from namedmesh.lowering.plan import Plan
from namedmesh.lowering.planner import Planner
from namedmesh.lowering.rules import settle_generic
from namedmesh.lowering.rules_control import (
    settle_cond,
    settle_cotangent,
    settle_move,
    settle_pass_through,
    settle_scan,
    settle_while,
)
from namedmesh.lowering.waste import find_waste, warn_of

# The rule of each kind of placement that an op can declare (Op.rule).
RULES: dict[str, Callable[[Planner, Any, int], None]] = {
    "generic": settle_generic,
    "cond": settle_cond,
    "cotangent": settle_cotangent,
    "move": settle_move,
    "pass_through": settle_pass_through,
    "scan": settle_scan,
    "while": settle_while,
}


def settle_op(planner: Planner, op: Op, times: int) -> None:
    """Plans one op by the rule that it declares."""
    RULES[op.rule](planner, op, times)


def plan(
    program: Program, mesh: Mesh, layout: LayoutLike = "", params: LayoutLike | None = None
) -> Plan:
    """Decides where every tensor of a program lies, and with that every collective.

    Needs no devices and neither TensorFlow nor jax.

    Args:
        program: What `nm.trace` returned.
        mesh: The devices, along named axes.
        layout: Which dimensions lie on which mesh axes, as text ('group:data+expert,
            expert:expert'), a dict or a Layout.
        params: The same for parameters, their gradients and slots at rest, where it differs.

    Returns:
        The plan of a step and of the variables' initialisation.

    Raises:
        NamedMeshError: The layout names what is not there, or two operands of an op hold one axis
            on different dimensions.

    Warns of mesh axes and mapped dimensions that nothing uses, and of padding above a tenth.

    Example:
        >>> import namedmesh as nm
        >>> B, M, H = nm.dims("batch=8 model=4 hidden=16")
        >>> def layer(x):
        ...     return nm.einsum([x, nm.param("w", [M, H])], [B, H])
        >>> program = nm.trace(layer, x=nm.spec([B, M]))
        >>> nm.plan(program, nm.Mesh(data=4), "batch:data", params="hidden:data").count("AllGather")
        1
    """
    if not isinstance(program, Program):
        given = getattr(program, "__name__", repr(program))
        raise NamedMeshError(
            f"plan: {given} is a {type(program).__name__}, not a Program",
            fix="trace the function first: nm.trace(function, x=nm.spec(...))",
        )
    if not isinstance(mesh, Mesh):
        raise NamedMeshError(
            f"plan: mesh={mesh!r} is not a Mesh", fix="write e.g. mesh=nm.Mesh(data=8)"
        )
    layout = Layout(layout)
    at_rest = layout if params is None else Layout(params)
    layout.check(mesh, program.dims)
    if params is not None:
        at_rest.check(
            mesh, program.resting_dims, "params layout", "parameter", "program.resting_dims"
        )
    step = Plan(program, mesh, layout, at_rest)
    planner = Planner(step, params is not None, "", settle_op)
    planner.plan_program(None)
    step.warnings.extend(find_waste(step, planner.resting))
    for name in program.variables:
        step.initializers[name] = _plan_initializer(step, name)
    warn_of(step)
    return step


def _plan_initializer(step: Plan, name: str) -> Plan:
    """Plans a variable's first value: made where it rests, no piece ever on another device."""
    place = step.shardings[step.program.variables[name].tensor]
    layout = Layout(place.mapping)
    plan = Plan(step.program.initializers[name], step.mesh, layout, layout)
    Planner(plan, False, f"{name}/", settle_op).plan_program([place])
    return plan
