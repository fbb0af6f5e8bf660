"""Which kernels a module's calls become: those of the platform, or what named ops compute."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxlib.mlir import ir

from namedmesh.artifacts.regions import blocks, call_target, close_regions
from namedmesh.artifacts.splicing import Template, main_template, replace_call
from namedmesh.errors.errors import NamedMeshError, did_you_mean

PREFIX = "namedmesh."
PLATFORMS = ("cuda", "gpu")
USES = ("auto", "off")  # of NAMEDMESH_KERNELS
_DTYPES = {
    "bf16": jnp.bfloat16,
    "f16": jnp.float16,
    "f32": jnp.float32,
    "i1": jnp.bool_,
    "ui32": jnp.uint32,
}


def settle_kernels(module: ir.Module, platforms: Sequence[str]) -> None:
    """Replace every call of a kernel, by the kernel where the platform has it.

    A call's last operands are what named ops made of the others; without a kernel they are its
    results.
    """
    made: dict[tuple[str, ...], Template | None] = {}
    for op in list(_find_calls(module.operation)):
        name = call_target(op).removeprefix(PREFIX)
        options = json.loads(ir.StringAttr(op.attributes["backend_config"]).value)
        reads = list(op.operands)[: -options["results"]]
        plain = list(op.operands)[-options["results"] :]
        key = name, json.dumps(options, sort_keys=True), *(str(value.type) for value in reads)
        if key not in made:
            made[key] = _make_kernel(name, options, reads, platforms)
        kernel = made[key]
        if kernel is None:
            results = plain
        else:
            with ir.InsertionPoint(op):
                results = kernel.copy(reads, lambda _, at=op.location: at)
        replace_call(op, results)
    if any(made.values()):
        close_regions(module.operation)


def _find_calls(module: ir.Operation) -> Iterator[ir.Operation]:
    """Every call of a kernel in a module."""
    for block in blocks(module):
        for view in block.operations:
            if call_target(view.operation).startswith(PREFIX):
                yield view.operation


def _make_kernel(
    name: str,
    options: dict[str, Any],
    reads: Sequence[ir.Value],
    platforms: Sequence[str],
) -> Template | None:
    """Lower a kernel for what it reads; None where the platform has none for it."""
    kinds = [ir.RankedTensorType(value.type) for value in reads]
    if any(str(kind.element_type) not in _DTYPES for kind in kinds):
        return None
    types = [
        jax.ShapeDtypeStruct(tuple(kind.shape), _DTYPES[str(kind.element_type)]) for kind in kinds
    ]
    function = find_kernel(name, options, types, platforms)
    if function is None:
        return None
    lowered = (
        jax.jit(function, keep_unused=True).trace(*types).lower(lowering_platforms=tuple(platforms))
    )
    return main_template(ir.Module.parse(lowered.as_text(debug_info=False)))


def find_kernel(
    name: str,
    options: dict[str, Any],
    reads: Sequence[jax.ShapeDtypeStruct],
    platforms: Sequence[str],
) -> Callable[..., Any] | None:
    """Find the kernel that a platform has."""
    use = os.environ.get("NAMEDMESH_KERNELS", "auto")
    if use not in USES:
        raise NamedMeshError(f"NAMEDMESH_KERNELS={use} is unknown", fix=did_you_mean(use, USES))
    if use == "off" or not all(platform in PLATFORMS for platform in platforms):
        return None
    from namedmesh.artifacts.kernels.attention_call import AttentionCall

    kernels = {"attention": AttentionCall.forward, "attention_backward": AttentionCall.backward}
    call = AttentionCall.of(options, reads) if name in kernels else None
    return None if call is None else functools.partial(kernels[name], call)
