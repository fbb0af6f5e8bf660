"""The arguments of a compiled step, their shardings and memory; and the mesh that they are on."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import math
import operator
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from namedmesh.artifacts.stablehlo.shardy import read_axes
from namedmesh.audit.hlo.array_types import ArrayType
from namedmesh.audit.hlo.module import Instruction, Module
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError
from namedmesh.jax_internals import kept_arguments
from namedmesh.records.tensor import TensorRecord

_NAMED = re.compile(r"\{mesh\[(.*?)\].*?\[(.*)\](?:, .*)?\}")
_AXIS = re.compile(r"['\"]([^'\"]+)['\"]=(\d+)")
_MESHES = re.compile(r"mesh(?: @\w+ = <)?\[(['\"][^\]]*)\]")  # of HLO, and of StableHLO
_NUMBER = re.compile(r"<flat index (\d+)>")  # in paths of classes that jax does not look into
_OURS = ("hosts", "slices", "device_assignment", "self")  # arguments of a Mesh


class Leaf(NamedTuple):
    """An array among the arguments of a step."""

    path: str  # inside its argument, such as ['layers'][0].kernel
    sizes: tuple[int, ...]
    sharding: Any  # of jax; None if it is not known
    name: str = ""  # that its library has for the path, such as .layers[0].kernel


def list_leaves(step: Any, shardings: Any, own: Sequence[tuple[str, Any]]) -> list[Leaf]:
    """List the arrays that a lowered or compiled step reads, in the order of its parameters.

    A library may pack its arguments: the names are those of the caller's if these are as many.
    """
    leaves, kept = jax.tree_util.tree_flatten_with_path(step.args_info)[0], kept_arguments(step)
    known = jax.tree.leaves(shardings, is_leaf=lambda one: one is None)
    if len(known) != len(leaves):
        known = [None] * len(leaves)
    names: dict[int, str] = {}
    arrays = [leaf for _, leaf in leaves if hasattr(leaf, "shape")]
    if [one.shape for one in arrays] == [one.shape for _, one in own]:
        names = {id(leaf): name for leaf, (name, _) in zip(arrays, own, strict=True)}
    names |= _name_variables(step.args_info)
    return [
        Leaf(_write_path(path[2:]), tuple(leaf.shape), one, names.get(id(leaf), ""))
        for i, ((path, leaf), one) in enumerate(zip(leaves, known, strict=True))
        if i in kept and hasattr(leaf, "shape")
    ]


def _write_path(path: tuple[Any, ...]) -> str:
    """Write a path as jax names arguments."""
    return _NUMBER.sub(r"\1", jax.tree_util.keystr(path))


def name_packed(step: Any, arguments: Any, named: Any) -> list[tuple[str, Any]]:
    """Return the arrays that a function is called with, by the names of its parameters."""
    try:
        bound = inspect.signature(step).bind(*arguments, **named).arguments
    except (TypeError, ValueError):
        return []
    found = (
        (name + _write_path(path), leaf)
        for name, value in bound.items()
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]
    )
    return [(name, leaf) for name, leaf in found if hasattr(leaf, "shape")]


def _name_variables(arguments: Any) -> dict[int, str]:
    """Return the paths of the variables of Flax NNX modules that `nnx.jit` numbers."""

    def is_module(one: Any) -> bool:
        return hasattr(one, "graphdef") and hasattr(one, "states")

    names: dict[int, str] = {}
    for one in filter(is_module, jax.tree.leaves(arguments, is_leaf=is_module)):
        nnx = sys.modules["flax.nnx"]
        with contextlib.suppress(Exception):  # of a module that shares variables with another
            state = nnx.to_flat_state(nnx.state(nnx.merge(one.graphdef, *one.states)))
            for path, variable in state:
                parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
                names[id(variable.get_value())] = "".join(parts)
    return names


def find_mesh(module: Module, text: str, shardings: Iterable[Any], hosts: int = 1) -> Mesh:
    """Find the mesh of a step: that of its arguments, one its text names, or one of its groups."""
    devices = count_devices(module)
    meshes = Counter(one.mesh for one in shardings if hasattr(one, "mesh"))
    found = next((mesh for mesh, _ in meshes.most_common() if mesh.size == devices), None)
    if found is not None:
        processes = {one.process_index for one in np.ravel(getattr(found, "devices", ()))}
        return _make_mesh(found.shape, max(hosts, len(processes)))
    for one in _MESHES.findall(text):
        axes = {name: int(size) for name, size in _AXIS.findall(one)}
        # Names like axis_0 are the compiler's own, of one collective or another.
        if math.prod(axes.values()) == devices and not any(name[:5] == "axis_" for name in axes):
            return _make_mesh(axes, hosts)
    return _make_mesh(_infer_axes(module, devices), hosts)


def _make_mesh(axes: Mapping[Any, int], hosts: int) -> Mesh:
    """Make a mesh of axes of any names, on hosts if these have equal blocks of it."""
    names = [re.sub(r"\W", "_", str(name)).lstrip("_0123456789") or "axis" for name in axes]
    names = [f"{name}_" if name in _OURS else name for name in names]
    mesh = Mesh(None, **dict(zip(names, axes.values(), strict=True)))
    return Mesh(None, hosts=hosts, **mesh.axes) if mesh.divides(hosts) else mesh


def count_devices(module: Module) -> int:
    """Count the devices of a module."""
    names = ("num_partitions", "replica_count")
    return math.prod(int(module.attributes.get(name, 1)) for name in names)


def _infer_axes(module: Module, devices: int) -> dict[str, int]:
    """Infer the axes of a mesh from the distances between devices that communicate."""
    cuts = {1, devices}
    for group in {one.groups[0] for _, one in module.instructions() if one.groups}:
        steps = {b - a for a, b in itertools.pairwise(group)}
        cuts |= {min(steps), min(steps) * len(group)} if len(steps) == 1 else set()
    pairs = [*itertools.pairwise(sorted(cuts))]
    if len(pairs) < 2 or any(high % low for low, high in pairs):
        return {"devices": devices}
    return {f"axis{i}": high // low for i, (low, high) in enumerate(reversed(pairs))}


def match_arguments(
    module: Module, leaves: Sequence[Leaf]
) -> Iterator[tuple[Instruction, ArrayType, Leaf | None]]:
    """Yield the arrays that a step is given, each with what is known of it."""
    parameters = (one for one in module.computations[module.entry] if one.opcode == "parameter")
    left = [*leaves]
    for one in sorted(parameters, key=lambda one: int(one.literal)):
        for type in one.type.arrays:
            at = next((i for i, x in enumerate(left) if _is_at(one.op_name, x.path)), None)
            leaf = left[at] if at is not None else None
            del left[: at + 1 if at is not None else 0]
            fits = leaf is not None and len(leaf.sizes) == len(type.sizes)  # keys do not
            yield one, type, leaf if fits else None


def name_arguments(module: Module, leaves: Sequence[Leaf]) -> None:
    """Name the arguments of a module as their libraries do, where jax has numbers."""
    named = {one.name: (one, leaf) for one, _, leaf in match_arguments(module, leaves) if leaf}
    for name, (one, leaf) in named.items():
        if leaf.name:
            inside = leaf.name[0] in ".["  # the argument
            op_name = one.op_name.removesuffix(leaf.path) * inside + leaf.name
            instructions: Any = module.computations[module.entry].instructions
            instructions[name] = replace(one, op_name=op_name)


def list_tensors(module: Module, mesh: Mesh, leaves: Sequence[Leaf]) -> Iterator[TensorRecord]:
    """Yield the arguments that a step reads, with their shardings."""
    for one, type, leaf in match_arguments(module, leaves):
        axes = _axes_of(leaf, one.attributes.get("sharding", ""), type, mesh)
        shards = [mesh.size([axis for axis in each if axis != "?"]) for each in axes]
        sizes = leaf.sizes if leaf else [*map(operator.mul, type.sizes, shards)]
        cells = zip(map(str, sizes), map("+".join, axes), strict=True)
        dims = ", ".join(f"{size}/{on}" if on else size for size, on in cells)
        padding = 1 - math.prod(sizes) / max(1, type.elements * math.prod(shards))
        name, place = one.op_name or f"argument {one.literal}", f"{type.element.dtype}[{dims}]"
        yield TensorRecord(name, place, type.bytes, max(0.0, padding))


def _is_at(name: str, path: str) -> bool:
    """Return whether the name of an argument ends with a path; one without a path is an array."""
    return name.endswith(path) if path else not re.search(r"[\[.]", name)


def _axes_of(leaf: Leaf | None, text: str, type: ArrayType, mesh: Mesh) -> Sequence[Sequence[str]]:
    """Return the mesh axes of each dimension of an argument; ? where they are not known."""
    rank, spec = len(type.sizes), getattr(leaf and leaf.sharding, "spec", None)
    named = _NAMED.fullmatch(text)
    if leaf is not None and spec is not None:
        theirs = map(str, leaf.sharding.mesh.axis_names)
        cells = [one if isinstance(one, tuple) else (one,) for one in spec]
    elif named:
        theirs = (name for name, _ in _AXIS.findall(named[1]))
        cells = [re.findall(r"'([^']+)'", one) for one in re.findall(r"\{(.*?)\}", named[2])]
    else:
        return read_known_axes(text or "{replicated}", rank, mesh) or [["?"]] * rank
    ours = dict(zip(theirs, mesh.axes, strict=False))
    found = [[ours.get(str(axis), "?") for axis in one if axis is not None] for one in cells]
    return found + [[]] * (rank - len(found))


@functools.lru_cache(maxsize=4096)  # most arguments have the sharding of others
def read_known_axes(sharding: str, rank: int, mesh: Mesh) -> Sequence[Sequence[str]] | None:
    """Return the mesh axes of each dimension of a sharding of XLA; None if they have no names."""
    try:
        return read_axes(sharding, rank, mesh)
    except (NamedMeshError, ValueError):
        return None


def divide_memory(stats: Any, tensors: Iterable[TensorRecord]) -> dict[str, int]:
    """Divide the bytes that the compiler counts by what they hold: each argument, results, rest."""
    held: Counter[str] = Counter()
    if stats is None:
        return held
    for one in tensors:
        held[re.split(r"[\[.]", one.tensor)[0]] += one.bytes_per_device
    held["other arguments"] = max(0, stats.argument_size_in_bytes - held.total())
    held["results"] = stats.output_size_in_bytes - stats.alias_size_in_bytes
    held["temporaries"] = stats.temp_size_in_bytes
    held["code"] = stats.generated_code_size_in_bytes
    return held
