"""A corpus of invented languages: small, made in a second, with the structure of the real one.

Every language says the sentences of one English grammar in its own way, so that a perfect
translator is possible. What a model learns from a large language helps with its small relatives.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

from examples.m4.corpus.folders import fresh_directory, write_pairs
from examples.m4.corpus.grammar import Sentence, english, random_sentence
from examples.m4.corpus.holdout import Pair, Pairs, fold
from examples.m4.corpus.invented import Language, invent
from namedmesh.errors.errors import NamedMeshError, check_size

MOST = 520  # codes qaa to qtz are those of ISO 639-3 for private use


def build_synthetic_corpus(
    root: str | os.PathLike,
    *,
    languages: int = 12,
    largest: int = 4000,
    smallest: int = 200,
    exponent: float = 1.0,
    dev: int = 100,
    test: int = 200,
    seed: int = 0,
    progress: Callable[[str], object] = print,
) -> None:
    """Write a corpus of invented languages.

    The language of rank r has largest / r**exponent train pairs, but at least smallest.
    """
    for name, size in dict(
        languages=languages, largest=largest, smallest=smallest, dev=dev, test=test
    ).items():
        check_size(size, name)
    if languages > MOST:
        raise NamedMeshError(f"{languages} languages are asked for", fix=f"ask for at most {MOST}")
    invented = invent_languages(languages, seed)
    sizes = {
        code: max(smallest, int(largest / rank**exponent)) for rank, code in enumerate(invented, 1)
    }
    with fresh_directory(root) as folder:
        sentences = _sentences(dev + test + max(sizes.values()) * 3 // 2, seed)
        parts: dict[str, Pairs] = {"train": {}, "dev": {}, "test": {}}
        for code, language in invented.items():
            sample = random.Random(f"{seed}/sample {code}").sample(
                sentences[dev + test :], sizes[code]
            )
            chosen = {"train": sample, "dev": sentences[:dev], "test": sentences[dev : dev + test]}
            for split, some in chosen.items():
                parts[split][code] = [_pair(language, sentence) for sentence in some]
        write_pairs(
            folder,
            parts,
            {"seed": seed, "languages": {code: _facts(one) for code, one in invented.items()}},
        )
    progress(f"wrote {sum(sizes.values()):,} train pairs in {languages} languages")


def invent_languages(count: int, seed: int = 0) -> dict[str, Language]:
    """Invent languages in families of about three: the first of each, then the second, ..."""
    families = count // 3 + 1
    return {
        _code(index): invent(index % families, index // families, seed) for index in range(count)
    }


def _sentences(count: int, seed: int) -> list[Sentence]:
    """Make sentences whose English differs by more than case and punctuation."""
    generator = random.Random(f"{seed}/sentences")
    sentences: dict[str, Sentence] = {}
    while len(sentences) < count:
        sentence = random_sentence(generator)
        sentences.setdefault(fold(english(sentence)), sentence)
    return list(sentences.values())


def _pair(language: Language, sentence: Sentence) -> Pair:
    return language.sentence(sentence), english(sentence)


def _code(index: int) -> str:
    return "q" + chr(ord("a") + index // 26) + chr(ord("a") + index % 26)


def _facts(language: Language) -> dict[str, object]:
    return {
        "family": language.family,
        "script": language.script,
        "order": language.order,
        "adjectives": "before" if language.adjective_first else "after",
        "adpositions": "after" if language.postpositions else "before",
    }
