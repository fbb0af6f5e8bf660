"""The one file that uses jax's private parts: StableHLO modules run inside a jitted function.

Works with jax 0.10, 0.11 and 0.12.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib.util
import os
import pathlib
import sys
import tempfile
import types
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import jax
import numpy as np
from jax._src import api, clusters, compiler, config, distributed, xla_bridge
from jax._src.interpreters.mlir import make_ir_context, merge_mlir_modules
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jaxlib import _jax, utils, xla_client
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

from namedmesh.errors.errors import NamedMeshError

ResultTypes = tuple[tuple[tuple[int, ...], np.dtype], ...]  # shape and dtype of each result
# Edits a parsed module for platforms, and for Shardy where it is to partition the module.
Prepare = Callable[[ir.Module, Sequence[str], bool], None]

if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "2":
    # jaxlib read its level when it was loaded, perhaps before namedmesh chose this one.
    utils.absl_set_min_log_level(2)

_AGAIN = "export it again with nm.export"

_call = Primitive("namedmesh")
_call.multiple_results = True


@_call.def_abstract_eval
def _(*arguments: Any, module: bytes, results: ResultTypes, prepare: Prepare) -> list[Any]:
    return [jax.core.ShapedArray(shape, dtype) for shape, dtype in results]


def _inline(
    context: Any, *arguments: Any, module: bytes, results: ResultTypes, prepare: Prepare
) -> Sequence[Any]:
    """Copy a module into the one that jax is making, and call it."""
    try:
        parsed = stablehlo.deserialize_portable_artifact(ir.Context.current, module)  # type: ignore[call-overload]
        prepare(parsed, context.module_context.platforms, config.use_shardy_partitioner.value)
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
    """Format the first types in one line."""
    texts = [str(one) for one in types]
    return ", ".join(texts[:12]) + (f" and {len(texts) - 12} more" if len(texts) > 12 else "")


mlir.register_lowering(_call, _inline)


def module_function(
    module: bytes, results: ResultTypes, prepare: Prepare
) -> Callable[..., list[Any]]:
    """Return a function that jax can trace and that runs a module."""
    return lambda *arguments: _call.bind(
        *arguments, module=module, results=results, prepare=prepare
    )


def direct_call(compiled: jax.stages.Compiled, structure: Any) -> Callable[..., Any]:
    """Return a function that runs a compiled one, the list of whose results it nests like a value.

    That is jax's dispatch in C++, which nests at no cost and has no frames of Python.
    """
    tree = jax.tree.structure(structure)
    try:
        call = compiled._executable.create_cpp_call(compiled._params._replace(out_tree=tree))
    except AttributeError:  # of another version of jax
        call = None
    return call or (lambda *operands: jax.tree.unflatten(tree, compiled(*operands)))


def tensor_type(sizes: Sequence[int], dtype: np.dtype) -> ir.RankedTensorType:
    """Return the type of an array in StableHLO."""
    return ir.RankedTensorType.get(sizes, mlir.dtype_to_ir_type(dtype))


def module_context() -> ir.Context:
    """Make a context in which StableHLO modules can be read and written."""
    return make_ir_context()


def partition_with(partitioner: str) -> AbstractContextManager[Any]:
    """Make a context in which `gspmd` or `shardy` partitions what jax lowers."""
    return config.use_shardy_partitioner(partitioner == "shardy")


def compile_module(module: ir.Module, devices: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Compile a StableHLO module for devices, which need not be here; return XLA's executable."""
    client, grid = devices[0].client, np.array(devices).reshape(1, -1)
    chosen = {"env_options_overrides": dict(options), "backend": client}
    settings = compiler.get_compile_options(1, len(devices), grid, **chosen)
    build = settings.executable_build_options
    build.use_spmd_partitioning = True
    names = {one.operation.name for one in module.body.operations}
    build.use_shardy_partitioner = "sdy.mesh" in names
    places = _jax.DeviceList(tuple(devices))
    return compiler.backend_compile_and_load(client, module, places, settings, [])


