import json
import pathlib
import random
import subprocess
import sys
import unicodedata

import pytest

from examples.m4.corpus import build_synthetic_corpus, read_corpus
from examples.m4.corpus.grammar import Sentence, Thing, english, random_sentence
from examples.m4.corpus.holdout import overlap
from examples.m4.corpus.synthetic import invent_languages
from namedmesh.errors.errors import NamedMeshError

DOG, OLD_MEN = Thing("dog", False, "the"), Thing("wolf", True, "two", "angry")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("synthetic") / "corpus"
    build_synthetic_corpus(
        root, languages=12, largest=1200, smallest=150, dev=30, test=60, progress=str
    )
    return root


@pytest.mark.parametrize(
    ("sentence", "text"),
    [
        (Sentence(DOG, "see", "past", OLD_MEN, None), "The dog saw two angry wolves."),
        (
            Sentence(OLD_MEN, "carry", "present", Thing("apple", False, "a"), None),
            "Two angry wolves carry an apple.",
        ),
        (
            Sentence(DOG, "carry", "present", Thing("knife", False, "a", "old"), None),
            "The dog carries an old knife.",
        ),
        (
            Sentence(DOG, "watch", "present", DOG, ("near", DOG)),
            "The dog watches the dog near the dog.",
        ),
        (
            Sentence(
                Thing("cat", False, "this", clause=("steal", "past", DOG)),
                "sleep",
                "future",
                None,
                None,
            ),
            "This cat that stole the dog will sleep.",
        ),
        (
            Sentence(Thing("leaf", True, "these", place=("on", DOG)), "cry", "past", None, None),
            "These leaves on the dog cried.",
        ),
    ],
)
def test_english_has_number_tense_and_agreement(sentence, text):
    assert english(sentence) == text


def test_the_corpus_reads_without_a_fault_and_is_normalised(root):
    corpus = read_corpus(root)
    assert not corpus.report.faults and len(corpus.languages) == 12
    raw = (root / "train" / "qad.tsv").read_text(encoding="utf-8")
    assert unicodedata.is_normalized("NFC", raw)


def test_sizes_follow_the_power_law(root):
    train = read_corpus(root).train
    assert [len(train[code]) for code in sorted(train)] == [
        max(150, 1200 // rank) for rank in range(1, 13)
    ]


def test_the_same_english_is_held_out_everywhere_and_in_no_train_pair(root):
    corpus = read_corpus(root)
    for part, count in ((corpus.dev, 30), (corpus.tests["main"], 60)):
        assert len({tuple(text for _, text in pairs) for pairs in part.values()}) == 1
        assert {len({text for _, text in pairs}) for pairs in part.values()} == {count}
        assert overlap(corpus.train, part) == 0


def test_another_process_writes_the_same_bytes(root, tmp_path):
    code = (
        "import sys; from examples.m4.corpus import build_synthetic_corpus as build; "
        "build(sys.argv[1], languages=12, largest=1200, smallest=150, dev=30, test=60)"
    )
    command = [sys.executable, "-c", code, tmp_path / "again"]
    there = pathlib.Path(__file__).parents[3]
    subprocess.run(
        command, check=True, cwd=there, env={"PYTHONHASHSEED": "7"}, stdout=subprocess.DEVNULL
    )
    names = sorted(path.relative_to(root) for path in root.rglob("*.*"))
    assert len(names) == 37
    for name in names:
        assert (root / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_another_seed_gives_other_languages():
    assert invent_languages(3, seed=0) != invent_languages(3, seed=1)


def test_words_stand_in_the_order_of_the_language():
    languages = invent_languages(12)
    assert {language.order for language in languages.values()} == {"SVO", "SOV", "VSO", "VOS"}
    cat = Thing("cat", False, "a")
    for language in languages.values():
        words = language.sentence(
            Sentence(
                Thing("dog", False, "a"), "see", "present", cat, ("near", Thing("hill", False, "a"))
            )
        )
        place = {word: index for index, word in enumerate(words.rstrip(".").split())}
        where = {
            letter: place[language.words[word]]
            for letter, word in (("S", "dog"), ("V", "see"), ("O", "cat"))
        }
        assert "".join(sorted(where, key=where.__getitem__)) == language.order
        assert (
            place[language.words["near"]] > place[language.words["hill"]]
        ) == language.postpositions
        old_dog = Sentence(Thing("dog", False, "a", "old"), "run", "present", None, None)
        words = language.sentence(old_dog).rstrip(".").split()
        old, dog = words.index(language.words["old"]), words.index(language.words["dog"])
        assert abs(old - dog) == 1 and (old < dog) == language.adjective_first


def test_plural_and_tense_are_affixes():
    for language in invent_languages(12).values():
        one = language.sentence(Sentence(DOG, "run", "present", None, None))
        many = language.sentence(Sentence(Thing("dog", True, "the"), "run", "past", None, None))
        assert one != many
        dog, run = language.words["dog"], language.words["run"]
        assert (
            language.plural.on(dog) in many.rstrip(".").split() and dog in one.rstrip(".").split()
        )
        assert (
            language.tenses["past"].on(run) in many.rstrip(".").split()
            and run in one.rstrip(".").split()
        )


def test_a_language_has_one_word_for_each_meaning_in_one_script():
    scripts = set()
    for language in invent_languages(12).values():
        assert len(set(language.words.values())) == len(language.words) > 250
        names = {
            unicodedata.name(letter).split()[0]
            for word in language.words.values()
            for letter in word
        }
        assert names == {language.script.upper()}
        scripts |= names
    assert scripts == {"LATIN", "CYRILLIC", "GREEK", "DEVANAGARI", "ARABIC"}


def test_relatives_share_words_and_strangers_do_not():
    languages = list(invent_languages(12).values())
    for first in languages:
        for second in languages:
            shared = sum(
                first.words[meaning] == second.words[meaning] for meaning in first.words
            ) / len(first.words)
            if first is not second and first.family == second.family:
                assert 0.1 < shared < 0.9
            elif first is not second:
                assert shared < 0.05


def test_two_different_sentences_do_not_look_alike_in_a_language():
    generator = random.Random(3)
    sentences = {
        english(sentence): sentence
        for sentence in (random_sentence(generator) for _ in range(3000))
    }
    for language in invent_languages(5).values():
        assert len({language.sentence(sentence) for sentence in sentences.values()}) > 0.99 * len(
            sentences
        )


def test_the_record_says_what_each_language_is_like(root):
    record = json.loads((root / "corpus.json").read_text())
    assert record["languages"]["qab"]["script"] == "Cyrillic" and record["pairs"]["qab"] == {
        "train": 600,
        "dev": 30,
        "test": 60,
    }


def test_sizes_that_make_no_sense_are_errors(tmp_path):
    with pytest.raises(NamedMeshError, match="languages has size 0"):
        build_synthetic_corpus(tmp_path / "out", languages=0)
    with pytest.raises(NamedMeshError, match="ask for at most 520"):
        build_synthetic_corpus(tmp_path / "out", languages=521)
