"""Elementwise ops: operands broadcast against each other by name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.dims.errors import NamedMeshError
from namedmesh.ir.context import Context, align
from namedmesh.ir.op import Op
from namedmesh.ir.operands import counted, same_sizes, shown, takes
from namedmesh.ir.program import checked_dtype
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.constants import as_tensor


@dataclass(frozen=True)
class Function:
    """An elementwise function: what computes it, its derivative, and the dtypes it takes and gives."""

    compute: Callable[..., Any]
    vjp: Callable[..., list[Tensor | None]] | None = None
    takes: str = "number"  # number, float, bool or any
    gives: str | None = None  # the operands' dtype unless said


FUNCTIONS: dict[str, Function] = {}
_LONG = {
    "erf",
    "erfinv",
    "floor_divide",
    "power",
    "remainder",
    "round",
    "softplus",
}  # many XLA ops each


@dataclass(eq=False)
class Elementwise(Op):
    """One elementwise function of operands that broadcast by name."""

    elementwise = True
    function: str

    @property
    def kind(self) -> str:
        return self.function

    @property
    def closed(self) -> bool:
        return self.function in _LONG

    def results(self):
        function = FUNCTIONS[self.function]
        operands = self.inputs[1:] if self.function == "where" else self.inputs
        takes(self.function, function.takes, *operands, source=self.source)
        if self.function == "where" and self.inputs[0].dtype != "bool":
            raise NamedMeshError(
                "where takes a bool condition",
                *map(str, self.inputs),
                fix=f"compare first, e.g. {self.inputs[0].label} > 0",
                source=self.source,
            )
        if len({operand.dtype for operand in operands}) > 1:
            raise NamedMeshError(
                f"{self.function}: operands of different dtypes",
                *map(str, self.inputs),
                fix="make them agree with nm.cast(x, dtype)",
                source=self.source,
            )
        return [(joined(self.function, *self.inputs), function.gives or operands[0].dtype)]

    def lower(self, context: Context, *values):
        shape = self.output.shape
        aligned = [
            align(value, x.shape, shape) for value, x in zip(values, self.inputs, strict=True)
        ]
        return FUNCTIONS[self.function].compute(*aligned)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        rule = FUNCTIONS[self.function].vjp
        if rule is None:
            return [None] * len(self.inputs)
        return [
            None if dx is None else fit(dx, x.shape)
            for dx, x in zip(rule(dy, self.output, *self.inputs), self.inputs, strict=True)
        ]

    def flops(self) -> int:
        return self.output.shape.elements if self.output.floating else 0


@dataclass(eq=False)
class Cast(Op):
    """Another dtype."""

    elementwise = True
    dtype: str

    def results(self):
        return [(self.inputs[0].shape, self.dtype)]

    def lower(self, context: Context, x):
        return tf.cast(x, tf.as_dtype(self.dtype))

    def vjp(self, dy: Tensor):
        return [cast(dy, self.inputs[0].dtype)]


@dataclass(eq=False)
class StopGradient(Op):
    """The same value, through which no gradient flows."""

    elementwise = True

    def results(self):
        return [(self.inputs[0].shape, self.inputs[0].dtype)]

    def lower(self, context: Context, x):
        return tf.identity(x)

    def vjp(self, dy: Tensor):
        return [None]


def joined(what: str, *operands: Tensor) -> Shape:
    """The dimensions of all operands, in the order of the one that has most."""
    same_sizes(what, *operands)
    found: dict[str, Dimension] = {}
    for operand in sorted(operands, key=lambda operand: -len(operand.shape)):
        for dim in operand.shape:
            found.setdefault(dim.name, dim)
    return Shape(found.values())


def fit(dx: Tensor, shape: Shape) -> Tensor:
    """A cotangent brought to the shape of its primal: extra dimensions summed, missing ones broadcast, order restored."""
    from namedmesh.ops.reduce import sum
    from namedmesh.ops.shape import broadcast, transpose

    extra = [dim for dim in dx.shape if dim.name not in shape.names]
    if extra:
        dx = sum(dx, over=extra)
    if len(dx.shape) < len(shape):
        return broadcast(dx, shape)
    return dx if dx.shape == shape else transpose(dx, shape)


def apply(function: str, *operands: Tensor | float | int | bool) -> Tensor:
    """Applies an elementwise function, plain numbers taking the dtype of the tensor beside them."""
    first = (as_tensor(function, operands[0]),) if function == "where" else ()
    rest = operands[len(first) :]
    like = next((operand for operand in reversed(rest) if isinstance(operand, Tensor)), None)
    return Elementwise(
        (*first, *(as_tensor(function, operand, like) for operand in rest)), function
    ).output


def cast(x: Tensor, dtype: str) -> Tensor:
    """The tensor in another dtype."""
    x = as_tensor("cast", x)
    return x if checked_dtype(dtype) == x.dtype else Cast((x,), dtype).output


def stop_gradient(x: Tensor) -> Tensor:
    """The same value, through which no gradient flows."""
    return StopGradient((as_tensor("stop_gradient", x),)).output


def clip(x: Tensor, low: float | None = None, high: float | None = None) -> Tensor:
    """The tensor kept between two bounds."""
    if low is not None:
        x = maximum(x, low)
    return x if high is None else minimum(x, high)


def gelu(x: Tensor) -> Tensor:
    """The Gaussian error linear unit, exact."""
    return x * 0.5 * (erf(x * math.sqrt(0.5)) + 1.0)


def swish(x: Tensor) -> Tensor:
    """x times its sigmoid."""
    return x * sigmoid(x)


def leaky_relu(x: Tensor, slope: float = 0.2) -> Tensor:
    """x where positive, a small slope elsewhere."""
    return where(x > 0, x, x * slope)


def elu(x: Tensor) -> Tensor:
    """x where positive, exp(x) - 1 elsewhere."""
    return where(x > 0, x, exp(minimum(x, 0.0)) - 1.0)


def _define(
    name: str, compute, vjp=None, takes: str = "number", gives: str | None = None, doc: str = ""
):
    FUNCTIONS[name] = Function(compute, vjp, takes, gives)
    due = sum(each.default is each.empty for each in inspect.signature(compute).parameters.values())
    names = ("condition, x, y", "x", "x, y")[due % 3]

    def function(*operands):
        if len(operands) != due:
            raise NamedMeshError(
                f"{name}: {counted(len(operands), 'operand')} where {due} {'is' if due == 1 else 'are'} due",
                *map(shown, operands),
                fix=f"write nm.{name}({names})",
            )
        return apply(name, *operands)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc or f"Elementwise {name.replace('_', ' ')}, broadcasting by name."
    return function


add = _define("add", tf.add, lambda dy, y, a, b: [dy, dy])
subtract = _define("subtract", tf.subtract, lambda dy, y, a, b: [dy, -dy])
multiply = _define("multiply", tf.multiply, lambda dy, y, a, b: [dy * b, dy * a])
divide = _define("divide", tf.divide, lambda dy, y, a, b: [dy / b, -(dy * y / b)], takes="float")
floor_divide = _define("floor_divide", tf.math.floordiv)
remainder = _define(
    "remainder", tf.math.floormod, lambda dy, y, a, b: [dy, -(dy * floor_divide(a, b))]
)
power = _define(
    "power",
    tf.pow,
    lambda dy, y, a, b: [
        where(equal(b, 0.0), 0.0, dy * b * power(a, b - 1.0)),
        where(a > 0, dy * y * log(where(a > 0, a, 1.0)), 0.0),
    ],
    takes="float",
)
maximum = _define(
    "maximum", tf.maximum, lambda dy, y, a, b: [where(a >= b, dy, 0.0), where(a >= b, 0.0, dy)]
)
minimum = _define(
    "minimum", tf.minimum, lambda dy, y, a, b: [where(a <= b, dy, 0.0), where(a <= b, 0.0, dy)]
)
negative = _define("negative", tf.negative, lambda dy, y, x: [-dy])
absolute = _define("absolute", tf.abs, lambda dy, y, x: [dy * sign(x)])
sign = _define("sign", tf.sign)
square = _define("square", tf.square, lambda dy, y, x: [dy * x * 2.0])
exp = _define("exp", tf.exp, lambda dy, y, x: [dy * y], takes="float")
log = _define("log", tf.math.log, lambda dy, y, x: [dy / x], takes="float")
sqrt = _define("sqrt", tf.sqrt, lambda dy, y, x: [dy * 0.5 / y], takes="float")
rsqrt = _define("rsqrt", tf.math.rsqrt, lambda dy, y, x: [dy * -0.5 * y / x], takes="float")
reciprocal = _define(
    "reciprocal", tf.math.reciprocal, lambda dy, y, x: [-(dy * y * y)], takes="float"
)
sin = _define("sin", tf.sin, lambda dy, y, x: [dy * cos(x)], takes="float")
cos = _define("cos", tf.cos, lambda dy, y, x: [-(dy * sin(x))], takes="float")
tanh = _define("tanh", tf.tanh, lambda dy, y, x: [dy * (1.0 - y * y)], takes="float")
sigmoid = _define("sigmoid", tf.sigmoid, lambda dy, y, x: [dy * y * (1.0 - y)], takes="float")
softplus = _define("softplus", tf.math.softplus, lambda dy, y, x: [dy * sigmoid(x)], takes="float")
erf = _define(
    "erf",
    tf.math.erf,
    lambda dy, y, x: [dy * exp(-(x * x)) * (2.0 / math.sqrt(math.pi))],
    takes="float",
)
erfinv = _define(
    "erfinv",
    tf.math.erfinv,
    lambda dy, y, x: [dy * exp(y * y) * (math.sqrt(math.pi) / 2.0)],
    takes="float",
)
relu = _define("relu", tf.nn.relu, lambda dy, y, x: [where(y > 0, dy, 0.0)])
floor = _define("floor", tf.floor, takes="float")
round = _define("round", tf.round, takes="float")
is_finite = _define("is_finite", tf.math.is_finite, takes="float", gives="bool")
equal = _define("equal", tf.equal, takes="any", gives="bool")
not_equal = _define("not_equal", tf.not_equal, takes="any", gives="bool")
less = _define("less", tf.less, gives="bool")
less_equal = _define("less_equal", tf.less_equal, gives="bool")
greater = _define("greater", tf.greater, gives="bool")
greater_equal = _define("greater_equal", tf.greater_equal, gives="bool")
logical_and = _define("logical_and", tf.logical_and, takes="bool")
logical_or = _define("logical_or", tf.logical_or, takes="bool")
logical_xor = _define("logical_xor", tf.math.logical_xor, takes="bool")
logical_not = _define("logical_not", tf.logical_not, takes="bool")
where = _define(
    "where",
    lambda condition, a, b: tf.where(condition, a, b),
    lambda dy, y, condition, a, b: [None, where(condition, dy, 0.0), where(condition, 0.0, dy)],
    takes="any",
    doc="Where the condition holds the one, elsewhere the other, broadcasting by name.",
)