def keep_whole_stacks() -> AbstractContextManager[Any]:
    """Make a context in which jax lowers ops with all lines that led to them, not the last ten."""
    return config.traceback_in_locations_limit(-1)


def kept_arguments(step: Any) -> Container[int]:
    """Return the places of the arguments that a lowered or compiled step reads, and no others."""
    lowering = getattr(step, "_lowering", None)
    if lowering is not None:
        return lowering.compile_args["kept_var_idx"]
    return getattr(step._executable, "_kept_var_idx", range(sys.maxsize))


@contextmanager
def hear_warnings() -> Iterator[list[str]]:
    """Collect what is written to stderr meanwhile, the compiler's warnings too; write the rest."""
    heard: list[str] = []
    level = int(os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1"))
    with tempfile.TemporaryFile() as file:
        sys.stderr.flush()
        kept = os.dup(2)
        try:
            os.dup2(file.fileno(), 2)
            utils.absl_set_min_log_level(min(level, 1))
            yield heard
        finally:
            utils.absl_set_min_log_level(level)
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            heard += file.read().decode(errors="replace").splitlines(keepends=True)
            unwanted = "WI" if level >= 2 else ""
            lines = (one for one in heard if "rematerialization" not in one)
            sys.stderr.write("".join(one for one in lines if one[0] not in unwanted))


def parse_stablehlo(text: str) -> ir.Module:
    """Parse the text of a StableHLO module."""
    with make_ir_context():
        return ir.Module.parse(text)


def devices_are_fixed() -> bool:
    """Return whether jax has its devices already, after which their number is fixed."""
    return xla_bridge.backends_are_initialized()


def find_gpu_compiler() -> str | None:
    """Return the library with XLA's compiler for NVIDIA GPUs, if it is installed."""
    plugins = importlib.util.find_spec("jax_plugins")
    folders = [*(plugins.submodule_search_locations or ())] if plugins else []
    found = (one for folder in folders for one in pathlib.Path(folder).glob("xla_cuda*/*plugin.so"))
    return next(map(str, found), None)


def load_gpu_compiler(library: str) -> None:
    """Have jax load XLA's GPU compiler, which needs neither a GPU nor a driver."""
    xla_bridge.backends()  # on a machine with a GPU, this loads it
    if not xla_client.pjrt_plugin_loaded("cuda"):
        with capture_stderr():  # it says that there is no driver
            xla_bridge.register_plugin("cuda", priority=1, library_path=library)
    if not xla_client.pjrt_plugin_initialized("cuda"):
        xla_client.initialize_pjrt_plugin("cuda")


def simulate_gpus(topology: str) -> None:
    """Have jax start with the GPUs of a topology, of which the first of this machine is one."""
    jax.config.update("jax_cuda_visible_devices", "0")
    jax.config.update("jax_mock_gpu_topology", topology)


@contextmanager
def capture_stderr() -> Iterator[list[str]]:
    """Collect the lines that a library writes to standard error."""
    lines: list[str] = []
    sys.stderr.flush()
    before = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(before, 2)
            os.close(before)
            file.seek(0)
            lines += file.read().decode(errors="replace").splitlines()


def is_one_of_several() -> bool:
    """Return whether this process is one of several that share devices (jax.distributed)."""
    return distributed.global_state.client is not None


def place_among_processes() -> tuple[int, int, str | None]:
    """Return the number of processes, the index of this one, and the coordinator's address."""
    state = distributed.global_state
    return state.num_processes, state.process_id, state.coordinator_address


def coordination_client() -> Any:
    """Return jax's connection to the coordinator, which stores short texts for all processes."""
    return distributed.global_state.client


def detection_methods() -> list[str]:
    """Return the names of the environments in which jax detects processes."""
    names = {kind.name for kind in clusters.ClusterEnv._cluster_types if kind.name}
    return sorted({*names, "deactivate"})


def detect_processes(
    coordinator: str | None, count: int | None, index: int | None, method: str | None, timeout: int
) -> tuple[str | None, int | None, int | None]:
    """Let jax detect those of the coordinator, the number of processes and our index not given."""
    if method == "deactivate":
        return coordinator, count, index
    detected = clusters.ClusterEnv.auto_detect_unset_distributed_params(
        coordinator, count, index, None, method, timeout
    )
    return detected[:3]


def forget_processes() -> None:
    """Drop a connection to other processes that failed, so that another can be tried."""
    state = distributed.global_state
    if state.service is not None:
        state.service.shutdown()
    state.client = state.service = state.preemption_sync_manager = None


def start_service(address: str, count: int, heartbeat: int) -> Any:
    """Start the service at which processes meet, apart from them: it outlives each of them."""
    return _jax.get_distributed_runtime_service(
        address, count, heartbeat_timeout=heartbeat, shutdown_timeout=1, recoverable=True
    )


def connect_to_service(
    service: str, coordinator: str, count: int | None, index: int | None, timeout: int, beat: int
) -> None:
    """Connect this process with a service that is in another one."""
    client = _jax.get_distributed_runtime_client(
        service,
        index or 0,
        init_timeout=timeout,
        heartbeat_timeout=beat,
        shutdown_on_destruction=False,
        use_compression=True,
    )
    client.connect()
    state = distributed.global_state
    state.coordinator_address, state.client = coordinator, client
    state.num_processes, state.process_id = count or 1, index or 0


def leave_service() -> None:
    """Disconnect from the service; requests that wait are answered with an error."""
    client = distributed.global_state.client
    if client is not None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            client.shutdown()


def forget_backends() -> None:
    """Drop the connection, all devices, and what was compiled for them."""
    state = distributed.global_state
    state.client = state.service = state.preemption_sync_manager = None
    state.num_processes, state.process_id = 1, 0
    jax.clear_caches()
    api.clear_backends()
    gc.collect()


def before_service_ends(action: Callable[[], Any]) -> None:
    """Call a function at exit, before jax ends the service of the processes, if it is here."""
    service = distributed.global_state.service
    if service is not None:
        ended = types.SimpleNamespace(shutdown=lambda: (action(), service.shutdown()))
        distributed.global_state.service = ended


def drop_connection() -> None:
    """Make jax leave without the other processes: it would wait for them, and then abort."""
    state = distributed.global_state
    for one in (state.client, state.service, state.preemption_sync_manager):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))  # its destructor waits too
    state.client = state.service = state.preemption_sync_manager = None
    atexit.unregister(api.clean_up)


