"""Collectives of a Llama-style layer in the set-ups people use, beside the least that each needs.

For every row of `llama_plan_cases`: the bytes that one device sends for one layer, forward and
backward (half of the difference between stacks of four and of two layers), against the minimum by
the counts of Megatron-LM and FSDP; and whether the compiler made what was planned, by GSPMD and by
Shardy, on 8 virtual CPU devices or fewer. Rows of `step_plan_cases` are whole steps, counted so.

python -m benchmarks.llama_plans --jobs 16 --json OUT

With --rows, rows whose names match are measured alone, and put into the file beside the others.
"""

from __future__ import annotations

import json
import multiprocessing
import pathlib
import re
import warnings
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

from absl import app, flags

import namedmesh as nm
from benchmarks.llama import Llama
from benchmarks.llama_plan_cases import CASES, MICRO, STAGE, TOKENS, Case
from benchmarks.result import publish
from benchmarks.step_plan_cases import STEPS
from namedmesh.lowering.export import export_planned
from namedmesh.runtime import Executable, use_cpu_devices

_COMPILE = flags.DEFINE_bool("compile", True, "Whether to compile what is planned.")
_JOBS = flags.DEFINE_integer("jobs", 1, "The number of processes that measure rows.")
_ROWS = flags.DEFINE_string("rows", "", "A regular expression: rows to measure, all by default.")
PARTITIONERS = ("gspmd", "shardy")


ROWS = CASES | STEPS


def trace_stack(case: Case, layers: int) -> nm.Program:
    """Trace loss and gradients of a stack, of one batch or added up over microbatches."""
    return _Stack(case, layers).trace() if case.step is None else case.step()


