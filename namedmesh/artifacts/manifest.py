"""Manifest: everything an Artifact has besides its modules, and its JSON in both directions."""

from __future__ import annotations

import contextlib
import keyword
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, Literal, get_args

from namedmesh.artifacts.description import OpRecord, TensorSpec, VariableSpec
from namedmesh.dims.dimension import Dimension
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError
from namedmesh.errors.mistakes import Explained
from namedmesh.records.codec import (
    MOST_PROBLEMS,
    InvalidRecordError,
    format_wrong,
    read_value,
    write_value,
)
from namedmesh.records.collective import REDUCTIONS, Collective
from namedmesh.signature.nest import ResultStructure, named_tuple

Precision = Literal["default", "high", "highest"]
PRECISIONS = get_args(Precision)
_KINDS = ("dict", "tuple", "list", "named")
_PLAIN_KEYS = (str, int, float, bool, type(None))


@dataclass(frozen=True)
class Manifest(Explained):
    """A planned and lowered program, without its modules."""

    name: str  # of the traced function
    layout: str
    params: str  # the layout of parameters at rest
    mesh: Mesh
    precision: Precision  # of matrix products
    inputs: tuple[TensorSpec, ...]  # of a step, besides its state
    groups: Mapping[str, tuple[str, ...]]  # for each dict argument the names of its inputs
    variables: tuple[VariableSpec, ...]  # the state
    outputs: tuple[TensorSpec, ...]  # of a step, besides the next state
    structure: Any  # a ResultStructure: how the outputs nest
    collectives: tuple[Collective, ...]  # of a step, as planned
    initial_collectives: tuple[Collective, ...]  # of making the first state, as planned
    ops: Mapping[str, OpRecord]  # the named ops of a step
    activation_bytes: int  # that one device keeps of the forward loops for the backward pass
    flops: int  # of a step, over all devices
    made_with: Mapping[str, str]  # the versions of what made it
    # The share of the FLOPs that the backward pass computes again, by scope.
    recomputed: Mapping[str, float] = field(default_factory=dict, kw_only=True)

    @property
    def orders(self) -> frozenset[tuple[str, ...]]:
        """The axes that number the shards of a dimension, of all that are over several."""
        results = (spec for op in self.ops.values() for spec in op.results)
        specs = chain(self.inputs, self.variables, self.outputs, results)
        return frozenset(axes for spec in specs for _, axes in spec.sharding.held if axes[1:])


def write_manifest(manifest: Manifest) -> dict[str, Any]:
    """Return a manifest as values that JSON has."""
    structure = write_structure(manifest.structure)
    return write_value(replace(manifest, structure=structure), Manifest)


def read_manifest(document: Mapping[str, Any]) -> Manifest:
    """Read a manifest; raise InvalidRecordError for all that is missing or wrong."""
    manifest = read_value(document, Manifest)
    structure = _StructureReader(len(manifest.outputs)).read_all(manifest.structure)
    manifest = replace(manifest, structure=structure)
    problems = [*islice(chain(_check_axes(manifest), _check_inputs(manifest)), MOST_PROBLEMS + 1)]
    if problems:
        raise InvalidRecordError(problems)
    return manifest


def _check_axes(manifest: Manifest) -> Iterator[str]:
    """Yield the tensors and collectives with axes that the mesh does not have."""
    mesh = manifest.mesh
    used: dict[str, tuple[str, ...]] = {}
    tensors = {name: getattr(manifest, name) for name in ("inputs", "variables", "outputs")}
    tensors |= {f"ops.{name}.results": op.results for name, op in manifest.ops.items()}
    for name, specs in tensors.items():
        for i, spec in enumerate(specs):
            used[f"{name}[{i}].sharding"] = spec.sharding.used
    for name in ("collectives", "initial_collectives"):
        for i, one in enumerate(getattr(manifest, name)):
            used[f"{name}[{i}].axes"] = one.axes
            for part, axes in (("order", one.order), ("receivers", one.receivers)):
                if axes and sorted(axes) != sorted(one.axes):
                    yield format_wrong(f"{name}[{i}].{part}", axes, "its axes in some order")
            if one.reduction not in ("", *REDUCTIONS):
                choices = f"one of {', '.join(REDUCTIONS)}"
                yield format_wrong(f"{name}[{i}].reduction", one.reduction, choices)
            used[f"{name}[{i}].hop"] = one.hop.axes if one.hop else ()
            if set(one.axes) <= set(mesh.axes) and one.devices != mesh.size(one.axes):
                count = f"{mesh.size(one.axes)}, the devices along {'+'.join(one.axes)}"
                yield format_wrong(f"{name}[{i}].devices", one.devices, count)
    for path, axes in used.items():
        unknown = [axis for axis in axes if axis not in mesh.axes]
        if unknown:
            yield f"{path}: {mesh} has no axis {', '.join(map(repr, unknown))}"


