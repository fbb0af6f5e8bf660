"""The memory of a train step under each schedule of a pipeline, by the compilers.

python -m benchmarks.pipelines export FOLDER    lowers a step for each schedule and number of
                                                microbatches; needs TensorFlow
python -m benchmarks.pipelines compile FOLDER   compiles them for TPU v3; needs libtpu on x86-64
                                                Linux, and no TensorFlow
python -m benchmarks.pipelines cpu              compiles them for CPUs, smaller; needs neither

16 layers of a model of 1,024 and a hidden size of 4,096 in 2, 4 or 8 stages, over 8 cores, with
microbatches of 4,096 tokens (gpipe_4_64 has 4 stages and 64 of them); and t_96l, the paper's dense
Transformer of 96 layers on 2,048 cores, by a pipeline (GPipe).
What a compiler said is in benchmarks/results/pipelines.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from typing import Any

RESULTS = pathlib.Path(__file__).parent / "results" / "pipelines"
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero_bubble")
STAGES, MICROBATCHES = (4, 2, 8), (4, 16, 64)
TARGET, LAYOUT = "tpu-v3:2x2", "layer:stage, stage:stage, batch:data"
# The paper's four million tokens in a step: 4,096 rows of 1,024 on either side.
T_96L_TARGET, T_96L_MESH, T_96L_ROWS = "tpu-v3:32x32", "stage=8, data=256", 4096
T_96L_LAYOUT = "layer:stage, stage:stage, group:data, source_vocab:stage, target_vocab:stage"
CASES = {
    f"{kind}_{stages}_{micro}": (kind, stages, micro)
    for kind in SCHEDULES
    for stages in STAGES
    for micro in MICROBATCHES
}


def trace(schedule: str, stages: int, micro: int, scale: int = 1) -> Any:
    """Trace a train step: loss and gradients of a stack of feed-forward layers."""
    import namedmesh as nm
    from namedmesh.layers import feed_forward, layer_norm

    P, N, B, L = nm.dims(f"stage={stages} micro={micro} batch={4096 // scale} layer=16")
    M, H = nm.dims(f"model={1024 // scale} hidden={4096 // scale}")
    rounds = nm.Dimension("round", 2) if schedule == "interleaved" else None

    def layer(h: nm.Tensor, number: nm.Tensor) -> nm.Tensor:
        return h + feed_forward(layer_norm(h, M), M, H)

    def end(h: nm.Tensor, row: dict[str, nm.Tensor]) -> nm.Tensor:
        return nm.mean(nm.square(h - nm.cast(row["targets"], "float32")))

    def enter(row: dict[str, nm.Tensor]) -> nm.Tensor:
        return nm.cast(row["inputs"], "float32") * nm.param("scale", [M])

    def train(rows: dict[str, nm.Tensor]) -> Any:
        loss = nm.pipeline(
            layer, rows, stages=P, batches=N, layers=L, schedule=schedule, first=enter, loss=end,
            rounds=rounds,
        )  # fmt: skip
        return loss, nm.grad(loss)

    rows = {name: nm.spec([N, B], "int32") for name in ("inputs", "targets")}
    return nm.trace(train, rows=rows)


def trace_t_96l() -> Any:
    """Trace the train step of T(96L): 8 stages of each side, 16 microbatches."""
    import namedmesh as nm
    from namedmesh.layers import Adafactor, Transformer, batch_of, config

    shape = config("t_96l").but(stages=8, microbatches=16)
    model = Transformer(shape, group=T_96L_ROWS, source=1024, target=1024)

    def train(batch: dict[str, Any], seed: Any) -> dict[str, Any]:
        loss, metrics = model.loss(batch_of(batch), nm.random.key_from_seed(seed))
        return {"loss": metrics["loss"], **Adafactor().apply(nm.grad(loss))}

    return nm.trace(train, batch=model.specs(), seed=nm.spec([], "int32"))


def plan_case(name: str) -> Any:
    """Trace and plan the step of a case."""
    import namedmesh as nm

    if name == "t_96l":
        return nm.plan(trace_t_96l(), nm.Mesh.parse(T_96L_MESH), T_96L_LAYOUT)
    return nm.plan(trace(*CASES[name]), mesh_of(name), LAYOUT)


def mesh_of(name: str) -> Any:
    """Return eight devices, with an axis of the stages of a case."""
    import namedmesh as nm

    _, stages, _ = CASES[name]
    return nm.Mesh(stage=stages, data=8 // stages)


def export(folder: pathlib.Path, names: list[str]) -> None:
    """Lower the step of each case."""
    import namedmesh as nm

    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        plan = plan_case(name)
        nm.export(plan.program, plan.mesh, plan.layout).save(folder / f"{name}.nmesh")
        print(name, *plan.program.notes, flush=True)


def compile_all(folder: pathlib.Path, names: list[str]) -> None:
    """Compile steps for TPU v3, and add a row for each to the results."""
    from namedmesh.aot.compilation import compile_for
    from namedmesh.artifacts.artifact import Artifact

    for name in names:
        target = T_96L_TARGET if name == "t_96l" else TARGET
        found = compile_for(Artifact.load(folder / f"{name}.nmesh"), target, name=name)
        print(found, flush=True)
        write("tpu", {"case": name, **found.row()})


def compile_for_cpus(names: list[str]) -> None:
    """Compile small steps for CPUs here."""
    import namedmesh as nm
    from namedmesh.runtime import use_cpu_devices

    use_cpu_devices(8)
    for name in names:
        program = trace(*CASES[name], scale=16)
        step = nm.compile(program, mesh=mesh_of(name), layout=LAYOUT, strict=True)
        row = {"case": name, "temporary_bytes": step.report.temporary_bytes}
        print(row, *program.notes, flush=True)
        write("cpu", row)


def write(kind: str, row: dict[str, Any]) -> None:
    """Put a row in the place of the one of the same case, or at the end."""
    path = RESULTS / f"{kind}.json"
    rows = json.loads(path.read_text()) if path.exists() else []
    rows = [one for one in rows if one["case"] != row["case"]] + [row]
    rows.sort(key=lambda one: [*CASES, "t_96l"].index(one["case"]))
    RESULTS.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=1) + "\n")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("action", choices=("export", "compile", "cpu"))
    parser.add_argument("folder", type=pathlib.Path, nargs="?", default=pathlib.Path("build/pipes"))
    names = [*CASES, "t_96l"]
    parser.add_argument("--only", nargs="*", default=names, help=", ".join(names))
    given = parser.parse_args()
    if given.action == "cpu":
        compile_for_cpus([name for name in given.only if name in CASES])
    else:
        {"export": export, "compile": compile_all}[given.action](given.folder, given.only)


if __name__ == "__main__":
    main()
