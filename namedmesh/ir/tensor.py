"""Tensor: a named value in a program; it knows its shape and its line, nothing of ops or meshes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import EllipsisType
from typing import Any, NoReturn

import numpy as np

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.display.html import html_dimensions
from namedmesh.display.text import human
from namedmesh.errors.errors import NamedMeshError
from namedmesh.errors.mistakes import Explained, explain_methods, foreign_call, missing_attribute
from namedmesh.errors.source import Source
from namedmesh.ir.format import format_value


class Dtype(Explained, str, methods=False):
    """The name of an element type: a text that equals numpy's and jax's types of that name too."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):  # x.dtype == np.float32
            other = getattr(other, "__name__", None) or getattr(other, "name", None)
        return str.__eq__(self, other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


FLOATS: tuple[str, ...] = tuple(map(Dtype, ("float32", "bfloat16", "float16", "float64")))
# Stored, sent and multiplied; nothing else is computed in them, and no gradient flows through.
FLOATS8: tuple[str, ...] = tuple(map(Dtype, ("float8_e4m3fn", "float8_e5m2")))
INTEGERS: tuple[str, ...] = tuple(map(Dtype, ("int32", "int64", "uint32", "uint8", "int8")))
COMPLEX: tuple[str, ...] = (Dtype("complex64"),)
DTYPES: tuple[str, ...] = (*FLOATS, *FLOATS8, *INTEGERS, *COMPLEX, Dtype("bool"))
# numpy has no bfloat16 of its own, which is as wide as float16.
BYTES = {
    name: 1 if name in FLOATS8 else np.dtype(name.replace("bfloat", "float")).itemsize
    for name in DTYPES
}
_BY_NAME: dict[str, str] = {dtype: dtype for dtype in DTYPES}

# Functions by name, entered by the catalogue of ops: what + and its kin call, and methods.
OPERATORS: dict[str, Callable[..., Any]] = {}

Over = Dimension | Sequence[Dimension] | None


def _operator(function: str, reflected: bool = False) -> Callable[[Tensor, Operand], Tensor]:
    """Make the method behind a sign such as +, or behind the same sign with a number before it."""

    def apply(self: Tensor, other: Operand) -> Tensor:
        name = self._by_dtype(function) if function in ("and", "or", "xor") else function
        return _apply(name, other, self) if reflected else _apply(name, self, other)

    return apply


class Tensor:
    """A value that a named op binds: its dimensions by name, its dtype, and the line that made it.

    Tensors support Python's arithmetic and comparison operators, broadcasting by name; indices by
    name, `x[H, 3]` and `x.at[H, 3].set(y)`; and the methods below. Everything is also a function
    of `nm`. A tensor has no value while tracing.

    Args:
        shape: The named dimensions, in order.
        dtype: The name of the element type.
        kind: The kind of op that made it.
        source: The user's line that made it.
        name: Its own name, where it has one: inputs and variables do.

    Example:
        >>> B, M = nm.dims("batch=4 model=8")
        >>> program = nm.trace(lambda x, b: x * 2.0 + b, x=nm.spec([B, M]), b=nm.spec([M]))
        >>> program.outputs[0].shape
        [batch=4, model=8]
    """

    __slots__ = ("__weakref__", "dtype", "kind", "name", "origin", "primal", "shape", "source")

    def __init__(
        self,
        shape: Shape = Shape(),  # an immutable value
        dtype: str = "",
        kind: str = "",
        source: Source | None = None,
        name: str | None = None,
        **unknown: object,
    ):
        if source is None or unknown:
            raise NamedMeshError(
                "a tensor is made by an op or by nm.trace, and has no value while tracing",
                fix="write nm.constant(array, dims), or pass arrays in as inputs (nm.spec)",
            )
        self.shape = shape
        self.dtype = _BY_NAME.get(dtype, dtype)
        self.kind = kind
        self.source = source
        self.name = name
        self.primal: Tensor | None = None  # the tensor this is a cotangent of
        self.origin: Tensor | None = None  # the tensor this is computed again in place of

    def describe(
        self, *, name: str | None = None, primal: Tensor | None = None, origin: Tensor | None = None
    ) -> Tensor:
        """Set facts about a new tensor, each once, and return it.

        Args:
            name: Its name in plans and errors.
            primal: The tensor it is the cotangent of.
            origin: The tensor it is computed again in place of.

        Returns:
            The tensor itself.
        """
        for fact, value in (("name", name), ("primal", primal), ("origin", origin)):
            if value is None:
                continue
            if getattr(self, fact) is not None:
                raise RuntimeError(f"the {fact} of {self} is already {getattr(self, fact)}")
            setattr(self, fact, value)
        return self

    @property
    def label(self) -> str:
        """Its own name, the variable it was assigned to, or its op."""
        if self.name:
            return self.name
        if self.primal is not None:
            return f"d_{self.primal.label}"
        return self.source.variable or self.kind

    @property
    def floating(self) -> bool:
        """Return whether the tensor can carry a gradient."""
        return self.dtype in FLOATS or self.dtype in COMPLEX

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.label}: {self.dtype}{self.shape}"

    def __repr__(self) -> str:
        return f"Tensor({self})"

    def _repr_html_(self) -> str:
        sizes = {dim.name: dim.size for dim in self.shape}
        size = human(self.shape.elements * self.itemsize)
        return html_dimensions(self.label, sizes, f"{self.dtype}, {size}, made at {self.source}")

    def __bool__(self) -> bool:
        raise NamedMeshError(
            f"the value of {self.label} is not known while tracing, "
            "so it is neither true nor false",
            str(self),
            fix="use nm.where for a choice per element, nm.cond for a choice of what to run",
        )

    def __iter__(self):
        raise NamedMeshError(
            f"{self.label} cannot be iterated over",
            str(self),
            fix="use nm.scan, or nm.chunk for a list of shards",
        )

    def __contains__(self, value: Any) -> bool:
        raise NamedMeshError(
            f"the value of {self.label} is not known while tracing, nor what is in it",
            str(self),
            fix=f"use nm.any(nm.equal({self.label}, value)), a bool scalar",
        )

    def __getitem__(self, index: Any) -> Tensor:
        return OPERATORS["getitem"](self, index)

    def _change(self, *unused: Any) -> NoReturn:
        raise NamedMeshError(
            f"{self.label} does not change, and elements cannot be set or deleted",
            str(self),
            fix="make a new tensor: x = x.at[H, 3].set(y), and add, max, min",
        )

    __setitem__ = __delitem__ = _change

    def __deepcopy__(self, copied: dict[int, Any]) -> Tensor:
        return self

    def __copy__(self) -> Tensor:
        return self

    def sum(self, over: Over = None, *, where: Tensor | None = None) -> Tensor:
        """`nm.sum` of this tensor."""
        return _apply("sum", self, over, where=where)

    def mean(self, over: Over = None, *, where: Tensor | None = None) -> Tensor:
        """`nm.mean` of this tensor."""
        return _apply("mean", self, over, where=where)

    def max(self, over: Over = None, *, where: Tensor | None = None) -> Tensor:
        """`nm.max` of this tensor."""
        return _apply("max", self, over, where=where)

    def min(self, over: Over = None, *, where: Tensor | None = None) -> Tensor:
        """`nm.min` of this tensor."""
        return _apply("min", self, over, where=where)

    def prod(self, over: Over = None, *, where: Tensor | None = None) -> Tensor:
        """`nm.prod` of this tensor."""
        return _apply("prod", self, over, where=where)

    def any(self, over: Over = None, *, where: Tensor | None = None) -> Tensor:
        """`nm.any` of this tensor."""
        return _apply("any", self, over, where=where)

    def all(self, over: Over = None, *, where: Tensor | None = None) -> Tensor:
        """`nm.all` of this tensor."""
        return _apply("all", self, over, where=where)

    def var(self, over: Over = None, *, correction: int = 0, where: Tensor | None = None) -> Tensor:
        """`nm.var` of this tensor."""
        return _apply("var", self, over, correction=correction, where=where)

    def std(self, over: Over = None, *, correction: int = 0, where: Tensor | None = None) -> Tensor:
        """`nm.std` of this tensor."""
        return _apply("std", self, over, correction=correction, where=where)

    def argmax(self, over: Dimension, *, where: Tensor | None = None) -> Tensor:
        """`nm.argmax` of this tensor."""
        return _apply("argmax", self, over, where=where)

    def argmin(self, over: Dimension, *, where: Tensor | None = None) -> Tensor:
        """`nm.argmin` of this tensor."""
        return _apply("argmin", self, over, where=where)

    def cumsum(self, dim: Dimension, exclusive: bool = False, reverse: bool = False) -> Tensor:
        """`nm.cumsum` of this tensor."""
        return _apply("cumsum", self, dim, exclusive, reverse)

    def cast(self, dtype: str) -> Tensor:
        """`nm.cast` of this tensor."""
        return _apply("cast", self, dtype)

    def rename(
        self, old: Dimension | Mapping[Dimension, Dimension], new: Dimension | None = None
    ) -> Tensor:
        """`nm.rename` of this tensor."""
        return _apply("rename", self, old, new)

    def reshape(
        self, old: Dimension | Sequence[Dimension], new: Dimension | Sequence[Dimension]
    ) -> Tensor:
        """`nm.reshape` of this tensor."""
        return _apply("reshape", self, old, new)

    def transpose(self, dims: Sequence[Dimension | EllipsisType]) -> Tensor:
        """`nm.transpose` of this tensor."""
        return _apply("transpose", self, dims)

    def broadcast(self, dims: Sequence[Dimension]) -> Tensor:
        """`nm.broadcast` of this tensor."""
        return _apply("broadcast", self, dims)

    @property
    def at(self) -> Any:
        """A place to change: `x.at[H, 3].set(y)` is `x` with `y` there, and so `add`, `max`, `min`.

        Indices are as in `x[H, 3]` and `x[{H: i, W: j}]`; `y` broadcasts to what they would read.
        Of several values for one element `set` takes the last. Indices of a tensor that are outside
        change nothing.
        """
        return OPERATORS["at"](self)

    def __len__(self) -> int:
        raise NamedMeshError(
            f"{self.label} has no length, its dimensions have sizes",
            str(self),
            fix="use the size of a Dimension, or len(x.shape)",
        )

    def _value(self, *unused: Any, **options: Any) -> NoReturn:
        raise NamedMeshError(
            f"{self.label} has no value while tracing",
            str(self),
            fix="return it from the traced function and run the step",
        )

    __array__ = __float__ = __int__ = __index__ = __complex__ = __trunc__ = _value

    def __format__(self, form: str) -> str:
        return self._value() if form else str(self)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # Python and numpy probe for methods that tensors lack
            raise AttributeError(name)
        methods = [one for one in dir(Tensor) if not one.startswith("_")]
        raise missing_attribute(self.label, str(self), self.shape.names, methods, name)

    @property
    def __jax_array__(self) -> NoReturn:
        # A property: jax asks with hasattr, and replaces what a method raises by its own error.
        raise foreign_call("jax", None, self.label, str(self))

    def __array_function__(self, function: Any, *unused: Any) -> NoReturn:
        raise foreign_call("numpy", function.__name__, self.label, str(self))

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: Any, **options: Any) -> Tensor:
        name = ufunc.__name__
        if name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
            name = self._by_dtype(name.removeprefix("bitwise_"))
        name = _SHIFTS.get(name, name)
        if name in ("equal", "not_equal"):
            raise self._compared(name, operands[0] if operands[1] is self else operands[1])
        if name in _BY_SIGN and method == "__call__" and not options:
            return _apply(name, *operands)
        if name == "matmul":
            raise self._product()
        name = name if method == "__call__" else f"{name}.{method}"
        raise foreign_call("numpy", name, self.label, str(self))

    def _by_dtype(self, name: str) -> str:
        """Return the function that a sign of logic stands for: of bits, or of true and false."""
        return f"bitwise_{name}" if self.dtype in INTEGERS else f"logical_{name}"

    def _product(self) -> NamedMeshError:
        return NamedMeshError(
            f"{self.label}: @ multiplies by position, and dimensions have names",
            str(self),
            fix="use nm.einsum([x, w], dims), with the dimensions of the result",
        )

    def __matmul__(self, other: Any) -> NoReturn:
        raise self._product()

    __rmatmul__ = __matmul__

    def _compared(self, name: str, other: Any) -> NamedMeshError:
        sign = {"equal": "==", "not_equal": "!="}[name]
        beside = other.label if isinstance(other, Tensor) else format_value(other)
        return NamedMeshError(
            f"{self.label} {sign} {beside} would compare Python objects, not values",
            str(self),
            fix=f"use nm.{name}({self.label}, {beside}) for values, 'is' for the same tensor",
        )

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        raise self._compared("equal", other)

    def __ne__(self, other: object) -> bool:
        if other is self:
            return False
        raise self._compared("not_equal", other)

    __hash__ = object.__hash__

    __add__, __radd__ = _operator("add"), _operator("add", reflected=True)
    __sub__, __rsub__ = _operator("subtract"), _operator("subtract", reflected=True)
    __mul__, __rmul__ = _operator("multiply"), _operator("multiply", reflected=True)
    __truediv__, __rtruediv__ = _operator("divide"), _operator("divide", reflected=True)
    __floordiv__, __rfloordiv__ = (
        _operator("floor_divide"),
        _operator("floor_divide", reflected=True),
    )
    __mod__, __rmod__ = _operator("remainder"), _operator("remainder", reflected=True)
    __rpow__ = _operator("power", reflected=True)
    __and__, __rand__ = _operator("and"), _operator("and", reflected=True)
    __or__, __ror__ = _operator("or"), _operator("or", reflected=True)
    __xor__, __rxor__ = _operator("xor"), _operator("xor", reflected=True)
    __lshift__, __rlshift__ = _operator("shift_left"), _operator("shift_left", reflected=True)
    __rshift__, __rrshift__ = _operator("shift_right"), _operator("shift_right", reflected=True)
    __lt__ = _operator("less")
    __le__ = _operator("less_equal")
    __gt__ = _operator("greater")
    __ge__ = _operator("greater_equal")

    def __pow__(self, other: Operand, modulo: Operand | None = None) -> Tensor:
        if modulo is not None:
            raise NamedMeshError(
                f"pow of {self.label} takes no third argument", str(self), fix="write x**y % z"
            )
        return _apply("power", self, other)

    def __divmod__(self, other: Operand) -> tuple[Tensor, Tensor]:
        return self // other, self % other

    def __rdivmod__(self, other: Operand) -> tuple[Tensor, Tensor]:
        return other // self, other % self

    def __neg__(self) -> Tensor:
        return _apply("negative", self)

    def __pos__(self) -> Tensor:
        if self.dtype == "bool":
            raise NamedMeshError(
                "+ takes number operands", str(self), fix=f"use nm.cast({self.label}, 'int32')"
            )
        return self

    def __round__(self, digits: int | None = None) -> Tensor:
        if digits is None:
            return _apply("round", self)
        if not isinstance(digits, int) or abs(digits) > 30:  # float32 has no more
            raise NamedMeshError(
                f"round: {format_value(digits)} is not a number of digits",
                str(self),
                fix="give a whole number from -30 to 30, known while tracing, e.g. round(x, 2)",
            )
        return _apply("round", self * 10.0**digits) / 10.0**digits

    def __floor__(self) -> Tensor:
        return _apply("floor", self)

    def __ceil__(self) -> Tensor:
        return _apply("ceil", self)

    def __abs__(self) -> Tensor:
        return _apply("absolute", self)

    def __invert__(self) -> Tensor:
        return _apply(self._by_dtype("not"), self)


_BY_SIGN = {
    "add", "subtract", "multiply", "divide", "floor_divide", "remainder", "power", "logical_and",
    "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "less",
    "less_equal", "greater", "greater_equal", "shift_left", "shift_right",
}  # fmt: skip
_SHIFTS = {"left_shift": "shift_left", "right_shift": "shift_right"}  # by numpy's names


def _apply(function: str, *operands: Any, **options: Any) -> Tensor:
    return OPERATORS[function](*operands, **options)


def label_as(function: str, x: Tensor) -> Tensor:
    """Label a new tensor by the function that the user called, and not by the last of its ops."""
    x.kind = function
    return x


Operand = Tensor | float | int | bool

explain_methods(Tensor)
