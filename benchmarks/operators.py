"""The scaling of operators from 1 to 2,048 partitions: compute, memory and communication of each.

python -m benchmarks.operators [--json OUT]              plans them, fits exponents, prints a table
python -m benchmarks.operators export FOLDER [NAME ...]  lowers them; needs TensorFlow
python -m benchmarks.operators compile FOLDER [NAME ...] compiles them for TPU v3; needs libtpu on
                                                         x86-64 Linux, and no TensorFlow
python -m benchmarks.operators draw                      the plots of the results

A partition's work stays the same while partitions grow in number, as in the paper's table. The
first command adds the rows that compile left in benchmarks/results/operators/compiled.json.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import platform
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import namedmesh as nm
from benchmarks import scaling
from benchmarks.operator_cases import CASES, Case
from benchmarks.scaling import FIRST, fit_exponent, save_plot
from benchmarks.torus_links import SQUARES, estimate_link_bytes, slice_of
from namedmesh.audit.hlo.communication import CompiledCollective
from namedmesh.cli.main import format_error
from namedmesh.cost.fusion import find_axes
from namedmesh.dims.sharding import Sharding
from namedmesh.errors.errors import NamedMeshError, did_you_mean
from namedmesh.ir.op import Op
from namedmesh.planning.plan import Plan
from namedmesh.records.collective import Collective

PARTITIONS = tuple(2**i for i in range(12))
COMPILED = (32, 128, 512, 2048)
LABELS = {
    "flops": "FLOPs",
    "memory": "memory",
    "bytes_moved": "bytes sent",
    "link_bytes": "bytes over the busiest link",
}


def count_flops(plan: Plan, ops: Iterable[Op]) -> float:
    """Count the floating point operations of one device."""
    total = 0.0
    for op in ops:
        if op.bodies:
            inner = [one for body in op.bodies for one in body.ops]
            once = sum(one.flops() for one in inner)
            total += op.flops() / once * count_flops(plan, inner) if once else 0
            continue
        total += op.flops() / plan.mesh.size(find_axes(plan, op))
    return total


def measure_plan(case: Case, partitions: int) -> dict[str, Any]:
    """Return a partition's costs, as planned."""
    plan = case.plan(partitions)
    return {
        "flops": count_flops(plan, plan.program.ops),
        "bytes_moved": plan.total_wire_bytes(),
        "memory": count_memory(plan),
        **count_collectives(plan.collectives, partitions),
    }


def count_memory(plan: nm.Plan) -> int:
    """Count the bytes of a partition's inputs, results and transfers."""
    places: set[tuple[nm.Tensor, Sharding]] = set()
    for op in plan.program.ops:
        kept = [tensor for tensor in op.outputs if tensor not in plan.placements.constants]
        places |= {(tensor, plan.shardings[tensor]) for tensor in kept}
        if op.states_place:  # the result is the operand, moved
            continue
        places |= {
            (tensor, plan.placements.natural[tensor])
            for tensor in kept
            if tensor in plan.placements.natural
        }
        for i, tensor in enumerate(op.inputs):
            places |= {
                (tensor, step.result) for step in plan.placements.operand_moves.get((op, i), ())
            }
    return sum(
        place.local_elements(tensor.shape, plan.mesh) * tensor.itemsize for tensor, place in places
    )


def count_collectives(
    collectives: Iterable[Collective | CompiledCollective], partitions: int
) -> dict[str, Any]:
    """Count the collectives of each kind, and their bytes over the busiest link."""
    kinds: Counter[str] = Counter()
    sent = 0.0
    for one in collectives:
        kinds[one.kind] += one.times
        sent += one.times * estimate_link_bytes(one.kind, one.bytes, partitions)
    return {"link_bytes": sent, "collectives": dict(kinds)}


