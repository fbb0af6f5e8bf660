"""Ahead of time: an Artifact compiled for devices that are not here, and its report."""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax

from namedmesh.aot.absent_devices import devices_of, first_lines, hbm_bytes
from namedmesh.aot.local_gpu import describe_tuning
from namedmesh.aot.memory import (
    Exhausted,
    attribute_memory,
    estimate_memory,
    find_levers,
    known_buffers,
    largest_buffers,
    read_exhaustion,
)
from namedmesh.aot.target_report import TargetReport, count_weights
from namedmesh.aot.toolkit import toolkit_options
from namedmesh.artifacts.artifact import Artifact
from namedmesh.audit.audit import audit
from namedmesh.audit.hlo.module import parse_module
from namedmesh.audit.hlo.trip_counts import find_loops
from namedmesh.audit.hlo.values import count_cycles
from namedmesh.errors.errors import NamedMeshError
from namedmesh.hardware.assignment import assign_devices, traffic_of
from namedmesh.hardware.hardware import Hardware, network_of
from namedmesh.hardware.leaving import advise, list_links
from namedmesh.hardware.topology import Target, Torus
from namedmesh.processes.devices import arrange_devices
from namedmesh.runtime.compiling import LoweredModule, compile_lowered, lower_step
from namedmesh.runtime.executable import Report
from namedmesh.runtime.partitioner import choose_partitioner
from namedmesh.schedule.reading import read_schedule

_BOOLS: dict[str | bool, bool] = {"true": True, "false": False}


def compile_for(
    artifact: Artifact,
    target: Target | str,
    *,
    name: str | None = None,
    partitioner: str | None = None,
    options: Mapping[str, str | bool] | None = None,
    hardware: Hardware | None = None,
) -> TargetReport:
    """Compile an Artifact's step for a target that need not be here.

    A mesh without a device assignment is placed on the target's torus so that heavy traffic goes to
    neighbours; `artifact.with_device_assignment(report.assignment.order)` runs like that. For a
    step that does not fit into memory, the report says by how much, and what would help.

    Args:
        artifact: The program.
        target: Such as `h100:32x8`, `tpu-v3:32x32` or `cpu:8`; `tpu-v5e:4x4:2` are two slices, and
            `mine.txtpb:32x8` nodes of the GPU that a file describes to XLA's compiler.
        name: The report's name for the model; by default the Artifact's own.
        partitioner: What splits the program over the devices, `gspmd` or `shardy`.
        options: Of XLA's compiler, such as `{"xla_gpu_enable_pipelined_all_gather": "true"}`.
        hardware: What the timeline's seconds are estimated for, such as a file of `namedmesh
            calibrate` read by `Hardware.parse`; by default the target's built-in figures.

    Returns:
        Memory, communication and cost for one core.

    Raises:
        NamedMeshError: If the target has another number of devices, its compiler is not here, or
            the compiler refuses the program.

    Example:
        >>> from namedmesh.aot import compile_for
        >>> import namedmesh as nm
        >>> (B,) = nm.dims("batch=4")
        >>> program = nm.trace(lambda x: nm.exp(x), x=nm.spec([B]))
        >>> report = compile_for(nm.export(program, nm.Mesh(data=1), ""), "cpu:1")
        >>> report.fits, report.memory.inputs
        (True, 16)
    """
    target = Target.parse(target) if isinstance(target, str) else target
    partitioner = choose_partitioner(partitioner)
    # XLA_FLAGS has true and false; options of one program are True and False.
    given = {name: _BOOLS.get(value, value) for name, value in (options or {}).items()}
    if target.platform == "tpu" and artifact.mesh.slices != target.slices:
        same = replace(target, slices=artifact.mesh.slices)
        other, _, rest = same.suggest(artifact.mesh.devices).partition(", or plan")
        other = f"{other}, or " if rest else ""
        raise NamedMeshError(
            f"{artifact.name} is planned for slices={artifact.mesh.slices}, "
            f"and {target} has {target.slices}",
            f"mesh: {artifact.mesh}",
            fix=f"{other}plan it for a mesh with slices={target.slices}",
        )
    if artifact.mesh.devices != target.cores:
        planned = f"{artifact.name} is planned for {artifact.mesh.devices} devices"
        problem = f"{planned}, and {target} has {target.cores}"
        fix = target.suggest(artifact.mesh.devices)
        raise NamedMeshError(problem, f"mesh: {artifact.mesh}", fix=fix)
    devices = devices_of(target)
    toolkit = toolkit_options(devices) if target.platform == "gpu" else {}
    torus = Torus.of_devices(devices, target)
    assignment = assign_devices(artifact.mesh, torus, traffic_of(artifact.collectives))
    assigned = artifact.with_device_assignment(assignment.order)
    start = time.perf_counter()
    lowered = lower_step(assigned, arrange_devices(devices, assigned.mesh), partitioner)
    dumps = target.platform == "tpu" and "xla_dump_to" not in given
    step, text, error = _compile_and_read(lowered, toolkit | given, dumps)
    lack = read_exhaustion(str(error), artifact) if error is not None else None
    if error is not None and lack is None:
        raise NamedMeshError(
            f"the compiler of {target} refuses {artifact.name}",
            *first_lines(error),
            fix=f"compile without {', '.join(given)}"
            if given
            else "replace the op it names; an op that runs on CPU alone has no place "
            "in a program for another platform",
        ) from error
    seconds = time.perf_counter() - start
    if step is None and not dumps:
        text = _dump_last_try(lowered, toolkit | given)
    module = parse_module(text) if text else None
    cost: Any = (step.cost_analysis() if step is not None else None) or {}
    cost = cost[0] if isinstance(cost, list) else cost  # some versions of jax wrap it
    memory, hbm = None, hbm_bytes(devices[0], target) if lack is None else lack.available
    if step is not None and module is not None:
        memory = attribute_memory(artifact, Report.of(step, seconds), module)
        if hbm is not None and memory.total > hbm:  # the GPU compiler leaves it to the allocator
            lack = Exhausted(memory.total, hbm)
    elif lack is not None:
        memory = estimate_memory(artifact, lack.needed)
    buffers = list(lack.buffers) if lack is not None else []
    if not buffers:
        buffers = largest_buffers(artifact, module) if module else known_buffers(artifact)
    levers = find_levers(artifact, memory) if lack is not None and memory is not None else []
    audited = None
    if module is not None:
        audited = audit(
            *(module, assigned.mesh, artifact.collectives),
            backend=target.platform,
            precision=artifact.precision,
            ops=artifact.ops,
            orders=artifact.orders,
        )
    clock, timeline = target.chip.clock, None
    # What the compiler tried in vain computes again what it could to save memory.
    if module and audited and step is not None and module.scheduled and target.chip.tera:
        sources = {name: one.source for name, one in artifact.ops.items()}
        made, own = audited.describe_compiled(), hardware or Hardware.parse(_hardware_of(target))
        priced = module, made, assigned.mesh, own.divide(target.cores)
        timeline = read_schedule(*priced, clock, sources)
    cycles = count_cycles(module) if module else 0
    network = network_of(target) if target.platform != "cpu" else None
    placed = artifact.collectives, artifact.mesh
    return TargetReport(
        model=name or artifact.name,
        target=str(target),
        mesh=str(artifact.mesh),
        cores=target.cores,
        weights=count_weights(artifact),
        fits=lack is None,
        hbm_bytes=hbm,
        memory=memory,
        lack=lack,
        buffers=tuple(buffers),
        levers=tuple(levers),
        audit=audited,
        program_flops=artifact.flops / target.cores,
        recomputed=artifact.recomputed,
        compiler_flops=cost.get("flops"),
        bytes_accessed=cost.get("bytes accessed"),
        loops=len(find_loops(module)) if module else 0,
        optimal_seconds=cost.get("optimal_seconds"),
        compute_seconds=cycles / clock if cycles and clock else None,
        compile_seconds=seconds,
        assignment=assignment,
        leaving={
            block: sum(getattr(one, f"total_{block}_bytes") for one in artifact.collectives)
            for block in artifact.mesh.blocks
        },
        links=list_links(*placed, network) if network else (),
        tuning=describe_tuning(target, devices),
        advice=advise(*placed, network) if network else None,
        timeline=timeline,
    )


