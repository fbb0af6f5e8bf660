"""One program in 1, 2, 4 and 8 processes on eight virtual devices: results, audits, time of a step.

python -m benchmarks.processes [--json OUT] [--steps N] [--rounds N]

Every process feeds its own rows; the state and the results are fetched whole and compared with
those of one process with eight devices. All processes share this machine and send by gloo.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import namedmesh as nm
from benchmarks.moe import Sizes, layer

SHAPES = ((1, 8), (2, 4), (4, 2), (8, 1))  # processes and devices of each
COMPARED = 5  # steps before the results are compared
MOST_APART = 1e-6  # of the largest number of each array


def trace_dense() -> nm.Program:
    """Return a feed-forward layer and its training."""
    B, M, H = nm.dims("batch=64 model=128 hidden=512")

    def dense(x, target):
        h = nm.relu(nm.einsum([x, nm.param("wi", [M, H])], [B, H]))
        y = nm.einsum([h, nm.param("wo", [H, M])], [B, M])
        return _descend(nm.mean(nm.square(y - target)))

    return nm.trace(dense, nm.spec([B, M]), nm.spec([B, M]))


def trace_mixture() -> nm.Program:
    """Return the paper's mixture layer and its training."""
    moe, (G, S, _E, _C, M, _H) = layer(Sizes(seq=32, model=64, hidden=128))

    def mixture(x, target):
        y, aux = moe(x)
        return _descend(nm.mean(nm.square(y - target)) + nm.mean(aux))

    return nm.trace(mixture, nm.spec([G, S, M]), nm.spec([G, S, M]))


def trace_rows() -> nm.Program:
    """Return a convolution over an image whose rows are split, and its training."""
    B, R, C, F, K, L = nm.dims("batch=2 rows=64 columns=32 features=8 height=3 width=3")
    N = nm.Dimension("filters", 8)

    def rows(x, target):
        kernel = nm.param("kernel", [K, L, F, N])
        y = nm.conv(x, kernel, {R: K, C: L})
        return _descend(nm.mean(nm.square(nm.sum(nm.relu(y), over=N) - target)))

    return nm.trace(rows, nm.spec([B, R, C, F]), nm.spec([B, R, C]))


def _descend(loss: nm.Tensor) -> dict[str, nm.Tensor]:
    """Take one step of gradient descent."""
    grads = nm.grad(loss)
    for name, weight in nm.parameters().items():
        nm.assign(weight, weight - grads[name] * 0.05)
    return {"loss": loss}


CASES: dict[str, tuple[Callable[[], nm.Program], nm.Mesh, str]] = {
    "dense, batch split": (trace_dense, nm.Mesh(data=8), "batch:data"),
    "dense, batch and hidden split": (
        trace_dense,
        nm.Mesh(data=2, tensor=4),
        "batch:data, hidden:tensor",
    ),
    "mixture, groups and experts split": (trace_mixture, nm.Mesh(all=8), "group:all, expert:all"),
    "convolution, rows split": (trace_rows, nm.Mesh(space=8), "rows:space"),
}


def export_cases(folder: pathlib.Path) -> None:
    """Write the Artifact of every case, and a batch for it."""
    for number, (trace, mesh, layout) in enumerate(CASES.values()):
        artifact = nm.export(trace(), mesh, layout)
        artifact.save(folder / f"{number}.nmesh")
        rng = np.random.default_rng(number)
        batch = {
            spec.name: rng.normal(size=spec.sizes).astype(np.float32) for spec in artifact.inputs
        }
        np.savez(folder / f"{number}.npz", **batch)  # pyright: ignore[reportArgumentType]


def work(folder: pathlib.Path, steps: int) -> None:
    """Train in one process; the first writes the measurements."""
    start = time.perf_counter()
    processes = nm.runtime.start_processes()
    started = time.perf_counter() - start
    rows = []
    for number in range(len(CASES)):
        step = nm.runtime.load(folder / f"{number}.nmesh", strict=True)
        whole = np.load(folder / f"{number}.npz")
        batch = step.feed({name: whole[name][step.rows(name)] for name in step.inputs})
        state, results = step.init(0), None
        for _ in range(COMPARED):
            state, results = step(state, **batch)
        fetched = {**step.fetch(results), **{name: state.fetch(name) for name in state}}
        digest, times = state.digest(), []
        for _ in range(steps):
            begin = time.perf_counter()
            state, results = step(state, **batch)
            jax.block_until_ready(results)
            times.append(time.perf_counter() - begin)
        seconds = statistics.median(times)
        rows.append({"digest": digest, "audit": step.audit.exact, "seconds": seconds})
        if processes.first:
            np.savez(folder / f"out{number}_{processes.count}.npz", **fetched)
    if processes.first:
        report = json.dumps({"started": started, "rows": rows})
        (folder / f"report{processes.count}.json").write_text(report)


