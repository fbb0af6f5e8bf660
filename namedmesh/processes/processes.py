"""Several processes of one program: how they find each other, and what they must agree on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from namedmesh.errors.errors import NamedMeshError, name_all
from namedmesh.jax_internals import is_one_of_several, place_among_processes
from namedmesh.processes.coordination import AGREEMENT_SECONDS, exchange_texts, read_texts


@dataclass(frozen=True)
class Processes:
    """The processes that run one program together, seen from one of them.

    Attributes:
        count: How many there are.
        index: Which one this is, from 0.
        coordinator: The address at which they met; None for a process by itself.

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
        """Whether this is process 0, the one that prints and writes what is written once."""
        return self.index == 0

    def __str__(self) -> str:
        where = f", coordinator {self.coordinator}" if self.coordinator else ""
        return f"process {self.index} of {self.count}{where}"

    def exchange(self, what: str, text: str, *, timeout: float = AGREEMENT_SECONDS) -> list[str]:
        """Send a text to all processes and returns everyone's; every process must call it.

        It goes through the coordinator, not through the devices, and is for short texts.

        Args:
            what: What the text says. Calls with the same words meet each other in order.
            text: What this process has to say.
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
        for name, value in (("what", what), ("text", text)):
            if not isinstance(value, str) or not value:
                raise NamedMeshError(
                    f"exchange was given {name}={value!r}", fix="give a string that is not empty"
                )
        if self.count == 1:
            return [text]
        texts = exchange_texts(what, self.index, self.count, text, timeout)
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
        """Compare a digest between all processes; every process must call it.

        Args:
            what: What the digest is of.
            digest: This process's digest, a short text.
            timeout: Seconds to wait for the others.

        Raises:
            NamedMeshError: On every process if they differ, naming who has what; or if a process
                does not call it in time, or is gone.

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
    """Who says what, a line for each text, the most common first."""
    owners: dict[str, list[str]] = {}
    for index, text in enumerate(texts):
        owners.setdefault(text, []).append(str(index))
    groups = sorted(owners.items(), key=lambda item: -len(item[1]))
    lines = [f"{name_all('process', who, 'processes')}: {text[:200]}" for text, who in groups[:6]]
    return lines + ([f"and {len(groups) - 6} more"] if len(groups) > 6 else [])


def current_processes() -> Processes:
    """The processes that this one belongs to now; one process by itself before they are started.

    Returns:
        What `start_processes` returned, also where the program called jax.distributed itself.

    Example:
        >>> from namedmesh.runtime import current_processes
        >>> current_processes().count
        1
    """
    if not is_one_of_several():
        return Processes()
    return Processes(*place_among_processes())