class _Stack:
    """The program of a case."""

    def __init__(self, case: Case, layers: int):
        self.case, self.llama = case, replace(Llama.of(dtype=case.dtype), repeated=case.repeated)
        self.L = nm.Dimension("layer", layers)

    def trace(self) -> nm.Program:
        """Trace what the case asks for."""
        case, llama = self.case, self.llama
        specs = {"x": nm.spec([llama.B, llama.ROW, llama.M])}
        if case.table:
            specs = {"x": nm.spec([llama.B, llama.S], "int32")}
        if case.stages:
            B = llama.B.resized(llama.B.size // MICRO.size)
            self.llama = llama = Llama.of(batch=B.size, dtype=case.dtype)
            return nm.trace(self.loss_and_gradients, x=nm.spec([MICRO, B, llama.ROW, llama.M]))
        if not case.micro:
            return nm.trace(self.loss_and_gradients, **specs)
        rows = {name: nm.spec([MICRO, *one.shape], one.dtype) for name, one in specs.items()}
        if case.micro == "outside":
            return nm.trace(self.accumulate_losses, **rows)
        parameters = nm.trace(self.loss_and_gradients, **specs).parameters
        self.shapes = {name: variable.shape for name, variable in parameters.items()}
        return nm.trace(self.accumulate_gradients, **rows)

    def apply(self, x: nm.Tensor) -> nm.Tensor:
        """Apply the layers, or look tokens up and project them back."""
        case, llama = self.case, self.llama
        if case.table:
            table = llama.weight("table", [TOKENS, llama.M])
            return nm.einsum([nm.take(table, TOKENS, x), table], [llama.B, llama.S, TOKENS])
        second = llama.mix_experts if case.experts else llama.feed_forward
        x = nm.cast(x, case.dtype)

        def iteration(x: nm.Tensor, _: None = None) -> tuple[nm.Tensor, None]:
            return llama.parallel_layer(x) if case.parallel else llama.layer(x, second), None

        def stack(x: nm.Tensor) -> nm.Tensor:
            if case.unrolled:
                for i in range(self.L.size):
                    with nm.scope(f"layer{i}"):
                        x = llama.layer(x, second)
                return x
            remat = case.remat if case.micro != "outside" else "none"
            return nm.scan(iteration, x, over=self.L, stack=True, remat=remat)[0]

        return nm.pipeline(stack, x, stages=STAGE, batches=MICRO) if case.stages else stack(x)

    def loss(self, x: nm.Tensor) -> nm.Tensor:
        """Return the loss of a batch."""
        y = nm.cast(self.apply(x), "float32")
        return nm.sum(y * y) * (1 / y.shape.elements)

    def loss_and_gradients(self, x: nm.Tensor) -> tuple[nm.Tensor, dict[str, nm.Tensor]]:
        """Return the loss of a batch and its gradients."""
        loss = self.loss(x)
        return loss, nm.grad(loss)

    def accumulate_gradients(self, x: nm.Tensor) -> Any:
        """Add up losses and gradients in a loop."""

        def iteration(sums: Any, x: nm.Tensor) -> tuple[Any, None]:
            total, gradients = sums
            loss, more = self.loss_and_gradients(x)
            return (total + loss, {name: gradients[name] + more[name] for name in more}), None

        zeros = {name: nm.zeros(shape) for name, shape in self.shapes.items()}
        return nm.scan(iteration, (0.0, zeros), x, over=MICRO, gather_once=self.case.gather_once)[0]

    def accumulate_losses(self, x: nm.Tensor) -> Any:
        """Add up losses in a loop, and differentiate that."""
        total, _ = nm.scan(
            lambda total, x: (total + self.loss(x), None),
            0.0,
            x,
            over=MICRO,
            remat=self.case.remat,
            gather_once=self.case.gather_once,
        )
        return total, nm.grad(total)


def plan_case(case: Case, layers: int) -> nm.Plan:
    """Plan a stack of so many layers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # small weights leave axes idle
        mesh = nm.Mesh.parse(case.mesh)
        return nm.plan(trace_stack(case, layers), mesh, case.layout, case.params)


def count_bytes(case: Case) -> float:
    """Return the bytes that one device sends for a layer; for a table or step, all of them."""
    if case.table or case.step is not None:
        return plan_case(case, 1).total_wire_bytes()
    two, four = plan_case(case, 2), plan_case(case, 4)
    return (four.total_wire_bytes() - two.total_wire_bytes()) / 2


def measure_row(name: str, compiles: bool) -> dict[str, Any]:
    """Count what is planned for a layer or step, and compile it: of layers a stack of two."""
    case = ROWS[name]
    sent = count_bytes(case)
    row = {
        "layout": case.layout,
        "params": case.params,
        "mesh": case.mesh,
        "dtype": case.dtype,
        "wire_bytes": sent,
        "minimum": case.minimum,
        "wire_bytes_to_minimum": sent / case.minimum if case.minimum else 1.0 + sent,
        "why": case.why,
    }
    if compiles:
        plan = plan_case(case, 2)
        planned: Counter[str] = Counter()
        for one in plan.collectives:
            planned[one.kind] += one.times
        audits = [Executable(export_planned(plan), partitioner=one).audit for one in PARTITIONERS]
        row["planned"] = dict(sorted(planned.items()))
        row["as_planned"] = all(audit.exact for audit in audits)
        row["rules"] = sorted({rule for audit in audits for rule in audit.rules})
    return row


def start_worker() -> None:
    """Give a process its devices."""
    use_cpu_devices(8)


def main(_: list[str]) -> None:
    """Measure every row, and join it with what the file has where only some are measured."""
    names = [name for name in ROWS if re.search(_ROWS.value, name)]
    file = pathlib.Path(flags.FLAGS.json or "")
    rows = json.loads(file.read_text()) if _ROWS.value and file.is_file() else {}
    context = multiprocessing.get_context("spawn")
    with context.Pool(_JOBS.value, start_worker, maxtasksperchild=8) as pool:
        measured = pool.imap(partial(measure_row, compiles=_COMPILE.value), names)
        for name, row in zip(names, measured, strict=True):
            print(f"{name}: {row['wire_bytes_to_minimum']:.4f}", flush=True)
            rows[name] = row
    publish({name: rows[name] for name in ROWS if name in rows})


if __name__ == "__main__":
    app.run(main)
