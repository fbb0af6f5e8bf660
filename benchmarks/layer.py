"""The time of one MoE layer step, forward and backward, on 8 virtual CPU devices.

Compares namedmesh with the same layer written by hand in JAX and, if it can be imported, in Mesh
TensorFlow.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from absl import app, flags

import namedmesh as nm
from benchmarks import moe, moe_jax, moe_mtf
from benchmarks.result import publish
from namedmesh.audit.hlo import find_collectives, parse_module

SIZES = moe.Sizes()
MESH = nm.Mesh(all=8)
RESULTS = ("y", "x", "wg", "wi", "wo")

_STEPS = flags.DEFINE_integer(
    "steps", 100, "Timed steps of each program, after some to warm up.", lower_bound=1
)


def count_collectives(text: str) -> dict[str, int]:
    """Count the collectives of each kind in a compiled module."""
    return dict(Counter(one.kind for one in find_collectives(parse_module(text), MESH)))


def time_interleaved(
    programs: dict[str, Callable[[], Any]], steps: int, warm: int = 5
) -> dict[str, np.ndarray]:
    """Time each program's steps in iterations of alternating order.

    Returns milliseconds on the clock and on the processors, by program.
    """
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for i in range(warm + steps):
        for name in list(programs) if i % 2 else reversed(programs):
            clock, processors = time.perf_counter(), time.process_time()
            jax.block_until_ready(programs[name]())
            pairs[name].append((time.perf_counter() - clock, time.process_time() - processors))
    return {name: 1e3 * np.array(timed[warm:]).T for name, timed in pairs.items()}


def compare(
    name: str, ours: Callable[[], Any], theirs: Callable[[], Any], steps: int
) -> dict[str, float]:
    """Return median times of our program and another, and their ratios: above 1 ours is slower.

    On a shared machine the ratio within each iteration and that of processor times vary less than
    the ratio of the medians.
    """
    times = time_interleaved({"namedmesh": ours, name: theirs}, steps)
    (clock, processors), (their_clock, their_processors) = times["namedmesh"], times[name]
    numbers = {
        f"ratio_to_{name}": np.median(clock) / np.median(their_clock),
        f"paired_ratio_to_{name}": np.median(clock / their_clock),
        f"processor_ratio_to_{name}": np.median(processors) / np.median(their_processors),
        "namedmesh_ms": np.median(clock),
        f"{name}_ms": np.median(their_clock),
        "namedmesh_processor_ms": np.median(processors),
        f"{name}_processor_ms": np.median(their_processors),
    }
    return {key: float(number) for key, number in numbers.items()}


def check(results: dict[str, Any], expected: Sequence[Any]) -> None:
    """Raise an AssertionError unless our results equal another program's."""
    for name, values in zip(RESULTS, expected, strict=True):
        np.testing.assert_allclose(
            results[name], values, rtol=1e-3, atol=1e-5 * np.abs(values).max(), err_msg=name
        )


def measure(steps: int) -> dict[str, Any]:
    """Check that the programs return the same, then time them with inputs on the devices."""
    step = nm.compile(moe.program(SIZES), mesh=MESH, layout="group:all, expert:all")
    random = np.random.default_rng(0)
    shape = (SIZES.group, SIZES.seq, SIZES.model)
    inputs = step.put(**{name: random.standard_normal(shape, np.float32) for name in ("x", "dy")})
    state = step.init(0)
    operands = {name: {**inputs, **state}[name] for name in ("x", "dy", "wg", "wi", "wo")}
    by_hand = moe_jax.step(SIZES, step.mesh)

    def ours() -> dict[str, Any]:
        return step(state, **inputs)[1]

    def theirs() -> Any:
        return by_hand(*operands.values())

    check(ours(), theirs())
    result = {
        **compare("jax", ours, theirs, steps),
        "steps": steps,
        "collectives": {
            "namedmesh": count_collectives(step.text),
            "jax": count_collectives(by_hand.as_text()),
        },
        "sizes": {**vars(SIZES), "capacity": SIZES.capacity},
        "versions": {"tensorflow": tf.__version__, "jax": jax.__version__},
    }
    try:
        run, results = moe_mtf.step(
            SIZES, MESH.devices, {name: np.asarray(value) for name, value in operands.items()}
        )
    except ImportError:
        return result
    check(ours(), results())
    beside = compare("mesh_tensorflow", ours, run, steps)
    return {
        **result,
        "ratio_to_mesh_tensorflow": beside["ratio_to_mesh_tensorflow"],
        "beside_mesh_tensorflow": beside,
    }


def main(_arguments: list[str]) -> None:
    """Measure and publish."""
    publish(measure(_STEPS.value))


if __name__ == "__main__":
    app.run(main)
