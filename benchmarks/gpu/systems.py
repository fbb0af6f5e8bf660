"""The systems that are measured, each compiled and ready to step: namedmesh, and JAX by hand.

Neither needs TensorFlow: namedmesh runs an Artifact that benchmarks.gpu.export wrote.
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from benchmarks.gpu.models import MODELS, make_batch


@dataclass(frozen=True)
class Runner:
    """A train step with its state, which it keeps from call to call.

    Attributes:
        run: Takes a step; returns its metrics, and the arrays of the new state to wait for.
        text: Returns the compiled program, optimized HLO.
        trace_seconds: The time to trace and lower it; an Artifact was lowered before.
        compile_seconds: The time to compile it.
        planned_bytes: The memory it takes by the compiler's own account.
        parameters: The number of weights.
    """

    run: Callable[[], tuple[dict[str, Any], list[jax.Array]]]
    text: Callable[[], str]
    trace_seconds: float
    compile_seconds: float
    planned_bytes: int
    parameters: int


def load_system(system: str, model: str, folder: pathlib.Path) -> Runner:
    """Compile a model by one of the systems."""
    if system == "namedmesh":
        return load_namedmesh(model, folder)
    return load_jax(model, system.removeprefix("jax-"))


def load_namedmesh(model: str, folder: pathlib.Path) -> Runner:
    """Compile the Artifact of a model."""
    from namedmesh.runtime import Artifact, Executable

    artifact = Artifact.load(folder / f"{model}.nmesh")
    executable = Executable(artifact, strict=False)
    batch = executable.put(**make_batch(MODELS[model]), seed=0)
    del batch["seed"]
    held, steps = [executable.init(seed=0)], 0

    def run() -> tuple[dict[str, Any], list[jax.Array]]:
        nonlocal steps
        steps += 1
        held[0], metrics = executable(held[0], **batch, seed=steps)
        return metrics, list(held[0].arrays.values())

    return Runner(
        run,
        lambda: executable.text,
        trace_seconds=0.0,
        compile_seconds=executable.report.compile_seconds,
        planned_bytes=executable.report.peak_bytes,
        parameters=sum(int(np.prod(one.sizes)) for one in artifact.variables if one.trainable),
    )


def load_jax(model: str, attention: str) -> Runner:
    """Compile a model by hand in JAX, with one kind of attention."""
    from benchmarks.gpu.jax_model import make_step

    init, step = make_step(MODELS[model], attention)
    weights, state = jax.jit(init)()
    parameters = sum(weight.size for weight in jax.tree.leaves(weights))
    batch = jax.device_put(make_batch(MODELS[model]))
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

    def run() -> tuple[dict[str, Any], list[jax.Array]]:
        nonlocal steps
        steps += 1
        held[0], held[1], metrics = compiled(held[0], held[1], batch, np.int32(steps))
        return metrics, jax.tree.leaves(held)

    return Runner(
        run,
        lambda: compiled.as_text() or "",
        trace_seconds=traced - start,
        compile_seconds=done - traced,
        planned_bytes=arguments + results + memory.temp_size_in_bytes - memory.alias_size_in_bytes,
        parameters=parameters,
    )
