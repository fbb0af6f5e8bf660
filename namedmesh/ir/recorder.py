"""Recorder: what an op needs of the program under construction in order to record itself."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from namedmesh.errors.errors import NamedMeshError
from namedmesh.errors.source import Source
from namedmesh.ir.tensor import Tensor


class Recorder(ABC):
    """The list that new ops go to, and the facts they are recorded with."""

    source: Source | None  # the line that ops are attributed to; None: the caller's own
    phase: str  # forward, backward or update
    scope: str  # the prefix of variables
    derived: bool  # whether a derivative rule is making the ops
    recomputed: bool  # whether the backward pass is repeating ops

    @abstractmethod
    def bring(self, tensor: Tensor) -> Tensor:
        """Return the tensor, or its stand-in here when it belongs to an enclosing program."""

    @abstractmethod
    def record(self, op: Any) -> None:
        """Append an op and takes its results for known."""


# One recorder a context, so that threads can trace side by side.
_active: ContextVar[Recorder | None] = ContextVar("namedmesh_recorder", default=None)


def active_recorder() -> Recorder | None:
    """Return the recorder of this thread (or task), or None outside a traced function."""
    return _active.get()


def require_recorder(what: str) -> Recorder:
    """Return the active recorder, or raise for an op that is called outside a traced function."""
    recorder = _active.get()
    if recorder is None:
        raise NamedMeshError(
            f"{what} was called outside a traced function",
            fix="call it inside the function given to nm.trace or nm.compile",
        )
    return recorder


@contextlib.contextmanager
def set_variable(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """Set a context variable for a while."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def recording(recorder: Recorder | None) -> contextlib.AbstractContextManager[None]:
    """Make a recorder the active one."""
    return set_variable(_active, recorder)
