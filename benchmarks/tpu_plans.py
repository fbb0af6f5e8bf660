"""Plans of mixtures on meshes of several axes, checked against what TPU v3's compiler makes.

python -m benchmarks.tpu_plans export FOLDER [NAME ...]                 lowers the train steps
python -m benchmarks.tpu_plans compile FOLDER [NAME ...] [--json OUT]   compiles and audits them

Exporting needs TensorFlow; compiling needs libtpu on x86-64 Linux, and no TensorFlow. The result
has a row for each case: collectives planned and made by kind, and all in which the two differ.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import namedmesh as nm
from namedmesh.layers import Adafactor, Transformer, batch_of, config

LENGTH = 1024  # tokens of source and of target in a group
ITERATIONS = nm.Dimension("iteration", 4)  # microbatches, where gradients are accumulated
MIXTURE: dict[str, Any] = {"gated": True, "normalizer": "rms", "dtype": "bfloat16"}


@dataclass(frozen=True)
class Case:
    """A train step, its layout, and the TPUs that it is compiled for."""

    mesh: str
    layout: str
    params: str | None
    target: str
    groups: int
    iterations: bool = False  # whether gradients are accumulated over microbatches
    options: dict[str, Any] = field(default_factory=dict)


CASES = {
    "dots_in_two_dimensions": Case(
        "data=4, expert=512",
        "group:data+expert, expert:expert",
        "expert:expert, hidden:data",
        "tpu-v3:32x32",
        groups=2048,
        options={
            **MIXTURE, "experts": 512, "layers": 16, "positions": "relative", "remat": "dots",
        },
    ),
    "fully_sharded": Case(
        "data=4, expert=512",
        "group:data+expert, expert:expert",
        "expert:expert, hidden:data, model:data",
        "tpu-v3:32x32",
        groups=2048,
        options={**MIXTURE, "experts": 512, "layers": 16, "remat": "full"},
    ),
    "three_axes": Case(
        "data=8, expert=8, tensor=8",
        "group:data+expert, expert:expert, hidden:tensor, heads:tensor",
        None,
        "tpu-v3:16x16",
        groups=64,
        options={**MIXTURE, "experts": 64, "layers": 8, "remat": "dots"},
    ),
    "accumulation": Case(
        "data=16, expert=8",
        "group:data+expert, expert:expert",
        "expert:expert, hidden:data, model:data, !*scale",
        "tpu-v3:8x8",
        groups=128,
        iterations=True,
        options={**MIXTURE, "experts": 8, "layers": 8, "remat": "full"},
    ),
}  # fmt: skip


def trace(case: Case) -> nm.Program:
    """Trace a case's train step."""
    model = Transformer(config("moe_512e_12l").but(**case.options), case.groups, LENGTH, LENGTH)

    def loss_of(batch: dict[str, nm.Tensor], seed: nm.Tensor) -> nm.Tensor:
        return model.loss(batch_of(batch), nm.random.key_from_seed(seed))[0]

    def train(batch: dict[str, nm.Tensor], seed: nm.Tensor) -> nm.Tensor:
        if case.iterations:

            def add_loss(total: nm.Tensor, part: dict[str, nm.Tensor]) -> Any:
                return total + loss_of(part, seed), None

            loss, _ = nm.scan(add_loss, nm.zeros([]), batch, over=ITERATIONS, remat="full")
        else:
            loss = loss_of(batch, seed)
        Adafactor(unfactored=[model.E]).apply(nm.grad(loss))
        return loss

    leading = [ITERATIONS] if case.iterations else []
    specs = {
        name: nm.spec([*leading, *spec.shape], spec.dtype) for name, spec in model.specs().items()
    }
    return nm.trace(train, batch=specs, seed=nm.spec([], "int32"))


def export(name: str, folder: pathlib.Path) -> None:
    """Plan and lower a case into an Artifact."""
    case = CASES[name]
    mesh = nm.Mesh.parse(case.mesh)
    artifact = nm.export(trace(case), mesh, case.layout, case.params)
    folder.mkdir(parents=True, exist_ok=True)
    artifact.save(folder / f"{name}.nmesh")
    print(f"{name}: {len(artifact.collectives)} collectives planned", flush=True)


def compile_case(name: str, folder: pathlib.Path) -> dict[str, Any]:
    """Compile a case and audit what was made."""
    from namedmesh.aot.compilation import compile_for
    from namedmesh.artifacts.artifact import Artifact

    case, artifact = CASES[name], Artifact.load(folder / f"{name}.nmesh")
    report = compile_for(artifact, case.target, name=name)
    found = report.audit
    assert found is not None, "the compiler gave no code to read"
    print(report, found, sep="\n", flush=True)
    kinds = sorted({one.kind for one in artifact.collectives})
    return {
        "case": name,
        "mesh": str(artifact.mesh),
        "layout": artifact.layout,
        "params": artifact.params,
        "target": case.target,
        "planned": dict(Counter(one.kind for one in artifact.collectives)),
        "made": {kind: found.count(kind) for kind in kinds},
        "exact": found.exact,
        "differences": found.describe_problems(),
        "rules": dict(found.rules),
        "matched_by_shape": len(found.by_shape),
        "wire_bytes_planned": sum(one.total_wire_bytes for one in artifact.collectives),
        "wire_bytes_made": found.wire_bytes,
        "compile_seconds": report.compile_seconds,
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("action", choices=("export", "compile"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="*", default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--json", type=pathlib.Path, help="the file of the result")
    arguments = parser.parse_args()
    if arguments.action == "export":
        for name in arguments.names:
            export(name, arguments.folder)
        return
    rows = [compile_case(name, arguments.folder) for name in arguments.names]
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(not all(row["exact"] for row in rows))


if __name__ == "__main__":
    main()
