"""Saving and restoring a large state, against the disk's own speed, and steps while it is saved.

python -m benchmarks.checkpoints --json OUT                 on eight virtual CPU devices
python -m benchmarks.checkpoints export FOLDER              needs TensorFlow, no GPU
python -m benchmarks.checkpoints measure FOLDER --json OUT  on one device, without TensorFlow

1.5 billion weights in float32 need 14 GB of memory and 20 GB of disk, in the folder `--folder`.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import namedmesh as nm
from namedmesh.runtime import Executable, State, load, use_cpu_devices
from namedmesh.training import Checkpoints

HIDDEN, DEVICES, QUIET = 8192, 8, 4
BLOCK = 64 * 2**20
FILE = "checkpoints.nmesh"


def trace_step(options: argparse.Namespace) -> nm.Program:
    """Layers side by side that are run forward, and whose weights are all updated in place."""
    layers = max(1, round(options.billions * 1e9 / (2 * options.model * HIDDEN)))
    sizes = f"layers={layers} model={options.model} hidden={HIDDEN} tokens={options.tokens}"
    L, M, H, T = nm.dims(sizes)

    def step(x):
        wi = nm.param("wi", [L, M, H], nm.normal_init(0.02))
        wo = nm.param("wo", [L, H, M], nm.normal_init(0.02))
        hidden = nm.relu(nm.einsum([x, nm.cast(wi, options.dtype)], [L, T, H]))
        y = nm.einsum([hidden, nm.cast(wo, options.dtype)], [L, T, M])
        loss = nm.mean(nm.square(nm.cast(y, "float32")))
        for weight in (wi, wo):
            nm.assign(weight, weight * (1 - 1e-6 * loss))
        return loss

    return nm.trace(step, nm.spec([T, M], options.dtype))


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


def digest(state: State) -> dict[str, tuple[int, int]]:
    """Return sums of all bits of each variable, without and with the places of its rows."""

    @jax.jit
    def add(array: jax.Array) -> tuple[jax.Array, jax.Array]:
        bits = jax.lax.bitcast_convert_type(array, jnp.uint32)
        rows = jax.lax.broadcasted_iota(jnp.uint32, bits.shape, 1)
        return jnp.sum(bits), jnp.sum(bits * (rows + 1))

    sums = {name: add(array) for name, array in state.arrays.items()}
    return {name: (int(plain), int(placed)) for name, (plain, placed) in sums.items()}


def device_peak() -> float | None:
    """Return the most gigabytes of the first device that were in use; None where none counts."""
    usage = jax.devices()[0].memory_stats() or {}
    return usage["peak_bytes_in_use"] / 1e9 if "peak_bytes_in_use" in usage else None


def measure(step: Executable, folder: pathlib.Path, options: argparse.Namespace) -> dict[str, Any]:
    """Save, take steps meanwhile, and restore."""
    spec = step.inputs["x"]
    make = jax.jit(
        lambda: jax.random.normal(jax.random.key(0), spec.sizes, jnp.dtype(spec.dtype)),
        out_shardings=step.sharding(spec),
    )
    x, state = make(), step.init(0)
    size = sum(array.nbytes for array in state.arrays.values())
    disk = [disk_speed(folder, min(size, 2 * 2**30))]
    times: dict[str, list[float]] = {"without": [], "reserving": [], "while": [], "first": []}

    def take_step(kind: str) -> None:
        nonlocal state
        start = time.perf_counter()
        state, loss = step(state, x)
        jax.block_until_ready((state.arrays, float(loss)))
        times[kind].append(time.perf_counter() - start)

    for _ in range(3):
        take_step("first")
    peaks = [device_peak()]
    bound = options.host_memory * 2**20 if options.host_memory else None
    checkpoints = Checkpoints(folder / "checkpoints", keep=1, host_memory=bound)
    if not options.no_reserve:
        checkpoints.reserve(state)
        for _ in range(QUIET):
            take_step("reserving")
    blocked, beside = [], []

    def save_beside_steps(number: int) -> dict[str, tuple[int, int]]:
        for _ in range(QUIET):
            take_step("without")
        sums = digest(state)
        blocked.append(time_call(checkpoints.save, number, state))
        before = len(times["while"])
        while not (folder / "checkpoints" / str(number)).exists():
            take_step("while")
        checkpoints.wait()
        beside.append(times["while"][before:])
        return sums

    for number in range(1, options.saves):
        save_beside_steps(number)
    start = time.perf_counter()
    checkpoints.save(options.saves, state)
    checkpoints.wait()
    saved = time.perf_counter() - start
    sums = save_beside_steps(options.saves + 1)
    for _ in range(QUIET):
        take_step("without")
    peaks.append(device_peak())
    disk.append(disk_speed(folder, min(size, 2 * 2**30)))
    state = State({}, step.variables)  # frees the memory
    forget(folder)
    start = time.perf_counter()
    restored = checkpoints.restore(step).state
    jax.block_until_ready(restored.arrays)
    read = time.perf_counter() - start
    assert digest(restored) == sums, "what was restored is not what was saved"
    write_speed = statistics.mean(one["write"] for one in disk)
    read_speed = statistics.mean(one["read"] for one in disk)
    quiet, meanwhile = times["without"], times["while"] or times["without"]
    usual = statistics.median(quiet)
    first = [steps[0] for steps in beside if steps] or quiet
    waits = zip(blocked, beside, strict=True)
    costs = [seconds + sum(steps) - usual * len(steps) for seconds, steps in waits]
    return {
        "device": jax.devices()[0].device_kind,
        "devices": step.mesh.size,
        "jax": jax.__version__,
        "weights": size // 4,
        "gigabytes": size / 1e9,
        "save_seconds": saved,
        "disk_write_seconds": size / write_speed,
        "save_to_disk": saved * write_speed / size,
        "restore_seconds": read,
        "disk_read_seconds": size / read_speed,
        "restore_to_disk": read * read_speed / size,
        "saves_block_seconds": blocked,
        "step_seconds": usual,
        "step_seconds_while_saving": statistics.median(meanwhile),
        "step_ratio": statistics.median(meanwhile) / usual,
        "step_ratio_of_means": statistics.mean(meanwhile) / statistics.mean(quiet),
        "first_step_ratio": statistics.median(first) / usual,
        "steps_while_saving": len(times["while"]),
        "saves_cost_seconds": costs,
        "blocked_share_of_a_step": statistics.median(blocked[1:]) / usual,
        "input": f"{spec.dtype} {spec.sizes}",
        "host_memory_mib": options.host_memory,
        "peak_memory_gigabytes": peak_memory() / 1e9,
        "device_peak_gigabytes_before_saves": peaks[0],
        "device_peak_gigabytes": peaks[1],
        "planned_device_gigabytes": step.report.peak_bytes / 1e9,
        "disk_bytes_per_second": disk,
        "step_times": times,
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("task", nargs="?", choices=("export", "measure"))
    parser.add_argument("artifacts", nargs="?", type=pathlib.Path, help="the folder of the program")
    parser.add_argument("--json", type=pathlib.Path, help="the file of the result")
    parser.add_argument("--folder", help="where to save; by default a temporary folder")
    parser.add_argument("--billions", type=float, default=1.5, help="billions of weights")
    parser.add_argument("--model", type=int, default=2048, help="numbers of a token")
    parser.add_argument("--tokens", type=int, default=8, help="tokens of a step, in every layer")
    parser.add_argument("--dtype", default="float32", help="what products are computed in")
    parser.add_argument("--saves", type=int, default=3, help="one of them without steps beside it")
    parser.add_argument("--no_reserve", action="store_true", help="take no memory beforehand")
    parser.add_argument("--host_memory", type=int, help="the bound of Checkpoints, in MiB")
    options = parser.parse_args()
    if options.task == "export":
        options.artifacts.mkdir(parents=True, exist_ok=True)
        nm.export(trace_step(options), nm.Mesh(all=1), "").save(options.artifacts / FILE)
        return
    if options.task:
        step = load(options.artifacts / FILE)
    else:
        use_cpu_devices(DEVICES)
        mesh = nm.Mesh(all=DEVICES)
        step = nm.compile(trace_step(options), mesh=mesh, layout="hidden:all", strict=True)
    with tempfile.TemporaryDirectory(prefix="checkpoints", dir=options.folder) as folder:
        text = json.dumps(measure(step, pathlib.Path(folder), options), indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
