"""Continuous batching and the completions API, against what is written one text at a time."""

import http.client
import json
import pathlib
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from starlette.exceptions import HTTPException

import namedmesh as nm
from benchmarks.llm_families import write_folder
from examples.llm import weights
from examples.llm.__main__ import parse_arguments, write
from examples.llm.adapters import Tuning
from examples.llm.engine import Engine, Request
from examples.llm.sampling import continue_tokens
from examples.llm.serve import Limits, describe, make_application, make_requests
from examples.llm.settings import Settings
from tests.m4.serving.live import listening

KEPT = json.loads((pathlib.Path(__file__).parent / "families.json").read_text())
PROMPTS = [[5, 9, 3], [7], [4, 6, 8, 11, 30, 2, 17], [11, 3], [9, 9, 9, 12]]
MOST = [9, 5, 7, 6, 8]


def engine_of(path: pathlib.Path, family: str = "llama", **changes: object) -> Engine:
    write_folder(path, KEPT[family]["config"], KEPT[family]["shapes"])
    architecture, _ = weights.read_model(path)
    settings = Settings(architecture, batch=2, length=8, capacity_factor=0, layout="one")
    return Engine(path, settings.but(**changes), 17)


def run(engine: Engine, requests: list[Request]) -> None:
    """Serve requests in the order they come, as slots become free."""
    waiting = list(requests)
    for _ in range(100):
        while waiting and engine.add(waiting[0]):
            waiting.pop(0)
        engine.step()
        if not waiting and not any(engine.slots):
            return


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        pytest.param("llama", {"layout": "megatron"}, marks=pytest.mark.slow),
        pytest.param("gemma3", {}, marks=pytest.mark.slow),
        pytest.param("deepseek_v3", {}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_slots_write_what_each_text_alone_would_be(tmp_path, family, changes):
    """The ring goes round twice, and texts of different lengths come and go."""
    engine = engine_of(tmp_path, family, **changes)
    requests = [Request(p, most, 0.0) for p, most in zip(PROMPTS, MOST, strict=True)]
    run(engine, requests)
    assert [one.finished for one in requests] == ["length"] * 5
    alone = continue_tokens(tmp_path, PROMPTS, length=9)
    for request, row in zip(requests, alone, strict=True):
        assert request.tokens == row[: request.most]
        assert all(score <= 0 for score in request.log_probabilities)
    ended = Request(PROMPTS[0], 9, 0.0, end=(alone[0][3],))
    run(engine, [ended])
    assert ended.finished == "stop" and ended.tokens == alone[0][: alone[0].index(alone[0][3]) + 1]
    assert np.isfinite(ended.log_probabilities).all()
    with pytest.raises(nm.NamedMeshError, match="a prompt of 9 tokens"):
        engine.add(Request([3] * 9))
    with pytest.raises(nm.NamedMeshError, match="15 tokens after a prompt of 3"):
        engine.add(Request([3] * 3, 15))


def ask(address: str, path: str, body: dict | None = None) -> tuple[int, Any]:
    """Send a request; return the status and what is answered, JSON as a value."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
    connection.request("GET" if body is None else "POST", path, body and json.dumps(body))
    answer = connection.getresponse()
    text, kind = answer.read().decode(), answer.headers["content-type"]
    connection.close()
    return answer.status, json.loads(text) if "json" in kind else text


def test_the_completions_api(tmp_path):
    """As a client sees it: several prompts, logprobs, a stream, and what is refused."""
    engine = engine_of(tmp_path)
    alone = continue_tokens(tmp_path, PROMPTS, length=5)
    with listening(make_application(engine, "tiny", limits=Limits(texts=5))) as address:
        post = lambda **body: ask(address, "/v1/completions", body)
        assert ask(address, "/v1/models")[1]["data"][0]["id"] == "tiny"
        plain = {"max_tokens": 5, "temperature": 0, "stop_token_ids": []}
        answer = post(prompt=PROMPTS, logprobs=1, **plain)[1]
        assert [one["tokens"] for one in answer["choices"]] == alone
        assert [one["index"] for one in answer["choices"]] == [*range(5)]
        assert answer["choices"][0]["finish_reason"] == "length"
        assert len(answer["choices"][0]["logprobs"]["token_logprobs"]) == 5
        assert answer["usage"] == {
            "prompt_tokens": 17, "completion_tokens": 25, "total_tokens": 42,
        }  # fmt: skip
        lines = post(prompt=PROMPTS[0], stream=True, **plain)[1].split("\n\n")
        assert lines[-2] == "data: [DONE]"
        parts = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines[:-2]]
        assert [token for part in parts for token in part["tokens"]] == alone[0]
        assert [part["finish_reason"] for part in parts] == [None] * 4 + ["length"]
        drawn = post(prompt=[5, 9], n=4, max_tokens=8, temperature=5.0)[1]["choices"]
        assert len({tuple(one["tokens"]) for one in drawn}) > 1
        refused = {
            "max_tokens: send a number from 1 to 15": {"prompt": [5, 9], "max_tokens": 16},
            "tokens are numbers from 0 to 39": {"prompt": [40]},
            "at most 5 texts": {"prompt": [5], "n": 4} | {"prompt": [[5], [6]]},
            "texts need the model's tokenizer": {"prompt": "a"},
            "not supported: best_of": {"prompt": [5], "best_of": 2},
            "a prompt has at most 8 tokens": {"prompt": [5] * 9},
            "stop_token_ids: send a list": {"prompt": [5], "stop_token_ids": 7},
            "stream: send true or false": {"prompt": [5], "stream": "no"},
            "logprobs: send a number from 0 to 100": {"prompt": [5], "logprobs": -1},
        }
        for message, body in refused.items():
            status, answer = post(**body)
            assert status == 400
            assert message in answer["error"]["message"]
        assert ask(address, "/health")[1]["used"] == 0
    slow = make_application(engine, "tiny", limits=Limits(seconds=0.0, waiting=1))
    with listening(slow) as address:
        assert ask(address, "/v1/completions", {"prompt": [5]})[0] == 504
        assert ask(address, "/v1/completions", {"prompt": [[5], [6]]})[0] == 429


def test_texts_end_at_the_end_tokens_of_the_folder(tmp_path):
    """Unless the client names others, or none."""
    engine_of(tmp_path)
    alone = continue_tokens(tmp_path, PROMPTS[:1], length=5)[0]
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"eos_token_id": [alone[2], 39]}))
    architecture, _ = weights.read_model(tmp_path)
    settings = Settings(architecture, batch=2, length=8, capacity_factor=0, layout="one")
    limits, body = Limits(), {"max_tokens": 5, "temperature": 0}
    engine = Engine(tmp_path, settings, 9)
    for given, length in (({}, alone.index(alone[2]) + 1), ({"stop_token_ids": []}, 5)):
        made = make_requests({**body, **given}, PROMPTS[:1], engine, limits)
        run(engine, made)
        assert made[0].tokens == alone[:length]
    small = Engine(tmp_path, settings, 4)
    with pytest.raises(HTTPException, match="a prompt has at most 3 tokens"):
        make_requests({}, [[5, 9, 3, 4]], small, limits)


def test_a_character_of_several_tokens_is_streamed_whole():
    """Tokens here are bytes; the last one is the beginning of a character that never ends."""

    class Bytes:
        def decode(self, ids):
            return bytes(ids).decode(errors="replace")

    text = "é: 10 €, \N{GRINNING FACE}!".encode()
    for end, last in ((b"", "!"), (b"\xf0\x9f", "\N{REPLACEMENT CHARACTER}")):
        tokens = [*text, *end]
        request = Request([1], tokens=tokens, log_probabilities=[0.0] * len(tokens))
        request.finished = "length"
        parts = [slice(i, i + 1) for i in range(len(tokens) - 1)] + [slice(len(tokens) - 1, None)]
        pieces = [describe(request, 0, {}, Bytes(), part)["text"] for part in parts]
        whole = describe(request, 0, {}, Bytes())["text"]
        assert "".join(pieces) == whole == Bytes().decode(tokens)
        assert pieces[:2] == ["", "é"] and pieces[-1] == last


def round_to_eight_bits(path: pathlib.Path) -> None:
    """Round the matrices of a folder to multiples of a 127th of the largest of each row."""
    file = path / "model.safetensors"
    tensors = load_file(file)
    for name, one in tensors.items():
        if one.ndim == 2 and "embed" not in name and "lm_head" not in name:
            largest = abs(one).max(1, keepdims=True)
            tensors[name] = (np.round(one * (127 / largest)) * (largest / 127)).astype(one.dtype)
    save_file(tensors, file, metadata={"format": "pt"})


def test_weights_in_eight_bits_write_what_rounded_weights_do(tmp_path, capsys):
    """In slots, and by the command line, with layers written out."""
    engine = engine_of(tmp_path / "own", tuning=Tuning(0, "int8"), unroll=True)
    kinds = {name: one.dtype for name, one in engine.write.variables.items()}
    assert kinds["attention/wq_quantized"] == kinds["network/wo_quantized"] == "int8"
    write_folder(tmp_path / "rounded", KEPT["llama"]["config"], KEPT["llama"]["shapes"])
    plain = continue_tokens(tmp_path / "rounded", PROMPTS, length=9)
    round_to_eight_bits(tmp_path / "rounded")
    rounded = continue_tokens(tmp_path / "rounded", PROMPTS, length=9)
    assert rounded != plain
    requests = [Request(p, most, 0.0) for p, most in zip(PROMPTS, MOST, strict=True)]
    run(engine, requests)
    for request, row in zip(requests, rounded, strict=True):
        assert request.tokens == row[: request.most]
    words = ["--weights", str(tmp_path / "own"), "--tokens", *(
        ",".join(map(str, prompt)) for prompt in PROMPTS)]  # fmt: skip
    words += ["--length", "9", "--end", "--frozen", "int8", "--unroll"]
    write(parse_arguments(["write", *words]))
    lines = capsys.readouterr().out.splitlines()
    assert [[int(one) for one in line.split(",")] for line in lines] == rounded
