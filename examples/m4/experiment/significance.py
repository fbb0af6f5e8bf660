"""Significance of one model's lead over another: sacrebleu's paired bootstrap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sacrebleu
from sacrebleu.significance import PairedTest, Result

from examples.m4.evaluation import split_in_thirds


def compare(
    baseline: dict[str, Any], system: dict[str, Any], samples: int = 1000
) -> list[dict[str, Any]]:
    """Compare two evaluations of the same sentences: of all languages, and of each third.

    Args:
        baseline: What evaluation.json of one model has.
        system: That of the other.
        samples: How many samples the bootstrap draws, the same ones every time.

    Returns:
        For each part and score, both scores over all sentences of the part together, and the
        probability p of a difference as large if there were none.
    """
    pairs = list(zip(baseline["languages"], system["languages"], strict=True))
    thirds = split_in_thirds({one["language"]: one["train_pairs"] for one, _ in pairs})
    results = []
    for part in ("all", *dict.fromkeys(thirds.values())):
        chosen = [pair for pair in pairs if part in ("all", thirds[pair[0]["language"]])]
        results += _compare_part(part, chosen, samples)
    return results


def compare_in_language(
    baseline: dict[str, Any], system: dict[str, Any], language: str, samples: int = 1000
) -> list[dict[str, Any]]:
    """Compare two evaluations in one language: a bilingual model's, and a multilingual one's.

    Args:
        baseline: What evaluation.json of one model has.
        system: That of the other.
        language: The code of the language.
        samples: How many samples the bootstrap draws, the same ones every time.

    Returns:
        As `compare` does.
    """
    found = [
        next(row for row in one["languages"] if row["language"] == language)
        for one in (baseline, system)
    ]
    return _compare_part(language, [(found[0], found[1])], samples)


def _compare_part(
    part: str, pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]], samples: int
) -> list[dict[str, Any]]:
    """Compare the sentences of some languages."""
    for one, other in pairs:
        if [sample["source"] for sample in one["samples"]] != [
            sample["source"] for sample in other["samples"]
        ]:
            raise ValueError(f"{one['language']}: the models translated other sentences")
    texts = lambda which, key: [sample[key] for pair in pairs for sample in pair[which]["samples"]]
    metrics = {"BLEU": sacrebleu.BLEU(), "chrF": sacrebleu.CHRF()}
    systems: list[tuple[str, Sequence[str]]] = [
        ("baseline", texts(0, "translation")),
        ("system", texts(1, "translation")),
    ]
    _, found = PairedTest(
        systems, metrics, [texts(0, "english")], test_type="bs", n_samples=samples
    )()
    results = []
    for name in metrics:
        label = next(key for key in found if key.lower().startswith(name.lower()))
        before, after = found[label]
        assert isinstance(before, Result) and isinstance(after, Result)
        assert after.p_value is not None
        # sacrebleu takes equal systems, and zeros in all samples, for a certain difference.
        same = systems[0][1] == systems[1][1] or before.score == after.score
        results.append(
            {
                "languages": part,
                "score": name,
                "baseline": round(float(before.score), 2),
                "system": round(float(after.score), 2),
                "p": 1.0 if same else float(after.p_value),
            }
        )
    return results