def _hardware_of(target: Target) -> str:
    """Return what a target is called in the table of hardware."""
    return "cpu" if target.platform == "cpu" else str(target)


def _compile_and_read(
    lowered: LoweredModule, options: Mapping[str, str | bool], dumps: bool
) -> tuple[jax.stages.Compiled | None, str | None, RuntimeError | None]:
    """Compile; return the step and its optimized HLO as text, and what the compiler raises.

    jaxlib reads what libtpu has made before it writes it as text, and refuses what is newer than
    itself, such as an async update of several operands. Then the text is what libtpu dumped, as it
    is of what does not fit.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            step = _compile(lowered, {**options, **(_dump_options(folder) if dumps else {})})
        except RuntimeError as error:
            return None, _read_last_try(folder), error
        try:
            return step, step.as_text(), None
        except RuntimeError:
            # As jaxlib would have it, with estimated cycles; parts of it may have smaller files.
            dumped = [*pathlib.Path(folder).glob("*.after_codegen.txt")]
            if not dumped:
                raise
            text = max(dumped, key=lambda path: path.stat().st_size).read_text()
            return step, text, None


def _dump_options(folder: str) -> dict[str, str | bool]:
    """Return the options for compilers to write modules as text into a folder."""
    return {"xla_dump_to": folder, "xla_dump_hlo_as_text": True}


def _compile(lowered: LoweredModule, options: Mapping[str, str | bool]) -> jax.stages.Compiled:
    """Compile, without Triton where it has no tiling of a product: it would find one by tuning."""
    try:
        return compile_lowered(lowered, options)
    except RuntimeError as error:
        if "output tile sizes" not in str(error):
            raise
        return compile_lowered(lowered, {"xla_gpu_enable_triton_gemm": False, **options})


def _dump_last_try(lowered: LoweredModule, options: Mapping[str, str | bool]) -> str | None:
    """Return the last module that the compiler dumps before it fails, if it dumps any."""
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.suppress(RuntimeError):
            _compile(lowered, {**options, **_dump_options(folder)})
        return _read_last_try(folder)


def _read_last_try(folder: str) -> str | None:
    """Return the last scheduled module that was dumped into a folder."""
    dumped = sorted(pathlib.Path(folder).rglob("*.txt"), key=lambda path: path.stat().st_mtime)
    texts = (path.read_text() for path in reversed(dumped))
    return next((text for text in texts if "is_scheduled=true" in text[:4000]), None)
