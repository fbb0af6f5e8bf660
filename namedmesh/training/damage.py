"""Checkpoints that cannot be read: what is damage, and what is only out of reach."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from contextlib import contextmanager

from namedmesh.errors.errors import NamedMeshError
from namedmesh.training.first_process import shorten_error

_OUT_OF_REACH = ("PERMISSION_DENIED", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")


class DamagedCheckpoint(NamedMeshError):
    """A checkpoint whose files are missing, torn or changed."""


@contextmanager
def report_damage(path: pathlib.Path) -> Iterator[None]:
    """Raise a NamedMeshError for whatever reading a checkpoint raises."""
    where = f"the checkpoint of step {path.name} in {path.parent}"
    try:
        yield
    except NamedMeshError:
        raise
    except (PermissionError, MemoryError) as error:
        raise _unreadable(where, error) from None
    except Exception as error:  # orbax and tensorstore raise many kinds, Exception itself too
        if any(word in str(error) for word in _OUT_OF_REACH):
            raise _unreadable(where, error) from None
        raise DamagedCheckpoint(
            f"{where} is damaged",
            shorten_error(error),
            fix=f"delete {path} to continue from an older one, or train again",
        ) from None


def _unreadable(where: str, error: Exception) -> NamedMeshError:
    """The error of a checkpoint that is out of reach."""
    return NamedMeshError(
        f"{where} cannot be read",
        shorten_error(error),
        fix="check that you may read the files, and that the machine has memory and handles left",
    )
