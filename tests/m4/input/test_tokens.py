import json
import os

import numpy as np
import pytest

from examples.m4.input import tokens as tokens_module
from examples.m4.input.tokens import (
    Ragged,
    Segmentation,
    Tokens,
    encode_texts,
    open_or_write_tokens,
    tokens_digest,
    write_tokens,
)
from examples.m4.input.vocabulary import Vocabulary
from namedmesh.errors.errors import NamedMeshError
from tests.m4.input.synthetic import corpus, vocabularies

PAIRS = corpus({"de": 40, "ru": 25, "zh": 9})


@pytest.fixture(scope="module")
def both():
    return vocabularies(PAIRS)


def test_every_pair_comes_back(both, tmp_path):
    made = write_tokens(tmp_path / "train", PAIRS, *both)
    for tokens in (made, Tokens.open(tmp_path / "train", *both)):
        assert (
            tokens.languages == ("de", "ru", "zh")
            and tokens.counts == {"de": 40, "ru": 25, "zh": 9}
            and len(tokens) == 74
        )
        for place, language in enumerate(tokens.languages):
            for index, (source, english) in zip(
                tokens.examples(language), PAIRS[language], strict=True
            ):
                assert tokens.language[index] == place
                assert tokens.source[index].tolist() == both.source.encode([source])[0]
                assert both.target.decode(tokens.target[index]) == english


def test_the_arrays_are_mapped_and_as_small_as_the_vocabulary_allows(both, tmp_path):
    tokens = write_tokens(tmp_path / "train", PAIRS, *both)
    for array in (
        tokens.source.tokens,
        tokens.source.offsets,
        tokens.target.tokens,
        tokens.language,
    ):
        assert isinstance(array.base, np.memmap) and not array.flags.writeable
    assert tokens.source.tokens.dtype == np.uint16 and tokens.source.offsets.dtype == np.int64


def test_the_index_says_how_it_was_made(both, tmp_path):
    tokens = write_tokens(tmp_path / "train", PAIRS, *both)
    index = json.loads((tmp_path / "train" / "index.json").read_text())
    for place, side in enumerate(("source", "target")):
        vocabulary = both[place]
        texts = [pair[place] for pairs in PAIRS.values() for pair in pairs]
        lengths = [*map(len, vocabulary.encode(texts))]
        assert index[side] == {
            "vocabulary": vocabulary.digest,
            "tokens": sum(lengths),
            "longest": max(lengths),
        }
    assert index["counts"] == [40, 25, 9] and len(tokens) == 74


def test_pairs_with_the_same_english_have_its_number(both, tmp_path):
    pairs = {"de": [("eins", "one"), ("zwei", "two")], "ru": [("два", "two"), ("три", "three")]}
    tokens = write_tokens(tmp_path / "train", pairs, *both)
    assert tokens.english.tolist() == [0, 1, 1, 2]
    assert [both.target.decode(tokens.target[i]) for i in range(4)] == [
        "one",
        "two",
        "two",
        "three",
    ]


def test_many_texts_are_encoded_by_several_processes(both, monkeypatch):
    texts = [source for pairs in PAIRS.values() for source, _ in pairs] * 3
    alone = encode_texts(both.source, texts)
    monkeypatch.setattr(tokens_module, "_MANY", 10)
    monkeypatch.setattr(tokens_module, "_BLOCK", 50)
    together = encode_texts(both.source, texts)
    np.testing.assert_array_equal(alone.tokens, together.tokens)
    np.testing.assert_array_equal(alone.offsets, together.offsets)
    assert together.tokens.dtype == np.uint16


def test_segmentations_are_drawn_for_each_pair(both, tmp_path, monkeypatch):
    """Pairs of one English text have their own; a text is the same whatever encodes it."""
    text = max((english for _, english in PAIRS["de"]), key=len)
    pairs = {"a": [("x", text)] * 40, "b": [("y", text)] * 40}
    drawn = Segmentation(0.2, seed=3)
    made = write_tokens(tmp_path / "one", pairs, both.source, both.target, drawn)
    assert len({tuple(made.target[index]) for index in range(80)}) > 2
    assert {both.target.decode(made.target[index]) for index in range(80)} == {text}
    assert len({*made.english.tolist()}) == 1
    monkeypatch.setattr(tokens_module, "_MANY", 10)  # by several processes
    again = write_tokens(tmp_path / "two", pairs, both.source, both.target, drawn)
    np.testing.assert_array_equal(again.target.tokens, made.target.tokens)
    digests = [made.digest, again.digest, tokens_digest(pairs, *both)]
    digests += [tokens_digest(pairs, both.source, both.target, Segmentation(0.2, seed=4))]
    assert digests[0] == digests[1] and len({*digests}) == 3


