"""One system and one model in one process, since memory is counted from its start.

python -m benchmarks.gpu.measure SYSTEM MODEL FOLDER             time and memory, one line of JSON
python -m benchmarks.gpu.measure SYSTEM MODEL FOLDER --profile   milliseconds by kind of kernel

SYSTEM is namedmesh, jax-plain or jax-cudnn, after the kind of attention. FOLDER has the Artifacts
that benchmarks.gpu.export wrote. TensorFlow is not needed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import platform
import statistics
import sys
import tempfile
import time
from typing import Any

from benchmarks.gpu.models import MODELS, PEAK_FLOPS, count_flops

SYSTEMS = ("jax-plain", "jax-cudnn", "namedmesh")
NO_COMMAND_BUFFERS = "--xla_gpu_enable_command_buffer="
WARM_UP, BLOCKED, PIPED, PROFILED = 4, 30, 12, 3  # steps


def set_environment(system: str, profile: bool) -> None:
    """Set what jax reads when it starts.

    cuDNN's dropout aborts in a command buffer, and kernels that one launches have no names in a
    profile. Everything else is measured with jax's own defaults.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.95")
    if profile or system == "jax-cudnn":
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} {NO_COMMAND_BUFFERS}".strip()


def measure(system: str, model: str, folder: pathlib.Path) -> dict[str, Any]:
    """Time the steps of a system: blocked, each waited for, and piped, all waited for at once."""
    import jax

    from benchmarks.gpu.systems import load_system

    runner = load_system(system, model, folder)
    print(f"{system} {model}: compiled in {runner.compile_seconds:.0f} s", file=sys.stderr)
    for _ in range(WARM_UP):
        metrics, state = runner.run()
    jax.block_until_ready((metrics, state))
    first_loss = float(metrics["loss"])
    times = []
    for _ in range(BLOCKED):
        start = time.perf_counter()
        metrics, state = runner.run()
        jax.block_until_ready((metrics, state))
        times.append((time.perf_counter() - start) * 1e3)
    start = time.perf_counter()
    for _ in range(PIPED):
        metrics, state = runner.run()
    jax.block_until_ready((metrics, state))
    piped = (time.perf_counter() - start) * 1e3 / PIPED
    last_loss = float(metrics["loss"])
    assert math.isfinite(first_loss) and math.isfinite(last_loss), (first_loss, last_loss)
    ms, flops, tokens = statistics.median(times), count_flops(MODELS[model]), MODELS[model].tokens
    memory = jax.devices()[0].memory_stats() or {}  # a CPU counts none
    peak = memory.get("peak_bytes_in_use")
    return {
        "ms": ms,
        "ms_min": min(times),
        "ms_max": max(times),
        "ms_piped": piped,
        "tokens_per_second": tokens / ms * 1e3,
        "mfu": flops / (ms / 1e3) / PEAK_FLOPS,
        "peak_gib": None if peak is None else peak / 2**30,
        "planned_gib": runner.planned_bytes / 2**30,
        "trace_seconds": runner.trace_seconds,
        "compile_seconds": runner.compile_seconds,
        "parameters": runner.parameters,
        "flops": flops,
        "tokens": tokens,
        "first_loss": first_loss,
        "last_loss": last_loss,
    }


def profile(system: str, model: str, folder: pathlib.Path) -> dict[str, Any]:
    """Profile a few steps of a system, and sum their kernels by kind."""
    import jax

    from benchmarks.gpu.kernels import Classifier, read_trace, summarize
    from benchmarks.gpu.systems import load_system

    runner = load_system(system, model, folder)
    for _ in range(WARM_UP):
        jax.block_until_ready(runner.run())
    with tempfile.TemporaryDirectory() as trace:
        with jax.profiler.trace(trace):
            for _ in range(PROFILED):
                result = runner.run()
            jax.block_until_ready(result)
        launches = list(read_trace(pathlib.Path(trace)))
    assert launches, "the trace has no kernels; is CUPTI installed?"
    return summarize(launches, Classifier(runner.text(), MODELS[model]), PROFILED)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--profile", action="store_true", help="sum kernels by kind instead")
    arguments = parser.parse_args()
    set_environment(arguments.system, arguments.profile)
    import jax

    device = jax.devices()[0]
    row: dict[str, Any] = {
        "model": arguments.model,
        "system": arguments.system,
        "device": device.device_kind,
        "jax": jax.__version__,
        "python": platform.python_version(),
    }
    if device.platform != "gpu" and (arguments.profile or arguments.system == "jax-cudnn"):
        row["skipped"] = "profiles and cuDNN need a GPU"
    else:
        task = profile if arguments.profile else measure
        row |= task(arguments.system, arguments.model, arguments.folder)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
