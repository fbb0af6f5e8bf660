"""What kind of op an op is, where the compiler's fusions ask."""

from __future__ import annotations

from collections.abc import Sequence

from namedmesh.dims.sharding import Transfer
from namedmesh.ir.op import Op

# Elementwise functions that XLA calls expensive.
COSTLY = {
    "cos", "divide", "erf", "erfinv", "exp", "expm1", "log", "log1p", "power", "reciprocal",
    "rsqrt", "sigmoid", "sin", "sqrt", "tanh",
}  # fmt: skip


def is_product(op: Op) -> bool:
    """Whether an op is a matrix product or a convolution."""
    return op.kept_by_dots and op.inherits_sharding and not op.elementwise


def only_rearranges(op: Op) -> bool:
    """Whether an op makes no new numbers; a sum of constants makes constants, but adds them up."""
    return op.rearranges and not op.sums


def moves_data(steps: Sequence[Transfer]) -> bool:
    """Whether there is a collective among some transfers."""
    return any(step.kind not in ("Slice", "Alone") for step in steps)


def spreads(op: Op) -> bool:
    """Whether an op makes more of less without arithmetic, as a one-hot tensor of indices is."""
    if op.manual or op.control or not op.inputs or op.flops():
        return False
    return all(x.shape.elements < op.output.shape.elements for x in op.inputs)


def keeps_numbers(op: Op) -> bool:
    """Whether the only result has the numbers of the only operand."""
    (x,), y = op.inputs, op.output
    same = x.dtype == y.dtype and x.shape.elements == y.shape.elements
    return same and (op.elementwise or only_rearranges(op)) and not op.flops()
