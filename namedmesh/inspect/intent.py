"""Intent: what a step of JAX asks for before it is compiled, by the lines that ask for it."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from namedmesh.audit.hlo.source_lines import choose_line
from namedmesh.errors.source import Source

_FRAME = re.compile(r'(?:"([^"]*)"\()?"([^"]+)":(\d+):\d+')
_NAME = re.compile(r'loc\("([^"]+)"')
_MESH_AXIS = re.compile(r'"([^"]+)"=(\d+)')
_DIMENSION = re.compile(r"\{([^{}]*)\}")
_AXIS = re.compile(r'"([^"]+)"(?::\(\d+\)(\d+))?')
_TILES = re.compile(r"devices=\[([\d,]+)\]")
Key = tuple[str, int, str]  # of an op: the file, the line and its name; of a call, no name
_CALLING = ("while", "cond", "closed_call", "custom_jvp_call", "custom_vjp_call")
_CONSTRAINTS = ("sdy.sharding_constraint", "stablehlo.custom_call")


class Constraint(NamedTuple):
    """A tensor that a line asks to be split."""

    sizes: tuple[int, ...]
    shards: tuple[int, ...]  # of each dimension
    bytes: int  # of an element
    source: Source | None
    made: str  # the location of what makes it

    @property
    def padding(self) -> int:
        """The bytes of padding that each device has."""
        pairs = zip(self.sizes, self.shards, strict=True)
        held = math.prod(-(-size // shards) for size, shards in pairs)
        return (held - math.prod(self.sizes) // math.prod(self.shards)) * self.bytes


class Intent:
    """A step as jax lowers it; nothing is known of one that is given compiled."""

    def __init__(self, module: Any = None) -> None:
        self.module = module  # of MLIR
        self._sizes = {}  # of mesh axes

    @functools.cached_property
    def _ops(self) -> list[Any]:
        """Every op of the module."""
        found: list[Any] = []

        def enter(op: Any) -> Any:
            found.append(op)
            return _ADVANCE

        if self.module is not None:
            from jaxlib.mlir import ir

            _ADVANCE = ir.WalkResult.ADVANCE
            self.module.operation.walk(enter)
        return found

    def constraints(self) -> Iterator[Constraint]:
        """Yield what the lines of a step constrain to be split."""
        for op in self._ops:
            if op.name == "sdy.mesh":
                self._sizes.update(_MESH_AXIS.findall(str(op.attributes["mesh"])))
            if op.name not in _CONSTRAINTS or not hasattr(op.results[0].type, "shape"):
                continue
            type = op.results[0].type
            shards = self._read_shards(op, len(type.shape))
            if len(shards) == len(type.shape):
                bits = getattr(type.element_type, "width", 32)
                source = choose_line([*list_lines(str(op.location))])
                made = str(getattr(op.operands[0].owner, "location", ""))
                yield Constraint(tuple(type.shape), tuple(shards), -(-bits // 8), source, made)

    @functools.cached_property
    def constrained(self) -> dict[Key, Constraint]:
        """The constraints by what makes their tensors; of several, the one of the fewest shards."""
        ordered = sorted(self.constraints(), key=lambda one: -math.prod(one.shards))
        return {key: one for one in ordered if (key := _key_of(one.made))}

    def _read_shards(self, op: Any, rank: int) -> list[int]:
        """Return into how many shards a constraint splits each dimension."""
        if op.name == "sdy.sharding_constraint":
            cells = _DIMENSION.findall(str(op.attributes["sharding"]).partition(", ")[2])[:rank]
            return [
                math.prod(
                    int(part or self._sizes.get(axis, 1)) for axis, part in _AXIS.findall(one)
                )
                for one in cells
            ]
        text = str(op.attributes["mhlo.sharding"]) if "mhlo.sharding" in op.attributes else ""
        tiles = _TILES.search(text)
        whole = [1] * rank if "replicated" in text else []
        return [int(one) for one in tiles[1].split(",")[:rank]] if tiles else whole

    @functools.cached_property
    def dtypes(self) -> dict[Key, set[str]]:
        """The dtypes that ops have as they are written."""
        found: dict[Key, set[str]] = {}
        for op in self._ops:
            if len(op.results) and (key := _key_of(str(op.location))):
                types = (getattr(one.type, "element_type", one.type) for one in op.results)
                found.setdefault(key, set()).update(map(str, types))
        return found


def _key_of(location: str) -> Key | None:
    """Return the line and the name of an op by its location; None if it does not tell."""
    name, source = _NAME.match(location), choose_line([*list_lines(location)])
    op = name[1].rpartition("/")[2] if name else ""
    op = "" if "(" in op or op in _CALLING else op
    return (source.file, source.line, op) if name and source else None


def list_lines(location: str) -> Iterator[Source]:
    """Yield the lines of a location, the innermost first."""
    for function, file, line in _FRAME.findall(location):
        yield Source(file, int(line), None, function)
