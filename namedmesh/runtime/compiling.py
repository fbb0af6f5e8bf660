"""From an Artifact's modules to programs on devices: lowered, compiled, run."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractDevice, AbstractMesh, NamedSharding, PartitionSpec
from jax.sharding import Mesh as JaxMesh
from jaxlib.mlir import ir

from namedmesh.artifacts.artifact import Artifact
from namedmesh.artifacts.description import TensorSpec, dtype_of
from namedmesh.artifacts.stablehlo.prepare import prepare_module
from namedmesh.dims.dimension import Shape
from namedmesh.dims.sharding import Sharding
from namedmesh.errors.errors import NamedMeshError, name_all
from namedmesh.jax_internals import (
    direct_call,
    is_one_of_several,
    is_present,
    module_function,
    partition_with,
)
from namedmesh.processes.devices import device_mesh
from namedmesh.processes.processes import current_processes, leaving
from namedmesh.processes.watch import LostProcess as LostProcess
from namedmesh.processes.watch import current_watch, find_lost
from namedmesh.runtime.partitioner import choose_partitioner

Options = Mapping[str, str | bool]
# Options of a backend's compiler for programs that donate buffers, as train steps do. On GPUs,
# CUDA graphs are rebuilt when buffers have moved: kernels launched one by one start sooner; buffers
# that a loop fills whole need no zeros first. On TPUs (v2 to v4; later ones do by default), gathers
# of weights run beside ops.
OPTIONS: dict[str, Options] = {
    "tpu": {"xla_enable_async_all_gather": True},
    "gpu": {
        "xla_gpu_graph_min_graph_size": str(2**30),
        "xla_gpu_enable_dus_accumulator_zero_init_elimination": True,
    },
}
# Of programs in which shards go round a ring both ways at once, or loops gather ahead: by default,
# XLA has one collective under way at a time, so that what an iteration waits for ends what it does
# not, and computes meanwhile only while it sends the second of two.
OVERLAP_OPTIONS = {"gpu": {"xla_gpu_experimental_parallel_collective_overlap_limit": "2"}}
# Of programs with float8: cuBLAS multiplies it. XLA would also try each product in Triton, whose
# kernels of float8 take minutes to compile (one H200, jax 0.11: not done after 5).
FLOAT8_OPTIONS = {"gpu": {"xla_gpu_enable_triton_gemm": False}}
# Between processes, gloo makes sums that XLA has joined one by one, and goes on with the next
# when one fails: what it then receives is another's, and it aborts the process.
GLOO_OPTIONS = {"xla_disable_hlo_passes": "cpu-all-reduce-combiner"}
SEED = TensorSpec("seed", Shape(), "int32", Sharding())
_AGAIN = "see what the compiler says above; export the program again if its file is old"
_SMALLER = "use a smaller batch, a mesh of more devices, or a layout that splits more"
_SETTINGS = ("NAMEDMESH_", "XLA_", "LIBTPU_", "JAX_")  # of the environment
MOST_COMPILED = 16  # programs that are kept in case they are compiled again, the latest used
_compiled: OrderedDict[Hashable, jax.stages.Compiled] = OrderedDict()
leaving.append(_compiled.clear)


@dataclass(frozen=True)
class LoweredModule:
    """A module as jax lowered it, for one partitioner: each ignores the other's annotations."""

    lowered: jax.stages.Lowered
    partitioner: str
    options: Options  # of the backend's compiler


def choose_devices(artifact: Artifact, partitioner: str) -> JaxMesh:
    """Return the devices that a program runs on; raise unless all processes run it on some."""
    processes = current_processes()
    if processes.count > 1:
        text = f"{artifact.name} {artifact.digest[:16]} on {artifact.mesh}, {partitioner}"
        processes.agree("program", text)
    devices = device_mesh(artifact.mesh)
    present = {device.process_index for device in devices.devices.flat}
    absent = [str(one) for one in range(jax.process_count()) if one not in present]
    if absent:
        names = name_all("process", absent, "processes")
        raise NamedMeshError(
            f"{names} of {jax.process_count()} would have no device of the mesh of {artifact.name}",
            f"mesh: {artifact.mesh}",
            f"devices: {len(jax.devices())}, {jax.local_device_count()} of them of this process",
            fix="use a mesh of all devices, or start fewer processes",
        )
    return devices


