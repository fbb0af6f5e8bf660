"""The processes of one program, and the texts they exchange through the coordinator's store."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax

from namedmesh.errors.errors import NamedMeshError, name_all
from namedmesh.jax_internals import coordination_client, is_one_of_several, place_among_processes
from namedmesh.processes.launched import abandoned

AGREEMENT_SECONDS = 300.0  # for processes to wait for each other outside of steps
_SLICE = 1.0  # seconds between two checks that the other process still runs
_rounds: Counter[str] = Counter()  # how often each subject was exchanged
_run = 0  # how often the program was run again in this Python
leaving: list[Callable[[], None]] = []  # what else belongs to the devices of a run


@dataclass(frozen=True)
class Processes:
    """The processes that run one program together, seen from one of them.

    Attributes:
        count: The number of processes.
        index: The number of this one, from 0.
        coordinator: The address at which they met; None for a single process.

    Example:
        >>> from namedmesh.runtime import Processes
        >>> processes = Processes(count=4, index=1, coordinator="10.0.0.1:8476")
        >>> print(processes)
        process 1 of 4, coordinator 10.0.0.1:8476
        >>> processes.first
        False
    """

    count: int = 1
    index: int = 0
    coordinator: str | None = None

    @property
    def first(self) -> bool:
        """True for process 0, which prints, and writes what is written once."""
        return self.index == 0

    def __str__(self) -> str:
        where = f", coordinator {self.coordinator}" if self.coordinator else ""
        return f"process {self.index} of {self.count}{where}"

    def exchange(self, what: str, text: str, *, timeout: float = AGREEMENT_SECONDS) -> list[str]:
        """Exchange short texts between all processes, which must all call it.

        Args:
            what: The subject; the processes' calls of one subject meet each other in order.
            text: The text of this process.
            timeout: Seconds to wait for the others.

        Returns:
            The texts of all processes by index.

        Raises:
            NamedMeshError: If a process does not call it in time, or is gone.

        Example:
            >>> from namedmesh.runtime import Processes
            >>> Processes().exchange("name of the run", "first try")
            ['first try']
        """
        if self.count == 1:
            return [text]
        texts = _exchange_texts(self, what, text, timeout)
        if abandoned.is_set():
            raise NamedMeshError("the program is left", fix="it runs again with other processes")
        missing = [str(index) for index, one in enumerate(texts) if one is None]
        if missing:
            stopped = {one: text for one, text in read_texts("stopped").items() if one in missing}
            when = "before it stopped" if stopped else f"within {timeout:g} seconds"
            raise NamedMeshError(
                f"{name_all('process', missing, 'processes')} did not send {what!r} {when}",
                *(f"process {one} stopped: {text[:300]}" for one, text in stopped.items()),
                f"this is {self}",
                fix="look at the output of that process; every process must make the same calls "
                "in the same order",
            )
        return [one for one in texts if one is not None]

    def agree(self, what: str, digest: str, *, timeout: float = AGREEMENT_SECONDS) -> None:
        """Compare a digest between all processes, which must all call it.

        Args:
            what: The subject of the digest.
            digest: The digest of this process, a short text.
            timeout: Seconds to wait for the others.

        Raises:
            NamedMeshError: If they differ, on every process, or if one does not call it in time.

        Example:
            >>> from namedmesh.runtime import Processes
            >>> Processes().agree("the data", "sha256 41af")
        """
        texts = self.exchange(what, digest, timeout=timeout)
        if len(set(texts)) == 1:
            return
        raise NamedMeshError(
            f"the processes do not agree on {what}",
            *_list_groups(texts),
            f"this is {self}",
            fix="start every process with the same code, packages, settings and data",
        )


def _list_groups(texts: Sequence[str]) -> list[str]:
    """List the processes of each text, the most common first."""
    owners: dict[str, list[str]] = {}
    for index, text in enumerate(texts):
        owners.setdefault(text, []).append(str(index))
    groups = sorted(owners.items(), key=lambda item: -len(item[1]))
    lines = [f"{name_all('process', who, 'processes')}: {text[:200]}" for text, who in groups[:6]]
    return lines + ([f"and {len(groups) - 6} more"] if len(groups) > 6 else [])


def current_processes() -> Processes:
    """Return the processes that this one belongs to; a single one before they are started.

    Returns:
        The processes, also where the program called jax.distributed itself.

    Example:
        >>> from namedmesh.runtime import current_processes
        >>> current_processes().count
        1
    """
    return Processes(*place_among_processes()) if is_one_of_several() else Processes()


def next_round(what: str) -> int:
    """Count the calls of one subject, which every process makes in the same order."""
    _rounds[what] += 1
    return _rounds[what]


def forget_run() -> None:
    """Forget what belongs to a run of the program: it runs again, with other processes."""
    global _run
    _run += 1
    for forget in (_rounds.clear, *leaving):
        forget()


def current_run() -> int:
    """Return how often the program was run again in this Python."""
    return _run


def _exchange_texts(own: Processes, what: str, text: str, timeout: float) -> list[str | None]:
    """Store a text and wait for those of the other processes; None for those that do not come."""
    number = next_round(what)
    client, deadline = coordination_client(), time.monotonic() + timeout
    before, here = (f"namedmesh/exchange/{what}/{one}" for one in (number - 1, number))
    try:
        client.key_value_set(f"{here}/{own.index}", text)
        texts = [_wait_for(f"{here}/{one}", deadline) for one in range(own.count)]
        if number > 1 and None not in texts:
            # A process that is in this round has read all texts of the one before.
            client.key_value_delete(f"{before}/{own.index}")
    except jax.errors.JaxRuntimeError as error:
        raise no_coordinator(error) from error
    return texts


def no_coordinator(error: Exception) -> NamedMeshError:
    """Make the error for a coordinator that does not answer."""
    return NamedMeshError(
        f"the coordinator of the processes does not answer: {str(error)[:200]}",
        fix="look at the output of process 0; start all processes again",
    )


def _wait_for(key: str, deadline: float) -> str | None:
    """Wait for a text of another process; None if it is late, or its process has stopped."""
    client, index = coordination_client(), key.rpartition("/")[2]
    while True:
        left = deadline - time.monotonic()
        if abandoned.is_set():
            return None
        try:
            return client.blocking_key_value_get(key, max(1, int(1000 * min(left, _SLICE))))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
        if left <= _SLICE or index in read_texts("stopped"):
            return None


def store_text(name: str, text: str) -> None:
    """Store a text for all processes, in the place of the one before."""
    coordination_client().key_value_set(f"namedmesh/{name}", text, allow_overwrite=True)


def read_texts(folder: str) -> dict[str, str]:
    """Read the texts that are stored in one folder."""
    entries = coordination_client().key_value_dir_get(f"namedmesh/{folder}/")
    return {name.rpartition("/")[2]: text for name, text in entries}