def is_present(device: Any) -> bool:
    """Return whether a device is in this machine, and not one to compile for alone."""
    return not isinstance(device.client, _jax.CompileOnlyPyClient)


def find_cudnn() -> int:
    """Return the version of cuDNN in this process; 0 if there is none."""
    from jax._src.cudnn import fused_attention_stablehlo as fused

    try:
        return fused.check_cudnn_version()
    except RuntimeError:
        return 0


def cudnn_attention(
    q: Any, k: Any, v: Any, *saved: Any, scale: float, causal: bool
) -> Sequence[Any]:
    """Run attention by cuDNN; queries, keys and values are [batch, positions, heads, key].

    Args:
        q, k, v: Queries, keys and values.
        saved: For the backward pass the logarithms that the forward pass returned (batch, heads,
            positions), its result, and the cotangent of that.
        scale: The factor of scores.
        causal: Whether a query attends to keys up to its own position alone.

    Returns:
        The averages and the logarithm of each query's sum of exponentials, or the cotangents of
        queries, keys and values.
    """
    from jax._src.cudnn import fused_attention_stablehlo as fused

    none = jax.numpy.zeros(0, q.dtype)
    options: dict[str, Any] = {
        "scale": scale, "seed": 0, "dropout_rate": 0.0, "variadic_args": (False, False),
        "mask_type": fused.MaskType.CAUSAL if causal else fused.MaskType.NO_MASK,
        "layout": fused.AttentionLayout.BTNH.value, "sliding_window_length": None,
    }  # fmt: skip
    if saved:
        return fused._dot_product_attention_bwd_p.bind(q, k, v, *[none] * 7, *saved, **options)
    options["is_training"] = True
    return fused._dot_product_attention_fwd_p.bind(q, k, v, *[none] * 7, **options)