def named_sharding(devices: JaxMesh, spec: TensorSpec) -> NamedSharding:
    """Return the sharding of a tensor in jax's terms."""
    axes = (spec.sharding.axes(dim.name) or None for dim in spec.shape)
    return NamedSharding(devices, PartitionSpec(*axes))


def lower_step(
    artifact: Artifact, devices: JaxMesh, partitioner: str | None = None
) -> LoweredModule:
    """Lower an Artifact's step; updated variables are donated."""
    arguments = [*artifact.inputs, *artifact.variables]
    updated = [spec for spec in artifact.variables if spec.updated]
    first = len(artifact.inputs)
    donated = [i for i, spec in enumerate(artifact.variables, first) if spec.updated]
    results = [*artifact.outputs, *updated]
    step = artifact.step_module
    return _lower_module(artifact, step, devices, arguments, results, donated, partitioner)


def lower_init(
    artifact: Artifact, devices: JaxMesh, partitioner: str | None = None
) -> LoweredModule:
    """Lower the module that makes an Artifact's first state."""
    init, variables = artifact.init_module, artifact.variables
    return _lower_module(artifact, init, devices, [SEED], variables, [], partitioner)


def _lower_module(
    artifact: Artifact,
    module: bytes,
    devices: JaxMesh,
    arguments: Sequence[TensorSpec],
    results: Sequence[TensorSpec],
    donated: Sequence[int],
    partitioner: str | None,
) -> LoweredModule:
    """Lower a module for devices."""
    mesh = artifact.mesh
    wide = [spec for spec in (*arguments, *results) if spec.dtype in ("float64", "int64")]
    if wide and jax.dtypes.canonicalize_dtype("float64") == "float32":
        raise NamedMeshError(
            f"tensor {wide[0].name} is {wide[0].dtype}, and jax is set to 32 bits",
            *dict.fromkeys(f"{spec.name}: {spec.sharded_text}" for spec in wide),
            fix='use 32 bits, or jax.config.update("jax_enable_x64", True) first of all',
        )
    one = devices.devices.flat[0]
    # Kernels are lowered for the device that jax is told of, which need not be in this machine.
    kind = AbstractMesh((), (), abstract_device=AbstractDevice(one.device_kind, None, one.platform))

    def prepare(parsed: ir.Module, platforms: Sequence[str], shardy: bool) -> None:
        with jax.sharding.use_abstract_mesh(kind):
            prepare_module(parsed, mesh, platforms, shardy, present=is_present(one))

    def describe(spec: TensorSpec) -> jax.ShapeDtypeStruct:
        sharding = named_sharding(devices, spec)
        return jax.ShapeDtypeStruct(spec.padded(mesh), dtype_of(spec.dtype), sharding=sharding)

    types = tuple((spec.padded(mesh), dtype_of(spec.dtype)) for spec in results)
    function = jax.jit(
        module_function(module, types, prepare),
        in_shardings=tuple(named_sharding(devices, spec) for spec in arguments),
        out_shardings=[named_sharding(devices, spec) for spec in results],
        donate_argnums=tuple(donated),
        keep_unused=True,
    )
    partitioner = choose_partitioner(partitioner)
    try:
        with partition_with(partitioner):
            lowered = function.lower(*map(describe, arguments))
    except NamedMeshError as error:  # was made among jax's frames: this one is about the caller's
        raise NamedMeshError(error.problem, *error.details, fix=error.fix) from None
    options = choose_options(artifact, one.platform, bool(donated))
    return LoweredModule(lowered, partitioner, options)


def choose_options(artifact: Artifact, platform: str, donates: bool) -> Options:
    """Return the options of a backend's compiler for a program, which may donate its arguments."""
    results = [spec for op in artifact.ops.values() for spec in op.results]
    options: dict[str, str | bool] = {}
    if donates:
        options |= OPTIONS.get(platform, {})
    sent = artifact.collectives
    if any(one.copies or (one.hop is not None and one.hop.cyclic) for one in sent):
        options |= OVERLAP_OPTIONS.get(platform, {})
    if any(spec.dtype.startswith("float8") for spec in results):
        options |= FLOAT8_OPTIONS.get(platform, {})
    if platform == "cpu" and is_one_of_several():
        options |= GLOO_OPTIONS
    return options


