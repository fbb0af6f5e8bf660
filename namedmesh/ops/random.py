"""Random numbers: a function of a key and an element's index, equal under every layout."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError, check_text
from namedmesh.ir.format import format_value
from namedmesh.ir.interface import check_dtype
from namedmesh.ir.literal import as_int32_scalar, check_number, fill, numpy_dtype
from namedmesh.ir.operands import check_dtype_kind, check_has_dims, check_int
from namedmesh.ir.tensor import FLOATS, INTEGERS, Operand, Tensor
from namedmesh.lazy import explain_names
from namedmesh.ops.constants import zeros
from namedmesh.ops.elementwise import cast
from namedmesh.ops.mathematics import erfinv, log, maximum, minimum
from namedmesh.ops.random_bits import KEY, FoldIn, check_key, draw_bits
from namedmesh.ops.reduce import argmax
from namedmesh.ops.sorting import argsort

Dims = Sequence[Dimension]


def key(seed: int) -> Tensor:
    """Return a random key for a seed known while tracing: every step draws the same numbers.

    Args:
        seed: A whole number.

    Example:
        >>> nm.trace(lambda: nm.random.key(0)).outputs[0].shape
        [key_word=2]
    """
    return key_from_seed(fill(Shape(), check_number("random.key", seed, "int32"), "int32"))


def key_from_seed(seed: Tensor) -> Tensor:
    """Return a random key for a seed that is given when the step runs.

    Args:
        seed: An int32 scalar, such as an input that counts the steps.

    Example:
        >>> nm.trace(nm.random.key_from_seed, seed=nm.spec([], "int32")).outputs[0].shape
        [key_word=2]
    """
    seed = as_int32_scalar("random.key_from_seed", "the seed", seed)
    return FoldIn((zeros([KEY], "uint32"), seed)).output


def fold_in(key: Tensor, number: Operand) -> Tensor:
    """Return a new key, independent of others: from a key and the number of a step or layer.

    Args:
        key: A random key.
        number: A whole number, or an int32 or uint32 scalar.

    Example:
        >>> nm.trace(lambda: nm.random.fold_in(nm.random.key(0), 1)).outputs[0].shape
        [key_word=2]
    """
    check_key("random.fold_in", key)
    number = as_int32_scalar("random.fold_in", "the number", number, "uint32")
    return FoldIn((key, number)).output


def fold_in_name(key: Tensor, name: str) -> Tensor:
    """Return a new key for a key and a name.

    Args:
        key: A random key.
        name: Any string.

    Example:
        >>> nm.trace(lambda: nm.random.fold_in_name(nm.random.key(0), "dropout")).outputs[0].shape
        [key_word=2]
    """
    text = check_text(name, "random.fold_in_name: a name", "dropout")
    return fold_in(key, zlib.crc32(text.encode()) & 0x7FFFFFFF)


def bits(key: Tensor, dims: Dims) -> Tensor:
    """Return 32 random bits for each element, as uint32.

    Args:
        key: A random key.
        dims: The dimensions of the result, in order.

    Example:
        >>> nm.evaluate(lambda: nm.random.bits(nm.random.key(0), nm.dims("sample=4"))).dtype
        dtype('uint32')
    """
    return draw_bits("random.bits", key, dims)


_MANTISSA = {"bfloat16": 8, "float16": 11}  # binary digits; 24 for wider dtypes


def _check_float_dtype(what: str, dtype: str) -> str:
    """Return the dtype when it is floating point, or raise."""
    dtype = check_dtype(dtype)
    if dtype not in FLOATS:
        fix = "use nm.cast on what it makes, or nm.random.bits"
        raise NamedMeshError(f"{what} makes floating point numbers, not {dtype}", fix=fix)
    return dtype


def _draw_unit(what: str, key: Tensor, dims: Dims, digits: int = 24) -> Tensor:
    """Draw float32 multiples of 2**-digits from 0 (included) to 1 (not included)."""
    words = draw_bits(what, key, dims) // 2 ** (32 - digits)
    return cast(words, "float32") * 2.0**-digits


def _check_bounds(what: str, low: Any, high: Any, dtype: str) -> tuple[float, float]:
    """Return the bounds as the dtype rounds them when the first is the smaller, or raise."""
    bounds = []
    for name, bound in (("low", low), ("high", high)):
        number = float(check_number(f"{what}: {name}", bound, dtype))
        with np.errstate(over="ignore"):  # too large a bound is an infinite one
            bounds.append(float(numpy_dtype(dtype).type(number)))
    least, bound = bounds
    if not least < bound or not bound - least < float(ml_dtypes.finfo(_widest(dtype)).max):
        raise NamedMeshError(
            f"{what}: low={format_value(low)} and high={format_value(high)} are no range "
            f"of {dtype} numbers",
            fix="give two finite bounds that the dtype tells apart, the smaller one as low",
        )
    return least, bound


def _check_moments(what: str, mean: Operand, stddev: Operand) -> None:
    """Raise unless a mean and a standard deviation are tensors or numbers of float32."""
    for name, number in (("mean", mean), ("stddev", stddev)):
        if not isinstance(number, Tensor):
            check_number(f"{what}: {name}", number, "float32")


def _widest(dtype: str) -> str:
    """Return the dtype in which numbers of a dtype are drawn."""
    return "float64" if dtype == "float64" else "float32"


def uniform(
    key: Tensor, dims: Dims, low: float = 0.0, high: float = 1.0, dtype: str = "float32"
) -> Tensor:
    """Return numbers drawn evenly from `low` (included) to `high` (not included).

    Args:
        key: A random key.
        dims: The dimensions of the result, in order.
        low: The smallest number.
        high: The bound above.
        dtype: The floating point dtype of the result.

    Example:
        >>> x = nm.evaluate(lambda: nm.random.uniform(nm.random.key(0), nm.dims("sample=1000")))
        >>> bool(0.0 <= x.min() < 0.1 and 0.9 < x.max() < 1.0)
        True
    """
    what = "random.uniform"
    dtype = _check_float_dtype(what, dtype)
    digits = _MANTISSA.get(dtype, 24)
    least, bound = _check_bounds(what, low, high, dtype)
    unit = cast(_draw_unit(what, key, dims, digits), _widest(dtype))
    if (least, bound) == (0.0, 1.0):
        return cast(unit, dtype)
    # The sum may round up to the bound itself, which stays out: the number before it is the last.
    number = numpy_dtype(dtype).type
    last = float(np.nextafter(number(bound), number(least)))
    return minimum(cast(unit * (bound - least) + least, dtype), last)


def normal(
    key: Tensor, dims: Dims, mean: float = 0.0, stddev: float = 1.0, dtype: str = "float32"
) -> Tensor:
    """Return normally distributed numbers.

    Args:
        key: A random key.
        dims: The dimensions of the result, in order.
        mean: Their mean.
        stddev: Their standard deviation.
        dtype: The floating point dtype of the result.

    Example:
        >>> x = nm.evaluate(lambda: nm.random.normal(nm.random.key(0), nm.dims("sample=1000")))
        >>> bool(-0.1 < x.mean() < 0.1 and 0.9 < x.std() < 1.1)
        True
    """
    what = "random.normal"
    dtype = _check_float_dtype(what, dtype)
    _check_moments(what, mean, stddev)
    least = -1.0 + 2.0**-24  # erfinv is infinite at -1
    centred = _draw_unit(what, key, dims) * (1.0 - least) + least
    return cast(erfinv(centred) * (math.sqrt(2.0) * stddev) + mean, dtype)


def truncated_normal(
    key: Tensor,
    dims: Dims,
    low: float = -2.0,
    high: float = 2.0,
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: str = "float32",
) -> Tensor:
    """Return normally distributed numbers between two bounds.

    Args:
        key: A random key.
        dims: The dimensions of the result, in order.
        low: The lower bound, in standard deviations from the mean; at most 3.
        high: The upper bound, likewise; at least -3.
        mean: The mean of the distribution before it is cut.
        stddev: Its standard deviation; with the default bounds that of the result is 0.88 of it.
        dtype: The floating point dtype of the result.

    Example:
        >>> dims = nm.dims("sample=1000")
        >>> bool(nm.evaluate(lambda: nm.random.truncated_normal(nm.random.key(0), dims)).max() <= 2)
        True
    """
    what = "random.truncated_normal"
    dtype = _check_float_dtype(what, dtype)
    least, bound = _check_bounds(what, low, high, "float32")
    if least > 3.0 or bound < -3.0:
        raise NamedMeshError(
            f"{what}: low={least} and high={bound} leave only the end of a tail",
            fix="give bounds of which one is nearer than 3 standard deviations to the mean",
        )
    _check_moments(what, mean, stddev)
    below, above = (math.erf(end / math.sqrt(2.0)) for end in (least, bound))
    share = _open_unit(draw_bits(what, key, dims)) * (above - below) + below
    inside = minimum(maximum(erfinv(share) * math.sqrt(2.0), least), bound)
    return cast(inside * stddev + mean, dtype)


def randint(key: Tensor, dims: Dims, low: int, high: int, dtype: str = "int32") -> Tensor:
    """Return whole numbers from `low` (included) to `high` (not included), equally likely.

    Probabilities differ by at most one part in 2**32 / (high - low).

    Args:
        key: A random key.
        dims: The dimensions of the result, in order.
        low: The smallest number.
        high: The upper bound, at most 2**31 above `low`.
        dtype: The integer dtype of the result.

    Example:
        >>> dims = nm.dims("sample=1000")
        >>> nm.evaluate(lambda: nm.max(nm.random.randint(nm.random.key(0), dims, 1, 7)))
        array(6, dtype=int32)
    """
    what = "random.randint"
    dtype = check_dtype(dtype)
    if dtype not in INTEGERS:
        raise NamedMeshError(f"{what}: {dtype} has no whole numbers", fix="use dtype='int32'")
    least, bound = check_int(what, "low", low), check_int(what, "high", high)
    if not 0 < bound - least <= 2**31:
        fix = "give a smaller low than high, at most 2**31 apart"
        raise NamedMeshError(f"{what}: low={least} and high={bound} are no range", fix=fix)
    check_number(what, least, dtype)
    check_number(what, bound - 1, dtype)
    offset = _multiply_high(draw_bits(what, key, dims), bound - least)
    wide = dtype if dtype in ("int64", "uint32") else "int32"
    return cast(cast(offset, wide) + least, dtype)


def _multiply_high(words: Tensor, number: int) -> Tensor:
    """Return the higher 32 bits of the products of 32-bit words and a number."""
    high, low = words // 2**16, words % 2**16
    upper, lower = divmod(number, 2**16)
    outer, inner = high * lower, low * upper
    carry = (outer % 2**16 + inner % 2**16 + low * lower // 2**16) // 2**16
    return high * upper + outer // 2**16 + inner // 2**16 + carry


def permutation(key: Tensor, dim: Dimension) -> Tensor:
    """Return a random order of a dimension's elements, as int32: `x[dim, order]` shuffles `x`.

    Args:
        key: A random key.
        dim: The dimension; if it is split, random bits are gathered.

    Example:
        >>> N = nm.Dimension("sample", 5)
        >>> sorted(nm.evaluate(lambda: nm.random.permutation(nm.random.key(0), N)).tolist())
        [0, 1, 2, 3, 4]
    """
    return argsort(draw_bits("random.permutation", key, [dim]), dim)


def bernoulli(key: Tensor, dims: Dims, probability: Operand = 0.5) -> Tensor:
    """Return True with some probability, False otherwise.

    Args:
        key: A random key.
        dims: The dimensions of the result, in order.
        probability: That of True: a number, or a float32 tensor that broadcasts by name.

    Example:
        >>> nm.evaluate(lambda: nm.random.bernoulli(nm.random.key(0), nm.dims("sample=3"), 1.0))
        array([ True,  True,  True])
    """
    what = "random.bernoulli"
    if not isinstance(probability, Tensor):
        number = check_number(f"{what}: probability", probability, "float32")
        if not 0.0 <= number <= 1.0:
            raise NamedMeshError(
                f"{what}: the probability {format_value(number)} is not between 0 and 1",
                fix="give a number from 0.0 to 1.0",
            )
    return _draw_unit(what, key, dims) < probability


def gumbel(key: Tensor, dims: Dims, dtype: str = "float32") -> Tensor:
    """Return Gumbel noise: the argmax of logits plus noise is a sample of their softmax.

    Args:
        key: A random key.
        dims: The dimensions of the result, in order.
        dtype: The floating point dtype of the result.

    Example:
        >>> nm.evaluate(lambda: nm.random.gumbel(nm.random.key(0), nm.dims("sample=4"))).shape
        (4,)
    """
    return _gumbel("random.gumbel", key, dims, dtype)


def _gumbel(what: str, key: Tensor, dims: Dims, dtype: str) -> Tensor:
    """Draw Gumbel noise; what names the caller in errors."""
    noise = -log(-log(_open_unit(draw_bits(what, key, dims))))
    return cast(noise, _check_float_dtype(what, dtype))


def categorical(key: Tensor, logits: Tensor, over: Dimension) -> Tensor:
    """Return int32 indices along a dimension, drawn with probability softmax(logits).

    Args:
        key: A random key.
        logits: A floating point tensor.
        over: The dimension to draw from.

    Example:
        >>> V = nm.Dimension("vocab", 3)
        >>> sample = lambda x: nm.random.categorical(nm.random.key(0), x, over=V)
        >>> nm.evaluate(sample, x=([V], [0.0, 100.0, 0.0]))
        array(1, dtype=int32)
    """
    check_has_dims("random.categorical", logits, over)
    check_dtype_kind("random.categorical", "float", logits)
    return argmax(logits + _gumbel("random.categorical", key, logits.shape, logits.dtype), over)


def _open_unit(words: Tensor) -> Tensor:
    """Convert random bits to numbers strictly between 0 and 1, where log(-log(x)) is finite."""
    return (cast(words // 512, "float32") + 0.5) * 2.0**-23


__getattr__, __dir__ = explain_names(__name__, "nm.random")
