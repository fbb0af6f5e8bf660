"""Real processes for tests: each runs the same code and is connected with the others."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parent.parent.parent
START = """
import json, os, signal, sys, time
import numpy as np
from namedmesh.runtime import start_processes
processes = start_processes(timeout=60, **json.loads(os.environ.get("TEST_OPTIONS", "{}")))
"""


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a process ended: its status and what it wrote."""

    status: int
    output: str
    errors: str


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def environment(index: int, count: int, port: int, devices: int) -> dict[str, str]:
    """What a launcher sets for one process."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    return {
        **os.environ,
        "XLA_FLAGS": " ".join(flag for flag in flags if "device_count" not in flag),
        "PYTHONPATH": str(ROOT),
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
        "JAX_NUM_PROCESSES": str(count),
        "JAX_PROCESS_ID": str(index),
        "NAMEDMESH_DEVICES": str(devices),
        "NAMEDMESH_STRICT": "1",
    }


def run_processes(
    code: str,
    count: int,
    *arguments: str,
    devices: int = 1,
    timeout: float = 240,
    variables: dict[str, str] | None = None,
    overrides: dict[int, dict[str, str]] | None = None,
) -> list[Ended]:
    """Runs code in so many processes until all have ended; none is left over.

    Args:
        code: What each process runs; START connects them.
        count: How many processes there are.
        *arguments: Their command line.
        devices: The virtual devices of each.
        timeout: Seconds after which a process that has not ended fails the test.
        variables: More of the environment.
        overrides: More of the environment for some processes, by index.

    Returns:
        How each of them ended.
    """
    port, started = free_port(), []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for index in range(count):
                more = {**(variables or {}), **(overrides or {}).get(index, {})}
                out = open(f"{folder}/{index}.out", "w")  # noqa: SIM115
                err = open(f"{folder}/{index}.err", "w")  # noqa: SIM115
                process = subprocess.Popen(
                    [sys.executable, "-c", code, *arguments],
                    env={**environment(index, count, port, devices), **more},
                    cwd=folder,
                    stdout=out,
                    stderr=err,
                )
                started.append((process, out, err))
            ended = []
            for process, out, err in started:
                status = process.wait(timeout)
                texts = [pathlib.Path(stream.name).read_text() for stream in (out, err)]
                ended.append(Ended(status, *texts))
            return ended
        finally:
            for process, out, err in started:
                process.kill()
                process.wait()
                out.close()
                err.close()
