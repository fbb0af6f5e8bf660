"""Complex numbers, and Fourier transforms along a dimension, which may be split."""

from __future__ import annotations

import dataclasses
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.context import Context
from namedmesh.ir.op import OneOfSeveral
from namedmesh.ir.operands import check_dtype_kind, check_has_dims
from namedmesh.ir.placement import Exchange, Placement, Shards
from namedmesh.ir.tensor import COMPLEX, Operand, Tensor, label_as
from namedmesh.ops.constants import range as count
from namedmesh.ops.elementwise import cast, elementwise
from namedmesh.ops.gather import gather
from namedmesh.ops.logic import where
from namedmesh.ops.mathematics import minimum
from namedmesh.ops.shape import rename, transpose
from namedmesh.ops.slices import slice

_LINEAR = ((0,),)
_PART: dict[str, Any] = {"takes": "complex", "gives": "float32", "linear_in": _LINEAR}
_WHOLE: dict[str, Any] = {"takes": "float", "gives": "complex64", "linear_in": ((0, 1),)}


def _imag_vjp(dy: Tensor, *_: Tensor) -> list[Tensor | None]:
    return [complex(0.0 * dy, -dy)]


def _conj_vjp(dy: Tensor, *_: Tensor) -> list[Tensor | None]:
    return [conj(dy)]


@elementwise("math.real", lambda dy, y, x: [cast(dy, x.dtype)], **_PART)
def real(x: Operand) -> Tensor:
    """Return the real part of complex numbers.

    Args:
        x: A complex64 tensor.

    Example:
        >>> nm.evaluate(lambda x: nm.real(nm.complex(x, x)), x=(nm.dims("model=2"), [1.0, 2.0]))
        array([1., 2.], dtype=float32)
    """
    ...


@elementwise("math.imag", _imag_vjp, **_PART)
def imag(x: Operand) -> Tensor:
    """Return the imaginary part of complex numbers.

    Args:
        x: A complex64 tensor.

    Example:
        >>> nm.evaluate(lambda x: nm.imag(nm.complex(x, -x)), x=(nm.dims("model=2"), [1.0, 2.0]))
        array([-1., -2.], dtype=float32)
    """
    ...


@elementwise("math.conj", _conj_vjp, takes="complex", linear_in=_LINEAR)
def conj(x: Operand) -> Tensor:
    """Return complex numbers with the sign of their imaginary parts changed.

    Args:
        x: A complex64 tensor.

    Example:
        >>> nm.evaluate(lambda x: nm.conj(nm.complex(x, x)), x=(nm.dims("model=1"), [1.0]))
        array([1.-1.j], dtype=complex64)
    """
    ...


@elementwise("complex", lambda dy, y, a, b: [real(dy), -imag(dy)], **_WHOLE)
def complex(real: Operand, imaginary: Operand) -> Tensor:
    """Return complex numbers of real and imaginary parts, broadcast by name.

    Derivatives are those of jax: without conjugation, so that the gradient of a real loss with
    respect to a complex number is the conjugate of the direction of steepest ascent.

    Args:
        real: A float32 tensor, or a number.
        imaginary: A float32 tensor, or a number.

    Example:
        >>> nm.evaluate(lambda x: nm.complex(x, 1.0), x=(nm.dims("model=2"), [1.0, 2.0]))
        array([1.+1.j, 2.+1.j], dtype=complex64)
    """
    ...


class Fourier(OneOfSeveral):
    """The Fourier transform along a dimension, or its inverse.

    Of a split dimension each device gets all of it for a part of another one: an AllToAll before,
    and one after.
    """

    by_name = True
    manual = True
    linear_in = ((0,),)
    late_sums = False
    dim: Dimension

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.inputs[0].shape, self.inputs[0].dtype)]

    def lower(self, context: Context, x: Any) -> Any:
        tf, shape = context.tf, self.inputs[0].shape
        at, ways = shape.position(self.dim.name), context.ways(self.dim)
        beside = self._find_other(Shards({self.dim.name: ways}), context.sizes(shape))
        if ways > 1 and beside is not None:
            x = context.all_to_all(x, self.dim, beside, at)
        order = [i for i in range(len(shape)) if i != at] + [at]
        back = [order.index(i) for i in range(len(shape))]
        x = tf.transpose(getattr(tf.signal, self.function)(tf.transpose(x, order)), back)
        if ways > 1 and beside is not None:
            x = context.all_to_all(x, self.dim, at, beside)
        return x

    def _find_other(self, shards: Shards, sizes: list[int]) -> int | None:
        """Find the dimension that is cut while this one is whole."""
        shape, ways = self.inputs[0].shape, shards.ways(self.dim)
        fits = [i for i, dim in enumerate(shape) if dim != self.dim and not sizes[i] % ways]
        return max(fits, key=lambda i: sizes[i], default=None)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [dataclasses.replace(self, inputs=(dy,)).output]

    def flops(self) -> int:
        return 5 * self.output.shape.elements * self.dim.size.bit_length()

    def placement(self) -> Placement:
        return Placement(exchanged=[self.dim.name])

    def exchanges(self, shards: Shards) -> list[Exchange] | None:
        shape, ways = self.inputs[0].shape, shards.ways(self.dim)
        other = self._find_other(shards, [shards.size(dim) for dim in shape])
        if self.dim.size % ways or other is None:
            return None
        both = Exchange("AllToAll", self.dim.name, shards.count(shape), self.output.dtype)
        return [both, both]


