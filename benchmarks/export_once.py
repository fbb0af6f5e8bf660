"""Times one export, in a process of its own: `python export_once.py SYSTEM MODEL`.

SYSTEM is namedmesh, whichever PYTHONPATH finds, or jax. What a process does once is done before.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

GROUPS = {"moe_2048e_36l": (2048, 1024)}  # rows of a batch, and tokens of each; otherwise:
SMALL = (8, 64)


def export_namedmesh(name: str) -> int:
    """Trace, plan and lower a train step and its initializers; return the bytes of StableHLO."""
    import namedmesh as nm
    from namedmesh.layers import Adafactor, Transformer, batch_of, config, inverse_square_root

    rows, length = GROUPS.get(name, SMALL)
    model = Transformer(config(name), group=rows, source=length, target=length)

    def step(batch, seed):
        loss, metrics = model.loss(batch_of(batch), nm.random.key_from_seed(seed))
        optimizer = Adafactor(inverse_square_root(1.0, after=2000), unfactored=[model.E])
        optimizer.apply(nm.grad(loss))
        return metrics

    program = nm.trace(step, batch=model.specs(), seed=nm.spec([], "int32"))
    mesh = nm.Mesh(all=max(rows, 8))
    artifact = nm.export(program, mesh, "group:all, expert:all")
    return len(artifact.step_module) + len(artifact.init_module)


def export_jax(name: str) -> int:
    """Export the same by hand-written JAX, for one device; return the bytes of StableHLO."""
    import jax
    import numpy as np
    from jax import export

    from benchmarks.gpu.jax_model import make_step
    from benchmarks.gpu.models import Model, make_batch
    from namedmesh.layers import config

    rows, length = GROUPS.get(name, SMALL)
    options = vars(config(name))
    sizes = {key: options[key] for key in Model.__dataclass_fields__ if key in options}
    model = Model(**sizes, rows=rows, source=length, target=length)
    init, step = make_step(model, looped=True)
    weights, state = jax.eval_shape(init)
    batch = jax.eval_shape(lambda: make_batch(model))
    modules = [
        export.export(jax.jit(init))(),
        export.export(jax.jit(step))(weights, state, batch, np.int32(0)),
    ]
    return sum(len(module.mlir_module_serialized) for module in modules)


def warm_up(system: str) -> None:
    """Have a system do what it does once in every process."""
    if system == "jax":
        import jax
        from jax import export

        export.export(jax.jit(lambda x: x + 1))(1.0)
        return
    import namedmesh as nm

    (B,) = nm.dims("batch=8")
    nm.export(nm.trace(lambda x: nm.exp(x), x=nm.spec([B])), nm.Mesh(data=8), "batch:data")


def main() -> None:
    """Time one export, and print one line of JSON."""
    system, name = sys.argv[1:]
    run: Callable[[str], Any] = export_jax if system == "jax" else export_namedmesh
    warm_up(system)
    start = time.perf_counter()
    size = run(name)
    print(json.dumps({"seconds": time.perf_counter() - start, "bytes": size}))


if __name__ == "__main__":
    main()
