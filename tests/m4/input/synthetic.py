"""Made-up parallel text in several scripts, and the pipeline's pieces made of it."""

from __future__ import annotations

import random
import warnings

from examples.m4.input.tokens import Tokens, write_tokens
from examples.m4.input.vocabulary import Vocabularies

ALPHABETS = {
    "de": "abcdefgäöü",
    "el": "αβγδεζηθικ",
    "hi": "कखगघचछजझटठ",
    "ru": "абвгдежзик",
    "zh": "天地人山水火木金土日",
}
SIZES = {"de": 400, "el": 150, "hi": 60, "ru": 250, "zh": 17}


def corpus(
    sizes: dict[str, int] | None = None, longest: int = 12
) -> dict[str, list[tuple[str, str]]]:
    """Pairs of random words, all different; English is numbered, so that it identifies a pair."""
    made = {}
    for language, size in (sizes or SIZES).items():
        draw = random.Random(language)
        words = [
            "".join(draw.choices(ALPHABETS[language], k=draw.randint(1, 5))) for _ in range(50)
        ]
        made[language] = []
        for number in range(size):
            length = draw.randint(1, longest)
            space = "" if language == "zh" else " "
            english = " ".join(["the word"] * (length // 2) + [language, str(number)])
            made[language].append(
                (space.join(draw.choices(words, k=length)) + space + words[number % 50], english)
            )
    return made


def vocabularies(pairs: dict[str, list[tuple[str, str]]], size: int = 400) -> Vocabularies:
    """Small vocabularies of a corpus."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return Vocabularies.train(pairs, size, size)


def tokens(folder, pairs: dict[str, list[tuple[str, str]]] | None = None) -> Tokens:
    """The tokens of a corpus."""
    pairs = corpus() if pairs is None else pairs
    return write_tokens(folder, pairs, *vocabularies(pairs))
