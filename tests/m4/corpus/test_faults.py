import gzip
import random

import pytest

from examples.m4.corpus import read_corpus
from namedmesh.errors.errors import NamedMeshError
from tests.m4.corpus.making import write

BAD = b"""gut\tgood

schlecht
zu\tviele\ttabs
\tnothing
nichts\t
"""


@pytest.fixture
def root(tmp_path):
    noise = random.Random(0)
    long = "".join(f"{noise.random()}\tline {number}\n" for number in range(20000)).encode()
    return write(
        tmp_path,
        {
            "train/deu.tsv": BAD + b"a" * 100_001 + b"\tlong\nkurz\tshort\n",
            "train/fra.tsv": b"un\tone\nd\xe9ux\ttwo\n\xff\xfe\nquatre\tfour\n",
            "train/ita.tsv": b"",
            "train/nld.tsv.gz": gzip.compress(long)[:-20000],
            "train/pol.tsv.gz": b"this is not gzip\tat all\n",
            "train/swe.tsv": "\n".join(["no tab here"] * 9 + ["ja\tyes"]),
            "dev/deu.tsv": "ja\tyes\n",
            "dev/zul.tsv": "yebo\tyes\n",
        },
    )


def test_every_fault_is_reported_with_file_and_line(root):
    places = read_corpus(root).report.places
    (broken,) = [place for place in places.pop("damaged gzip") if place.startswith("train/nld")]
    assert int(broken.partition(":")[2]) > 1000
    assert places == {
        "empty line": ["train/deu.tsv:2"],
        "no tab": [
            "train/deu.tsv:3",
            "train/swe.tsv:1",
            "train/swe.tsv:2",
            "train/swe.tsv:3",
            "train/swe.tsv:4",
        ],
        "more than one tab": ["train/deu.tsv:4"],
        "nothing on one side of the tab": ["train/deu.tsv:5", "train/deu.tsv:6"],
        "over 2,000 characters a side": ["train/deu.tsv:7"],
        "not UTF-8": ["train/fra.tsv:2", "train/fra.tsv:3"],
        "empty file": ["train/ita.tsv"],
        "no directory": ["test"],
        "no train pairs for a language": ["main dev zul"],
    }


def test_faults_are_counted_beyond_those_shown(root):
    report = read_corpus(root).report
    assert report.faults["no tab"] == 10
    assert report.faults["damaged gzip"] == 2
    assert "and 5 more" in str(report)


def test_good_lines_among_bad_ones_are_used(root):
    train = read_corpus(root).train
    assert train["deu"] == [("gut", "good"), ("kurz", "short")]
    assert train["fra"] == [("un", "one"), ("quatre", "four")]
    assert train["swe"] == [("ja", "yes")]
    assert set(train) == {"deu", "fra", "swe", "nld"}


def test_a_damaged_gzip_gives_the_whole_lines_before_the_damage(root):
    english = [text for _, text in read_corpus(root).train["nld"]]
    assert 1000 < len(english) < 20000
    assert english == [f"line {number}" for number in range(len(english))]


def test_the_limit_of_length_can_be_set(root):
    report = read_corpus(root, longest=3).report
    assert "over 3 characters a side" in report.faults
    assert len(read_corpus(root, longest=200_000).train["deu"]) == 3


def test_the_report_is_a_table(root):
    table = str(read_corpus(root, languages=["deu", "fra"]).report).splitlines()
    assert table[0].split() == [
        "set",
        "split",
        "languages",
        "pairs",
        "largest",
        "median",
        "smallest",
    ]
    assert table[1].split() == ["main", "train", "2", "4", "deu", "2", "2", "deu", "2"]
    assert table[2].split() == ["main", "dev", "1", "1", "deu", "1", "1", "deu", "1"]
    assert "  1 x empty line: train/deu.tsv:2" in table


def test_a_corpus_without_a_good_line_is_an_error_that_says_what_is_wrong(tmp_path):
    write(
        tmp_path,
        {"train/deu.tsv": "no tab\nnone here\n", "train/fra.tsv": "", "dev/deu.tsv": "ja\tyes\n"},
    )
    with pytest.raises(NamedMeshError) as error:
        read_corpus(tmp_path)
    assert "has no language with a good train line" in str(error.value)
    assert "2 x no tab: train/deu.tsv:1, train/deu.tsv:2" in str(error.value)
    assert "1 x empty file: train/fra.tsv" in str(error.value)
