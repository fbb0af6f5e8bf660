"""The HTTP interface without a model: what is right is answered, what is wrong is told."""

import json

import requests

from examples.m4.serving.application import Limits, make_application
from tests.m4.serving.live import listening

FACTS = {"step": 7, "languages": ["de"], "experts": 2, "layers": 4}
LIMITS = Limits(texts=3, characters=20, body=6000, waiting=4)


def shout(questions):
    return [{"source": text, "said": text.upper(), "experts": wish} for text, wish in questions]


def fail(questions):
    raise RuntimeError("a secret of the inside")


def client(answers=shout, **options):
    return listening(make_application(answers, FACTS, most=8, limits=LIMITS, **options))


def test_texts_are_answered_in_order():
    with client() as url:
        response = requests.post(f"{url}/translate", json={"texts": ["a", "b"], "experts": True})
    assert response.status_code == 200
    assert [answer["said"] for answer in response.json()["answers"]] == ["A", "B"]
    assert all(answer["experts"] for answer in response.json()["answers"])


BAD = {
    "nothing": (b"", 400, "not JSON"),
    "not JSON": (b"{", 400, "not JSON"),
    "not UTF-8": (b'{"texts": ["\xff"]}', 400, "not JSON"),
    "nested": (b"[" * 300, 400, "not JSON"),
    "a list": (b"[]", 400, "send an object"),
    "no texts": (b"{}", 400, "texts is a list"),
    "a string": (b'{"texts": "a"}', 400, "texts is a list"),
    "a number": (b'{"texts": [1]}', 400, "texts is a list"),
    "null": (b'{"texts": [null]}', 400, "texts is a list"),
    "none of them": (b'{"texts": []}', 400, "texts is empty"),
    "blank": (b'{"texts": ["a", " \\n"]}', 400, "texts[1] is empty"),
    "half a pair": (b'{"texts": ["\\ud800"]}', 400, "surrogate"),
    "half a pair as a name": (b'{"\\ud800": 1}', 400, "unknown: \\ud800"),
    "many digits": (b'{"texts": [' + b"9" * 5000 + b"]}", 400, "not JSON"),
    "misspelt": (b'{"text": ["a"]}', 400, "unknown: text"),
    "a wish of another type": (b'{"texts": ["a"], "experts": "yes"}', 400, "true or false"),
    "too many": (b'{"texts": ["a", "a", "a", "a"]}', 413, "4 texts; send at most 3"),
    "too long": (json.dumps({"texts": ["a" * 21]}).encode(), 413, "texts[0] has 21 characters"),
    "too large": (b" " * 6001, 413, "longer than 6,000 bytes"),
}


def test_bad_requests_are_told_what_is_wrong():
    with client() as url:
        for name, (body, status, message) in BAD.items():
            response = requests.post(f"{url}/translate", data=body)
            assert response.status_code == status, name
            assert message in response.json()["error"], name
        assert requests.post(f"{url}/translate", json={"texts": ["a"]}).status_code == 200


def test_the_longest_texts_are_taken_in_every_script_and_escaped():
    limits = Limits()
    application = make_application(shout, FACTS, most=8, limits=limits)
    with listening(application) as url:
        for character in ("a", "я", "語", "😀"):
            texts = [character * limits.characters] * limits.texts
            response = requests.post(f"{url}/translate", data=json.dumps({"texts": texts}))
            assert response.status_code == 200, character


def test_other_paths_and_methods_are_told_as_json():
    with client() as url:
        for method, path, status in (("GET", "/translate", 405), ("GET", "/x", 404)):
            response = requests.request(method, url + path)
            assert response.status_code == status and response.json()["error"]


def test_a_full_queue_asks_to_try_again():
    small = make_application(shout, FACTS, most=8, limits=Limits(texts=9, waiting=4))
    with listening(small) as url:
        response = requests.post(f"{url}/translate", json={"texts": ["a"] * 5})
        assert response.status_code == 503 and response.headers["retry-after"] == "1"
        assert requests.post(f"{url}/translate", json={"texts": ["a"] * 4}).status_code == 200


def test_a_failure_tells_nothing_of_the_inside():
    with client(fail) as url:
        response = requests.post(f"{url}/translate", json={"texts": ["a"]})
        assert response.status_code == 500 and "secret" not in response.text
        assert requests.get(f"{url}/health").json()["status"] == "ok"


def test_health_model_and_page():
    with client() as url:
        requests.post(f"{url}/translate", json={"texts": ["a", "b"]})
        health = requests.get(f"{url}/health").json()
        assert health == {"status": "ok", "waiting": 0, "answered": 2}
        assert requests.get(f"{url}/model").json() == {**FACTS, "limits": vars(LIMITS)}
        page = requests.get(url)
        assert page.headers["content-type"].startswith("text/html")
        assert "http:" not in page.text and "https:" not in page.text, "nothing from elsewhere"
