"""Scores for people to read: tables, samples, and the difference to bilingual baselines."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from examples.m4.run import Run
from namedmesh.errors.errors import NamedMeshError
from namedmesh.training import render_table


def format_scores(result: dict[str, Any], baselines: dict[str, float] | None = None) -> str:
    """Format the scores by language, from high to low resource, and their averages."""
    header = ["set", "language", "train pairs", "BLEU", "chrF"]
    header += ["delta BLEU"] if baselines else []
    rows = []
    for row in sorted(result["languages"], key=lambda row: (row["set"], -row["train_pairs"])):
        cells = [row["set"], row["language"], f"{row['train_pairs']:,}"]
        cells += [f"{row['bleu']:.1f}", f"{row['chrf']:.1f}"]
        baseline = (baselines or {}).get(f"{row['set']}/{row['language']}")
        cells += [] if baseline is None else [f"{row['bleu'] - baseline:+.1f}"]
        rows.append(cells)
    for row in result["averages"]:
        label = f"{row['resources']} ({row['languages']})"
        rows.append([row["set"], label, "", f"{row['bleu']:.1f}", f"{row['chrf']:.1f}"])
    table = render_table(header, rows, right=header[2:])
    return "\n".join([table, *(f"{name}: {text}" for name, text in result["signatures"].items())])


def format_samples(result: dict[str, Any], count: int = 8) -> str:
    """Format some translations, each of another language, from high to low resource."""
    rows = sorted(result["languages"], key=lambda row: -row["train_pairs"])
    count = min(count, len(rows))
    chosen = [rows[round(i * (len(rows) - 1) / max(count - 1, 1))] for i in range(count)]
    lines = []
    for number, row in enumerate(chosen):
        sample = row["samples"][number % len(row["samples"])]
        lines += [
            f"{row['language']}: {sample['source']}",
            f"  reference:   {sample['english']}",
            f"  translation: {sample['translation']}",
        ]
    return "\n".join(lines)


def read_baselines(folders: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Read the scores of other runs, bilingual baselines, by set/language."""
    rows: dict[str, dict[str, Any]] = {}
    for folder in folders:
        path = Run(folder).folder / "evaluation.json"
        if not path.exists():
            raise NamedMeshError(
                f"{folder} has no evaluation.json", fix=f"run evaluate with --run {folder} first"
            )
        for row in json.loads(path.read_text(encoding="utf-8"))["languages"]:
            rows[f"{row['set']}/{row['language']}"] = row
    return rows


def select_comparable(
    baselines: dict[str, dict[str, Any]],
    result: dict[str, Any],
    say: Callable[[str], None] = print,
) -> dict[str, float]:
    """Select the BLEU of baselines with as many sentences as the result; say which have not."""
    scores = {}
    for row in result["languages"]:
        name = f"{row['set']}/{row['language']}"
        baseline = baselines.get(name)
        if baseline is None:
            continue
        if baseline["sentences"] == row["sentences"]:
            scores[name] = baseline["bleu"]
        else:
            say(
                f"{name}: no delta BLEU, since the baseline has {baseline['sentences']} sentences "
                f"and this run {row['sentences']}"
            )
    return scores
