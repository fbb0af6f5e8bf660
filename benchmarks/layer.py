"""Time of one MoE layer step, forward and backward, on 8 virtual CPU devices.

namedmesh against the same written by hand in JAX and, where mesh_tensorflow can be imported, in that.
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
from namedmesh.hlo import find_collectives, parse_module

SIZES = moe.Sizes()
MESH = nm.Mesh(all=8)
RESULTS = ("y", "x", "wg", "wi", "wo")

_STEPS = flags.DEFINE_integer(
    "steps", 100, "Timed steps of each program, after some to warm up.", lower_bound=1
)


def counted(text: str) -> dict[str, int]:
    """How many collectives of each kind a compiled module has."""
    return dict(Counter(one.kind for one in find_collectives(parse_module(text), MESH)))


def interleaved(
    programs: dict[str, Callable[[], Any]], steps: int, warm: int = 5
) -> dict[str, np.ndarray]:
    """Milliseconds on the clock and on the processors of each program's steps, taken in turns of alternating order."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for i in range(warm + steps):
        for name in list(programs) if i % 2 else reversed(programs):
            clock, processors = time.perf_counter(), time.process_time()
            jax.block_until_ready(programs[name]())
            taken[name].append((time.perf_counter() - clock, time.process_time() - processors))
    return {name: 1e3 * np.array(pairs[warm:]).T for name, pairs in taken.items()}


def compared(
    name: str, ours: Callable[[], Any], theirs: Callable[[], Any], steps: int
) -> dict[str, float]:
    """Median times of our program and another, and their ratios: above 1 we are slower.

    On a shared machine the ratios of each turn's pair and of processor time are steadier than that of the medians.
    """
    times = interleaved({"namedmesh": ours, name: theirs}, steps)
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


def check(made: dict[str, Any], wanted: Sequence[Any]) -> None:
    """Raises an AssertionError unless our results are another program's."""
    for name, values in zip(RESULTS, wanted, strict=True):
        np.testing.assert_allclose(
            made[name], values, rtol=1e-3, atol=1e-5 * np.abs(values).max(), err_msg=name
        )


def measure(steps: int) -> dict[str, Any]:
    """Checks that the programs return the same, then times them, inputs on the devices already."""
    step = nm.compile(moe.program(SIZES), mesh=MESH, layout="group:all, expert:all")
    random = np.random.default_rng(0)
    shape = (SIZES.group, SIZES.seq, SIZES.model)
    inputs = step.put(**{name: random.standard_normal(shape, np.float32) for name in ("x", "dy")})
    state = step.init(0)
    given = {name: {**inputs, **state}[name] for name in ("x", "dy", "wg", "wi", "wo")}
    by_hand = moe_jax.step(SIZES, step.mesh)

    def ours() -> dict[str, Any]:
        return step(state, **inputs)[1]

    def theirs() -> Any:
        return by_hand(*given.values())

    check(ours(), theirs())
    result = {
        **compared("jax", ours, theirs, steps),
        "steps": steps,
        "collectives": {
            "namedmesh": counted(step.text),
            "jax": counted(by_hand.as_text()),
        },
        "sizes": {**vars(SIZES), "capacity": SIZES.capacity},
        "versions": {"tensorflow": tf.__version__, "jax": jax.__version__},
    }
    try:
        run, results = moe_mtf.step(
            SIZES, MESH.devices, {name: np.asarray(value) for name, value in given.items()}
        )
    except ImportError:
        return result
    check(ours(), results())
    beside = compared("mesh_tensorflow", ours, run, steps)
    return {
        **result,
        "ratio_to_mesh_tensorflow": beside["ratio_to_mesh_tensorflow"],
        "beside_mesh_tensorflow": beside,
    }


def main(_arguments: list[str]) -> None:
    """Measures and publishes."""
    publish(measure(_STEPS.value))


if __name__ == "__main__":
    app.run(main)
