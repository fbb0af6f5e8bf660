"""Section 5: memory, time, collectives and operators."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from benchmarks.operator_cases import CASES
from benchmarks.paper.costs import break_down, estimate
from benchmarks.paper.rows import Row, compare, compare_growth, holds, read
from benchmarks.tpu_v3 import Case, trace_case

COMPILE = "python -m benchmarks.tpu_v3 compile FOLDER"
OPERATORS = "python -m benchmarks.operators --json operators.json"
COLLECTIVES = "python -m benchmarks.collectives --json collectives.json"
FAMILY = ("benchmarks/tpu_v3.py", "docs/guides/tpus.md#the-papers-models")
LINKS = (
    "an estimate by bytes over the busiest link; a side of 32 chips closes to a ring, whose ways "
    "are half as long"
)


def models(name: str = "family") -> dict[str, Any]:
    """Return what the TPU v3 compiler reported, by model."""
    return {row["model"]: row for row in read(f"tpu_v3/{name}.json")}


def grow(key: str) -> float:
    """Return the exponent of the cores with which a compiled cost grows, the work of each equal."""
    rows = [*models("scaling").values()]
    ratio = rows[-1][key] / rows[0][key]
    return math.log(ratio) / math.log(rows[-1]["cores"] / rows[0]["cores"])


def memory() -> Iterator[Row]:
    """5.1: memory against experts and layers, and recomputation."""
    exponent = grow("peak_bytes")
    yield Row(
        "Memory of a device does not grow with experts and devices (Figure 7)",
        "O(1), 128 to 2,048 experts", f"O(D^{exponent:.2f}) by the TPU v3 compiler",
        compare_growth(0, exponent), FAMILY, COMPILE,
    )  # fmt: skip
    family = models()
    for part, label in (("weights", "weights"), ("activations", "activations")):
        sizes = {n: family[f"moe_2048e_{n}l"]["memory"][part] for n in (12, 36, 60)}
        slope = (sizes[60] - sizes[36]) / (sizes[36] - sizes[12])
        yield Row(
            f"Memory of {label} grows linearly with layers (Figure 7)",
            "24 layers more cost the same anywhere",
            f"36 to 60 layers cost {slope:.2f} of 12 to 36: "
            f"{', '.join(f'{size / 2**30:.2f}' for size in sizes.values())} GiB",
            compare(1, slope, better="lower"), FAMILY, COMPILE,
        )  # fmt: skip
    largest = family["moe_2048e_60l"]
    yield Row(
        "MoE(2048E, 60L) fits a core, with bfloat16 activations",
        "fits 16 GB",
        f"{family['moe_2048e_60l_bf16']['peak_bytes'] / 2**30:.1f} GiB in bfloat16, "
        f"{largest['peak_bytes'] / 2**30:.1f} in float32, by the TPU v3 compiler",
        "better" if largest["fits"] else "worse", FAMILY, COMPILE,
    )  # fmt: skip
    twelve = estimate(Case(2048, 12, 2, remat="none")).memory.peak_bytes
    yield Row(
        "12 layers fit without recomputation", "0% of cycles",
        f"0% of FLOPs in {twelve / 2**30:.1f} GiB, by estimate",
        holds(twelve < 16 * 2**30), ("docs/guides/cost.md", "namedmesh/ops/recompute.py"),
    )  # fmt: skip
    fitted = {row["layers"]: row for row in read("paper/figures.json")["memory"]}
    for layers, paper in ((36, 0.28), (60, 0.34)):
        full = sum(trace_case(Case(2048, layers, 2)).recomputed.values())
        share, time = (fitted[layers][f"recomputed_{name}"] for name in ("flops", "seconds"))
        yield Row(
            f"What {layers} layers compute again in the backward pass",
            f"{paper:.0%} of cycles",
            f"{share:.0%} of FLOPs and {time:.0%} of the time of computing with remat='fit', "
            f"{full:.0%} of FLOPs with 'full', by estimate",
            compare(paper, time, why="an estimate, neither compiled nor run; the paper measured "
                    "what its compiler chose"),
            ("namedmesh/planning/fit.py", "docs/guides/layers.md#as-little-computed-again-as-fits",
             "benchmarks/results/paper/figures.png"),
            "python -m benchmarks.paper.figures",
        )  # fmt: skip


def runtime() -> Iterator[Row]:
    """5.2: the time of a step and its parts."""
    small, large = break_down(128), break_down(2048)
    where = ("namedmesh/cost/estimator.py", "docs/guides/cost.md")
    estimated = "an estimate for TPU v3: every op at the rate that its roofline allows"
    ratio = large.total / small.total
    yield Row(
        "Time of a MoE layer and its Transformer layer, 2,048 experts over 128 (Figure 8)",
        "1.7 times", f"{ratio:.2f} times", compare(1.7, ratio, why=estimated), where,
    )  # fmt: skip
    yield Row(
        "Time of the AllToAlls, 2,048 experts over 128", "3.75 times",
        f"{large.all_to_all / small.all_to_all:.2f} times",
        compare(3.75, large.all_to_all / small.all_to_all, why=LINKS),
        ("namedmesh/hardware/links.py", "docs/guides/cost.md"),
    )  # fmt: skip
    shares = [one.all_to_all / one.total for one in (small, large)]
    yield Row(
        "Share of the AllToAlls in the layers' time", "16% to 36%",
        f"{shares[0]:.0%} to {shares[1]:.0%}", compare(0.36, shares[1], why=LINKS), where,
    )  # fmt: skip
    gate = large.gate / small.gate
    yield Row(
        "Time of the gate's products, 2,048 experts over 128", "about 2 times",
        f"{gate:.1f} times, {large.gate / large.total:.1%} of the layers",
        compare(2, gate, why="tokens are dispatched by index, so that the projection, which is "
                "O(D), is the gate's only product"),
        ("namedmesh/layers/dispatch.py", "docs/guides/mixtures.md"),
    )  # fmt: skip
    routing = large.routing / large.total
    yield Row(
        "The rest of the gate (searches, running sums) with 2,048 experts", "below 10%",
        f"{routing:.1%}", compare(0.1, routing, better="lower"), where,
    )  # fmt: skip
    exponent = grow("flops_per_core")
    yield Row(
        "A device's FLOPs do not grow with the devices", "O(1)",
        f"O(D^{exponent:.2f}) by the TPU v3 compiler",
        compare_growth(0, exponent), FAMILY, COMPILE,
    )  # fmt: skip
    mfu = {
        row["model"]: row["mfu"]
        for row in read("gpu/results.json")["rows"]
        if row["system"] == "namedmesh"
    }
    yield Row(
        "Share of the roofline that a step reaches", "over 70% with 128 experts, 48% with 2,048",
        f"{mfu['wide']:.0%} of the peak FLOP/s with a mixture, "
        f"{mfu['wide_dense']:.0%} with a dense model",
        "differs: measured on one H200, of the peak and not of a roofline; there was no TPU",
        ("benchmarks/gpu/measure.py", "benchmarks/results/gpu/README.md"),
        "python -m benchmarks.gpu FOLDER --json gpu.json",
    )  # fmt: skip


def collectives() -> Iterator[Row]:
    """5.3: collectives and operators against the number of partitions."""
    found = read("operators/collectives.json")["exponents"]
    links = {
        (one["collective"], one["bytes"] // 2**20): one
        for one in found
        if one["source"] == "TPU v3 links"
    }
    where = ("benchmarks/torus_links.py", "docs/guides/scaling.md#collectives")
    claims = (("AllReduce", 0.0, "O(1)"), ("AllToAll", 0.5, "O(sqrt(D))"),
              ("AllGather", 1.0, "O(D)"), ("CollectivePermute", 0.0, "O(1)"))  # fmt: skip
    for kind, paper, text in claims:
        for size in (8, 32) if kind.startswith("AllR") or kind == "AllToAll" else (32,):
            one = links[kind, size]
            squares = one["exponent_of_squares"]
            yield Row(
                f"{kind} of {size} MB from 16 to 2,048 partitions", text,
                f"O(D^{one['exponent']:.2f}); O(D^{squares:.2f}) on square slices alone",
                compare_growth(paper, one["exponent"], LINKS), where, COLLECTIVES,
            )  # fmt: skip
    times = links["AllToAll", 32]["most_to_fewest"]
    yield Row(
        "Time of an AllToAll on 2,048 partitions over 16 (Figure 9)", "9 times",
        f"{times:.1f} times", compare(9, times, why=LINKS), where, COLLECTIVES,
    )  # fmt: skip
    rows = {(one["case"], one["source"]): one for one in read("operators/operators.json")}
    powers = {"0": 0.0, "O(1)": 0.0, "O(sqrt(D))": 0.5, "O(D)": 1.0}
    for name, case in CASES.items():
        if case.source != "table":
            continue
        plan, compiled = (rows[name, source] for source in ("plan", "compiler"))
        text, _, kind = case.communication.partition(" ")
        sent = plan["exponent"]["link_bytes_of_squares"]
        made = ", ".join(compiled["collectives"]) or "nothing"
        kinds = ", ".join(plan["collectives"]) or "nothing"
        status = compare_growth(powers[case.compute], plan["exponent"]["flops"])
        if status == "equal":
            status = compare_growth(powers[text], sent)
        loop = " in a loop" if name.endswith("loop") else ""
        yield Row(
            f"{case.operator}({case.split}){loop} (Table 4)",
            f"compute {case.compute}, {case.communication if kind else 'no communication'}",
            f"compute O(D^{plan['exponent']['flops']:.2f}), {kinds}"
            + (f" O(D^{sent:.2f})" if sent is not None else "")
            + f"; compiled {'as planned' if made == kinds else f'as {made}'}",
            status if not kind or kind in plan["collectives"] else f"differs: {kinds}",
            ("benchmarks/operator_cases.py", "docs/guides/scaling.md"), OPERATORS,
        )  # fmt: skip
