"""Examples in docstrings become code on the reference pages."""

import pytest

from docs.site.doctests import format_examples


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("One line.", "One line."),
        (
            "Adds.\n\n>>> 1 + 1\n2\n\nMore text.",
            "Adds.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore text.",
        ),
        ("Adds:\n>>> 1 + 1\n2", "Adds:\n\n```pycon\n>>> 1 + 1\n2\n```"),
        (
            "Adds.\n\nExample:\n    >>> 1 + 1\n    2\n\n    >>> 2 + 2\n    4",
            "Adds.\n\nExamples:\n    >>> 1 + 1\n    2\n\n    >>> 2 + 2\n    4",
        ),
        (
            "Example:\n    >>> 1\n    1\n\nThen:\n\n>>> 2\n2",
            "Examples:\n    >>> 1\n    1\n\nThen:\n\n```pycon\n>>> 2\n2\n```",
        ),
    ],
)
def test_examples_are_sections_or_fenced(before, after):
    assert format_examples(before) == after
