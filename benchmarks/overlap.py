"""Steps compiled with and without XLA's options for overlap: what is exposed, by the schedule.

python -m benchmarks.overlap export FOLDER [CASE ...]                lowers the steps
python -m benchmarks.overlap compile FOLDER [CASE ...] [--set NAME]  a row for each set of options

Exporting needs TensorFlow; compiling needs XLA's GPU compiler (namedmesh[gpu-aot]) or libtpu, and
no device. Rows go into benchmarks/results/overlap/overlap.json, in the place of older ones.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import unittest.mock
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import namedmesh as nm
from benchmarks import tpu_v3
from benchmarks.gpu_cluster_cases import SEQUENCE, Language
from namedmesh.layers import Adafactor, Transformer, batch_of, config

RESULTS = pathlib.Path(__file__).parent / "results" / "overlap" / "overlap.json"
_HIDING = {"xla_gpu_enable_latency_hiding_scheduler": "true"}
_PIPELINED = {
    "xla_gpu_enable_pipelined_all_gather": "true",
    "xla_gpu_enable_pipelined_all_reduce": "true",
    "xla_gpu_enable_pipelined_reduce_scatter": "true",
}
_GATHERS = _HIDING | {"xla_gpu_enable_pipelined_all_gather": "true"}
_AS_SUMS = "as sums"  # ReduceScatters of rows as their compilers make them by themselves
_TWICE = {"xla_gpu_enable_while_loop_double_buffering": "true"}
SETS: dict[str, dict[str, dict[str, str]]] = {
    "gpu": {
        "none": {},
        "scheduler": _HIDING,
        "gathers": _GATHERS,
        "gathers and scatters": _GATHERS | {"xla_gpu_enable_pipelined_reduce_scatter": "true"},
        "pipelined": _HIDING | _PIPELINED,
        "twice": _HIDING | _TWICE,
        "one at once": {"xla_gpu_experimental_parallel_collective_overlap_limit": "1"},
        "two at once": {"xla_gpu_experimental_parallel_collective_overlap_limit": "2"},
        "both": _HIDING | _PIPELINED | _TWICE,
    },
    "tpu": {
        "none": {"xla_enable_async_all_gather": "false"},
        "gathers": {"xla_enable_async_all_gather": "true"},  # by default with namedmesh
        "all": {
            "xla_enable_async_all_gather": "true",
            "xla_enable_async_all_reduce": "true",
            "xla_tpu_enable_async_all_to_all": "true",
        },
        "scatters": {
            "xla_enable_async_all_gather": "true",
            "xla_enable_async_reduce_scatter_fusion": "true",
            "xla_max_concurrent_async_reduce_scatters": "4",
            "xla_tpu_enable_async_collective_fusion_fuse_reduce_scatter": "true",
        },
        _AS_SUMS: {"xla_enable_async_all_gather": "true"},
    },
}


def _mixture() -> nm.Program:
    """Trace the paper's 600 billion weights, 32 experts and four groups on each of 64 devices."""
    shape = config("moe_2048e_12l").but(layers=36, dtype="bfloat16", remat="full")
    model = Transformer(shape, group=256, source=1024, target=1024)

    def train(batch: dict[str, Any], seed: nm.Tensor) -> dict[str, Any]:
        loss, metrics = model.loss(batch_of(batch), nm.random.key_from_seed(seed))
        optimizer = Adafactor(unfactored=[model.E], layer_by_layer=True)
        return {"loss": metrics["loss"], **optimizer.apply(nm.grad(loss))}

    return nm.trace(train, batch=model.specs(), seed=nm.spec([], "int32"))


def _rows() -> nm.Program:
    """Trace a product whose rows, of one sequence on each device, are scattered."""
    B, S, R, H, M = nm.dims("batch=8 seq=2048 row=2048 hidden=4096 model=4096")

    def project(x: nm.Tensor, w: nm.Tensor) -> nm.Tensor:
        return nm.rename(nm.einsum([x, w], [B, S, M]), S, R)

    return nm.trace(project, x=nm.spec([B, S, H], "bfloat16"), w=nm.spec([H, M], "bfloat16"))


@dataclass(frozen=True)
class Case:
    """A train step, its layout, and what it is compiled for."""

    target: str
    mesh: str
    layout: str
    params: str | None
    make: Callable[[], nm.Program]


