"""What ops say about themselves holds: they are linear in the operands that `linear_in` names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.ir.evaluate import Eager, lower_op
from namedmesh.ir.op import Op, describe_op, every_op
from namedmesh.ir.tensor import Tensor
from tests.ops.partial_chains import SPECS, STEPS, gradient
from tests.programs import make_case
from tests.wide_programs import make_wide_case


def random_value(tensor: Tensor, rng: np.random.Generator) -> Any:
    """Small whole numbers of a tensor's shape: exact when added up, none of them zero."""
    tf = Eager().tf
    choices = [1, 2] if tensor.dtype.startswith("uint") else [-2, -1, 1, 2]
    numbers = rng.choice(choices, tensor.shape.sizes)
    return tf.constant(numbers > 0) if tensor.dtype == "bool" else tf.cast(numbers, tensor.dtype)


def assert_linear(op: Op, group: Sequence[int]) -> None:
    """The op of a sum is the sum of the op, and zero of zeros."""
    rng = np.random.default_rng(0)
    first = [random_value(x, rng) for x in op.inputs]
    second = [
        random_value(x, rng) if i in group else one
        for i, (x, one) in enumerate(zip(op.inputs, first, strict=True))
    ]
    both = [a + b if i in group else a for i, (a, b) in enumerate(zip(first, second, strict=True))]
    zeros = [a * 0 if i in group else a for i, a in enumerate(first)]
    one, two, total, none = (lower_op(op, Eager(), x) for x in (first, second, both, zeros))
    for a, b, whole, zero in zip(one, two, total, none, strict=True):
        # Added up in its dtype: whole numbers may wrap around.
        parts, whole = (np.asarray(y, np.float64) for y in (a + b, whole))
        short = a.dtype.name in ("bfloat16", "float16")
        atol = (2e-2 if short else 1e-5) * max(1.0, float(np.abs(whole).max(initial=0.0)))
        np.testing.assert_allclose(parts, whole, rtol=0, atol=atol, err_msg=str(op))
        np.testing.assert_array_equal(np.asarray(zero, np.float64), 0.0, err_msg=str(op))


def traced_ops(count: int) -> Iterator[Op]:
    """Ops of all kinds, forward and backward, as random programs have them."""
    for number in range(count):
        for case in (make_case(5, number), make_wide_case(5, number)):
            yield from every_op(nm.trace(case.function, **case.specs).ops)
    for step in STEPS.values():
        with_step = lambda x, w, step=step: gradient(lambda d, w, x: step(w, d, w, x), x, w)
        try:
            yield from every_op(nm.trace(with_step, **SPECS).ops)
        except nm.NamedMeshError:
            continue


@pytest.mark.parametrize("count", [5, 80])
def test_every_claim_of_linearity_holds(count):
    kinds, seen = set(), set()
    for op in traced_ops(count):
        key = describe_op(op)
        if key in seen or op.given or op.bodies or not op.inputs:
            continue
        seen.add(key)
        for group in op.linear_in:
            if not any(op.inputs[i].dtype == "bool" for i in group):
                assert_linear(op, group)
                kinds.add(op.kind)
    assert len(kinds) >= 20, sorted(kinds)
