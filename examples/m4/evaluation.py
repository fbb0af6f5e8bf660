"""Evaluation: translations of the test sets, scored with sacrebleu by language."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import sacrebleu

from examples.m4.bilingual.translation import Translators
from examples.m4.corpus.holdout import Pair
from examples.m4.input.batches import evaluation_batches
from examples.m4.run import Run
from examples.m4.settings import Settings
from examples.m4.translation import Translator
from namedmesh.errors.errors import NamedMeshError, did_you_mean
from namedmesh.runtime import load
from namedmesh.training import Checkpoints, ProgressBar, average_results

Say = Callable[[str], None]
THIRDS = ("high", "mid", "low")  # of the languages, by their train pairs


def evaluate(
    run: Run,
    settings: Settings,
    *,
    sets: Sequence[str] = (),
    sentences: int = 100,
    checkpoint: str = "newest",
    say: Say = print,
) -> dict[str, Any]:
    """Translate test sets and score them; write the result to evaluation.json in the run."""
    tests = run.tests
    for name in sets:
        if name not in tests:
            raise NamedMeshError(f"the run has no test set {name!r}", fix=did_you_mean(name, tests))
    opened = Translators if settings.by_language else Translator
    translator = opened.open(run, settings, checkpoint, say)
    counts = run.counts
    languages = [code for code in settings.languages.split(",") if code] or list(counts)
    jobs = [
        (name, code, spread(pairs, sentences))
        for name, of_set in tests.items()
        if name in (sets or tests)
        for code, pairs in of_set.items()
        if code in languages and pairs
    ]
    texts = [source for _, _, pairs in jobs for source, _ in pairs]
    say(
        f"translating {len(texts):,} sentences of {len(jobs)} test files "
        f"with the model of step {translator.step} ..."
    )
    losses: dict[str, float] = {}
    if isinstance(translator, Translators):
        losses = translator.dev_losses
        translations = iter(_translate_apart(translator, jobs))
    else:
        translations = iter(_translate(translator, texts))
    rows, signatures = [], {}
    for name, code, pairs in jobs:
        hypotheses = [next(translations) for _ in pairs]
        scores, signatures = _score(hypotheses, [english for _, english in pairs])
        samples = [
            {"source": source, "english": english, "translation": hypothesis}
            for (source, english), hypothesis in zip(pairs, hypotheses, strict=True)
        ]
        rows.append(
            {
                "set": name,
                "language": code,
                "train_pairs": counts.get(code, 0),
                "sentences": len(pairs),
                **scores,
                **({"dev_loss": losses[code]} if losses else {}),
                "samples": samples,
            }
        )
    result = {
        "step": translator.step,
        "signatures": signatures,
        "languages": rows,
        "averages": average_scores(rows),
    }
    (run.folder / "evaluation.json").write_text(
        json.dumps(result, ensure_ascii=False, indent=1), encoding="utf-8"
    )
    return result


def spread(pairs: Sequence[Pair], count: int) -> list[Pair]:
    """Choose some of a file's pairs, at most count, evenly: a file may be in the order of topics.

    >>> spread([("a", "A"), ("b", "B"), ("c", "C"), ("d", "D")], 2)
    [('a', 'A'), ('c', 'C')]
    """
    count = min(count, len(pairs))
    return [pairs[len(pairs) * place // count] for place in range(count)]


def _translate(translator: Translator, texts: Sequence[str]) -> list[str]:
    """Translate texts, with a progress bar on a terminal."""
    if not sys.stderr.isatty():
        return [translation.text for translation in translator.translate(texts)]
    bar = ProgressBar(0, len(texts), unit="sentence")
    try:
        found = translator.translate(texts, lambda count: bar.show(count, {}))
        return [translation.text for translation in found]
    finally:
        bar.close()


def _translate_apart(
    translators: Translators, jobs: Sequence[tuple[str, str, list[Pair]]]
) -> list[str]:
    """Translate the sentences of all test files, each by the model of its language."""
    texts: dict[str, list[str]] = {}
    for _, code, pairs in jobs:
        texts.setdefault(code, []).extend(source for source, _ in pairs)
    found = {code: iter(those) for code, those in translators.translate(texts).items()}
    return [next(found[code]) for _, code, pairs in jobs for _ in pairs]


def _score(hypotheses: list[str], references: list[str]) -> tuple[dict[str, float], dict[str, str]]:
    """BLEU and chrF of translations, and the signatures that say how they were computed."""
    metrics = {"bleu": sacrebleu.BLEU(effective_order=False), "chrf": sacrebleu.CHRF()}
    scores = {
        name: metric.corpus_score(hypotheses, [references]).score
        for name, metric in metrics.items()
    }
    return scores, {name: str(metric.get_signature()) for name, metric in metrics.items()}


def split_in_thirds(counts: dict[str, int]) -> dict[str, str]:
    """Assign each language to the high, mid or low third, by its number of train pairs."""
    ordered = sorted(counts, key=lambda code: (-counts[code], code))
    return {
        code: THIRDS[min(3 * place // max(len(ordered), 1), 2)]
        for place, code in enumerate(ordered)
    }


def average_scores(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Average the scores of each test set over the thirds and over all its languages."""
    averages = []
    for name in dict.fromkeys(row["set"] for row in rows):
        of_set = [row for row in rows if row["set"] == name]
        thirds = split_in_thirds({row["language"]: row["train_pairs"] for row in of_set})
        for label in (*THIRDS, "all"):
            part = [row for row in of_set if label in (thirds[row["language"]], "all")]
            if part:
                means = {
                    score: float(np.mean([row[score] for row in part]))
                    for score in ("bleu", "chrf")
                }
                averages.append({"set": name, "resources": label, "languages": len(part), **means})
    return averages


def measure_routing(
    run: Run,
    settings: Settings,
    *,
    batches: int = 1,
    checkpoint: str = "newest",
    say: Say = print,
) -> dict[str, Any]:
    """Measure how often each expert of each layer serves each language's dev sentences.

    Writes routing.json in the run; does nothing for a dense model.
    """
    if not settings.model.experts:
        return {}
    executable = load(run.artifact("evaluate", settings, say))
    with Checkpoints(run.checkpoints) as checkpoints:
        _, state, _ = checkpoints.restore(executable, checkpoints.find(checkpoint))
    dev, loads = run.tokens("dev"), {}
    shape = settings.rows, settings.source_length, settings.target_length
    for code in dev.languages:
        pairs = [(dev.source[i].tolist(), dev.target[i].tolist()) for i in dev.examples(code)]
        first = zip(range(batches), evaluation_batches(pairs, *shape), strict=False)
        inputs = [batch.arrays for _, batch in first]
        if inputs:
            means = average_results(executable, state, inputs)
            loads[code] = {
                side: np.asarray(means[f"{side}_load"]).tolist()
                for side in ("encoder", "decoder")
                if f"{side}_load" in means
            }
    result = {"languages": loads}
    (run.folder / "routing.json").write_text(json.dumps(result))
    return result
