"""The paper, section by section: rows, links, commands and the page that is made of them."""

import importlib.util
import json
import pathlib
import re

import pytest

from benchmarks.paper.__main__ import SECTIONS, make_rows
from benchmarks.paper.page import format_page
from benchmarks.paper.rows import RESULTS, Row, compare, compare_growth, compare_range, holds

ROOT = pathlib.Path(__file__).parent.parent.parent
ROWS = [
    Row(**{**row, "where": tuple(row["where"])})
    for row in json.loads((RESULTS / "paper.json").read_text())
]
STATUS = re.compile(r"equal|better|worse|differs: .+")


def find_anchors(page: pathlib.Path) -> set[str]:
    """The anchors of a page's headings, as the site makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain}


def find_dead(where: str) -> bool:
    """Whether a link leads to no file, or to no heading of it."""
    file, _, anchor = where.partition("#")
    path = ROOT / file
    return not path.is_file() or (bool(anchor) and anchor not in find_anchors(path))


def find_sources(module: str, seen: set[str]) -> str:
    """The source of a module of this repository, and of those it imports."""
    spec = importlib.util.find_spec(module) if module not in seen else None
    seen.add(module)
    if spec is None or not spec.origin or not spec.origin.startswith(str(ROOT)):
        return ""
    if spec.submodule_search_locations:
        main = find_sources(f"{module}.__main__", seen)
        return pathlib.Path(spec.origin).read_text() + main
    text = pathlib.Path(spec.origin).read_text()
    imported = re.findall(r"^\s*(?:from|import) ((?:benchmarks|examples)[\w.]*)", text, re.M)
    pairs = re.findall(r"^\s*from ((?:benchmarks|examples)[\w.]*) import (\w+)", text, re.M)
    names = [*imported, *(f"{package}.{name}" for package, name in pairs)]
    for name in names:
        try:
            text += find_sources(name, seen)
        except ModuleNotFoundError:  # a function of a module, not a module
            continue
    return text


def find_wrong(command: str) -> list[str]:
    """What a command names and is not there: its module, its options."""
    module = re.match(r"python -m ([\w.]+)", command)
    if module is None or importlib.util.find_spec(module[1]) is None:
        return [command]
    text = find_sources(module[1], set())
    options = re.findall(r"--(\w+)", command)
    commands = re.findall(r"^python -m [\w.]+ ([a-z]+)\b", command)
    # Those of argparse, those of absl, and the fields that examples make flags of, with their help.
    known = r"""(?m)"--{0}"|DEFINE_\w+\(\s*"{0}"|^    "?{0}"?: """
    defined = [known.format(name) for name in options]
    defined += [rf'"{name}"' for name in commands]
    return [one for one in defined if not re.search(one, text)]


def test_there_are_enough_rows_and_none_has_an_empty_field():
    assert len(ROWS) >= 45
    for row in ROWS:
        assert all(vars(row).values()), row
        assert STATUS.fullmatch(row.status), row


def test_every_section_has_rows():
    assert [*dict.fromkeys(row.section for row in ROWS)] == [
        f"{n} {title}" for n, title, _ in SECTIONS
    ]


def test_no_claim_is_made_twice():
    claims = [(row.section, row.claim) for row in ROWS]
    assert len(claims) == len(set(claims))


def test_every_link_leads_to_a_file_or_a_heading():
    assert [where for row in ROWS for where in row.where if find_dead(where)] == []


def test_every_command_names_a_module_with_those_options():
    assert [one for command in {row.command for row in ROWS} for one in find_wrong(command)] == []


def test_the_page_is_what_the_rows_say():
    assert (ROOT / "docs" / "paper.md").read_text() == format_page(ROWS)


@pytest.mark.parametrize("section", ["3.3.2", "A.2", "A.4"])
def test_rows_that_are_computed_now_are_those_of_the_page(section):
    written = [row for row in ROWS if row.section.startswith(f"{section} ")]
    assert [row for row in make_rows(section) if row not in written] == []


def test_what_is_not_there_is_found():
    assert find_dead("docs/nothing.md")
    assert find_dead("docs/guides/mixtures.md#nothing")
    assert not find_dead("docs/guides/mixtures.md#groups")
    assert find_wrong("python -m benchmarks.nothing")
    assert find_wrong("python -m benchmarks.paper --nothing 1")
    assert find_wrong("python -m benchmarks.tpu_v3 nothing FOLDER")
    assert not find_wrong("python -m benchmarks.paper --section 3.3")


def test_statuses():
    assert compare(600, 619, better="higher") == "equal"
    assert compare(10, 12, better="higher") == "better"
    assert compare(10, 12, better="lower") == "worse"
    assert compare(10, 12, why="a reason") == "differs: a reason"
    assert compare_range(1.05, 0.83, 1.0, "too slow") == "equal"
    assert compare_range(2.0, 0.83, 1.0, "too slow") == "differs: too slow"
    assert compare_growth(0.5, 0.33, "rings") == "differs: rings"
    assert compare_growth(0, None) == "equal"
    assert (holds(True), holds(False), holds(False, "so")) == ("equal", "worse", "differs: so")
