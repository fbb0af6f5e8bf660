"""Restore a checkpoint into a program, whatever mesh, layout and padding it was saved with."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from namedmesh.errors.errors import NamedMeshError
from namedmesh.processes.processes import Processes
from namedmesh.runtime import Executable, State
from namedmesh.training.checkpoint_files import (
    ARRAYS,
    CheckpointFolder,
    DamagedCheckpoint,
    Record,
    report_damage,
)
from namedmesh.training.chunks import ArrayTarget, clear_padding, read_arrays
from namedmesh.training.saved_variables import match_variables
from namedmesh.training.transfer import DISK, ShardGrid, TransferPlan, find_hosts, make_route

_SECONDS = 600.0  # for a process that has read its part to wait for the others


class Checkpoint(NamedTuple):
    """A restored checkpoint: the step it was saved at, the state, and the JSON saved beside it.

    Example:
        >>> from namedmesh.runtime import State
        >>> from namedmesh.training import Checkpoint
        >>> checkpoint = Checkpoint(10, State({}, {}), {"position": 640})
        >>> checkpoint.step, checkpoint.extra["position"]
        (10, 640)
    """

    step: int
    state: State
    extra: dict[str, Any]


def plan_restore(folder: CheckpointFolder, step: int, executable: Executable) -> TransferPlan:
    """Plan what each device of a program reads from a checkpoint, or gets from another one."""
    record, mesh = folder.read_record(step), executable.artifact.mesh
    hosts, routes = find_hosts([mesh], False), {}
    for name, spec in executable.variables.items():
        if name in record.variables:
            stored = record.variables[name]
            place = ShardGrid(stored.shape, (DISK,), ((0,) * len(stored.shape),))
            text = f"{stored.dtype}{list(stored.sizes)}"
            routes[name] = make_route(spec, mesh, place, hosts, stored.dtype, text)
    return TransferPlan(f"step {step} of {folder.path} to {mesh}", routes, hosts, 0)


def restore_step(
    files: CheckpointFolder, step: int, executable: Executable, missing: str, seed: int, window: int
) -> Checkpoint:
    """Restore the variables of a program from one checkpoint."""
    record, specs = files.read_record(step), executable.variables
    saved = {name: stored.variable for name, stored in record.variables.items()}
    fix = "make the variables as they were saved, and cast or transpose them where they are used"
    if missing != "init":
        fix += "; or give missing='init' for new ones"
    where = f"the checkpoint of step {step}"
    names = match_variables(where, saved, specs, missing=missing, fix=fix)
    arrays = _read_values(files, record, executable, names, window)
    if len(names) < len(specs):
        arrays = executable.init(seed).arrays | arrays
    ordered = {name: arrays[name] for name in specs}
    return Checkpoint(step, State(ordered, specs), dict(record.extra))


def restore_together(
    processes: Processes, folder: CheckpointFolder, step: int, **options: Any
) -> Checkpoint:
    """Restore one checkpoint on all processes, or on none."""
    outcome, text = None, "restored"
    try:
        outcome = restore_step(folder, step, **options)
    except NamedMeshError as error:
        outcome = error
        kind = "damaged" if isinstance(error, DamagedCheckpoint) else "failed"
        text = ": ".join([kind, error.problem, *error.details])
    texts = processes.exchange(f"restoring from {folder.path}", text, timeout=_SECONDS)
    for kind, error_class in (("damaged: ", DamagedCheckpoint), ("failed: ", NamedMeshError)):
        failed = {index: other for index, other in enumerate(texts) if other.startswith(kind)}
        if isinstance(outcome, NamedMeshError) and processes.index in failed:
            raise outcome
        if failed:
            raise error_class(
                f"the checkpoint of step {step} in {folder.path} could not be restored",
                *(f"process {index}: {other[len(kind) :]}" for index, other in failed.items()),
                fix="look at the output of that process",
            )
    assert not isinstance(outcome, NamedMeshError)
    return outcome


def _read_values(
    folder: CheckpointFolder, record: Record, executable: Executable, names: list[str], window: int
) -> dict[str, jax.Array]:
    """Read some variables, with the padding that the program has."""
    if not names:
        return {}
    specs, path = executable.variables, folder.step_path(record.step)
    targets = {
        name: ArrayTarget(
            record.variables[name],
            tuple(specs[name].padded(executable.artifact.mesh)),
            executable.sharding(specs[name]),
        )
        for name in names
    }
    with report_damage(path):
        arrays = read_arrays(path / ARRAYS, record.token, targets, window)
    return {
        name: clear_padding(arrays[name], specs[name].sizes, target.stored.shape)
        for name, target in targets.items()
    }
