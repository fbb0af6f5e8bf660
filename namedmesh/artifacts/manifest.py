"""Manifest: everything an Artifact says about its modules, and its JSON in both directions."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from namedmesh.artifacts.description import OpRecord, TensorSpec, VariableSpec, dtype_of
from namedmesh.artifacts.structure_json import read_structure, write_structure
from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.dims.hop import Hop
from namedmesh.dims.mesh import Mesh
from namedmesh.dims.sharding import Sharding
from namedmesh.errors.errors import NamedMeshError
from namedmesh.errors.source import Source
from namedmesh.records.collective import Collective
from namedmesh.records.json_cursor import JsonCursor
from namedmesh.signature.inputs import InputGroups
from namedmesh.signature.structure import ResultStructure

PRECISIONS = ("default", "high", "highest")
_LARGEST_SIZE = 2**40  # of a dimension: compilers count elements in 63 bits
_TEXTS = ("name", "layout", "params")
_COUNTS = ("hosts", "slices")
_CROSSING = ("host_bytes", "slice_bytes")


@dataclass(frozen=True)
class Manifest:
    """What is known of a planned and lowered program besides its modules.

    Attributes:
        name: The name of the traced function.
        mesh: The mesh it is planned for.
        layout: The layout it is planned for, as text.
        params: The layout of parameters at rest, as text.
        precision: That of matrix products: `default`, `high` or `highest`.
        inputs: What a step takes besides its state.
        groups: The names of the inputs that each dict argument of the traced function has.
        variables: The state.
        outputs: What a step returns besides the next state.
        structure: How the outputs nest.
        collectives: Those of a step, as planned.
        initial_collectives: Those of making the first state, as planned.
        ops: The named ops of a step.
        activation_bytes: What one device keeps of the forward pass's loops for the backward pass.
        flops: The floating point operations of a step, over all devices.
        made_with: The versions of what made it.
    """

    name: str
    mesh: Mesh
    layout: str
    params: str
    precision: str
    inputs: tuple[TensorSpec, ...]
    groups: InputGroups
    variables: tuple[VariableSpec, ...]
    outputs: tuple[TensorSpec, ...]
    structure: ResultStructure
    collectives: tuple[Collective, ...]
    initial_collectives: tuple[Collective, ...]
    ops: Mapping[str, OpRecord]
    activation_bytes: int
    flops: int
    made_with: Mapping[str, str]


def without_folder(source: Source) -> Source:
    """A source line as a manifest has it: by the name of its file alone."""
    return Source(os.path.basename(source.file), source.line)


def write_manifest(manifest: Manifest) -> dict[str, Any]:
    """A manifest as JSON."""
    mesh = manifest.mesh
    return {
        **{name: getattr(manifest, name) for name in _TEXTS},
        "mesh": _write_mesh(mesh),
        "precision": manifest.precision,
        "inputs": [_write_spec(spec) for spec in manifest.inputs],
        "groups": {argument: list(names) for argument, names in manifest.groups.items()},
        "variables": [
            {**_write_spec(spec), "trainable": spec.trainable, "updated": spec.updated}
            for spec in manifest.variables
        ],
        "outputs": [_write_spec(spec) for spec in manifest.outputs],
        "structure": write_structure(manifest.structure),
        "collectives": [_write_collective(one) for one in manifest.collectives],
        "initial_collectives": [_write_collective(one) for one in manifest.initial_collectives],
        "ops": {
            name: {
                "source": str(record.source),
                "results": [_write_spec(spec) for spec in record.results],
            }
            for name, record in manifest.ops.items()
        },
        "activation_bytes": manifest.activation_bytes,
        "flops": manifest.flops,
        "made_with": dict(manifest.made_with),
    }


def read_manifest(document: JsonCursor) -> Manifest:
    """A manifest from its JSON; whatever is wrong is noted in the document's problems."""
    mesh = _read_mesh(document.member("mesh"))
    texts = {name: document.member(name).text() for name in _TEXTS}
    precision = document.member("precision").text(PRECISIONS)
    inputs = _read_specs(document.member("inputs"), mesh)
    variables = tuple(
        VariableSpec(
            **vars(_read_spec(one, mesh)),
            trainable=one.member("trainable").flag(),
            updated=one.member("updated").flag(),
        )
        for one in document.member("variables").items()
    )
    outputs = _read_specs(document.member("outputs"), mesh)
    _check_names(document, [*inputs, *variables])
    return Manifest(
        **texts,
        mesh=mesh or Mesh(missing=1),
        precision=precision,
        inputs=inputs,
        groups=_read_groups(document.member("groups"), inputs),
        variables=variables,
        outputs=outputs,
        structure=read_structure(document.member("structure"), len(outputs)),
        collectives=_read_collectives(document.member("collectives"), mesh),
        initial_collectives=_read_collectives(document.member("initial_collectives"), mesh),
        ops={
            name: OpRecord(
                _read_source(one.member("source")), _read_specs(one.member("results"), mesh)
            )
            for name, one in document.member("ops").members().items()
        },
        activation_bytes=document.member("activation_bytes").number(),
        flops=document.member("flops").number(),
        made_with={
            name: version.text() for name, version in document.member("made_with").members().items()
        },
    )


