"""Steps on one GPU beside what is predicted of them with a file of `namedmesh calibrate`.

python -m benchmarks.calibrated export FOLDER [NAME ...]              lowers the steps
python -m benchmarks.calibrated run FOLDER [NAME ...] --json OUT      measures them on this device
python -m benchmarks.calibrated predict HARDWARE --measured OUT --json RESULT
python -m benchmarks.calibrated refit HARDWARE                        fits attention again

Exporting needs TensorFlow; running needs neither that nor the source of the models. Predictions are
those of `nm.cost` and, where XLA's GPU compiler is (namedmesh[gpu-aot]), of the schedule of the
compiled module (`namedmesh.schedule`). None of the models is part of a calibration, which times
products, passes over memory, attention and launches.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import namedmesh as nm
from benchmarks.gpu_cluster_cases import Language
from namedmesh.calibration.benches import time_attention
from namedmesh.calibration.calibrate import fit_kernel
from namedmesh.hardware.hardware import Hardware, write_hardware

STEPS, WARM_UP = 20, 3


def _unet() -> nm.Program:
    """Trace a U-Net of images of 256 by 256."""
    from examples.unet.model import UNet, train_program

    return train_program(UNet(16, 256, 256, 64, 4, dtype="bfloat16"), 1e-3, 1000)


MODELS: dict[str, Callable[[], nm.Program]] = {
    "llama": lambda: Language("llama_1b", 8, 2048, remat="none").trace(),
    "mixture": lambda: Language("mixtral_small", 16, 1024, remat="dots").trace(),
    "long": lambda: Language("llama_1b", 1, 16_384, kernel=True).trace(),
    "unet": _unet,
}


def run(path: pathlib.Path) -> dict[str, Any]:
    """Time the step of an Artifact, each step waited for and several in a row."""
    import jax

    from namedmesh.runtime import Artifact, Executable

    artifact = Artifact.load(path)
    step, generator = Executable(artifact, strict=False), np.random.default_rng(0)
    batch = {}
    for spec in artifact.inputs:
        whole = spec.dtype.startswith("int")
        draw = (
            generator.integers(0, 1000, spec.sizes) if whole else generator.normal(size=spec.sizes)
        )
        batch[spec.name] = np.asarray(draw, np.int32 if whole else np.float32).astype(spec.dtype)
    batch, state, taken = step.put(**batch), step.init(seed=0), []
    for i in range(WARM_UP + STEPS):
        start = time.perf_counter()
        state, result = step(state, **batch)
        jax.block_until_ready((result, list(state.arrays.values())))
        taken += [time.perf_counter() - start] if i >= WARM_UP else []
    start = time.perf_counter()
    for _ in range(STEPS):
        state, result = step(state, **batch)
    jax.block_until_ready((result, list(state.arrays.values())))
    return {
        "model": path.stem,
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "seconds": statistics.median(taken),
        "seconds_in_a_row": (time.perf_counter() - start) / STEPS,
        "least_seconds": min(taken),
        "most_seconds": max(taken),
        "compile_seconds": step.report.compile_seconds,
        "memory": step.report.peak_bytes,
    }


def predict(name: str, hardware: str, target: str) -> dict[str, Any]:
    """Return the seconds of a model on one device, by its plan and by its compiled schedule."""
    from namedmesh.aot import compile_for
    from namedmesh.jax_internals import find_gpu_compiler
    from namedmesh.lowering.export import export_planned

    device = Hardware.parse(hardware)
    plan = nm.plan(MODELS[name](), nm.Mesh(all=1), "")
    row = {"model": name, "predicted_seconds": nm.cost(plan, device).seconds}
    if find_gpu_compiler() is not None:
        report = compile_for(export_planned(plan), target, hardware=device)
        assert report.timeline is not None
        row["predicted_from_schedule_seconds"] = report.timeline.seconds
    return row


def refit(path: pathlib.Path) -> None:
    """Fit the figures of attention in a file of `namedmesh calibrate` again, from its timings."""
    line = re.compile(r"#   (attention of (\d+) x (\d+) x (\d+) x (\d+), (\w+)): ([\d.]+) us")
    timings, text = [], path.read_text()
    for what, *sizes, name, micros in line.findall(text):
        batch, rows, heads, key = map(int, sizes)
        timings.append(time_attention(what, name, batch, rows, heads, key, float(micros) / 1e6))
    fitted = fit_kernel(Hardware.parse(path), timings)
    head = "".join(f"{line}\n" for line in text.splitlines() if line.startswith("#"))
    path.write_text(head + write_hardware(fitted))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", choices=("export", "run", "predict", "refit"))
    parser.add_argument("place", help="the folder of Artifacts, or the hardware")
    parser.add_argument("models", nargs="*", default=list(MODELS), help=", ".join(MODELS))
    parser.add_argument("--target", default="h200:1", help="what schedules are compiled for")
    parser.add_argument("--measured", type=pathlib.Path, help="what `run` wrote")
    parser.add_argument("--json", type=pathlib.Path, metavar="OUT", help="where rows are written")
    given = parser.parse_args()
    if given.command == "refit":
        return refit(pathlib.Path(given.place))
    measured = json.loads(given.measured.read_text()) if given.measured else []
    rows = []
    for name in given.models:
        path = pathlib.Path(given.place) / f"{name}.nmesh"
        if given.command == "export":
            path.parent.mkdir(parents=True, exist_ok=True)
            nm.export(MODELS[name](), nm.Mesh(all=1), "").save(path)
            print(f"{path}: {path.stat().st_size / 2**10:.0f} KiB", flush=True)
            continue
        if given.command == "run":
            row = run(path)
        else:
            row = predict(name, given.place, given.target)
            row |= next((one for one in measured if one["model"] == name), {}) | row
            if "seconds" in row:
                row["ratio"] = row["predicted_seconds"] / row["seconds"]
                if by_schedule := row.get("predicted_from_schedule_seconds"):
                    row["schedule_ratio"] = by_schedule / row["seconds"]
        rows.append(row)
        print(json.dumps(row), flush=True)
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
