"""Operands: what a user hands to an op, checked; labels are looked up only for an error, since that reads source files."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.dims.errors import NamedMeshError, did_you_mean
from namedmesh.dims.source import Source
from namedmesh.ir.tensor import FLOATS, INTEGERS, Tensor

KINDS = {
    "float": FLOATS,
    "number": (*FLOATS, *INTEGERS),
    "bool": ("bool",),
    "any": (*FLOATS, *INTEGERS, "bool"),
}
AS_INPUT = "pass arrays in as inputs (nm.spec) or variables (nm.param, nm.state)"


def bare(value: Any) -> Any:
    """A number of numpy's as one of Python's; anything else as it is."""
    return (
        value.item()
        if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0)
        else value
    )


def counted(number: int, noun: str) -> str:
    """So many of a thing: 1 tensor, 2 tensors."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def shown(value: Any) -> str:
    """A value in a sentence, in one line of bounded length: an array by its dtype and shape, dimensions by name and size."""
    if isinstance(value, (Tensor, Dimension, Shape)):
        return str(value)
    if (
        isinstance(value, (list, tuple))
        and value
        and all(isinstance(item, (Tensor, Dimension)) for item in value)
    ):
        return f"[{', '.join(map(str, value))}]"
    value = bare(value)
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, Shape):
        return f"{dtype}{shape}"
    if shape is not None and dtype is not None and not isinstance(value, type):
        return f"{getattr(dtype, 'name', dtype)}{list(shape)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def typed(value: Any) -> str:
    """A value in a sentence, with its type unless that can be seen."""
    return (
        shown(value)
        if isinstance(value, (Tensor, Dimension))
        else f"{shown(value)} of type {type(value).__name__}"
    )


def operand(what: str, x: Any) -> Tensor:
    """Returns x when it is a Tensor, or raises."""
    if not isinstance(x, Tensor):
        number = isinstance(bare(x), (bool, int, float))
        raise NamedMeshError(
            f"{what}: {typed(x)} is no Tensor",
            fix=f"write nm.full(dims, {x})" if number else AS_INPUT,
        )
    return x


def listed(what: str, tensors: Any, example: str) -> list[Tensor]:
    """Returns tensors as a list, or raises."""
    if isinstance(tensors, Tensor):
        raise NamedMeshError(
            f"{what}: a single tensor where a list is due", str(tensors), fix=f"write {example}"
        )
    if isinstance(tensors, str) or not isinstance(tensors, Iterable):
        raise NamedMeshError(
            f"{what}: {typed(tensors)} is not a list of tensors", fix=f"write {example}"
        )
    found = [operand(what, tensor) for tensor in tensors]
    if not found:
        raise NamedMeshError(f"{what}: the list of tensors is empty", fix=f"write {example}")
    return found


def callback(what: str, *functions: Any) -> None:
    """Raises unless all can be called."""
    for function in functions:
        if not callable(function):
            raise NamedMeshError(
                f"{what}: {typed(function)} is not a function",
                fix="pass a function, e.g. lambda x: x",
            )


def several(dims: Any) -> tuple[Any, ...]:
    """One dimension or several as a tuple; what is no list is left for a check of its one item to find."""
    return (
        tuple(dims)
        if isinstance(dims, Iterable) and not isinstance(dims, (str, Tensor))
        else (dims,)
    )


def dimension(what: str, dim: Any, *tensors: Tensor) -> Dimension:
    """Returns dim when it is a Dimension, or raises."""
    if not isinstance(dim, Dimension):
        raise NamedMeshError(
            f"{what}: {shown(dim)} is not a Dimension",
            *map(str, tensors),
            fix="pass the Dimension itself, e.g. from nm.dims('seq=128'), not its name or position",
        )
    return dim


def require(what: str, x: Any, *dims: Any) -> None:
    """Raises unless x is a Tensor that has these dimensions."""
    operand(what, x)
    for dim in dims:
        found = x.shape.named(dimension(what, dim, x).name)
        if found is None:
            raise NamedMeshError(
                f"{what}: {x.label} has no dimension {dim.name}",
                str(x),
                fix=did_you_mean(dim.name, x.shape.names),
            )
        if found != dim:
            raise NamedMeshError(
                f"{what}: {x.label} has {found}, not {dim}",
                str(x),
                fix="pass the dimension at the size the tensor has",
            )


def shaped(what: str, dims: Iterable[Dimension], *tensors: Tensor) -> Shape:
    """The shape of a result, or an error that names the op and its operands."""
    try:
        return dims if isinstance(dims, Shape) else Shape(dims)
    except NamedMeshError as error:
        raise NamedMeshError(
            f"{what}: {error.problem}", *map(str, tensors), fix=error.fix
        ) from None


def same_sizes(
    what: str, *tensors: Tensor, result: Shape | None = None, but: str | None = None
) -> None:
    """Raises unless every name (but one, if said) has one size across the tensors and the result."""
    shapes = [tensor.shape for tensor in tensors] + ([] if result is None else [result])
    sizes: dict[str, tuple[int, int]] = {}
    for i, shape in enumerate(shapes):
        for dim in shape.dims:
            first, size = sizes.setdefault(dim.name, (i, dim.size))
            if size != dim.size and dim.name != but:
                labels = [*_labels(tensors), "the result"]
                raise NamedMeshError(
                    f"{what}: dimension {dim.name} has size {size} in {labels[first]} and {dim.size} in {labels[i]}",
                    *dict.fromkeys(
                        f"{label}: {shape}" for label, shape in zip(labels, shapes, strict=False)
                    ),
                    fix="one name has one size in an op; rename one of them or slice the larger",
                )


def _labels(tensors: Sequence[Tensor]) -> list[str]:
    """What to call each tensor, primed where two of different shapes have one name."""
    named: dict[str, Shape] = {}
    labels = []
    for tensor in tensors:
        label = tensor.label
        while named.setdefault(label, tensor.shape) != tensor.shape:
            label += "'"
        labels.append(label)
    return labels


def takes(what: str, kind: str, *tensors: Tensor, source: Source | None = None) -> None:
    """Raises unless every tensor is of a kind of dtype: float, number, bool or any."""
    for x in tensors:
        if x.dtype not in KINDS[kind]:
            dtype = next(
                (other.dtype for other in tensors if other.dtype in KINDS[kind]), "float32"
            )
            fix = (
                f"compare first, e.g. {x.label} > 0"
                if kind == "bool"
                else f"use nm.cast({x.label}, '{dtype}')"
            )
            raise NamedMeshError(
                f"{what} takes {kind} operands", *map(str, tensors), fix=fix, source=source
            )


def whole_number(what: str, name: str, value: Any, *tensors: Tensor) -> int:
    """Returns value as an int when it is a whole number known while tracing, or raises."""
    if type(value) is int:
        return value
    if isinstance(value, (bool, Tensor)) or not hasattr(value, "__index__"):
        known = isinstance(value, Tensor)
        raise NamedMeshError(
            f"{what}: {name} {shown(value)} is no whole number{' known while tracing' if known else ''}",
            *map(str, tensors),
            fix="use nm.dynamic_slice or nm.dynamic_update for a start that a tensor holds"
            if known
            else "give a whole number",
        )
    return operator.index(value)
