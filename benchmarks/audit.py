"""Edits of compiled programs that the audit must notice.

Six programs are compiled for 8 virtual CPU devices, and their HLO is edited: collectives are
added, taken out, moved into loops and changed. Every edit must be noticed. Programs as they were
compiled, and edits that change nothing (a collective that is started and done), must not be.

python -m benchmarks.audit --json OUT
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
from absl import app, flags

import namedmesh as nm
from benchmarks import moe
from benchmarks.result import publish
from benchmarks.tampering import TAMPERINGS, Edit, Text, keep_meaning
from namedmesh.audit.audit import Audit, audit
from namedmesh.audit.hlo import parse_module

_EVERY = flags.DEFINE_integer("every", 1, "Of the edits, every so manieth.", lower_bound=1)
SIZES = moe.Sizes(group=8, seq=16, model=8, hidden=16, expert=8)


@dataclass(frozen=True)
class Case:
    """A program and where it runs."""

    program: Callable[[], nm.Program]
    mesh: nm.Mesh
    layout: str
    params: str | None = None


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


CASES = {
    "mixture of experts": Case(lambda: moe.program(SIZES), nm.Mesh(all=8), "group:all, expert:all"),
    "data parallel layers in a loop": Case(stack, nm.Mesh(data=8), "batch:data"),
    "fully sharded layers in a loop": Case(stack, nm.Mesh(data=8), "batch:data", "model:data"),
    "tensor parallel layers in a loop": Case(stack, nm.Mesh(model=8), "hidden:model"),
    "mixture of experts on two axes": Case(
        lambda: moe.program(SIZES), nm.Mesh(data=2, expert=4), "group:data+expert, expert:expert"
    ),
    "axes in another order": Case(swap, nm.Mesh(p=2, q=2, r=2), "batch:p+q+r, model:r+q"),
}


def audit_text(step: nm.Step, text: str) -> Audit:
    """Audit a text as if it were a step's compiled program."""
    artifact = step.artifact
    return audit(parse_module(text), artifact.mesh, artifact.collectives, backend="cpu")


def find_problems(step: nm.Step, edit: Edit) -> str:
    """Return the audit's verdict on an edited program: nothing, "not as planned", or "error"."""
    try:
        return "" if audit_text(step, edit.text).exact else "not as planned"
    except nm.NamedMeshError:
        return "error"


def measure(cases: Iterable[str], every: int) -> dict[str, Any]:
    """Edit programs and count what is noticed."""
    tampered: Counter[str] = Counter()
    noticed: Counter[str] = Counter()
    errors: Counter[str] = Counter()  # of the noticed: those that cannot even be read
    rows, missed, false_alarms = [], [], []
    start = time.perf_counter()
    for name in cases:
        case = CASES[name]
        step = nm.compile(
            case.program(), mesh=case.mesh, layout=case.layout, params=case.params, strict=False
        )
        text = Text(step.text, case.mesh)
        harmless = list(keep_meaning(text))
        false_alarms += [f"{name}: {edit.kind}" for edit in harmless if find_problems(step, edit)]
        edits = [edit for tampering in TAMPERINGS for edit in list(tampering(text))[::every]]
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
        "versions": {"jax": jax.__version__},
    }


def main(_: list[str]) -> None:
    """Measure and publish."""
    nm.runtime.use_cpu_devices(8)
    publish(measure(CASES, _EVERY.value))


if __name__ == "__main__":
    app.run(main)
