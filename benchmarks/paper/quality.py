"""Section 4: the family of models, translation quality and training efficiency."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.paper.costs import (
    TOKENS,
    case_of,
    estimate,
    estimate_dense,
    rate_of,
    rate_of_dense,
)
from benchmarks.paper.performance import COMPILE, FAMILY, models
from benchmarks.paper.rows import Row, billions, compare, compare_range, holds, read
from namedmesh.layers import config

# Of the paper's tables: experts in a layer, layers, weights in billions, experts in all, millions
# of tokens in a step, steps a second, core-years, days.
TABLE = (
    (2048, 36, 600, 36684, 4, 0.72, 22.4, 4.0),
    (2048, 12, 200, 12228, 4, 2.15, 7.5, 1.4),
    (512, 36, 150, 9216, 1, 1.05, 15.5, 11.0),
    (512, 12, 50, 3072, 1, 3.28, 4.9, 3.5),
    (128, 36, 37, 2304, 1, 0.67, 6.1, 17.3),
    (128, 12, 12.5, 768, 1, 2.16, 1.9, 5.4),
)
PEAK = 61.5e12  # FLOP/s of a core of TPU v3 in bfloat16
EXPERIMENT = ("examples/m4/experiment/grid.py", "docs/guides/examples.md#what-it-learns")
MAIN = (
    "python -m examples.m4.experiment --out runs/main --preset base --data corpus --steps 13000 "
    "--temperature 1.2 --grid_experts 128 --bilingual de,sv,hu,id,he,is,mk,hy,xh,kab "
    "--sentences 300 --vocabulary_sentences 400000"
)
GRID = (
    "python -m examples.m4.experiment --out runs/grid --preset base --data corpus --steps 3000 "
    "--temperature 2 --grid_experts 4,16,64 --depths 1,2 --sentences 80 "
    "--vocabulary_sentences 400000"
)
DENSE = ("benchmarks/pipelines.py", "docs/guides/pipelines.md")
PIPELINE = "python -m benchmarks.pipelines export build/pipes --only t_96l"
CATALOGS = (
    "python -m examples.m4.experiment --out runs/catalogs --preset base --data corpus --steps 2500 "
    "--group_tokens 4096 --vocabulary_sentences 200000 --grid_experts 128 --bilingual all "
    "--bilingual_tries narrow --bilingual_rows 16 --bilingual_steps 1200 --sentences 100"
)
DEEP = (
    "python -m examples.m4.experiment --out runs/deep --preset base --data corpus --model 256 "
    "--hidden 1024 --heads 4 --layers 4 --unroll 1 --rows 128 --source_length 96 "
    "--target_length 64 --group_tokens 4096 --source_vocab 16000 --target_vocab 8000 --steps 800 "
    "--warmup 200 --dev_every 100 --translation_rows 128 --translation_length 64 "
    "--grid_experts 4,16,64,128 --depths 1,2,4 --sentences 12"
)
DEPTH = (
    "python -m examples.m4.experiment --out runs/depth --preset base --data corpus --model 256 "
    "--hidden 1024 --heads 4 --layers 4 --unroll 1 --steps 1200 --warmup 200 --dev_every 100 "
    "--vocabulary_sentences 200000 --grid_experts 4,16,64,128 --depths 1,2,4 --sentences 20"
)
FEW = "2.3 million pairs, 26,000 of a language at most; minutes on one H200"
SCALE = "a corpus of 10 million pairs, models of 62 to 620 million weights, minutes on one H200"


def read_table() -> dict[str, Any]:
    """Return every model of the translation experiments, by name."""
    return {row["model"]: row for row in read("m4/table.json")}


def read_deltas() -> list[dict[str, Any]]:
    """Return BLEU of the bilingual, dense and mixture model of each language, richest first."""
    return sorted(read("m4/delta_bleu.json"), key=lambda row: -row["pairs"])


def mean_delta(rows: list[dict[str, Any]], model: str) -> float:
    """Return the mean BLEU of a model above the bilingual ones."""
    return float(np.mean([row[model] - row["bilingual"] for row in rows]))


def name_model(experts: int, layers: int) -> str:
    """Return a model's name as the paper writes it."""
    return f"MoE({experts}E, {layers}L)"


