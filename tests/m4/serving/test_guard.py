"""Slow clients and bad ones: the others are answered, and the service stops when told."""

import contextlib
import resource
import socket
import time
from collections.abc import Iterator

import pytest
import requests

from examples.m4.serving.application import Limits, make_application
from examples.m4.serving.guard import MOST_CONNECTIONS, PATIENCE
from tests.m4.serving.live import listening

HEAD = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
HALVES = {
    "nothing": b"",
    "half a line": b"POST /trans",
    "half a head": HEAD,
    "half a body": HEAD + b"\r\n{",
    "a second request": b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea",
}


def shout(questions):
    return [text.upper() for text, _ in questions]


def client():
    return listening(make_application(shout, {}, most=8, limits=Limits()))


@contextlib.contextmanager
def half_sent(url: str, count: int, sent: bytes) -> Iterator[list[socket.socket]]:
    """Connections on which a request is not sent to its end."""
    host, port = url.removeprefix("http://").split(":")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    with contextlib.ExitStack() as stack:
        sockets = []
        for _ in range(count):
            one = stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
            with contextlib.suppress(OSError):  # it may be closed in favour of later ones
                one.sendall(sent)
            sockets.append(one)
        yield sockets


@pytest.mark.parametrize("half", HALVES)
def test_half_sent_requests_keep_nobody_out(half):
    count = 1100 if half in ("half a head", "half a body") else MOST_CONNECTIONS + 20
    with client() as url, half_sent(url, count, HALVES[half]):
        for _ in range(3):
            start = time.monotonic()
            assert requests.get(f"{url}/health", timeout=10).json()["status"] == "ok"
            assert time.monotonic() - start < 1
        assert requests.post(f"{url}/translate", json={"texts": ["a"]}).json() == {"answers": ["A"]}


@pytest.mark.parametrize("half", HALVES)
def test_a_request_that_does_not_come_is_given_up(half):
    with client() as url, half_sent(url, 1, HALVES[half]) as (one,):
        one.settimeout(PATIENCE + 5)
        start, received = time.monotonic(), b"x"
        with contextlib.suppress(ConnectionError):
            while received:
                received = one.recv(2**16)
        assert time.monotonic() - start < PATIENCE + 3


def test_parts_that_trickle_in_do_not_move_the_deadline():
    with client() as url, half_sent(url, 1, HEAD) as (one,):
        start = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - start < PATIENCE + 5:
                one.sendall(b"x")
                time.sleep(0.2)
        assert time.monotonic() - start < PATIENCE + 3


def test_it_stops_under_half_sent_requests():
    with contextlib.ExitStack() as stack:
        url = (service := contextlib.ExitStack()).enter_context(client())
        stack.enter_context(half_sent(url, 200, HALVES["half a body"]))
        start = time.monotonic()
        service.close()  # as at SIGTERM: it waits for what was taken
        assert time.monotonic() - start < 10


@pytest.mark.parametrize("origin", ["http://elsewhere.org", "null", "http://127.0.0.1", "file://"])
def test_pages_of_other_sites_may_not_ask(origin):
    with client() as url:
        headers = {"Origin": origin, "Content-Type": "text/plain"}
        body = '{"texts": ["a"]}'
        response = requests.post(f"{url}/translate", data=body, headers=headers)
        assert response.status_code == 403 and "error" in response.json()
        own = requests.post(f"{url}/translate", data=body, headers={"Origin": url})
        assert own.json() == {"answers": ["A"]}


HOSTS = {
    "localhost": 200, "localhost:8000": 200, "10.0.0.1": 200, "[::1]:80": 200, "evil.org": 421,
    "evil.org:80": 421, "localhost.evil.org": 421, "127.0.0.1.evil.org": 421,
    socket.gethostname(): 200,
}  # fmt: skip


def test_a_name_that_is_not_its_own_is_refused():
    with client() as url:
        for host, status in HOSTS.items():
            assert requests.get(f"{url}/health", headers={"Host": host}).status_code == status, host


def test_what_browsers_must_not_do_is_said():
    with client() as url:
        for path in ("/", "/health", "/nowhere"):
            headers = requests.get(url + path).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert "default-src 'none'" in headers["content-security-policy"]
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