def _check_inputs(manifest: Manifest) -> Iterator[str]:
    """Yield the names that are given twice, and the groups whose inputs do not stand together."""
    names = [spec.name for spec in manifest.inputs]
    everything = names + [spec.name for spec in manifest.variables]
    for name, count in Counter(everything).items():
        if count > 1:
            yield f"inputs and variables: {count} are named {name!r}"
    places = {name: place for place, name in reversed([*enumerate(names)])}
    for argument, group in manifest.groups.items():
        start = places.get(group[0], 0) if group else 0
        if tuple(names[start : start + len(group)]) != group:
            yield format_wrong(f"groups.{argument}", group, "inputs that follow each other")


def write_structure(structure: ResultStructure) -> Any:
    """Return a nesting as values that JSON has, which has neither tuples nor keys but text."""
    if structure is None or isinstance(structure, int):
        return structure
    if isinstance(structure, dict):
        entries = [[_write_key(key), write_structure(value)] for key, value in structure.items()]
        return {"dict": entries}
    items = [write_structure(item) for item in structure]
    if hasattr(structure, "_fields"):
        return {"named": [type(structure).__name__, list(structure._fields), items]}
    return {"tuple" if isinstance(structure, tuple) else "list": items}


def _write_key(key: object) -> Any:
    if isinstance(key, _PLAIN_KEYS):
        return key
    if isinstance(key, Dimension):
        return {"dimension": [key.name, key.size]}
    if type(key) is tuple:
        return {"tuple": [_write_key(item) for item in key]}
    raise NamedMeshError(
        f"the results have a key of type {type(key).__name__}, which an Artifact cannot keep",
        f"key: {key!r}",
        fix="use strings, numbers, Dimensions, or tuples of those as keys of the results",
    )


class _StructureReader:
    """Reads the nesting of results, in which each output must appear once."""

    def __init__(self, leaves: int):
        self.leaves = leaves
        self.numbers: Counter[int] = Counter()

    def read_all(self, value: Any) -> ResultStructure:
        """Read a whole nesting."""
        structure = self._read(value, "structure")
        if self.numbers != Counter(range(self.leaves)):
            problem = f"structure does not have each of {self.leaves} outputs once"
            raise InvalidRecordError([problem])
        return structure

    def _read(self, value: Any, path: str) -> ResultStructure:
        if value is None:
            return None
        if isinstance(value, int):
            if isinstance(value, bool) or not 0 <= value < self.leaves:
                raise _wrong(path, value, f"the number of one of {self.leaves} outputs")
            self.numbers[value] += 1
            return value
        kind = next(iter(value)) if isinstance(value, dict) and len(value) == 1 else None
        if kind not in _KINDS:
            kinds = f"a number, null, or an object with one of {', '.join(_KINDS)}"
            raise _wrong(path, value, kinds)
        path = f"{path}.{kind}"
        items = _check_list(value[kind], path)
        if kind == "named":
            return self._read_named(items, path)
        if kind == "dict":
            return dict(self._read_entry(one, f"{path}[{i}]") for i, one in enumerate(items))
        parts = self._read_each(items, path)
        return tuple(parts) if kind == "tuple" else parts

    def _read_each(self, items: list[Any], path: str) -> list[ResultStructure]:
        return [self._read(one, f"{path}[{i}]") for i, one in enumerate(items)]

    def _read_entry(self, item: Any, path: str) -> tuple[Any, ResultStructure]:
        if not isinstance(item, list) or len(item) != 2:
            raise _wrong(path, item, "[key, structure]")
        return _read_key(item[0], f"{path}[0]"), self._read(item[1], f"{path}[1]")

    def _read_named(self, parts: list[Any], path: str) -> ResultStructure:
        match parts:
            case [str(name), [*words], [*items]] if len(words) == len(items):
                fields = read_value(words, tuple[str, ...], f"{path}[1]")
                if name.isidentifier() and not keyword.iskeyword(name):
                    kind = named_tuple(name, fields)
                    return kind._make(self._read_each(items, f"{path}[2]"))
        raise _wrong(path, parts, "the name, the fields and the items of a named tuple")


def _read_key(value: Any, path: str) -> Any:
    """Read the key of a dict."""
    kind = next(iter(value)) if isinstance(value, dict) and len(value) == 1 else None
    if kind == "tuple":
        items = _check_list(value[kind], path)
        return tuple(_read_key(item, f"{path}[{i}]") for i, item in enumerate(items))
    if kind == "dimension":
        with contextlib.suppress(NamedMeshError, TypeError):
            return Dimension(*_check_list(value[kind], path))
    elif isinstance(value, _PLAIN_KEYS):
        return value
    raise _wrong(path, value, "the key of a dict")


def _check_list(value: Any, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(path, value, "a list")
    return value


def _wrong(path: str, value: Any, expected: str) -> InvalidRecordError:
    return InvalidRecordError([format_wrong(path, value, expected)])
