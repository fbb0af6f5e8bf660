import numpy as np
import pytest

from examples.m4.input.identification import BUCKETS, Languages, hash_runs
from namedmesh.errors.errors import NamedMeshError

WORDS = {
    "de": "der die und nicht eine Datei wurde geöffnet kann werden Fehler beim Schreiben",
    "fr": "le la les fichier ne peut pas être ouvert erreur lors de écriture une",
    "es": "el los archivo no se puede abrir error al escribir una ventana nueva",
    "ru": "файл не может быть открыт ошибка при записи новое окно",
    "bg": "файлът не може да бъде отворен грешка при запис нов прозорец",
}


def sentences(language: str, count: int, seed: int) -> list[str]:
    draw = np.random.default_rng([seed, len(language), *language.encode()])
    return [" ".join(draw.choice(WORDS[language].split(), 6)) for _ in range(count)]


@pytest.fixture(scope="module")
def languages() -> Languages:
    return Languages.train(
        {code: [(text, "English") for text in sentences(code, 300, 0)] for code in WORDS}
    )


@pytest.mark.parametrize("language", WORDS)
def test_sentences_are_told_apart(languages, language):
    guesses = [languages.guess(text)[0] for text in sentences(language, 50, 1)]
    assert sum(guess.language == language for guess in guesses) >= 48
    assert np.mean([guess.probability for guess in guesses]) > 0.9


def test_guesses_are_probabilities_in_order(languages):
    found = languages.guess("файл", most=5)
    assert [guess.probability for guess in found] == sorted(
        (guess.probability for guess in found), reverse=True
    )
    assert sum(guess.probability for guess in found) == pytest.approx(1.0)
    assert {found[0].language, found[1].language} == {"ru", "bg"}


@pytest.mark.parametrize("text", ["", "   ", "1234 !?"])
def test_without_letters_there_is_no_guess(languages, text):
    assert languages.guess(text) == []


def test_a_file_brings_them_back(languages, tmp_path):
    languages.save(tmp_path / "languages.npz")
    again = Languages.load(tmp_path / "languages.npz")
    assert again.guess("eine neue Datei") == languages.guess("eine neue Datei")
    assert [path.name for path in tmp_path.iterdir()] == ["languages.npz"]
    (tmp_path / "languages.npz").write_bytes(b"no")
    with pytest.raises(NamedMeshError, match="does not tell languages apart"):
        Languages.load(tmp_path / "languages.npz")


def test_runs_are_hashed_evenly_and_alike():
    text = "".join(chr(code) for code in np.random.default_rng(0).integers(0x61, 0x2FFF, 20000))
    counts = np.bincount(hash_runs(text), minlength=BUCKETS)
    assert (counts > 0).mean() > 0.8  # 80,000 balls in 32,768 bins leave a tenth of them empty
    assert hash_runs("ÄB").tolist() == hash_runs("äb").tolist()
