"""Placement: what an op asks of the places of its operands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from namedmesh.errors.errors import NamedMeshError


@dataclass(frozen=True)
class Placement:
    """What an op asks of the places of its operands; every other dimension passes through by name.

    Args:
        whole: Dimensions the op needs unsplit.
        reduced: Dimensions it reduces over, which split ones turn into an AllReduce. XLA knows how
            to combine partial results of an ordinary op; those of a manual op are added up, so a
            manual op may only sum over split dimensions and needs others whole.
        renames: Operand dimension to the result dimension that takes its place.
        divisible: Dimensions that may be split only where the devices divide their size evenly,
            each with another size that must divide too (of the dimension that takes its place).
        exchanged: Dimensions that may be split because the op itself sends between devices what it
            needs of other shards; `Op.exchanges` says what.

    Example:
        >>> from namedmesh import Placement
        >>> Placement(reduced=["model"]).reduced
        frozenset({'model'})
    """

    whole: frozenset[str]
    reduced: frozenset[str]
    renames: Mapping[str, str]
    divisible: Mapping[str, int]
    exchanged: frozenset[str]

    def __init__(
        self,
        whole: Iterable[str] = (),
        reduced: Iterable[str] = (),
        renames: Mapping[str, str] | None = None,
        divisible: Mapping[str, int] | None = None,
        exchanged: Iterable[str] = (),
    ):
        named = (("whole", whole), ("reduced", reduced), ("exchanged", exchanged))
        for field_name, names in named:
            if isinstance(names, str):
                raise NamedMeshError(
                    f"{field_name} of a placement is a list of names, not the text {names!r}",
                    fix=f"write {field_name}=[{names!r}]",
                )
            object.__setattr__(self, field_name, frozenset(names))
        object.__setattr__(self, "renames", renames or {})
        object.__setattr__(self, "divisible", divisible or {})
