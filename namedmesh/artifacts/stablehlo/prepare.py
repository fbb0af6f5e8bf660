"""Preparing an Artifact's module: its calls become kernels, jax code and collectives.

TensorFlow cannot write collectives, whose lists of devices grow with the mesh, nor kernels: an
Artifact has a custom call for each, of one line.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from namedmesh.artifacts.stablehlo.editing import (
    SHARDING,
    Template,
    call_config,
    call_target,
    close_regions,
    find_calls,
    main_template,
    ops_inside,
    replace_call,
)
from namedmesh.artifacts.stablehlo.open_rows import open_rows
from namedmesh.artifacts.stablehlo.row_scatters import SCATTER, scatter_rows
from namedmesh.artifacts.stablehlo.shardy import use_shardy_annotations
from namedmesh.artifacts.stablehlo.single_rows import multiply_single_rows
from namedmesh.dims.hop import Hop, list_groups
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError, did_you_mean, join_names

PERMUTE, GATHER = "namedmesh_permute", "namedmesh_gather"
ALL_TO_ALL, SUM = "namedmesh_all_to_all", "namedmesh_sum"
_JAX_CODE = "namedmesh_jax"  # as ops/jax_code.py writes it
_MOVE = "namedmesh_memory"  # as ops/loop_storage.py writes it
_KERNEL = "namedmesh."  # before the name of a kernel
PLATFORMS = ("cuda", "gpu")  # with kernels for the tokens of decoding too
TPUS = ("tpu",)  # with kernels for rows of queries alone
SCATTERING = frozenset({"tpu"})  # platforms that scatter rows in a form of their own
USES = ("auto", "own", "off")  # of NAMEDMESH_KERNELS: libraries' too, ours alone, or none
_BETWEEN_DEVICES = 1  # the type of a channel, as StableHLO numbers them
_KNOWN_CALLS = re.compile(
    r"Sharding|SPMD\w+|(namedmesh|xla\.sdy\.|mhlo\.|chlo\.|stablehlo\.|lapack_|cu_|cublas|cusolver"
    r"|cusparse|cudnn|hip|ducc_|__cudnn|__cublas|__gpu|triton|mosaic|tpu_custom_call).*"
    r"|ApproxTopK|PartialReduce|TopK|Qr|Eigh|Cholesky|LuDecomposition|shape_assertion"
    r"|ProductOfElementaryHouseholderReflectors|annotate_device_placement|AllocateBuffer"
)
_DTYPES = {
    "bf16": jnp.bfloat16, "f16": jnp.float16, "f32": jnp.float32, "i1": jnp.bool_,
    "i32": jnp.int32, "ui32": jnp.uint32,
}  # fmt: skip


def prepare_module(
    module: ir.Module,
    mesh: Mesh,
    platforms: Sequence[str],
    shardy: bool,
    present: bool = False,
) -> None:
    """Make a module of an Artifact ready to compile.

    Args:
        module: The module, which is changed.
        mesh: The devices that it is for.
        platforms: Their platforms.
        shardy: Whether Shardy is to partition it.
        present: Whether those devices are in this machine.
    """
    alone = mesh.devices == 1 and all(platform in PLATFORMS for platform in platforms)
    insert_kernels(module, platforms, alone, present)
    insert_jax_code(module, platforms)
    place_in_memories(module, platforms)
    if SCATTERING.issuperset(platforms):
        scatter_rows(module, mesh)
    write_collectives(module, mesh)
    check_calls(module)
    if "cpu" in platforms:
        keep_fourier_layouts(module)
    # Of several devices, sums of parts of the contraction would be sent twice.
    if alone:
        multiply_single_rows(module)
    if shardy:
        use_shardy_annotations(module, mesh)


def check_calls(module: ir.Module) -> None:
    """Raise for calls of native functions that neither TensorFlow, jax nor namedmesh writes."""
    # A process may have any function registered; those of jax that call Python take a pointer.
    more = {one.strip() for one in os.environ.get("NAMEDMESH_CUSTOM_CALLS", "").split(",")}
    targets = dict.fromkeys(map(call_target, find_calls(module.operation, bool)))
    unknown = [one for one in targets if one not in more and not _KNOWN_CALLS.fullmatch(one)]
    if unknown:
        raise NamedMeshError(
            f"the artifact calls native functions that are not known: {join_names(unknown[:8])}",
            fix="if you trust it and registered them (jax.ffi), name them in the environment "
            "variable NAMEDMESH_CUSTOM_CALLS, with commas",
        )


def insert_kernels(
    module: ir.Module, platforms: Sequence[str], alone: bool, present: bool = False
) -> None:
    """Replace every call of a kernel, by the kernel where the platform has it.

    On a device alone, one that takes keys where a cache has them comes first, and if it is present
    a library's, which may add numbers up in another order each time: on several devices copies of
    a weight would part.
    """
    kernels: dict[tuple[str, ...], Template | None] = {}
    for op in find_calls(module.operation, lambda target: target.startswith(_KERNEL)):
        name = call_target(op).removeprefix(_KERNEL)
        options = json.loads(call_config(op)) | {"library": alone and present}
        # The last operands are what named ops computed from the others: without a kernel for the
        # platform they are the results.
        kept = options["results"]
        reads, plain = list(op.operands)[: -len(kept)], list(op.operands)[-len(kept) :]
        ways = [(reads, options)]
        if alone and name == "attention" and _has_few_queries(options, reads[0]):
            rows, opened = open_rows(op, reads[1:3])
            ways.insert(0, ([reads[0], *rows, *reads[3:]], options | {"opened": opened}))
        kernel = None
        for reads, options in ways:
            described = json.dumps(options, sort_keys=True)
            key = name, described, *(str(value.type) for value in reads)
            if key not in kernels:
                kernels[key] = _make_kernel(name, options, reads, platforms)
            if kernel := kernels[key]:
                break
        results = None if kernel is None else kernel.copy_at(op, reads)
        replace_call(op, plain if results is None else [results[i] for i in kept])
    if any(kernels.values()):
        close_regions(module.operation)


def _has_few_queries(options: dict[str, Any], q: ir.Value) -> bool:
    """Return whether an attention is that of one token, which reads keys where a cache has them."""
    from namedmesh.artifacts.stablehlo.decoding_kernel import ROWS

    first, sizes = options["batch"], ir.RankedTensorType(q.type).shape
    return math.prod([*sizes][first : first + options["queries"]]) <= ROWS


def _make_kernel(
    name: str, options: dict[str, Any], reads: Sequence[ir.Value], platforms: Sequence[str]
) -> Template | None:
    """Lower a kernel for what it reads; None where the platform has none for it."""
    kinds = [ir.RankedTensorType(value.type) for value in reads]
    dtypes = [_DTYPES.get(str(kind.element_type)) for kind in kinds]
    if None in dtypes:
        return None
    shapes = [tuple(kind.shape) for kind in kinds]
    types = [jax.ShapeDtypeStruct(*one) for one in zip(shapes, dtypes, strict=True)]
    function = find_kernel(name, options, types, platforms)
    if function is None:
        return None
    traced = jax.jit(function, keep_unused=True).trace(*types)
    lowered = traced.lower(lowering_platforms=tuple(platforms))
    return main_template(ir.Module.parse(lowered.as_text(debug_info=False)))


def find_kernel(
    name: str,
    options: dict[str, Any],
    reads: Sequence[jax.ShapeDtypeStruct],
    platforms: Sequence[str],
) -> Callable[..., Any] | None:
    """Return the kernel that a platform has; None if it has none or kernels are off."""
    use = os.environ.get("NAMEDMESH_KERNELS", "auto")
    if use not in USES:
        raise NamedMeshError(f"NAMEDMESH_KERNELS={use} is unknown", fix=did_you_mean(use, USES))
    on_tpus = all(platform in TPUS for platform in platforms)
    has_kernels = on_tpus or all(platform in PLATFORMS for platform in platforms)
    if use == "off" or not has_kernels or name not in ("attention", "attention_backward"):
        return None
    if on_tpus:
        from namedmesh.artifacts.stablehlo.tpu_attention_kernel import TpuAttentionCall

        call = TpuAttentionCall.of(options, reads)
    else:
        from namedmesh.artifacts.stablehlo.attention_kernel import AttentionCall
        from namedmesh.artifacts.stablehlo.cudnn_attention import CudnnAttentionCall
        from namedmesh.artifacts.stablehlo.decoding_kernel import DecodingCall

        if name == "attention" and (decoding := DecodingCall.of(options, reads)):
            return decoding.run
        kinds = [AttentionCall] if "opened" not in options else []
        if kinds and options.get("library") and use == "auto":
            kinds.insert(0, CudnnAttentionCall)
        call = next((found for kind in kinds if (found := kind.of(options, reads))), None)
    if call is None:
        return None
    return call.forward if name == "attention" else call.backward


def insert_jax_code(module: ir.Module, platforms: Sequence[str]) -> None:
    """Replace every call of a jax function by its code for a platform."""
    calls = find_calls(module.operation, _JAX_CODE.__eq__)
    templates: dict[str, Template] = {}
    for op in calls:
        call = json.loads(call_config(op))
        code = _choose_code(call, platforms[0])
        if code not in templates:
            artifact = base64.b64decode(code)
            parsed = stablehlo.deserialize_portable_artifact(module.context, artifact)  # type: ignore[call-overload]
            templates[code] = main_template(parsed)
        replace_call(op, templates[code].copy_at(op, list(op.operands)))
    if calls:
        close_regions(module.operation)


def place_in_memories(module: ir.Module, platforms: Sequence[str]) -> None:
    """Replace every move to the host's memory and back by an annotation that compilers read."""
    for op in find_calls(module.operation, _MOVE.__eq__):
        if "cpu" in platforms:
            replace_call(op, list(op.operands))
            continue
        with module.context:
            memory = {"_xla_buffer_placement": op.attributes["backend_config"]}
            op.attributes["call_target_name"] = ir.StringAttr.get("annotate_device_placement")
            op.attributes["mhlo.frontend_attributes"] = ir.DictAttr.get(memory)
            op.attributes["has_side_effect"] = ir.BoolAttr.get(True)
            op.attributes["backend_config"] = ir.StringAttr.get("")


