"""Links between pages lead to files, so that they work in the repository as well as on the site."""

import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).parent.parent.parent / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def find_dead_links(page: pathlib.Path) -> list[str]:
    """The relative links of a page that lead to no file."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    return [
        target for target in targets if "://" not in target and not (page.parent / target).exists()
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_links_lead_to_files(page):
    assert find_dead_links(page) == []


def test_a_dead_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("[a](page.md) [b](other.md#part) [c](https://example.com) `x`")
    assert find_dead_links(page) == ["other.md"]


@pytest.mark.parametrize(
    ("image", "result"),
    [
        ("collectives.png", "operators/collectives.png"),
        ("m4_quality.png", "m4/grid/quality.png"),
        ("operators.png", "operators/operators.png"),
        ("tpu_v3_memory.png", "tpu_v3/memory.png"),
        ("tpu_v3_scaling.png", "tpu_v3/scaling.png"),
    ],
)
def test_plots_of_the_site_are_those_of_the_benchmarks(image, result):
    drawn = DOCS.parent / "benchmarks" / "results" / result
    assert (DOCS / "images" / image).read_bytes() == drawn.read_bytes()
