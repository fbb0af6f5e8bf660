"""Export: a planned program to StableHLO, and with its initializer to an Artifact."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from namedmesh.dims.errors import NamedMeshError, did_you_mean
from namedmesh.dims.layout import Layout
from namedmesh.dims.mesh import Mesh
from namedmesh.dims.sharding import Sharding
from namedmesh.ir.op import Op, every_op
from namedmesh.ir.program import Program
from namedmesh.ir.tensor import Tensor
from namedmesh.lowering.emit import Emitter
from namedmesh.lowering.plan import Plan
from namedmesh.lowering.planning import plan as make_plan
from namedmesh.lowering.portable import portable
from namedmesh.runtime.artifact import PRECISIONS, Artifact, TensorSpec, VariableSpec, packed
from namedmesh.version import __version__


def described(name: str, tensor: Tensor, sharding: Sharding) -> TensorSpec:
    """A tensor as the manifest has it."""
    held = {key: list(axes) for key, axes in sharding.held}
    return TensorSpec(name, tuple((dim.name, dim.size) for dim in tensor.shape), tensor.dtype, held)


def entries(plan: Plan) -> list[TensorSpec]:
    """What a lowered program is called with: inputs, then variables."""
    program = plan.program
    variables = {name: variable.tensor for name, variable in program.variables.items()}
    return [
        described(name, tensor, plan.shardings[tensor])
        for name, tensor in {**program.inputs, **variables}.items()
    ]


def results(plan: Plan) -> list[TensorSpec]:
    """What a lowered program returns: outputs, then updated variables."""
    program, made = plan.program, []
    named = [(tensor.label, tensor) for tensor in program.outputs] + list(program.updates.items())
    for i, (name, tensor) in enumerate(named):
        steps = plan.results.get((program, i), ())
        made.append(described(name, tensor, steps[-1].result if steps else plan.shardings[tensor]))
    return made


def _emitted(plan: Plan, precision: str, values: Sequence[Any]) -> list[Any]:
    """The results of a planned program on padded values, padded themselves where sizes do not divide."""
    program, emitter = plan.program, Emitter(plan, precision)
    given = [
        *program.inputs.values(),
        *(variable.tensor for variable in program.variables.values()),
    ]
    ready = []
    for tensor, value in zip(given, values, strict=True):
        if value.shape.as_list() != list(tensor.shape.sizes):
            placed = emitter.at(value, tensor.shape, plan.shardings[tensor])
            value = tf.slice(placed, [0] * len(tensor.shape), tensor.shape.sizes)
        ready.append(value)
    outputs = (*program.outputs, *program.updates.values())
    made = emitter.body(program, program.ops, given, ready, outputs)
    for i, spec in enumerate(results(plan)):
        if not spec.dims:
            made[i] = emitter.annotator.annotate(
                made[i], []
            )  # a constant or an input itself would not be returned
        padding = [
            [0, more - size] for more, size in zip(spec.padded(plan.mesh), spec.sizes, strict=True)
        ]
        if any(after for _, after in padding):
            made[i] = emitter.annotator.annotate(
                tf.pad(made[i], padding), [spec.held.get(name, ()) for name, _ in spec.dims]
            )
    return made


def lower(plans: Sequence[Plan], precision: str = "default") -> bytes:
    """The StableHLO of planned programs that share their entries; their results come one after the other."""
    if precision not in PRECISIONS:
        raise NamedMeshError(
            f"precision={precision!r} is not a choice", fix=did_you_mean(str(precision), PRECISIONS)
        )

    def main(*values: Any) -> list[Any]:
        return [result for plan in plans for result in _emitted(plan, precision, values)]

    specs = [
        tf.TensorSpec(spec.padded(plans[0].mesh), tf.as_dtype(spec.dtype), spec.name)
        for spec in entries(plans[0])
    ]
    function = tf.function(main, jit_compile=True, autograph=False)
    return portable(function.experimental_get_compiler_ir(*specs)(stage="stablehlo_serialized"))


def export(
    program: Program,
    mesh: Mesh,
    layout: Layout | str,
    params: Layout | str | None = None,
    precision: str = "default",
) -> Artifact:
    """Plans and lowers a program and its initializer for one mesh and layout."""
    return export_planned(make_plan(program, mesh, layout, params), precision)


def export_planned(plan: Plan, precision: str = "default") -> Artifact:
    """The Artifact of a plan."""
    program = plan.program
    _check_widths(program)
    initializers = list(plan.initializers.values())
    given, made = entries(plan), results(plan)
    variables = [
        VariableSpec(
            **vars(spec), trainable=variable.trainable, updated=variable.name in program.updates
        )
        for spec, variable in zip(
            given[len(program.inputs) :], program.variables.values(), strict=True
        )
    ]
    return Artifact(
        name=program.name,
        mesh=plan.mesh,
        layout=plan.layout.text,
        params=plan.params.text,
        precision=precision,
        inputs=tuple(given[: len(program.inputs)]),
        variables=tuple(variables),
        outputs=tuple(made[: len(program.outputs)]),
        structure=packed(program.structure),
        collectives=_recorded([plan]),
        initial_collectives=_recorded(initializers),
        ops={plan.names[op]: _made(plan, op) for op in every_op(program.ops)},
        activation_bytes=plan.activation_bytes,
        flops=program.flops(),
        made_with={"namedmesh": __version__, "tensorflow": tf.__version__},
        step_module=lower([plan], precision),
        init_module=lower(initializers, precision) if initializers else b"",
    )


def _check_widths(program: Program) -> None:
    """Raises for 64-bit tensors: devices compute in 32 bits, and jax would cut them short."""
    for op in every_op(program.ops):
        for tensor in op.outputs:
            if tensor.dtype in ("float64", "int64"):
                raise NamedMeshError(
                    f"tensor {tensor.label} is {tensor.dtype}, which does not run on devices",
                    str(tensor),
                    source=op.source,
                    fix=f"use {'float32' if tensor.floating else 'int32'}; 64 bits are for program.evaluate alone",
                )


def _made(plan: Plan, op: Op) -> list[str]:
    """What an op makes, where it lies (inside a manual region nobody says), and the line that asked for it."""
    text = lambda tensor: described("", tensor, plan.shardings.get(tensor, Sharding())).sharded_text
    return [f"{tensor.label} {text(tensor)} at {op.source}" for tensor in op.outputs]


def _recorded(plans: Sequence[Plan]) -> tuple[dict[str, Any], ...]:
    """The planned collectives as the manifest has them."""
    return tuple(
        {
            **dataclasses.asdict(collective),
            "axes": list(collective.axes),
            "source": str(collective.source),
        }
        for plan in plans
        for collective in plan.collectives
    )
