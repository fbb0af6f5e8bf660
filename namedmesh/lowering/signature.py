"""Signature: what the module of a plan takes and returns, worked out once."""

from __future__ import annotations

from dataclasses import dataclass

from namedmesh.artifacts.description import TensorSpec, VariableSpec
from namedmesh.dims.sharding import Sharding
from namedmesh.ir.tensor import Tensor
from namedmesh.planning.plan import Plan


@dataclass(frozen=True)
class Signature:
    """The entries and results of one planned program, as its Artifact describes them.

    Attributes:
        inputs: What a step takes besides its state.
        variables: The state.
        outputs: What a step returns besides the next state.
        updates: The next values of updated variables.
    """

    inputs: tuple[TensorSpec, ...]
    variables: tuple[VariableSpec, ...]
    outputs: tuple[TensorSpec, ...]
    updates: tuple[TensorSpec, ...]

    @property
    def entries(self) -> tuple[TensorSpec, ...]:
        """What the module takes: inputs, then variables."""
        return (*self.inputs, *self.variables)

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """What the module returns: outputs, then updates."""
        return (*self.outputs, *self.updates)


def sign_plan(plan: Plan) -> Signature:
    """Work out the signature of a plan."""
    program = plan.program
    outputs = [(tensor.label, tensor) for tensor in program.outputs]
    results = [
        describe_tensor(name, tensor, plan.placements.result_sharding(program, i, tensor))
        for i, (name, tensor) in enumerate([*outputs, *program.updates.items()])
    ]
    return Signature(
        inputs=tuple(
            describe_tensor(name, tensor, plan.shardings[tensor])
            for name, tensor in program.inputs.items()
        ),
        variables=tuple(
            VariableSpec(
                **vars(describe_tensor(name, variable.tensor, plan.shardings[variable.tensor])),
                trainable=variable.trainable,
                updated=name in program.updates,
            )
            for name, variable in program.variables.items()
        ),
        outputs=tuple(results[: len(outputs)]),
        updates=tuple(results[len(outputs) :]),
    )


def describe_tensor(name: str, tensor: Tensor, sharding: Sharding) -> TensorSpec:
    """A tensor as a manifest describes it."""
    return TensorSpec(name, tensor.shape, tensor.dtype, Sharding(sharding.held))
