"""The paper's models compiled for TPU v3 without one: memory, FLOPs and collectives by model.

python -m benchmarks.tpu_v3 export FOLDER [NAME ...]     lowers the train steps (minutes)
python -m benchmarks.tpu_v3 compile FOLDER [NAME ...]    compiles them into the results
python -m benchmarks.tpu_v3 draw                         the tables and plots of the results

Exporting needs TensorFlow; compiling needs libtpu on x86-64 Linux, and no TensorFlow.

Results are benchmarks/results/tpu_v3/family.json and scaling.json, a row for each model.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import pathlib
import platform
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np

import namedmesh as nm
from namedmesh.cli.main import format_error
from namedmesh.errors.errors import NamedMeshError, did_you_mean
from namedmesh.layers import Adafactor, Transformer, batch_of, config

RESULTS = pathlib.Path(__file__).parent / "results" / "tpu_v3"
TARGETS = {8: "tpu-v3:2x2", 128: "tpu-v3:8x8", 512: "tpu-v3:16x16", 2048: "tpu-v3:32x32"}
PARTS = {
    "weights": "weights",
    "state": "optimizer",
    "activations": "activations",
    "temporaries": "gradients and other temporaries",
}
LENGTH = 1024  # tokens of source and of target in a group


@dataclass(frozen=True)
class Case:
    """A train step to be compiled: a model on as many cores as it has experts."""

    experts: int
    layers: int
    groups: int = 1  # for each core
    dtype: str = "float32"
    mesh: str = ""  # one axis, unless said
    params: str = ""
    remat: str = "full"
    suffix: str = ""

    @property
    def name(self) -> str:
        """The model's name in tables."""
        return f"moe_{self.experts}e_{self.layers}l{self.suffix}"

    @property
    def place(self) -> tuple[nm.Mesh, str, str | None]:
        """The mesh, the layout and the layout of parameters at rest."""
        mesh = nm.Mesh.parse(self.mesh or f"all={self.experts}")
        every = "+".join(mesh.axes)
        return mesh, f"group:{every}, expert:{every}", self.params or None

    @property
    def tokens(self) -> int:
        """Tokens in a step, source and target."""
        return 2 * LENGTH * self.groups * self.experts


# The paper's tokens in a step: a million for 128 and 512 experts, four million for 2,048.
FAMILY = [
    Case(experts, layers, groups)
    for experts, groups in ((128, 4), (512, 1), (2048, 1))
    for layers in (12, 24, 36, 60)
]
# What the largest needs to fit: activations in half the bytes, weights and slots in shards at rest.
SHARDS: dict[str, Any] = {"mesh": "outer=16, inner=128", "params": "model:inner"}
FAMILY += [
    Case(2048, 60, dtype="bfloat16", suffix="_bf16"),
    Case(2048, 60, **SHARDS, suffix="_pieces"),
    Case(2048, 60, dtype="bfloat16", **SHARDS, suffix="_bf16_pieces"),
]
# Equal work for each core: one group of 2,048 tokens, twelve layers.
SCALING = [Case(experts, 12, suffix="_scaling") for experts in (128, 512, 2048)]
CASES = {case.name: case for case in (*FAMILY, *SCALING)}


def trace_case(case: Case) -> nm.Program:
    """Trace the train step of a case."""
    shape = config(f"moe_{case.experts}e_12l").but(
        layers=case.layers, dtype=case.dtype, remat=case.remat
    )
    model = Transformer(shape, group=case.experts * case.groups, source=LENGTH, target=LENGTH)

    def train(batch: dict[str, Any], seed: Any) -> dict[str, Any]:
        loss, metrics = model.loss(batch_of(batch), nm.random.key_from_seed(seed))
        optimizer = Adafactor(unfactored=[model.E], layer_by_layer=True)
        return {"loss": metrics["loss"], **optimizer.apply(nm.grad(loss))}

    return nm.trace(train, batch=model.specs(), seed=nm.spec([], "int32"))


def plan_case(case: Case) -> nm.Plan:
    """Trace and plan the train step of a case."""
    return nm.plan(trace_case(case), *case.place)


def export(case: Case, folder: pathlib.Path) -> None:
    """Traces, plans and lowers a case into an Artifact."""
    artifact = nm.export(trace_case(case), *case.place)
    artifact.save(folder / f"{case.name}.nmesh")
    print(
        f"{case.name}: {case.tokens:,} tokens a step, {len(artifact.to_bytes()) / 1e6:.1f} MB",
        flush=True,
    )


def compile_cases(cases: list[Case], folder: pathlib.Path) -> None:
    """Compile Artifacts for their targets, and add a row for each to the results."""
    import jax

    from namedmesh.aot.absent_devices import devices_of
    from namedmesh.aot.compilation import compile_for
    from namedmesh.aot.target_report import failed_row
    from namedmesh.artifacts.artifact import Artifact
    from namedmesh.hardware.topology import Target

    host = {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "libtpu": _libtpu(),
    }
    for case in cases:
        path, target = folder / f"{case.name}.nmesh", Target.parse(TARGETS[case.experts])
        if not path.exists():
            raise NamedMeshError(
                f"{path} is not there",
                fix=f"run python -m benchmarks.tpu_v3 export {folder} {case.name}",
            )
        artifact = Artifact.load(path)
        devices_of(target)  # without the compiler there is nothing to record
        try:
            found = compile_for(artifact, target, name=case.name)
            print(found, flush=True)
            row = found.row()
        except NamedMeshError as error:
            print(error, file=sys.stderr, flush=True)
            row = failed_row(artifact, target, case.name, error.problem)
        stated = {
            "experts": case.experts,
            "layers": case.layers,
            "tokens": case.tokens,
            "dtype": case.dtype,
        }
        record(
            {
                **row,
                **stated,
                "layout": artifact.layout,
                "params": artifact.params,
                "remat": case.remat,
                "host": host,
            },
            case,
        )