def _check_names(document: JsonCursor, specs: Sequence[TensorSpec]) -> None:
    """Note the names that two inputs or variables have."""
    for name, count in Counter(spec.name for spec in specs).items():
        if count > 1 and not document.problems:
            document.note(f"inputs and variables: {count} are named {name!r}")


def _read_groups(cursor: JsonCursor, inputs: Sequence[TensorSpec]) -> InputGroups:
    """The inputs of each dict argument, which follow each other."""
    names = [spec.name for spec in inputs]
    groups = {}
    for argument, one in cursor.members().items():
        group = tuple(name.text() for name in one.items())
        start = names.index(group[0]) if group and group[0] in names else 0
        if tuple(names[start : start + len(group)]) != group:
            one.wrong("inputs that follow each other")
        groups[argument] = group
    return groups


def _list(numbers: tuple[int, ...] | None) -> list[int] | None:
    """A tuple as JSON has it."""
    return None if numbers is None else list(numbers)


def _write_mesh(mesh: Mesh) -> dict[str, Any]:
    """The mesh as JSON, hosts and slices where there are several."""
    counts = {name: mesh.to_json()[name] for name in _COUNTS if name in mesh.to_json()}
    return {"axes": mesh.axes, "device_assignment": _list(mesh.device_assignment), **counts}


def _read_mesh(cursor: JsonCursor) -> Mesh | None:
    """The mesh; None if it is wrong."""
    known = len(cursor.problems)
    axes = {name: size.number() for name, size in cursor.member("axes").members().items()}
    assignment = cursor.member("device_assignment")
    order = None if assignment.value is None else [one.number() for one in assignment.items()]
    for name in ("device_assignment", *_COUNTS):
        if name in axes:
            cursor.note(f"{cursor.path}.axes: {name} is not the name of an axis")
    counts = {name: cursor.member(name).number() for name in _COUNTS if cursor.has(name)}
    if len(cursor.problems) > known:
        return None
    return cursor.build(lambda: Mesh(device_assignment=order, **counts, **axes), None)


def _write_spec(spec: TensorSpec) -> dict[str, Any]:
    """A tensor as JSON."""
    return {
        "name": spec.name,
        "dims": [[dim.name, dim.size] for dim in spec.shape],
        "dtype": spec.dtype,
        "held": {name: list(axes) for name, axes in spec.sharding.held},
    }


def _read_specs(cursor: JsonCursor, mesh: Mesh | None) -> tuple[TensorSpec, ...]:
    """A list of tensors."""
    return tuple(_read_spec(one, mesh) for one in cursor.items())


def _read_spec(cursor: JsonCursor, mesh: Mesh | None) -> TensorSpec:
    """One tensor."""
    dims = cursor.member("dims")
    shape = dims.build(lambda: Shape(filter(None, map(_read_dim, dims.items()))), Shape())
    held = cursor.member("held")
    axes = {name: _read_axes(one, mesh) for name, one in held.members().items()}
    for name in axes:
        if name not in shape.names:
            held.note(f"{held.path}: {name!r} is not one of the dimensions {shape}")
    for axis, count in Counter(axis for several in axes.values() for axis in several).items():
        if count > 1:
            held.note(f"{held.path}: axis {axis!r} is held {count} times")
    dtype = _read_dtype(cursor.member("dtype"))
    return TensorSpec(cursor.member("name").text(), shape, dtype, Sharding.of(axes))


