"""Export: a planned program and its initializers, lowered to StableHLO, as an Artifact."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from typing import Any, cast

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
from namedmesh.lowering.assemble import open_library
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
    target: Any = None,
) -> Artifact:
    """Plan and lower a program and its initializers for one mesh and layout.

    Args:
        program: A traced program.
        mesh: The mesh to run it on; its devices need not be here.
        layout: The mesh axes that dimensions are sharded over.
        params: The axes that parameters, their gradients and slots have at rest besides.
        precision: That of matrix products: `default`, `high` or `highest`.
        conflicts: What `nm.plan` takes.
        target: The hardware whose memory `remat="fit"` is chosen for.

    Returns:
        What `namedmesh.runtime` runs, here or in another process.

    Example:
        >>> import namedmesh as nm
        >>> (B,) = nm.dims("batch=8")
        >>> program = nm.trace(lambda x: nm.exp(x), x=nm.spec([B]))
        >>> nm.export(program, nm.Mesh(data=4), "batch:data").inputs[0].sharded_text
        'float32[batch=8/data]'
    """
    planned = make_plan(program, mesh, layout, params, conflicts=conflicts, target=target)
    write_structure(number_leaves(program.structure))  # raises for keys that no file can keep
    return export_planned(planned, precision)


def export_planned(plan: Plan, precision: str = "default") -> Artifact:
    """Lower a plan and its initializers."""
    program = plan.program
    initializers = list(plan.initializers.values())
    step_module, init_module = lower([[plan], initializers], precision)
    return Artifact(
        name=program.name,
        mesh=plan.mesh,
        layout=plan.layout.text,
        params=plan.params.text,
        precision=cast(Precision, precision),  # lower() has checked it
        inputs=_describe_inputs(plan),
        groups=program.groups,
        variables=_describe_variables(plan),
        outputs=tuple(_describe_results(plan)[: len(program.outputs)]),
        structure=number_leaves(program.structure),
        collectives=_record_collectives([plan]),
        initial_collectives=_record_collectives(initializers),
        ops={plan.placements.names[op]: _record_op(plan, op) for op in every_op(program.ops)},
        activation_bytes=plan.activation_bytes,
        flops=program.flops(),
        recomputed=plan.recomputed,
        made_with={"namedmesh": __version__, "tensorflow": tf.__version__},
        step_module=step_module,
        init_module=init_module,
    )


def lower_plan(plan: Plan, precision: str = "default") -> bytes:
    """Lower the step of a plan alone."""
    return lower([[plan]], precision)[0]


def lower(modules: Sequence[Sequence[Plan]], precision: str) -> list[bytes]:
    """Lower planned programs, those that take the same entries into one module."""
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise NamedMeshError(
            f"precision={precision!r} is not a choice", fix=did_you_mean(str(precision), PRECISIONS)
        )
    blocks: list[Block] = []
    ops = OpLowering(modules[0][0].mesh, precision)

    def emit(fragments: Fragments) -> None:
        blocks.extend(_emit_module(plans, ops, fragments) for plans in modules if plans)

    with gc_paused():
        library = open_library()
        compiled = compile_fragments(emit, (ops.mesh, precision), library.results)
        assembled = iter(library.assemble(blocks, compiled))
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


def _emit_module(plans: Sequence[Plan], ops: OpLowering, fragments: Fragments) -> Block:
    """Emit programs that take the same entries, padded if sizes do not divide."""
    entries = [*_describe_inputs(plans[0]), *_describe_variables(plans[0])]
    block = Block([Value(spec.padded(ops.mesh), spec.dtype) for spec in entries])
    for plan in plans:
        emitter = Emitter(plan, ops, fragments, block)
        operands = zip(entries, block.arguments, strict=True)
        cut = [_cut(emitter, spec, value) for spec, value in operands]
        results = emitter.emit_body(plan.program, plan.program.body, cut)
        pairs = zip(_describe_results(plan), results, strict=True)
        block.results += [_pad(emitter, spec, value) for spec, value in pairs]
    return block


def _cut(emitter: Emitter, spec: TensorSpec, value: Value) -> Value:
    """Cut off the padding that an entry has at rest."""
    if spec.padded(emitter.mesh) == spec.sizes:
        return value
    return emitter.cut_padding(emitter.at(value, spec.shape, spec.sharding), spec.sizes)


def _pad(emitter: Emitter, spec: TensorSpec, value: Value) -> Value:
    """Pad a result as it is at rest."""
    padded = spec.padded(emitter.mesh)
    if padded == spec.sizes:
        return value
    before = emitter.find_padded(value)
    if before is not None and before.sizes == padded:
        return before
    padding = [(0, more - size) for more, size in zip(padded, spec.sizes, strict=True)]
    value = emitter.compute(("pad", tuple(padding)), lambda x: tf.pad(x, padding), value)
    return emitter.at(value, spec.shape, spec.sharding)


def _record_op(plan: Plan, op: Op) -> OpRecord:
    """Describe an op's results; inside manual regions their shardings are not planned."""
    places = [plan.shardings.get(tensor, Sharding()) for tensor in op.outputs]
    results = zip(op.outputs, places, strict=True)
    described = tuple(describe_tensor(tensor.label, tensor, place) for tensor, place in results)
    return OpRecord(without_folder(op.source), described)


def _record_collectives(plans: Sequence[Plan]) -> tuple[Collective, ...]:
    """Return the planned collectives as a manifest has them."""
    return tuple(collective.without_folder() for plan in plans for collective in plan.collectives)


def _describe_inputs(plan: Plan) -> tuple[TensorSpec, ...]:
    """Describe what a program takes besides its variables."""
    inputs = plan.program.inputs.items()
    return tuple(describe_tensor(name, x, plan.shardings[x]) for name, x in inputs)


def _describe_variables(plan: Plan) -> tuple[VariableSpec, ...]:
    """Describe the variables of a program."""
    specs = []
    for name, variable in plan.program.variables.items():
        spec = describe_tensor(name, variable.tensor, plan.shardings[variable.tensor])
        updated, frozen = name in plan.program.updates, variable.role == "frozen"
        specs.append(
            VariableSpec(**vars(spec), trainable=variable.trainable, updated=updated, frozen=frozen)
        )
    return tuple(specs)


def _describe_results(plan: Plan) -> list[TensorSpec]:
    """Describe the outputs of a program, then the next values of updated variables."""
    outputs = [(tensor.label, tensor) for tensor in plan.program.outputs]
    return [
        describe_tensor(name, tensor, plan.placements.sharding_for(plan.program, i, tensor))
        for i, (name, tensor) in enumerate([*outputs, *plan.program.updates.items()])
    ]


def describe_tensor(name: str, tensor: Tensor, sharding: Sharding) -> TensorSpec:
    """Describe a tensor as a manifest does."""
    return TensorSpec(name, tensor.shape, tensor.dtype, Sharding(sharding.held))
