"""From a function to a running step in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from namedmesh.dims.errors import NamedMeshError
from namedmesh.dims.layout import Layout
from namedmesh.dims.mesh import Mesh
from namedmesh.ir.interface import Specs
from namedmesh.ir.program import Program, trace
from namedmesh.lowering.export import export_planned
from namedmesh.lowering.plan import Plan
from namedmesh.lowering.planning import plan
from namedmesh.runtime import Executable


class Step(Executable):
    """A compiled step that also knows the program and the plan it came from."""

    def __init__(self, program: Program, planned: Plan, precision: str, strict: bool | None):
        self.program, self.plan = program, planned
        super().__init__(export_planned(planned, precision), strict=strict)


def compile(
    function: Callable[..., Any] | Program,
    /,
    *specs: Specs,
    mesh: Mesh,
    layout: Layout | str = "",
    params: Layout | str | None = None,
    precision: str = "default",
    strict: bool | None = None,
    **named: Specs,
) -> Step:
    """Traces, plans, lowers and compiles a function of named tensors, and audits what the compiler did.

    specs (nm.spec) describe the function's arguments. layout says which dimensions lie on which mesh axes;
    params, where given, does so for parameters and their slots at rest. precision is that of matrix products
    ("default", "high", "highest"). strict makes a collective that the plan does not have an error.
    """
    if isinstance(function, Program):
        if specs or named:
            raise NamedMeshError(
                "compile: a traced program has its specs already",
                fix="give specs with a function only",
            )
        program = function
    else:
        program = trace(function, *specs, **named)
    if not isinstance(mesh, Mesh):
        raise NamedMeshError(
            f"compile: mesh={mesh!r} is not a Mesh", fix="write e.g. mesh=nm.Mesh(data=8)"
        )
    return Step(program, plan(program, mesh, layout, params), precision, strict)
