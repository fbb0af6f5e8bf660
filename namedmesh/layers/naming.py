"""Names of weights that a layer chooses by itself: one layer of a scope may have each."""

from __future__ import annotations

from namedmesh.errors.errors import NamedMeshError
from namedmesh.errors.source import caller
from namedmesh.ir.trace import current


def claim_name(layer: str, name: str, *, named: bool = False) -> str:
    """Return a name that a layer chose by itself, or raise if another layer here has chosen it.

    Otherwise two layers would share a weight without a word. Weights are shared on purpose by a
    name that is passed to both layers, or by a scope that is entered again for each.
    """
    trace = current(layer)
    if name in trace.claimed:
        first = trace.claimed[name]
        fix = "put each in its own nm.scope, or, to share the weights, enter one scope for each"
        if named:
            fix = "pass each its own name=, or, to share the weight, the same name= to both"
        raise NamedMeshError(
            f"{layer}: an earlier layer has the weight {trace.scope}{name}, "
            "which this one would share by default",
            f"first at {first}: {first.code}",
            fix=fix,
        )
    trace.claimed[name] = caller()
    return name