CASES = {
    "llama_h200": Case(
        "h200:8x8", "data=8, tensor=8", f"batch:data, {SEQUENCE}", "model:data",
        Language("llama_8b", 32, 4096).trace,
    ),
    "llama_v3": Case(
        "tpu-v3:4x8", "data=16, tensor=4", f"batch:data, {SEQUENCE}", "model:data",
        Language("llama_8b", 16, 2048).trace,
    ),
    "mixture_h200": Case("h200:8x8", "all=64", "group:all, expert:all", None, _mixture),
    "mixture_v3": Case(
        "tpu-v3:32x32", "all=2048", "group:all, expert:all", None,
        lambda: tpu_v3.trace_case(tpu_v3.CASES["moe_2048e_36l"]),
    ),
}  # fmt: skip
CASES |= {
    f"rows_{target.partition(':')[0].removeprefix('tpu-')}": Case(
        target, "data=8, tensor=4", "batch:data, hidden:tensor, row:tensor", None, _rows
    )
    for target in ("tpu-v3:4x4", "tpu-v4:2x4x4", "tpu-v5e:4x8", "tpu-v5p:2x4x4", "tpu-v6e:4x8")
}
# The residual stream between attention and SwiGLU is stored, not computed again.
CASES["llama_v3_kept"] = replace(
    CASES["llama_v3"], make=Language("llama_8b", 16, 2048, remat=["x"]).trace
)
# What is not experts' at rest in shards, too.
CASES["mixture_h200_rest"] = replace(CASES["mixture_h200"], params="model:all")
CASES |= {
    f"{name}_ahead": replace(case, params=f"{case.params}, prefetch")
    for name, case in CASES.items()
    if case.params
}


def compile_case(name: str, folder: pathlib.Path, chosen: str) -> dict[str, Any]:
    """Compile a case with one set of options; return its row."""
    from namedmesh.aot import Target, compile_for
    from namedmesh.artifacts.stablehlo import prepare
    from namedmesh.runtime import Artifact

    case = CASES[name]
    artifact = Artifact.load(folder / f"{name}.nmesh")
    options = SETS[Target.parse(case.target).platform][chosen]
    with unittest.mock.patch.object(
        prepare, "SCATTERING", frozenset() if chosen == _AS_SUMS else prepare.SCATTERING
    ):
        report = compile_for(artifact, case.target, options=options)
    timeline = report.timeline
    assert timeline is not None and report.audit is not None
    print(timeline, flush=True)
    return {
        "case": name, "target": case.target, "set": chosen, "options": options,
        "seconds": timeline.seconds, "compute_seconds": timeline.compute_seconds,
        "collective_seconds": timeline.collective_seconds,
        "exposed_seconds": timeline.exposed_seconds,
        "exposed_by_kind": timeline.exposed_by("kind"),
        "as_planned": report.audit.exact, "problems": report.audit.describe_problems()[:8],
        "gib": round((report.peak_bytes or 0) / 2**30, 2), "fits": report.fits,
    }  # fmt: skip


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", choices=("export", "compile"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("cases", nargs="*", default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--set", dest="sets", action="append", help="of options; by default all")
    parser.add_argument("--json", type=pathlib.Path, default=RESULTS)
    given = parser.parse_args()
    for name in given.cases:
        case = CASES[name]
        if given.command == "export":
            given.folder.mkdir(parents=True, exist_ok=True)
            artifact = nm.export(case.make(), nm.Mesh.parse(case.mesh), case.layout, case.params)
            artifact.save(given.folder / f"{name}.nmesh")
            continue
        for chosen in given.sets or SETS["tpu" if case.target.startswith("tpu") else "gpu"]:
            try:
                row = compile_case(name, given.folder, chosen)
            except nm.NamedMeshError as error:
                row = {"case": name, "set": chosen, "problem": str(error)[:600]}
            print(json.dumps(row), flush=True)
            rows = json.loads(given.json.read_text()) if given.json.is_file() else []
            rows = [one for one in rows if (one["case"], one["set"]) != (name, chosen)]
            given.json.parent.mkdir(parents=True, exist_ok=True)
            given.json.write_text(json.dumps([*rows, row], indent=1) + "\n")


if __name__ == "__main__":
    main()
