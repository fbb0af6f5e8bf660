import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from examples.m4.corpus import Wanted, build_debian_corpus, read_corpus
from examples.m4.corpus.debian.buckets import hash_key, normalize
from examples.m4.corpus.debian.heldout import is_held_out
from examples.m4.run import open_corpus
from namedmesh.errors.errors import NamedMeshError
from tests.m4.corpus.debian.repository import Deb, Repository
from tests.m4.corpus.making import catalog

pytestmark = pytest.mark.skipif(
    not (shutil.which("apt-get") and shutil.which("dpkg-deb")), reason="there is no apt here"
)

WORDS = [f"{first}{last}" for first in ("ba", "do", "ki", "lu", "me") for last in "abcdefgh"]
DRAW = random.Random(0)
ENGLISH = [" ".join(DRAW.choices(WORDS, k=6)) for _ in range(320)]
LANGUAGES = {"de": "Zeige mir {} ü", "fr": "Montre {} é", "cs": "Ukaž {} ř", "ru": "Покажи {} я"}


def translate(language: str, english: str) -> str:
    """An invented translation: long enough, and not the English."""
    return LANGUAGES[language].format(english[::-1])


def make_deb(name: str, texts: list[str], **more: bytes) -> Deb:
    """A package with a catalog of texts in every language."""
    files = {
        f"usr/share/locale/{language}/LC_MESSAGES/{name}.mo": catalog(
            {text: translate(language, text) for text in texts}
        )
        for language in LANGUAGES
    }
    licence = b"Format: dep5\n\nFiles: *\nLicense: GPL-2+\n"
    return Deb(name, {**files, f"usr/share/doc/{name}/copyright": licence, **more})


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Repository:
    """Packages that share half of their messages with the next one."""
    folder = tmp_path_factory.mktemp("repository")
    debs = [make_deb(f"program{i}", ENGLISH[i * 40 : i * 40 + 80]) for i in range(7)]
    made = Repository(folder, debs)
    made.write()
    return made


def build(repository: Repository, root: pathlib.Path, wanted=Wanted(), **options) -> list[str]:
    """Build a corpus with a cache beside it; return what was said."""
    said: list[str] = []
    options = {"cache": root.parent / "cache", "workers": 2, **options}
    build_debian_corpus(
        root, wanted, sources=repository.folder / "sources.list", progress=said.append, **options
    )
    return said


