"""The partitioner: what turns a module with shardings into the program of one device."""

from __future__ import annotations

import os

from namedmesh.errors.errors import NamedMeshError, did_you_mean

PARTITIONERS = ("gspmd", "shardy")
# Both make what is planned with every version of jax that tests/runtime/test_jax_versions.py runs.
# jax warns that GSPMD will go; until Shardy has compiled the largest models too, it stays.
DEFAULT_PARTITIONER = "gspmd"
_VARIABLE = "NAMEDMESH_PARTITIONER"


def choose_partitioner(name: str | None = None) -> str:
    """Return the partitioner to use: as named, by the environment, or the default."""
    what = "partitioner"
    if name is None:
        name, what = os.environ.get(_VARIABLE) or DEFAULT_PARTITIONER, _VARIABLE
    if name not in PARTITIONERS:
        raise NamedMeshError(
            f"{what}={name!r} is not a partitioner",
            f"partitioners: {', '.join(PARTITIONERS)}",
            fix=did_you_mean(str(name), PARTITIONERS),
        )
    return name
