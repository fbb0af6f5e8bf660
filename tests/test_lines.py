"""Lines are a budget: a room that outgrows its number in tests/lines.toml fails here."""

import json
import pathlib
import subprocess
import sys
import tomllib

import pytest

from benchmarks.lines import ROOT, Count, add_counts, count_source, count_tree

BUDGET = tomllib.loads(pathlib.Path(__file__).with_name("lines.toml").read_text())

SOURCE = '''"""A module
of two lines."""

import os
from pathlib import (
    Path,
)


# A comment.
def first(text: str = """not
a docstring""") -> str:
    """Return the text."""
    return text  # with a comment


class Second:
    value = "a string"
    "a string that is not a docstring"
'''


def test_blanks_comments_docstrings_and_imports_are_not_code():
    code = ["def first(", 'a docstring"""', "return text", "class", "value", '"a string that']
    assert count_source(SOURCE) == Count(code=len(code), docstrings=3, imports=4, files=1)


@pytest.fixture(scope="module")
def rooms():
    return count_tree(ROOT / "namedmesh")


def test_no_room_outgrows_its_number(rooms):
    over = {
        room: f"{count.code} lines of code, {BUDGET['rooms'].get(room, 0)} allowed"
        for room, count in rooms.items()
        if count.code > BUDGET["rooms"].get(room, 0)
    }
    assert over == {}, "delete something, or raise the number in tests/lines.toml with a reason"


def test_the_package_stays_within_its_numbers(rooms):
    total = add_counts(rooms.values())
    assert total.code <= BUDGET["package"]["code"]
    assert total.files <= BUDGET["package"]["files"]
    assert total.docstrings <= BUDGET["package"]["docstrings"]


def test_every_number_is_of_a_room_and_their_sum_is_the_packages(rooms):
    assert set(BUDGET["rooms"]) == set(rooms)
    assert sum(BUDGET["rooms"].values()) <= BUDGET["package"]["code"]


def test_the_counts_as_json(rooms, tmp_path):
    path = tmp_path / "lines.json"
    command = [sys.executable, "-m", "benchmarks.lines", "--json", str(path)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    written = json.loads(path.read_text())
    assert written["code"] == add_counts(rooms.values()).code
    assert {"files", "docstrings", "rooms", "tests", "examples", "benchmarks"} <= written.keys()
    assert written["rooms"]["ops"]["code"] == rooms["ops"].code
    assert written["tests"]["files"] == len([*(ROOT / "tests").rglob("*.py")])
