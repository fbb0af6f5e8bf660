"""What an Executable asks of jax, in one file that is imported when the first one is made."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh as JaxMesh

from namedmesh.artifacts.artifact import Artifact
from namedmesh.audit.audit import Audit
from namedmesh.errors.errors import NamedMeshError, name_all
from namedmesh.processes.collective_trace import current_trace
from namedmesh.processes.devices import device_mesh as device_mesh
from namedmesh.processes.processes import current_processes
from namedmesh.processes.watch import LostProcess as LostProcess
from namedmesh.processes.watch import current_watch
from namedmesh.runtime.arrays import put_arrays as put_arrays
from namedmesh.runtime.failure import describe_failure, report_failure
from namedmesh.runtime.fetching import fetch_nested as fetch_nested
from namedmesh.runtime.own_rows import feed_arrays as feed_arrays
from namedmesh.runtime.own_rows import own_rows as own_rows
from namedmesh.runtime.ready_inputs import ReadyInputs as ReadyInputs
from namedmesh.runtime.stages import SEED, compile_lowered, lower_init, lower_step
from namedmesh.runtime.stages import named_sharding as named_sharding


def agree_on_program(artifact: Artifact, partitioner: str) -> None:
    """Raise unless all processes are about to compile the same program."""
    processes = current_processes()
    if processes.count > 1:
        text = f"{artifact.name} {artifact.digest[:16]} on {artifact.mesh}, {partitioner}"
        processes.agree("program", text)


def check_span(artifact: Artifact, devices: JaxMesh) -> None:
    """Raise unless every process has a device of the mesh."""
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


def compile_step(artifact: Artifact, devices: JaxMesh, partitioner: str) -> jax.stages.Compiled:
    """Compile the step of an Artifact."""
    with report_failure(f"{artifact.name} cannot be compiled for {artifact.mesh}"):
        return compile_lowered(lower_step(artifact, devices, partitioner))


def compile_init(artifact: Artifact, devices: JaxMesh, partitioner: str) -> jax.stages.Compiled:
    """Compile what makes the first state of an Artifact."""
    with report_failure(f"the initialisation of {artifact.name} cannot be compiled"):
        return compile_lowered(lower_init(artifact, devices, partitioner))


def run_init(compiled: jax.stages.Compiled, devices: JaxMesh, seed: int) -> list[jax.Array]:
    """Make the first state."""
    with report_failure("making the first state failed on the devices"):
        key = jax.device_put(np.int32(seed), named_sharding(devices, SEED))
        return jax.block_until_ready(compiled(key))


def run_step(name: str, compiled: jax.stages.Compiled, operands: list[Any], wait: bool) -> Any:
    """Run one step."""
    watch = current_watch()
    with contextlib.nullcontext() if watch is None else watch.step(name):
        try:
            results = compiled(*operands)
            if wait:
                return jax.block_until_ready(results)
        except (jax.errors.JaxRuntimeError, ValueError) as error:  # jax raises either
            raise describe_failure(f"{name} failed on its devices", error) from error
    if watch is not None and results:
        watch.expect(results[0])
    return results


def learn_collectives(name: str, compiled: jax.stages.Compiled, found: Audit) -> None:
    """Tell the trace of collectives, if there is one, what a program's collectives are."""
    trace = current_trace()
    if trace is not None:
        trace.learn(name, compiled.as_text() or "", found.matched)


def keep_compilations(folder: str) -> None:
    """Make jax keep what it compiles in a folder."""
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
