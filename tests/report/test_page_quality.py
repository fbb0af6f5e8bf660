"""What holds for a report as a whole: speed, width, paper, accessibility, and how it looks."""

import itertools
import os
import pathlib
import warnings

import pytest

import namedmesh as nm
from tests.report.models import unusual_plans

IMAGES = pathlib.Path(__file__).parent.parent.parent / "docs" / "images"
WRITES_OUTPUTS = os.environ.get("NAMEDMESH_WRITE_OUTPUTS", "") not in ("", "0")
SECONDS = 2.0


def load_seconds(browser, path: pathlib.Path) -> tuple[float, float]:
    """Loads a page: seconds to the first picture of it, and seconds that its thread computed."""
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(path.as_uri())
    page.wait_for_selector("footer")
    page.wait_for_timeout(500)
    metrics = session.send("Performance.getMetrics")["metrics"]
    painted = "performance.getEntriesByName('first-contentful-paint')[0].startTime / 1e3"
    seconds = page.evaluate(painted)
    page.close()
    return seconds, next(one["value"] for one in metrics if one["name"] == "TaskDuration")


def test_the_largest_plan_loads_in_two_seconds(browser, reports):
    times = [load_seconds(browser, reports["largest"]) for _ in range(3)]
    seconds, computing = (min(column) for column in zip(*times, strict=True))
    assert computing < SECONDS / 2, times
    # On cores that others use as well, the clock says little.
    if os.getloadavg()[0] < (os.cpu_count() or 1):
        assert seconds < SECONDS, times


@pytest.mark.parametrize("name", ["small", "two", "largest"])
@pytest.mark.parametrize("width", [390, 768, 1400])
def test_nothing_is_wider_than_the_window(open_page, name, width):
    page = open_page(name, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [390, 1400])
def test_names_of_thousands_of_characters_wrap(open_page, tmp_path, width):
    long = {letter: letter * 3000 for letter in "abdmw"}
    B, M = nm.Dimension(long["b"], 8), nm.Dimension(long["d"], 4)

    def step(**inputs):
        with nm.scope(long["a"]):
            w = nm.param(long["w"], [M])
            loss = nm.mean(nm.square(nm.sum(inputs[long["a"]] * w, M)))
        nm.assign(w, w - nm.grad(loss)[f"{long['a']}/{long['w']}"])
        return {long["m"]: loss}

    step.__name__ = long["m"]
    program = nm.trace(step, **{long["a"]: nm.spec([B, M])})
    plan = nm.plan(program, nm.Mesh(None, **{long["m"]: 4}), f"{long['b']}:{long['m']}")
    nm.report(plan, tmp_path / "long.html", target="cpu")
    page = open_page(tmp_path / "long.html", width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wide = """width => [...document.querySelectorAll("main *, header *, aside *")].filter(
        one => one.getBoundingClientRect().width > width && !one.closest("pre, .code, .scroll")
        && !one.closest("svg")).map(one => one.outerHTML.slice(0, 80))"""
    assert page.evaluate(wide, width) == []


@pytest.mark.parametrize("name", unusual_plans())
def test_plans_that_lack_something_have_pages_too(open_page, tmp_path, name):
    plan = unusual_plans()[name]
    nm.report(plan, tmp_path / "plan.html", target="cpu")
    page = open_page(tmp_path / "plan.html", width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.inner_text("#tensor h3")
    assert page.locator("#memory svg").count() == page.locator("#roofline svg").count() == 1
    told = page.get_attribute("#tensor svg[role=slider]", "aria-valuetext")
    first = (plan.mesh.device_assignment or (0,))[0]
    assert told.startswith(f"device {first} at {next(iter(plan.mesh.axes))}=0")


@pytest.mark.parametrize("specs, kept", [([], "0 B"), ([nm.spec(nm.dims("batch=8"))], "16 B")])
def test_a_plan_without_ops_has_a_page_too(open_page, tmp_path, specs, kept):
    program = nm.trace(lambda *inputs: inputs, *specs)
    layout = "batch:data" if specs else ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nothing uses the axis
        plan = nm.plan(program, nm.Mesh(data=2), layout)
    plan.report(tmp_path / "plan.html")
    page = open_page(tmp_path / "plan.html", width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert f"inputs and variables take {kept}" in page.inner_text("#memory")


@pytest.mark.parametrize("name", ["small", "two"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_axe_finds_nothing(open_page, name, scheme, width):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    )
    page = open_page(name, width=width, color_scheme=scheme)
    for twist in page.query_selector_all("#program [aria-expanded=false]")[:3]:
        twist.click()
    found = axe.Axe().run(page).response["violations"]
    told = [(one["id"], one["help"], [node["html"] for node in one["nodes"]][:3]) for one in found]
    assert told == []


def test_the_keyboard_reaches_everything_and_shows_where_it_is(open_page):
    page = open_page("small")
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("""() => {
            const here = document.activeElement;
            const shown = here.matches('.choice input') ? here.nextElementSibling : here;
            const section = here.closest('section, aside, nav, header')?.id || here.tagName;
            return [section, getComputedStyle(shown).outlineStyle];
        }""")
        )
    assert reached[0][0] == "A", "the link that skips to the program"
    assert {"program", "collectives"} <= {section for section, _ in reached}
    assert {style for _, style in reached} == {"solid"}


def test_landmarks_and_headings_are_in_order(open_page):
    page = open_page("two")
    for landmark in ("header", "nav[aria-label]", "main", "aside[aria-labelledby]", "footer"):
        assert page.locator(landmark).count() == 1, landmark
    levels = page.eval_on_selector_all("h1,h2,h3,h4", "all => all.map(x => Number(x.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in itertools.pairwise(levels))


def test_on_paper_every_section_is_there_and_nothing_is_cut(open_page, tmp_path):
    page = open_page("small", width=800)
    page.emulate_media(media="print")
    assert page.is_hidden("nav") and page.is_hidden(".controls")
    for section in ("program", "tensor", "collectives", "memory", "roofline", "code"):
        assert page.is_visible(f"#{section} h2")
    assert page.evaluate("getComputedStyle(document.querySelector('.code')).maxHeight") == "none"
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("name", "width", "height", "scheme", "place"),
    [
        ("report_wide", 1400, 1000, "light", "#program"),
        ("report_phone", 390, 844, "light", "#tensor"),
        ("report_dark", 1400, 1000, "dark", "#roofline"),
    ],
)
def test_screenshots_for_the_guide(open_page, tmp_path, name, width, height, scheme, place):
    page = open_page("largest", width=width, height=height, color_scheme=scheme)
    if place != "#program":
        page.evaluate(f"location.hash = '{place}'")
        page.wait_for_timeout(200)
    folder = IMAGES if WRITES_OUTPUTS else tmp_path
    page.screenshot(path=folder / f"{name}.png")
    assert 20_000 < (folder / f"{name}.png").stat().st_size < 300_000
    assert (IMAGES / f"{name}.png").exists(), "run with NAMEDMESH_WRITE_OUTPUTS=1"
