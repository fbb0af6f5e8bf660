"""From an Artifact's modules to compiled programs: lowered for devices, then compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
from jax.sharding import Mesh as JaxMesh
from jax.sharding import NamedSharding, PartitionSpec

from namedmesh.artifacts.artifact import Artifact
from namedmesh.artifacts.description import TensorSpec, dtype_of
from namedmesh.dims.dimension import Shape
from namedmesh.dims.mesh import Mesh
from namedmesh.dims.sharding import Sharding
from namedmesh.errors.errors import NamedMeshError
from namedmesh.jax_internals import is_one_of_several, module_function, partition_with
from namedmesh.runtime.partitioner import choose_partitioner


@dataclass(frozen=True)
class LoweredModule:
    """A module as jax lowered it.

    Attributes:
        lowered: The module.
        partitioner: What is to partition it: annotations of one mean nothing to the other.
        platform: What it is compiled for.
        donates: Whether results take the memory of what it is given.
    """

    lowered: jax.stages.Lowered
    partitioner: str
    platform: str
    donates: bool


# Options of a backend's compiler for programs that hand their memory on, as train steps do. On
# GPUs, graphs of kernels are put together anew when memory has moved: kernels launched one by one
# start sooner; buffers that a loop fills whole need no zeros first.
OPTIONS = {
    "gpu": {
        "xla_gpu_graph_min_graph_size": str(2**30),
        "xla_gpu_enable_dus_accumulator_zero_init_elimination": True,
    }
}
# Between processes, gloo makes sums that XLA has joined one by one, and goes on with the next
# when one fails: what it then receives is another's, and it aborts the process.
GLOO_OPTIONS = {"xla_disable_hlo_passes": "cpu-all-reduce-combiner"}
SEED = TensorSpec("seed", Shape(), "int32", Sharding())


def named_sharding(devices: JaxMesh, spec: TensorSpec) -> NamedSharding:
    """Where a tensor lies, in jax's terms."""
    axes = (spec.sharding.axes(dim.name) or None for dim in spec.shape)
    return NamedSharding(devices, PartitionSpec(*axes))


def lower_module(
    module: bytes,
    mesh: Mesh,
    devices: JaxMesh,
    entries: Sequence[TensorSpec],
    results: Sequence[TensorSpec],
    donated: Sequence[int] = (),
    partitioner: str | None = None,
) -> LoweredModule:
    """Make a module ready to compile for devices."""
    types = tuple((spec.padded(mesh), dtype_of(spec.dtype)) for spec in results)
    function = jax.jit(
        module_function(module, types, mesh),
        in_shardings=tuple(named_sharding(devices, spec) for spec in entries),
        out_shardings=[named_sharding(devices, spec) for spec in results],
        donate_argnums=tuple(donated),
        keep_unused=True,
    )
    arguments = (
        jax.ShapeDtypeStruct(
            spec.padded(mesh), dtype_of(spec.dtype), sharding=named_sharding(devices, spec)
        )
        for spec in entries
    )
    partitioner = choose_partitioner(partitioner)
    try:
        with partition_with(partitioner):
            lowered = function.lower(*arguments)
            platform = devices.devices.flat[0].platform
            return LoweredModule(lowered, partitioner, platform, bool(donated))
    except NamedMeshError as error:  # was made among jax's frames: this one is about the caller's
        raise NamedMeshError(error.problem, *error.details, fix=error.fix) from None


def lower_step(
    artifact: Artifact, devices: JaxMesh, partitioner: str | None = None
) -> LoweredModule:
    """Make an Artifact's step ready to compile; updated variables give up their memory."""
    updated = [spec for spec in artifact.variables if spec.updated]
    donated = [
        len(artifact.inputs) + i for i, spec in enumerate(artifact.variables) if spec.updated
    ]
    return lower_module(
        artifact.step_module,
        artifact.mesh,
        devices,
        [*artifact.inputs, *artifact.variables],
        [*artifact.outputs, *updated],
        donated,
        partitioner,
    )


def lower_init(
    artifact: Artifact, devices: JaxMesh, partitioner: str | None = None
) -> LoweredModule:
    """Make what creates an Artifact's first state ready to compile."""
    module, variables = artifact.init_module, artifact.variables
    return lower_module(module, artifact.mesh, devices, [SEED], variables, partitioner=partitioner)


def compile_lowered(
    module: LoweredModule, options: Mapping[str, str | bool] | None = None
) -> jax.stages.Compiled:
    """Compile a lowered module."""
    own = OPTIONS.get(module.platform, {}) if module.donates else {}
    between = GLOO_OPTIONS if module.platform == "cpu" and is_one_of_several() else {}
    chosen = {**own, **between, **(options or {})}
    with partition_with(module.partitioner):
        return module.lowered.compile(compiler_options=chosen)