def _read_dtype(cursor: JsonCursor) -> str:
    """The name of a dtype."""
    name = cursor.text()
    try:
        dtype_of(name)
    except TypeError:
        if isinstance(cursor.value, str):
            cursor.wrong("the name of a dtype")
    return name


def _read_dim(cursor: JsonCursor) -> Dimension | None:
    """One dimension, written as [name, size]."""
    if not isinstance(cursor.value, list) or len(cursor.value) != 2:
        cursor.wrong("[name, size]")
        return None
    name, size = cursor.items()
    if size.number() > _LARGEST_SIZE:
        size.wrong(f"at most {_LARGEST_SIZE}")
        return None
    return Dimension(name.text(), size.number())


def _read_axes(cursor: JsonCursor, mesh: Mesh | None) -> tuple[str, ...]:
    """Mesh axes, which the mesh must have."""
    axes = tuple(one.text() for one in cursor.items())
    unknown = [axis for axis in axes if mesh and axis not in mesh.axes]
    if unknown:
        cursor.note(f"{cursor.path}: {mesh} has no axis {', '.join(map(repr, unknown))}")
    return axes


def _write_collective(collective: Collective) -> dict[str, Any]:
    """A collective as JSON, without what crosses hosts where nothing does."""
    facts = vars(collective)
    return {
        **{name: facts[name] for name in facts if name not in _CROSSING or facts[name]},
        "axes": list(collective.axes),
        "source": str(collective.source),
        "hop": str(collective.hop or ""),
    }


def _read_collectives(cursor: JsonCursor, mesh: Mesh | None) -> tuple[Collective, ...]:
    """A list of collectives."""
    return tuple(
        Collective(
            kind=one.member("kind").text(),
            axes=_read_axes(one.member("axes"), mesh),
            elements=one.member("elements").number(),
            dtype=_read_dtype(one.member("dtype")),
            bytes=one.member("bytes").number(),
            times=one.member("times").number(),
            tensor=one.member("tensor").text(),
            op=one.member("op").text(),
            phase=one.member("phase").text(),
            source=_read_source(one.member("source")),
            devices=_read_group_size(one, mesh),
            open_ended=one.member("open_ended").flag(),
            scope=one.member("scope").text(),
            producer=one.member("producer").text(),
            times_outside=one.member("times_outside").number(),
            hop=_read_hop(one.member("hop"), mesh),
            **{name: one.member(name).number() for name in _CROSSING if one.has(name)},
        )
        for one in cursor.items()
    )


def _read_hop(cursor: JsonCursor, mesh: Mesh | None) -> Hop | None:
    """Who sends to whom, along axes that the mesh must have."""
    text = cursor.text()
    try:
        hop = Hop.read(text) if text else None
    except NamedMeshError:
        cursor.wrong("a hop, such as '1-3 from -1 along space'")
        return None
    if hop and mesh and any(axis not in mesh.axes for axis in hop.axes):
        cursor.wrong(f"along axes of {mesh}")
        return None
    return hop


def _read_group_size(cursor: JsonCursor, mesh: Mesh | None) -> int:
    """How many devices communicate, which follows from the axes of a collective."""
    devices, axes = cursor.member("devices"), _read_axes(cursor.member("axes"), None)
    if mesh and all(axis in mesh.axes for axis in axes) and devices.number() != mesh.size(axes):
        devices.wrong(f"{mesh.size(axes)}, the devices along {'+'.join(axes)}")
    return devices.number()


def _read_source(cursor: JsonCursor) -> Source:
    """A source line, written as file:line."""
    file, colon, line = cursor.text().rpartition(":")
    if not colon or not re.fullmatch("[0-9]{1,9}", line):
        if isinstance(cursor.value, str):
            cursor.wrong("file:line")
        return Source("", 0)
    return Source(file, int(line))
