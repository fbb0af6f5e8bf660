"""The collectives of a compiled HLO module, read from its text."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from namedmesh.dims.mesh import Mesh

KINDS = {
    "all-to-all": "AllToAll",
    "all-gather": "AllGather",
    "all-reduce": "AllReduce",
    "reduce-scatter": "ReduceScatter",
    "collective-permute": "CollectivePermute",
    "ragged-all-to-all": "AllToAll",
    "collective-broadcast": "CollectiveBroadcast",
}
DTYPES = {
    "f32": "float32", "bf16": "bfloat16", "f16": "float16", "f64": "float64", "s32": "int32", "s64": "int64",
    "u32": "uint32", "u8": "uint8", "s8": "int8", "pred": "bool",
}  # fmt: skip
_LINE = re.compile(
    r"^\s*(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<type>\(.*?\)|\S+) "
    r"(?P<kind>" + "|".join(KINDS) + r")(?P<start>-start)?\((?P<operands>[^)]*)\)(?P<rest>.*)$"
)
_SHAPE = re.compile(r"(" + "|".join(DTYPES) + r")\[([\d,]*)\]")


@dataclass(frozen=True)
class Found:
    """One collective in compiled code: elements of one device's larger side, and the op it came from."""

    kind: str
    axes: tuple[str, ...] | None  # None when the groups are not those of any axes
    elements: int
    dtype: str
    op: str
    name: str


def collectives(text: str, mesh: Mesh) -> list[Found]:
    """Every collective of the module; several tensors in one all-reduce, or gathered together, count each."""
    found = []
    types = dict(re.findall(r"^\s*(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) [\w\-]+\(", text, re.M))
    for line in text.splitlines():
        match = _LINE.match(line)
        if not match:
            continue
        kind = KINDS[match["kind"]]
        results = _SHAPE.findall(match["type"])
        operands = [
            shape
            for name in re.findall(r"%([\w.\-]+)", match["operands"])
            for shape in _SHAPE.findall(types.get(name, ""))
        ]
        if match["start"] and len(results) > len(operands) and operands:
            results = results[len(operands) :]
        sides = operands if kind in ("ReduceScatter", "AllReduce") and operands else results
        counted = [
            (DTYPES[dtype], math.prod(int(n) for n in dims.split(",") if n))
            for dtype, dims in sides
        ]
        if kind == "AllToAll" and counted:
            counted = [(counted[0][0], sum(elements for _, elements in counted))]
        if kind == "CollectivePermute":
            counted = counted[:1]
        axes = _axes(match["rest"], mesh, kind)
        op = re.search(r'op_name="([^"]*)"', match["rest"])
        for dtype, elements in counted:
            found.append(
                Found(kind, axes, elements, dtype, op.group(1) if op else "", match["name"])
            )
    return found


def _axes(rest: str, mesh: Mesh, kind: str) -> tuple[str, ...] | None:
    """The mesh axes along which the devices of one group differ."""
    grid = np.indices(tuple(mesh.axes.values())).reshape(len(mesh.axes), -1)
    if kind == "CollectivePermute":
        pairs = re.search(r"source_target_pairs=\{(.*?)\}\}", rest)
        if not pairs:
            return None
        groups: Iterable[list[int]] = [
            [int(a), int(b)] for a, b in re.findall(r"\{(\d+),(\d+)", pairs.group(1) + "}")
        ]
    else:
        groups = _groups(rest, mesh.devices)
    differing: set[int] = set()
    for group in groups:
        places = grid[:, group]
        differing |= {i for i in range(len(mesh.axes)) if len({*places[i]}) > 1}
    axes = tuple(axis for i, axis in enumerate(mesh.axes) if i in differing)
    whole = all(len(group) == mesh.size(axes) for group in groups)
    return axes if whole or kind == "CollectivePermute" else None


def _groups(rest: str, devices: int) -> list[list[int]]:
    """Replica groups in any of the three notations HLO has for them."""
    listed = re.search(r"replica_groups=\{(\{.*?\})\}", rest)
    if listed:
        return [
            [int(n) for n in group.split(",") if n]
            for group in re.findall(r"\{([\d,]*)\}", listed.group(1))
        ]
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", rest)
    if iota:
        shape, base, order = (_numbers(part) for part in iota.groups())
        return _iota(base, order).reshape(shape).tolist()
    named = re.search(
        r"replica_groups=mesh\[(.*?)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{(.*?)\}",
        rest,
    )
    if named:
        sizes, base, order, chosen = named.groups()
        axes = [(name, int(size)) for name, size in re.findall(r"'([^']+)'=(\d+)", sizes)]
        ids = _iota(_numbers(base) or [devices], _numbers(order))
        return _mesh_groups(axes, ids, re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", chosen))
    return [list(range(devices))]


def _mesh_groups(
    axes: list[tuple[str, int]], ids: np.ndarray, chosen: list[tuple[str, str, str]]
) -> list[list[int]]:
    """Groups along some axes of a mesh, or along a part of an axis given as (size before it) and its size."""
    shape: list[int] = []
    picked: dict[tuple[str, str, str], int] = {}
    for name, size in axes:
        parts = [one for one in chosen if one[0] == name]
        cuts = sorted(
            {
                1,
                size,
                *(int(before) for _, before, _ in parts if before),
                *(int(before) * int(n) for _, before, n in parts if before),
            }
        )
        for low, high in itertools.pairwise(cuts):
            for one in parts:
                start, stop = (int(one[1]), int(one[1]) * int(one[2])) if one[1] else (1, size)
                if start <= low and high <= stop:
                    picked[name, str(low), str(high)] = len(shape)
            shape.append(high // low)
    grid = ids.reshape(shape or [1])
    inner = list(picked.values())
    outer = [i for i in range(len(shape)) if i not in inner]
    return grid.transpose(outer + inner).reshape(-1, math.prod(shape[i] for i in inner)).tolist()


def _numbers(text: str | None) -> list[int]:
    return [int(n) for n in text.split(",")] if text else []


def _iota(base: list[int], order: list[int]) -> np.ndarray:
    ids = np.arange(math.prod(base)).reshape(base)
    return ids.transpose(order) if order else ids
