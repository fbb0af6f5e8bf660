"""Data with faults: they are counted and said with file and line, and what is good is used."""

import shutil

import pytest

from examples.m4.corpus import read_corpus
from examples.m4.run import Run
from examples.m4.settings import preset
from namedmesh.errors.errors import NamedMeshError
from tests.m4.runs import run

FAULTS = b"\nno tab on this line\n" + b"x" * 100_000 + b"\tlong\nd\xe9\xff\tnot UTF-8\n"


@pytest.fixture
def faulty(corpus, tmp_path):
    """The corpus with four bad lines and a good one in its largest language, and an empty file."""
    root = shutil.copytree(corpus, tmp_path / "faulty")
    path = root / "train" / "qaa.tsv"
    path.write_bytes(FAULTS + path.read_bytes() + b"gut\tgood\n")
    (root / "train" / "qad.tsv").write_bytes(b"")
    return root


def refused(data, tmp_path) -> str:
    """What is said of data that a run cannot be made of."""
    heard: list[str] = []
    folder = tmp_path / "run"
    with pytest.raises(NamedMeshError) as error:
        Run(folder).start(preset("tiny"), str(data), heard.append)
    assert (
        not Run(folder).started
        and not (folder / "artifacts").exists()
        and not (folder / "data").exists()
    )
    return "\n".join([*heard, str(error.value)])


def test_faults_are_said_by_the_command_and_good_lines_are_used(faulty, corpus, tmp_path):
    done = run("train", tmp_path / "run", {"preset": "tiny", "data": faulty}, blocked=True)
    for line in (
        "1 x empty line: train/qaa.tsv:1",
        "1 x no tab: train/qaa.tsv:2",
        "1 x over 2,000 characters a side: train/qaa.tsv:3",
        "1 x not UTF-8: train/qaa.tsv:4",
        "1 x empty file: train/qad.tsv",
    ):
        assert f"\n  {line}\n" in done.stdout
    assert (
        "Traceback" not in done.stderr and "making it needs TensorFlow" in done.stderr
    )  # the data was no hindrance
    found, tokens = Run(tmp_path / "run"), Run(tmp_path / "run").tokens("train")
    assert tokens.counts == {"qaa": 301, "qab": 150, "qac": 100}
    last = tokens.examples("qaa")[-1]
    assert found.vocabularies.target.decode(tokens.target[last]) == "good"
    assert found.vocabularies.source.decode(tokens.source[last]) == "gut"
    assert found.tests == read_corpus(corpus).tests


@pytest.mark.parametrize("name", ["nowhere", "train/qaa.tsv"])
def test_a_corpus_that_is_no_directory_is_an_error_of_the_command(corpus, tmp_path, name):
    done = run("train", tmp_path / "run", {"preset": "tiny", "data": corpus / name}, blocked=True)
    assert done.returncode == 1
    what = "does not exist" if name == "nowhere" else "is a file, not a directory"
    assert f"error: the corpus '{corpus / name}' {what}" in done.stderr
    assert "fix: a corpus is DIR/train/<lang>.tsv" in done.stderr
    assert "Traceback" not in done.stderr and "lowering" not in done.stdout


def test_a_corpus_without_a_good_line_is_an_error_with_its_faults(tmp_path):
    (tmp_path / "bad" / "train").mkdir(parents=True)
    (tmp_path / "bad" / "train" / "deu.tsv").write_bytes(FAULTS)
    (tmp_path / "bad" / "train" / "fra.tsv").write_bytes(b"")
    said = refused(tmp_path / "bad", tmp_path)
    assert "has no language with a good train line" in said
    for fault in (
        "1 x not UTF-8: train/deu.tsv:4",
        "1 x no tab: train/deu.tsv:2",
        "1 x empty file: train/fra.tsv",
    ):
        assert fault in said


def test_an_empty_directory_is_an_error(tmp_path):
    (tmp_path / "empty").mkdir()
    assert "has no language with a good train line" in refused(tmp_path / "empty", tmp_path)


def test_a_corpus_without_dev_lines_is_an_error(faulty, tmp_path):
    shutil.rmtree(faulty / "dev")
    said = refused(faulty, tmp_path)
    assert "has no good dev line" in said and "1 x no directory: dev" in said
    assert "fix: add dev/<lang>.tsv" in said


def test_a_language_that_is_not_there_is_an_error(corpus, tmp_path):
    with pytest.raises(NamedMeshError, match="has no language 'qax'"):
        Run(tmp_path / "run").start(
            preset("tiny").but(languages="qaa,qax"), str(corpus), lambda text: None
        )


def test_sentences_that_are_all_too_long_are_an_error_before_lowering(tmp_path):
    for split in ("train", "dev"):
        (tmp_path / "long" / split).mkdir(parents=True)
        lines = [f"{'Wort ' * 80}{number}\t{'word ' * 80}{number}\n" for number in range(30)]
        (tmp_path / "long" / split / "deu.tsv").write_text("".join(lines))
    done = run(
        "train", tmp_path / "run", {"preset": "tiny", "data": tmp_path / "long"}, blocked=True
    )
    assert done.returncode == 1
    assert (
        "none of the 30 examples fits into a row of 64 source and 48 target tokens" in done.stderr
    )
    assert "Traceback" not in done.stderr
