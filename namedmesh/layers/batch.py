"""A batch of packed examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import namedmesh as nm
from namedmesh.layers.explain import explain_mistakes


@explain_mistakes
@dataclass(frozen=True)
class Batch:
    """Packed examples: several in a row, one after another.

    Attributes:
        source: Source tokens, GS int32.
        source_segments: The example that each belongs to, counted from 1; 0 is padding.
        source_positions: The position of each in its example, counted from 0.
        target: Target tokens, GT int32.
        target_segments: The example that each belongs to.
        target_positions: The position of each in its example.

    Example:
        >>> G, S = nm.dims("group=2 seq=8")
        >>> real = lambda tokens: nm.not_equal(Batch(*[tokens] * 6).source_segments, 0)
        >>> nm.trace(real, nm.spec([G, S], "int32")).outputs[0].dtype
        'bool'
    """

    source: nm.Tensor
    source_segments: nm.Tensor
    source_positions: nm.Tensor
    target: nm.Tensor
    target_segments: nm.Tensor
    target_positions: nm.Tensor


@explain_mistakes
def batch_of(inputs: Mapping[str, nm.Tensor]) -> Batch:
    """Collect the tensors of a batch from a program's inputs.

    Args:
        inputs: Tensors by name, those of `Transformer.specs` among them.

    Returns:
        The batch.

    Raises:
        NamedMeshError: If tensors are missing; every one is listed.

    Example:
        >>> G, S = nm.dims("group=2 seq=8")
        >>> names = [field.name for field in dataclasses.fields(Batch)]
        >>> specs = {name: nm.spec([G, S], "int32") for name in names}
        >>> nm.trace(lambda batch: batch_of(batch).target, batch=specs).outputs[0].shape
        [group=2, seq=8]
    """
    names = [field.name for field in dataclasses.fields(Batch)]
    missing = [name for name in names if name not in inputs]
    if missing:
        raise nm.NamedMeshError(
            f"a batch without {', '.join(missing)}",
            f"inputs: {', '.join(inputs) or 'none'}",
            fix="declare the inputs with model.specs()",
        )
    return Batch(**{name: inputs[name] for name in names})
