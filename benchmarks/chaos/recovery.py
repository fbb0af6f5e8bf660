"""Seconds from a fault to the next finished step, and what they are made of.

    python -m benchmarks.chaos.recovery --repeats 7 --options="--spares" --results FILE.json

The launcher runs a small training run on 4 processes of 2 CPU devices and restarts it when one
fails, replaces that one (`--spares`) or goes on without it (`--least 2`). Each process notes when
it begins, has imported, has met the others, has loaded its program, has restored its state, and has
taken a step. Needs TensorFlow once, to export.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time

PHASES = ("started", "imported", "met", "loaded", "restored", "stepped")
PROCESSES, DEVICES = 4, 2
ROOT = pathlib.Path(__file__).parent.parent.parent
LONGEST = 300.0


def work(folder: pathlib.Path) -> None:
    """Train in one process, noting when each phase ends."""
    begun = time.time()
    notes: list[tuple[str, float]] = [("started", begun)]
    from benchmarks.chaos.training import make_batch
    from namedmesh.runtime import load, start_processes
    from namedmesh.training import Checkpoints, Intervals, NumberedBatches, Trainer

    notes.append(("imported", time.time()))
    processes = start_processes()
    notes.append(("met", time.time()))
    step = load(folder / f"{processes.count * DEVICES}.nmesh", strict=True)
    notes.append(("loaded", time.time()))

    def feed(batch: dict, taken: int) -> dict:
        if len(notes) < len(PHASES) and taken > trainer.first_step:
            notes.append(("stepped", time.time()))
            text = json.dumps({"pid": os.getpid(), "index": processes.index, **dict(notes)})
            with open(folder / "phases.jsonl", "a", encoding="utf-8") as file:
                file.write(text + "\n")
        time.sleep(0.05)
        return batch

    with Checkpoints(folder / "checkpoints", keep=2) as checkpoints:
        intervals = Intervals(1_000_000, log_every=1, save_every=20, copy_every=10)
        stream = NumberedBatches(make_batch, "batches")
        trainer = Trainer(step, stream, intervals, checkpoints=checkpoints, feed=feed)
        notes.append(("restored", time.time()))
        trainer.run()


def wait_for_round(
    folder: pathlib.Path, before: int, count: int, launch: subprocess.Popen
) -> list[dict]:
    """Wait until so many processes have taken a step, after so many of the rounds before."""
    end, path, rows = time.monotonic() + LONGEST, folder / "phases.jsonl", []
    while len(rows) < before + count:
        if path.exists():
            rows = [json.loads(line) for line in path.read_text().splitlines()]
        if time.monotonic() > end or launch.poll() is not None:
            raise SystemExit(f"row {before + count} did not come, status {launch.poll()}")
        time.sleep(0.01)
    return rows[before : before + count]


def run(
    folder: pathlib.Path, repeats: int, options: list[str], fault: str, pause: float
) -> list[dict]:
    """Make faults, and measure what follows each."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    code = "from benchmarks.chaos.training import *; import namedmesh as nm, pathlib, sys\n"
    code += "places = [Place(f'data={n}', 'batch:data', '', 1) for n in (2, 4, 6, 8)]\n"
    code += "export_places(pathlib.Path(sys.argv[1]), places)"
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT, check=True)
    for devices in (2, 4, 6, 8):
        (folder / f"data-{devices}-batch-data-.nmesh").rename(folder / f"{devices}.nmesh")
    command = [sys.executable, "-m", "namedmesh", "launch", "-n", str(PROCESSES), *options]
    command += ["--devices", str(DEVICES), "--restarts", str(repeats), "--grace", "20", "--"]
    command += [sys.executable, "-m", "benchmarks.chaos.recovery", "--work", str(folder)]
    rng, rows, taken = random.Random(1), [], 0
    with open(folder / "log", "wb") as log:
        launch = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    try:
        for number in range(repeats):
            count = PROCESSES - number if "--least" in options else PROCESSES
            round_ = wait_for_round(folder, taken, count, launch)
            time.sleep(pause + rng.uniform(0, 2))
            taken += count
            index = number % count
            pid = next(one["pid"] for one in round_ if one["index"] == index)
            at = time.time()
            os.kill(pid, getattr(signal, fault))
            after = wait_for_round(folder, taken, count - ("--least" in options), launch)
            ends = [at, *(max(one[phase] for one in after) for phase in PHASES)]
            parts = {name: b - a for name, a, b in zip(PHASES, ends, ends[1:], strict=False)}
            rows.append({"process": index, "fault": fault, "seconds": ends[-1] - at, **parts})
            print(json.dumps(rows[-1]), flush=True)
    finally:
        launch.send_signal(signal.SIGINT)
        time.sleep(0.5)
        launch.send_signal(signal.SIGINT)
        launch.wait(60)
    return rows


def main() -> None:
    """Measure, and print medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--work", help="be one process, in this folder")
    parser.add_argument("--folder", default="build/recovery", help="the folder of the run")
    parser.add_argument("--repeats", type=int, default=7, help="how many faults")
    parser.add_argument("--fault", default="SIGKILL", help="the signal")
    parser.add_argument("--pause", type=float, default=3.0, help="seconds before each")
    parser.add_argument("--options", default="", help="of the launcher")
    parser.add_argument("--results", help="write the rows to this file")
    arguments = parser.parse_args()
    if arguments.work:
        work(pathlib.Path(arguments.work))
        return
    folder = pathlib.Path(arguments.folder).resolve()
    rows = run(
        folder, arguments.repeats, arguments.options.split(), arguments.fault, arguments.pause
    )
    medians = {name: statistics.median(row[name] for row in rows) for name in ("seconds", *PHASES)}
    worst = max(row["seconds"] for row in rows)
    print(json.dumps({"medians": medians, "worst": worst, "load": os.getloadavg()[0]}, indent=1))
    if arguments.results:
        words = [word.replace(arguments.folder, "FOLDER") for word in sys.argv[1:]]
        document = {"command": words, "medians": medians, "worst": worst, "rows": rows}
        pathlib.Path(arguments.results).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
