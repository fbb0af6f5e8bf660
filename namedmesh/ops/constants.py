"""Values known while tracing: ranges, arrays, and tensors filled with one number."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.context import Context
from namedmesh.ir.format import describe_type
from namedmesh.ir.interface import check_dtype, named
from namedmesh.ir.literal import check_number, fill, numpy_dtype
from namedmesh.ir.op import Op
from namedmesh.ir.operands import check_dimension, make_shape
from namedmesh.ir.tensor import BYTES, DTYPES, FLOATS, INTEGERS, OPERATORS, Tensor
from namedmesh.ops.broadcast import widen

LARGEST_CONSTANT = 2**24  # bytes: a program carries its constants wherever it goes


class Range(Op):
    """0, 1, 2 ... along one dimension."""

    constant = True
    nonnegative = True
    dim: Dimension
    dtype: str

    def results(self) -> list[tuple[Shape, str]]:
        return [(Shape([self.dim]), self.dtype)]

    def fold(self, *arrays: Any) -> Any:
        return np.arange(self.dim.size).astype(numpy_dtype(self.dtype))

    def lower(self, context: Context, *values: Any) -> Any:
        tf = context.tf
        numbers = tf.range(context.size(self.dim))  # 16 bits would count no further than 256
        offset = context.offset(self.dim)
        return tf.cast(numbers if offset is None else numbers + offset, context.dtype(self.dtype))


class ConstantArray(Op):
    """Numbers that were an array while tracing."""

    constant = True
    closed = True
    kind = "constant"
    shape: Shape
    dtype: str
    contents: bytes

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.shape, self.dtype)]

    def fold(self, *arrays: Any) -> Any:
        return np.frombuffer(self.contents, numpy_dtype(self.dtype)).reshape(self.shape.sizes)

    def lower(self, context: Context, *values: Any) -> Any:
        tf, array = context.tf, self.fold()
        if not context.compiled or not len(self.shape):
            return tf.constant(array)
        # Read by index, from an array that is a little longer for some dimensions than for others:
        # XLA merges arrays of equal numbers, and would move one to the sharding of another.
        longer = zlib.crc32(",".join(self.shape.names).encode()) % 61
        index, inside = tf.zeros([], tf.int32), None
        for dim in self.shape:
            numbers = tf.range(context.size(dim))
            start = context.offset(dim)
            numbers = numbers if start is None else numbers + start
            fits = numbers < dim.size
            index = index[..., None] * dim.size + numbers
            inside = fits if inside is None else inside[..., None] & fits
        flat = tf.constant(np.pad(array.reshape(-1), (0, longer)))
        if all(context.size(dim) * context.ways(dim) == dim.size for dim in self.shape):
            return tf.gather(flat, index)
        value = tf.gather(flat, tf.where(inside, index, 0))
        return tf.where(inside, value, tf.zeros([], value.dtype))


def _fill_dims(what: str, dims: Sequence[Dimension], value: float, dtype: str) -> Tensor:
    """Make a tensor filled with a checked number; what names the caller in errors."""
    dtype = check_dtype(dtype)
    number = check_number(what, value, dtype)
    return fill(make_shape(what, dims), number, dtype, what)


def full(dims: Sequence[Dimension], value: float | int | bool, dtype: str = "float32") -> Tensor:
    """Return a tensor filled with one number. It takes no memory until it is used.

    Args:
        dims: The dimensions, in order.
        value: The number, known while tracing.
        dtype: The dtype of the tensor.

    Example:
        >>> nm.evaluate(lambda: nm.full(nm.dims("model=2"), 7.0))
        array([7., 7.], dtype=float32)
    """
    return _fill_dims("full", dims, value, dtype)


def constant(value: Any, dims: Sequence[Dimension] = (), dtype: str | None = None) -> Tensor:
    """Return a tensor of an array known while tracing, placed wherever its readers are.

    Args:
        value: A NumPy array, a number, or a list of numbers.
        dims: The dimensions, in the order of the array's axes, or their names alone.
        dtype: The array's own by default; of Python's numbers float32 or int32.

    Example:
        >>> nm.evaluate(lambda: nm.constant([1, 10, 100], nm.dims("model=3")))
        array([  1,  10, 100], dtype=int32)
    """
    array = _as_array(value, dtype)
    if isinstance(dims, str) or any(isinstance(dim, str) for dim in dims):
        dims = named(array, dims).dims
    shape = make_shape("constant", dims)
    if array.shape != shape.sizes:
        raise NamedMeshError(
            f"constant: an array of sizes {list(array.shape)} does not have the dimensions {shape}",
            fix="give one dimension of the array's size for each of its axes",
        )
    name = array.dtype.name
    if shape.elements * BYTES.get(name, 1) > LARGEST_CONSTANT:
        raise NamedMeshError(
            f"constant: {shape} of {name} is more than {LARGEST_CONSTANT // 2**20} MiB",
            fix="give it to the step as an input, or keep it as nm.state",
        )
    return ConstantArray((), shape, name, array.tobytes()).output


OPERATORS["constant"] = constant


def _as_array(value: Any, dtype: str | None) -> np.ndarray[Any, Any]:
    """Return numbers as an array of a dtype that programs know, or raise."""
    if isinstance(value, Tensor):
        raise NamedMeshError(
            f"constant: {value.label} is a tensor already", str(value), fix="use it as it is"
        )
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise NamedMeshError(f"constant: {error}", fix="give rows of equal lengths") from None
    if dtype is None and not hasattr(value, "__array__"):  # Python's own numbers
        dtype = {"float64": "float32", "int64": "int32"}.get(array.dtype.name)
    if array.dtype.name not in DTYPES and not (dtype and array.dtype.kind in "biuf"):
        raise NamedMeshError(
            f"constant: {describe_type(value)} of {array.dtype} holds no numbers of a known dtype",
            f"dtypes: {', '.join(DTYPES)}",
            fix="convert it with numpy first",
        )
    if dtype is None:
        return array
    dtype = check_dtype(dtype)
    wanted = numpy_dtype(dtype)
    converted = array.astype(wanted)
    if wanted.name in INTEGERS and not np.array_equal(converted, array):
        fix = "give whole numbers that fit, or another dtype"
        raise NamedMeshError(f"constant: not every number of the array is one of {dtype}", fix=fix)
    return converted


def zeros(dims: Sequence[Dimension], dtype: str = "float32") -> Tensor:
    """Return a tensor of zeros.

    Args:
        dims: The dimensions, in order.
        dtype: The dtype of the tensor; False for bool.

    Example:
        >>> nm.evaluate(lambda: nm.zeros(nm.dims("model=2")))
        array([0., 0.], dtype=float32)
    """
    return _fill_dims("zeros", dims, 0, dtype)


def ones(dims: Sequence[Dimension], dtype: str = "float32") -> Tensor:
    """Return a tensor of ones.

    Args:
        dims: The dimensions, in order.
        dtype: The dtype of the tensor; True for bool.

    Example:
        >>> nm.evaluate(lambda: nm.ones(nm.dims("model=2")))
        array([1., 1.], dtype=float32)
    """
    return _fill_dims("ones", dims, 1, dtype)


def range(dim: Dimension, dtype: str = "int32", *, start: float = 0, step: float = 1) -> Tensor:
    """Return 0, 1, 2 ... along a dimension; if it is split, every device counts its own shard.

    Args:
        dim: The dimension.
        dtype: The dtype of the numbers.
        start: The first number, known while tracing.
        step: The difference between two of them.

    Example:
        >>> nm.evaluate(lambda: nm.range(nm.Dimension("model", 3), start=5, step=-2))
        array([5, 3, 1], dtype=int32)
    """
    last = check_dimension("range", dim).size - 1
    dtype = check_dtype(dtype)
    if dtype == "bool":
        raise NamedMeshError("range: bool does not count", str(dim), fix="use dtype='int32'")
    start, step = check_number("range", start, dtype, dim), check_number("range", step, dtype, dim)
    check_number("range", start + last * step, dtype, dim)
    counted = Range((), dim, dtype).output
    return counted if (start, step) == (0, 1) else counted * step + start


def linspace(dim: Dimension, start: float, stop: float, dtype: str = "float32") -> Tensor:
    """Return numbers of equal distances along a dimension, the first and the last one given.

    Args:
        dim: The dimension.
        start: The first number, known while tracing.
        stop: The last one.
        dtype: The floating point dtype of the result.

    Example:
        >>> nm.evaluate(lambda: nm.linspace(nm.Dimension("model", 3), 0.0, 1.0))
        array([0. , 0.5, 1. ], dtype=float32)
    """
    last = max(check_dimension("linspace", dim).size - 1, 1)
    if check_dtype(dtype) not in FLOATS:
        fix = "use a floating point dtype, or nm.range with a step"
        raise NamedMeshError(f"linspace: {dtype} has no fractions", str(dim), fix=fix)
    start, stop = check_number("linspace", start, dtype), check_number("linspace", stop, dtype)
    counted = Range((), dim, widen(dtype)).output
    numbers = counted * ((stop - start) / last) + start
    numbers = OPERATORS["where"](counted < last, numbers, float(stop))
    return OPERATORS["cast"](numbers, dtype)