def export(name: str, folder: pathlib.Path) -> None:
    """Lower an operator for every number of partitions that is compiled."""
    case = CASES[name]
    for partitions in COMPILED:
        mesh = nm.Mesh(all=partitions)
        # At lower precisions a TPU sends some operands of products in bfloat16.
        artifact = nm.export(case.trace(partitions), mesh, case.layout, precision="highest")
        artifact.save(folder / f"{name}_{partitions}.nmesh")
    print(f"{name}: {len(COMPILED)} Artifacts", flush=True)


def compile_case(name: str, partitions: int, folder: pathlib.Path) -> dict[str, Any]:
    """Return a partition's costs, by the TPU compiler."""
    from namedmesh.aot.compilation import compile_for
    from namedmesh.artifacts.artifact import Artifact

    path, target = folder / f"{name}_{partitions}.nmesh", slice_of(partitions)
    if not path.exists():
        raise NamedMeshError(
            f"{path} is not there", fix=f"run python -m benchmarks.operators export {folder} {name}"
        )
    report = compile_for(Artifact.load(path), target, name=name)
    assert report.audit is not None and report.memory is not None, "a small program fits"
    print(report, flush=True)
    return {
        "case": name,
        "partitions": partitions,
        "target": str(target),
        "flops": report.flops_per_core,
        "bytes_moved": report.audit.wire_bytes,
        "memory": report.memory.total - report.memory.code,
        **count_collectives(report.audit.compiled, partitions),
        "as_planned": report.audit.exact,
        "problems": report.audit.describe_problems(),
        "rules": dict(report.audit.rules),
        "matched_by_shape": len(report.audit.by_shape),
        "code_bytes": report.memory.code,
        "compute_seconds": report.compute_seconds,
        "compile_seconds": round(report.compile_seconds, 1),
    }


def compile_cases(names: list[str], folder: pathlib.Path) -> None:
    """Compile operators, and add a row for each to the results."""
    import jax

    host = {"machine": platform.machine(), "jax": jax.__version__}
    for partitions in COMPILED:
        for name in names:
            record({**compile_case(name, partitions, folder), "host": host})


def record(row: dict[str, Any]) -> None:
    """Put a row into the file of compiled operators, in the order of the cases."""
    scaling.RESULTS.mkdir(parents=True, exist_ok=True)
    rows = {(one["case"], one["partitions"]): one for one in read("compiled.json")}
    rows[row["case"], row["partitions"]] = row
    ordered = [rows[name, count] for name in CASES for count in COMPILED if (name, count) in rows]
    (scaling.RESULTS / "compiled.json").write_text(json.dumps(ordered, indent=1) + "\n")


def read(name: str) -> list[dict[str, Any]]:
    """Return the rows of a result file so far."""
    path = scaling.RESULTS / name
    return json.loads(path.read_text()) if path.exists() else []


