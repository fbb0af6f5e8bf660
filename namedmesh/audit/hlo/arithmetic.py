"""The floating point operations of a compiled module's matrix products and convolutions."""

from __future__ import annotations

import math
import re

from namedmesh.audit.hlo.array_types import ArrayType
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
        share = _share_in_bounds(one, left, one.type.arrays[0])
        return 2.0 * results * right.elements / max(outputs, 1) * share
    text = f"lhs_contracting_dims={one.attributes.get('lhs_contracting_dims', '{}')}"
    if one.opcode == "custom-call":
        text = one.attributes.get("backend_config", "").replace('\\"', '"')
    found = _CONTRACTED.search(text)
    sizes = [left.sizes[int(i)] for i in re.findall(r"\d+", found[1])] if found else [0]
    return 2.0 * results * math.prod(sizes)


def _share_in_bounds(one: Instruction, left: ArrayType, result: ArrayType) -> float:
    """Return the share of a convolution's products that are not of padding or of holes.

    Compilers of TPUs write a product of matrices of several dimensions as a convolution, whose
    windows are of padding but for one element.
    """
    text = one.attributes.get("window", "").strip("{}")
    window = {name: sizes.split("x") for name, sizes in re.findall(r"(\w+)=(\S+)", text)}
    if not {"pad", "lhs_dilate"} & {*window}:
        return 1.0
    inputs, outputs = re.split("_.*->", one.attributes["dim_labels"])
    share = 1.0
    for i, size in enumerate(map(int, window["size"])):
        low = int(window["pad"][i].partition("_")[0]) if "pad" in window else 0
        others = ("stride", "lhs_dilate", "rhs_dilate")
        stride, holes, apart = (int(window[name][i]) if name in window else 1 for name in others)
        last = (left.sizes[inputs.index(str(i))] - 1) * holes
        made, inside = result.sizes[outputs.index(str(i))], 0
        for shift in range(-low, size * apart - low, apart):  # from a result to what it reads
            first = max(0, -(shift // stride))
            reads = range(first, min(made, (last - shift) // stride + 1))
            inside += (
                sum(not (at * stride + shift) % holes for at in reads) if holes > 1 else len(reads)
            )
        share *= inside / max(1, size * made)
    return share