def run_shape(folder: pathlib.Path, count: int, devices: int, steps: int) -> dict[str, Any]:
    """Run so many processes to their end, and return what they measured."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.processes", "--work", str(folder)]
    started = []
    try:
        for index in range(count):
            environment = {
                **os.environ,
                "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
                "JAX_NUM_PROCESSES": str(count),
                "JAX_PROCESS_ID": str(index),
                "NAMEDMESH_DEVICES": str(devices),
            }
            started.append(
                subprocess.Popen(
                    [*command, "--steps", str(steps)],
                    env=environment,
                    stdout=subprocess.DEVNULL,
                )
            )
        for index, process in enumerate(started):
            if process.wait(600):
                raise SystemExit(f"process {index} of {count} ended with {process.returncode}")
    finally:
        for process in started:
            process.kill()
            process.wait()
    return json.loads((folder / f"report{count}.json").read_text())


def compare(folder: pathlib.Path, number: int, count: int) -> float:
    """Return the largest difference of the results of many processes from those of one."""
    expected, found = (np.load(folder / f"out{number}_{one}.npz") for one in (1, count))
    apart = [
        np.abs(found[name] - expected[name]).max() / max(np.abs(expected[name]).max(), 1e-30)
        for name in expected.files
    ]
    return float(max(apart))


def measure(steps: int, rounds: int) -> dict[str, Any]:
    """Run every shape by turns, and compare each with one process.

    Args:
        steps: The steps that are timed each time.
        rounds: How often each shape runs; the fastest median counts.

    Returns:
        A row for every case and shape.
    """
    reports: dict[int, list[dict[str, Any]]] = {count: [] for count, _ in SHAPES}
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        export_cases(folder)
        for iteration in range(rounds):
            for count, devices in SHAPES if iteration % 2 == 0 else reversed(SHAPES):
                reports[count].append(run_shape(folder, count, devices, steps))
        for number, case in enumerate(CASES):
            alone = min(one["rows"][number]["seconds"] for one in reports[1])
            first_with: dict[str, str] = {}  # the shape that had a digest first
            for count, devices in SHAPES:
                runs = [one["rows"][number] for one in reports[count]]
                seconds = min(one["seconds"] for one in runs)
                digest = " ".join(sorted({one["digest"] for one in runs}))  # one, unless by chance
                same = first_with.setdefault(digest, f"{count} × {devices}")
                rows.append(
                    {
                        "program": case,
                        "processes": count,
                        "devices": devices,
                        "bits_of": same,
                        "apart": compare(folder, number, count),
                        "audit_exact": all(one["audit"] for one in runs),
                        "step_ms": 1e3 * seconds,
                        "ratio": seconds / alone,
                        "start_seconds": min(one["started"] for one in reports[count]),
                    }
                )
    return {"rows": rows, "steps": steps, "rounds": rounds, "compared_after": COMPARED}


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a table for people."""
    lines = [
        "| program | processes × devices | bits of | apart | audit | ms a step | to 1 × 8 |",
        "|---" * 7 + "|",
    ]
    for row in rows:
        cells = [
            row["program"],
            f"{row['processes']} × {row['devices']}",
            row["bits_of"],
            f"{row['apart']:.1e}",
            "exact" if row["audit_exact"] else "differs",
            f"{row['step_ms']:.1f}",
            f"{row['ratio']:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print a table, and fail if results or audits are not as they should be."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.processes", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--json", type=pathlib.Path, metavar="OUT", help="the file of the result")
    parser.add_argument("--steps", type=int, default=30, help="the steps that are timed")
    parser.add_argument("--rounds", type=int, default=2, help="how often each shape runs")
    parser.add_argument("--work", type=pathlib.Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.work:
        work(given.work, given.steps)
        return
    result = measure(given.steps, given.rounds)
    host = {"machine": platform.machine(), "cores": os.cpu_count(), "jax": jax.__version__}
    print(table(result["rows"]))
    if given.json:
        given.json.write_text(json.dumps({**result, "host": host}, indent=1) + "\n")
    wrong = [row for row in result["rows"] if row["apart"] > MOST_APART or not row["audit_exact"]]
    if wrong:
        raise SystemExit(f"{len(wrong)} rows are not as they should be")


if __name__ == "__main__":
    main()
