"""Expected results of an op, by jax in float64: values, derivatives and second derivatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.coverage.entry import Entry
from tests.checks import cotangent_array


def expected(
    entry: Entry, arrays: Mapping[str, np.ndarray], weights: Mapping[str, np.ndarray], order: int
) -> dict[str, Any]:
    """Return the values of an entry's reference, and its derivatives up to an order.

    Derivatives are those of a loss that is not linear in the result, so that the second
    derivative of a linear op is not zero.
    """
    assert entry.reference is not None
    with jax.enable_x64(True):
        given = [_in_float64(array) for array in arrays.values()]
        named = {name: _in_float64(array) for name, array in weights.items()}
        chosen = [i for i, array in enumerate(given) if array.dtype.kind == "f"]
        function = _losses(entry, given, chosen, bool(named))
        floats = [given[i] for i in chosen], named
        return jax.device_get(jax.jit(function, static_argnums=1)(floats, order))


def _losses(entry: Entry, given: Sequence[Any], chosen: Sequence[int], weighted: bool):
    """Return the function from floating point operands and an order to values and derivatives."""

    def values(floats):
        operands, named = list(given), floats[1]
        for i, array in zip(chosen, floats[0], strict=True):
            operands[i] = array
        assert entry.reference is not None
        result = entry.reference(*operands, *([named] if weighted else []))
        return jax.tree.leaves(result)

    def loss(floats):
        found = [y for y in values(floats) if jnp.issubdtype(y.dtype, jnp.floating)]
        return _weigh([y + y * y / 2 for y in found])

    def both(floats, order):
        results = {"value": values(floats)}
        if order > 0:
            results["first"] = jax.tree.leaves(jax.grad(loss)(floats))
        if order > 1:
            slope = lambda floats: _weigh(jax.tree.leaves(jax.grad(loss)(floats)))
            results["second"] = jax.tree.leaves(jax.grad(slope)(floats))
        return results

    return both


def _weigh(arrays: Sequence[Any]) -> Any:
    return sum(jnp.sum(array * cotangent_array(array.shape)) for array in arrays)


def _in_float64(array: np.ndarray) -> Any:
    floating = jnp.issubdtype(array.dtype, jnp.floating)
    return jnp.asarray(array, "float64" if floating else None)