def introduction() -> Iterator[Row]:
    """Abstract and Figure 1: quality against cost."""
    family = models()
    largest = family["moe_2048e_36l"]
    yield Row(
        "A translation model of more than 600 billion weights (abstract)", "600 B",
        f"{billions(largest['weights'])}, {largest['peak_bytes'] / 2**30:.1f} GiB of a core",
        compare(600e9, largest["weights"], better="higher"), FAMILY, COMPILE,
    )  # fmt: skip
    rate = rate_of(2048, 36, 4)
    low, high = rate.days(rate.fast), rate.days(rate.slow)
    yield Row(
        "Trained with 2,048 TPU v3 cores in days (abstract)", "4 days",
        f"{low:.1f} to {high:.1f} days for a trillion tokens",
        compare_range(4, low, high, "an estimate: cores at the rate of their roofline, no input "
                      "or evaluation"),
        ("docs/guides/cost.md", "benchmarks/tpu_v3.py"),
    )  # fmt: skip
    small = rate_of(128, 36, 1)
    weights = largest["weights"] / family["moe_128e_36l"]["weights"]
    cost = rate.core_years(rate.slow) / small.core_years(small.slow)
    yield Row(
        "16 times the weights for less than 16 times the core-years (Figure 1)",
        "16 times for 3.6 times (6 to 22 years)",
        f"{weights:.0f} times for {cost:.1f} times "
        f"({small.core_years(small.slow):.0f} to {rate.core_years(rate.slow):.0f} years)",
        compare(3.6, cost, why="the estimate of MoE(128E, 36L) is above what its table says, see "
                "4.5"),
        ("docs/guides/cost.md", "benchmarks/tpu_v3.py"),
    )  # fmt: skip
    table = read_table()
    dense, mixture = table["dense"], table["moe128"]
    gain = mixture["bleu"] - dense["bleu"]
    minutes = mixture["minutes"] / dense["minutes"]
    yield Row(
        "A mixture translates better than a dense model, for less (Figure 1)",
        "+7.4 BLEU over T(96L) for 0.1 of its core-years",
        f"+{gain:.1f} BLEU for {mixture['flops_per_token'] / dense['flops_per_token']:.2f} of the "
        f"FLOPs and {minutes:.2f} of the minutes",
        compare(7.4, gain, why=f"{SCALE}; both models have the same depth and FLOPs"),
        EXPERIMENT, MAIN,
    )  # fmt: skip
    tries = [row for row in table.values() if row["model"].startswith("bilingual")]
    best: dict[str, Any] = {}
    for row in tries:
        language = row["model"].split("_")[1]
        if language not in best or row["dev_loss"] < best[language]["dev_loss"]:
            best[language] = row
    spent = sum(row["minutes"] for row in best.values())
    yield Row(
        "One model for all languages costs less than one for each (Figure 1)",
        "22 core-years against 29",
        f"{mixture['minutes']:.1f} minutes against {spent:.1f} for {len(best)} languages",
        "better" if mixture["minutes"] / spent < 22 / 29 else "worse", EXPERIMENT, MAIN,
    )  # fmt: skip


def dataset() -> Iterator[Row]:
    """4.2: languages and baselines."""
    rows = read_deltas()
    yield Row(
        "Bilingual models, tuned for each language, to compare with", "100",
        f"{len(rows)} languages, each with its own early stop",
        "differs: more languages, all with the same setting", EXPERIMENT, CATALOGS,
    )  # fmt: skip
    pairs = [row["pairs"] for row in rows]
    yield Row(
        "Training pairs from the richest to the poorest language", "billions to tens of thousands",
        f"{pairs[0]:,} to {pairs[-1]:,}",
        "differs: free translations of Debian's packages, not an in-house corpus of 13 billion",
        ("examples/m4/corpus/debian/__init__.py", "examples/m4/README.md"),
        "python -m examples.m4.corpus debian corpus --pairs 10000000",
    )  # fmt: skip


