import doctest

import pytest

from examples.m4.corpus import languages
from examples.m4.corpus.messages import clean, normalize_message


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("&File", "File"),
        ("_Open file", "Open file"),
        ("Sh&ow", "Show"),
        ("打开 (&O)", "打开"),
        ("開く(_O)...", "開く..."),
        ("Terms &amp; conditions", "Terms & conditions"),
        ("Rock & roll", "Rock & roll"),
        ("two\n  lines", "two lines"),
        ("cafe\u0301", "caf\u00e9"),
    ],
)
def test_accelerators_and_line_breaks_go(message, text):
    assert normalize_message(message) == text


@pytest.mark.parametrize(
    ("source", "english"),
    [
        ("%s Dateien", "%s files"),
        ("%(count)d Dateien", "%(count)d files"),
        ("{count} Dateien", "{count} files"),
        ("Hallo, ${name}", "Hello, ${name}"),
        ("<b>Fett</b>", "<b>Bold</b>"),
        ("siehe http://example.org", "see http://example.org"),
        ("siehe www.example.org", "see www.example.org"),
        ("an mich@example.org", "to me@example.org"),
        ("Die Bezeichnung", "label_title"),
        ("Datei", "datei"),
        ("Django!", "django"),
        ("1234", "a number"),
        ("Zahl", "1234"),
        ("x" * 301, "long"),
        ("", "empty"),
        ("Deutsch", "Немецкий"),
    ],
)
def test_what_only_a_program_reads_is_dropped(source, english):
    assert clean([(source, english)]) == []


def test_percent_and_quotes_of_prose_are_kept():
    pairs = [
        ("100 % Wolle", "100 % wool"),
        ("der „Hund“", 'the "dog"'),
        ("es heißt: ja.", "it's: yes."),
    ]
    assert clean(pairs) == pairs


def test_a_pair_is_kept_once_whatever_its_case_and_punctuation():
    assert clean([("Der Hund", "The dog"), ("der Hund.", "the dog."), ("Ein Hund", "The dog")]) == [
        ("Der Hund", "The dog"),
        ("Ein Hund", "The dog"),
    ]


def test_absurd_lengths_are_dropped_by_the_ratio_of_the_language():
    pairs = [("文" * number, "characters " * number) for number in range(2, 9)]
    pairs = [(source, english.strip()) for source, english in pairs]
    assert clean([*pairs, ("文" * 60, "twelve letters")]) == pairs


def test_latin_sources_of_a_language_in_another_script_are_dropped():
    pairs = [(f"собака {letter}", f"dog {letter} is here") for letter in "абвгдежзик"]
    pairs = [
        (source, english.translate({ord(letter): letter for letter in "абв"}))
        for source, english in pairs
    ]
    kept = clean([*pairs, ("web-server", "the server here")])
    assert kept == clean(pairs) and kept


def test_regions_are_merged_and_scripts_are_not():
    assert doctest.testmod(languages).failed == 0
    code = languages.language_code
    assert {code("es_419"), code("es-MX"), code("ES")} == {"es"}
    assert code("zh_HK") == "zh_Hant" and code("zh") == code("zh_CN") == "zh"
    assert code("ku_IQ") == "ckb" and code("no") == code("nb_NO") == "nb"
    assert code("templates") is None and code("en_US") is None
