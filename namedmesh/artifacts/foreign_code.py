"""Functions of jax in an Artifact: calls that carry StableHLO, put in their place when loaded."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from namedmesh.artifacts.regions import blocks, call_target, close_regions
from namedmesh.artifacts.splicing import Template, main_template, replace_call
from namedmesh.errors.errors import NamedMeshError, join_names

CALL = "namedmesh_jax"  # as ops/jax_code.py writes it


def insert_code(module: ir.Module, platforms: Sequence[str]) -> None:
    """Replace every call of a jax function by what the function is on a platform."""
    calls = [
        view.operation
        for block in blocks(module.operation)
        for view in block.operations
        if call_target(view.operation) == CALL
    ]
    templates: dict[str, Template] = {}
    for op in calls:
        call = json.loads(ir.StringAttr(op.attributes["backend_config"]).value)
        code = _choose_code(call, platforms[0])
        if code not in templates:
            artifact = base64.b64decode(code)
            parsed = stablehlo.deserialize_portable_artifact(module.context, artifact)  # type: ignore[call-overload]
            templates[code] = main_template(parsed)
        with ir.InsertionPoint(op):
            results = templates[code].copy(list(op.operands), lambda _, at=op.location: at)
        replace_call(op, results)
    if calls:
        close_regions(module.operation)


def _choose_code(call: dict[str, Any], platform: str) -> str:
    """Return the code of a call for a platform."""
    wanted = "cuda" if platform == "gpu" else platform
    if wanted not in call["code"]:
        raise NamedMeshError(
            f"call_jax: {call['name']} has no code for {wanted}",
            f"it has code for: {join_names(sorted(call['code']))}",
            *([f"jax says: {call['missing'][wanted]}"] if wanted in call["missing"] else []),
            fix=f"run it on {join_names(sorted(call['code']))}, or call a function that jax can "
            f"lower for {wanted}",
        )
    return call["modules"][call["code"][wanted]]