def compile_lowered(module: LoweredModule, options: Options | None = None) -> jax.stages.Compiled:
    """Compile a lowered module."""
    with partition_with(module.partitioner):
        return module.lowered.compile(compiler_options={**module.options, **(options or {})})


def compile_step(artifact: Artifact, devices: JaxMesh, partitioner: str) -> jax.stages.Compiled:
    """Compile the step of an Artifact."""
    with report_failure(f"{artifact.name} cannot be compiled for {artifact.mesh}"):
        lowered = lower_step(artifact, devices, partitioner)
        return _compile_once(lowered, artifact.step_module, devices)


def compile_init(artifact: Artifact, devices: JaxMesh, partitioner: str) -> jax.stages.Compiled:
    """Compile the module that makes the first state of an Artifact."""
    with report_failure(f"the initialisation of {artifact.name} cannot be compiled"):
        lowered = lower_init(artifact, devices, partitioner)
        return _compile_once(lowered, artifact.init_module, devices)


def _compile_once(lowered: LoweredModule, module: bytes, devices: JaxMesh) -> jax.stages.Compiled:
    """Compile a module, unless this process has compiled an equal one for the same devices."""
    # Compared is what is compiled: kernels, jax code and options of jax are in the lowered module
    # or beside it. Names of ops, which the audit reads, are in the Artifact's module.
    texts = (module, lowered.lowered.as_text().encode())
    settings = sorted(item for item in os.environ.items() if item[0].startswith(_SETTINGS))
    options = sorted((name, repr(value)) for name, value in jax.config.values.items())
    digests = (hashlib.sha256(text).digest() for text in texts)
    own = sorted(lowered.options.items())
    key = (devices, lowered.partitioner, repr((settings, options, own)), *digests)
    if key not in _compiled:
        _compiled[key] = compile_lowered(lowered)
        while len(_compiled) > MOST_COMPILED:
            _compiled.popitem(last=False)
    _compiled.move_to_end(key)
    return _compiled[key]


def run_init(compiled: jax.stages.Compiled, devices: JaxMesh, seed: int) -> list[jax.Array]:
    """Make the first state."""
    with report_failure("making the first state failed on the devices"):
        key = jax.device_put(np.int32(seed), named_sharding(devices, SEED))
        return jax.block_until_ready(compiled(key))


def bind_step(
    artifact: Artifact, compiled: jax.stages.Compiled, structure: Any, wait: bool
) -> Callable[..., tuple[Any, list[jax.Array]]]:
    """Return the function that runs a compiled step on flat operands.

    It returns the results, nested like a structure, and the new values of the updated variables.
    """
    updated = [spec.name for spec in artifact.variables if spec.updated]
    call = direct_call(compiled, (structure, updated))
    if not is_one_of_several():
        return call

    def run_watched(*operands: Any) -> tuple[Any, list[jax.Array]]:
        watch = current_watch()
        if watch is None:
            return call(*operands)
        with watch.step(artifact.name):
            try:
                results = call(*operands)
                if wait:
                    jax.block_until_ready(results)
            except (jax.errors.JaxRuntimeError, ValueError) as error:  # jax raises either
                raise describe_step_failure(artifact.name, error) from error
        if not wait:
            for array in jax.tree.leaves(results)[:1]:
                watch.expect(array)
        return results

    return run_watched


def describe_step_failure(name: str, error: Exception) -> Exception:
    """Return the error to raise for what a step raised on its devices."""
    own = isinstance(error, NamedMeshError)
    if own or not isinstance(error, (jax.errors.JaxRuntimeError, ValueError)):  # jax raises either
        return error
    return _describe_failure(f"{name} failed on its devices", error)


@contextlib.contextmanager
def report_failure(problem: str, fix: str = _AGAIN, smaller: str = _SMALLER) -> Iterator[None]:
    """Turn what jax raises inside into a NamedMeshError: what to do, and where memory runs out."""
    try:
        yield
    except NamedMeshError:
        raise
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # jax raises either
        raise _describe_failure(problem, error, fix, smaller) from error


def _describe_failure(
    problem: str, error: Exception, fix: str = _AGAIN, smaller: str = _SMALLER
) -> NamedMeshError:
    """Make the error for what jax raised."""
    lost = find_lost(problem, error)
    if lost is not None:
        return lost
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    fix = smaller if "RESOURCE_EXHAUSTED" in str(error) else fix
    return NamedMeshError(problem, *(line[:300] for line in lines[:4]), fix=fix)
