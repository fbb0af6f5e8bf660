"""Load on a translation service: requests of mixed lengths, some of them wrong, by many clients."""

from __future__ import annotations

import collections
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import requests

from namedmesh.errors.errors import NamedMeshError

SERVE = (
    "import sys; sys.modules['tensorflow'] = None\n"
    "from absl import app; from examples.m4.__main__ import main; app.run(main)"
)
MISTAKES = (
    b"{", b"[]", b'{"texts": []}', b'{"texts": [""]}', b'{"texts": [7]}', b'{"text": ["a"]}',
    b'{"texts": ["' + b"a" * 3000 + b'"]}', b"\xff",
)  # fmt: skip


@dataclass(frozen=True)
class Reply:
    """The outcome of a request: its status (0 if there was none), its seconds, and its texts."""

    wrong: bool
    status: int
    seconds: float
    texts: int
    answers: int


@contextmanager
def serving(folder: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Serve a run in a process of its own; the address, and the process."""
    command = [sys.executable, "-c", SERVE, "serve", f"--run={folder}", "--port=0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if found := re.search(r"listening on (\S+);", line):
                threading.Thread(target=process.stdout.read, daemon=True).start()
                yield found[1], process
                return
        raise NamedMeshError("the service did not start", *said, fix="train the run, and export it")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(120)


def make_requests(texts: Sequence[str], count: int, seed: int) -> list[tuple[bool, Any]]:
    """Make requests of one to four texts, one in ten of them wrong."""
    draw = random.Random(seed)
    made: list[tuple[bool, Any]] = []
    for _ in range(count):
        if draw.random() < 0.1:
            made.append((True, draw.choice(MISTAKES)))
        else:
            chosen = draw.choices(texts, k=draw.randint(1, 4))
            made.append((False, {"texts": chosen, "experts": draw.random() < 0.2}))
    return made


def ask(url: str, request: tuple[bool, Any]) -> Reply:
    """Send one request; one that is told to try again does."""
    wrong, body = request
    start = time.perf_counter()
    status, answers = 0, 0
    for _ in range(100):
        try:
            options = {"data": body} if wrong else {"json": body}
            response = requests.post(f"{url}/translate", timeout=300, **options)
            status = response.status_code
            answers = len(response.json().get("answers", ()))
        except (requests.RequestException, ValueError):
            status = 0
        if status != 503:
            break
        time.sleep(0.1)
    seconds = time.perf_counter() - start
    return Reply(wrong, status, seconds, 0 if wrong else len(body["texts"]), answers)


def load(url: str, made: Sequence[tuple[bool, Any]], clients: int) -> list[Reply]:
    """Send all requests, so many at the same time."""
    with ThreadPoolExecutor(clients) as pool:
        return [*pool.map(lambda request: ask(url, request), made)]


def summarize(replies: Sequence[Reply], seconds: float) -> dict[str, Any]:
    """Count what was lost, and how long the answers took."""
    good = [reply for reply in replies if not reply.wrong]
    lost = [
        reply
        for reply in replies
        if not (
            400 <= reply.status < 500
            if reply.wrong
            else reply.status == 200 and reply.answers == reply.texts
        )
    ]
    took = np.array([reply.seconds for reply in good])
    statuses = collections.Counter(reply.status for reply in replies)
    return {
        "requests": len(replies),
        "wrong": len(replies) - len(good),
        "lost": len(lost),
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "texts": sum(reply.texts for reply in good),
        "seconds": round(seconds, 2),
        "texts_per_second": round(sum(reply.texts for reply in good) / seconds, 1),
        "p50_ms": round(1e3 * float(np.percentile(took, 50)), 1),
        "p95_ms": round(1e3 * float(np.percentile(took, 95)), 1),
        "longest_ms": round(1e3 * float(took.max()), 1),
    }
