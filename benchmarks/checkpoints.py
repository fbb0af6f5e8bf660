"""Saving and restoring a large state, against the disk's own speed, and steps while it is saved.

Run as `python -m benchmarks.checkpoints --json OUT`; 1.5 billion weights in float32 need 14 GB of
memory and 20 GB of disk, in the folder that `--folder` names.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import app, flags

import namedmesh as nm
from benchmarks.result import publish
from namedmesh.runtime import State, use_cpu_devices
from namedmesh.training import Checkpoints

_WEIGHTS = flags.DEFINE_float("billions", 1.5, "Billions of weights.")
_FOLDER = flags.DEFINE_string("folder", None, "Where to write; by default a temporary folder.")
_RESERVE = flags.DEFINE_bool("reserve", True, "Take the memory of copies beforehand.")
_BOUND = flags.DEFINE_integer("host_memory", None, "The bound of Checkpoints, in MiB.")

_TOKENS = flags.DEFINE_integer("tokens", 8, "Tokens of a step, in every layer.")

MODEL, HIDDEN, DEVICES = 2048, 8192, 8
BLOCK = 64 * 2**20


def compile_step(billions: float, devices: int) -> nm.Step:
    """Layers side by side that are run forward, and whose weights are all updated in place."""
    layers = max(1, round(billions * 1e9 / (2 * MODEL * HIDDEN)))
    L, M, H, T = nm.dims(f"layers={layers} model={MODEL} hidden={HIDDEN} tokens={_TOKENS.value}")

    def step(x):
        wi = nm.param("wi", [L, M, H], nm.normal_init(0.02))
        wo = nm.param("wo", [L, H, M], nm.normal_init(0.02))
        y = nm.einsum([nm.relu(nm.einsum([x, wi], [L, T, H])), wo], [L, T, M])
        loss = nm.mean(nm.square(y))
        for weight in (wi, wo):
            nm.assign(weight, weight * (1 - 1e-6 * loss))
        return loss

    return nm.compile(
        step, nm.spec([L, T, M]), mesh=nm.Mesh(all=devices), layout="hidden:all", strict=True
    )


def time_call(function: Callable[..., Any], *arguments: Any) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def write_plainly(path: pathlib.Path, count: int) -> None:
    """Write zeros that are no zeros to the disk: one thread, large blocks, one fsync."""
    block = np.random.default_rng(0).bytes(BLOCK)
    with open(path, "wb", buffering=0) as file:
        for start in range(0, count, BLOCK):
            file.write(block[: count - start])
        os.fsync(file.fileno())


def read_plainly(path: pathlib.Path) -> None:
    """Read a file: one thread, large blocks."""
    block = bytearray(BLOCK)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(block):
            pass


def forget(folder: pathlib.Path) -> None:
    """Take files out of the memory of the operating system, so that reading means the disk."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def peak_memory() -> int:
    """Return the most bytes that this process has taken."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def disk_speed(folder: pathlib.Path, count: int) -> dict[str, float]:
    """Bytes per second of plain writing and reading."""
    path = folder / "plain"
    written = time_call(write_plainly, path, count)
    forget(folder)
    read = time_call(read_plainly, path)
    path.unlink()
    return {"write": count / written, "read": count / read}


def measure(folder: pathlib.Path) -> dict[str, Any]:
    """Save, take steps meanwhile, and restore."""
    use_cpu_devices(DEVICES)
    step = compile_step(_WEIGHTS.value, DEVICES)
    x = np.ones(step.inputs["x"].sizes, np.float32)
    state = step.init(0)
    size = sum(array.nbytes for array in state.arrays.values())
    disk = [disk_speed(folder, min(size, 2 * 2**30))]

    def take_step(state: State) -> tuple[State, float]:
        start = time.perf_counter()
        state, loss = step(state, x)
        jax.block_until_ready((state.arrays, loss))
        return state, time.perf_counter() - start

    times: dict[str, list[float]] = {"before": [], "reserving": [], "while": [], "after": []}
    state, _ = take_step(state)
    for _ in range(6):
        state, seconds = take_step(state)
        times["before"].append(seconds)
    bound = _BOUND.value * 2**20 if _BOUND.value else None
    checkpoints = Checkpoints(folder / "checkpoints", keep=1, host_memory=bound)
    if _RESERVE.value:
        checkpoints.reserve(state)
        for _ in range(6):
            state, seconds = take_step(state)
            times["reserving"].append(seconds)
    blocked = []
    for number in (1, 2, 3):
        blocked.append(time_call(checkpoints.save, number, state))
        while not (folder / "checkpoints" / str(number)).exists():
            state, seconds = take_step(state)
            times["while"].append(seconds)
        checkpoints.wait()
    for _ in range(6):
        state, seconds = take_step(state)
        times["after"].append(seconds)
    start = time.perf_counter()
    checkpoints.save(4, state)
    checkpoints.wait()
    saved = time.perf_counter() - start
    kept = {name: np.asarray(array[:1]) for name, array in state.arrays.items()}
    disk.append(disk_speed(folder, min(size, 2 * 2**30)))
    del state
    forget(folder)
    start = time.perf_counter()
    restored = checkpoints.restore(step).state
    jax.block_until_ready(restored.arrays)
    read = time.perf_counter() - start
    for name, values in kept.items():
        np.testing.assert_array_equal(np.asarray(restored.arrays[name][:1]), values)
    write_speed = statistics.mean(one["write"] for one in disk)
    read_speed = statistics.mean(one["read"] for one in disk)
    quiet = statistics.median(times["before"] + times["after"])
    return {
        "weights": size // 4,
        "gigabytes": size / 1e9,
        "save_seconds": saved,
        "disk_write_seconds": size / write_speed,
        "save_to_disk": saved * write_speed / size,
        "restore_seconds": read,
        "disk_read_seconds": size / read_speed,
        "restore_to_disk": read * read_speed / size,
        "saves_block_seconds": blocked,
        "step_seconds": quiet,
        "step_seconds_while_saving": statistics.median(times["while"] or [quiet]),
        "step_ratio": statistics.median(times["while"] or [quiet]) / quiet,
        "steps_while_saving": len(times["while"]),
        "blocked_share_of_a_step": statistics.median(blocked[1:]) / quiet,
        "tokens": _TOKENS.value,
        "host_memory_mib": _BOUND.value,
        "peak_memory_gigabytes": peak_memory() / 1e9,
        "disk_bytes_per_second": disk,
        "step_times": times,
    }


def main(_: list[str]) -> None:
    """Measure and publish."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="checkpoints", dir=_FOLDER.value))
    try:
        publish(measure(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    app.run(main)
