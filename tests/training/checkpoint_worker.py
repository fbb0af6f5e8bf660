"""One of several processes that save and restore: `python -m tests.training.checkpoint_worker`.

The last arguments are what it does, one after the other. It prints a line of JSON for each, and
imports no TensorFlow.
"""

from __future__ import annotations

import errno
import json
import pathlib
import sys
import time
import warnings

import jax
import numpy as np

import namedmesh as nm
from namedmesh.errors.errors import NamedMeshError
from namedmesh.runtime import load, start_processes
from namedmesh.training import Checkpoints, saving
from namedmesh.training.guards import check_replicas
from tests.training.damage import flip_bit

WRITE = saving.ChunkWriter.write


def expected_values(step, seed: int) -> dict[str, np.ndarray]:
    """Whole arrays for every variable of a program."""
    random = np.random.default_rng(seed)
    return {
        name: random.normal(size=spec.sizes).astype(np.float32)
        for name, spec in step.variables.items()
    }


def shard_of(array, values: np.ndarray) -> bool:
    """Whether every shard that this process has is that of the values, with zeros behind them."""
    padded = np.zeros(array.shape, values.dtype)
    padded[tuple(slice(size) for size in values.shape)] = values
    return all(
        np.array_equal(np.asarray(shard.data), padded[shard.index])
        for shard in array.addressable_shards
    )


def make_state(step, seed: int):
    """A state with those values, of which each process makes its own shards."""
    state, whole = step.init(0), expected_values(step, seed)
    for name, array in state.arrays.items():
        padded = np.zeros(array.shape, np.float32)
        padded[tuple(slice(size) for size in whole[name].shape)] = whole[name]
        state.arrays[name] = jax.make_array_from_callback(
            array.shape, array.sharding, lambda index, padded=padded: padded[index]
        )
    return state


def do(action: str, argument: str, folder: pathlib.Path, step, processes) -> object:
    """One of the things that a test asks for."""
    if action == "fail":  # the disk of one process is full

        def refuse(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        if processes.index == int(argument):
            saving.ChunkWriter.write = refuse
        return "ready"
    if action == "fix":
        saving.ChunkWriter.write = WRITE
        return "ready"
    if action == "transfer":  # to another program, and how many bytes go where
        target = load(argument, strict=False)
        plan = nm.transfer(step, target)
        state, whole = plan(make_state(step, 5)), expected_values(step, 5)
        same = all(shard_of(state.arrays[name], whole[name]) for name in whole)
        return [same, plan.bytes_moved, plan.bytes_between_hosts]
    if action == "flip":  # one bit of one process's copy, which is looked for in all
        state = make_state(step, 5)
        if processes.index == int(argument):
            last = jax.local_devices()[-1].id
            state.arrays["layer/b"] = flip_bit(state.arrays["layer/b"], last)
        check_replicas(state, 7)
        return "not noticed"
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with Checkpoints(folder, keep=3) as checkpoints:
            if action == "save":
                checkpoints.save(int(argument), make_state(step, int(argument)), {"p": argument})
                checkpoints.wait()
                return checkpoints.steps
            number, state, extra = checkpoints.restore(step)
        whole = expected_values(step, number)
        same = all(shard_of(state.arrays[name], whole[name]) for name in whole)
        return [number, extra, same, [str(one.message)[:60] for one in warned]]


def main() -> None:
    """Do what the command line says."""
    port, count, index, devices, artifact, folder, *actions = sys.argv[1:]
    processes = start_processes(
        f"127.0.0.1:{port}", int(count), int(index), devices=int(devices), heartbeat=10
    )
    step = load(artifact, strict=False)
    for one in actions:
        action, _, argument = one.partition(":")
        start = time.monotonic()
        try:
            result = do(action, argument, pathlib.Path(folder), step, processes)
        except NamedMeshError as error:
            result = {"problem": error.problem, "details": error.details, "fix": error.fix}
        seconds = time.monotonic() - start
        print(json.dumps({"action": one, "result": result, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
