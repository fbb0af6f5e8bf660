"""Runs for the tests: commands in processes of their own, and run folders to copy."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorstore

from examples.m4.corpus import build_synthetic_corpus

ROOT = pathlib.Path(__file__).parents[2]
BLOCKED = "import sys; sys.modules['tensorflow'] = None; "
COMMAND = "from absl import app; from examples.m4.__main__ import main; app.run(main)"
# Compiled in seconds: a dense model of two layers on two devices.
DENSE = {
    "preset": "tiny_dense", "layers": 2, "model": 16, "hidden": 32, "heads": 2, "key": 8,
    "source_length": 48, "target_length": 32, "mesh": "all=2", "layout": "group:all",
    "dev_every": 0,
}  # fmt: skip
# The mixture of experts that the longer tests train: nothing but training is compiled.
EXPERTS = {"preset": "tiny", "source_length": 48, "target_length": 32, "dev_every": 0}
# The same with everything that makes a mixture learn well.
RECIPE = {
    **EXPERTS, "expert_sides": "encoder", "second": "all", "group_tokens": 64, "balance": "bias",
    "evaluation_capacity_factor": 3, "z_weight": 0.001, "average": 0.9, "cooldown": 0.5,
    "r_drop": 1.0, "dropout": 0.1, "word_dropout": 0.1, "target_word_dropout": 0.2,
    "expert_dropout": 0.1, "expert_masking": 0.1, "repeat": "english", "subword_alpha": 0.3,
}  # fmt: skip
MIXTURES = {"experts": EXPERTS, "recipe": RECIPE}


def arguments(
    command: str, folder: pathlib.Path, flags: Mapping[str, object], blocked: bool = False
) -> list[str]:
    """The command line of a command of the example; blocked is without TensorFlow."""
    given = [f"--{name}={value}" for name, value in {"run": folder, **flags}.items()]
    return [sys.executable, "-c", (BLOCKED if blocked else "") + COMMAND, command, *given]


def environment() -> dict[str, str]:
    """The environment of a command: its own number of devices, and no unplanned collective."""
    kept = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    return {**kept, "NAMEDMESH_STRICT": "1", "PYTHONUNBUFFERED": "1"}


def run(
    command: str,
    folder: pathlib.Path,
    flags: Mapping[str, object],
    *,
    blocked: bool = False,
    given: str = "",
) -> subprocess.CompletedProcess[str]:
    """A command of the example, run to its end."""
    return subprocess.run(
        arguments(command, folder, flags, blocked), cwd=ROOT, env=environment(), input=given,
        capture_output=True, text=True, timeout=1800,
    )  # fmt: skip


def good(done: subprocess.CompletedProcess[str]) -> str:
    """What a command that has to succeed said."""
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def once(factory, name: str, make: Callable[[pathlib.Path], None]) -> pathlib.Path:
    """A folder that one process of a test session makes and all use."""
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = base / name
    with open(base / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            (folder / "made").touch()
    return folder


def small_corpus(folder: pathlib.Path) -> None:
    """Three invented languages, three hundred pairs of the largest."""
    build_synthetic_corpus(
        folder, languages=3, largest=300, smallest=100, dev=20, test=12, progress=lambda text: None
    )


def copied(prepared: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """A copy of a prepared run to work on."""
    return pathlib.Path(shutil.copytree(prepared, folder))


def steps(folder: pathlib.Path) -> list[int]:
    """The steps of a run's whole checkpoints."""
    found = (folder / "checkpoints").iterdir() if (folder / "checkpoints").exists() else ()
    return sorted(int(path.name) for path in found if path.name.isdigit())


def checkpoint(folder: pathlib.Path, step: int) -> dict[str, np.ndarray]:
    """Every variable of a checkpoint as tensorstore reads it, padding and all."""
    path = folder.resolve() / "checkpoints" / str(step)
    arrays = {}
    for name in record(folder, step)["variables"]:
        database = {"driver": "ocdbt", "base": f"file://{path}/arrays/", "path": f"{name}/"}
        array = tensorstore.open({"driver": "zarr3", "kvstore": database}, open=True).result()
        arrays[name] = array.read().result()
    return arrays


def record(folder: pathlib.Path, step: int) -> dict[str, Any]:
    """What else a checkpoint has."""
    path = folder / "checkpoints" / str(step) / "record.json"
    return json.loads(path.read_text())["record"]


def losses(folder: pathlib.Path) -> list[tuple[int, float]]:
    """The steps of a run's log, in its order, with their losses."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["loss"]) for row in rows if "loss" in row]


class Training:
    """A train command that runs while the test goes on."""

    def __init__(self, folder: pathlib.Path, flags: Mapping[str, object]):
        self.folder, self.first = folder, max(steps(folder), default=0)
        self._log = folder / "metrics.jsonl"
        self._before = self._identity()
        self.output = folder.with_name(f"{folder.name}.output")
        with open(self.output, "w") as output:
            command = arguments("train", folder, flags, blocked=True)
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment(), stdout=output, stderr=subprocess.STDOUT
            )

    def _identity(self) -> int:
        return self._log.stat().st_ino if self._log.exists() else 0

    @property
    def logged(self) -> int:
        """The last step that this process logged; the log of an earlier process does not count."""
        if self._identity() == self._before:
            return self.first
        rows = self._log.read_text().splitlines(keepends=True)
        return max([self.first, *(json.loads(row)["step"] for row in rows if row.endswith("\n"))])

    def wait_for(self, step: int, seconds: float = 600) -> None:
        """Waits until a step is logged."""
        until = time.monotonic() + seconds
        while self.logged < step:
            assert self.process.poll() is None, self.output.read_text()[-3000:]
            assert time.monotonic() < until, (
                f"step {step} was not reached: {self.output.read_text()[-3000:]}"
            )
            time.sleep(0.005)

    def send(self, number: int) -> int:
        """Sends a signal and returns the exit status."""
        assert self.process.poll() is None, self.output.read_text()[-3000:]
        self.process.send_signal(number)
        return self.process.wait(600)
