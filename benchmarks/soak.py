"""Memory, file handles and threads of two training processes over an hour.

    python -m benchmarks.soak --minutes 60 --json benchmarks/results/soak/soak.json

The preset `tiny` of examples/m4 trains on 2 processes x 4 devices, with checkpoints and
evaluations. From the samples after the first quarter of the time: the slope of each process's
memory, and the median of its handles and threads in the first and the second half.
"""

from __future__ import annotations

import contextlib
import pathlib
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from absl import app, flags

from benchmarks.result import publish
from namedmesh.training import read_metrics

_MINUTES = flags.DEFINE_float("minutes", 60.0, "How long to train.", lower_bound=0.2)
_EVERY = flags.DEFINE_float("every", 5.0, "Seconds between two samples.", lower_bound=0.1)
_OUT = flags.DEFINE_string("out", "build/soak", "The folder of the run.")
_PICTURE = flags.DEFINE_string("picture", None, "A file for a picture of the memory.")

PROCESSES, DEVICES = 2, 4
ROOT = pathlib.Path(__file__).parent.parent
MIB = 2**20
ENDING = 10.0  # seconds of samples that are left out: processes that end give memory back
FLAT = 0.01  # of a process's memory, the most it may grow over the samples


@dataclass(frozen=True)
class Sample:
    """The resources of one process at a moment; its memory without pages of files."""

    seconds: float
    memory: int
    handles: int
    threads: int


def read_sample(pid: int, seconds: float) -> Sample | None:
    """Sample a process; return None if it has ended."""
    folder = pathlib.Path(f"/proc/{pid}")
    with contextlib.suppress(OSError):
        lines = (folder / "status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        if "RssAnon" in fields:
            memory = int(fields["RssAnon"].split()[0]) * 1024
            handles = len(list((folder / "fd").iterdir()))
            return Sample(seconds, memory, handles, int(fields["Threads"]))
    return None


def find_workers(launcher: int) -> list[int]:
    """Return the training processes of a launcher, its guard left out."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        text = pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text()
        children = [int(word) for word in text.split()]
    return [pid for pid in children if b"examples.m4" in _read_command(pid)]


def _read_command(pid: int) -> bytes:
    """Return the command line of a process; empty if it has ended."""
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def prepare(folder: pathlib.Path) -> None:
    """Make the run's data and programs; needs TensorFlow."""
    if (folder / "settings.json").exists():
        return
    command = [sys.executable, "-m", "examples.m4", "export", f"--run={folder}", "--preset=tiny"]
    command += ["--data=synthetic", f"--mesh=all={PROCESSES * DEVICES}"]
    subprocess.run(command, cwd=ROOT, check=True)


def soak(folder: pathlib.Path, minutes: float, every: float) -> dict[int, list[Sample]]:
    """Train for some minutes and sample its processes."""
    launch = [sys.executable, "-m", "namedmesh", "launch", "-n", str(PROCESSES)]
    launch += ["--devices", str(DEVICES), "--", sys.executable, "-m", "examples.m4", "train"]
    launch += [f"--run={folder}", "--steps=100000000", f"--minutes={minutes}"]
    launch += ["--log_every=50", "--save_every=200", "--dev_every=200"]
    samples: dict[int, list[Sample]] = {}
    log = folder / "metrics.jsonl"
    before = max([row["step"] for row in read_metrics(log)] or [0])
    with open(folder / "soak.log", "wb") as output:
        process = subprocess.Popen(launch, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
    try:
        while process.poll() is None and not _trains(log, before):
            time.sleep(0.2)
        start = time.monotonic()
        while process.poll() is None:
            for index, pid in enumerate(find_workers(process.pid)):
                sample = read_sample(pid, time.monotonic() - start)
                if sample is not None:
                    samples.setdefault(index, []).append(sample)
            time.sleep(every)
    except KeyboardInterrupt:
        process.send_signal(signal.SIGTERM)
        process.wait()
        raise
    if process.returncode:
        raise SystemExit((folder / "soak.log").read_text(errors="replace")[-3000:])
    ending = 1 + int(ENDING / every)
    return {index: values[:-ending] for index, values in samples.items()}


def _trains(log: pathlib.Path, before: int) -> bool:
    """Return whether steps are being logged."""
    rows = read_metrics(log)
    return bool(rows) and rows[-1]["step"] > before


def summarize_process(samples: list[Sample]) -> dict[str, Any]:
    """Return the figures of one process, from the samples after the first quarter of the time."""
    late = samples[len(samples) // 4 :]
    half = len(late) // 2
    hours = np.array([one.seconds for one in late]) / 3600
    memory = np.array([one.memory for one in late]) / MIB
    slope, _ = np.polyfit(hours, memory, 1)
    growth = slope * (hours[-1] - hours[0])
    halves = {
        name: [statistics.median(getattr(one, name) for one in part) for part in parts]
        for name in ("handles", "threads")
        for parts in [(late[:half], late[half:])]
    }
    return {
        "samples": len(late),
        "memory_MiB": round(float(np.median(memory)), 1),
        "memory_slope_MiB_per_hour": round(float(slope), 2),
        "memory_growth_MiB": round(float(growth), 2),
        "memory_flat": bool(growth <= FLAT * np.median(memory)),
        "handles_in_both_halves": halves["handles"],
        "threads_in_both_halves": halves["threads"],
    }


def draw(samples: dict[int, list[Sample]], path: str) -> None:
    """Draw the memory of each process over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    for index, values in samples.items():
        minutes = [one.seconds / 60 for one in values]
        axes.plot(minutes, [one.memory / MIB for one in values], label=f"process {index}")
    most = max(one.memory for values in samples.values() for one in values) / MIB
    axes.set(xlabel="minutes of training", ylabel="memory (MiB), files not counted")
    axes.set_ylim(0, 1.15 * most)
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main(_arguments: list[str]) -> None:
    """Run the soak and publish its figures."""
    folder = pathlib.Path(_OUT.value).resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    prepare(folder)
    first = max([row["step"] for row in read_metrics(folder / "metrics.jsonl")] or [0])
    samples = soak(folder, _MINUTES.value, _EVERY.value)
    rows = read_metrics(folder / "metrics.jsonl")
    if _PICTURE.value:
        draw(samples, _PICTURE.value)
    publish(
        {
            "minutes": _MINUTES.value,
            "processes": PROCESSES,
            "devices_each": DEVICES,
            "steps": rows[-1]["step"] - first,
            "checkpoints_every": 200,
            "by_process": [summarize_process(samples[index]) for index in sorted(samples)],
        }
    )


if __name__ == "__main__":
    app.run(main)
