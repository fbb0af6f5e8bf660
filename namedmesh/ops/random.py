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
from namedmesh.ir.literal import as_int32_scalar, as_tensor, check_number, fill, numpy_dtype
from namedmesh.ir.operands import check_dtype_kind, check_has_dims, check_int
from namedmesh.ir.tensor import FLOATS, INTEGERS, Operand, Tensor
from namedmesh.lazy import explain_names
from namedmesh.ops.broadcast import sum, widen
from namedmesh.ops.constants import full, zeros
from namedmesh.ops.constants import range as count
from namedmesh.ops.elementwise import cast, stop_gradient
from namedmesh.ops.logic import logical_and, logical_or, where
from namedmesh.ops.mathematics import (
    absolute,
    cos,
    erfinv,
    exp,
    floor,
    lgamma,
    log,
    maximum,
    minimum,
    rsqrt,
    sign,
    sin,
    sqrt,
)
from namedmesh.ops.random_bits import KEY, FoldIn, check_key, draw_bits
from namedmesh.ops.reduce import argmax
from namedmesh.ops.scan import scan
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
    if not least < bound or not bound - least < float(ml_dtypes.finfo(widen(dtype)).max):
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


def uniform(
    key: Tensor, dims: Dims, low: Operand = 0.0, high: Operand = 1.0, dtype: str = "float32"
) -> Tensor:
    """Return numbers drawn evenly from `low` (included) to `high` (not included).

    Args:
        key: A random key.
        dims: The dimensions of the result, in order.
        low: The smallest number; it and the bound may be tensors of the dtype.
        high: The bound above.
        dtype: The floating point dtype of the result.

    Example:
        >>> x = nm.evaluate(lambda: nm.random.uniform(nm.random.key(0), nm.dims("sample=1000")))
        >>> bool(0.0 <= x.min() < 0.1 and 0.9 < x.max() < 1.0)
        True
    """
    what = "random.uniform"
    dtype = _check_float_dtype(what, dtype)
    unit = cast(_draw_unit(what, key, dims, _MANTISSA.get(dtype, 24)), widen(dtype))
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        low, high = (cast(as_tensor(what, one), widen(dtype)) for one in (low, high))
        check_has_dims(what, unit, *low.shape, *high.shape)
        return cast(unit * (high - low) + low, dtype)
    least, bound = _check_bounds(what, low, high, dtype)
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


