"""Checkpoints with orbax: sharded, asynchronous, whole or not there, and readable under another mesh and layout."""

from __future__ import annotations

import logging
import math
import os
import pathlib
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, LatestN

from namedmesh.dims.errors import NamedMeshError, listing
from namedmesh.runtime import Executable
from namedmesh.runtime.state import State

logging.getLogger("absl").setLevel(logging.ERROR)  # orbax tells of every file it writes


class Checkpoints:
    """The newest few states of a run and the one best on dev data, each with what is needed to go on from it.

    To be read only, unless keep says how many of the newest there are to be.
    """

    def __init__(self, folder: str | os.PathLike, keep: int | None = None):
        writing, loss = keep is not None, lambda metrics: metrics["dev_loss"]
        best = BestN(get_metric_fn=loss, reverse=True, n=1, keep_checkpoints_without_metrics=False)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=AnyPreservationPolicy([LatestN(keep), best]) if writing else None,
            best_fn=loss,
            best_mode="min",
            read_only=not writing,
            create=writing,
            cleanup_tmp_directories=writing,
        )
        self.folder = pathlib.Path(folder).resolve()
        handlers = {"state": ocp.StandardCheckpointHandler(), "extra": ocp.JsonCheckpointHandler()}
        self._manager = ocp.CheckpointManager(self.folder, options=options, item_handlers=handlers)
        self._open = True

    @property
    def latest(self) -> int | None:
        """How many steps the newest checkpoint has taken."""
        return self._manager.latest_step()

    @property
    def best(self) -> int | None:
        """How many steps the checkpoint has taken whose loss on dev data is the lowest; the newest if none was measured."""
        return self._manager.best_step() or self.latest

    def named(self, which: str) -> int | None:
        """The steps of the best or newest checkpoint, or those that a number says."""
        if which in ("best", "newest"):
            return self.best if which == "best" else self.latest
        if which.isdecimal():
            return int(which)
        raise NamedMeshError(
            f"there is no checkpoint {which!r}", fix="give best, newest or a number of steps"
        )

    def save(
        self, step: int, state: State, extra: dict[str, Any], dev_loss: float | None = None
    ) -> None:
        """Begins to write a checkpoint; the state may be used up at once."""
        if step == self.latest:
            return
        metrics = (
            None if dev_loss is None or not math.isfinite(dev_loss) else {"dev_loss": dev_loss}
        )
        arguments = ocp.args.Composite(
            state=ocp.args.StandardSave(dict(state.arrays)), extra=ocp.args.JsonSave(extra)
        )
        self._manager.save(step, args=arguments, metrics=metrics)

    def forget(self, step: int) -> None:
        """Deletes a checkpoint that leads nowhere, unless it is the only one."""
        self._manager.wait_until_finished()
        if step in self._manager.all_steps() and len(self._manager.all_steps()) > 1:
            self._manager.delete(step)

    def restore(
        self, executable: Executable, step: int | None = None
    ) -> tuple[int, State, dict[str, Any]]:
        """A checkpoint (the newest unless said) laid out as a step wants its variables; of others it takes what it has."""
        step = self.latest if step is None else step
        if step is None:
            raise NamedMeshError(f"{self.folder} has no checkpoint", fix="train first")
        try:
            saved = self._manager.item_metadata(step)["state"]
            saved = getattr(saved, "tree", saved)
        except (FileNotFoundError, KeyError, TypeError):
            there = listing([str(one) for one in self._manager.all_steps()])
            raise NamedMeshError(
                f"{self.folder} has no whole checkpoint of step {step}", fix=f"it has {there}"
            ) from None
        mesh = executable.artifact.mesh
        missing = [name for name in executable.variables if name not in saved]
        if missing:
            raise NamedMeshError(
                f"the checkpoint of step {step} has no variable {missing[0]}",
                fix="use the settings the run was trained with",
            )
        alike = all(
            tuple(saved[name].shape) == spec.padded(mesh)
            for name, spec in executable.variables.items()
        )
        wanted = {
            name: self._abstract(executable, name, tuple(found.shape), found.dtype, alike)
            for name, found in saved.items()
        }
        arguments = ocp.args.Composite(
            state=ocp.args.StandardRestore(wanted), extra=ocp.args.JsonRestore()
        )
        found = self._manager.restore(step, args=arguments)
        arrays = {name: found["state"][name] for name in executable.variables}
        if alike:
            state = State(arrays, executable.variables)
        else:  # padded for other devices: cut to size, and laid out anew
            cut = lambda name: np.asarray(arrays[name])[
                tuple(slice(size) for size in executable.variables[name].sizes)
            ]
            state = executable.place({name: cut(name) for name in arrays})
        return step, state, found["extra"]

    @staticmethod
    def _abstract(
        executable: Executable, name: str, shape: tuple[int, ...], dtype: Any, alike: bool
    ) -> jax.ShapeDtypeStruct:
        here = jax.sharding.SingleDeviceSharding(executable.mesh.devices.flat[0])
        known = alike and name in executable.variables
        sharding = executable.sharding(executable.variables[name]) if known else here
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    def close(self) -> None:
        """Waits until everything is written."""
        if self._open:
            self._open = False
            self._manager.wait_until_finished()
            self._manager.close()
