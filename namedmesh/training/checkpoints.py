"""Checkpoints: sharded, asynchronous, atomic, verified, readable under another mesh and layout."""

from __future__ import annotations

import functools
import json
import math
import os
import pathlib
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from namedmesh.errors.errors import NamedMeshError, check_count, join_names, name_all
from namedmesh.errors.mistakes import Explained
from namedmesh.errors.source import warn_caller
from namedmesh.files import check_path
from namedmesh.processes.launched import abandoned
from namedmesh.processes.processes import current_processes
from namedmesh.runtime import Executable, State
from namedmesh.training.arguments import (
    check_executable,
    check_metrics,
    check_saveable,
)
from namedmesh.training.catalog import CheckpointCatalog
from namedmesh.training.checkpoint_files import (
    CheckpointFolder,
    DamagedCheckpoint,
    Record,
    encode_record,
)
from namedmesh.training.chunks import describe_arrays, shards_to_write
from namedmesh.training.restoring import (
    Checkpoint,
    plan_restore,
    restore_step,
    restore_together,
)
from namedmesh.training.saved_variables import SavedVariable, describe_state
from namedmesh.training.saving import (
    BackgroundSave,
    HostMemory,
    compile_cut,
    group_by_device,
)
from namedmesh.training.transfer import TransferPlan

READ_WINDOW = 2**30  # bytes read ahead of the devices, without host_memory=


