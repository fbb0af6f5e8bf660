import gzip

import pytest

from examples.m4.corpus import read_corpus, write_corpus
from namedmesh.errors.errors import NamedMeshError
from tests.m4.corpus.making import lines, write


@pytest.fixture
def root(tmp_path):
    return write(
        tmp_path,
        {
            "README.md": "a corpus",
            "languages.tsv": "not\ta language\n",
            "train/deu-en.tsv.gz": gzip.compress(b"Hund\tdog\nKatze\tcat\n"),
            "train/fra.tsv": "chien\tdog\n",
            "dev/deu-en.tsv": "Kuh\tcow\n",
            "test/deu-en.tsv": "Ziege\tgoat\n",
            "more/train/deu.tsv": "Baum\ttree\n",
            "more/train/ita.tsv": "gatto\tcat\n",
            "more/dev/ita.tsv": "cane\tdog\n",
            "more/test/ita.tsv": "mucca\tcow\n",
            "news/ita-en.tsv": "capra\tgoat\n",
        },
    )


def test_sets_are_joined_for_training_and_kept_apart_for_testing(root):
    corpus = read_corpus(root)
    assert corpus.train == {
        "deu": [("Hund", "dog"), ("Katze", "cat"), ("Baum", "tree")],
        "fra": [("chien", "dog")],
        "ita": [("gatto", "cat")],
    }
    assert corpus.dev == {"deu": [("Kuh", "cow")], "ita": [("cane", "dog")]}
    assert corpus.tests == {
        "main": {"deu": [("Ziege", "goat")]},
        "more": {"ita": [("mucca", "cow")]},
        "news": {"ita": [("capra", "goat")]},
    }
    assert corpus.languages == ["deu", "fra", "ita"]
    assert corpus.report.faults == {}


def test_some_sets_and_some_languages_can_be_read(root):
    assert read_corpus(root, sets=["main"]).languages == ["deu", "fra"]
    corpus = read_corpus(root, languages=["ita", "fra"], sets=["main", "more"])
    assert corpus.train == {"fra": [("chien", "dog")], "ita": [("gatto", "cat")]}
    assert corpus.tests == {"main": {}, "more": {"ita": [("mucca", "cow")]}}


def test_pairs_are_stripped_and_in_nfc(tmp_path):
    text = "\ufeff  cafe\u0301\t coffee \r\na\u0308pfel\tapples\r\n"
    assert read_corpus(
        write(tmp_path, {"train/fra.tsv": text, "dev/a.tsv": "", "test/a.tsv": ""})
    ).train == {"fra": [("caf\u00e9", "coffee"), ("\u00e4pfel", "apples")]}


def test_a_line_ends_only_at_a_newline(tmp_path):
    write(tmp_path, {"train/fra.tsv": "un\u2028deux\x0btrois\tone\x85two\n"})
    assert read_corpus(tmp_path).train == {"fra": [("un\u2028deux\x0btrois", "one\x85two")]}


def test_what_is_written_reads_back(root, tmp_path):
    corpus = read_corpus(root)
    write_corpus(corpus, tmp_path / "copy")
    again = read_corpus(tmp_path / "copy")
    assert (again.train, again.dev, again.tests) == (corpus.train, corpus.dev, corpus.tests)
    write_corpus(read_corpus(root, sets=["main"]), tmp_path / "copy")
    assert sorted(read_corpus(tmp_path / "copy").tests) == ["main"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_nothing_but_a_corpus_of_ours_is_written_over(root):
    with pytest.raises(NamedMeshError, match="exists and is not a corpus that we wrote"):
        write_corpus(read_corpus(root), root / "more")
    assert read_corpus(root).tests["more"] == {"ita": [("mucca", "cow")]}


def test_a_flat_directory_is_held_out_the_same_in_every_language(tmp_path):
    english = [
        f"the {word} number {number} is here"
        for number in range(20)
        for word in ("red", "blue", "tall", "old", "new")
    ]
    for language, step in (("deu", 1), ("fra", 2), ("ita", 3)):
        write(
            tmp_path,
            {
                f"{language}-en.tsv": lines(
                    [(f"{language} {index}", english[index]) for index in range(0, 100, step)]
                )
            },
        )
    corpus = read_corpus(tmp_path)
    held = {
        text
        for part in (corpus.dev, corpus.tests["main"])
        for pairs in part.values()
        for _, text in pairs
    }
    assert held and not held & {text for pairs in corpus.train.values() for _, text in pairs}
    for index, text in enumerate(english):
        there = {
            language for language, step in (("deu", 1), ("fra", 2), ("ita", 3)) if index % step == 0
        }
        parts = [corpus.train, corpus.dev, corpus.tests["main"]]
        found = [
            {language for language, pairs in part.items() if text in {other for _, other in pairs}}
            for part in parts
        ]
        assert there in found and sum(map(bool, found)) == 1
    again = read_corpus(tmp_path)
    assert (again.train, again.dev, again.tests) == (corpus.train, corpus.dev, corpus.tests)
    alone = read_corpus(tmp_path, languages=["fra"])
    assert (alone.train, alone.dev) == ({"fra": corpus.train["fra"]}, {"fra": corpus.dev["fra"]})
    assert alone.tests["main"] == {"fra": corpus.tests["main"]["fra"]}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"languages": ["dau"]}, "has no language 'dau'"),
        ({"languages": ["dau"]}, "did you mean 'deu'?"),
        ({"sets": ["noos"]}, "has no set 'noos'"),
        ({"languages": ["ita"], "sets": ["main"]}, "has no language 'ita'"),
        ({"sets": ["news"]}, "has no language with a good train line"),
    ],
)
def test_what_is_not_there_is_an_error(root, asked, message):
    with pytest.raises(NamedMeshError) as error:
        read_corpus(root, **asked)
    assert message in str(error.value)


def test_no_directory_is_an_error(tmp_path):
    with pytest.raises(
        NamedMeshError, match=r"does not exist\n(.|\n)*fix: a corpus is DIR/train/<lang>\.tsv"
    ):
        read_corpus(tmp_path / "none")
    write(tmp_path, {"file": "x"})
    with pytest.raises(NamedMeshError, match="is a file, not a directory"):
        read_corpus(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NamedMeshError, match="no language with a good train line"):
        read_corpus(tmp_path / "empty")