def fit_exponents(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """Return the exponent of each cost; of links those of square slices alone too."""
    found = {cost: fit_exponent({row["partitions"]: row[cost] for row in rows}) for cost in LABELS}
    links = {row["partitions"]: row["link_bytes"] for row in rows if row["partitions"] in SQUARES}
    return {**found, "link_bytes_of_squares": fit_exponent(links)}


def find_rows(partitions: Sequence[int]) -> list[dict[str, Any]]:
    """Return a row for every operator, number of partitions and source, with fitted exponents."""
    compiled, rows = read("compiled.json"), []
    for name, case in CASES.items():
        planned = [{"partitions": count, **measure_plan(case, count)} for count in partitions]
        made = [row for row in compiled if row["case"] == name]
        for source, found in (("plan", planned), ("compiler", made)):
            exponent = fit_exponents(found)
            rows += [
                {
                    "case": name,
                    "operator": case.operator,
                    "split": case.split,
                    "grows": case.grows,
                    "source": source,
                    **row,
                    "exponent": exponent,
                    "paper": case.paper,
                }
                for row in found
            ]
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return the exponents of operators as a table for people: as planned, then as compiled."""
    lines = [
        "| operator | split | grows | compute | memory | bytes sent | over the busiest link "
        "| the same of square slices, planned | paper: compute | paper: communication |",
        "|---" * 10 + "|",
    ]
    for name, case in CASES.items():
        found = {row["source"]: row["exponent"] for row in rows if row["case"] == name}
        loop = " in a loop" if name.endswith("_loop") else ""
        cells = [case.operator + loop, f"`{case.split}`", case.grows]
        for cost in LABELS:
            fits = [_format_exponent(exponent[cost]) for exponent in found.values()]
            cells.append(" / ".join(fits))
        cells.append(_format_exponent(found["plan"]["link_bytes_of_squares"]))
        lines.append(f"| {' | '.join([*cells, case.compute, case.communication])} |")
    return "\n".join(lines)


def _format_exponent(exponent: float | None) -> str:
    return "none" if exponent is None else f"{exponent:.2f}"


def draw(rows: list[dict[str, Any]]) -> None:
    """Draw a partition's costs against the number of partitions, in units of those planned."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as pyplot
    from matplotlib.lines import Line2D

    figure, grid = pyplot.subplots(4, 4, figsize=(12, 10), sharex=True, sharey=True)
    for side, (name, case) in zip(grid.flat, CASES.items(), strict=True):
        for cost, colour in zip(LABELS, ("C0", "C1", "C2", "C3"), strict=True):
            for source, style in (("plan", "-"), ("compiler", "o")):
                curve = {
                    row["partitions"]: row[cost]
                    for row in rows
                    if (row["case"], row["source"]) == (name, source) and row[cost] > 0
                }
                if source == "plan":
                    unit = curve.get(FIRST, 1.0)
                ratios = [value / unit for value in curve.values()]
                side.plot(list(curve), ratios, style, color=colour, markersize=4, alpha=0.7)
        loop = " in a loop" if name.endswith("_loop") else ""
        side.set_title(f"{case.operator} {case.split}{loop}", fontsize=8)
        side.set(xscale="log", yscale="log")
        side.set_xticks([1, 16, 128, 2048], ["1", "16", "128", "2,048"])
        side.minorticks_off()
    handles = [
        Line2D([], [], color=colour, label=label)
        for label, colour in zip(LABELS.values(), ("C0", "C1", "C2", "C3"), strict=True)
    ]
    handles += [
        Line2D([], [], color="grey", label="planned"),
        Line2D([], [], color="grey", marker="o", linestyle="", label="compiled"),
    ]
    figure.legend(handles=handles, fontsize=9, ncols=6, loc="lower center", frameon=False)
    figure.supxlabel("partitions", y=0.04, fontsize=10)
    figure.supylabel(f"of a partition, as planned for {FIRST} = 1", fontsize=10)
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    save_plot(figure, "operators.png")


def main(arguments: list[str] | None = None) -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.operators", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--json", type=pathlib.Path, metavar="OUT", help="the file of the rows")
    commands = parser.add_subparsers(dest="command")
    for name, text in (
        ("export", "lower operators (TensorFlow)"),
        ("compile", "compile them (libtpu) into the results"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("folder", type=pathlib.Path)
        command.add_argument(
            "names", nargs="*", metavar="NAME", help=f"all by default: {', '.join(CASES)}"
        )
    commands.add_parser("draw", help="draw the plots of the results")
    given = parser.parse_args(arguments)
    if given.command == "draw":
        draw(read("operators.json"))
        return
    if given.command is None:
        rows = find_rows(PARTITIONS)
        print(table(rows))
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1) + "\n")
        return
    for name in given.names:
        if name not in CASES:
            raise NamedMeshError(f"there is no operator {name!r}", fix=did_you_mean(name, CASES))
    names = given.names or list(CASES)
    if given.command == "compile":
        compile_cases(names, given.folder)
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        export(name, given.folder)


if __name__ == "__main__":
    try:
        main()
    except NamedMeshError as error:
        sys.exit(format_error(error))
