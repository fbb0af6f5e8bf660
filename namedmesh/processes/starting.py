"""start_processes: connect a process with the others, by arguments, environment or detection."""

from __future__ import annotations

import dataclasses
import os
import platform
import threading
import time
from collections.abc import Collection

import jax
from jaxlib.version import __version__ as jaxlib_version

from namedmesh import jax_internals as bridge
from namedmesh.errors.errors import NamedMeshError, did_you_mean, join_names
from namedmesh.processes.arguments import (
    COORDINATOR,
    COUNT,
    INDEX,
    NEEDED,
    SERVICE,
    ProcessArguments,
)
from namedmesh.processes.collective_trace import current_trace
from namedmesh.processes.devices import use_cpu_devices
from namedmesh.processes.launched import abandoned
from namedmesh.processes.meeting import meet
from namedmesh.processes.processes import Processes, current_processes, forget_run
from namedmesh.processes.watch import end_watch, start_watch
from namedmesh.version import __version__


def start_processes(
    coordinator: str | None = None,
    count: int | None = None,
    index: int | None = None,
    *,
    devices: int | None = None,
    bind: str | None = None,
    method: str | None = None,
    timeout: float = 300,
    heartbeat: float = 15,
    hang_seconds: float | None = 60,
) -> Processes:
    """Connect this process with the others that run the same program, before it uses devices.

    Afterwards a mesh may span the devices of all processes. Arguments that are not given come from
    the environment: JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or whatever
    jax.distributed detects (SLURM, Open MPI, Kubernetes, TPU pods). With neither, there is one
    process, and nothing is started.

    Args:
        coordinator: The address at which process 0 listens and the others find it, `host:port`.
        count: The number of processes.
        index: The number of this one, from 0. Where all three are known nothing is detected, and a
            process uses the GPUs of its machine that JAX_LOCAL_DEVICE_IDS names, or all.
        devices: The number of virtual CPU devices of this process; by default the environment
            variable NAMEDMESH_DEVICES.
        bind: The interface on which process 0 listens, `host` or `host:port`; by default that of
            the coordinator's address.
        method: The detection to use, e.g. `mpi4py` or `slurm`; by default those that jax tries,
            with `deactivate` none.
        timeout: Seconds to wait until all processes have come.
        heartbeat: Seconds that a process may be suspended; after twice as many it counts as gone.
        hang_seconds: Seconds after which process 0 reports a step that has not ended; None for no
            reports.

    Returns:
        The processes.

    Raises:
        NamedMeshError: If not all processes come in time, or if they run different versions.

    Example:
        >>> from namedmesh.runtime import start_processes
        >>> processes = start_processes()  # nothing in the environment: one process
        >>> print(processes)
        process 0 of 1
    """
    given = (coordinator, count, index, devices, bind, method, timeout, heartbeat)
    arguments = ProcessArguments(*given).complete()
    if bridge.is_one_of_several():
        running = current_processes()
        _check_same(running, arguments)
        start_watch(running, hang_seconds, None, arguments.heartbeat)
        return running
    if not arguments.missing and arguments.method is None:
        # Else jax would ask the cluster for what is known, on Kubernetes over the network.
        arguments = dataclasses.replace(arguments, method="deactivate")
    arguments = _detect(arguments)
    if arguments.devices is not None:
        use_cpu_devices(arguments.devices)
        if not bridge.devices_are_fixed():  # also where the environment says more
            jax.config.update("jax_num_cpu_devices", arguments.devices)
    if arguments.count == 1 or arguments.coordinator is None:
        return Processes()
    if bridge.devices_are_fixed():
        raise NamedMeshError(
            "the processes cannot be connected: jax has looked at its devices already",
            fix="call start_processes first, before nm.compile, load and jax.devices()",
        )
    connections = meet(arguments, _versions())
    current_trace()  # from here on jax logs
    _connect(arguments)
    processes = current_processes()
    start_watch(processes, hang_seconds, connections, arguments.heartbeat)
    return processes