class Checkpoints(Explained):
    """The newest checkpoints of a run, and the best one by a metric, in a folder.

    A program reads just its own variables, each device its own shard, whatever mesh, layout and
    padding the checkpoint was written with.

    Args:
        folder: The folder of the checkpoints.
        keep: How many of the newest to keep, beside the best one; None to only read.
        metric: The metric that decides which checkpoint is the best.
        mode: "min" if lower is better, "max" if higher is.
        host_memory: The bytes of host memory to save and restore with; by default `save` holds
            this process's whole part and returns.

    Example:
        >>> import tempfile
        >>> import namedmesh as nm
        >>> from namedmesh.training import Checkpoints
        >>> use = lambda: nm.param("w", [], nm.constant_init(1.0)) * 2
        >>> step = nm.compile(use, mesh=nm.Mesh(data=1))
        >>> with Checkpoints(tempfile.mkdtemp(), keep=2) as checkpoints:
        ...     checkpoints.save(10, step.init(), {"position": 640}, {"dev_loss": 2.5})
        ...     number, state, extra = checkpoints.restore(step)
        >>> number, extra, float(state["w"])
        (10, {'position': 640}, 1.0)
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        keep: int | None = None,
        *,
        metric: str = "dev_loss",
        mode: str = "min",
        host_memory: int | None = None,
    ):
        if mode not in ("min", "max"):
            raise NamedMeshError(f"mode={mode!r} is not a choice", fix="give 'min' or 'max'")
        if keep is not None:
            keep = check_count(keep, "keep", least=1)
        if host_memory is not None:
            host_memory = check_count(host_memory, "host_memory", least=1)
        path = pathlib.Path(check_path(folder, "the folder of the checkpoints")).resolve()
        if path.exists() and not path.is_dir():
            raise NamedMeshError(f"{path} is not a folder", fix="name a folder for checkpoints")
        self.folder, self.metric = path, metric
        self._writes, self._host_memory, self._open = keep is not None, host_memory, True
        self._files, self._processes = CheckpointFolder(path), current_processes()
        self._saving: BackgroundSave | None = None
        self._memory = HostMemory(host_memory)
        self._newest = 0, _Known()  # saved or restored last: step and arrays
        self._reserved = _Known()  # arrays of the state before the first step
        rank = min if mode == "min" else max
        self._catalog = CheckpointCatalog(self._files, self._processes, keep, metric, rank)
        newer = [one for one in self._files.list_numbers() if one > max(self.steps, default=-1)]
        if newer and self._processes.first:
            name = path / str(newer[-1])
            warn_caller(f"{name} is ignored: there is nothing of a checkpoint in it, or it is gone")

    @property
    def steps(self) -> list[int]:
        """The steps of all complete checkpoints, in order; many processes list at `restore`."""
        return self._catalog.steps

    @property
    def latest(self) -> int | None:
        """The step of the newest complete checkpoint; None if there is no checkpoint."""
        return max(self.steps, default=None)

    @property
    def best(self) -> int | None:
        """The step of the checkpoint with the best metric; the newest if none was measured."""
        return self._catalog.best

    def find(self, which: str) -> int | None:
        """Find the step of a checkpoint by what a user typed.

        Args:
            which: "newest", "best", or a number of steps.

        Returns:
            The step; None for "newest" and "best" if there is no checkpoint.
        """
        if which in ("best", "newest"):
            return self.best if which == "best" else self.latest
        if str(which).isdecimal():
            return int(which)
        raise NamedMeshError(
            f"there is no checkpoint {which!r}", fix="give best, newest or a number of steps"
        )

    def save(
        self,
        step: int,
        state: State,
        extra: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Start to save a checkpoint; the next step may take the state at once.

        The state that was saved or restored last, under the same step, is not written again.

        Args:
            step: The number of steps taken.
            state: The state after them.
            extra: What else is needed to continue, as JSON.
            metrics: Measurements of this state; the one that ranks checkpoints counts if finite.

        Raises:
            NamedMeshError: If there is a newer checkpoint or another of this step, or the folder
                was opened without `keep`.
        """
        self.check_writable()
        step, state = check_count(step, "step"), check_saveable(state)
        numbers = {} if metrics is None else check_metrics(metrics, "metrics")
        extra = {} if extra is None else _check_json(extra)
        self.wait()
        latest = self.latest
        if step == latest:
            if self._newest[0] != step or not self._newest[1].are_of(state):
                raise NamedMeshError(
                    f"step {step} is saved already in {self.folder}, and this is not the state "
                    "that was saved or restored last",
                    fix="give the number of steps taken, or use another folder",
                )
            return
        if step < (latest or 0):
            raise NamedMeshError(
                f"step {step} cannot be saved after step {latest}, which {self.folder} has",
                fix="save steps in increasing order, delete the newer ones, or use another folder",
            )
        self._check_reachable(step, state)
        finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
        stored = describe_arrays(state.arrays, describe_state(state))
        record = Record(step, stored, finite, extra, self._catalog.next_token())
        encode_record(record)  # raises here, not in the thread, if it is too large
        self._saving = BackgroundSave(
            self._files, record, self._processes, self._memory, self._catalog.prune
        )
        if self._reserved.arrays and not self._reserved.are_of(state):
            self._memory.stepped = True
        self._saving.start(state.arrays)
        self._newest = step, _Known.of(state)

    def reserve(self, state: State) -> None:
        """Prepare for saving: compile what copies a state on its devices.

        Args:
            state: The state before the first step of the program whose states will be saved.
        """
        shards = shards_to_write(check_saveable(state).arrays)
        for device, own in group_by_device(shards).items():
            if device.platform != "cpu":
                compile_cut(device, own)
        self._reserved = _Known.of(state)

    def _check_reachable(self, step: int, state: State) -> None:
        """Raise if the folder is gone or the step's name taken, or if processes lack variables."""
        if os.path.lexists(self._files.step_path(step)):
            raise NamedMeshError(
                f"step {step} cannot be saved: {self._files.step_path(step)} is in the way, and "
                "is not a checkpoint",
                fix="rename it, or use another folder",
            )
        if not self.folder.is_dir():
            raise NamedMeshError(
                f"the folder of the checkpoints {self.folder} has vanished",
                fix="mount or restore it, or open Checkpoints again to start with an empty one",
            )
        if self._processes.count > 1:
            alone = [name for name, one in state.arrays.items() if one.is_fully_addressable]
            if alone:
                raise NamedMeshError(
                    f"{name_all('variable', alone[:8])} are on the devices of one process only",
                    f"there are {self._processes.count} processes",
                    fix="save the state of a program whose mesh spans all processes",
                )

    def check_writable(self) -> None:
        """Raise if the folder was opened without `keep`, or is closed."""
        self._check_open()
        if not self._writes:
            raise NamedMeshError(
                f"the checkpoints in {self.folder} were opened without keep=, only to be read",
                fix="say how many to keep: Checkpoints(folder, keep=3)",
            )

    def _check_open(self) -> None:
        """Raise if the checkpoints are closed."""
        if not self._open:
            raise NamedMeshError(
                f"the checkpoints in {self.folder} are closed",
                fix="open them again, or use them inside the with statement",
            )

    def delete(self, step: int) -> None:
        """Delete a checkpoint, unless it is the only one; a step without one is ignored.

        Args:
            step: The step it was saved at.
        """
        self.check_writable()
        self.wait()
        self._catalog.delete(step)

    def read_extra(self, step: int | None = None) -> dict[str, Any]:
        """Read the JSON that was given to `save` as `extra`.

        Args:
            step: The checkpoint's step; the newest by default.

        Returns:
            The JSON.
        """
        return dict(self._files.read_record(self._resolve(step)).extra)

    def read_variables(self, step: int | None = None) -> dict[str, SavedVariable]:
        """Read the names, sizes and dtypes of a checkpoint's variables, without their values.

        Args:
            step: The checkpoint's step; the newest by default.

        Returns:
            The variables by name.
        """
        record = self._files.read_record(self._resolve(step))
        return {name: stored.variable for name, stored in record.variables.items()}

    def plan(
        self, executable: Executable, step: int | None = None, *, missing: str = "error"
    ) -> TransferPlan:
        """Plan what restoring a program reads and sends, without reading any values.

        Args:
            executable: The program.
            step: The checkpoint's step; the newest by default.
            missing: "error", or "init" for a program with variables that the checkpoint lacks.

        Returns:
            The plan, which can be printed.

        Raises:
            NamedMeshError: As `restore` does, if there is no such checkpoint or it does not fit.
        """
        check_executable(executable, "the program to restore")
        return plan_restore(self._files, self._resolve(step), executable, missing)

    def restore(
        self,
        executable: Executable,
        step: int | None = None,
        *,
        missing: str = "error",
        seed: int = 0,
    ) -> Checkpoint:
        """Restore the variables of a program, sharded as it needs them; the others are not read.

        Args:
            executable: The program; its mesh, layout and padding may differ from the saved ones.
            step: Which checkpoint; by default the newest that is not damaged, with a warning.
            missing: "error", or "init" to initialize variables that the checkpoint does not have.
            seed: The seed of that initialization.

        Returns:
            The step, the state and the extra JSON.

        Raises:
            NamedMeshError: If there is no such checkpoint, if it is damaged, or if variables are
                missing or have another size or dtype; the error lists all of them.
        """
        check_executable(executable, "the program to restore")
        self.wait()
        self._catalog.refresh(together=True)
        newest, window = self._resolve(step), self._host_memory or READ_WINDOW
        options = {"executable": executable, "missing": missing, "seed": seed, "window": window}
        damaged: dict[int, DamagedCheckpoint] = {}
        for candidate in [newest] if step is not None else reversed(self.steps):
            try:
                where = f"the checkpoint of step {candidate} in {self.folder}"
                read = functools.partial(restore_step, self._files, candidate, **options)
                checkpoint = restore_together(self._processes, where, read)
            except DamagedCheckpoint as error:
                self._catalog.refresh(together=True)
                if candidate not in self._catalog.steps:  # deleted by the run that saves here
                    return self.restore(executable, step, missing=missing, seed=seed)
                if step is not None:
                    raise
                damaged[candidate] = error
                continue
            if damaged:
                self._set_aside(damaged, candidate)
            self._newest = checkpoint.step, _Known.of(checkpoint.state)
            return checkpoint
        if len(damaged) == 1:
            raise damaged[newest]
        raise NamedMeshError(
            f"all {len(damaged)} checkpoints in {self.folder} are damaged",
            *(f"{one}: {'; '.join(error.details)}" for one, error in damaged.items()),
            fix="restore the folder from a copy, or start again in another one",
        )

    def _set_aside(self, damaged: Mapping[int, DamagedCheckpoint], restored: int) -> None:
        """Rename damaged checkpoints, and warn of them."""
        names = {step: self._catalog.set_aside(step) for step in damaged if self._writes}
        for step, error in damaged.items() if self._processes.first else ():
            text = f"{error.problem} ({'; '.join(error.details)}); step {restored} was restored "
            text += "instead" + (f", and the damaged one is now {names[step]}" if names else "")
            warn_caller(text)

    def _resolve(self, step: int | None) -> int:
        """Return a step that has a checkpoint: the one asked for, or the newest."""
        self._check_open()
        self.wait()
        steps = self.steps
        if step is None and not steps:
            problem = "has no checkpoint" if self.folder.is_dir() else "does not exist"
            raise NamedMeshError(f"{self.folder} {problem}", fix="train first, or check its name")
        step = steps[-1] if step is None else check_count(step, "step")
        if step not in steps:
            existing = join_names([str(one) for one in steps]) or "none"
            raise NamedMeshError(
                f"{self.folder} has no complete checkpoint of step {step}", fix=f"it has {existing}"
            )
        return step

    def wait(self) -> None:
        """Wait until everything saved so far is written; raise if it could not be."""
        if self._saving is not None:
            saving, self._saving = self._saving, None
            saving.wait()
            self._catalog.add(saving.record)

    def close(self) -> None:
        """Wait until everything is written, and close the folder."""
        self._open = False
        try:
            self.wait()
        finally:
            self._catalog.close()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            self.close()
        except NamedMeshError as failure:
            if error is None:
                raise
            # The error that ends the with statement is the one to see first.
            if not abandoned.is_set():
                warn_caller(str(failure))


@dataclass(frozen=True)
class _Known:
    """The arrays of a state, to tell them from others even when they are gone."""

    arrays: Mapping[str, weakref.ref[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, state: State) -> Self:
        """Remember the arrays of a state, without keeping them."""
        return cls({name: weakref.ref(array) for name, array in state.arrays.items()})

    def are_of(self, state: State) -> bool:
        """Return whether they are those of a state."""
        same = self.arrays.keys() == state.arrays.keys()
        return same and all(self.arrays[name]() is one for name, one in state.arrays.items())


def _check_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return extra as a dict that can be written as JSON, or raise."""
    problems = []
    for name, value in values.items():
        if not isinstance(name, str):
            problems.append(f"the name {name!r} is not a string")
        try:
            json.dumps(value)
        except (TypeError, ValueError, RecursionError) as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise NamedMeshError(
            "extra cannot be written as JSON",
            *problems,
            fix="give numbers, strings, lists and dicts, e.g. int(count) and array.tolist()",
        )
    return dict(values)