def keep_fourier_layouts(module: ir.Module) -> None:
    """Have transforms read and write numbers in order, without which XLA's CPU code fails.

    XLA lays out what it gathers along a dimension with that one first, and so what is made of it.
    """
    for op in [one for one in ops_inside(module.operation) if one.name == "stablehlo.fft"]:
        with module.context, op.location, ir.InsertionPoint(op):
            op.operands[0] = _keep_layout(op.operands[0], op).result
        with module.context, op.location, ir.InsertionPoint.after(op):
            kept = _keep_layout(op.result, op)
        op.result.replace_all_uses_except(kept.result, kept)


def _keep_layout(value: ir.Value, op: ir.Operation) -> ir.Operation:
    """Make the call that keeps a value laid out in the order of its dimensions, as jax does."""
    minor_to_major: Any = np.arange(len(ir.RankedTensorType(value.type).shape))[::-1].copy()
    order = ir.DenseElementsAttr.get(minor_to_major, type=ir.IndexType.get())
    layouts = ir.ArrayAttr.get([order])
    call = stablehlo.CustomCallOp(
        [value.type], [value], "LayoutConstraint", operand_layouts=layouts, result_layouts=layouts
    )
    if SHARDING in op.attributes:
        call.operation.attributes[SHARDING] = op.attributes[SHARDING]
    return call.operation


