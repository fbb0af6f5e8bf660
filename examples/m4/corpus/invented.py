"""Invented languages with words, scripts, word orders and affixes; families share roots."""

from __future__ import annotations

import random
from dataclasses import dataclass

from examples.m4.corpus.grammar import (
    ADJECTIVES,
    DETERMINERS,
    NOUNS,
    PREPOSITIONS,
    VERBS_ALONE,
    VERBS_WITH_OBJECT,
    Sentence,
    Thing,
)

CONSONANTS, VOWELS = "ptkbdgmnslrvzh", "aeiou"
SCRIPTS = {  # consonants, vowels, vowels after a consonant
    "Latin": (CONSONANTS, VOWELS, VOWELS),
    "Cyrillic": ("пткбдгмнслрвзх", "аеиоу", "аеиоу"),
    "Greek": ("πτκβδγμνσλρφζχ", "αεηου", "αεηου"),
    "Devanagari": ("पतकबदगमनसलरवजह", "अएइओउ", "ाेिोु"),
    "Arabic": ("پتكبدگمنسلرڤزه", "اەيۆو", "اەيۆو"),
}
ORDERS = ("SVO", "SOV", "VSO", "VOS")
THAT, A = "that", "a"
_CONTENT = (*NOUNS, *ADJECTIVES, *VERBS_WITH_OBJECT, *VERBS_ALONE)
_MEANINGS = tuple(
    dict.fromkeys((*_CONTENT, *PREPOSITIONS, *DETERMINERS[False], *DETERMINERS[True], THAT))
)


@dataclass(frozen=True)
class Affix:
    """A prefix or a suffix."""

    text: str
    before: bool

    def on(self, word: str) -> str:
        """Put the affix on a word."""
        return self.text + word if self.before else word + self.text


@dataclass(frozen=True)
class Language:
    """The words and the grammar of one language."""

    family: int
    script: str
    order: str  # of subject, verb and object
    adjective_first: bool
    postpositions: bool  # such languages also put clauses before their noun
    plural: Affix
    tenses: dict[str, Affix]
    words: dict[str, str]

    def sentence(self, sentence: Sentence) -> str:
        """Say a sentence in this language."""
        return (
            " ".join(
                self._clause(
                    sentence.subject, sentence.verb, sentence.tense, sentence.object, sentence.place
                )
            )
            + "."
        )

    def _clause(
        self,
        subject: Thing | None,
        verb: str,
        tense: str,
        target: Thing | None,
        place: tuple[str, Thing] | None,
    ) -> list[str]:
        parts = {
            "S": self._thing(subject) if subject else [],
            "V": [self.tenses[tense].on(self.words[verb])],
            "O": self._thing(target) if target else [],
        }
        words = [parts[letter] for letter in self.order]
        words.insert(2 if self.order.endswith("V") else 3, self._place(place) if place else [])
        return [word for part in words for word in part]

    def _thing(self, thing: Thing) -> list[str]:
        noun = self.words[thing.noun]
        words = [self.plural.on(noun) if thing.plural else noun]
        if thing.adjective:
            words.insert(0 if self.adjective_first else 1, self.words[thing.adjective])
        if thing.determiner != A:
            words.insert(0, self.words[thing.determiner])
        more = self._place(thing.place) if thing.place else []
        if thing.clause:
            verb, tense, target = thing.clause
            clause, that = self._clause(None, verb, tense, target, None), [self.words[THAT]]
            more = clause + that if self.postpositions else that + clause
        return more + words if self.postpositions else words + more

    def _place(self, place: tuple[str, Thing]) -> list[str]:
        where, thing = [self.words[place[0]]], self._thing(place[1])
        return thing + where if self.postpositions else where + thing


def invent(family: int, member: int, seed: int) -> Language:
    """Invent a member of a family of languages; the seed is that of the corpus."""
    script = list(SCRIPTS)[family % len(SCRIPTS)]
    roots = random.Random(f"{seed}/family {family}")
    sounds = "".join(roots.sample(CONSONANTS, 9)), "".join(roots.sample(VOWELS, 4))
    closed = roots.random() < 0.5
    family_words = {meaning: _word(roots, sounds, closed) for meaning in _MEANINGS}
    own = random.Random(f"{seed}/family {family}/member {member}")
    shifted = own.sample(sounds[0], 2 if member else 0)
    shift = str.maketrans(dict(zip(shifted, own.sample(CONSONANTS, len(shifted)), strict=True)))
    words: dict[str, str] = {}
    taken: set[str] = set()
    for meaning, root in family_words.items():
        word = _word(own, sounds, closed) if own.random() < 0.15 else root.translate(shift)
        while word in taken:
            word = _word(own, sounds, closed)
        taken.add(word)
        words[meaning] = _spell(word, script)
    affixes: dict[str, None] = {}
    while len(affixes) < 3:
        affixes[own.choice(sounds[0]) + own.choice(sounds[1])] = None
    before = own.random() < 0.3
    plural, past, future = (Affix(_spell(text, script), before) for text in affixes)
    return Language(
        family=family,
        script=script,
        order=ORDERS[(family + member) % len(ORDERS)],
        adjective_first=own.random() < 0.5,
        postpositions=own.random() < 0.4,
        plural=plural,
        tenses={"past": past, "present": Affix("", before), "future": future},
        words=words,
    )


def _word(generator: random.Random, sounds: tuple[str, str], closed: bool) -> str:
    consonants, vowels = sounds
    word = "".join(
        generator.choice(consonants) + generator.choice(vowels)
        for _ in range(generator.randint(2, 3))
    )
    return word + generator.choice(consonants) if closed and generator.random() < 0.5 else word


def _spell(word: str, script: str) -> str:
    consonants, vowels, signs = SCRIPTS[script]
    letters = []
    for index, sound in enumerate(word):
        if sound in CONSONANTS:
            letters.append(consonants[CONSONANTS.index(sound)])
        else:
            follows = index > 0 and word[index - 1] in CONSONANTS
            letters.append((signs if follows else vowels)[VOWELS.index(sound)])
    return "".join(letters)
