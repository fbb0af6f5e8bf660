"""One system and one model in one process, since memory is counted from its start.

python -m benchmarks.gpu.measure SYSTEM MODEL FOLDER             time and memory, one line of JSON
python -m benchmarks.gpu.measure SYSTEM MODEL FOLDER --profile   milliseconds by kind of kernel

SYSTEM is namedmesh, or jax- or torch- and the kind of attention. FOLDER has the Artifacts that
benchmarks.gpu.export wrote; compiled programs are kept in FOLDER/cache, so that the next process
compiles in less time. TensorFlow is not needed.
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
import time
from typing import Any

from benchmarks.gpu import llama
from benchmarks.gpu.llama import Llama
from benchmarks.gpu.models import ALL_MODELS, PEAK_FLOPS, count_flops
from benchmarks.gpu.runner import Runner
from benchmarks.gpu.systems import ALL_SYSTEMS, load_system

NO_COMMAND_BUFFERS = "--xla_gpu_enable_command_buffer="
WARM_UP, BLOCKED, PIPED, PROFILED = 4, 30, 12, 3  # steps


def set_environment(system: str, model: str, folder: pathlib.Path, profile: bool) -> None:
    """Set what jax and torch read when they start.

    cuDNN's dropout aborts in a command buffer, and kernels that one launches have no names in a
    profile. Everything else is measured with jax's own defaults.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.95")
    caches = folder.resolve() / "cache"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(caches / "jax"))
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(caches / "torch"))
    drops = not isinstance(ALL_MODELS[model], Llama)
    if profile or (system == "jax-cudnn" and drops):
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} {NO_COMMAND_BUFFERS}".strip()


def measure(runner: Runner, model: str) -> dict[str, Any]:
    """Time steps: blocked, each waited for and its loss fetched, and piped, waited for at once."""
    losses = []

    def step() -> None:
        result = runner.run()
        runner.wait(result)
        losses.append(float(result[0]["loss"]))

    for _ in range(WARM_UP):
        step()
    times = []
    for _ in range(BLOCKED):
        start = time.perf_counter()
        step()
        times.append((time.perf_counter() - start) * 1e3)
    start = time.perf_counter()
    for _ in range(PIPED):
        result = runner.run()
    runner.wait(result)
    piped = (time.perf_counter() - start) * 1e3 / PIPED
    losses.append(float(result[0]["loss"]))
    assert all(map(math.isfinite, losses)), losses
    one, ms = ALL_MODELS[model], statistics.median(times)
    flops, peak = {"flops": count_flops(one)}, runner.peak_bytes()
    if isinstance(one, Llama):
        flops["flops_causal"] = llama.count_flops(one, causal=True)
    planned = runner.planned_bytes
    return {
        "ms": ms,
        "ms_min": min(times),
        "ms_max": max(times),
        "ms_piped": piped,
        "tokens_per_second": one.tokens / ms * 1e3,
        **{
            name.replace("flops", "mfu"): count / (ms / 1e3) / PEAK_FLOPS
            for name, count in flops.items()
        },
        "peak_gib": None if peak is None else peak / 2**30,
        "planned_gib": None if planned is None else planned / 2**30,
        "trace_seconds": runner.trace_seconds,
        "compile_seconds": runner.compile_seconds,
        "parameters": runner.parameters,
        **flops,
        "tokens": one.tokens,
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }


def profile(runner: Runner, model: str) -> dict[str, Any]:
    """Profile a few steps, and sum their kernels by kind."""
    from benchmarks.gpu.kernels import Classifier, summarize

    for _ in range(WARM_UP):
        runner.wait(runner.run())
    launches = list(runner.read_kernels(PROFILED))
    assert launches, "the trace has no kernels; is CUPTI installed?"
    return summarize(launches, Classifier(runner.text(), ALL_MODELS[model]), PROFILED)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("system", choices=ALL_SYSTEMS)
    parser.add_argument("model", choices=ALL_MODELS)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--profile", action="store_true", help="sum kernels by kind instead")
    arguments = parser.parse_args()
    system, model = arguments.system, arguments.model
    set_environment(system, model, arguments.folder, arguments.profile)
    row: dict[str, Any] = {"model": model, "system": system}
    if not _has_gpu(system) and (arguments.profile or system == "jax-cudnn"):
        row["skipped"] = "profiles and cuDNN need a GPU"
    else:
        runner = load_system(system, model, arguments.folder)
        print(f"{system} {model}: compiled in {runner.compile_seconds:.0f} s", file=sys.stderr)
        library, version = runner.version
        row |= {"device": runner.device[1], library: version, "python": platform.python_version()}
        row |= (profile if arguments.profile else measure)(runner, model)
    print(json.dumps(row))


def _has_gpu(system: str) -> bool:
    if system.startswith("torch"):
        import torch  # pyright: ignore[reportMissingImports]

        return torch.cuda.is_available()
    import jax

    return jax.devices()[0].platform == "gpu"


if __name__ == "__main__":
    main()