def _choose_code(call: dict[str, Any], platform: str) -> str:
    """Return the code of a call for a platform."""
    wanted = "cuda" if platform == "gpu" else platform
    if wanted not in call["code"]:
        raise NamedMeshError(
            f"call_jax: {call['name']} has no code for {wanted}",
            f"it has code for: {join_names(sorted(call['code']))}",
            *([f"jax says: {call['missing'][wanted]}"] if wanted in call["missing"] else []),
            fix=f"run it on {join_names(sorted(call['code']))}, or call a function that jax can "
            f"lower for {wanted}",
        )
    return call["modules"][call["code"][wanted]]


def write_collectives(module: ir.Module, mesh: Mesh) -> None:
    """Replace every call of a collective by the collective."""
    writers = {
        PERMUTE: _write_permute, GATHER: _write_gather, ALL_TO_ALL: _write_all_to_all,
        SUM: _write_sum, SCATTER: _write_scatter,
    }  # fmt: skip
    calls = find_calls(module.operation, writers.__contains__)
    for number, op in enumerate(calls, 1):
        with module.context, op.location, ir.InsertionPoint(op):
            channel = stablehlo.ChannelHandle.get(number, _BETWEEN_DEVICES)
            collective = writers[call_target(op)](op, call_config(op), channel, mesh)
        if SHARDING in op.attributes:
            collective.attributes[SHARDING] = op.attributes[SHARDING]
        op.result.replace_all_uses_with(collective.result)
        op.erase()


