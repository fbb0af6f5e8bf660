import random
import re

import numpy as np
import pytest
import sentencepiece

from examples.m4.input.vocabulary import Vocabularies, Vocabulary, sample_sources
from namedmesh.errors.errors import NamedMeshError
from tests.m4.input.synthetic import corpus, vocabularies

TEXTS = [
    "Grüße aus Köln",
    "Καλημέρα κόσμε",
    "नमस्ते दुनिया",
    "Привет, мир!",
    "天地玄黄宇宙洪荒",
    "שלום עולם",
    "สวัสดีชาวโลก",
    "ሰላም ልዑል",
]


@pytest.fixture(scope="module")
def both():
    return vocabularies(corpus())


def test_text_in_many_scripts_comes_back(both):
    for vocabulary in both:  # most of these characters are in neither: they are spelt in bytes
        assert [vocabulary.decode(ids) for ids in vocabulary.encode(TEXTS)] == TEXTS


def test_every_text_ends_with_the_end_of_sentence_and_holds_no_padding(both):
    for ids in both.source.encode([*TEXTS, ""]):
        assert ids[-1] == 1 and 1 not in ids[:-1] and 0 not in ids and 2 not in ids


def test_decoding_stops_at_the_end_and_reads_over_padding(both):
    ids = both.target.encode(["the word"])[0]
    assert both.target.decode(np.array([0, *ids, 0, 0, 5, 6], np.int32)) == "the word"
    assert both.target.decode([0, 0]) == ""


def test_ids_past_the_last_piece_read_as_unknown(both):
    unknown = both.target.decode([2])
    assert unknown and both.target.decode([both.target.size + 7]) == unknown


def test_pieces_spell_the_text_and_bytes_of_characters(both):
    for vocabulary in both:
        (ids,) = vocabulary.encode(["~ é"])
        spelt = vocabulary.pieces(ids)
        assert spelt[-1] == "⏎" and "~" in spelt and vocabulary.decode(ids) == "~ é"
        assert [piece for piece in spelt if piece.startswith("<0x")] == ["<0xC3>", "<0xA9>"]


def test_without_byte_fallback_a_strange_character_is_unknown():
    vocabulary = Vocabulary.train(["aa bb", "ab ba", "a b"], 6, byte_fallback=False)
    assert 2 in vocabulary.encode(["a漢"])[0] and vocabulary.size == 6


def test_saved_vocabularies_load_as_themselves(both, tmp_path):
    both.save(tmp_path / "made")
    again = Vocabularies.load(tmp_path / "made")
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == [
        "source.model",
        "target.model",
    ]
    assert (again.source.digest, again.target.digest) == (both.source.digest, both.target.digest)
    assert again.source.encode(TEXTS) == both.source.encode(TEXTS)
    assert both.source.digest != both.target.digest


def test_the_order_of_languages_and_texts_does_not_matter(both):
    pairs = corpus()
    again = vocabularies({language: pairs[language] for language in reversed(pairs)})
    assert (again.source.digest, again.target.digest) == (both.source.digest, both.target.digest)
    lines = [text for text, _ in pairs["de"]]
    assert (
        Vocabulary.train(lines, 300).digest
        == Vocabulary.train(random.Random(0).sample(lines, len(lines)), 300).digest
    )


def test_a_size_that_the_text_cannot_fill_is_lowered_and_said():
    with pytest.warns(UserWarning, match=r"3 sentences make a vocabulary of \d+, not 64000"):
        vocabulary = Vocabulary.train(["one two", "two three", "four"], 64_000)
    assert vocabulary.size < 300
    assert vocabulary.decode(vocabulary.encode(["two three four"])[0]) == "two three four"


def test_a_size_below_the_characters_names_the_least():
    with pytest.raises(NamedMeshError, match="a vocabulary of 100 is too small") as raised:
        Vocabulary.train(["abc", "def"], 100)
    match = re.search(r"at least (\d+)", raised.value.fix)
    assert match
    least = int(match[1])
    assert Vocabulary.train(["abc", "def"], least).size == least > 256


@pytest.mark.filterwarnings("ignore:1 sentences make a vocabulary")
def test_a_size_that_is_too_small_names_its_flag():
    pairs = {"de": [("äöü", "abc")]}
    for side, sizes in {"source": (100, 300), "target": (300, 100)}.items():
        with pytest.raises(NamedMeshError, match=f"{side}: a vocabulary of 100") as raised:
            Vocabularies.train(pairs, *sizes)
        assert raised.value.fix.endswith(f"(--{side}_vocab)")


@pytest.mark.parametrize("texts", [[], ["", "  "]])
def test_no_text_is_an_error(texts):
    with pytest.raises(NamedMeshError, match="no text"):
        Vocabulary.train(texts, 300)


@pytest.mark.parametrize("pairs", [{}, {"de": []}])
def test_an_empty_corpus_is_an_error(pairs):
    with pytest.raises(NamedMeshError, match="empty corpus"):
        Vocabularies.train(pairs, 300, 300)


def test_missing_and_foreign_files_are_errors(tmp_path):
    with pytest.raises(NamedMeshError, match=r"cannot read vocabulary .*source\.model"):
        Vocabularies.load(tmp_path)
    (tmp_path / "source.model").write_text("not a model")
    with pytest.raises(NamedMeshError, match="is not a vocabulary"):
        Vocabularies.load(tmp_path)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["aa bb", "ab"]),
        model_prefix=str(tmp_path / "other"),
        vocab_size=7,
        minloglevel=2,
    )
    with pytest.raises(NamedMeshError, match="has padding, end of sentence and unknown at"):
        Vocabulary.load(tmp_path / "other.model")


def test_the_sample_weighs_languages_by_temperature():
    pairs = {
        name: [(f"{name} {number}", "x") for number in range(size)]
        for name, size in (("a", 3200), ("b", 100))
    }
    for temperature, ratio in ((1, 32), (5, 2), (float("inf"), 1)):  # 32 ** (1 / 5) = 2
        sample = [text[0] for text in sample_sources(pairs, temperature, 99, 0)]
        assert sample.count("a") / sample.count("b") == pytest.approx(ratio, rel=0.05) and len(
            sample
        ) in (99, 100)


def test_the_sample_repeats_nothing_and_has_every_language():
    pairs = {"a": [(f"a{number}", "x") for number in range(1000)], "b": [("b0", "x"), ("b1", "x")]}
    sample = sample_sources(pairs, float("inf"), 100, 0)
    assert len(set(sample)) == len(sample) == 52 and {"b0", "b1"} < set(sample)
    assert {text[0] for text in sample_sources(pairs, 1, 10, 0)} == {"a", "b"}


def test_drawn_segmentations_are_of_the_same_text_and_decided_by_the_seed(both):
    texts = [english for pairs in corpus().values() for _, english in pairs][:200]
    best, first = both.target.encode(texts), both.target.sample(texts, 0.3, seed=1)
    assert [*map(both.target.decode, first)] == [*map(both.target.decode, best)]
    assert 0.1 < np.mean([one != other for one, other in zip(first, best, strict=True)]) < 0.99
    assert both.target.sample(texts, 0.3, seed=1) == first
    assert both.target.sample(texts, 0.3, seed=2) != first
    freer = both.target.sample(texts, 0.1, seed=1)
    assert sum(map(len, best)) < sum(map(len, first)) < sum(map(len, freer))
