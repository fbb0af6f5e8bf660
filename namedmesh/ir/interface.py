"""The interface of a program: inputs, and variables that live from step to step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError, check_identifier, did_you_mean
from namedmesh.errors.mistakes import Explained
from namedmesh.ir.format import format_value
from namedmesh.ir.operands import as_tuple
from namedmesh.ir.tensor import DTYPES, Tensor
from namedmesh.signature.inputs import name_leaves
from namedmesh.signature.nest import map_leaves


@dataclass(frozen=True)
class InputSpec(Explained, methods=False):
    """The shape and dtype of a program input; `nm.spec` makes one.

    Attributes:
        shape: The named dimensions, in the order of the array.
        dtype: The element type: float32, bfloat16, int32, bool ...
        whole: The names of the dimensions that no layout shards.

    Example:
        >>> B, M = nm.dims("batch=4 model=8")
        >>> nm.spec([B, M], "bfloat16", whole=[M])
        InputSpec(shape=[batch=4, model=8], dtype='bfloat16', whole=frozenset({'model'}))
    """

    shape: Shape
    dtype: str
    whole: frozenset[str]


NARROW = {"float64": "float32", "int64": "int32", "complex128": "complex64"}  # on devices
Example = tuple[Sequence[Dimension], Any]  # dimensions, and an array that has them
Spec = InputSpec | Example
Specs = Any  # an argument of the function: one such, or some, nested as one likes


class Named(NamedTuple):
    """An array with the names of its dimensions: an example of an input, or a constant."""

    dims: tuple[Dimension, ...]
    array: Any


def named(array: Any, dims: str | Sequence[Dimension | str]) -> Named:
    """Return an array with its dimensions: an input for `nm.compile`, a constant beside a tensor.

    Args:
        array: An array of NumPy or jax, a number, or lists of numbers.
        dims: The names of its dimensions in order, such as `"batch seq"`.

    Example:
        >>> nm.named([[1.0, 2.0]], "batch model").dims
        (Dimension(name='batch', size=1), Dimension(name='model', size=2))
        >>> nm.evaluate(lambda x: nm.sum(x, over="batch"), x=nm.named([1.0, 2.0], "batch"))
        array(3., dtype=float32)
    """
    array = array if hasattr(array, "shape") else np.asarray(array)
    words = dims.replace(",", " ").split() if isinstance(dims, str) else as_tuple(dims)
    names = [one.name if isinstance(one, Dimension) else one for one in words]
    if len(names) != len(array.shape) or not all(isinstance(name, str) for name in names):
        raise NamedMeshError(
            f"named: an array of sizes {[*array.shape]} does not have the dimensions "
            f"{format_value(dims)}",
            fix="give a name for each of its axes",
        )
    pairs = zip(names, array.shape, strict=True)
    return Named(tuple(Dimension(name, size) for name, size in pairs), array)


@dataclass(frozen=True, eq=False)
class Variable:
    """A tensor that lives from step to step: a parameter, or other state."""

    name: str
    shape: Shape
    dtype: str
    initialize: Callable[[Tensor], Tensor]  # from a seed (an int32 scalar) to the first value
    role: str  # param, frozen (a parameter that is not trained) or state
    whole: frozenset[str]
    at_rest: bool  # is sharded by the params layout between steps
    tensor: Tensor
    stack: tuple[str, ...] = ()  # the dimensions along which scan(stack=True) stacked it
    owner: str | None = None  # the parameter that an optimizer's slot belongs to
    rows: str | None = None  # the dimension whose elements optimizers update one by one
    init: Callable[..., Tensor] | None = None  # the initializer that `initialize` calls

    @property
    def trainable(self) -> bool:
        """True for a parameter that gradients and optimizers are for."""
        return self.role == "param"


def check_dtype(dtype: object) -> str:
    """Return the name of a dtype that tensors can have, or raise."""
    name = dtype if isinstance(dtype, str) else _name_dtype(dtype)
    if name not in DTYPES:
        near = [one for one in DTYPES if one.startswith(f"{name}_")]  # float8 is not float64
        fix = f"use one of: {', '.join(near)}" if near else did_you_mean(name, DTYPES)
        raise NamedMeshError(f"{format_value(dtype)} is not a dtype of tensors", fix=fix)
    return DTYPES[DTYPES.index(name)]


def _name_dtype(dtype: object) -> str:
    """Return the name of a dtype of numpy, jax or TensorFlow: np.float32, jnp.bfloat16."""
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None)
    return name if isinstance(name, str) and name not in ("bool", "int", "float") else str(dtype)


def check_whole(
    shape: Shape, whole: Sequence[Dimension], what: str, option: str = "whole"
) -> frozenset[str]:
    """Return the names of dimensions that stay whole, or raise for those not in the shape."""
    dims = as_tuple(whole)
    for dim in dims:
        if not isinstance(dim, Dimension) or dim not in shape.dims:
            known = isinstance(dim, str) and dim in shape.names
            raise NamedMeshError(
                f"{what}: {option}={getattr(dim, 'name', dim)!r} is not one of its dimensions",
                f"{what}: {shape}",
                fix="give the nm.Dimension itself, not its name"
                if known
                else did_you_mean(getattr(dim, "name", str(dim)), shape.names),
            )
    return frozenset(dim.name for dim in dims)


def spec(
    dims: Sequence[Dimension], dtype: str = "float32", whole: Sequence[Dimension] = ()
) -> InputSpec:
    """Return the description of a program input, for `nm.trace`, `nm.compile` and `nm.call_tf`.

    Args:
        dims: The named dimensions, in the order of the array.
        dtype: The element type: float32, bfloat16, int32, bool ...
        whole: Dimensions that stay unsharded under every layout.

    Example:
        >>> B, M = nm.dims("batch=4 model=8")
        >>> nm.spec([B, M], "int32").shape
        [batch=4, model=8]
    """
    shape = Shape(dims)
    return InputSpec(shape, check_dtype(dtype), check_whole(shape, whole, "input"))


def is_example(value: Any) -> bool:
    """Return whether a value is a pair of dimensions and an array."""
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[0], (list, tuple, Shape))
        and all(isinstance(dim, Dimension) for dim in value[0])
    )


def spec_of(example: Example, name: str) -> InputSpec:
    """Describe the input that an array is an example of: float64 and int64 as half as wide."""
    dims, value = example
    try:
        array = value if hasattr(value, "shape") and hasattr(value, "dtype") else np.asarray(value)
    except ValueError:
        problem = f"input {name} is a ragged {type(value).__name__}"
        raise NamedMeshError(problem, fix="give rows of equal lengths") from None
    dtype = np.dtype(array.dtype).name
    if np.dtype(array.dtype).kind in "USO":
        problem = f"input {name} is {format_value(value)}, expected numbers"
        raise NamedMeshError(problem, fix="give an array of numbers")
    found = spec(dims, NARROW.get(dtype, dtype))
    if tuple(array.shape) != found.shape.sizes:
        raise NamedMeshError(
            f"input {name}: an array of sizes {list(array.shape)} is no example of {found.shape}",
            fix="give one dimension of the array's size for each of its axes",
        )
    return found


def bind_specs(
    function: Callable[..., Any],
    name: str,
    specs: Sequence[Specs],
    named: Mapping[str, Specs],
    fix: str = "give one nm.spec for each argument of the function",
) -> inspect.BoundArguments:
    """Bind specs to the arguments of a function, or raise if they do not fit."""
    signature = inspect.signature(function)
    try:
        return signature.bind(*specs, **named)
    except TypeError as error:
        problem = f"the inputs do not fit {name}{signature}: {error}"
        raise NamedMeshError(problem, fix=fix) from None


def flatten_specs(
    function: Callable[..., Any], name: str, bound: inspect.BoundArguments
) -> tuple[dict[str, InputSpec], dict[str, tuple[str, ...]], dict[str, Any]]:
    """Return the specs by name, the names in each nested argument, and arguments of names."""
    parameters = inspect.signature(function).parameters
    flat: dict[str, Any] = {}
    groups: dict[str, tuple[str, ...]] = {}
    nested: dict[str, Any] = {}
    is_spec = lambda _, value: (
        isinstance(value, InputSpec)
        or is_example(value)
        or (isinstance(value, (list, tuple)) and any(isinstance(one, Dimension) for one in value))
    )
    for key, value in bound.arguments.items():
        starred = parameters[key].kind is inspect.Parameter.VAR_POSITIONAL
        if starred:
            value = {f"{key}_{i}": item for i, item in enumerate(value)}
        leaves = name_leaves(value, key, is_spec, flat)
        if not is_spec(key, value):
            groups[key] = tuple(leaves)
        for inner, item in leaves.items():
            check_identifier(inner, "input")
            flat[inner] = spec_of(item, inner) if is_example(item) else item
            if not isinstance(flat[inner], InputSpec):
                names = [dim.name for dim in as_tuple(item) if isinstance(dim, Dimension)]
                raise NamedMeshError(
                    f"input {inner} of {name} is {format_value(item)}, not a spec",
                    fix=f"pass {inner}=nm.spec([{', '.join(names) or 'dims'}])",
                )
        names = iter(leaves)
        nested[key] = replace_leaves(value, is_spec, names)
        if starred:
            nested[key] = (*nested[key].values(),)
    return flat, groups, nested


def replace_leaves(value: Any, is_leaf: Callable[[str, Any], bool], others: Iterator[Any]) -> Any:
    """Return the same nesting with others in place of its leaves, in order."""
    return map_leaves(value, lambda _: next(others), is_leaf=lambda one: is_leaf("", one))
