"""Checkpoints on orbax: sharded, asynchronous, atomic, readable under another mesh and layout."""

from __future__ import annotations

import logging
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, LatestN

from namedmesh.dims.errors import NamedMeshError, join_names
from namedmesh.runtime import Executable, State
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
        keep: How many of the newest to keep; None to only read.
        metric: The metric that decides which checkpoint is the best. The best one is kept as well.
        mode: "min" if lower is better, "max" if higher is.

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
        if mode not in ("min", "max"):
            raise NamedMeshError(f"mode={mode!r} is not a choice", fix="give 'min' or 'max'")
        if keep is not None and keep < 1:
            raise NamedMeshError(f"keep={keep}", fix="keep at least one checkpoint")
        self.folder, self.metric = pathlib.Path(folder).resolve(), metric
        self._mode, self._writing, self._open = mode, keep is not None, True
        self._manager = ocp.CheckpointManager(
            self.folder, options=self._options(keep), item_handlers=_handlers()
        )

    def _options(self, keep: int | None) -> ocp.CheckpointManagerOptions:
        """How orbax keeps and deletes checkpoints."""
        rank = lambda metrics: metrics[self.metric]
        policy = None
        if keep is not None:
            best = BestN(
                get_metric_fn=rank,
                reverse=self._mode == "min",
                n=1,
                keep_checkpoints_without_metrics=False,
            )
            policy = AnyPreservationPolicy([LatestN(keep), best])
        return ocp.CheckpointManagerOptions(
            preservation_policy=policy,
            best_fn=rank,
            best_mode=self._mode,
            read_only=keep is None,
            create=keep is not None,
            cleanup_tmp_directories=keep is not None,
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
        if which.isdecimal():
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

        The checkpoint appears in the folder when all of it is written, or not at all. Saving the
        step of the newest checkpoint again does nothing.

        Args:
            step: How many steps were taken.
            state: The state after them.
            extra: What else is needed to continue, as JSON.
            metrics: Measurements of this state; the one that ranks checkpoints counts if finite.
        """
        if step == self.latest:
            return
        value = (metrics or {}).get(self.metric, math.nan)
        variables = {
            name: {"sizes": list(one.sizes), "dtype": one.dtype}
            for name, one in describe_state(state).items()
        }
        items = ocp.args.Composite(
            state=ocp.args.PyTreeSave(dict(state.arrays)),
            variables=ocp.args.JsonSave(variables),
            extra=ocp.args.JsonSave(dict(extra or {})),
        )
        ranking = {self.metric: float(value)} if math.isfinite(value) else None
        self._manager.save(step, args=items, metrics=ranking)

    def delete(self, step: int) -> None:
        """Delete a checkpoint, unless it is the only one.

        Args:
            step: The step it was saved at.
        """
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
        entries = self._read_json(self._resolve(step), "variables")
        return {
            name: SavedVariable(tuple(one["sizes"]), one["dtype"]) for name, one in entries.items()
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
            NamedMeshError: If there is no such checkpoint, or if variables are missing or have
                another size or dtype; the error lists all of them.
        """
        step = self._resolve(step)
        saved, specs = self.read_variables(step), executable.variables
        fix = "use the settings that the checkpoint was trained with"
        where = f"the checkpoint of step {step}"
        names = match_variables(where, saved, specs, missing=missing, fix=fix)
        arrays = self._read_arrays(step, executable, names)
        if len(names) < len(specs):
            arrays = executable.init(seed).arrays | arrays
        ordered = {name: arrays[name] for name in specs}
        return Checkpoint(step, State(ordered, specs), self._read_json(step, "extra"))

    def _read_arrays(
        self, step: int, executable: Executable, names: list[str]
    ) -> dict[str, jax.Array]:
        """Read some variables, each device its own piece, with the padding that the program has."""
        mesh, specs = executable.artifact.mesh, executable.variables
        metadata = self._manager.item_metadata(step)["state"]
        metadata = getattr(metadata, "tree", metadata)
        restore, structure = {}, {}
        for name in names:
            shape, dtype = specs[name].padded(mesh), jnp.dtype(specs[name].dtype)
            sharding = executable.sharding(specs[name])
            # Not strict: orbax cuts an array or extends it with zeros to fit the shape, piece by
            # piece, so that another padding needs no array whole on one device.
            restore[name] = ocp.ArrayRestoreArgs(
                sharding=sharding, global_shape=shape, strict=False, dtype=dtype
            )
            structure[name] = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
        if not names:
            return {}
        items = ocp.args.Composite(
            state=ocp.args.PyTreeRestore(item=structure, restore_args=restore, partial_restore=True)
        )
        arrays = self._manager.restore(step, args=items)["state"]
        for name in names:
            arrays[name] = _clear_padding(
                arrays[name], tuple(specs[name].sizes), tuple(metadata[name].shape)
            )
        return arrays

    def _resolve(self, step: int | None) -> int:
        """The step of a checkpoint that is there: the one asked for, or the newest."""
        if step is None:
            step = self.latest
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
        return self._manager.restore(step, args=items)[item]

    def wait(self) -> None:
        """Wait until everything saved so far is written."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Wait until everything is written, and close the folder."""
        if self._open:
            self._open = False
            self.wait()
            self._manager.close()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _handlers() -> dict[str, Any]:
    """The orbax handler of each item of a checkpoint."""
    return {
        "state": ocp.PyTreeCheckpointHandler(),
        "variables": ocp.JsonCheckpointHandler(),
        "extra": ocp.JsonCheckpointHandler(),
    }


def _clear_padding(array: jax.Array, sizes: tuple[int, ...], saved: tuple[int, ...]) -> jax.Array:
    """Set to zero what was padding when the array was saved and is padding of another size now.

    Padding of the same size stays as it was, so that a resumed run continues bit for bit.
    """
    common = [min(now, before) for now, before in zip(array.shape, saved, strict=True)]
    cut = all(count <= size for count, size in zip(common, sizes, strict=True))
    if cut or array.shape == saved:
        return array

    def clear(values: jax.Array) -> jax.Array:
        inside = jnp.ones((), bool)
        for axis, size in enumerate(sizes):
            inside &= jax.lax.broadcasted_iota(jnp.int32, values.shape, axis) < size
        return jnp.where(inside, values, jnp.zeros((), values.dtype))

    return jax.jit(clear, out_shardings=array.sharding)(array)