def test_a_cache_is_used_only_for_the_same_pairs_and_vocabularies(both, tmp_path):
    folder = tmp_path / "train"

    def made(pairs=PAIRS, source=both.source) -> bool:
        before = os.stat(folder).st_ino if folder.exists() else None
        open_or_write_tokens(folder, pairs, source, both.target)
        return os.stat(folder).st_ino != before

    assert made() and not made() and not made(dict(reversed(PAIRS.items())))
    assert made({**PAIRS, "zh": PAIRS["zh"][1:]}) and made()
    assert made({**PAIRS, "zh": [*PAIRS["zh"][:-1], (PAIRS["zh"][-1][0], "other")]}) and made()
    assert made(source=both.target) and made()
    moved = [(PAIRS["zh"][0][0] + "x", "y"), ("x" + PAIRS["zh"][0][0], "y")]
    assert made({"zh": moved[:1]}) and made({"zh": moved[1:]})
    assert [path.name for path in tmp_path.iterdir()] == ["train"]


def test_tokens_of_other_vocabularies_do_not_open(both, tmp_path):
    write_tokens(tmp_path / "train", PAIRS, *both)
    with pytest.raises(NamedMeshError, match="made with another target vocabulary"):
        Tokens.open(tmp_path / "train", both.source, both.source)


def test_a_failure_leaves_the_former_folder_and_nothing_else(both, tmp_path, monkeypatch):
    write_tokens(tmp_path / "train", PAIRS, *both)
    before = (tmp_path / "train" / "index.json").read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(np, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        write_tokens(tmp_path / "train", {"de": PAIRS["de"][:5]}, *both)
    assert [path.name for path in tmp_path.iterdir()] == ["train"]
    assert (tmp_path / "train" / "index.json").read_bytes() == before


def test_a_folder_of_other_things_is_not_replaced(both, tmp_path):
    (tmp_path / "precious").write_text("keep")
    with pytest.raises(NamedMeshError, match="has no tokens, so it is not replaced"):
        open_or_write_tokens(tmp_path, PAIRS, *both)
    assert (tmp_path / "precious").read_text() == "keep"


@pytest.mark.parametrize(
    "name", ["source.npy", "target_offsets.npy", "language.npy", "english.npy", "index.json"]
)
@pytest.mark.parametrize("harm", ["missing", "cut", "other"])
def test_damage_is_found_and_fixed(name, harm, both, tmp_path):
    write_tokens(tmp_path / "train", PAIRS, *both)
    path = tmp_path / "train" / name
    if harm == "missing":
        path.unlink()
    elif harm == "cut":
        path.write_bytes(path.read_bytes()[:-10])
    elif name == "index.json":
        path.write_text('{"version": 0}')
    else:
        np.save(path, np.load(path)[:-1])
    with pytest.raises(NamedMeshError, match=r"are damaged|there are no tokens"):
        Tokens.open(tmp_path / "train")
    if (tmp_path / "train" / "index.json").exists():
        assert len(open_or_write_tokens(tmp_path / "train", PAIRS, *both)) == 74


@pytest.mark.parametrize("pairs", [{}, {"de": []}])
def test_no_example_is_an_error(pairs, both, tmp_path):
    with pytest.raises(NamedMeshError, match="there is no example to write"):
        write_tokens(tmp_path / "train", pairs, *both)


def test_a_large_vocabulary_is_stored_in_32_bits(both, tmp_path, monkeypatch):
    monkeypatch.setattr(Vocabulary, "size", 1 << 17)
    assert write_tokens(tmp_path / "train", PAIRS, *both).source.tokens.dtype == np.int32


def test_ragged_sequences_come_back():
    ragged = Ragged.of([[1, 2], [], [3]])
    assert len(ragged) == 3 and [ragged[index].tolist() for index in range(3)] == [[1, 2], [], [3]]
    assert ragged.lengths.tolist() == [2, 0, 1]
