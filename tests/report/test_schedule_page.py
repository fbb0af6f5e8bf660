"""The page of a timeline, in a browser: alone, in a plan's page, on a phone, and with many ops."""

import time

import pytest

import namedmesh as nm
from namedmesh.errors.source import Source
from namedmesh.records.collective import Collective
from namedmesh.report.report import report_timeline
from namedmesh.schedule.timeline import Span, Timeline
from tests.report.models import small_plan

PHONE = {"width": 360, "height": 740}


def collective(number, exposed):
    one = Collective(
        "AllGather", ("data",), 8, "float32", 32, 1, f"w{number}", f"cast.{number}", "forward",
        Source("model.py", 7), 8,
    )  # fmt: skip
    return Span(
        f"ag.{number}", "data", number * 1e-5, 2e-5, (one,), f"cast.{number}", "model.py:7", exposed
    )


def timeline(count):
    """A step of so many ops, every tenth beside a collective, and a loop at its end."""
    ops = [
        Span(f"fusion.{i}", "compute", i * 1e-5, 0.9e-5, (), f"einsum.{i}", f"model.py:{i % 90}")
        for i in range(count)
    ]
    sent = [collective(i, 1e-5) for i in range(0, count, 10)]
    turns = Span("while", "loop", count * 1e-5, 4e-5, (), "scan.1", "model.py:3")
    turns.times, turns.inner = 100, tuple(ops[:4])
    return Timeline((*ops, *sent, turns), count * 1e-5 + 4e-3, "h100", "Mesh(data=8)")


@pytest.fixture
def page_of(tmp_path, open_page):
    """Opens the page of a timeline."""

    def opened(count, **options):
        path = tmp_path / "step.html"
        report_timeline(timeline(count), str(path), "a step <of> mine")
        return open_page(path, **options)

    return opened


def test_the_page_says_what_a_bar_is_and_what_is_waited_for(page_of):
    page = page_of(40)
    assert page.inner_text("h1") == "a step <of> mine"
    assert "of ops" in page.inner_text(".lead") and "40.0 µs" in page.inner_text(".lead")
    canvas = page.locator("canvas").bounding_box()
    page.get_by_role("button", name="Zoom in").click()
    for _ in range(4):
        page.locator("canvas").press("+")
    page.locator("canvas").press("ArrowLeft")
    said = set()
    for x in range(5, int(canvas["width"]), 40):
        for y in (40, 86):
            page.mouse.move(canvas["x"] + x, canvas["y"] + y)
            page.wait_for_timeout(5)
            said.add(page.inner_text(".readout"))
    assert any("fusion." in text and "einsum." in text and "model.py:" in text for text in said)
    page.get_by_role("button", name="Show all of the step").click()
    page.mouse.move(canvas["x"] + 3, canvas["y"] + 86)
    rows = page.locator("tbody tr")
    assert rows.count() == 4 and "AllGather of w0" in page.inner_text("tbody")


def test_search_finds_lines_and_tensors(page_of):
    page = page_of(200)
    page.fill("input[type=search]", "w10")
    assert page.inner_text(".tools .faint") == "2 found"  # w10 and w100
    page.fill("input[type=search]", "model.py:89")
    assert page.inner_text(".tools .faint") == "2 found"


def test_five_thousand_ops_open_within_two_seconds_on_a_phone(page_of):
    start = time.perf_counter()
    page = page_of(5000, **PHONE, has_touch=True)
    page.wait_for_selector("canvas")
    assert time.perf_counter() - start < 10  # loaded machines are slow; the page's own time is:
    spent = page.evaluate(
        "() => { const [one] = performance.getEntriesByType('navigation');"
        " return one.domComplete - one.responseEnd; }"
    )
    assert spent < 2000
    assert page.evaluate("document.querySelectorAll('*').length") < 200
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    drawn = page.evaluate(
        "() => { const c = document.querySelector('canvas'); const d = c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data; let n = 0;"
        " for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n; }"
    )
    assert drawn > 3000


def test_a_plan_has_its_schedule_beside_it(tmp_path, open_page):
    path = tmp_path / "plan.html"
    nm.report(small_plan(), path, target="h200", timeline=timeline(30))
    page = open_page(path)
    assert page.locator("#schedule canvas").count() == 1
    assert page.locator("nav a[href='#schedule']").count() == 1
