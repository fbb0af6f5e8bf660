"""Checks of operands; labels are looked up only for an error, since that reads source files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError, did_you_mean
from namedmesh.errors.mistakes import is_function
from namedmesh.errors.source import Source
from namedmesh.ir.format import describe_type, format_value, to_python_number
from namedmesh.ir.tensor import COMPLEX, FLOATS, FLOATS8, INTEGERS, Tensor

KINDS = {
    "float": FLOATS,
    "number": (*FLOATS, *INTEGERS),
    "integer": INTEGERS,
    "bool": ("bool",),
    "complex": (*FLOATS, *INTEGERS, *COMPLEX),
    "inexact": (*FLOATS, *COMPLEX),
    "factor": (*FLOATS, *FLOATS8, *INTEGERS, *COMPLEX),  # of products
    "any": (*FLOATS, *FLOATS8, *INTEGERS, *COMPLEX, "bool"),
}
AS_INPUT = "pass arrays in as inputs (nm.spec) or variables (nm.param, nm.state)"


def check_tensor(what: str, x: Any) -> Tensor:
    """Return x when it is a Tensor, or raise."""
    if not isinstance(x, Tensor):
        number = isinstance(to_python_number(x), (bool, int, float))
        raise NamedMeshError(
            f"{what}: {describe_type(x)} is not a Tensor",
            fix=f"write nm.full(dims, {x})" if number else AS_INPUT,
        )
    return x


def check_tensors(what: str, tensors: Any, example: str) -> list[Tensor]:
    """Return tensors as a list, or raise."""
    if isinstance(tensors, (str, Tensor)) or not is_list(tensors):
        raise NamedMeshError(
            f"{what}: {describe_type(tensors)} is not a list of tensors", fix=f"write {example}"
        )
    checked = [check_tensor(what, tensor) for tensor in tensors]
    if not checked:
        raise NamedMeshError(f"{what}: the list of tensors is empty", fix=f"write {example}")
    return checked


def check_callable(what: str, *functions: Any) -> None:
    """Raise unless all can be called."""
    for function in functions:
        if not is_function(function):
            raise NamedMeshError(
                f"{what}: {describe_type(function)} is not a function",
                fix="pass a function, e.g. lambda x: x",
            )


def is_list(value: Any) -> bool:
    """Return whether a value can be iterated over, as an array of no dimensions cannot."""
    return isinstance(value, Iterable) and getattr(value, "ndim", None) != 0


def as_tuple(dims: Any) -> tuple[Any, ...]:
    """Return one dimension or several as a tuple; what is not a list becomes its one item."""
    if is_list(dims) and not isinstance(dims, (str, Tensor)):
        return tuple(dims)
    return (dims,)


def check_dimension(what: str, dim: Any, *tensors: Tensor) -> Dimension:
    """Return dim when it is a Dimension, or raise."""
    if not isinstance(dim, Dimension):
        raise NamedMeshError(
            f"{what}: {format_value(dim)} is not a Dimension",
            *map(str, tensors),
            fix="pass the Dimension, e.g. from nm.dims('seq=128'), or its name, not a position",
        )
    return dim


def check_has_dims(what: str, x: Any, *dims: Any) -> None:
    """Raise unless x is a Tensor with these dimensions; names every one that it lacks."""
    check_tensor(what, x)
    absent, resized = [], []
    for dim in dims:
        own = x.shape.named(check_dimension(what, dim, x).name)
        if own is None:
            absent.append(dim)
        elif own != dim:
            resized.append((own, dim))
    if not absent and not resized:
        return
    problems = [f"{x.label} has no dimension {dim.name}" for dim in absent]
    problems += [f"{x.label} has {own}, not {dim}" for own, dim in resized]
    fixes = [did_you_mean(dim.name, x.shape.names) for dim in absent]
    if resized:
        fixes.append("pass the dimension at the size the tensor has")
    raise NamedMeshError(
        f"{what}: {'; '.join(problems)}", str(x), fix="; ".join(dict.fromkeys(fixes))
    )


def make_shape(what: str, dims: Iterable[Dimension], *tensors: Tensor) -> Shape:
    """Make the shape of a result, or raise an error that names the op and its operands."""
    try:
        return dims if isinstance(dims, Shape) else Shape(dims)
    except NamedMeshError as error:
        raise NamedMeshError(
            f"{what}: {error.problem}", *map(str, tensors), fix=error.fix
        ) from None


def check_same_sizes(
    what: str, *tensors: Tensor, result: Shape | None = None, but: str | None = None
) -> None:
    """Raise unless every name (except but) has one size across tensors and result."""
    shapes = [tensor.shape for tensor in tensors] + ([] if result is None else [result])
    sizes: dict[str, tuple[int, int]] = {}
    clashes: dict[str, tuple[int, int, int, int]] = {}
    for i, shape in enumerate(shapes):
        for dim in shape.dims:
            first, size = sizes.setdefault(dim.name, (i, dim.size))
            if size != dim.size and dim.name != but:
                clashes.setdefault(dim.name, (first, size, i, dim.size))
    if not clashes:
        return
    labels = [*_labels(tensors), "the result"]
    problems = [
        f"dimension {name} has size {size} in {labels[first]} and {other} in {labels[i]}"
        for name, (first, size, i, other) in clashes.items()
    ]
    raise NamedMeshError(
        f"{what}: {'; '.join(problems)}",
        *dict.fromkeys(f"{label}: {shape}" for label, shape in zip(labels, shapes, strict=False)),
        fix="one name has one size in an op; rename one of them or slice the larger",
    )


def _labels(tensors: Sequence[Tensor]) -> list[str]:
    """Name each tensor, primed where two of different shapes have one name."""
    named: dict[str, Shape] = {}
    labels = []
    for tensor in tensors:
        label = tensor.label
        while named.setdefault(label, tensor.shape) != tensor.shape:
            label += "'"
        labels.append(label)
    return labels


def check_dtype_kind(what: str, kind: str, *tensors: Tensor, source: Source | None = None) -> None:
    """Raise unless every tensor is of a kind of dtype: float, number, integer, bool or any."""
    for x in tensors:
        if x.dtype not in KINDS[kind]:
            others = (other.dtype for other in tensors if other.dtype in KINDS[kind])
            usual = "int32" if kind == "integer" else "float32"
            fix = f"use nm.cast({x.label}, '{next(others, usual)}')"
            if kind == "bool":
                fix = f"compare first, e.g. {x.label} > 0"
            words = {"complex": "number", "factor": "number", "inexact": "float"}
            if x.dtype in COMPLEX:
                words["number"] = "real"
            raise NamedMeshError(
                f"{what} takes {words.get(kind, kind)} operands",
                *map(str, tensors),
                fix=fix,
                source=source,
            )


def check_one_dtype(
    what: str, *tensors: Tensor, shown: Sequence[Tensor] = (), source: Source | None = None
) -> None:
    """Raise unless all tensors have one dtype; shown are the operands that the error lists."""
    if len({tensor.dtype for tensor in tensors}) > 1:
        raise NamedMeshError(
            f"{what}: operands of different dtypes",
            *map(str, shown or tensors),
            fix="make them agree with nm.cast(x, dtype)",
            source=source,
        )


def check_flag(what: str, value: Any) -> None:
    """Raise unless a value is True or False."""
    if not isinstance(to_python_number(value), bool):
        raise NamedMeshError(
            f"{what}={format_value(value)} is not a choice", fix="write True or False"
        )


def check_int(what: str, name: str, value: Any, *tensors: Tensor) -> int:
    """Return value as an int when it is a whole number known while tracing, or raise."""
    if type(value) is int:
        return value
    number = to_python_number(value)
    if isinstance(number, bool) or not isinstance(number, int):
        known, fix = "", "give a whole number"
        if isinstance(value, Tensor):
            known = " known while tracing"
            fix = "use nm.dynamic_slice or nm.dynamic_update for a start that a tensor holds"
        problem = f"{what}: {name} {format_value(value)} is not a whole number{known}"
        raise NamedMeshError(problem, *map(str, tensors), fix=fix)
    return number
