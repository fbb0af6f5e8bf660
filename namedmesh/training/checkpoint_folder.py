"""The folder of a run's checkpoints: what is in it, and how something in it appears and goes.

A checkpoint of step 10 is the folder `10`. It appears and goes by a rename, so it is whole or not
there. `10.part` is being written, `10.deleted` is being deleted, `10.damaged` was set aside. What
is newer is decided by steps, never by the times of files.
"""

from __future__ import annotations

import os
import pathlib
import shutil

from namedmesh.records.paths import sync_folder, write_file
from namedmesh.training.checkpoint_record import (
    RECORD,
    Record,
    decode_record,
    encode_record,
    read_limited,
)
from namedmesh.training.chunk_store import join_databases

ARRAYS = "arrays"
_UNFINISHED = ("part", "deleted", "orbax-checkpoint-tmp")


class CheckpointFolder:
    """The checkpoints in a folder."""

    def __init__(self, path: pathlib.Path):
        self.path = path

    def list_steps(self) -> list[int]:
        """The steps of the checkpoints that are there, in order."""
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if name.isdecimal() and str(int(name)) == name)

    def step_path(self, step: int) -> pathlib.Path:
        """Where the checkpoint of a step is."""
        return self.path / str(step)

    def part_path(self, step: int) -> pathlib.Path:
        """Where a checkpoint is while it is written."""
        return self.path / f"{step}.part"

    def process_path(self, step: int, process: int) -> pathlib.Path:
        """Where one process writes its arrays."""
        return self.part_path(step) / ARRAYS / f"process_{process}"

    def read_record(self, step: int) -> Record:
        """Read and verify the record of a checkpoint."""
        record = decode_record(read_limited(self.step_path(step) / RECORD))
        if record.step != step:
            raise ValueError(f"{RECORD} is that of step {record.step}")
        return record

    def commit(self, record: Record, processes: int) -> None:
        """Make a checkpoint of what all processes have written."""
        part = self.part_path(record.step)
        folders = [self.process_path(record.step, index) for index in range(processes)]
        absent = [index for index, folder in enumerate(folders) if not folder.is_dir()]
        if absent:
            raise FileNotFoundError(f"process 0 does not see what process {absent[0]} wrote")
        join_databases(part / ARRAYS, folders)
        write_file(str(part / RECORD), encode_record(record), "the record")
        for folder, _, _ in os.walk(part):
            sync_folder(folder)
        os.rename(part, self.step_path(record.step))
        sync_folder(str(self.path))

    def delete(self, step: int) -> None:
        """Delete a checkpoint; it is gone at once, and its files after that."""
        shutil.rmtree(self._rename(step, "deleted"), ignore_errors=True)

    def set_aside(self, step: int) -> pathlib.Path:
        """Rename a damaged checkpoint, so that its step can be saved again."""
        return self._rename(step, "damaged")

    def _rename(self, step: int, suffix: str) -> pathlib.Path:
        """Rename a checkpoint to a name that is free."""
        number, target = 1, self.path / f"{step}.{suffix}"
        while target.exists():
            number += 1
            target = self.path / f"{step}.{suffix}-{number}"
        os.rename(self.step_path(step), target)
        return target

    def remove_leftovers(self) -> None:
        """Remove what was being written or deleted when a process was killed."""
        for path in self.path.iterdir():
            step, dot, rest = path.name.partition(".")
            if (
                step.isdecimal()
                and dot
                and rest.startswith(("part", "deleted", "orbax-checkpoint"))
            ):
                shutil.rmtree(path, ignore_errors=True)