def family() -> Iterator[Row]:
    """4.3: the models of Table 1, their weights and experts."""
    found = models()
    for experts, layers, weights, total, *_ in (*TABLE, (2048, 60, 1000, 61440)):
        row = found[f"moe_{experts}e_{layers}l"]
        yield Row(
            f"Weights of {name_model(experts, layers)} (Table 1)",
            "1 T" if weights == 1000 else f"{weights} B", billions(row["weights"]),
            compare(weights * 1e9, row["weights"], better="higher"), FAMILY, COMPILE,
        )  # fmt: skip
        ours = experts * layers // 2
        yield Row(
            f"Experts of {name_model(experts, layers)} in all (Table 1)", f"{total:,}",
            f"{ours:,}",
            holds(ours == total, f"{experts:,} in each of {layers // 2} layers are {ours:,}; the "
                  f"paper's {total:,} looks like a slip"),
            ("namedmesh/layers/configuration.py", "tests/layers/test_config.py"),
        )  # fmt: skip
    dense = count_dense(config("t_96l"))
    yield Row(
        "Weights of T(96L), a dense model by a pipeline", "2.3 B", billions(dense),
        "differs: the hidden size is chosen to give 2.3 B, as the paper does not name it",
        DENSE, PIPELINE,
    )  # fmt: skip
    rows = read("pipelines/tpu.json")
    (compiled,) = (row for row in rows if row["case"] == "t_96l")
    guess, peak = estimate_dense().memory.peak_bytes, compiled["peak_bytes"]
    yield Row(
        "T(96L) fits 16 GB a core on 2,048 cores, by GPipe", "trained there",
        f"{peak / 2**30:.1f} GiB by the TPU compiler ({guess / 2**30:.1f} estimated), all "
        "collectives as planned; idle in 7 of 23 iterations",
        holds(compiled["fits"] and compiled["collectives_match_plan"], "it does not"), DENSE,
        "python -m benchmarks.pipelines compile build/pipes --only t_96l",
    )  # fmt: skip
    bilingual = read_table()["bilingual_de_plain"]["weights"]
    yield Row(
        "Weights of a bilingual baseline (Figure 6)", "0.4 B",
        f"{bilingual / 1e9:.2f} B", compare(0.4e9, bilingual, why=SCALE), EXPERIMENT, MAIN,
    )  # fmt: skip
    exact, half = (found[f"moe_2048e_60l{name}"] for name in ("", "_bf16"))
    yield Row(
        "Weights and activations in float32; bfloat16 activations for a trillion weights",
        "both, the latter not stable",
        f"{exact['peak_bytes'] / 2**30:.1f} and {half['peak_bytes'] / 2**30:.1f} GiB, compiled",
        "differs: a trillion weights were compiled and not trained; mixtures of 591 million train "
        "in bfloat16",
        ("docs/guides/precision.md", "tests/layers/test_precision.py"), COMPILE,
    )  # fmt: skip
    apart = read("m4/deep/precision.json")
    half, exact = (apart["dev_losses"][name]["800"] for name in ("bfloat16", "float32"))
    yield Row(
        "bfloat16 activations against float32 in a deep model", "not stable at a trillion weights",
        f"dev losses {half:.3f} and {exact:.3f} after 800 steps, 16 layers; apart by more than 0.1 "
        f"at step {apart['first_step_above']['0.1']}, by 0.01 at the end",
        "differs: 54 million weights, 16 layers of 256", ("benchmarks/results/m4/README.md",),
        f"{DEEP} --dtype float32",
    )  # fmt: skip


def count_dense(shape: Any) -> int:
    """Count the weights of a dense model of the paper's shape, without norms."""
    attention = 4 * shape.model * shape.heads * shape.key
    layer = 2 * shape.model * shape.hidden + attention
    embeddings = (shape.source_vocab + shape.target_vocab) * shape.model
    return shape.layers * layer + shape.layers // 2 * attention + embeddings


