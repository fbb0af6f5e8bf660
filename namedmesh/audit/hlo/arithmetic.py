"""The floating point operations of a compiled module's matrix products and convolutions."""

from __future__ import annotations

import math
import re

from namedmesh.audit.hlo.module import Computation, Instruction, Module
from namedmesh.audit.hlo.trip_counts import count_runs

# The contracted dimensions of a product's first operand: of a dot, and of a library's kernel.
_CONTRACTED = re.compile(r'"?lhs_contracting_dim(?:ension)?s"?[:=]\s*[\[{]([\d,"\s]*)[\]}]')


def count_flops(module: Module) -> float:
    """Count the operations of one device in one step."""
    runs = count_runs(module)
    return sum(
        runs.get(computation.name, 0) * product_flops(computation, one)
        for computation, one in module.instructions()
        if one.opcode in ("dot", "convolution", "custom-call")
    )


def product_flops(computation: Computation, one: Instruction) -> float:
    """Count the operations of a product or a convolution; 0 for other instructions."""
    operands = [type.arrays[0] for type in computation.operand_types(one)[:2] if type.arrays]
    if len(operands) < 2 or not one.type.arrays:
        return 0.0
    results, (left, right) = one.type.arrays[0].elements, operands
    if one.opcode == "convolution":
        kernel = one.attributes.get("dim_labels", "").partition("_")[2].partition("-")[0]
        outputs = right.sizes[kernel.index("o")] if "o" in kernel else 1
        return 2.0 * results * right.elements / max(outputs, 1)
    text = f"lhs_contracting_dims={one.attributes.get('lhs_contracting_dims', '{}')}"
    if one.opcode == "custom-call":
        text = one.attributes.get("backend_config", "").replace('\\"', '"')
    found = _CONTRACTED.search(text)
    sizes = [left.sizes[int(i)] for i in re.findall(r"\d+", found[1])] if found else [0]
    return 2.0 * results * math.prod(sizes)
