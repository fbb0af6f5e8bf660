"""Checkpoints on orbax: sharded, asynchronous, atomic, readable under another mesh and layout."""

from __future__ import annotations

import logging
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import orbax.checkpoint as ocp

from namedmesh.dims.errors import NamedMeshError, join_names
from namedmesh.dims.paths import describe_os_error
from namedmesh.runtime import Executable, State
from namedmesh.training.arguments import (
    check_count,
    check_executable,
    check_file_path,
    check_json,
    check_metrics,
    check_saveable,
)
from namedmesh.training.orbax_items import (
    item_handlers,
    manager_options,
    read_arrays,
    report_damage,
)
from namedmesh.training.saved_variables import SavedVariable, describe_state, match_variables

logging.getLogger("absl").setLevel(logging.ERROR)  # orbax logs every file that it writes


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


class Checkpoints:
    """The newest checkpoints of a run, and the best one by a metric, in a folder.

    Every variable is saved and restored by itself. A program therefore reads just its own variables
    from disk, e.g. a decoding program the weights without the optimizer's slots. Each device reads
    its own piece, whatever mesh, layout and padding the checkpoint was written with.

    Args:
        folder: Where the checkpoints are.
        keep: How many of the newest to keep; None to only read: saving is an error then.
        metric: The metric that decides which checkpoint is the best. The best one is kept as well.
        mode: "min" if lower is better, "max" if higher is.

    Raises:
        NamedMeshError: If an argument is not what it should be.

    Example:
        >>> import tempfile
        >>> import namedmesh as nm
        >>> from namedmesh.training import Checkpoints
        >>> M = nm.Dimension("model", 4)
        >>> def step(x):
        ...     w = nm.param("w", [M], nm.constant_init(1.0))
        ...     nm.assign(w, w + x)
        ...     return nm.sum(w)
        >>> executable = nm.compile(step, nm.spec([M]), mesh=nm.Mesh(data=1))
        >>> folder = tempfile.mkdtemp()
        >>> with Checkpoints(folder, keep=2) as checkpoints:
        ...     checkpoints.save(10, executable.init(), {"position": 640}, {"dev_loss": 2.5})
        >>> with Checkpoints(folder) as checkpoints:
        ...     step, state, extra = checkpoints.restore(executable)
        >>> step, extra, state["w"].tolist()
        (10, {'position': 640}, [1.0, 1.0, 1.0, 1.0])
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        keep: int | None = None,
        *,
        metric: str = "dev_loss",
        mode: str = "min",
    ):
        if not isinstance(mode, str) or mode not in ("min", "max"):
            raise NamedMeshError(f"mode={mode!r} is not a choice", fix="give 'min' or 'max'")
        if not isinstance(metric, str):
            raise NamedMeshError(f"metric={metric!r}", fix="give the name of a metric")
        if keep is not None:
            keep = check_count(keep, "keep", least=1)
        path = pathlib.Path(check_file_path(folder, "the folder of the checkpoints"))
        try:
            path = path.resolve()
            other = path.exists() and not path.is_dir()
        except OSError as error:
            raise NamedMeshError(
                f"the folder of the checkpoints cannot be used: {describe_os_error(error)}",
                fix="name a folder for checkpoints",
            ) from None
        if other:
            raise NamedMeshError(f"{path} is not a folder", fix="name a folder for checkpoints")
        self.folder, self.metric = path, metric
        self._writing, self._open = keep is not None, True
        self._manager = ocp.CheckpointManager(
            self.folder, options=manager_options(keep, metric, mode), item_handlers=item_handlers()
        )

    @property
    def steps(self) -> list[int]:
        """The steps of all complete checkpoints, in order."""
        return sorted(self._manager.all_steps())

    @property
    def latest(self) -> int | None:
        """The step of the newest checkpoint; None if there is no checkpoint."""
        return self._manager.latest_step()

    @property
    def best(self) -> int | None:
        """The step of the checkpoint with the best metric; the newest if none was measured."""
        best = self._manager.best_step()
        return self.latest if best is None else best

    def find(self, which: str) -> int | None:
        """Find the step of a checkpoint by what a user typed.

        Args:
            which: "newest", "best", or a number of steps.

        Returns:
            The step, or None if "newest" or "best" is asked for and there is no checkpoint.

        Raises:
            NamedMeshError: If it is something else.
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
        """Start to save a checkpoint; the state may be given to the next step at once.

        The checkpoint appears in the folder when all of it is written, or not at all. Steps are
        saved in increasing order; saving the newest step again does nothing.

        Args:
            step: How many steps were taken.
            state: The state after them.
            extra: What else is needed to continue, as JSON.
            metrics: Measurements of this state; the one that ranks checkpoints counts if finite.

        Raises:
            NamedMeshError: If the checkpoints are only read (no `keep`) or closed, if there is a
                newer checkpoint, if the state is not a State or was used up, if extra is not JSON,
                or if metrics are not numbers.
        """
        self.check_writable()
        step, state = check_count(step, "step"), check_saveable(state)
        items, numbers = check_json(extra, "extra"), check_metrics(metrics, "metrics")
        latest = self.latest
        if step == latest:
            return
        if latest is not None and step < latest:
            raise NamedMeshError(
                f"step {step} cannot be saved after step {latest}, which {self.folder} has",
                fix="save steps in increasing order, delete the newer ones, or use another folder",
            )
        value = numbers.get(self.metric, math.nan)
        variables = {
            name: {"sizes": list(one.sizes), "dtype": one.dtype}
            for name, one in describe_state(state).items()
        }
        composite = ocp.args.Composite(
            state=ocp.args.PyTreeSave(dict(state.arrays)),
            variables=ocp.args.JsonSave(variables),
            extra=ocp.args.JsonSave(items),
        )
        ranking = {self.metric: value} if math.isfinite(value) else None
        self._manager.save(step, args=composite, metrics=ranking)

    def check_writable(self) -> None:
        """Check that checkpoints can be saved here.

        Raises:
            NamedMeshError: If the folder was opened without `keep`, or is closed.
        """
        self._check_open()
        if not self._writing:
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

        Raises:
            NamedMeshError: If the folder was opened without `keep`, or is closed.
        """
        self.check_writable()
        self._manager.wait_until_finished()
        if step in self.steps and len(self.steps) > 1:
            self._manager.delete(step)

    def read_extra(self, step: int | None = None) -> dict[str, Any]:
        """Read what was saved beside a state.

        Args:
            step: The checkpoint's step; the newest by default.

        Returns:
            What was given to `save` as `extra`.
        """
        return self._read_json(self._resolve(step), "extra")

    def read_variables(self, step: int | None = None) -> dict[str, SavedVariable]:
        """Read the names, sizes and dtypes of a checkpoint's variables, without their values.

        Args:
            step: The checkpoint's step; the newest by default.

        Returns:
            The variables by name.
        """
        step = self._resolve(step)
        entries = self._read_json(step, "variables")
        with report_damage(self.folder, step):
            return {
                name: SavedVariable(tuple(one["sizes"]), one["dtype"])
                for name, one in entries.items()
            }

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
            step: Which checkpoint; by default the newest.
            missing: "error", or "init" to initialize variables that the checkpoint does not have.
            seed: The seed of that initialization.

        Returns:
            The step, the state and the extra JSON.

        Raises:
            NamedMeshError: If there is no such checkpoint, or its files are damaged, or if
                variables are missing or have another size or dtype; the error lists all of them.
        """
        check_executable(executable, "the program to restore")
        step = self._resolve(step)
        saved, specs = self.read_variables(step), executable.variables
        fix = "use the settings that the checkpoint was trained with"
        where = f"the checkpoint of step {step}"
        names = match_variables(where, saved, specs, missing=missing, fix=fix)
        with report_damage(self.folder, step):
            arrays = read_arrays(self._manager, step, executable, names)
        if len(names) < len(specs):
            arrays = executable.init(seed).arrays | arrays
        ordered = {name: arrays[name] for name in specs}
        return Checkpoint(step, State(ordered, specs), self._read_json(step, "extra"))

    def _resolve(self, step: int | None) -> int:
        """The step of a checkpoint that is there: the one asked for, or the newest."""
        self._check_open()
        step = self.latest if step is None else check_count(step, "step")
        if step is None:
            raise NamedMeshError(f"{self.folder} has no checkpoint", fix="train first")
        if step not in self._manager.all_steps():
            there = join_names([str(one) for one in self.steps])
            raise NamedMeshError(
                f"{self.folder} has no complete checkpoint of step {step}", fix=f"it has {there}"
            )
        return step

    def _read_json(self, step: int, item: str) -> Any:
        """Read one of the JSON items of a checkpoint."""
        items = ocp.args.Composite(**{item: ocp.args.JsonRestore()})
        with report_damage(self.folder, step):
            return self._manager.restore(step, args=items)[item]

    def wait(self) -> None:
        """Wait until everything saved so far is written."""
        if self._open:
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Wait until everything is written, and close the folder."""
        if self._open:
            self.wait()
            self._open = False
            self._manager.close()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
