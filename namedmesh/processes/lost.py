"""Processes that are gone: the error that says which, and how the others leave."""

from __future__ import annotations

import atexit
import contextlib
import sys

import jax

from namedmesh.errors.errors import NamedMeshError, name_all
from namedmesh.jax_internals import drop_connection, is_one_of_several
from namedmesh.processes.watch import SECOND_HAND, Watch, current_watch

_WAIT = 8.0  # seconds that process 0 stays for the others to notice
# What jax says when another process, or the way to it, is gone.
_SIGNS = ("gloo", "nccl", "connection", "socket closed", "unavailable", "heartbeat", "coordinat")


class LostProcess(NamedMeshError):
    """Another process is gone, so that this one cannot go on: start all of them again.

    Example:
        >>> import namedmesh as nm
        >>> issubclass(nm.runtime.LostProcess, nm.NamedMeshError)
        True
    """


def find_lost(problem: str, error: Exception) -> LostProcess | None:
    """The error for a failure that another process has caused by going away."""
    watch = current_watch()
    first_line = str(error).strip().partition("\n")[0][:300]
    if watch is None or not any(sign in str(error).lower() for sign in _SIGNS):
        return None
    count, place = watch.processes.count, watch.place
    try:
        silent, stopped = watch.silent(), watch.stopped()
    except jax.errors.JaxRuntimeError:
        silent, stopped = {}, {0: "it is the coordinator, and does not answer"}
    details = [f"process {index} stopped: {reason}" for index, reason in stopped.items()]
    gone = {index for index, reason in stopped.items() if not reason.startswith(SECOND_HAND)}
    for index in silent:
        if index not in stopped:
            details.append(f"process {index} gives no sign of life")
            gone.add(index)
    watch.failure = f"LostProcess: {problem}"
    names = name_all("process", [str(index) for index in sorted(gone)], "processes")
    who = f"{names} of {count}" if gone else "another process"
    return LostProcess(
        f"{problem}: {who} {'is' if len(gone) < 2 else 'are'} gone",
        *details[:8],
        f"this is {watch.processes}, {place}",
        first_line,
        fix=f"look at the output of {names if gone else 'the others'}; start all processes again: "
        "a Trainer with checkpoints continues from the last one",
    )


def leave_in_order(watch: Watch) -> None:
    """Make this process leave at once when it ends with an error, and the others learn of it.

    By itself jax would wait for all processes to end, and abort after a while.
    """
    atexit.register(_leave, watch)


def _leave(watch: Watch) -> None:
    """Before jax leaves: tells the others if this process ends with an error."""
    reason, error = watch.failure, getattr(sys, "last_value", None)
    if error is not None:
        reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    if not is_one_of_several():
        return  # the program has ended its connection with the others
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # the coordinator may be gone already
        if not reason:
            watch.say_ended()
            return
        watch.say_stopped(reason)
        if watch.processes.first:
            watch.wait_for_others(_WAIT)
    drop_connection()