def results() -> Iterator[Row]:
    """4.4: quality by depth, experts and resources (Figure 6)."""
    deltas, table = read_deltas(), read_table()
    best, dense = mean_delta(deltas, "mixture"), mean_delta(deltas, "dense")
    yield Row(
        "Mean BLEU of the best mixture above bilingual models (Figure 6)", "+13.5",
        f"{best:+.1f} over {len(deltas)} languages", compare(13.5, best, why=FEW),
        EXPERIMENT, CATALOGS,
    )  # fmt: skip
    yield Row(
        "Mean BLEU of the dense multilingual model above bilingual models (Figure 6)", "+6.1",
        f"{dense:+.1f} over {len(deltas)} languages", compare(6.1, dense, why=FEW),
        EXPERIMENT, CATALOGS,
    )  # fmt: skip
    ahead = sum(row["mixture"] > row["bilingual"] for row in deltas) / len(deltas)
    yield Row(
        "The best mixture is above the bilingual model in every language (Figure 6)", "all",
        f"{ahead:.0%} of {len(deltas)} languages", "equal" if ahead == 1 else "worse",
        EXPERIMENT, CATALOGS,
    )  # fmt: skip
    grid = read("m4/grid/table.json")
    mixtures = [row for row in grid if row["experts"]]
    shallow = min(row["layers"] for row in mixtures)
    wide = sorted((row for row in mixtures if row["layers"] == shallow), key=lambda r: r["experts"])
    deeper = [
        (row, other)
        for row in wide
        for other in mixtures
        if other["experts"] == row["experts"] and other["layers"] > shallow
    ]
    gain = float(np.mean([other["bleu"] - row["bleu"] for row, other in deeper]))
    yield Row(
        "Deeper models are better", "+2 to +3 BLEU for three times the depth",
        f"{gain:+.2f} BLEU for {deeper[-1][1]['layers'] / shallow:.0f} times the depth",
        "equal" if 1.8 <= gain <= 3.3 else f"differs: {SCALE}; less depth is added"
        if gain > 0 else "worse", EXPERIMENT, GRID,
    )  # fmt: skip
    gains = [after["bleu"] - before["bleu"] for before, after in itertools.pairwise(wide)]
    sizes = " to ".join(str(row["experts"]) for row in wide)
    yield Row(
        "Four times the experts raise quality, less each time",
        "+3.3, then +1.3 BLEU (128 to 512 to 2,048)",
        f"{', then '.join(f'{one:+.2f}' for one in gains)} BLEU ({sizes})",
        holds(all(one > 0 for one in gains) and gains == sorted(gains, reverse=True),
              "not in this order"),
        EXPERIMENT, GRID,
    )  # fmt: skip
    models = [row for row in read("m4/deep/table.json")["rows"] if row["dtype"] == "bfloat16"]
    losses = {row["model"]: row["dev_losses"]["800"] for row in models}
    depths = sorted({row["layers"] for row in models})
    more = [losses[f"dense_{n}"] - losses[f"moe128_{n}"] for n in depths]
    least = min(models, key=lambda row: row["dev_losses"]["800"])
    largest = least["model"] == f"moe128_{depths[-1]}"
    gains = ", ".join(f"{one:.3f} at {n}" for one, n in zip(more, depths, strict=True))
    yield Row(
        "Experts and depth together are best (Figure 6)", "MoE(2048E, 36L) is ahead of all",
        f"128 experts lower the dev loss by {gains} layers; of {len(models)} models "
        f"{least['experts']} experts with {least['layers']} layers have the least",
        holds(more == sorted(more), "not in this order") if largest else
        "differs: experts help deeper models more, but 16 layers are behind 8 with any number of "
        "experts in 15 million tokens",
        ("benchmarks/results/m4/README.md",), DEEP,
    )  # fmt: skip
    kinds = {"dense": "dense", "moe128": "128 experts"}
    by_depth = {name: [losses[f"{kind}_{n}"] for n in depths] for kind, name in kinds.items()}
    yield Row(
        "Deeper models are better, in few tokens: 4, 8 and 16 layers", "12 to 36 layers: better",
        "; ".join(f"{name}: dev losses " + ", ".join(f"{one:.3f}" for one in of)
                  for name, of in by_depth.items()),
        holds(all(of == sorted(of, reverse=True) for of in by_depth.values())),
        ("benchmarks/results/m4/README.md",), DEEP,
    )  # fmt: skip
    rich, poor = (wide[-1][third] - wide[0][third] for third in ("high", "low"))
    yield Row(
        "More experts help rich languages most", "rich gain more",
        f"chrF of the rich third {rich:+.1f}, of the poor {poor:+.1f} "
        f"({wide[0]['experts']} to {wide[-1]['experts']} experts)",
        "equal" if rich > poor else "worse", EXPERIMENT, GRID,
    )  # fmt: skip
    richest = max(row["train_pairs"] for row in read("m4/main/report.json")["bilingual"])
    rich, poor = (table["moe128"][third] - table["dense"][third] for third in ("high", "low"))
    yield Row(
        "A mixture over a dense model helps rich languages most", "rich gain more",
        f"chrF of the rich third {rich:+.1f}, of the poor {poor:+.1f}",
        holds(rich > poor, "the poor third gains most where even the richest language has only "
              f"{richest:,} pairs"),
        EXPERIMENT, MAIN,
    )  # fmt: skip
    catalogs = {row["model"]: row for row in read("m4/catalogs/table.json")}
    paper, ours = (catalogs[name]["bleu"] for name in ("paper128", "moe128"))
    yield Row(
        "Experts on both sides, the second at random, capacity 2: the paper's recipe as it is",
        "the recipe of all its models",
        f"{paper:.1f} BLEU; {ours:.1f} with experts in the encoder alone and both of the best",
        holds(paper >= ours, "it leads early and learns the English by heart, which comes back "
              f"with each language; {FEW}"),
        EXPERIMENT, f"{CATALOGS} --expert_sides both --second random",
    )  # fmt: skip
    low, high = (float(np.mean([other[third] - row[third] for row, other in deeper]))
                 for third in ("low", "high"))  # fmt: skip
    yield Row(
        "Depth helps poor languages: T(96L) over MoE(128E, 12L)", "the gap grows to the poor",
        f"a deeper mixture: chrF {low:+.1f} in the poor third, {high:+.1f} in the rich",
        "differs: no deep dense model was trained; the depth of a mixture helps the "
        f"{'poor' if low > high else 'rich'} third more here",
        EXPERIMENT, GRID,
    )  # fmt: skip


