"""The translation service under load: 1,000 requests of 16 clients, of mixed lengths, some wrong.

python -m benchmarks.m4_service --run RUN --json OUT; the run is one that was trained and exported
(python -m examples.m4 export --run RUN). The service runs in a process of its own, without
TensorFlow. Every request must be answered: what is right with translations, what is wrong with a
status of 4xx.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

from absl import app, flags

from benchmarks.result import publish
from benchmarks.service_load import load, make_requests, serving, summarize
from examples.m4.run import Run

_RUN = flags.DEFINE_string("run", "runs/small", "The folder of a trained run.")
_REQUESTS = flags.DEFINE_integer("requests", 1000, "Requests of all clients.", lower_bound=1)
_CLIENTS = flags.DEFINE_integer("clients", 16, "Clients that ask at the same time.", lower_bound=1)


def main(_: Sequence[str]) -> None:
    """Load the service of a run, stop it, and publish what came of it."""
    tests = Run(_RUN.value).tests
    texts = [source for of in tests.values() for pairs in of.values() for source, _ in pairs]
    made = make_requests(texts, _REQUESTS.value, seed=0)
    with serving(_RUN.value) as (url, process):
        load(url, made[: _CLIENTS.value], _CLIENTS.value)  # connections and caches
        start = time.perf_counter()
        replies = load(url, made, _CLIENTS.value)
        result = summarize(replies, time.perf_counter() - start)
        process.send_signal(signal.SIGTERM)
        result["exit_status"] = process.wait(120)
    publish({"clients": _CLIENTS.value, **result})


if __name__ == "__main__":
    app.run(main)
