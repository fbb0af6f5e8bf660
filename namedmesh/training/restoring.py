"""Restore a checkpoint into a program, whatever mesh, layout and padding it was saved with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from namedmesh.training.saving import PEER_SECONDS
from namedmesh.training.transfer import DISK, ShardGrid, TransferPlan, find_hosts, make_route


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


def plan_restore(
    folder: CheckpointFolder, step: int, executable: Executable, missing: str
) -> TransferPlan:
    """Plan what each device of a program reads from a checkpoint, or gets from another one."""
    record, mesh = folder.read_record(step), executable.artifact.mesh
    hosts, routes = find_hosts([mesh], False), {}
    for name in _match_record(record, f"the checkpoint of step {step}", executable, missing):
        stored, spec = record.variables[name], executable.variables[name]
        place = ShardGrid(stored.shape, (DISK,), ((0,) * len(stored.shape),))
        text = f"{stored.dtype}{list(stored.sizes)}"
        routes[name] = make_route(spec, mesh, place, hosts, stored.dtype, text)
    return TransferPlan(f"step {step} of {folder.path} to {mesh}", routes, hosts, 0)


def restore_step(
    files: CheckpointFolder, step: int, executable: Executable, missing: str, seed: int, window: int
) -> Checkpoint:
    """Restore the variables of a program from one checkpoint."""
    record, path = files.read_record(step), files.step_path(step)

    def read(targets: Mapping[str, ArrayTarget]) -> dict[str, jax.Array]:
        with report_damage(path):
            return read_arrays(path / ARRAYS, record.token, targets, window)

    return restore_record(record, f"the checkpoint of step {step}", executable, read, missing, seed)


def restore_record(
    record: Record,
    where: str,
    executable: Executable,
    read: Callable[[Mapping[str, ArrayTarget]], dict[str, jax.Array]],
    missing: str = "error",
    seed: int = 0,
) -> Checkpoint:
    """Restore the variables of a program from what a record describes and a function reads."""
    specs, names = executable.variables, _match_record(record, where, executable, missing)
    arrays = _read_values(record, executable, names, read) if names else {}
    if len(names) < len(specs):
        arrays = executable.init(seed).arrays | arrays
    ordered = {name: arrays[name] for name in specs}
    return Checkpoint(record.step, State(ordered, specs), dict(record.extra))


def _match_record(record: Record, where: str, executable: Executable, missing: str) -> list[str]:
    """Return the variables of a program that a checkpoint has; raise for those that do not fit."""
    specs = executable.variables
    saved = {name: stored.variable for name, stored in record.variables.items()}
    fix = "make the variables as they were saved, and cast or transpose them where they are used"
    if any(name in saved and saved[name].dtype != spec.dtype for name, spec in specs.items()):
        fix += ", or restore a program of the saved dtypes and nm.transfer(it, this, cast=True)"
    if missing != "init":
        fix += "; or give missing='init' for new ones"
    return match_variables(where, saved, specs, missing=missing, fix=fix)


def restore_together(
    processes: Processes, where: str, restore: Callable[[], Checkpoint]
) -> Checkpoint:
    """Restore one state on all processes, or on none."""
    outcome, text = None, "restored"
    try:
        outcome = restore()
    except NamedMeshError as error:
        outcome = error
        kind = "damaged" if isinstance(error, DamagedCheckpoint) else "failed"
        text = ": ".join([kind, error.problem, *error.details])
    texts = processes.exchange(f"restoring {where}", text, timeout=PEER_SECONDS)
    for kind, error_class in (("damaged: ", DamagedCheckpoint), ("failed: ", NamedMeshError)):
        failed = {index: other for index, other in enumerate(texts) if other.startswith(kind)}
        if isinstance(outcome, NamedMeshError) and processes.index in failed:
            raise outcome
        if failed:
            raise error_class(
                f"{where} could not be restored",
                *(f"process {index}: {other[len(kind) :]}" for index, other in failed.items()),
                fix="look at the output of that process",
            )
    assert not isinstance(outcome, NamedMeshError)
    return outcome


def _read_values(
    record: Record, executable: Executable, names: list[str], read: Callable[..., Any]
) -> dict[str, jax.Array]:
    """Read some variables, with the padding that the program has."""
    specs = executable.variables
    targets = {
        name: ArrayTarget(
            record.variables[name],
            tuple(specs[name].padded(executable.artifact.mesh)),
            executable.sharding(specs[name]),
        )
        for name in names
    }
    arrays = read(targets)
    return {
        name: clear_padding(arrays[name], specs[name].sizes, target.stored.shape)
        for name, target in targets.items()
    }
