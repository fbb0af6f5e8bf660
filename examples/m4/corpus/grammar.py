"""The English of the synthetic corpus: what its sentences are made of, and how they read."""

from __future__ import annotations

import random
from dataclasses import dataclass


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NOUNS = _words("""
apple artist baker bear bell bird boat book bottle bowl boy bridge brother candle captain cat
chair cloud coat cook cow cup dancer daughter desk doctor dog door dream driver duck eagle
engineer farmer father finger flower forest fox friend garden gate girl goat guest hammer hat
hill horse house hunter island judge key king kitchen lamp lawyer leaf letter lion mirror monkey
mother mountain nurse ocean owl painter pencil picture pilot plate poet prince queen rabbit ring
river road rope sailor school shepherd ship shoe singer sister snake soldier son spoon star
stone stranger student table tailor teacher temple thief tiger tower train tree uncle village
violin wagon wall whale window wolf worker writer""")
ADJECTIVES = _words("""
angry black blue brave bright broken calm clever cold dark deep dirty dry empty famous fast fat
fresh gentle golden green happy heavy humble hungry kind large lazy loud lucky modest narrow new
old patient poor proud quick quiet red rich round sad sharp short silent silver slow small soft
strange strong tall thin tired warm weak wet white wide wild wise young""")
VERBS_WITH_OBJECT = _words("""
admire answer attack build buy call carry catch choose clean cover draw find follow forget greet
guard hate hear help hide hold invite know lead lose love move need notice open paint praise
protect pull push remember see sell send show steal thank touch visit want warn wash watch""")
VERBS_ALONE = _words("""
arise arrive cry dance disappear fall fly jump laugh leave rest return run shine sing sleep smile
swim wait walk""")
PREPOSITIONS = _words("above behind beside from in near on through under with without")
DETERMINERS = {
    False: ("the", "a", "this", "every"),
    True: ("the", "these", "two", "three", "many"),
}  # by plural
TENSES = ("past", "present", "future")
_PLURALS = {"leaf": "leaves", "wolf": "wolves", "thief": "thieves"}
_PASTS = dict(
    pair.split(":")
    for pair in _words("""
arise:arose build:built buy:bought catch:caught choose:chose draw:drew fall:fell find:found
fly:flew forget:forgot hear:heard hide:hid hold:held know:knew lead:led leave:left lose:lost
run:ran see:saw sell:sold send:sent shine:shone sing:sang sleep:slept steal:stole swim:swam""")
)


@dataclass(frozen=True)
class Thing:
    """A noun and its description: the man, two old dogs near the river, a bird that sings."""

    noun: str
    plural: bool
    determiner: str
    adjective: str | None = None
    place: tuple[str, Thing] | None = None
    clause: tuple[str, str, Thing | None] | None = None  # verb, tense, object


@dataclass(frozen=True)
class Sentence:
    """A subject, a verb, an object, a time and a place."""

    subject: Thing
    verb: str
    tense: str
    object: Thing | None
    place: tuple[str, Thing] | None


def random_sentence(generator: random.Random) -> Sentence:
    """Make a sentence of the grammar."""
    verb, target = _action(generator, depth=1)
    place = (
        (generator.choice(PREPOSITIONS), _thing(generator, depth=0))
        if generator.random() < 0.35
        else None
    )
    return Sentence(_thing(generator, depth=1), verb, generator.choice(TENSES), target, place)


def english(sentence: Sentence) -> str:
    """Say the sentence in English."""
    parts = [
        _phrase(sentence.subject),
        _verb(sentence.verb, sentence.tense, sentence.subject.plural),
    ]
    if sentence.object:
        parts.append(_phrase(sentence.object))
    if sentence.place:
        parts += [sentence.place[0], _phrase(sentence.place[1])]
    text = " ".join(parts)
    return text[0].upper() + text[1:] + "."


def _action(generator: random.Random, depth: int) -> tuple[str, Thing | None]:
    if generator.random() < 0.7:
        return generator.choice(VERBS_WITH_OBJECT), _thing(generator, depth)
    return generator.choice(VERBS_ALONE), None


def _thing(generator: random.Random, depth: int) -> Thing:
    place, clause = None, None
    more = generator.random() if depth else 1.0
    if more < 0.15:
        place = (generator.choice(PREPOSITIONS), _thing(generator, depth - 1))
    elif more < 0.3:
        verb, target = _action(generator, depth - 1)
        clause = (verb, generator.choice(TENSES), target)
    adjective = generator.choice(ADJECTIVES) if generator.random() < 0.4 else None
    plural = generator.random() < 0.35
    determiner = generator.choice(("the", *DETERMINERS[plural]))
    return Thing(generator.choice(NOUNS), plural, determiner, adjective, place, clause)


def _phrase(thing: Thing) -> str:
    words = [thing.adjective] if thing.adjective else []
    words.append(_plural(thing.noun) if thing.plural else thing.noun)
    determiner = "an" if thing.determiner == "a" and words[0][0] in "aeiou" else thing.determiner
    words.insert(0, determiner)
    if thing.place:
        words += [thing.place[0], _phrase(thing.place[1])]
    if thing.clause:
        verb, tense, target = thing.clause
        words += ["that", _verb(verb, tense, thing.plural)] + ([_phrase(target)] if target else [])
    return " ".join(words)


def _plural(noun: str) -> str:
    if noun in _PLURALS:
        return _PLURALS[noun]
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def _verb(verb: str, tense: str, plural: bool) -> str:
    consonant_y = verb.endswith("y") and verb[-2] not in "aeiou"
    if tense == "future":
        return f"will {verb}"
    if tense == "past":
        regular = verb[:-1] + "ied" if consonant_y else verb + ("d" if verb.endswith("e") else "ed")
        return _PASTS.get(verb, regular)
    if plural:
        return verb
    return (
        verb[:-1] + "ies"
        if consonant_y
        else verb + ("es" if verb.endswith(("s", "x", "ch", "sh")) else "s")
    )