def randint(
    key: Tensor, dims: Dims, low: int | Tensor, high: int | Tensor, dtype: str = "int32"
) -> Tensor:
    """Return whole numbers from `low` (included) to `high` (not included), equally likely.

    Probabilities differ by at most one part in 2**32 / (high - low).

    Args:
        key: A random key.
        dims: The dimensions of the result, in order.
        low: The smallest number; it and the bound may be int32 tensors that broadcast by name.
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
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        start, end = (cast(as_tensor(what, one), "int32") for one in (low, high))
        check_has_dims(what, zeros(dims), *start.shape, *end.shape)
        offset = _multiply_high(draw_bits(what, key, dims), cast(end - start, "uint32"))
        return cast(cast(offset, "int32") + start, dtype)
    least, bound = check_int(what, "low", low), check_int(what, "high", high)
    if not 0 < bound - least <= 2**31:
        fix = "give a smaller low than high, at most 2**31 apart"
        raise NamedMeshError(f"{what}: low={least} and high={bound} are no range", fix=fix)
    check_number(what, least, dtype)
    check_number(what, bound - 1, dtype)
    offset = _multiply_high(draw_bits(what, key, dims), bound - least)
    wide = dtype if dtype in ("int64", "uint32") else "int32"
    return cast(cast(offset, wide) + least, dtype)


def _multiply_high(words: Tensor, number: int | Tensor) -> Tensor:
    """Return the higher 32 bits of the products of 32-bit words and a number."""
    high, low = words // 2**16, words % 2**16
    upper, lower = number // 2**16, number % 2**16
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


def exponential(key: Tensor, dims: Dims, dtype: str = "float32") -> Tensor:
    """Return exponentially distributed numbers of mean 1.

    Args:
        key: A random key.
        dims: The dimensions of the result, in order.
        dtype: The floating point dtype of the result.

    Example:
        >>> x = nm.evaluate(lambda: nm.random.exponential(nm.random.key(0), nm.dims("sample=9")))
        >>> bool((x > 0).all())
        True
    """
    unit = _open_unit(draw_bits("random.exponential", key, dims))
    return cast(-log(unit), _check_float_dtype("random.exponential", dtype))


def laplace(key: Tensor, dims: Dims, dtype: str = "float32") -> Tensor:
    """Return numbers of the Laplace distribution: exponential ones with a random sign.

    Args:
        key: A random key.
        dims: The dimensions of the result, in order.
        dtype: The floating point dtype of the result.

    Example:
        >>> nm.evaluate(lambda: nm.random.laplace(nm.random.key(0), nm.dims("sample=4"))).shape
        (4,)
    """
    centred = _open_unit(draw_bits("random.laplace", key, dims)) * 2.0 - 1.0
    noise = -sign(centred) * log(1.0 - absolute(centred))
    return cast(noise, _check_float_dtype("random.laplace", dtype))


def logistic(key: Tensor, dims: Dims, dtype: str = "float32") -> Tensor:
    """Return numbers of the logistic distribution: the difference of two of `nm.random.gumbel`.

    Args:
        key: A random key.
        dims: The dimensions of the result, in order.
        dtype: The floating point dtype of the result.

    Example:
        >>> nm.evaluate(lambda: nm.random.logistic(nm.random.key(0), nm.dims("sample=4"))).shape
        (4,)
    """
    unit = _open_unit(draw_bits("random.logistic", key, dims))
    return cast(log(unit) - log(1.0 - unit), _check_float_dtype("random.logistic", dtype))


def cauchy(key: Tensor, dims: Dims, dtype: str = "float32") -> Tensor:
    """Return numbers of the Cauchy distribution, whose tails have no mean.

    Args:
        key: A random key.
        dims: The dimensions of the result, in order.
        dtype: The floating point dtype of the result.

    Example:
        >>> nm.evaluate(lambda: nm.random.cauchy(nm.random.key(0), nm.dims("sample=4"))).shape
        (4,)
    """
    angle = (_open_unit(draw_bits("random.cauchy", key, dims)) - 0.5) * math.pi
    return cast(sin(angle) / cos(angle), _check_float_dtype("random.cauchy", dtype))


def rademacher(key: Tensor, dims: Dims, dtype: str = "float32") -> Tensor:
    """Return -1 or 1, equally likely.

    Args:
        key: A random key.
        dims: The dimensions of the result, in order.
        dtype: The dtype of the result, floating point or signed.

    Example:
        >>> x = nm.evaluate(lambda: nm.random.rademacher(nm.random.key(0), nm.dims("sample=99")))
        >>> sorted(set(x.tolist()))
        [-1.0, 1.0]
    """
    return cast(bernoulli(key, dims), check_dtype(dtype)) * 2 - 1


_TRIES = 6  # of which each fails once in twenty times at most


def gamma(key: Tensor, dims: Dims, shape: Operand, dtype: str = "float32") -> Tensor:
    """Return numbers of the gamma distribution of a shape, and of scale 1. It has no gradient.

    Args:
        key: A random key.
        dims: The dimensions of the result, in order.
        shape: The shape, which is the mean too: a positive number, or a float32 tensor that
            broadcasts by name.
        dtype: The floating point dtype of the result.

    Example:
        >>> x = nm.evaluate(lambda: nm.random.gamma(nm.random.key(0), nm.dims("sample=999"), 4.0))
        >>> bool(3.8 < x.mean() < 4.2)
        True
    """
    # G. Marsaglia and W. Tsang, "A simple method for generating gamma variables".
    what = "random.gamma"
    shape = _as_rate(what, shape)
    small = shape < 1.0
    d = where(small, shape + 1.0, shape) - 1.0 / 3.0
    c = rsqrt(d * 9.0)

    def draw(found: Tensor, attempt: Tensor) -> tuple[Tensor, None]:
        own = fold_in(key, attempt)
        x = normal(fold_in(own, 0), dims)
        unit = _open_unit(draw_bits(what, fold_in(own, 1), dims))
        v = c * x + 1.0
        v = v * v * v
        fits = log(unit) < x * x * 0.5 + d * (1.0 - v + log(maximum(v, 1e-30)))
        return where(logical_and(logical_and(found < 0.0, v > 0.0), fits), v, found), None

    tries = Dimension("attempt", _TRIES)
    none = full(dims, -1.0)
    found, _ = scan(draw, none, count(tries), over=tries)
    found = where(found < 0.0, 1.0, found) * d
    boost = _open_unit(draw_bits(what, fold_in(key, _TRIES), dims))
    # The power of a number of 23 bits; in logarithms, as a small shape makes it vanish.
    factor = exp(log(boost) / where(small, shape, 1.0))
    return cast(where(small, found * factor, found), _check_float_dtype(what, dtype))


def beta(key: Tensor, dims: Dims, a: Operand, b: Operand, dtype: str = "float32") -> Tensor:
    """Return numbers of the beta distribution, from 0 to 1. It has no gradient.

    Args:
        key: A random key.
        dims: The dimensions of the result, in order.
        a: The weight of what is near 1: a positive number, or a float32 tensor.
        b: The weight of what is near 0, likewise.
        dtype: The floating point dtype of the result.

    Example:
        >>> draw = lambda: nm.random.beta(nm.random.key(0), nm.dims("sample=999"), 1.0, 3.0)
        >>> bool(0.23 < nm.evaluate(draw).mean() < 0.27)
        True
    """
    first, second = gamma(fold_in(key, 0), dims, a), gamma(fold_in(key, 1), dims, b)
    return cast(first / (first + second), _check_float_dtype("random.beta", dtype))


def dirichlet(
    key: Tensor, dims: Dims, weights: Operand, over: Dimension, dtype: str = "float32"
) -> Tensor:
    """Return shares along a dimension that sum to one. They have no gradient.

    Args:
        key: A random key.
        dims: The dimensions of the result, in order.
        weights: Of each share: positive numbers, or a float32 tensor.
        over: The dimension of the shares, one of `dims`.
        dtype: The floating point dtype of the result.

    Example:
        >>> S, K = nm.dims("sample=3 share=4")
        >>> draw = lambda: nm.random.dirichlet(nm.random.key(0), [S, K], 1.0, over=K)
        >>> nm.evaluate(lambda: nm.allclose(nm.sum(draw(), over=K), 1.0))
        array(True)
    """
    drawn = gamma(key, dims, weights)
    return cast(drawn / sum(drawn, over), _check_float_dtype("random.dirichlet", dtype))


def student_t(key: Tensor, dims: Dims, degrees: Operand, dtype: str = "float32") -> Tensor:
    """Return numbers of Student's t distribution. They have no gradient.

    Args:
        key: A random key.
        dims: The dimensions of the result, in order.
        degrees: The degrees of freedom: a positive number, or a float32 tensor.
        dtype: The floating point dtype of the result.

    Example:
        >>> draw = lambda: nm.random.student_t(nm.random.key(0), nm.dims("sample=4"), 3.0)
        >>> nm.evaluate(draw).shape
        (4,)
    """
    half = _as_rate("random.student_t", degrees) * 0.5
    square = gamma(fold_in(key, 0), dims, half) / half
    noise = normal(fold_in(key, 1), dims) * rsqrt(square)
    return cast(noise, _check_float_dtype("random.student_t", dtype))


_ROUNDS = 24  # of which each fails once in three times at most
_FEW = 10.0  # events; fewer are counted one by one


def poisson(key: Tensor, dims: Dims, rate: Operand, dtype: str = "int32") -> Tensor:
    """Return how many events happen that are expected `rate` times. It has no gradient.

    Args:
        key: A random key.
        dims: The dimensions of the result, in order.
        rate: The mean: a number from 0 on, or a float32 tensor that broadcasts by name.
        dtype: The dtype of the result.

    Example:
        >>> x = nm.evaluate(lambda: nm.random.poisson(nm.random.key(0), nm.dims("sample=999"), 4.0))
        >>> bool(3.8 < x.mean() < 4.2)
        True
    """
    what = "random.poisson"
    rate = _as_rate(what, rate, least=True)
    few = minimum(rate, _FEW)

    def wait(carry: tuple[Tensor, Tensor], event: Tensor) -> tuple[tuple[Tensor, Tensor], None]:
        time, events = carry
        time = time + exponential(fold_in(key, event), dims)
        return (time, events + cast(time < few, "float32")), None

    most = Dimension("event", 48)  # more than these happen once in 10**16 times
    zero = full(dims, 0.0)
    (_, few_events), _ = scan(wait, (zero, zero), count(most), over=most)

    # W. Hormann, "The transformed rejection method for generating Poisson random variables".
    many = maximum(rate, _FEW)
    b = sqrt(many) * 2.53 + 0.931
    a = b * 0.02483 - 0.059
    inverse = 1.1239 + 1.1328 / (b - 3.4)
    narrow = 0.9277 - 3.6224 / (b - 2.0)

    def draw(found: Tensor, attempt: Tensor) -> tuple[Tensor, None]:
        own = fold_in(key, attempt + most.size)
        u = _open_unit(draw_bits(what, fold_in(own, 0), dims)) - 0.5
        v = _open_unit(draw_bits(what, fold_in(own, 1), dims))
        near = 0.5 - absolute(u)
        k = floor((a * 2.0 / near + b) * u + many + 0.43)
        chance = log(v * inverse / (a / (near * near) + b))
        exact = chance <= k * log(many) - many - lgamma(maximum(k, 0.0) + 1.0)
        surely = logical_and(near >= 0.07, v <= narrow)
        possible = logical_and(k >= 0.0, logical_or(near >= 0.013, v <= near))
        fits = logical_and(possible, logical_or(surely, exact))
        return where(logical_and(found < 0.0, fits), k, found), None

    tries = Dimension("attempt", _ROUNDS)
    found, _ = scan(draw, full(dims, -1.0), count(tries), over=tries)
    found = where(found < 0.0, floor(many), found)
    return cast(where(rate < _FEW, few_events, found), check_dtype(dtype))


def _as_rate(what: str, number: Operand, least: bool = False) -> Tensor:
    """Return a positive number, or the least one, 0, where that has a meaning, in float32."""
    if not isinstance(number, Tensor) and not (number > 0 or (least and number == 0)):
        fix = f"give a number {'from' if least else 'above'} 0"
        raise NamedMeshError(f"{what}: {format_value(number)} is no parameter of it", fix=fix)
    return stop_gradient(cast(as_tensor(what, number), "float32"))


def _open_unit(words: Tensor) -> Tensor:
    """Convert random bits to numbers strictly between 0 and 1, where log(-log(x)) is finite."""
    return (cast(words // 512, "float32") + 0.5) * 2.0**-23


__getattr__, __dir__ = explain_names(__name__, "nm.random")
