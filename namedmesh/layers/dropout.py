"""Dropout that draws the same mask under every layout."""

from __future__ import annotations

import namedmesh as nm
from namedmesh.dims.errors import NamedMeshError
from namedmesh.ir.tensor import Tensor


def dropout(x: Tensor, rate: float, key: Tensor | None) -> Tensor:
    """Zeros a share of the elements and scales up the rest; nothing without a key (evaluation) or at rate 0."""
    if not 0.0 <= rate < 1.0:
        raise NamedMeshError(f"dropout: rate={rate}", str(x), fix="give a rate from 0 to below 1")
    if key is None or rate == 0.0:
        return x
    kept = nm.random.bernoulli(key, x.shape, 1.0 - rate)
    return nm.where(kept, x * (1.0 / (1.0 - rate)), 0.0)