def digest(root: pathlib.Path) -> dict[str, str]:
    """The digest of every file under a folder."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def built(repository, tmp_path_factory) -> pathlib.Path:
    """The corpus of all packages."""
    root = tmp_path_factory.mktemp("built") / "corpus"
    said = build(repository, root)
    assert any("all 4" in line for line in said)
    return root


def test_every_message_comes_once_and_is_held_out_by_its_hash(built):
    corpus = read_corpus(built)
    assert set(corpus.train) == set(LANGUAGES)
    for language, pairs in corpus.train.items():
        kept = [text for text in ENGLISH if not is_held_out(normalize(text))]
        assert sorted(english for _, english in pairs) == sorted(kept)
        assert all(source == translate(language, english) for source, english in pairs)
        held = [*corpus.dev[language], *corpus.tests["main"][language]]
        assert {english for _, english in held} == {*ENGLISH} - {*kept}


def test_licences_and_origins_are_recorded(built):
    header, *rows = (line.split("\t") for line in (built / "sources.tsv").read_text().splitlines())
    sources = [dict(zip(header, row, strict=True)) for row in rows]
    assert [source["package"] for source in sources[:7]] == [f"program{i}" for i in range(7)]
    assert {source["licence"] for source in sources[:7]} == {"GPL-2+"}
    facts = json.loads((built / "corpus.json").read_text())
    assert "Test stable 1" in facts["made from"] and facts["skipped"] == {}
    assert facts["pairs"]["de"]["train"] == len(read_corpus(built).train["de"])


def test_a_second_build_is_the_same_whatever_was_kept(repository, built, tmp_path):
    build(repository, tmp_path / "again" / "corpus", workers=1)
    build(repository, tmp_path / "again" / "corpus")
    assert digest(tmp_path / "again" / "corpus") == digest(built)


def test_languages_and_sizes_hold_out_the_same(repository, built, tmp_path):
    whole = read_corpus(built)
    build(repository, tmp_path / "corpus", Wanted(languages=["de", "ru"], pairs=300))
    part = read_corpus(tmp_path / "corpus")
    assert set(part.train) == {"de", "ru"}
    assert part.tests["main"] == {code: whole.tests["main"][code] for code in ("de", "ru")}
    assert sum(map(len, part.train.values())) == pytest.approx(300, abs=30)
    english = {text for pairs in part.train.values() for _, text in pairs}
    assert len(english) > 250  # one translation of nearly each, rather than two of half of them
    assert all({*pairs} <= {*whole.train[code]} for code, pairs in part.train.items())


def test_reserved_sentences_and_near_duplicates_are_left_out(repository, built, tmp_path):
    given = " ".join([*ENGLISH[3].split()[:5], "tree"])  # two 4-grams of three are the same
    far = " ".join([*ENGLISH[4].split()[:4], "old", "tree"])  # one of three
    reserved = ENGLISH[100]
    other = tmp_path / "other"
    for split in ("dev", "test"):
        (other / split).mkdir(parents=True)
        lines = f"{split} wie dort\t{given}\n{split} und hier\t{far}\n"
        (other / split / "de-en.tsv").write_text(lines)
    (tmp_path / "reserved.txt").write_text(hash_key(normalize(reserved)) + "\n")
    wanted = Wanted(held_out=other, reserved=tmp_path / "reserved.txt")
    build(repository, tmp_path / "corpus", wanted)
    corpus = read_corpus(tmp_path / "corpus")
    english = {text for pairs in corpus.train.values() for _, text in pairs}
    assert {ENGLISH[3], reserved}.isdisjoint(english) and ENGLISH[4] in english
    assert corpus.tests["main"] == {"de": [("test wie dort", given), ("test und hier", far)]}
    assert any(is_held_out(normalize(text)) for text in english)  # by that corpus, not by the rule


def test_a_corrupt_package_is_named_and_skipped(repository, tmp_path):
    """One whose digest is wrong, one that is not a package, and one with a damaged catalog."""
    broken = b"this is no catalog"
    path = "usr/share/locale/de/LC_MESSAGES/extra.mo"
    debs = [*repository.debs, make_deb("odd", ENGLISH[:60], **{path: broken})]
    made = Repository(tmp_path / "repository", debs)
    made.write()
    made.path("program1").write_bytes(b"changed" + made.path("program1").read_bytes()[7:])
    packages = tmp_path / "repository" / "dists" / "stable"
    before = made.path("program2").read_bytes()
    made.path("program2").write_bytes(b"!<arch>\n" + b"x" * (len(before) - 8))
    wrong, right = (
        hashlib.sha256(content).hexdigest()
        for content in (before, made.path("program2").read_bytes())
    )
    files = {}
    for file in packages.rglob("Packages"):
        name = file.relative_to(packages).as_posix()
        files[name] = file.read_text().replace(wrong, right)
    for name in ("main/Contents-all", "main/i18n/Translation-en"):
        files[name] = (packages / name).read_text()
    made._write_release(files)
    said = build(made, tmp_path / "corpus")
    skipped = [line for line in said if line.startswith("skipped")]
    assert len(skipped) == 2
    assert "program1" in skipped[0] and "mismatch" in skipped[0].lower()
    assert "program2" in skipped[1] and "damaged" in skipped[1]
    facts = json.loads((tmp_path / "corpus" / "corpus.json").read_text())
    assert list(facts["skipped"]) == ["program1", "program2"]
    rows = (tmp_path / "corpus" / "sources.tsv").read_text()
    assert "odd\t" in rows and "program1\t" not in rows


def test_a_killed_build_goes_on_and_makes_the_same(repository, built, tmp_path):
    root, cache = tmp_path / "corpus", tmp_path / "cache"
    command = [sys.executable, "-m", "examples.m4.corpus", "debian", root, "--cache", cache]
    command += ["--sources", repository.folder / "sources.list", "--workers", "1"]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not any((cache / "records").glob("*.gz")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    records = {path.name: path.stat().st_mtime_ns for path in (cache / "records").glob("*.gz")}
    assert records and not root.exists()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert digest(root) == digest(built)
    kept = {path.name: path.stat().st_mtime_ns for path in (cache / "records").glob("*.gz")}
    assert records.items() <= kept.items()
    left = [path.name for path in cache.parent.iterdir()]
    assert sorted(name for name in left if not name.startswith(".corpus.")) == ["cache", "corpus"]


def test_a_build_that_is_told_to_stop_ends_its_processes_and_says_how_to_go_on(
    repository, tmp_path
):
    root, cache = tmp_path / "corpus", tmp_path / "cache"
    command = [sys.executable, "-m", "examples.m4.corpus", "debian", root, "--cache", cache]
    command += ["--sources", repository.folder / "sources.list", "--workers", "2"]
    process = subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    deadline = time.monotonic() + 60
    while not any((cache / "records").glob("*.gz")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGTERM)  # of the workers none gets it
    said, _ = process.communicate(timeout=60)  # which waits for all that hold the pipe
    assert process.returncode == 130
    assert said.endswith("stopped; the same command goes on from there\n")
    assert "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


@pytest.mark.parametrize("options", [{"wanted": Wanted(pairs=0)}, {"workers": 0}])
def test_a_size_that_is_not_positive_is_told_before_anything_is_done(repository, options, tmp_path):
    with pytest.raises(NamedMeshError, match="has size 0"):
        build(repository, tmp_path / "corpus", **options)
    assert not any(tmp_path.iterdir())


def test_an_unknown_language_is_told_with_those_that_there_are(repository, tmp_path):
    with pytest.raises(NamedMeshError, match="too little of language 'klingon'") as caught:
        build(repository, tmp_path / "corpus", Wanted(languages=["klingon", "de"]))
    assert all(language in caught.value.fix for language in LANGUAGES)


def test_a_list_of_sources_that_is_not_there_leaves_the_lists_as_they_are(repository, tmp_path):
    build(repository, tmp_path / "corpus")
    with pytest.raises(NamedMeshError, match="is not a file"):
        build_debian_corpus(tmp_path / "other", cache=tmp_path / "cache", sources=tmp_path / "none")
    assert not any("fetching" in line for line in build(repository, tmp_path / "corpus"))


def test_descriptions_and_manual_pages_are_read(tmp_path):
    page = ".TH tool 1\n.SH NAME\ntool \\- does things\n.SH DESCRIPTION\n{}\n.PP\n{}\n"
    english = page.format("The \\fBtool\\fR reads a file. It then writes another.", "See below.")
    german = page.format("Das \\fBWerkzeug\\fR liest Dateien. Dann schreibt es.", "Siehe unten.")
    shifted = ".PP\n" + page.format("Cet outil lit un fichier. Puis il écrit.", "Voir plus bas.")
    text = "small tool\n This package has a tool. It is small and nice.\n .\n  a list\n"
    tool = Deb("tool", {"usr/share/man/man1/tool.1": english.encode()}, text)
    pages = {
        "usr/share/man/de/man1/tool.1": german.encode(),
        "usr/share/man/fr/man1/tool.1": shifted.encode(),
    }
    translated = Deb("manuals", pages)
    messages = make_deb("program", ENGLISH[:300])
    text = "kleines Werkzeug\n Dieses Paket hat etwas. Es ist klein und nett.\n .\n  Liste"
    texts = {"de": {"tool": text}}
    made = Repository(tmp_path / "repository", [tool, translated, messages], texts)
    made.write()
    names = ["tool", "manuals", "program"]
    build(made, tmp_path / "corpus", Wanted(packages=names))
    train = read_corpus(tmp_path / "corpus").train
    assert ("Das Werkzeug liest Dateien", "The tool reads a file") in train["de"]
    assert ("Siehe unten", "See below") in train["de"]
    assert not any("below" in english for _, english in train["fr"])  # of another structure
    build(made, tmp_path / "corpus")
    train = read_corpus(tmp_path / "corpus").train
    assert ("Es ist klein und nett", "It is small and nice") in train["de"]
    assert ("kleines Werkzeug", "small tool") in train["de"]


def test_pairs_of_another_corpus_are_added_and_held_out_alike(repository, built, tmp_path):
    more = [" ".join(DRAW.choices(WORDS, k=7)) for _ in range(300)]
    english = [*more, ENGLISH[0]]
    for split, texts in (
        ("train", english),
        ("dev", ["never seen before"]),
        ("test", ["nor this"]),
    ):
        (tmp_path / "other" / split).mkdir(parents=True)
        lines = [f"{translate('de', text)}\t{text}\n" for text in texts]
        (tmp_path / "other" / split / "deu.tsv").write_text("".join(lines))
    build(repository, tmp_path / "m4", Wanted(add=[tmp_path / "other"]))
    added, before = read_corpus(tmp_path / "m4"), read_corpus(built)
    assert {*added.languages} == {*before.languages}
    new = {*added.train["de"]} - {*before.train["de"]}
    assert {text for _, text in new} == {text for text in more if not is_held_out(normalize(text))}
    assert {text for _, text in new} < {*more}
    assert added.train["fr"] == before.train["fr"]
    assert "corpus other\t" in (tmp_path / "m4" / "sources.tsv").read_text()
    plain, facts = (
        json.loads((folder / "corpus.json").read_text()) for folder in (built, tmp_path / "m4")
    )
    assert facts["packages"] == plain["packages"] == 7
    assert facts["other sources"] == [*plain["other sources"], "corpus other"]


def test_an_unknown_package_is_an_error(repository, tmp_path):
    with pytest.raises(NamedMeshError, match="no package 'programm1'") as caught:
        build(repository, tmp_path / "corpus", Wanted(packages=["programm1"]))
    assert "program1" in caught.value.fix
    assert not (tmp_path / "corpus").exists()


def test_without_apt_the_next_corpus_is_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []
    with pytest.raises(NamedMeshError, match=r"this machine has no apt-get.*"):
        build_debian_corpus(tmp_path / "corpus")
    monkeypatch.setattr(
        "examples.m4.run.build_catalog_corpus",
        lambda root, progress: (_ for _ in ()).throw(NamedMeshError("no pip", fix="")),
    )
    corpus = open_corpus("debian", tmp_path, [], 0, said.append)
    assert corpus.train and "no apt-get" in said[1] and "'catalogs' instead" in said[1]
    assert {*open_corpus("debian", tmp_path, ["qab"], 0, said.append).train} == {"qab"}
