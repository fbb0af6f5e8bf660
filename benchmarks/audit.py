"""Edits of compiled programs that the audit must notice.

Eight programs are compiled for 8 virtual CPU devices, and their HLO is edited: collectives are
added, taken out, moved into loops and changed, down to what they reduce by and the order of their
devices. Where a plan has a ReduceScatter, which CPUs make as an AllReduce and a slice, the HLO is
edited once more with the instruction of other backends. Every edit must be noticed. Programs as
they were compiled, and edits that change nothing (a collective that is started and done, names of
equal collectives exchanged), must not be.

python -m benchmarks.audit --json OUT
python -m benchmarks.audit --target h100:1x8 --json OUT

With a target the same programs are compiled for GPUs that are not here, most collectives of which
are started and done, combined or concatenated, and two of them with options of the compiler too.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from absl import app, flags

import namedmesh as nm
from benchmarks import moe
from benchmarks.result import publish
from benchmarks.tampering import TAMPERINGS, Edit, Text, keep_meaning
from namedmesh.aot.absent_devices import devices_of
from namedmesh.aot.toolkit import toolkit_options
from namedmesh.audit.audit import Audit, audit
from namedmesh.audit.hlo import parse_module
from namedmesh.dims.hop import list_groups
from namedmesh.hardware.topology import Target
from namedmesh.processes.devices import arrange_devices
from namedmesh.runtime.compiling import compile_lowered, lower_step

_EVERY = flags.DEFINE_integer("every", 1, "Of the edits, every so manieth.", lower_bound=1)
_TARGET = flags.DEFINE_string("target", "", "GPUs to compile for, such as h100:1x8.")
SIZES = moe.Sizes(group=8, seq=16, model=8, hidden=16, expert=8)


@dataclass(frozen=True)
class Case:
    """A program and where it runs."""

    program: Callable[[], nm.Program]
    mesh: nm.Mesh
    layout: str
    params: str | None = None


@dataclass(frozen=True)
class Compiled:
    """A program's plan, and the text that was made of it."""

    artifact: nm.runtime.Artifact
    text: str
    backend: str


def compile_case(case: Case, target: str = "", options: Mapping[str, str | bool] = {}) -> Compiled:
    """Compile a program for the devices here, or for a target."""
    program, where = (
        case.program(),
        {"mesh": case.mesh, "layout": case.layout, "params": case.params},
    )
    if not target:
        step = nm.compile(program, **where, strict=False)
        return Compiled(step.artifact, step.text, "cpu")
    artifact, gpus = nm.export(program, **where), Target.parse(target)
    absent = devices_of(gpus)
    lowered = lower_step(artifact, arrange_devices(absent, artifact.mesh))
    compiled = compile_lowered(lowered, {**toolkit_options(absent), **options})
    return Compiled(artifact, compiled.as_text() or "", gpus.platform)


def stack() -> nm.Program:
    """Trace a train step of residual layers in a loop."""
    B, M, H, L = nm.dims("batch=16 model=16 hidden=32 layer=5")

    def layer(h: nm.Tensor, weights: Any) -> tuple[nm.Tensor, None]:
        inner = nm.relu(nm.einsum([h, weights[0]], [B, H]))
        return h + nm.einsum([inner, weights[1]], [B, M]), None

    def step(x: nm.Tensor) -> nm.Tensor:
        weights = (nm.param("wi", [L, M, H]), nm.param("wo", [L, H, M]))
        y, _ = nm.scan(layer, x, weights, over=L, remat="full")
        loss = nm.mean(nm.square(y))
        grads = nm.grad(loss)
        for name, weight in nm.parameters().items():
            nm.assign(weight, weight - grads[name] * 0.1)
        return loss

    return nm.trace(step, x=nm.spec([B, M]))


def swap() -> nm.Program:
    """Return a dimension whose axes change their order, there and back."""
    B, M = nm.dims("batch=8 model=12")
    x = nm.spec([B, M], whole=[M])
    return nm.trace(lambda x: nm.reshard(nm.reshard(x, M) * 2.0, B), x=x)


def reduce_all() -> nm.Program:
    """Trace reductions of every kind, of numbers and of bools, and softmax."""
    B, M = nm.dims("batch=16 model=24")

    def step(x: nm.Tensor) -> Any:
        positive = x > 0.0
        bools = (nm.any(positive, over=B), nm.all(positive, over=B))
        whole = nm.cast(x, "int32")
        numbers = [kind(whole, over=B) for kind in (nm.max, nm.min, nm.sum, nm.prod)]
        return *bools, *numbers, nm.max(x, over=B), nm.prod(x, over=B), nm.softmax(x, over=B)

    return nm.trace(step, x=nm.spec([B, M]))


def gather_in_order() -> nm.Program:
    """Trace a train step whose tensors move along several axes: gathers, AllToAlls, sums."""
    B, M, H = nm.dims("batch=16 model=16 hidden=16")

    def step(x: nm.Tensor) -> nm.Tensor:
        w = nm.param("w", [M, H])
        y = nm.einsum([x, w], [B, H])
        loss = nm.sum(y * nm.reshard(nm.tanh(nm.reshard(y, H)), B))
        nm.assign(w, w - nm.grad(loss)["w"] * 0.1)
        return nm.replicate(y, B)

    return nm.trace(step, x=nm.spec([B, M]))