def steps_to(curve: dict[str, float], loss: float) -> float | None:
    """Return the step at which a curve reaches a loss, between two evaluations."""
    points = [(int(step), value) for step, value in curve.items()]
    for (start, above), (end, below) in itertools.pairwise(points):
        if below <= loss:
            return end - (end - start) * (loss - below) / max(above - below, 1e-9)
    return None


def efficiency() -> Iterator[Row]:
    """4.5: tokens to a loss (Table 2), and time and core-years (Table 3)."""
    curves = {row["name"]: row for row in read("m4/tries.json")}
    shallow, deep = (curves[name]["dev_losses"] for name in ("encoder64_3k", "encoder64_16l_3k"))
    last = min(shallow.values())
    fewer = 3000 / (steps_to(deep, last) or 3000)
    yield Row(
        "Deeper models need fewer tokens to a loss (Table 2)",
        "2 to 3 times fewer, three times as deep",
        f"{fewer:.2f} times fewer to a dev loss of {last:.2f}, twice as deep",
        holds(2 <= fewer <= 3, f"{SCALE}; twice the depth, not three times"), EXPERIMENT, GRID,
    )  # fmt: skip
    tokens_to = {row["model"]: row["3.4"] for row in read("m4/depth/table.json")
                 ["million_tokens_to_loss"]}  # fmt: skip
    few = [tokens_to[name] for name in ("dense", "moe4", "moe64", "moe128")]
    yield Row(
        "Tokens to a loss by experts, of models of equal depth (Table 2)",
        "fewer with more experts",
        f"{', '.join(f'{one:.1f}' for one in few)} million to 3.4 (dense, 4, 64, 128 experts)",
        "equal" if few == sorted(few, reverse=True) else "worse", EXPERIMENT, DEPTH,
    )  # fmt: skip
    pairs = [(tokens_to[name], tokens_to[f"{name}_2x"]) for name in ("dense", "moe128")]
    yield Row(
        "Tokens to a loss by depth, dense and with 128 experts (Table 2)",
        "2 to 3 times fewer, three times as deep",
        ", ".join(f"{shallow / deep:.2f}" for shallow, deep in pairs)
        + " times fewer to 3.4, twice as deep",
        f"differs: {FEW}; twice the depth, not three times"
        if all(shallow > deep for shallow, deep in pairs) else "worse", EXPERIMENT, DEPTH,
    )  # fmt: skip
    dense, mixture = (curves[name] for name in ("dense_13k_t1.2", "encoder128_13k_t1.2"))
    tokens = read_table()["dense"]["tokens"] / dense["steps"]
    for loss, paper in (
        (2.0, "66 against 321 billion tokens"),
        (1.7, "170 against 1,074 billion tokens"),
        (1.55, "567 billion tokens against more than seen"),
    ):
        few, many = (steps_to(one["dev_losses"], loss) for one in (mixture, dense))
        assert few and many
        yield Row(
            f"More experts need fewer tokens, to the loss {loss} here (Table 2)",
            f"{paper}, 512 experts against 128",
            f"{few * tokens / 1e6:.0f} against {many * tokens / 1e6:.0f} million, 128 experts "
            "against none",
            f"differs: {SCALE}; {many / few:.1f} times fewer" if few < many else "worse",
            EXPERIMENT, MAIN,
        )  # fmt: skip
    for experts, layers, _, _, millions, steps, years, days in TABLE:
        yield estimate_row(experts, layers, millions, steps, years, days)
    rate, mixture = rate_of_dense(), rate_of(2048, 36, 4)
    slow, fast = (rate.core_years(one) for one in (rate.slow, rate.fast))
    yield Row(
        "T(96L) by a pipeline of 8 stages and 16 microbatches: core-years and days (Table 3)",
        "235.5 core-years, 42 days",
        f"{fast:.0f} to {slow:.0f} core-years, {rate.days(rate.fast):.1f} to "
        f"{rate.days(rate.slow):.1f} days",
        compare_range(235.5, fast, slow, "an estimate of the step alone, and the paper's shape and "
                      "pipeline are not known"),
        DENSE, PIPELINE,
    )  # fmt: skip
    ratio = slow / mixture.core_years(mixture.slow)
    yield Row(
        "T(96L) costs more than MoE(2048E, 36L) (Table 3)",
        "10.5 times the core-years (235.5 and 22.4)", f"{ratio:.1f} times the core-years",
        compare(10.5, ratio, why="an estimate: the paper's pipeline is not known"),
        DENSE, PIPELINE,
    )  # fmt: skip
    trillion = TOKENS / (4 * 2**20)
    yield Row(
        "A trillion tokens of four million a step", "250,000 steps", f"{trillion:,.0f} steps",
        compare(250_000, trillion, better="lower"), ("benchmarks/tpu_v3.py",),
    )  # fmt: skip


