"""Failures of the compiler and the devices, as errors that say what was being done."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax

from namedmesh.errors.errors import NamedMeshError
from namedmesh.processes.watch import find_lost


@contextlib.contextmanager
def report_failure(problem: str) -> Iterator[None]:
    """Iterations what jax raises within into a NamedMeshError."""
    try:
        yield
    except NamedMeshError:
        raise
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # jax raises either
        raise describe_failure(problem, error) from error


def describe_failure(problem: str, error: Exception) -> NamedMeshError:
    """What jax raised, as an error that says what was being done."""
    lost = find_lost(problem, error)
    if lost is not None:
        return lost
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    memory = "RESOURCE_EXHAUSTED" in str(error)
    return NamedMeshError(
        problem,
        *(line[:300] for line in lines[:4]),
        fix="use a smaller batch, a mesh of more devices, or a layout that splits more"
        if memory
        else "see what the compiler says above; export the program again if its file is old",
    )
