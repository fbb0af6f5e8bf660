"""What depends on what, through a body under construction and the programs around it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.op import Op
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import Trace


def enclosing_traces(trace: Trace) -> list[Trace]:
    """Return a trace and those around it, the innermost first."""
    traces = [trace]
    while traces[-1].parent is not None:
        traces.append(traces[-1].parent)
    return traces


def reach_tensors(traces: Sequence[Trace], targets: Iterable[Tensor]) -> set[Tensor]:
    """Return everything in nested traces, innermost first, that depends on some tensors."""
    reached = set(targets)
    for level in reversed(traces):
        reached.update(inner for outer, inner in level.captures.items() if outer in reached)
        reached = follow_ops(level.ops, reached)
    return reached


def follow_ops(ops: Iterable[Op], tensors: Iterable[Tensor]) -> set[Tensor]:
    """Return some tensors and all that depend on them differentiably."""
    reached = set(tensors)
    for op in ops:
        if not op.stops_gradient and any(tensor in reached for tensor in op.inputs):
            reached.update(tensor for tensor in op.outputs if tensor.floating)
    return reached


def check_arguments(trace: Trace, results: Iterable[Tensor], reached: set[Tensor]) -> None:
    """Raise when results of a body depend on reached tensors through the body's arguments."""
    for inner, outer in trace.arguments.items():
        if outer in reached and not follow_ops(trace.ops, [inner]).isdisjoint(results):
            raise NamedMeshError(
                f"grad: inside a loop body or region, the loss depends on {outer.label} through "
                "an argument of the body, and wrt= names a tensor outside",
                str(outer),
                fix="name the body's own argument in wrt=, or call nm.grad outside the body",
            )
