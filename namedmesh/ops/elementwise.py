"""Elementwise ops: operands broadcast against each other by name."""

from __future__ import annotations

import functools
import inspect
import operator
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ParamSpec

import numpy as np

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.errors.mistakes import explain_calls
from namedmesh.ir.context import Context
from namedmesh.ir.interface import check_dtype
from namedmesh.ir.literal import align_array, as_tensor, fill, numpy_dtype
from namedmesh.ir.op import Number, OneOfSeveral, Op
from namedmesh.ir.operands import check_dtype_kind, check_one_dtype, check_same_sizes
from namedmesh.ir.tensor import COMPLEX, FLOATS8, INTEGERS, OPERATORS, Operand, Tensor
from namedmesh.ir.trace import current
from namedmesh.ops.broadcast import fit

P = ParamSpec("P")
Rule = Callable[..., list[Tensor | None]]


@dataclass(frozen=True)
class Function:
    """An elementwise function: what computes it, its derivative, its dtypes."""

    compute: str | Callable[..., Any]  # a function's name in TensorFlow, or of it and the values
    vjp: Rule | None = None  # from the cotangent, result and operands to the operands' cotangents
    takes: str = "number"  # number, float, integer, bool or any
    gives: str | None = None  # the result's dtype; the operands' by default, or `real`: its part
    long: bool = False  # becomes many XLA ops
    linear_in: tuple[tuple[int, ...], ...] = ()  # see Op


FUNCTIONS: dict[str, Function] = {}


# What XLA knows of constants, and then drops: the branches of a choice that is never taken.
_NUMBERS: dict[str, Callable[..., Any]] = {
    "equal": operator.eq, "not_equal": operator.ne, "less": operator.lt,
    "less_equal": operator.le, "greater": operator.gt, "greater_equal": operator.ge,
    "logical_xor": operator.ne, "logical_not": np.logical_not, "bitwise_not": operator.invert,
    "logical_and": operator.and_, "bitwise_and": operator.and_, "add": operator.add,
    "logical_or": operator.or_, "bitwise_or": operator.or_, "subtract": operator.sub,
    "bitwise_xor": operator.xor, "multiply": operator.mul, "divide": operator.truediv,
    "negative": operator.neg, "maximum": np.maximum, "minimum": np.minimum,
    "square": np.square, "sqrt": np.sqrt, "absolute": np.absolute, "sign": np.sign,
}  # fmt: skip
# One operand that decides, whatever the other is; and what is known of an operand and itself.
_DECIDING = {
    "logical_and": False, "logical_or": True, "bitwise_and": 0, "bitwise_or": -1, "multiply": 0
}  # fmt: skip
_OF_EQUALS = {
    "equal": True, "less_equal": True, "greater_equal": True, "subtract": 0, "bitwise_xor": 0,
    "not_equal": False, "less": False, "greater": False, "logical_xor": False,
}  # fmt: skip
# What is known of the comparison of numbers, none less than zero, with zero in some place.
_OF_NONNEGATIVE = {
    "greater_equal": (1, True), "less": (1, False), "less_equal": (0, True), "greater": (0, False)
}  # fmt: skip