def _write_permute(op: ir.Operation, config: str, channel: Any, mesh: Mesh) -> ir.Operation:
    """Write a permutation of devices, described as a hop."""
    pairs: Any = np.array(Hop.read(config).pairs(mesh), np.int64).reshape(-1, 2)
    collective = stablehlo.CollectivePermuteOp(
        op.operands[0], ir.DenseElementsAttr.get(pairs), channel_handle=channel
    )
    return collective.operation


def _write_gather(op: ir.Operation, config: str, channel: Any, mesh: Mesh) -> ir.Operation:
    """Write an all-gather along the first dimension over named axes."""
    ends, groups = ([op.result.type], [op.operands[0]]), _write_groups(config, mesh)
    collective = stablehlo.AllGatherOp(
        *ends, 0, groups, channel_handle=channel, use_global_device_ids=True
    )
    return collective.operation


def _write_all_to_all(op: ir.Operation, config: str, channel: Any, mesh: Mesh) -> ir.Operation:
    """Write an all-to-all that splits one dimension and concatenates another."""
    axes, cut, join = config.split(" ")
    count, groups = mesh.size(axes.split("+")), _write_groups(axes, mesh)
    collective = stablehlo.AllToAllOp(
        [op.operands[0]], int(cut), int(join), count, groups, channel_handle=channel
    )
    return collective.operation


def _write_sum(op: ir.Operation, config: str, channel: Any, mesh: Mesh) -> ir.Operation:
    """Write a sum over named axes."""
    ends, groups = ([op.result.type], [op.operands[0]]), _write_groups(config, mesh)
    collective = stablehlo.AllReduceOp(
        *ends, groups, channel_handle=channel, use_global_device_ids=True
    )
    _write_add(collective.operation)
    return collective.operation


def _write_scatter(op: ir.Operation, config: str, channel: Any, mesh: Mesh) -> ir.Operation:
    """Write a sum over named axes, of which each device keeps its part of the first dimension."""
    collective = stablehlo.ReduceScatterOp(
        op.result.type, op.operands[0], 0, _write_groups(config, mesh), channel_handle=channel,
        use_global_device_ids=True,
    )  # fmt: skip
    _write_add(collective.operation)
    return collective.operation


def _write_add(collective: ir.Operation) -> None:
    """Have a collective add numbers up."""
    scalar = ir.RankedTensorType.get([], ir.RankedTensorType(collective.result.type).element_type)
    block = collective.regions[0].blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        stablehlo.ReturnOp([stablehlo.AddOp(*block.arguments).result])


def _write_groups(axes: str, mesh: Mesh) -> ir.DenseElementsAttr:
    """Write the groups of devices that communicate along some axes."""
    groups: Any = np.ascontiguousarray(list_groups(axes.split("+"), mesh), np.int64)
    return ir.DenseElementsAttr.get(groups)
