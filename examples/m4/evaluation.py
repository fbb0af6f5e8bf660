"""Evaluation: BLEU and chrF by language with sacrebleu, averages by resources, and the difference to bilingual baselines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import sacrebleu

from examples.m4.checkpoints import Checkpoints
from examples.m4.input.batches import evaluation_batches
from examples.m4.run import Run
from examples.m4.settings import Settings
from examples.m4.translation import Translator
from namedmesh.dims.errors import NamedMeshError, did_you_mean
from namedmesh.runtime import load

THIRDS = ("high", "mid", "low")


def evaluate(
    run: Run,
    settings: Settings,
    *,
    sets: Sequence[str] = (),
    sentences: int = 100,
    checkpoint: str = "newest",
    say: Callable = print,
) -> dict[str, Any]:
    """Translates test sets and scores them; what comes out is also written to evaluation.json in the run."""
    tests = run.tests
    for name in sets:
        if name not in tests:
            raise NamedMeshError(f"the run has no test set {name!r}", fix=did_you_mean(name, tests))
    translator = Translator.open(run, settings, checkpoint, say)
    bleu, chrf = sacrebleu.BLEU(effective_order=False), sacrebleu.CHRF()
    counts = run.tokens("train").counts
    languages = [code for code in settings.languages.split(",") if code] or list(counts)
    jobs = [
        (name, code, pairs[:sentences])
        for name, found in tests.items()
        if name in (sets or tests)
        for code, pairs in found.items()
        if code in languages and pairs
    ]
    texts = [source for _, _, pairs in jobs for source, _ in pairs]
    say(
        f"translating {len(texts):,} sentences of {len(jobs)} test files with the model of step {translator.step} ..."
    )
    found = iter(translator.translate(texts, _counter(len(texts))))
    rows = []
    for name, code, pairs in jobs:
        made, wanted = [next(found) for _ in pairs], [english for _, english in pairs]
        scores = bleu.corpus_score(made, [wanted]).score, chrf.corpus_score(made, [wanted]).score
        row = {
            "set": name,
            "language": code,
            "train_pairs": counts.get(code, 0),
            "sentences": len(pairs),
        }
        samples = [
            {"source": source, "english": english, "translation": one}
            for (source, english), one in zip(pairs, made, strict=True)
        ]
        rows.append({**row, "bleu": scores[0], "chrf": scores[1], "samples": samples})
    result = {
        "step": translator.step,
        "signatures": {"bleu": str(bleu.get_signature()), "chrf": str(chrf.get_signature())}
        if rows
        else {},
        "languages": rows,
        "averages": averages(rows),
    }
    (run.folder / "evaluation.json").write_text(
        json.dumps(result, ensure_ascii=False, indent=1), encoding="utf-8"
    )
    return result


def _counter(total: int) -> Callable[[int], None]:
    def shown(done: int) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{done:,}/{total:,} sentences" + ("\n" if done >= total else ""))
            sys.stderr.flush()

    return shown


def thirds(counts: dict[str, int]) -> dict[str, str]:
    """Each language's third: high-, mid- or low-resource, by the pairs it is trained on."""
    ordered = sorted(counts, key=lambda code: (-counts[code], code))
    return {
        code: THIRDS[min(3 * place // max(len(ordered), 1), 2)]
        for place, code in enumerate(ordered)
    }


def averages(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean scores of each test set's thirds and of all its languages."""
    made = []
    for name in dict.fromkeys(row["set"] for row in rows):
        mine = [row for row in rows if row["set"] == name]
        third = thirds({row["language"]: row["train_pairs"] for row in mine})
        for label in (*THIRDS, "all"):
            part = [row for row in mine if label in (third[row["language"]], "all")]
            if part:
                scores = {
                    score: float(np.mean([row[score] for row in part]))
                    for score in ("bleu", "chrf")
                }
                made.append({"set": name, "resources": label, "languages": len(part), **scores})
    return made


def table(result: dict[str, Any], baselines: dict[str, float] | None = None) -> str:
    """The scores by language, from high to low resource, and their averages."""
    lines = [
        f"{'set':<12} {'language':<10} {'train pairs':>11} {'BLEU':>6} {'chrF':>6}"
        + ("  delta BLEU" if baselines else "")
    ]
    for row in sorted(result["languages"], key=lambda row: (row["set"], -row["train_pairs"])):
        line = f"{row['set']:<12} {row['language']:<10} {row['train_pairs']:>11,} {row['bleu']:>6.1f} {row['chrf']:>6.1f}"
        if baselines:
            known = baselines.get(f"{row['set']}/{row['language']}")
            line += "" if known is None else f"  {row['bleu'] - known:>+10.1f}"
        lines.append(line)
    for row in result["averages"]:
        label = f"{row['resources']} ({row['languages']})"
        lines.append(f"{row['set']:<12} {label:<22} {row['bleu']:>6.1f} {row['chrf']:>6.1f}")
    return "\n".join([*lines, *(f"{name}: {text}" for name, text in result["signatures"].items())])


def baselines(folders: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Scores by set/language from the evaluations of other runs: bilingual baselines."""
    found: dict[str, dict[str, Any]] = {}
    for folder in folders:
        path = Run(folder).folder / "evaluation.json"
        if not path.exists():
            raise NamedMeshError(
                f"{folder} has no evaluation.json", fix=f"run evaluate with --run {folder} first"
            )
        for row in json.loads(path.read_text(encoding="utf-8"))["languages"]:
            found[f"{row['set']}/{row['language']}"] = row
    return found


def comparable(
    others: dict[str, dict[str, Any]], result: dict[str, Any], say: Callable = print
) -> dict[str, float]:
    """The BLEU of the baselines that are of as many sentences as the result's; says which are not."""
    known = {}
    for row in result["languages"]:
        name = f"{row['set']}/{row['language']}"
        other = others.get(name)
        if other is not None and other["sentences"] == row["sentences"]:
            known[name] = other["bleu"]
        elif other is not None:
            say(
                f"{name}: no delta BLEU, for the baseline is of {other['sentences']} sentences and this of {row['sentences']}"
            )
    return known


def samples(result: dict[str, Any], count: int = 8) -> str:
    """Some translations, each of another language, from high to low resource."""
    rows = sorted(result["languages"], key=lambda row: -row["train_pairs"])
    count = min(count, len(rows))
    chosen = [rows[round(i * (len(rows) - 1) / max(count - 1, 1))] for i in range(count)]
    lines = []
    for number, row in enumerate(chosen):
        one = row["samples"][number % len(row["samples"])]
        lines += [
            f"{row['language']}: {one['source']}",
            f"  should be: {one['english']}",
            f"  is:        {one['translation']}",
        ]
    return "\n".join(lines)


def routing(
    run: Run,
    settings: Settings,
    *,
    batches: int = 1,
    checkpoint: str = "newest",
    say: Callable = print,
) -> dict[str, Any]:
    """How often each expert of each layer serves each language's dev sentences; nothing for a dense model."""
    if not settings.model.experts:
        return {}
    executable = load(run.artifact("evaluate", settings, say))
    checkpoints = Checkpoints(run.checkpoints)
    _, state, _ = checkpoints.restore(executable, checkpoints.named(checkpoint))
    checkpoints.close()
    dev, loads = run.tokens("dev"), {}
    shape = settings.rows, settings.source_length, settings.target_length
    for code in dev.languages:
        pairs = [(dev.source[i].tolist(), dev.target[i].tolist()) for i in dev.examples(code)]
        made = []
        for _, batch in zip(range(batches), evaluation_batches(pairs, *shape), strict=False):
            made.append(executable(state, **batch.arrays)[1])
        if made:
            loads[code] = {
                side: np.mean([np.asarray(one[f"{side}_load"]) for one in made], 0).tolist()
                for side in ("encoder", "decoder")
            }
    result = {"languages": loads}
    (run.folder / "routing.json").write_text(json.dumps(result))
    return result