class Elementwise(OneOfSeveral):
    """One elementwise function of operands that broadcast by name."""

    elementwise = True
    nameless = True
    broadcasts = True

    @property
    def linear_in(self) -> tuple[tuple[int, ...], ...]:
        return FUNCTIONS[self.function].linear_in

    @property
    def late_sums(self) -> bool:
        return self.function != "where"

    @property
    def closed(self) -> bool:
        return FUNCTIONS[self.function].long

    def results(self) -> list[tuple[Shape, str]]:
        function = FUNCTIONS[self.function]
        operands = self.inputs[1:] if self.function == "where" else self.inputs
        check_dtype_kind(self.function, function.takes, *operands, source=self.source)
        if self.function == "where" and self.inputs[0].dtype != "bool":
            problem = "where takes a bool condition"
            fix = f"compare first, e.g. {self.inputs[0].label} > 0"
            raise NamedMeshError(problem, *map(str, self.inputs), fix=fix, source=self.source)
        check_one_dtype(self.function, *operands, shown=self.inputs, source=self.source)
        dtype = function.gives or operands[0].dtype
        if dtype == "real":
            dtype = "float32" if operands[0].dtype in COMPLEX else operands[0].dtype
        return [(join_shapes(self.function, *self.inputs), dtype)]

    def lower(self, context: Context, *values: Any) -> Any:
        shape = self.output.shape
        pairs = zip(values, self.inputs, strict=True)
        aligned = [context.align(value, x.shape, shape) for value, x in pairs]
        compute = FUNCTIONS[self.function].compute
        if isinstance(compute, str):
            return attrgetter(compute)(context.tf)(*aligned)
        return compute(context.tf, *aligned)

    def find_equal(self, known: Mapping[Tensor, Number]) -> Tensor | None:
        alike = len({*self.inputs}) < len(self.inputs)
        if self.function != "where" and not alike and known.keys().isdisjoint(self.inputs):
            return None
        shape = self.output.shape
        for i in {"add": (0, 1), "subtract": (0,)}.get(self.function, ()):
            if known.get(self.inputs[1 - i]) == 0 and self.inputs[i].shape == shape:
                return self.inputs[i]
        if self.function == "where":
            condition, yes, no = self.inputs
            if condition in known or yes is no:
                return fit(yes if known.get(condition, True) else no, shape)
        number = self.find_number(known)
        if number is None or known.keys() >= {*self.inputs}:
            return None  # what is made of constants alone is a constant as it is
        return fill(shape, number, self.output.dtype)

    def find_number(self, known: Mapping[Tensor, Number]) -> Number | None:
        numbers = [known.get(tensor) for tensor in self.inputs]
        if not self.inputs[0].floating:  # nan differs from itself, and times 0 it is nan
            deciding = _DECIDING.get(self.function)
            if deciding is not None and deciding in numbers:
                return deciding
            if len(numbers) == 2 and self.inputs[0] is self.inputs[1]:
                return _OF_EQUALS.get(self.function)
        if self.function == "power" and numbers[1] == 0:
            return 1  # of nan, too
        least = _OF_NONNEGATIVE.get(self.function)
        if least is not None and numbers[least[0]] == 0 and self._is_nonnegative(1 - least[0]):
            return least[1]
        if _NUMBERS.get(self.function) is None or None in numbers:
            return super().find_number(known)
        # In the operands' own precision, as devices compute.
        pairs = zip(numbers, self.inputs, strict=True)
        with np.errstate(all="ignore"):
            values = (numpy_dtype(x.dtype).type(number) for number, x in pairs)
            return _NUMBERS[self.function](*values).item()

    def _is_nonnegative(self, i: int) -> bool:
        """Return whether no element of an operand is less than zero, and none is nan."""
        maker = current(self.function).find_maker(self.inputs[i])
        unsigned = self.inputs[i].dtype.startswith("uint")
        return unsigned or (maker is not None and maker.nonnegative)

    def fold(self, *arrays: Any) -> Any | None:
        compute = _NUMBERS.get(self.function)
        if compute is None:
            return None
        pairs = zip(arrays, self.inputs, strict=True)
        with np.errstate(all="ignore"):
            return compute(*(align_array(a, x.shape, self.output.shape) for a, x in pairs))

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        rule = FUNCTIONS[self.function].vjp
        if rule is None:
            return [None] * len(self.inputs)
        cotangents = rule(dy, self.output, *self.inputs)
        pairs = zip(cotangents, self.inputs, strict=True)
        return [None if dx is None else fit(dx, x.shape) for dx, x in pairs]

    def flops(self) -> int:
        return self.output.shape.elements if self.output.floating else 0


class Cast(Op):
    """Another dtype."""

    elementwise = True
    nameless = True
    same_value = True
    dtype: str

    @property
    def linear_in(self) -> tuple[tuple[int, ...], ...]:
        (x,), y = self.inputs, self.output
        if x.floating or y.dtype == "bool":
            return ((0,),) if y.floating else ()
        # Small and unsigned integers wrap around: a sum that does is not that of its wider parts.
        wraps = x.dtype in INTEGERS and x.dtype not in ("int32", "int64")
        narrows = y.dtype in INTEGERS and y.itemsize <= x.itemsize
        return () if wraps and not narrows else ((0,),)

    @property
    def late_sums(self) -> bool:
        # A wider dtype has every number of a narrower one, partial sums included.
        (x,) = self.inputs
        return x.floating and x.itemsize < self.output.itemsize

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.inputs[0].shape, self.dtype)]

    def lower(self, context: Context, x: Any) -> Any:
        tf, dtype = context.tf, context.dtype(self.dtype)
        if x.dtype.is_complex and not dtype.is_complex:
            x = tf.math.real(x)  # TensorFlow warns where it is a cast that takes it
        if {self.inputs[0].dtype, self.dtype} & {*FLOATS8}:
            x = tf.cast(x, tf.float32)  # the only way there is for integers
        if context.compiled or not (x.dtype.is_floating and self.dtype in INTEGERS):
            return tf.cast(x, dtype)
        # XLA saturates, and nan gives 0; what TensorFlow's kernels do depends on the processor.
        wide = tf.cast(x, tf.float64)
        above, below = wide >= float(dtype.max), wide <= float(dtype.min)
        inside = tf.where(above | below | tf.math.is_nan(wide), tf.zeros_like(wide), wide)
        limits = tf.constant(dtype.min, dtype), tf.constant(dtype.max, dtype)
        return tf.where(above, limits[1], tf.where(below, limits[0], tf.cast(inside, dtype)))

    def find_number(self, known: Mapping[Tensor, Number]) -> Number | None:
        (x,) = self.inputs
        if x not in known:
            return None
        with np.errstate(all="ignore"):
            number = numpy_dtype(x.dtype).type(known[x])
            if self.dtype in INTEGERS:
                limits = np.iinfo(self.dtype)
                if not limits.min <= number <= limits.max:
                    return None
            return numpy_dtype(self.dtype).type(number).item()

    def fold(self, *arrays: Any) -> Any | None:
        (array,) = arrays
        if array.dtype.kind not in "biu" and self.dtype in INTEGERS:
            limits = np.iinfo(self.dtype)
            if not np.all((limits.min < array) & (array < limits.max)):
                return None  # where XLA saturates
        return array.astype(numpy_dtype(self.dtype))

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [cast(dy, self.inputs[0].dtype)]