def estimate_row(
    experts: int, layers: int, millions: int, steps: float, years: float, days: float
) -> Row:
    """Return a row of Table 3: steps a second, core-years and days, estimated."""
    rate = rate_of(experts, layers, millions)
    flops = rate_flops(experts, layers, millions, steps)
    both = rate_of_both_sides(experts, layers, millions)
    why = (
        f"an estimate with {millions} M tokens on the source side and as many on the target side; "
        f"with {millions} M on both together it is {both}. The paper's rate would be "
        f"{flops / 1e12:.0f} TFLOP/s a core, {flops / PEAK:.0%} of the peak"
    )
    return Row(
        f"Steps a second of {name_model(experts, layers)}, core-years and days (Table 3)",
        f"{steps} steps/s, {years} core-years, {days} days",
        f"{rate.slow:.2f} to {rate.fast:.2f} steps/s, "
        f"{rate.core_years(rate.fast):.1f} to {rate.core_years(rate.slow):.1f} core-years, "
        f"{rate.days(rate.fast):.1f} to {rate.days(rate.slow):.1f} days",
        compare_range(steps, rate.slow, rate.fast, why),
        ("benchmarks/tpu_v3.py", "docs/guides/cost.md"),
    )


def rate_of_both_sides(experts: int, layers: int, millions: int) -> str:
    """Return the steps a second if a step's tokens are those of both sides together."""
    case = case_of(experts, layers, millions)
    cost = estimate(replace(case, groups=case.groups // 2))
    return f"{1 / cost.serial_seconds:.2f} to {1 / cost.least_seconds:.2f} steps/s"


def rate_flops(experts: int, layers: int, millions: int, steps: float) -> float:
    """Return the FLOP/s of a core at the paper's rate."""
    return estimate(case_of(experts, layers, millions)).flops * steps
