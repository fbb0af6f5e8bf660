"""Training in two processes, each feeding its own rows, against one that has all rows."""

import socket
import subprocess
import sys

import numpy as np
import pytest

from tests.m4.runs import BLOCKED, ROOT, arguments, copied, environment, good, losses, run

pytestmark = pytest.mark.slow

WORKER = """
import dataclasses
import jax, numpy as np
index, count, port, folder, out = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
jax.config.update("jax_num_cpu_devices", 4 // count)
if count > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", count, index)
assert len(jax.devices()) == 4 and len(jax.local_devices()) == 4 // count
from examples.m4.run import Run
from examples.m4.training import make_trainer
from namedmesh.runtime import load
run = Run(folder)
step = load(run.artifact("train", run.settings))
trainer = make_trainer(run, dataclasses.replace(run.settings, steps=1), step, None)
batch, _ = next(trainer.stream.read_from(None))
row = trainer.run()
speeds = ("seconds_per_step", "tokens_per_second", "tokens")
results = {f"metric {name}": value for name, value in row.items() if name not in speeds}
for name, array in trainer.state.arrays.items():
    shards = array.addressable_shards
    results |= {f"{name} {shard.index}": np.asarray(shard.data) for shard in shards}
np.savez(out, rows=len(batch["source"]), **results)
"""


def trained(experts, folder, processes: int) -> list[dict[str, np.ndarray]]:
    """What each of some processes has after one step: the metrics, and its pieces of the state."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    started = []
    for index in range(processes):
        run = copied(experts, folder / f"run{processes}{index}")
        command = [
            sys.executable,
            "-c",
            BLOCKED + WORKER,
            str(index),
            str(processes),
            str(port),
            str(run),
            str(run / "out.npz"),
        ]
        with open(run / "output", "w") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment(), stdout=output, stderr=subprocess.STDOUT
            )
        started.append((process, run))
    try:
        for process, run in started:
            assert process.wait(900) == 0, (run / "output").read_text()[-3000:]
    finally:
        for process, _ in started:
            process.kill()
    return [dict(np.load(run / "out.npz")) for _, run in started]


def test_two_processes_with_half_of_the_rows_each_equal_one(experts, tmp_path):
    (alone,) = trained(experts, tmp_path, 1)
    both = trained(experts, tmp_path, 2)
    assert alone.pop("rows") == 8
    assert [one.pop("rows") for one in both] == [4, 4]
    assert both[0].keys() | both[1].keys() == alone.keys()
    assert (
        both[0].keys() - both[1].keys() and both[1].keys() - both[0].keys()
    )  # of what is split each has its own pieces
    for one in both:
        for name, value in one.items():
            np.testing.assert_allclose(
                value, alone[name], rtol=1e-4, atol=1e-5 * np.abs(alone[name]).max(), err_msg=name
            )


def test_a_launched_run_goes_on_in_fewer_processes(experts, tmp_path):
    alone, launched = (copied(experts, tmp_path / name) for name in ("alone", "launched"))
    good(run("train", alone, {"steps": 6, "log_every": 1, "save_every": 3}))
    for processes, steps in ((4, 3), (2, 6)):
        words = ["launch", "-n", str(processes), "--devices", str(4 // processes), "--"]
        flags = {"steps": steps, "log_every": 1, "save_every": 3}
        command = arguments("train", launched, flags, blocked=True)
        done = subprocess.run(
            [sys.executable, "-m", "namedmesh", *words, *command], cwd=ROOT, env=environment(),
            capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert f"[0] trained {steps} steps" in good(done)
    one, other = losses(alone), losses(launched)
    assert [step for step, _ in one] == [step for step, _ in other] == list(range(1, 7))
    np.testing.assert_allclose([loss for _, loss in other], [loss for _, loss in one], rtol=1e-5)
