"""However a language is written, a corpus has one code for it."""

import pytest

from examples.m4.corpus.languages import standard_code


@pytest.mark.parametrize(
    ("written", "code"),
    [("deu", "de"), ("ger", "de"), ("de", "de"), ("de-DE", "de"), ("zho", "zh"), ("a b", None)],
)
def test_one_code_for_a_language(written, code):
    assert standard_code(written) == code
