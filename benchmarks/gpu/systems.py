"""The systems that are measured, each compiled and ready to step: namedmesh, JAX and PyTorch.

None needs TensorFlow: namedmesh runs an Artifact that benchmarks.gpu.export wrote.
"""

from __future__ import annotations

import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.gpu.kernels import Launch, read_trace
from benchmarks.gpu.llama import Llama
from benchmarks.gpu.models import ALL_MODELS, MODELS, Model, make_batch
from benchmarks.gpu.runner import Runner

SYSTEMS = ("jax-plain", "jax-cudnn", "namedmesh")
# Of decoder-only models, whose rows are so long that plain attention would not fit.
LLAMA_SYSTEMS = ("namedmesh", "jax-cudnn", "torch-cudnn", "torch-flash")
TUNED_SYSTEMS = ("torch-cudnn-tuned", "torch-flash-tuned")
ALL_SYSTEMS = (*SYSTEMS, *(one for one in LLAMA_SYSTEMS if one not in SYSTEMS), *TUNED_SYSTEMS)


def choose_systems(model: str) -> tuple[str, ...]:
    """Return the systems that a model is measured by."""
    return SYSTEMS if model in MODELS else LLAMA_SYSTEMS


def load_system(system: str, model: str, folder: pathlib.Path) -> Runner:
    """Compile a model by one of the systems."""
    library, _, kind = system.partition("-")
    if library == "namedmesh":
        return load_namedmesh(model, folder)
    one = ALL_MODELS[model]
    if library == "jax":
        return load_jax(one, kind)
    assert isinstance(one, Llama), f"{model} is not written in torch"
    from benchmarks.gpu.torch_llama import load_torch

    return load_torch(one, kind)


def load_namedmesh(model: str, folder: pathlib.Path) -> Runner:
    """Compile the Artifact of a model."""
    from namedmesh.runtime import Artifact, Executable

    artifact = Artifact.load(folder / f"{model}.nmesh")
    executable = Executable(artifact, strict=False)
    seeded = "seed" in executable.inputs  # where there is dropout
    batch = executable.put(**make_batch(ALL_MODELS[model]), **({"seed": 0} if seeded else {}))
    batch.pop("seed", None)
    held, steps = [executable.init(seed=0)], 0

    def run() -> tuple[dict[str, Any], Any]:
        nonlocal steps
        steps += 1
        seed = {"seed": steps} if seeded else {}
        held[0], metrics = executable(held[0], **batch, **seed)
        return metrics, list(held[0].arrays.values())

    return _runner_of_jax(
        run,
        lambda: executable.text,
        trace_seconds=0.0,
        compile_seconds=executable.report.compile_seconds,
        planned_bytes=executable.report.peak_bytes,
        parameters=sum(int(np.prod(one.sizes)) for one in artifact.variables if one.trainable),
    )


def load_jax(model: Model | Llama, attention: str) -> Runner:
    """Compile a model by hand in JAX, with one kind of attention."""
    import jax

    if isinstance(model, Llama):
        from benchmarks.gpu import jax_llama

        init, step = jax_llama.make_step(model, attention)
    else:
        from benchmarks.gpu import jax_model

        init, step = jax_model.make_step(model, attention)
        init = jax.jit(init)
    weights, state = init()
    parameters = sum(weight.size for weight in jax.tree.leaves(weights))
    batch = jax.device_put(make_batch(model))
    start = time.perf_counter()
    lowered = jax.jit(step, donate_argnums=(0, 1)).lower(weights, state, batch, np.int32(0))
    traced = time.perf_counter()
    compiled = lowered.compile()
    done = time.perf_counter()
    memory = compiled.memory_analysis()
    assert memory is not None, "CPU and GPU compilers both count memory"
    arguments, results = memory.argument_size_in_bytes, memory.output_size_in_bytes
    held, steps = [weights, state], 0
    del weights, state  # so that the first step can use them up

    def run() -> tuple[dict[str, Any], Any]:
        nonlocal steps
        steps += 1
        held[0], held[1], metrics = compiled(held[0], held[1], batch, np.int32(steps))
        return metrics, jax.tree.leaves(held)

    return _runner_of_jax(
        run,
        lambda: compiled.as_text() or "",
        trace_seconds=traced - start,
        compile_seconds=done - traced,
        planned_bytes=arguments + results + memory.temp_size_in_bytes - memory.alias_size_in_bytes,
        parameters=parameters,
    )


def _runner_of_jax(
    run: Callable[[], tuple[dict[str, Any], Any]], text: Callable[[], str], **numbers: Any
) -> Runner:
    """Return the runner of a step whose arrays are jax's."""
    import jax

    device = jax.devices()[0]

    def read_kernels(steps: int) -> Iterator[Launch]:
        with tempfile.TemporaryDirectory() as trace:
            with jax.profiler.trace(trace):
                for _ in range(steps):
                    result = run()
                jax.block_until_ready(result)
            yield from read_trace(pathlib.Path(trace))

    return Runner(
        run,
        wait=jax.block_until_ready,
        text=text,
        read_kernels=read_kernels,
        peak_bytes=lambda: (device.memory_stats() or {}).get("peak_bytes_in_use"),
        device=(device.platform, device.device_kind),
        version=("jax", jax.__version__),
        **numbers,
    )
