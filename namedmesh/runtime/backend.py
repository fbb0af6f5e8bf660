"""What an Executable asks of jax, in one file that is imported when the first one is made."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh as JaxMesh

from namedmesh.runtime.arrays import put_arrays as put_arrays
from namedmesh.runtime.artifact import Artifact
from namedmesh.runtime.devices import device_mesh as device_mesh
from namedmesh.runtime.failure import describe_failure, report_failure
from namedmesh.runtime.ready_inputs import ReadyInputs as ReadyInputs
from namedmesh.runtime.stages import SEED, compile_lowered, lower_init, lower_step
from namedmesh.runtime.stages import named_sharding as named_sharding


def compile_step(artifact: Artifact, devices: JaxMesh, partitioner: str) -> jax.stages.Compiled:
    """Compiles the step of an Artifact.

    Args:
        artifact: The Artifact.
        devices: Devices in its mesh.
        partitioner: What splits the program over the devices.

    Returns:
        The compiled step.

    Raises:
        NamedMeshError: If the compiler cannot.
    """
    with report_failure(f"{artifact.name} cannot be compiled for {artifact.mesh}"):
        return compile_lowered(lower_step(artifact, devices, partitioner))


def compile_init(artifact: Artifact, devices: JaxMesh, partitioner: str) -> jax.stages.Compiled:
    """Compiles what makes the first state of an Artifact.

    Args:
        artifact: The Artifact, which has variables.
        devices: Devices in its mesh.
        partitioner: What splits the program over the devices.

    Returns:
        The compiled initialisation.

    Raises:
        NamedMeshError: If the compiler cannot.
    """
    with report_failure(f"the initialisation of {artifact.name} cannot be compiled"):
        return compile_lowered(lower_init(artifact, devices, partitioner))


def run_init(compiled: jax.stages.Compiled, devices: JaxMesh, seed: int) -> list[jax.Array]:
    """Makes the first state.

    Args:
        compiled: The compiled initialisation.
        devices: The devices it was compiled for.
        seed: What random values follow from.

    Returns:
        An array for each variable.
    """
    with report_failure("making the first state failed on the devices"):
        key = jax.device_put(np.int32(seed), named_sharding(devices, SEED))
        return jax.block_until_ready(compiled(key))


def run_step(name: str, compiled: jax.stages.Compiled, operands: list[Any], wait: bool) -> Any:
    """Runs one step.

    Args:
        name: The program, for errors.
        compiled: The compiled step.
        operands: The arrays it takes.
        wait: Whether to return only when all results are there.

    Returns:
        The results.
    """
    try:
        results = compiled(*operands)
        return jax.block_until_ready(results) if wait else results
    except jax.errors.JaxRuntimeError as error:
        raise describe_failure(f"{name} failed on its devices", error) from error


def keep_compilations(folder: str) -> None:
    """Makes jax keep what it compiles in a folder.

    Args:
        folder: The folder.
    """
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