# Of the GPU compiler: loops in whose bodies two iterations are, and loops that fetch ahead.
OPTIONS = (
    {"xla_gpu_enable_while_loop_double_buffering": True},
    {"xla_gpu_enable_pipelined_all_gather": True},
)
CASES = {
    "mixture of experts": Case(lambda: moe.program(SIZES), nm.Mesh(all=8), "group:all, expert:all"),
    "data parallel layers in a loop": Case(stack, nm.Mesh(data=8), "batch:data"),
    "fully sharded layers in a loop": Case(stack, nm.Mesh(data=8), "batch:data", "model:data"),
    "tensor parallel layers in a loop": Case(stack, nm.Mesh(model=8), "hidden:model"),
    "mixture of experts on two axes": Case(
        lambda: moe.program(SIZES), nm.Mesh(data=2, expert=4), "group:data+expert, expert:expert"
    ),
    "reductions of every kind": Case(reduce_all, nm.Mesh(data=8), "batch:data"),
    "moves along several axes": Case(
        gather_in_order, nm.Mesh(p=2, q=4), "batch:q+p, hidden:q+p", "model:q+p"
    ),
    "axes in another order": Case(swap, nm.Mesh(p=2, q=2, r=2), "batch:p+q+r, model:r+q"),
}


def audit_text(step: Compiled | nm.Step, text: str) -> Audit:
    """Audit a text as if it were a step's compiled program."""
    artifact, backend = step.artifact, step.backend if isinstance(step, Compiled) else "cpu"
    return audit(
        *(parse_module(text), artifact.mesh, artifact.collectives),
        backend=backend, ops=artifact.ops,
    )  # fmt: skip


def find_problems(step: Compiled, edit: Edit) -> str:
    """Return the audit's verdict on an edited program: nothing, "not as planned", or "error"."""
    try:
        return "" if audit_text(step, edit.text).exact else "not as planned"
    except nm.NamedMeshError:
        return "error"


def write_scatters(step: Compiled, mesh: nm.Mesh) -> str:
    """Return a step's HLO with every planned ReduceScatter as one instruction."""
    lines = step.text.split("\n")
    planned = {
        one.name: plan
        for plan, one in audit_text(step, step.text).matched
        if (plan.kind, one.kind, one.combined) == ("ReduceScatter", "AllReduce", False)
    }
    for site in Text(step.text, mesh).sites:
        plan = planned.get(site.match["name"])
        if plan is not None:
            shard = f"{site.tensors[0][1]}[{plan.elements // plan.devices}]{{0}}"
            groups = ",".join(
                "{" + ",".join(map(str, group)) + "}"
                for group in list_groups(plan.order, mesh).tolist()
            )
            attributes = f", replica_groups={{{groups}}}, dimensions={{0}}"
            attributes += site.match["attributes"].partition("use_global_device_ids=true")[2]
            lines[site.number] = site.line(
                type=shard, opcode="reduce-scatter", attributes=attributes
            )
    return "\n".join(lines)


def measure(cases: Iterable[str], every: int, target: str = "") -> dict[str, Any]:
    """Edit programs and count what is noticed."""
    tampered: Counter[str] = Counter()
    noticed: Counter[str] = Counter()
    errors: Counter[str] = Counter()  # of the noticed: those that cannot even be read
    rows, missed, false_alarms = [], [], []
    start = time.perf_counter()
    forms = [(name, {}) for name in cases]
    forms += [("fully sharded layers in a loop", options) for options in OPTIONS if target]
    for name, options in forms:
        case = CASES[name]
        step = compile_case(case, target, options)
        written = dict.fromkeys([step.text, write_scatters(step, case.mesh)])
        name = ", ".join([name, *options])
        texts = [Text(text, case.mesh) for text in written]
        harmless = [edit for text in texts for edit in keep_meaning(text)]
        false_alarms += [f"{name}: {edit.kind}" for edit in harmless if find_problems(step, edit)]
        edits = [
            edit
            for text, tampering in itertools.product(texts, TAMPERINGS)
            for edit in list(tampering(text))[::every]
        ]
        for edit in edits:
            problems = find_problems(step, edit)
            tampered[edit.kind] += 1
            noticed[edit.kind] += bool(problems)
            errors[edit.kind] += problems == "error"
            if not problems:
                missed.append(f"{name}: {edit.kind}")
        rows.append(
            {
                "program": name,
                "collectives": len(step.artifact.collectives),
                "harmless": len(harmless),
                "tampered": len(edits),
            }
        )
    return {
        "tampered": tampered.total(),
        "noticed": noticed.total(),
        "false_alarms": len(false_alarms),
        "missed": dict(Counter(missed)),
        "alarmed_at": dict(Counter(false_alarms)),
        "by_kind": {
            kind: {"tampered": count, "noticed": noticed[kind], "errors": errors[kind]}
            for kind, count in tampered.items()
        },
        "programs": rows,
        "seconds": time.perf_counter() - start,
        "target": target or "cpu:8",
        "versions": {"jax": jax.__version__},
    }


def main(_: list[str]) -> None:
    """Measure and publish."""
    nm.runtime.use_cpu_devices(8)
    publish(measure(CASES, _EVERY.value, _TARGET.value))


if __name__ == "__main__":
    app.run(main)