def _check_same(running: Processes, arguments: ProcessArguments) -> None:
    """Raise if other processes are asked for than those that were started before."""
    asked = {name: getattr(arguments, name) for name in NEEDED}
    other = [name for name, value in asked.items() if value not in (None, getattr(running, name))]
    if other:
        raise NamedMeshError(
            "the processes are started already, with other arguments",
            f"started: {running}",
            f"asked for: {', '.join(f'{name}={asked[name]!r}' for name in other)}",
            fix="call start_processes once, or with the same arguments",
        )


def _detect(arguments: ProcessArguments) -> ProcessArguments:
    """Complete the arguments with what jax detects."""
    if not arguments.missing or arguments.count == 1:
        return arguments
    methods = bridge.detection_methods()
    if arguments.method not in (None, *methods):
        raise NamedMeshError(
            f"there is no method {arguments.method!r} to detect processes",
            fix=did_you_mean(arguments.method, methods),
        )
    try:
        known = (arguments.coordinator, arguments.count, arguments.index)
        found = bridge.detect_processes(*known, arguments.method, int(arguments.timeout))
        detected = dataclasses.replace(arguments, **dict(zip(NEEDED, found, strict=True))).checked()
    except NamedMeshError:
        raise
    except Exception as error:  # whatever the environment's own libraries raise
        raise NamedMeshError(
            f"the environment of the processes cannot be read: {str(error)[:300]}",
            fix="give coordinator, count and index to start_processes",
        ) from error
    known = [name for name in NEEDED if name not in arguments.missing]
    if detected.missing and (known or arguments.method not in (None, "deactivate")):
        only = f", only {join_names(known)}" if known else ""
        raise NamedMeshError(
            f"start_processes does not know {join_names(detected.missing)} of the processes{only}",
            fix=f"give all three arguments, or set {COORDINATOR}, {COUNT} and {INDEX}",
        )
    return detected


def _connect(arguments: ProcessArguments) -> None:
    """Connect with the coordinator, which process 0 starts."""
    # jax's own handler would swallow SIGTERM, which stops a Trainer, or else ends the process.
    jax.config.update("jax_enable_preemption_service", False)
    timeout = int(arguments.timeout)
    # Doubled: jax sends heartbeats at half of this interval, and one may be due at once.
    heartbeat = int(2 * arguments.heartbeat)
    try:
        if service := os.environ.get(SERVICE):
            place = (str(arguments.coordinator), arguments.count, arguments.index)
            bridge.connect_to_service(service, *place, timeout, heartbeat)
            return
        jax.distributed.initialize(
            arguments.coordinator,
            arguments.count,
            arguments.index,
            cluster_detection_method=arguments.method,
            initialization_timeout=timeout,
            heartbeat_timeout_seconds=heartbeat,
            shutdown_timeout_seconds=max(timeout, heartbeat),
            coordinator_bind_address=arguments.bind or arguments.coordinator,
        )
    except (RuntimeError, ValueError) as error:
        bridge.forget_processes()
        lines = [line.strip()[:300] for line in str(error).splitlines() if line.strip()]
        place = f"process {arguments.index} of {arguments.count}"
        raise NamedMeshError(
            f"{place} did not meet the others at {arguments.coordinator}",
            *lines[:3],
            fix=f"start all {arguments.count} processes within {arguments.timeout} seconds, each "
            "with its own index and the same address, which must lead to process 0",
        ) from error


def leave_processes(known: Collection[threading.Thread], seconds: float) -> None:
    """Forget the other processes, so that the program can start again with other ones.

    Args:
        known: The threads that were there before the program, and go on.
        seconds: How long the others may take to end.
    """
    abandoned.set()
    end_watch()
    for closing in (False, True):
        if closing:  # threads that wait for the coordinator get an error
            bridge.leave_service()
        deadline = time.monotonic() + seconds / 2
        for thread in set(threading.enumerate()).difference(known):
            thread.join(max(0.0, deadline - time.monotonic()))
    bridge.forget_backends()
    forget_run()
    abandoned.clear()


def _versions() -> str:
    """Return the versions that processes must have in common."""
    python = ".".join(platform.python_version_tuple()[:2])
    ours = f"namedmesh {__version__}, jax {jax.__version__}, jaxlib {jaxlib_version}"
    return f"{ours}, Python {python}"
