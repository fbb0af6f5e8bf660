"""One process of a training run under attack: `python -m benchmarks.chaos.worker FOLDER ...`."""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import jax

from benchmarks.chaos.training import CHECK_EVERY, COPY_EVERY, SAVE_EVERY, make_batch
from namedmesh.processes import starting
from namedmesh.runtime import State, load, start_processes
from namedmesh.training import (
    Checkpoints,
    Intervals,
    NumberedBatches,
    Trainer,
    checkpoint_files,
    chunks,
    copies,
    save_weights,
)
from tests.training.damage import flip_bit

DATA = "numbered batches"
_PUT = getattr(copies._Peer.put, "plain", copies._Peer.put)  # the program may run again


def slow_down(folder: pathlib.Path, seconds: float) -> None:
    """Let each part of a save and a copy wait: real ones take long, and processes die in them."""

    def after_a_while(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            time.sleep(seconds)
            return function(*arguments, **options)

        call.waits = True
        return function if hasattr(function, "waits") else call  # the program may run again

    def put(peer: copies._Peer, *arguments: Any) -> None:
        mark = folder / f"copying-{os.getpid()}"
        mark.touch()
        time.sleep(4 * seconds)
        _PUT(peer, *arguments)
        mark.unlink(missing_ok=True)

    put.plain = _PUT  # type: ignore[attr-defined]
    copies._Peer.put = put
    chunks.ChunkWriter.write = after_a_while(chunks.ChunkWriter.write)
    checkpoint_files.join_databases = after_a_while(checkpoint_files.join_databases)
    checkpoint_files.write_file = after_a_while(checkpoint_files.write_file)
    checkpoint_files.sync_folder = after_a_while(checkpoint_files.sync_folder)


def flip_replica(state: State) -> None:
    """Flip a bit of one copy of a variable, a parameter if devices have copies of one."""
    for name in sorted(state.arrays, key=lambda name: not state.specs[name].parameter):
        array = state.arrays[name]
        places = array.sharding.devices_indices_map(array.shape)
        if len({str(one) for one in places.values()}) < len(places):
            state.arrays[name] = flip_bit(array, jax.local_devices()[-1].id, byte=1)
            return


def run(arguments: argparse.Namespace) -> int:
    """Train to the last step, or as far as it comes; return the exit status."""
    folder = pathlib.Path(arguments.folder)
    slow_down(folder, arguments.slow)
    if arguments.wrong == "version" and os.environ.get("JAX_PROCESS_ID") == str(arguments.peer):
        starting.__version__ = "0.0.0"
    processes = start_processes()
    pid = folder / f"process-{processes.index}.pid"
    pid.write_text(str(os.getpid()))
    wrong = arguments.wrong if processes.index == arguments.peer else ""
    artifact = arguments.other_artifact if wrong == "layout" else arguments.artifact
    step = load(artifact.format(processes.count), strict=True)
    flip = folder / f"flip-{processes.index}"

    def feed(batch: dict[str, Any], _steps_taken: int) -> dict[str, Any]:
        time.sleep(arguments.pause)
        if flip.exists():
            flip_replica(trainer.state)
            flip.unlink()
        return batch

    intervals = Intervals(
        arguments.steps + (wrong == "settings"),
        log_every=1,
        save_every=SAVE_EVERY,
        check_every=CHECK_EVERY,
        copy_every=COPY_EVERY,
    )
    with Checkpoints(folder / "disk" / "checkpoints", keep=4) as checkpoints:
        trainer = Trainer(
            step,
            NumberedBatches(make_batch, "other batches" if wrong == "data" else DATA),
            intervals,
            checkpoints=checkpoints,
            metrics=folder / "metrics.jsonl",
            feed=feed,
        )
        if processes.first:
            print(f"training from step {trainer.first_step}", flush=True)
        trainer.run()
    if trainer.stop:
        return trainer.stop.exit_status
    save_weights(folder / "final.safetensors", trainer.state, everything=True)
    return 0


def main() -> None:
    """Run one process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("folder", help="where the run is")
    parser.add_argument("--artifact", required=True, help="the program")
    parser.add_argument("--other_artifact", default="", help="that of a wrong peer")
    parser.add_argument("--steps", type=int, default=100, help="the last step")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds before each step")
    parser.add_argument("--slow", type=float, default=0.0, help="seconds of each part of a save")
    parser.add_argument("--peer", type=int, default=-1, help="which process is wrong")
    parser.add_argument("--wrong", default="", help="how: data, settings, layout or version")
    sys.exit(run(parser.parse_args()))


if __name__ == "__main__":
    main()
