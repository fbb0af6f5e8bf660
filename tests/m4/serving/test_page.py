"""The page in a real browser: the system's Chromium, driven by Playwright."""

import contextlib
import shutil

import pytest

from examples.m4.serving.application import Limits, make_application
from tests.m4.serving.live import listening

BROWSER = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
if not BROWSER:
    pytest.skip("there is no Chromium on this machine", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api")

FACTS = {"step": 1234, "languages": ["de", "zh_Hant"], "experts": 4, "layers": 8}

EXPECTED = ("status of", "net::ERR_", "Content Security Policy", "Refused to connect", "Fetch API")


def token(piece, *layers):
    return {
        "piece": piece,
        "layers": [[{"expert": e, "weight": w} for e, w in layer] for layer in layers],
    }


def answer(questions):
    """Two translations, and the experts of two layers on the encoder's side alone."""
    answers = []
    for text, experts in questions:
        if "fail" in text:
            raise RuntimeError("inside")
        found = {
            "source": text,
            "languages": [
                {"language": "de", "probability": 0.9},
                {"language": "zh_Hant", "probability": 0.1},
            ],
            "translations": [
                {"text": f"best of {text}", "score": -0.25},
                {"text": "<b>second</b>", "score": -1.5},
            ],
            "cut": "long" in text,
        }
        if experts:
            found["tokens"] = {
                "source": [
                    token(" wo", [(3, 0.7), (1, 0.3)], [(2, 1.0)]),
                    token("⏎", [], [(2, 1.0)]),
                ],
                "target": [token(" a"), token("⏎")],
            }
        answers.append(found)
    return answers


@pytest.fixture(scope="module")
def url():
    with listening(
        make_application(answer, FACTS, most=8, limits=Limits(characters=60))
    ) as address:
        yield address


@pytest.fixture
def page(url):
    """The page, and a check at the end that its console said nothing."""
    with contextlib.ExitStack() as stack:
        playwright = stack.enter_context(sync_api.sync_playwright())
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        stack.callback(browser.close)
        page = browser.new_page(viewport={"width": 1000, "height": 900})
        said = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(url)
        yield page
        assert not [line for line in said if not any(word in line for word in EXPECTED)], said


def ask(page, text):
    page.fill("#text", text)
    page.click("#translate")


def test_a_translation_with_all_that_belongs_to_it(page):
    page.wait_for_function("document.getElementById('model').textContent.includes('1,234')")
    ask(page, "Guten Morgen")
    page.wait_for_selector("#translation:has-text('best of Guten Morgen')")
    language = page.inner_text("#language")
    assert "German 90%" in language and "Traditional Chinese 10%" in language
    assert page.inner_text("#alternatives td.number") == "-1.50"
    assert page.inner_text("#alternatives td:last-child") == "<b>second</b>", "text, not markup"
    assert page.is_hidden("#cut")
    assert page.inner_text("#count") == "12 of 60 characters"


def test_the_experts_of_tokens_by_layer(page):
    ask(page, "wo")
    page.wait_for_selector("#experts:visible")
    texts = lambda: [
        item.inner_text().split("\n") for item in page.query_selector_all(".tokens li")
    ]
    colours = lambda: page.eval_on_selector_all(
        ".tokens li", "items => items.map(item => getComputedStyle(item).backgroundColor)"
    )
    assert page.input_value("#layer") == "1", "the last layer at first"
    assert texts() == [[" wo", "2 (100%)"], ["⏎", "2 (100%)"], [" a", "dense"], ["⏎", "dense"]]
    assert colours()[0] == colours()[1] != colours()[2]
    page.select_option("#layer", "0")
    assert texts()[:2] == [[" wo", "3 (70%) 1 (30%)"], ["⏎", "none"]]


def test_the_keyboard_alone_is_enough(page):
    page.wait_for_function("document.activeElement.id === 'text'")
    page.keyboard.type("Hallo")
    assert page.input_value("#text") == "Hallo"
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#translation:has-text('best of Hallo')")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "translate"


def test_mistakes_and_failures_are_told_and_do_not_stay(page):
    ask(page, "x" * 61)
    page.wait_for_selector("#error:has-text('61 characters; 60 are allowed')")
    assert page.is_hidden("#result") and page.is_enabled("#translate")
    ask(page, "fail")
    page.wait_for_selector("#error:has-text('the service failed')")
    ask(page, "a long one")
    page.wait_for_selector("#cut:visible")
    assert page.is_hidden("#error")


@pytest.mark.parametrize("width", [360, 1400])
def test_nothing_is_wider_than_the_window(page, width):
    page.set_viewport_size({"width": width, "height": 800})
    ask(page, "Donaudampfschifffahrtselektrizitätenhauptbetriebswerk")
    page.wait_for_selector("#experts:visible")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_service_that_is_gone_is_told_in_words(page):
    page.route("**/translate", lambda route: route.abort("connectionrefused"))
    ask(page, "a")
    page.wait_for_selector("#error:has-text('The service cannot be reached')")
    page.unroute("**/translate")


def test_the_page_loads_and_sends_nothing_elsewhere(page):
    blocked = """() => fetch("https://example.org").then(() => "sent", () => "refused")"""
    assert page.evaluate(blocked) == "refused"
