"""The same train steps for H100s, by both partitioners of several versions of jax.

python -m benchmarks.gpu_versions compile FOLDER [NAME ...]     with the jax of this environment
python -m benchmarks.gpu_versions table FOLDER                  writes versions.json and versions.md

`python -m benchmarks.gpu_clusters export FOLDER NAME` lowers a step, once for all versions: NAME is
one of STEPS. Compiling leaves a row in FOLDER for each step, partitioner and version; those that
are there already are not compiled again. `table` collects them all.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax

from benchmarks.gpu_cluster_cases import CASES
from benchmarks.gpu_clusters import RESULTS, compile_case

PARTITIONERS = ("gspmd", "shardy")
# Steps of `gpu_clusters`, quick ones first, each compiled for as many H100s as it has GPUs.
STEPS = {
    "recommender-h100_32x8-all256": "tables split by rows",
    "llama_8b-h100_8x8-data8_tensor8": "FSDP, tensor and sequence parallel, accumulation",
    "llama_8b-gb200_1x64-data8_context8": "FSDP, context parallel",
    "llama_8b_pipeline-a100_8x8-data4_stage4_tensor4": "pipeline, tensor parallel",
    "mixtral_8x7b-h100_8x8-data8_expert8": "mixture, FSDP",
    "mixtral_8x7b-b200_16x8-data4_expert8_tensor4": "mixture, FSDP, tensor and sequence parallel",
    "ring_attention-b200_8x8-data8_context8": "ring attention, FSDP",
    "dropless-a100_8x8-data8_expert8": "mixture that drops no token, FSDP",
    "unet-h100_8x8-data16_y2_x2": "images split in two directions",
    "translation-h100_16x8-x16_y8": "the paper's dense Transformer, tensor parallel",
    "moe_128e_12l-a100_16x8-all128": "the paper's mixture of 128 experts",
}


def compile_step(name: str, folder: pathlib.Path, partitioner: str) -> None:
    """Compile a step, unless it is done, and leave its row in a folder."""
    row_file = folder / f"{name}.{jax.__version__}.{partitioner}.json"
    if row_file.is_file():
        return
    case = CASES[name]
    case = replace(case, target=f"h100:{case.gpus // 8}x8")
    row = compile_case(case, folder / f"{name}.nmesh", partitioner)
    row |= {"step": name, "parallelism": STEPS[name], "partitioner": partitioner}
    row_file.write_text(json.dumps(row))


def collect(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Return the rows of a folder, by step, version and partitioner."""
    rows = [
        json.loads(path.read_text()) for name in STEPS for path in folder.glob(f"{name}.*.json")
    ]
    order = list(STEPS)
    return sorted(rows, key=lambda row: (order.index(row["step"]), row["jax"], row["partitioner"]))


def is_exact(row: dict[str, Any]) -> bool:
    """Return whether plan and code agree on every collective."""
    return not (row["unplanned"] or row["not_made"] or row["different"])


def describe_differences(rows: Sequence[dict[str, Any]]) -> str:
    """Say in what the rows of one step differ: collectives, rules, problems and memory."""
    kinds = {kind for row in rows for kind in row["made"]}
    rules = {rule for row in rows for rule in row["rules"]}
    facts = {kind: [row["made"].get(kind, 0) for row in rows] for kind in sorted(kinds)}
    facts |= {rule: [row["rules"].get(rule, 0) for row in rows] for rule in sorted(rules)}
    facts["not as planned"] = ["; ".join(row["problems"]) or 0 for row in rows]
    facts["GiB"] = [row["peak_gib"] for row in rows]
    differences = []
    for name, values in facts.items():
        if len({*values}) > 1:
            parts = [f"{value} by {_name(rows, values, value)}" for value in dict.fromkeys(values)]
            differences.append(f"{name}: {', '.join(parts)}")
    return "<br>".join(differences) or "nothing"


def _name(rows: Sequence[dict[str, Any]], values: Sequence[Any], value: Any) -> str:
    """Name the versions with a value: one for which all partitioners have it by itself."""
    names: dict[str, str] = {}
    for version in dict.fromkeys(row["jax"] for row in rows):
        found = {
            row["partitioner"]: values[i] for i, row in enumerate(rows) if row["jax"] == version
        }
        those = [partitioner for partitioner in found if found[partitioner] == value]
        if those:
            names[version] = version if len(those) == len(found) else f"{version} {those[0]}"
    return " and ".join(names.values())


def format_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return what versions and partitioners make of each step, as a table of Markdown."""
    columns = sorted({(row["jax"], row["partitioner"]) for row in rows})
    exact = sum(map(is_exact, rows))
    head = ["step", "H100s", "mesh", "planned", *(" ".join(one) for one in columns)]
    lines = [
        "# Versions of jax, and both partitioners\n",
        f"The same Artifacts for H100s: {exact} of {len(rows)} compiles are exactly as planned. "
        "A cell has the collectives that were made (those that the compiler joined are taken "
        "apart), `exact` or what is not, and GiB of one GPU. `versions.json` has all fields.\n",
        "```bash",
        "python -m benchmarks.gpu_clusters export FOLDER NAME     # each of the steps below",
        "python -m benchmarks.gpu_versions compile FOLDER         # with each version of jax",
        "python -m benchmarks.gpu_versions table FOLDER",
        "```\n",
        f"| {' | '.join([*head, 'what differs'])} |",
        "|---" * (len(head) + 1) + "|",
    ]
    for step in dict.fromkeys(row["step"] for row in rows):
        ours = {(row["jax"], row["partitioner"]): row for row in rows if row["step"] == step}
        first = next(iter(ours.values()))
        cells = [f"{first['model']}: {first['parallelism']}", first["gpus"], first["mesh"]]
        cells.append(first["collectives"])
        for column in columns:
            row = ours.get(column)
            wrong = "exact" if row and is_exact(row) else "NOT as planned"
            made = f"{sum(row['made'].values())}, {wrong}, {row['peak_gib']}" if row else ""
            cells.append(made)
        cells.append(describe_differences(list(ours.values())))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("action", choices=("compile", "table"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="*", help="such as llama_8b, all that begin so; or all")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="folder of results")
    options = parser.parse_args()
    if options.action == "table":
        rows = collect(options.folder)
        (options.results / "versions.json").write_text(json.dumps(rows, indent=1) + "\n")
        (options.results / "versions.md").write_text(format_table(rows))
        return
    for name in STEPS:
        if not options.names or name.startswith(tuple(options.names)):
            for partitioner in PARTITIONERS:
                compile_step(name, options.folder, partitioner)


if __name__ == "__main__":
    main()
