"""The order of ten layouts by a search's estimates, beside that of measured steps."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

import namedmesh as nm
from benchmarks.llama import Llama
from namedmesh.choice.candidate import Candidate
from namedmesh.choice.measure import measure_candidate
from namedmesh.estimates.hardware import Hardware
from namedmesh.lowering.export import export_planned
from namedmesh.runtime import Executable

LAYERS, ROUNDS, WARM = 2, 15, 2
# Eight devices, from little communication and work to much of both.
LAYOUTS = {
    "data": ("data=8", "batch:data", None),
    "fsdp": ("data=8", "batch:data", "model:data"),
    "data and tensor": ("data=4 tensor=2", "batch:data, head:tensor, hidden:tensor", None),
    "tensor and data": ("data=2 tensor=4", "batch:data, head:tensor, hidden:tensor", None),
    "tensor": ("tensor=8", "head:tensor, hidden:tensor", None),
    "sequence": ("data=2 tensor=4", "batch:data, head:tensor, hidden:tensor, row:tensor", None),
    "context": ("context=8", "row:context, seq:context", None),
    "data and context": ("data=4 context=2", "batch:data, row:context, seq:context", None),
    "feed-forward alone": ("tensor=8", "hidden:tensor", None),
    "attention alone": ("tensor=8", "head:tensor", None),
}


def trace_stack() -> nm.Program:
    """One step of training a small stack."""
    model, L = Llama.of(16, 128, 256, 1024, 8, 32), nm.Dimension("layer", LAYERS)

    def train(x: nm.Tensor) -> nm.Tensor:
        y, _ = nm.scan(lambda x, _: (model.layer(x), None), x, over=L, stack=True)
        loss = nm.mean(nm.square(y))
        grads = nm.grad(loss)
        for name, weight in nm.parameters().items():
            nm.assign(weight, weight - grads[name] * 0.1)
        return loss

    return nm.trace(train, x=nm.spec([model.B, model.ROW, model.M]))


def rank_correlation(one: list[float], other: list[float]) -> float:
    """Spearman's: the correlation of ranks."""
    ranks = [np.argsort(np.argsort(values)) for values in (one, other)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def measure_order(hardware: str = "cpu") -> dict[str, Any]:
    """Estimates and runs every layout, in turn so that a busy machine slows them alike."""
    program = trace_stack()
    data = {"x": np.random.default_rng(0).normal(size=program.inputs["x"].shape.sizes)}
    data = {name: values.astype("float32") for name, values in data.items()}
    runs, rows = {}, {}
    for name, (mesh, layout, params) in LAYOUTS.items():
        candidate = Candidate(
            0, nm.Mesh.parse(mesh), nm.Layout(layout), None if params is None else nm.Layout(params)
        )
        takes = measure_candidate(program, candidate, Hardware.parse(hardware))
        plan = nm.plan(program, candidate.mesh, layout, params)
        executable = Executable(export_planned(plan))
        runs[name] = executable, executable.init(0)
        rows[name] = {"mesh": mesh, "layout": layout, "params": params, "estimate": takes.seconds}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(WARM + ROUNDS):
        for name, (executable, state) in runs.items():
            start = time.perf_counter()
            state, _ = executable(state, **data)
            if turn >= WARM:
                seconds[name].append(time.perf_counter() - start)
            runs[name] = executable, state
    for name, row in rows.items():
        row["measured"] = statistics.median(seconds[name])
    return {
        "layouts": rows,
        "rank_correlation": rank_correlation(
            [row["estimate"] for row in rows.values()], [row["measured"] for row in rows.values()]
        ),
        "rounds": ROUNDS,
    }
