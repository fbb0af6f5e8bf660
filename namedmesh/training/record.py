"""Records of steps that went wrong: what one needs to run a step again, `namedmesh replay`."""

from __future__ import annotations

import errno
import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from namedmesh.files import replace_file, write_file
from namedmesh.processes.processes import AGREEMENT_SECONDS, current_processes
from namedmesh.runtime import Executable, State
from namedmesh.runtime.arrays import fetch_array
from namedmesh.training.saving import run_on_first
from namedmesh.training.weights import save_weights


class StepRecorder:
    """The inputs of the steps since a state that can be had again, for a step that goes wrong."""

    def __init__(self, folder: pathlib.Path, executable: Executable):
        self.folder, self._executable = folder, executable
        self._inputs: dict[int, Mapping[str, Any]] = {}
        self._saved = 0  # the step of the newest checkpoint, which may still be written
        self._make(folder)  # it would be missed when a step has gone wrong

    def _make(self, folder: pathlib.Path) -> None:
        """Make a folder that may be written to; all processes must call this, and raise alike."""

        def make() -> None:
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))

        fix, seconds = "name a folder that you may write to", AGREEMENT_SECONDS
        run_on_first(current_processes(), f"the folder {folder}", make, fix=fix, timeout=seconds)

    def keep(self, step: int, inputs: Mapping[str, Any]) -> None:
        """Keep the inputs of a step."""
        self._inputs[step] = inputs

    def forget(self, saved: int) -> None:
        """Forget the inputs up to the checkpoint before the one that is being saved."""
        for step in [one for one in self._inputs if one <= self._saved]:
            del self._inputs[step]
        self._saved = saved

    def write(self, step: int, problem: str, base: Callable[[], tuple[int, State]]) -> str:
        """Write the record of a step, from a state before it; return what became of it."""
        number, state = base()
        missing = [one for one in range(number + 1, step + 1) if one not in self._inputs]
        if missing:
            return f"there is no record of step {step}: the inputs of step {missing[0]} are gone"
        for one in range(number + 1, step):
            state, _ = self._executable(state, **self._inputs[one])
        place = self.folder / str(step)
        self._make(place)
        specs = self._executable.inputs
        inputs = {
            name: fetch_array(value, specs[name].sizes)
            for name, value in self._executable.put(**self._inputs[step]).items()
        }
        # Last of what all do together: process 0 writes, and it alone may fail.
        save_weights(place / "state.safetensors", state, everything=True)
        if current_processes().first:
            with replace_file(str(place / "inputs.npz")) as path, open(path, "wb") as file:
                np.savez(file, allow_pickle=False, **inputs)
            artifact = self._executable.artifact
            document = {
                "step": step,
                "problem": problem,
                "program": artifact.name,
                "mesh": " ".join(
                    f"{name}={size}" for name, size in artifact.mesh.to_json().items()
                ),
                "layout": artifact.layout,
                "params": artifact.params,
            }
            data = json.dumps(document, indent=1).encode()
            write_file(str(place / "record.json"), data, "the record of a step")
        return f"its record is in {place}: namedmesh replay {step} PROGRAM --record {self.folder}"
