"""Export: a planned program and its initializers, lowered to StableHLO, as an Artifact."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import tensorflow as tf

from namedmesh.artifacts.artifact import Artifact
from namedmesh.artifacts.description import OpRecord, TensorSpec, VariableSpec
from namedmesh.artifacts.manifest import PRECISIONS, Precision, write_structure
from namedmesh.dims.layout import LayoutLike
from namedmesh.dims.mesh import Mesh
from namedmesh.dims.sharding import Sharding
from namedmesh.errors.errors import NamedMeshError, did_you_mean
from namedmesh.ir.op import Op, every_op
from namedmesh.ir.program import Program
from namedmesh.ir.tensor import Tensor
from namedmesh.lowering.assemble import assemble
from namedmesh.lowering.emit import Emitter
from namedmesh.lowering.fragments import Block, Fragments, Value, compile_fragments
from namedmesh.lowering.op_lowering import OpLowering
from namedmesh.planning.plan import Plan
from namedmesh.planning.plan_program import plan as make_plan
from namedmesh.records.collective import Collective, without_folder
from namedmesh.signature.nest import number_leaves
from namedmesh.version import __version__


def export(
    program: Program,
    mesh: Mesh,
    layout: LayoutLike = "",
    params: LayoutLike | None = None,
    precision: str = "default",
    *,
    conflicts: str = "error",
) -> Artifact:
    """Plan and lowers a program and its initializers for one mesh and layout.

    Args:
        program: A traced program.
        mesh: The mesh to run it on; its devices need not be here.
        layout: Which dimensions lie on which axes of the mesh.
        params: The same for parameters and their slots at rest; as the layout if not given.
        precision: That of matrix products: `default`, `high` or `highest`.
        conflicts: Whether operands that hold one axis on different dimensions are an `error`, or
            are moved the `cheapest` way.

    Returns:
        What `namedmesh.runtime` runs, here or in another process.

    Raises:
        NamedMeshError: If the program cannot be planned or lowered for this mesh and layout.

    Example:
        >>> import namedmesh as nm
        >>> (B,) = nm.dims("batch=8")
        >>> program = nm.trace(lambda x: nm.exp(x), x=nm.spec([B]))
        >>> nm.export(program, nm.Mesh(data=4), "batch:data").inputs[0].sharded_text
        'float32[batch=8/data]'
    """
    planned = make_plan(program, mesh, layout, params, conflicts=conflicts)
    write_structure(number_leaves(program.structure))  # raises for keys that no file can keep
    return export_planned(planned, precision)


def export_planned(plan: Plan, precision: str = "default") -> Artifact:
    """Lower a plan and its initializers."""
    program, signature = plan.program, sign_plan(plan)
    _check_widths(program)
    initializers = list(plan.initializers.values())
    modules = [[(plan, signature)], [(one, sign_plan(one)) for one in initializers]]
    step_module, init_module = lower(modules, precision)
    return Artifact(
        name=program.name,
        mesh=plan.mesh,
        layout=plan.layout.text,
        params=plan.params.text,
        precision=cast(Precision, precision),  # lower() has checked it
        inputs=signature.inputs,
        groups=program.groups,
        variables=signature.variables,
        outputs=signature.outputs,
        structure=number_leaves(program.structure),
        collectives=_record_collectives([plan]),
        initial_collectives=_record_collectives(initializers),
        ops={plan.placements.names[op]: _record_op(plan, op) for op in every_op(program.ops)},
        activation_bytes=plan.activation_bytes,
        flops=program.flops(),
        made_with={"namedmesh": __version__, "tensorflow": tf.__version__},
        step_module=step_module,
        init_module=init_module,
    )


def lower_plan(plan: Plan, precision: str = "default") -> bytes:
    """Lower the step of a plan alone."""
    (module,) = lower([[(plan, sign_plan(plan))]], precision)
    return module


def lower(modules: Sequence[Sequence[tuple[Plan, Signature]]], precision: str) -> list[bytes]:
    """Lower planned programs, those that take the same entries into one module."""
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise NamedMeshError(
            f"precision={precision!r} is not a choice", fix=did_you_mean(precision, PRECISIONS)
        )

    blocks: list[Block] = []
    ops = OpLowering(modules[0][0][0].mesh, precision)
    with gc_paused():
        compiled = compile_fragments(
            lambda fragments: blocks.extend(
                _emit_module(plans, ops, fragments) for plans in modules if plans
            )
        )
        assembled = iter(assemble(blocks, compiled))
        return [next(assembled) if plans else b"" for plans in modules]


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector, which would take a tenth of the time to lower."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _emit_module(
    plans: Sequence[tuple[Plan, Signature]], ops: OpLowering, fragments: Fragments
) -> Block:
    """Emit programs that take the same entries, padded if sizes do not divide."""
    plan, signature = plans[0]
    block = Block([Value(spec.padded(plan.mesh), spec.dtype) for spec in signature.entries])
    for plan, signature in plans:
        program, emitter = plan.program, Emitter(plan, ops, fragments, block)
        entries = zip(signature.entries, block.arguments, strict=True)
        operands = [_cut(emitter, spec, value) for spec, value in entries]
        results = emitter.emit_body(program, program.body, operands)
        pairs = zip(signature.results, results, strict=True)
        block.results += [_pad(emitter, spec, value) for spec, value in pairs]
    return block


def _cut(emitter: Emitter, spec: TensorSpec, value: Value) -> Value:
    """An entry without the padding it has at rest."""
    if spec.padded(emitter.mesh) == spec.sizes:
        return value
    annotated = emitter.at(value, spec.shape, spec.sharding)
    cut = lambda x: tf.slice(x, [0] * len(spec.sizes), spec.sizes)
    return emitter.compute(("cut", spec.sizes), cut, annotated)


def _pad(emitter: Emitter, spec: TensorSpec, value: Value) -> Value:
    """A result with the padding it has at rest."""
    padded = spec.padded(emitter.mesh)
    if padded == spec.sizes:
        return value
    padding = [(0, more - size) for more, size in zip(padded, spec.sizes, strict=True)]
    value = emitter.compute(("pad", tuple(padding)), lambda x: tf.pad(x, padding), value)
    return emitter.at(value, spec.shape, spec.sharding)


def _check_widths(program: Program) -> None:
    """Raise for 64-bit tensors: devices compute in 32 bits, and jax would cut them short."""
    wide = [
        (op, tensor)
        for op in every_op(program.ops)
        for tensor in op.outputs
        if tensor.dtype in ("float64", "int64")
    ]
    if not wide:
        return
    op, tensor = wide[0]
    raise NamedMeshError(
        f"tensor {tensor.label} is {tensor.dtype}, which does not run on devices",
        *dict.fromkeys(str(tensor) for _, tensor in wide),
        source=op.source,
        fix=f"use {'float32' if tensor.floating else 'int32'}; "
        "64 bits are for program.evaluate alone",
    )


def _record_op(plan: Plan, op: Op) -> OpRecord:
    """What an op makes and where that lies, which inside manual regions is not planned."""
    return OpRecord(
        without_folder(op.source),
        tuple(
            describe_tensor(tensor.label, tensor, plan.shardings.get(tensor, Sharding()))
            for tensor in op.outputs
        ),
    )


def _record_collectives(plans: Sequence[Plan]) -> tuple[Collective, ...]:
    """The planned collectives as a manifest has them."""
    return tuple(collective.without_folder() for plan in plans for collective in plan.collectives)


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
        describe_tensor(name, tensor, plan.placements.sharding_for(program, i, tensor))
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
