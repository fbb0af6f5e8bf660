"""The service of a trained run, in a process that cannot import TensorFlow."""

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import requests

from benchmarks.service_load import ask, load, make_requests, serving, summarize
from examples.m4.run import Run
from tests.m4.runs import EXPERTS, good, run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "run"
    good(run("export", folder, {**EXPERTS, "data": corpus, "steps": 20}))
    good(run("train", folder, {}, blocked=True))
    return folder


@pytest.fixture(scope="module")
def texts(trained):
    (of_set,) = Run(trained).tests.values()
    return [source for pairs in of_set.values() for source, _ in pairs]


def test_answers_are_those_of_the_command(trained, texts, tmp_path):
    (tmp_path / "in").write_text("\n".join(texts), encoding="utf-8")
    flags = {"input": tmp_path / "in", "output": tmp_path / "out", "details": True}
    good(run("translate", trained, flags, blocked=True))
    wanted = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    with serving(str(trained)) as (url, _):
        body = {"texts": texts, "experts": True}
        answers = requests.post(f"{url}/translate", json=body).json()["answers"]
    assert len(answers) == len(wanted) == len(texts) > 8, "more than a batch"
    for answer, line in zip(answers, wanted, strict=True):
        tokens = answer.pop("tokens")
        found, told = answer.pop("translations"), line.pop("translations")
        assert answer == line
        assert [one["text"] for one in found] == [one["text"] for one in told]
        scores = [[one["score"] for one in scored] for scored in (found, told)]
        np.testing.assert_allclose(*scores, rtol=1e-5)
        joined = "".join(token["piece"] for token in tokens["source"])
        assert joined.replace("⏎", "").split()[:1] == answer["source"].split()[:1]
        weights = [
            [sum(choice["weight"] for choice in layer) for layer in token["layers"]]
            for side in ("source", "target")
            for token in tokens[side]
        ]
        assert np.array(weights).max() == pytest.approx(1.0, abs=1e-3)


def test_no_request_is_lost_under_load(trained, texts):
    made = make_requests(texts, 120, seed=1)
    assert 3 < sum(wrong for wrong, _ in made) < 30
    with serving(str(trained)) as (url, process):
        start = time.perf_counter()
        result = summarize(load(url, made, 8), time.perf_counter() - start)
        assert result["lost"] == 0 and result["requests"] == 120, result
        assert 0 < result["p50_ms"] <= result["p95_ms"] <= result["longest_ms"]
        health = requests.get(f"{url}/health").json()
        assert health["status"] == "ok" and health["waiting"] == 0
        assert health["answered"] == result["texts"]
        assert process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_was_taken_is_answered_before_the_end(trained, texts, number):
    with serving(str(trained)) as (url, process), ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, url, (False, {"texts": texts})) for _ in range(8)]
        until = time.monotonic() + 30
        while requests.get(f"{url}/health").json()["waiting"] == 0:
            assert time.monotonic() < until
        process.send_signal(number)
        replies = [future.result() for future in asked]
        assert process.wait(60) == 0
    assert {reply.status for reply in replies} == {200}
    assert all(reply.answers == len(texts) for reply in replies)


def test_a_taken_port_is_told_before_the_model_is_loaded(trained):
    with serving(str(trained)) as (url, _):
        done = run("serve", trained, {"port": url.rsplit(":", 1)[1]}, blocked=True)
    assert done.returncode == 1
    assert "cannot listen on 127.0.0.1" in done.stderr and "--port" in done.stderr
