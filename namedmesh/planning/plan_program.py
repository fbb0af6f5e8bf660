"""Planning: from program, mesh and layout to a Plan, by a handful of rules applied op by op."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from namedmesh.dims.layout import Layout, LayoutLike
from namedmesh.dims.mesh import Mesh
from namedmesh.display.text import name_some
from namedmesh.errors.errors import NamedMeshError, check_word, name_all, suggest_names
from namedmesh.errors.mistakes import ByName
from namedmesh.errors.source import warn_caller
from namedmesh.ir.op import Op
from namedmesh.ir.program import Program
from namedmesh.planning.conflicts import LayoutConflict
from namedmesh.planning.fit import fit_plan
from namedmesh.planning.loop_rules import plan_branches, plan_loop
from namedmesh.planning.move_rules import plan_kernel, plan_move, plan_pass_through, plan_sum
from namedmesh.planning.plan import Plan
from namedmesh.planning.planner import Planner
from namedmesh.planning.prefetch import plan_pipelines
from namedmesh.planning.prices import tell_row_updates, tell_sorts
from namedmesh.planning.rules import plan_by_name
from namedmesh.planning.state import Default
from namedmesh.planning.waste import find_waste

CONFLICTS = ("error", "cheapest")


class RulePlanner(Planner):
    """The planner with the rules that ops choose from: it is `PlacementRules`."""

    place_by_name = plan_by_name
    place_pass_through = plan_pass_through
    place_kernel = plan_kernel
    place_move = plan_move
    place_sum = plan_sum
    place_loop = plan_loop
    place_branches = plan_branches

    def plan_ops(self, ops: Sequence[Op], times: int) -> None:
        """Plan ops in order, each by the rule that it chooses."""
        for op in ops:
            if not op.given:
                op.plan(self, times)

    def check_conflicts(self) -> None:
        """Raise the first conflict, if it is an error."""
        if self.state.conflict is not None:
            raise self.state.conflict

    def make_plan(self) -> Plan:
        """Return the plan of what was planned."""
        state = self.state
        state.drop_unread()
        plan_pipelines(self)
        tell_row_updates(self)
        tell_sorts(self)
        for (tensor, name, axis), other in self.yielded.items():
            if tensor in state.shardings:
                text = f"{other} takes {axis} in an op with {name}, which stays whole"
                state.decide(text, tensor)
        decisions = {text: tuple(dict.fromkeys(names)) for text, names in state.decisions.items()}
        return Plan(
            self.program,
            self.mesh,
            self.layout,
            self.params,
            MappingProxyType(ByName(state.shardings)),
            tuple(state.collectives),
            MappingProxyType(decisions),
            state.placements(),
        )


def plan(
    program: Program,
    mesh: Mesh,
    layout: LayoutLike = "",
    params: LayoutLike | None = None,
    *,
    conflicts: str = "error",
    target: Any = None,
    verify: bool = False,
) -> Plan:
    """Decide every sharding and collective; needs no devices and neither TensorFlow nor jax.

    Args:
        program: What `nm.trace` returned.
        mesh: The devices, along named axes.
        layout: The mesh axes that dimensions are sharded over, as text ('group:data+expert,
            expert:expert'), a dict or a Layout.
        params: The axes that parameters, their gradients and slots have at rest beside those of the
            layout; in it `hidden:-model` takes an axis away, and `!*scale` exempts parameters by
            name.
        conflicts: Where operands of an op want one axis for different dimensions, `error` lists
            every fix with its price, and `cheapest` takes the cheapest: see `plan.decisions`.
        target: The hardware whose memory `remat="fit"` is chosen for, as `nm.cost` takes it: the
            program is traced again with more and more computed again until it fits.
        verify: Whether to compile for the target (`tpu-v3:8x8`, `h100:32x8`) what the estimate
            chose, and to choose less to store until the compiler's memory fits too.

    Returns:
        The plan of a step and of the variables' initialisation. Warns of mesh axes and mapped
        dimensions that nothing uses, and of padding above a tenth.

    Raises:
        LayoutConflict: Two operands of an op want one axis for different dimensions.
        NamedMeshError: With `remat="fit"`, if the step does not fit with everything computed again.

    Example:
        >>> import namedmesh as nm
        >>> B, M, H = nm.dims("batch=8 model=4 hidden=16")
        >>> def layer(x):
        ...     return nm.einsum([x, nm.param("w", [M, H])], [B, H])
        >>> program = nm.trace(layer, x=nm.spec([B, M]))
        >>> nm.plan(program, nm.Mesh(data=4), "batch:data", params="hidden:data").count("AllGather")
        1
    """
    if isinstance(program, Program) and program.retrace is not None:
        options = {"mesh": mesh, "layout": layout, "params": params, "conflicts": conflicts}
        return fit_plan(program, options, target, verify)
    planner = _plan_step(program, mesh, layout, params, conflicts)
    step = planner.make_plan()
    cheapest = planner.take_cheapest
    initializers = {name: _plan_initializer(step, name, cheapest) for name in program.variables}
    warnings = tuple(find_waste(step, planner.state.resting))
    step = replace(step, warnings=warnings, initializers=MappingProxyType(initializers))
    for sentence in warnings:
        warn_caller(sentence)
    return step


def plan_step(
    program: Program, mesh: Mesh, layout: LayoutLike = "", params: LayoutLike | None = None
) -> Plan:
    """Plan a step alone: neither how its variables are made nor what the layout leaves unused."""
    return _plan_step(program, mesh, layout, params, "error").make_plan()


def plan_cheapest(
    program: Program, mesh: Mesh, layout: LayoutLike = "", params: LayoutLike | None = None
) -> tuple[Plan, Sequence[frozenset[str]]]:
    """Plan a step alone, conflicts by the cheapest move; return their dimensions too."""
    planner = _plan_step(program, mesh, layout, params, "cheapest")
    return planner.make_plan(), planner.state.solved


def _plan_step(
    program: Program, mesh: Mesh, layout: LayoutLike, params: LayoutLike | None, conflicts: str
) -> RulePlanner:
    """Plan a step, and return the planner of the last pass."""
    if not isinstance(program, Program):
        given = getattr(program, "__name__", repr(program))
        raise NamedMeshError(
            f"plan: {given} is a {type(program).__name__}, not a Program",
            fix="trace the function first: nm.trace(function, x=nm.spec(...))",
        )
    if not isinstance(mesh, Mesh):
        fix = "write e.g. mesh=nm.Mesh(data=8)"
        raise NamedMeshError(f"mesh={mesh!r} is not a Mesh", fix=fix)
    check_word("way with conflicts", conflicts, CONFLICTS)
    layout, at_rest = Layout(layout), None if params is None else Layout(params)
    layout.check(mesh, program.dims)
    if at_rest is not None:
        dims = program.resting_dims
        at_rest.check(mesh, dims, "params layout", "parameter", "program.resting_dims")
    _check_removed(layout, at_rest or layout)
    _check_exempt(program, layout, at_rest or layout)
    cheapest, yielded = conflicts == "cheapest", dict[Default, str]()
    while True:
        planner = RulePlanner(program, mesh, layout, at_rest, "", cheapest, dict(yielded))
        yielding = planner.state.yielding
        try:
            planner.plan_program()
        except LayoutConflict:
            assert yielding, "only where claims yield, and there is another pass"
        except NamedMeshError:
            planner.check_conflicts()  # of which the error may be a consequence
            raise
        if not yielding:
            planner.check_conflicts()
            return planner
        yielded |= yielding  # and again, without the claims that yield


def _plan_initializer(step: Plan, name: str, take_cheapest: bool) -> Plan:
    """Plan a variable's first value: made where it rests, no shard ever on another device."""
    place = step.shardings[step.program.variables[name].tensor]
    program, layout = step.program.initializers[name], Layout(place.mapping)
    planner = RulePlanner(program, step.mesh, layout, None, f"{name}/", take_cheapest)
    planner.plan_program([place])
    planner.check_conflicts()
    return planner.make_plan()


def _check_removed(layout: Layout, params: Layout) -> None:
    """Raise for axes that are taken away from what does not have them, or in use; and a limit."""
    if params.slices is not None and params is not layout:
        raise NamedMeshError(
            "params has the limit of slices, which products have in use",
            f"params: {params.text}",
            fix="write slices= in the layout",
        )
    if layout.prefetch:
        raise NamedMeshError(
            "the layout has prefetch, which is about parameters at rest",
            f"layout: {layout.text}",
            fix="write prefetch in params=",
        )
    if layout.removed:
        raise NamedMeshError(
            f"the layout takes axes away: {', '.join(layout.removed)}",
            f"layout: {layout.text}",
            fix="leave them out of the layout; params=, which adds to it, may take axes away",
        )
    for name, axes in params.removed.items():
        missing = [axis for axis in axes if axis not in layout.axes(name)]
        if missing:
            mapped = [axis for axis in layout.axes(name) if axis not in axes]
            raise NamedMeshError(
                f"params takes {name_all('axis', [repr(axis) for axis in missing], 'axes')} away "
                f"from {name}, which the layout does not map to it",
                f"params: {params.text}",
                f"layout: {layout.text}",
                fix=suggest_names(missing, mapped) if mapped else f"leave {name} out of params",
            )


def _check_exempt(program: Program, layout: Layout, params: Layout) -> None:
    """Raise for patterns of names that are not in params=, or that no parameter has."""
    if layout.exempt:
        raise NamedMeshError(
            f"the layout exempts parameters by name: {', '.join(layout.exempt)}",
            f"layout: {layout.text}",
            fix="exempt names in params=, the layout of parameters at rest",
        )
    names = [name for name, variable in program.variables.items() if variable.at_rest]
    exempts = {pattern: Layout({}, [pattern]).exempts for pattern in params.exempt}
    unused = [pattern for pattern, matches in exempts.items() if not any(map(matches, names))]
    if unused:
        raise NamedMeshError(
            f"params exempts {', '.join(map(repr, unused))}, which no parameter is called",
            f"params: {params.text}",
            f"parameters: {name_some(names)}",
            fix=_suggest_pattern(unused[0], names),
        )


def _suggest_pattern(pattern: str, names: Sequence[str]) -> str:
    """Return the closest ending of a name for a pattern, or how patterns are written."""
    words = {name.rpartition("/")[2] for name in names}
    endings = {*words, *(word.rpartition("_")[2] for word in words)}
    close = difflib.get_close_matches(pattern.strip("*/"), sorted(endings), n=1)
    if close:
        return f"did you mean '!*{close[0]}'?"
    return "a * stands for any part of a name, scopes included, e.g. !*scale"