def record(row: dict[str, Any], case: Case) -> None:
    """Put a row into its file, in the order of the cases; several processes may do so at once."""
    path = RESULTS / ("scaling.json" if case in SCALING else "family.json")
    RESULTS.mkdir(parents=True, exist_ok=True)
    with open(pathlib.Path(tempfile.gettempdir()) / "tpu_v3.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = {one["model"]: one for one in read(path)} | {row["model"]: row}
        ordered = [rows[name] for name in CASES if name in rows]
        path.write_text(json.dumps(ordered, indent=1) + "\n")


def read(path: pathlib.Path) -> list[dict[str, Any]]:
    """Return the rows recorded so far."""
    return json.loads(path.read_text()) if path.exists() else []


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a table for people."""
    lines = [
        "| model | cores | weights | peak of HBM, GiB | fits | TFLOPs per core | compile s "
        "| collectives as planned |",
        "|---" * 8 + "|",
    ]
    for row in rows:
        memory = (
            f"{row['peak_bytes'] / 2**30:.2f} of {row['hbm_bytes'] / 2**30:.2f}"
            if row["peak_bytes"] and row["hbm_bytes"]
            else "-"
        )
        flops = f"{row['flops_per_core'] / 1e12:.2f}" if row["flops_per_core"] else "-"
        seconds = f"{row['compile_seconds']:.1f}" if row["compile_seconds"] else "-"
        cells = [
            row["model"],
            f"{row['cores']:,}",
            f"{row['weights'] / 1e9:,.1f} B",
            memory,
            _yes(row["fits"]),
            flops,
            seconds,
        ]
        lines.append(f"| {' | '.join(cells)} | {_yes(row['collectives_match_plan'])} |")
    return "\n".join(lines)


def _yes(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "no"


def draw() -> None:
    """Print the tables, and draw memory by model, and how a step scales with the cores."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as pyplot

    family, scaling = read(RESULTS / "family.json"), read(RESULTS / "scaling.json")
    print(table(family), table(scaling), sep="\n\n")
    scaling = [row for row in scaling if row["compile_seconds"]]
    rows = [row for row in family if row.get("memory")]
    figure, axis = pyplot.subplots(figsize=(9, 4))
    below = np.zeros(len(rows))
    for part, label in PARTS.items():
        heights = np.array([row["memory"][part] / 2**30 for row in rows])
        axis.bar(range(len(rows)), heights, bottom=below, label=label)
        below += heights
    if rows:
        axis.axhline(
            rows[0]["hbm_bytes"] / 2**30, color="black", linestyle="--", label="HBM of a core"
        )
    axis.set_xticks(
        range(len(rows)),
        [row["model"].removeprefix("moe_") for row in rows],
        rotation=40,
        ha="right",
        fontsize=8,
    )
    axis.set_ylabel("memory per core, GiB")
    axis.legend(fontsize=8, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    figure.tight_layout()
    figure.savefig(RESULTS / "memory.png", dpi=110)
    figure, sides = pyplot.subplots(1, 3, figsize=(10, 3.2))
    for side, key, scale, label in (
        (sides[0], "peak_bytes", 2**30, "peak memory per core, GiB"),
        (sides[1], "flops_per_core", 1e12, "TFLOPs per core"),
        (sides[2], "compile_seconds", 1, "compile seconds"),
    ):
        if not scaling:
            continue
        side.plot([row["cores"] for row in scaling], [row[key] / scale for row in scaling], "o-")
        side.set(
            xscale="log",
            xlabel="cores = experts",
            ylabel=label,
            ylim=(0, 1.2 * max(row[key] / scale for row in scaling)),
        )
        side.set_xticks([row["cores"] for row in scaling], [f"{row['cores']:,}" for row in scaling])
        side.minorticks_off()
    figure.tight_layout()
    figure.savefig(RESULTS / "scaling.png", dpi=110)


def _libtpu() -> str:
    try:
        from importlib.metadata import version

        return version("libtpu")
    except Exception:
        return "as TPU_LIBRARY_PATH says"


def main(arguments: list[str] | None = None) -> None:
    """Run one of the three commands."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tpu_v3", description=(__doc__ or "").splitlines()[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("export", "lower train steps (TensorFlow)"),
        ("compile", "compile them (libtpu) into the results"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("folder", type=pathlib.Path)
        command.add_argument(
            "names", nargs="*", metavar="NAME", help=f"all unless said: {', '.join(CASES)}"
        )
    commands.add_parser("draw", help="print the tables and draw the plots of the results")
    given = parser.parse_args(arguments)
    if given.command == "draw":
        draw()
        return
    for name in given.names:
        if name not in CASES:
            raise NamedMeshError(f"there is no case {name!r}", fix=did_you_mean(name, CASES))
    cases = [CASES[name] for name in given.names or CASES]
    if given.command == "compile":
        compile_cases(cases, given.folder)
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    for case in cases:
        export(case, given.folder)


if __name__ == "__main__":
    try:
        main()
    except NamedMeshError as error:
        sys.exit(format_error(error))