class SameValue(Op):
    """The same value; subclasses say what is special about it."""

    linear_in = ((0,),)
    late_sums = False
    elementwise = True
    nameless = True
    copies = True

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.inputs[0].shape, self.inputs[0].dtype)]

    def lower(self, context: Context, x: Any) -> Any:
        return context.tf.identity(x)

    def fold(self, *arrays: Any) -> Any:
        return arrays[0]

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [dy]


class StopGradient(SameValue):
    """The same value, through which no gradient flows."""

    stops_gradient = True

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [None]


class ComputeOnce(SameValue):
    """The same value, behind a barrier that XLA's fusions do not cross."""

    kind = "compute_once"
    barrier = True
    copies = False

    @property
    def repeatable(self) -> bool:
        return False

    def lower(self, context: Context, x: Any) -> Any:
        return context.xla.optimization_barrier(x)[0] if context.compiled else x


def join_shapes(what: str, *operands: Tensor) -> Shape:
    """Return the dimensions of all operands, in the order of the one that has most."""
    check_same_sizes(what, *operands)
    dims: dict[str, Dimension] = {}
    for operand in sorted(operands, key=lambda operand: -len(operand.shape)):
        for dim in operand.shape:
            dims.setdefault(dim.name, dim)
    return Shape(dims.values())


def apply(function: str, *operands: Operand) -> Tensor:
    """Apply an elementwise function; plain numbers take the dtype of the tensor beside them."""
    condition = (as_tensor(function, operands[0]),) if function == "where" else ()
    rest = operands[len(condition) :]
    like = next((operand for operand in reversed(rest) if isinstance(operand, Tensor)), None)
    tensors = (as_tensor(function, operand, like) for operand in rest)
    return Elementwise((*condition, *tensors), function).output


def elementwise(
    compute: str | Callable[..., Any], vjp: Rule | None = None, **options: Any
) -> Callable[[Callable[P, Tensor]], Callable[P, Tensor]]:
    """Declare an elementwise op by a function's signature and docstring; its body does nothing."""

    def declare(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
        name = function.__name__
        signature = inspect.signature(function)
        check_arguments = explain_calls(function, f"nm.{name}")
        FUNCTIONS[name] = Function(compute, vjp, **options)

        @functools.wraps(function)
        def call(*arguments: P.args, **named: P.kwargs) -> Tensor:
            check_arguments(*arguments, **named)
            operands = signature.bind(*arguments, **named).args if named else arguments
            return apply(name, *typing.cast(tuple[Operand, ...], operands))

        OPERATORS[name] = call
        return call

    return declare


def cast(x: Operand, dtype: str) -> Tensor:
    """Return a tensor in another dtype; integers lose the fraction, and have no gradient.

    A number beyond the range of a floating point dtype becomes infinite. To an integer dtype,
    floating point numbers beyond its range become its least or largest number and nan becomes 0,
    while integers wrap around: of their bits, the lowest stay. Everything but 0 is True, nan too.

    Args:
        x: A tensor, or a number.
        dtype: The name of the new dtype.

    Example:
        >>> nm.evaluate(lambda x: nm.cast(x, "int32"), x=(nm.dims("model=2"), [1.75, -1.75]))
        array([ 1, -1], dtype=int32)
    """
    x = as_tensor("cast", x)
    dtype = check_dtype(dtype)
    if dtype == x.dtype:
        return x
    return Cast((x,), dtype).output.describe(name=x.name)


def stop_gradient(x: Operand) -> Tensor:
    """Return the same value, through which no gradient flows.

    Args:
        x: A tensor, or a number.

    Example:
        >>> nm.evaluate(lambda x: nm.grad(x * nm.stop_gradient(x), [x])[0], x=([], 3.0))
        array(3., dtype=float32)
    """
    return StopGradient((as_tensor("stop_gradient", x),)).output


def compute_once(x: Operand) -> Tensor:
    """Return the same value, computed once, where a profile shows that XLA's fusions repeat it.

    Args:
        x: A tensor, or a number.

    Example:
        >>> nm.evaluate(lambda x: x / nm.compute_once(nm.sum(x)), x=(nm.dims("model=2"), [1., 3]))
        array([0.25, 0.75], dtype=float32)
    """
    return ComputeOnce((as_tensor("compute_once", x),)).output