def fft(x: Tensor, dim: Dimension) -> Tensor:
    """Return the discrete Fourier transform along a dimension, as complex64.

    If the dimension is split, two AllToAlls give each device all of it for a part of another one;
    where no other one can be cut it is gathered.

    Args:
        x: A floating point or complex tensor.
        dim: The dimension.

    Example:
        >>> S = nm.Dimension("seq", 2)
        >>> nm.evaluate(lambda x: nm.fft(x, S), x=([S], [1.0, 3.0]))
        array([ 4.+0.j, -2.+0.j], dtype=complex64)
    """
    return _transform("fft", x, dim)


def ifft(x: Tensor, dim: Dimension) -> Tensor:
    """Return the inverse of `nm.fft`, as complex64.

    Args:
        x: A floating point or complex tensor.
        dim: The dimension.

    Example:
        >>> S = nm.Dimension("seq", 2)
        >>> nm.evaluate(lambda x: nm.real(nm.ifft(x, S)), x=([S], [4.0, -2.0]))
        array([1., 3.], dtype=float32)
    """
    return _transform("ifft", x, dim)


def rfft(x: Tensor, dim: Dimension, into: Dimension) -> Tensor:
    """Return the first half of the Fourier transform of real numbers, which tells the other one.

    Args:
        x: A floating point tensor.
        dim: The dimension, of size n.
        into: The dimension that takes its place, of size n // 2 + 1.

    Example:
        >>> S, F = nm.dims("seq=2 frequency=2")
        >>> nm.evaluate(lambda x: nm.rfft(x, S, F), x=([S], [1.0, 3.0]))
        array([ 4.+0.j, -2.+0.j], dtype=complex64)
    """
    check_has_dims("rfft", x, dim)
    check_dtype_kind("rfft", "float", x)
    _check_half("rfft", x, into, dim)
    half = slice(_transform("fft", x, dim), dim, 0, into.size)
    return label_as("rfft", rename(half, dim.resized(into.size), into))


def irfft(x: Tensor, dim: Dimension, into: Dimension) -> Tensor:
    """Return the real numbers of which `nm.rfft` made complex ones.

    Args:
        x: A complex64 tensor.
        dim: The dimension, of size n // 2 + 1.
        into: The dimension that takes its place, of size n.

    Example:
        >>> S, F = nm.dims("seq=2 frequency=2")
        >>> nm.evaluate(lambda x: nm.irfft(nm.rfft(x, S, F), F, S), x=([S], [1.0, 3.0]))
        array([1., 3.], dtype=float32)
    """
    check_has_dims("irfft", x, dim)
    _check_half("irfft", x, dim, into)
    place = count(into)
    first = place < dim.size
    whole = gather(x, minimum(place, into.size - place), dim)
    whole = where(first, whole, conj(whole))
    order = [into.name if name == dim.name else name for name in x.shape.names]
    made = real(_transform("ifft", whole, into))
    return label_as("irfft", transpose(made, made.shape.select(order)))


def _check_half(what: str, x: Tensor, half: Dimension, whole: Dimension) -> None:
    if half.size != whole.size // 2 + 1 or half.name == whole.name:
        fix = f"give dimensions of sizes n // 2 + 1 and n, here {whole.size // 2 + 1}"
        problem = f"{what}: {half} is not what the transform of {whole} has"
        raise NamedMeshError(problem, str(x), fix=fix)


def _transform(what: str, x: Tensor, dim: Dimension) -> Tensor:
    """Record a transform of a tensor of any dtype of numbers."""
    check_has_dims(what, x, dim)
    check_dtype_kind(what, "complex", x)
    return Fourier((x if x.dtype in COMPLEX else cast(x, COMPLEX[0]),), what, dim).output
