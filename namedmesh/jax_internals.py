"""The one file that uses jax's private parts: StableHLO modules run inside a jitted function.

Works with jax 0.10, 0.11 and 0.12.
"""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np
from jax._src import api, clusters, config, distributed, xla_bridge
from jax._src.interpreters.mlir import make_ir_context, merge_mlir_modules
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

from namedmesh.artifacts.collective_calls import write_collectives
from namedmesh.artifacts.foreign_code import insert_code
from namedmesh.artifacts.kernels.choice import settle_kernels
from namedmesh.artifacts.shardy import use_shardy_annotations
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError
from namedmesh.processes.arguments import ProcessArguments

ResultTypes = tuple[tuple[tuple[int, ...], np.dtype], ...]  # shape and dtype of each result

_AGAIN = "export it again with nm.export"

_call = Primitive("namedmesh")
_call.multiple_results = True


@_call.def_abstract_eval
def _(*arguments: Any, module: bytes, results: ResultTypes, mesh: Mesh) -> list[Any]:
    return [jax.core.ShapedArray(shape, dtype) for shape, dtype in results]


def _inline(
    context: Any, *arguments: Any, module: bytes, results: ResultTypes, mesh: Mesh
) -> Sequence[Any]:
    """Copy a module into the one that jax is making, and calls it."""
    try:
        parsed = stablehlo.deserialize_portable_artifact(ir.Context.current, module)  # type: ignore[call-overload]
        settle_kernels(parsed, context.module_context.platforms)
        insert_code(parsed, context.module_context.platforms)
        write_collectives(parsed, mesh)
        if config.use_shardy_partitioner.value:
            use_shardy_annotations(parsed, mesh)
        signature = ir.SymbolTable(parsed.operation)["main"].type
        inputs, types = list(signature.inputs), list(signature.results)
    except (ValueError, KeyError, AttributeError, ir.MLIRError) as error:
        raise NamedMeshError(
            f"a module of the artifact cannot be read: {str(error)[:200]}", fix=_AGAIN
        ) from None
    expected = [tensor_type(shape, dtype) for shape, dtype in results]
    if inputs != [argument.type for argument in arguments] or types != expected:
        raise NamedMeshError(
            "a module of the artifact does not take or return what its manifest says",
            f"module: {_join(inputs)} to {_join(types)}",
            f"manifest: {_join(argument.type for argument in arguments)} to {_join(expected)}",
            fix=_AGAIN,
        )
    target = context.module_context
    name = merge_mlir_modules(
        target.module, "namedmesh_main", parsed, dst_symtab=target.symbol_table
    )
    return func.CallOp(types, ir.FlatSymbolRefAttr.get(name), list(arguments)).results


def _join(types: Iterable[ir.Type]) -> str:
    """The first types in one line."""
    texts = [str(one) for one in types]
    return ", ".join(texts[:12]) + (f" and {len(texts) - 12} more" if len(texts) > 12 else "")


mlir.register_lowering(_call, _inline)


def module_function(module: bytes, results: ResultTypes, mesh: Mesh) -> Callable[..., list[Any]]:
    """A function that jax can trace and that runs a module."""
    return lambda *arguments: _call.bind(*arguments, module=module, results=results, mesh=mesh)


def tensor_type(sizes: Sequence[int], dtype: np.dtype) -> ir.RankedTensorType:
    """The type of an array in StableHLO."""
    return ir.RankedTensorType.get(sizes, mlir.dtype_to_ir_type(dtype))


def module_context() -> ir.Context:
    """A context in which StableHLO modules can be read and written."""
    return make_ir_context()


def partition_with(partitioner: str) -> AbstractContextManager[Any]:
    """A context in which a partitioner, `gspmd` or `shardy`, partitions what jax lowers."""
    return config.use_shardy_partitioner(partitioner == "shardy")


def devices_are_fixed() -> bool:
    """Whether jax has looked at its devices already, after which their number is fixed."""
    return xla_bridge.backends_are_initialized()


def is_one_of_several() -> bool:
    """Whether this process is one of several that share their devices (jax.distributed)."""
    return distributed.global_state.client is not None


def place_among_processes() -> tuple[int, int, str | None]:
    """The number of processes, the index of this one, and the coordinator's address."""
    state = distributed.global_state
    return state.num_processes, state.process_id, state.coordinator_address


def coordination_client() -> Any:
    """jax's connection to the coordinator, which stores short texts for all processes."""
    return distributed.global_state.client


def detection_methods() -> list[str]:
    """The names of the environments in which jax finds out about processes by itself."""
    names = {kind.name for kind in clusters.ClusterEnv._cluster_types if kind.name}
    return sorted({*names, "deactivate"})


def detect_processes(arguments: ProcessArguments) -> tuple[str | None, int | None, int | None]:
    """What jax finds out about the processes, where it is not known already."""
    known = (arguments.coordinator, arguments.count, arguments.index)
    if arguments.method == "deactivate":
        return known
    detected = clusters.ClusterEnv.auto_detect_unset_distributed_params(
        *known, None, arguments.method, arguments.timeout
    )
    return detected[:3]


def forget_processes() -> None:
    """Drop a connection to other processes that failed, so that another can be tried."""
    state = distributed.global_state
    if state.service is not None:
        state.service.shutdown()
    state.client = state.service = state.preemption_sync_manager = None


def drop_connection() -> None:
    """Make jax leave without the other processes: it would wait for them, and then abort."""
    state = distributed.global_state
    for one in (state.client, state.service, state.preemption_sync_manager):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))  # its destructor waits too
    state.client = state.service = state.preemption_sync_manager = None
    atexit.unregister(api.clean_up)
