"""The meeting of processes under connections that are silent, slow or of strangers."""

import contextlib
import hashlib
import hmac
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import namedmesh as nm
from namedmesh.processes.arguments import TOKEN, ProcessArguments
from namedmesh.processes.launcher import Launch
from namedmesh.processes.meeting import meet
from tests.processes.workers import free_port

SENT = {
    "nothing": b"", "half a line": b'{"index": 1', "no JSON": b"GET / HTTP/1.1\r\n\r\n",
    "a list": b"[]\n", "nested": b"[" * 60_000 + b"\n", "too long": b"x" * 200_000,
    "other types": b'{"index": "1", "count": 3, "versions": 1, "nonce": ""}\n',
}  # fmt: skip


def arguments(index: int, port: int, timeout: float = 15, count: int = 3) -> ProcessArguments:
    return ProcessArguments(f"127.0.0.1:{port}", count, index, None, None, None, timeout, 15)


def connect(port: int) -> socket.socket:
    """A connection with process 0, as soon as it listens."""
    until = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=10)
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.01)


def answer_of(index: int, port: int, timeout: float = 15, count: int = 3) -> str:
    """What comes of the meeting for one process."""
    try:
        meet(arguments(index, port, timeout, count), "versions")
    except nm.NamedMeshError as error:
        return str(error)
    return "met"


@pytest.mark.parametrize("sent", SENT)
def test_silent_and_senseless_connections_hold_up_nobody(sent):
    port = free_port()
    with ThreadPoolExecutor(3) as pool, contextlib.ExitStack() as stack:
        first = pool.submit(answer_of, 0, port)
        for _ in range(20):
            one = stack.enter_context(connect(port))
            with contextlib.suppress(OSError):
                one.sendall(SENT[sent])
        start = time.monotonic()
        others = [pool.submit(answer_of, index, port) for index in (1, 2)]
        assert [one.result() for one in (first, *others)] == ["met"] * 3
        assert time.monotonic() - start < 4


def test_the_whole_meeting_ends_in_time_whoever_trickles():
    port, ended = free_port(), threading.Event()

    def trickle() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError), connect(port) as one:
                for _ in range(200):
                    one.sendall(b" ")
                    time.sleep(0.02)

    with ThreadPoolExecutor(9) as pool:
        start = time.monotonic()
        first = pool.submit(answer_of, 0, port, 3)
        for _ in range(8):
            pool.submit(trickle)
        text = first.result()
        seconds = time.monotonic() - start
        ended.set()
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            pass
        assert "have not come" in text and "within 3 seconds" in text
        assert seconds < 5
        with socket.socket() as listener:  # so that those who still connect come to an end
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen()
            pool.shutdown(wait=True)


def test_a_listener_that_says_nothing_is_given_up_in_time():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        start = time.monotonic()
        text = answer_of(1, listener.getsockname()[1], 2)
        assert "not process 0 of this program" in text
        assert time.monotonic() - start < 10


def introduce(port: int, secret: str, index: int, count: int = 3) -> dict:
    """Introduce a process as its own code would, with a proof made here."""
    with connect(port) as one:
        nonce = json.loads(one.makefile("rb").readline())["nonce"]
        proof = hmac.new(secret.encode(), f"{nonce} process {index}".encode(), hashlib.sha256)
        hello = {"index": index, "count": count, "versions": "versions", "nonce": "n"}
        one.sendall(json.dumps(hello | {"proof": proof.hexdigest()}).encode() + b"\n")
        return json.loads(one.makefile("rb").readline())


def test_a_stranger_neither_joins_nor_spoils_the_meeting(monkeypatch):
    monkeypatch.setenv(TOKEN, "secret of the run")
    port = free_port()
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(answer_of, 0, port)
        for index, count in ((1, 3), (2, 3), (1, 7), (0, 3)):
            assert "other secrets" in introduce(port, "", index, count)["problem"]
            assert "other secrets" in introduce(port, "guessed", index, count)["problem"]
        others = [pool.submit(answer_of, index, port) for index in (1, 2)]
        assert [one.result() for one in (first, *others)] == ["met"] * 3


def test_who_knows_the_secret_is_answered_with_a_proof(monkeypatch):
    monkeypatch.setenv(TOKEN, "secret of the run")
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(answer_of, 0, port, count=2)
        answer = introduce(port, "secret of the run", 1, count=2)
        assert first.result() == "met" and answer["problem"] == ""
        proof = hmac.new(b"secret of the run", b"n ", hashlib.sha256).hexdigest()
        assert answer["proof"] == proof


def test_strangers_are_counted_where_somebody_is_missing(monkeypatch):
    monkeypatch.setenv(TOKEN, "secret of the run")
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(answer_of, 0, port, 2, 2)
        introduce(port, "", 1)
        assert f"1 came with another {TOKEN}" in first.result()


def test_the_launcher_gives_all_processes_one_secret(monkeypatch):
    monkeypatch.delenv(TOKEN, raising=False)
    launch = Launch(["true"], 2)
    places = [launch.place(index, 2, 1, "one", "") for index in range(2)]
    assert places[0][TOKEN] == places[1][TOKEN] == "one"
    monkeypatch.setenv(TOKEN, "given")
    assert launch.place(0, 2, 1, "one", "")[TOKEN] == "given"
