"""From a function to a running step in one call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from namedmesh.dims.layout import LayoutLike
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError
from namedmesh.errors.mistakes import check_keywords, is_function
from namedmesh.errors.source import Source
from namedmesh.ir.context import import_tensorflow
from namedmesh.ir.interface import Specs
from namedmesh.ir.program import Program, trace
from namedmesh.lowering.by_sizes import StepBySizes
from namedmesh.planning.plan import Plan
from namedmesh.planning.plan_program import plan
from namedmesh.runtime import Executable
from namedmesh.runtime.partitioner import choose_partitioner
from namedmesh.signature.nest import unflatten

# The keywords of nm.compile that are not inputs of the function.
_OPTIONS = ("mesh", "layout", "params", "precision", "strict", "partitioner", "conflicts", "target")


class Step(Executable):
    """A compiled step that also knows its program and plan.

    Args:
        plan: What to lower and compile.
        precision: The precision of matrix products: default, high or highest.
        strict: Whether a collective that the plan does not have is an error.
        partitioner: `gspmd` or `shardy`.

    Example:
        >>> import numpy as np
        >>> import namedmesh as nm
        >>> B = nm.Dimension("batch", 8)
        >>> program = nm.trace(lambda x: nm.sum(x), x=nm.spec([B]))
        >>> step = nm.Step(nm.plan(program, nm.Mesh(data=2), "batch:data"))
        >>> _, total = step(None, np.ones(8, np.float32))
        >>> float(total)
        8.0
    """

    def __init__(
        self,
        plan: Plan,
        precision: str = "default",
        strict: bool | None = None,
        partitioner: str | None = None,
    ):
        # Imported here: lowering needs TensorFlow, the annotation `step: nm.Step` does not.
        import_tensorflow()  # quietly; the next line would import it too
        from namedmesh.lowering.export import export_planned

        if not isinstance(plan, Plan):
            raise NamedMeshError(
                f"a step is made from a Plan, not from a {type(plan).__name__}",
                fix="write nm.Step(nm.plan(program, mesh, layout)), or nm.compile(function, ...)",
            )
        self.program, self.plan = plan.program, plan
        partitioner = choose_partitioner(partitioner)
        from namedmesh.processes.devices import device_mesh  # imports jax

        device_mesh(plan.mesh)  # before functions of jax are lowered, which fixes the devices
        super().__init__(export_planned(plan, precision), strict=strict, partitioner=partitioner)

    def _list_sources(self) -> dict[str, Source]:
        """List the user's line of each op by its name in compiled code."""
        return {name: op.source.user for op, name in self.plan.placements.names.items()}

    def _nest(self, leaves: Sequence[Any]) -> Any:
        """Nest results as the traced function does, in its own classes of named tuples."""
        return self._print(unflatten(self.program.structure, iter(leaves)))


def compile(
    function: Callable[..., Any] | Program,
    /,
    *specs: Specs,
    mesh: Mesh,
    layout: LayoutLike = "",
    params: LayoutLike | None = None,
    precision: str = "default",
    strict: bool | None = None,
    partitioner: str | None = None,
    conflicts: str = "error",
    target: Any = None,
    **named: Specs,
) -> Step:
    """Trace, plan, lower and compile a function, and audit what the compiler did.

    Args:
        function: A function of named tensors, or a program that was traced already.
        *specs: An `nm.spec`, or an example `([B, M], array)`, for each positional argument, or some
            nested as the function takes them. Without any, the step is compiled when it is called,
            for the sizes and dtypes of arrays by `nm.named`, once for each.
        mesh: The devices, along named axes.
        layout: The mesh axes that dimensions are sharded over.
        params: The axes that parameters, their gradients and slots have at rest besides.
        precision: The precision of matrix products: default, high or highest.
        strict: Whether a collective that the plan does not have is an error, and not a warning;
            NAMEDMESH_STRICT decides by default.
        partitioner: `gspmd` or `shardy`; NAMEDMESH_PARTITIONER decides by default.
        conflicts: What `nm.plan` takes.
        target: The hardware whose memory `remat="fit"` is chosen for, by default the devices here.
        **named: Specs by argument name.

    Returns:
        The step, called as `state, results = step(state, *inputs)`.

    Example:
        >>> import numpy as np
        >>> import namedmesh as nm
        >>> B, M = nm.dims("batch=8 model=4")
        >>> def mean(x):
        ...     return nm.mean(x, over=B)
        >>> step = nm.compile(mean, nm.spec([B, M]), mesh=nm.Mesh(data=4), layout="batch:data")
        >>> _, result = step(None, np.tile(np.float32([1, 2, 3, 4]), (8, 1)))
        >>> result
        Array([1., 2., 3., 4.], dtype=float32)
    """
    if not (specs or named or isinstance(function, Program)) and is_function(function):
        options = {"mesh": mesh, "layout": layout, "params": params, "precision": precision}
        options |= {"strict": strict, "partitioner": partitioner, "conflicts": conflicts}
        steps: Any = StepBySizes(function, functools.partial(compile, **options, target=target))
        if inspect.signature(function).parameters:  # they come with the first call
            return steps
    if isinstance(function, Program):
        if specs or named:
            problem = "compile: a traced program has its specs already"
            raise NamedMeshError(problem, fix="give specs with a function only")
        program = function
    else:
        if callable(function):
            check_keywords("nm.compile", named, function, _OPTIONS)
        program = trace(function, *specs, **named)
    if target is None and program.retrace is not None:
        from namedmesh.processes.devices import device_mesh  # imports jax

        target = device_mesh(mesh).devices.flat[0].device_kind
    planned = plan(program, mesh, layout, params, conflicts=conflicts, target=target)
    return Step(planned, precision, strict, partitioner)
