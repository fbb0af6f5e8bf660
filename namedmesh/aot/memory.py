"""Memory: what a core's bytes are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from namedmesh.aot.attribution import entry_bytes
from namedmesh.artifacts.artifact import Artifact
from namedmesh.artifacts.description import TensorSpec, VariableSpec
from namedmesh.audit.hlo.module import Module
from namedmesh.runtime.usage import Report


@dataclass(frozen=True)
class Memory:
    """A core's bytes by what they hold.

    Attributes:
        weights: What is trained.
        state: Optimizer slots, counters and whatever else lives from step to step.
        inputs: What a step takes besides.
        results: What a step returns, except what takes the place of old state.
        activations: What loops of the forward pass keep for the backward pass, as planned.
        temporaries: Whatever else lives within a step.
        code: The program.

    Example:
        >>> from namedmesh.aot import Memory
        >>> memory = Memory(weights=400, state=800, inputs=64, results=4, activations=128,
        ...                 temporaries=32, code=0)
        >>> memory.total
        1428
    """

    weights: int
    state: int
    inputs: int
    results: int
    activations: int
    temporaries: int
    code: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(vars(self).values())


def attribute_memory(artifact: Artifact, report: Report, module: Module) -> Memory:
    """A compiled step's bytes by what they hold."""
    return _memory(
        artifact,
        entry_bytes(artifact, module),
        between=report.argument_bytes,
        within=report.temporary_bytes,
        results=report.output_bytes - report.aliased_bytes,
        code=report.code_bytes,
    )


def estimate_memory(artifact: Artifact, needed: int) -> Memory:
    """A step's bytes by the manifest and a total, padding and results left out."""
    mesh = artifact.mesh
    sizes = [
        (spec, spec.bytes_per_device(mesh)) for spec in (*artifact.inputs, *artifact.variables)
    ]
    between = sum(size for _, size in sizes)
    within = max(needed - between, 0)
    return _memory(artifact, sizes, between=between, within=within, results=0, code=0)


def _memory(
    artifact: Artifact,
    sizes: Sequence[tuple[TensorSpec, int]],
    *,
    between: int,
    within: int,
    results: int,
    code: int,
) -> Memory:
    """Bytes that are there between steps and within one, told apart."""
    variables = [(spec, size) for spec, size in sizes if isinstance(spec, VariableSpec)]
    weights = sum(size for spec, size in variables if spec.trainable)
    inputs = sum(size for spec, size in sizes if not isinstance(spec, VariableSpec))
    activations = min(artifact.activation_bytes, within)
    return Memory(
        weights=weights,
        state=between - weights - inputs,
        inputs=inputs,
        results=results,
        activations=activations,
        temporaries=within - activations,
        code=code,
    )
