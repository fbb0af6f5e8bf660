"""The paper's figures of memory, recomputation and the time of layers, ours beside its numbers.

python -m benchmarks.paper.figures      minutes; benchmarks/results/paper/figures.json and .png

Plans for 2,048 cores of a TPU v3 with remat="fit", and estimates of nm.cost. Of the paper's bars
those numbers are drawn that its text states; the rest of a bar is hatched.
"""

from __future__ import annotations

import json
from typing import Any

import namedmesh as nm
from benchmarks.paper.costs import TARGET, break_down
from benchmarks.paper.rows import RESULTS
from benchmarks.tpu_v3 import Case, trace_case

FOLDER = RESULTS / "paper"
RECOMPUTED = {12: 0.0, 36: 0.28, 60: 0.34}  # of the cycles, section 5.1
PAPER_TIME = {128: (1.0, 0.16), 2048: (1.7, 0.36)}  # all, and the share of AllToAlls; section 5.2


def measure(layers: int) -> dict[str, Any]:
    """Plan a model of 2,048 experts with remat="fit": memory, and what is computed again."""
    case = Case(2048, layers, 2, remat="fit")
    plan = nm.plan(trace_case(case), *case.place, target=TARGET)
    cost, program = nm.cost(plan, TARGET), plan.program
    parameters = {one.tensor for one in program.parameters.values()}
    held = [one.tensor for one in program.variables.values()]
    parts = {
        "weights": sum(plan.bytes_per_device(x) for x in held if x in parameters),
        "optimizer": sum(plan.bytes_per_device(x) for x in held if x not in parameters),
        "activations that loops keep": plan.activation_bytes,
    }
    parts["gradients and temporaries"] = cost.memory.peak_bytes - sum(parts.values())
    again = sum(one.total_seconds for one in cost.ops if one.op.recomputed)
    return {
        "layers": layers,
        "memory": parts,
        "recomputed_flops": sum(plan.recomputed.values()),
        "recomputed_seconds": again / cost.compute_seconds,
        "decision": next(text for text in plan.decisions if "remat" in text),
    }


def draw(rows: list[dict[str, Any]], times: dict[int, dict[str, float]]) -> None:
    """Draw memory, what is computed again, and the time of the layers' forward pass."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as pyplot

    figure, (memory, again, time) = pyplot.subplots(1, 3, figsize=(14, 4.2))
    names = [f"{row['layers']} layers" for row in rows]
    below = [0.0] * len(rows)
    for part in rows[0]["memory"]:
        heights = [row["memory"][part] / 2**30 for row in rows]
        memory.bar(names, heights, bottom=below, label=part)
        below = [a + b for a, b in zip(below, heights, strict=True)]
    memory.axhline(16, color="black", linestyle="--", label="memory of a core")
    memory.set(title="Memory of a core, 2,048 experts (estimate)", ylabel="GiB", ylim=(0, 24))
    memory.legend(fontsize=8, loc="upper left")
    places = range(len(rows))
    bars = (
        ("paper, of cycles", [RECOMPUTED[row["layers"]] for row in rows]),
        ("ours, of FLOPs", [row["recomputed_flops"] for row in rows]),
        ("ours, of compute time", [row["recomputed_seconds"] for row in rows]),
    )
    for i, (label, shares) in enumerate(bars):
        drawn = again.bar([x + 0.27 * (i - 1) for x in places], [100 * x for x in shares], 0.25,
                          label=label)  # fmt: skip
        again.bar_label(drawn, fmt="%.0f%%", fontsize=8)
    again.set_xticks(list(places), names)
    again.set(title="Computed again in the backward pass", ylabel="%", ylim=(0, 45))
    again.legend(fontsize=8, loc="upper left")
    first = sum(times[128].values())
    labels = [f"{who}\n{experts:,} experts" for experts in times for who in ("paper", "ours")]
    parts = [*times[128]]
    for i, part in enumerate(parts):
        heights, starts = [], []
        for experts, ours in times.items():
            total, share = PAPER_TIME[experts]
            heights += [total * share if part == "AllToAll" else 0.0, ours[part] / first]
            starts += [0.0, sum(ours[one] for one in parts[:i]) / first]
        time.bar(labels, heights, bottom=starts, label=part)
    rest = [(total * (1 - share), total * share) for total, share in PAPER_TIME.values()]
    time.bar(labels[::2], [a for a, _ in rest], bottom=[b for _, b in rest], color="white",
             edgecolor="grey", hatch="//", label="the rest of the paper's bar")  # fmt: skip
    time.set(title="Forward time, 128 experts = 1 (estimate)", ylim=(0, 2.6))
    time.tick_params(axis="x", labelsize=8)
    time.legend(fontsize=8, loc="upper left")
    figure.tight_layout()
    figure.savefig(FOLDER / "figures.png", dpi=110)


def main() -> None:
    """Measure, write and draw."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    rows = [measure(layers) for layers in RECOMPUTED]
    times = {}
    for experts in PAPER_TIME:
        one = break_down(experts)
        times[experts] = {
            "AllToAll": one.all_to_all, "attention and feed-forward, experts too": one.dense,
            "products of the gate": one.gate, "rest of the gate": one.routing,
        }  # fmt: skip
    document = {"command": "python -m benchmarks.paper.figures", "memory": rows, "seconds": times}
    (FOLDER / "figures.json").write_text(json.dumps(document, indent=1) + "\n")
    draw(rows, times)


if __name__ == "__main__":
    main()
