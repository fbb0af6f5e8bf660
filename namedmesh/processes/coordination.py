"""Short texts between processes, through the coordinator's store and not through devices."""

from __future__ import annotations

import time

import jax

from namedmesh.errors.errors import NamedMeshError
from namedmesh.jax_internals import coordination_client

AGREEMENT_SECONDS = 300.0  # how long processes wait for each other outside of steps
_SLICE = 3.0  # seconds after which a wait looks whether the other process still runs
_rounds: dict[str, int] = {}  # how often each subject was exchanged


def exchange_texts(
    what: str, index: int, count: int, text: str, timeout: float
) -> list[str | None]:
    """Store a text and waits for those of the other processes."""
    client, number = coordination_client(), _rounds.get(what, 0) + 1
    _rounds[what] = number
    deadline = time.monotonic() + timeout
    texts: list[str | None] = [None] * count
    try:
        client.key_value_set(_key(what, number, index), text)
        for other in range(count):
            texts[other] = _wait_for(_key(what, number, other), deadline)
        if number > 1 and None not in texts:
            # Whoever is in this round has read all of the one before.
            client.key_value_delete(_key(what, number - 1, index))
    except jax.errors.JaxRuntimeError as error:
        raise NamedMeshError(
            f"the coordinator of the processes does not answer: {str(error)[:200]}",
            fix="look at the output of process 0; start all processes again",
        ) from error
    return texts


def _wait_for(key: str, deadline: float) -> str | None:
    """The text that another process stores; None if it does not come in time, or has stopped."""
    client, index = coordination_client(), key.rpartition("/")[2]
    while True:
        left = deadline - time.monotonic()
        try:
            return client.blocking_key_value_get(key, max(1, int(1000 * min(left, _SLICE))))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
        if left <= _SLICE or index in read_texts("stopped"):
            return None


def _key(what: str, number: int, index: int) -> str:
    """Where a process stores its text of one round."""
    return f"namedmesh/exchange/{what}/{number}/{index}"


def store_text(name: str, text: str) -> None:
    """Store a text for all processes, in the place of the one before."""
    coordination_client().key_value_set(f"namedmesh/{name}", text, allow_overwrite=True)


def read_texts(folder: str) -> dict[str, str]:
    """The texts that are stored now in one folder."""
    entries = coordination_client().key_value_dir_get(f"namedmesh/{folder}/")
    return {name.rpartition("/")[2]: text for name, text in entries}
