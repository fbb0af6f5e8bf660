"""Variables: parameters and other state, how they start, and how a step changes them."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError, check_identifier, did_you_mean
from namedmesh.errors.mistakes import ByName
from namedmesh.errors.source import Source, caller
from namedmesh.ir.format import describe_type, format_value
from namedmesh.ir.interface import Variable, check_dtype, check_whole
from namedmesh.ir.literal import as_tensor, check_number
from namedmesh.ir.operands import (
    as_tuple,
    check_dimension,
    check_flag,
    check_has_dims,
    make_shape,
)
from namedmesh.ir.recorder import recording
from namedmesh.ir.tensor import FLOATS, OPERATORS, Operand, Tensor
from namedmesh.ir.trace import Trace, current
from namedmesh.ops import random
from namedmesh.ops.broadcast import sum
from namedmesh.ops.constants import constant, full
from namedmesh.ops.einsum import einsum
from namedmesh.ops.elementwise import cast
from namedmesh.ops.mathematics import rsqrt, square
from namedmesh.ops.scan import scan
from namedmesh.ops.shape import name_apart, rename, transpose

_ROLES = {"param": "parameter ", "frozen": "frozen parameter ", "state": "state "}


def param(
    name: str,
    dims: Sequence[Dimension],
    init: Initializer | np.ndarray | None = None,
    dtype: str = "float32",
    whole: Sequence[Dimension] = (),
    trainable: bool = True,
    rows: Dimension | None = None,
) -> Tensor:
    """Return a parameter: a tensor of weights, trained or not, that lives from step to step.

    The same name again returns the same tensor. Names get the prefix of `nm.scope`, and inside
    `nm.scan(..., stack=True)` a parameter has a slice for each iteration.

    Args:
        name: An identifier, or several joined with slashes.
        dims: The dimensions, in order.
        init: An initializer, or an array that has the dimensions; `nm.fan_in_init` of the first of
            several dimensions, or zeros.
        dtype: A floating point dtype; any dtype of a parameter that is not trained.
        whole: Dimensions that stay unsplit under every layout.
        trainable: False for frozen weights, such as a reference model or quantized layers: they
            are placed by `params=` and saved like the others, and `nm.parameters`, `nm.grad` and
            optimizers leave them alone.
        rows: A dimension that `nm.gather` indexes: optimizers then update only the rows that a step
            looked up, and the gradient of the whole table is never made.

    Example:
        >>> B, M, H = nm.dims("batch=4 model=8 hidden=16")
        >>> layer = lambda x: nm.einsum([x, nm.param("w", [M, H])], [B, H])
        >>> list(nm.trace(layer, x=nm.spec([B, M])).parameters)
        ['w']
    """
    shape = make_shape(f"parameter {name}", dims)
    check_flag(f"parameter {name}: trainable", trainable)
    dtype = check_dtype(dtype)
    if dtype not in FLOATS and trainable:
        problem = f"parameter {name} is {dtype}, not floating point"
        fix = "what is trained is floating point; write trainable=False for frozen weights, or "
        fix += "use nm.state for what a step changes"
        raise NamedMeshError(problem, f"{name}: {dtype}{shape}", fix=fix)
    if isinstance(init, (np.ndarray, list)) or (hasattr(init, "__array__") and not callable(init)):
        init = from_array(init)
    if init is not None and not callable(init):
        problem = f"parameter {name}: init={format_value(init)} is not an initializer"
        fix = "write e.g. init=nm.constant_init(1.0) or init=nm.fan_in_init(M)"
        raise NamedMeshError(problem, f"{name}: {dtype}{shape}", fix=fix)
    if rows is not None:
        check_whole(shape, [rows], f"parameter {name}", "rows")
    drawn = len(shape) > 1 and dtype in FLOATS
    start = init or (fan_in_init(shape[0]) if drawn else constant_init(0))
    role = "param" if trainable else "frozen"
    return _find_or_make(name, shape, start, init is not None, dtype, whole, role, rows=rows)


def state(
    name: str,
    dims: Sequence[Dimension],
    init: Initializer | float | int = 0,
    dtype: str = "float32",
    whole: Sequence[Dimension] = (),
    of: Tensor | None = None,
    at_rest: bool = False,
) -> Tensor:
    """Return a tensor that lives from step to step, untrained: a counter, a cache. See `nm.assign`.

    Args:
        name: An identifier, or several joined with slashes.
        dims: The dimensions, in order.
        init: The first value: a number, or an initializer.
        dtype: The dtype.
        whole: Dimensions that stay unsplit under every layout.
        of: The parameter that an optimizer's slot belongs to: the slot is placed like it.
        at_rest: Whether it is placed by `params=` between steps, as parameters are, rather than by
            the layout.

    Example:
        >>> def count():
        ...     steps = nm.state("steps", [], dtype="int32")
        ...     nm.assign(steps, steps + 1)
        >>> int(nm.trace(count).evaluate({"steps": 41})[0]["steps"])
        42
    """
    shape, dtype = make_shape(f"state {name}", dims), check_dtype(dtype)
    given = callable(init) or init != 0
    if not callable(init):
        what, detail = f"state {name}: init", f"{name}: {dtype}{shape}"
        init = constant_init(check_number(what, init, dtype, detail))
    owner = None if of is None else _find_variable("state", of)
    if owner is not None:
        whole = [*whole, *(dim for dim in shape if dim.name in owner.whole and dim not in whole)]
    check_flag(f"state {name}: at_rest", at_rest)
    return _find_or_make(name, shape, init, given, dtype, whole, "state", at_rest, owner)


def _find_or_make(
    name: str,
    shape: Shape,
    init: Initializer,
    given: bool,
    dtype: str,
    whole: Sequence[Dimension],
    role: str,
    at_rest: bool = False,
    owner: Variable | None = None,
    rows: Dimension | None = None,
) -> Tensor:
    """Return the variable of that name; make it if there is none yet. `given` is init or not."""
    trace = current("state" if role == "state" else "param")
    if not isinstance(name, str):
        check_identifier(name, "variable")
    full_name = trace.scope + name
    for part in full_name.split("/"):
        check_identifier(part, "variable")
    stacks = _stack_dims(trace)
    shape = Shape([*stacks, *shape])
    known = trace.root.variables.get(full_name)
    if known is None:
        tensor = trace.root.placeholder(shape, dtype, full_name)
        _check_arguments(full_name, init)
        names = check_whole(shape, whole, f"variable {full_name}")
        stack = tuple(dim.name for dim in stacks)
        initialize = _from_seed(full_name, shape, dtype, init, tensor.source)
        rest, beside = role != "state" or at_rest or owner is not None, owner and owner.name
        known = Variable(
            full_name, shape, dtype, initialize, role, names, rest, tensor, stack, beside,
            None if rows is None else rows.name, init,
        )  # fmt: skip
        trace.root.variables[full_name] = known
    elif (known.shape, known.dtype, known.role) != (shape, dtype, role):
        before, now = (_ROLES[one] if known.role != role else "" for one in (known.role, role))
        raise NamedMeshError(
            f"variable {full_name} exists already with another shape, dtype or role",
            f"before: {before}{known.dtype}{known.shape} at {known.tensor.source}",
            f"now: {now}{dtype}{shape}",
            fix="give the new one its own name, or put it in its own nm.scope",
        )
    elif given and not _same_function(init, known.init):
        raise NamedMeshError(
            f"variable {full_name} exists already with another initializer",
            f"before: {known.dtype}{known.shape} at {known.tensor.source}: "
            f"{known.tensor.source.code}",
            fix="give the new one its own name or nm.scope, or leave its init out for the one "
            "that exists",
        )
    deal = trace.deal
    if deal and deal.layers in stacks and full_name not in deal.tensors:
        with recording(deal.home):
            deal.tensors[full_name] = deal.split(view_from(deal.home, full_name, known.tensor))
    return view_from(trace, full_name, known.tensor)


def _check_arguments(name: str, init: Initializer) -> None:
    """Raise for an initializer that does not take what it is called with."""
    try:
        signature = inspect.signature(init)
        signature.bind("key", "shape", "dtype")
    except TypeError:
        called = f"{getattr(init, '__name__', init)}({', '.join(signature.parameters)})"
        raise NamedMeshError(
            f"variable {name}: its initializer {called} does not take a key, a shape and a dtype",
            fix="call what makes initializers, e.g. nm.normal_init(0.1), or define one as "
            "init(key, shape, dtype)",
        ) from None
    except ValueError:  # Python does not know the arguments of all functions
        return


def _same_function(one: Any, other: Any) -> bool:
    """Return whether two initializers, or values that they use, are the same as far as known."""
    try:
        if isinstance(one, FunctionType) and isinstance(other, FunctionType):
            mine, theirs = map(_values_in, (one, other))
            return one.__code__ == other.__code__ and all(map(_same_function, mine, theirs))
        return bool(np.all(one == other)) or (callable(one) and type(one) is type(other))
    except Exception:  # values that cannot be compared are not known to differ
        return True


def _values_in(function: FunctionType) -> list[Any]:
    """Return the values that a function was made with."""
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return cells + list(function.__defaults__ or ())


def _from_seed(
    name: str, shape: Shape, dtype: str, init: Initializer, source: Source
) -> Callable[[Tensor], Tensor]:
    """Return the function from a seed to a first value, which checks what init returns."""

    def initialize(seed: Tensor) -> Tensor:
        key = random.fold_in_name(random.key_from_seed(seed), name)
        value = init(key, shape, dtype)
        tensor = isinstance(value, Tensor)
        result = f"{value.dtype}{value.shape}" if tensor else describe_type(value)
        if not tensor or result != f"{dtype}{shape}":
            problem = f"the initializer of {name} made {result}, not {dtype}{shape}"
            fix = "return a tensor of the shape and dtype the initializer is called with"
            raise NamedMeshError(problem, fix=fix, source=source)
        return value

    return initialize


def _stack_dims(trace: Trace) -> list[Dimension]:
    """Return the dimensions along which variables are stacked here, the outermost first."""
    outer = _stack_dims(trace.parent) if trace.parent else []
    dims, deal = outer + ([trace.stack] if trace.stack else []), trace.deal
    if deal and tuple(dims[-len(deal.dims) :]) == deal.dims:
        return [*dims[: -len(deal.dims)], deal.layers]
    return dims


def view_from(trace: Trace, name: str, whole: Tensor) -> Tensor:
    """Return a variable as a loop body sees it: the slice of its iteration."""
    if trace.deal and trace.deal.home is trace and name in trace.deal.tensors:
        return trace.deal.tensors[name]
    if trace.parent is None:
        return whole
    outer = view_from(trace.parent, name, whole)
    if trace.stack is None:
        return outer
    if name not in trace.stacked:
        shape = outer.shape.without(trace.stack.name)
        trace.stacked[name] = (outer, trace.placeholder(shape, outer.dtype, name))
    return trace.stacked[name][1]


def _find_variable(what: str, tensor: Tensor) -> Variable:
    """Return the variable whose value a tensor is, or raise."""
    variables = current(what).root.variables
    for variable in variables.values():
        if variable.tensor is tensor:
            return variable
    label = tensor.label if isinstance(tensor, Tensor) else format_value(tensor)
    if any(tensor is slice_ for _, slice_ in current(what).stacked.values()):
        problem = f"{what}: {label} is one iteration's slice of a variable that the loop stacks"
        fix = "return its next value from the body; the outermost function alone assigns"
        raise NamedMeshError(problem, str(tensor), fix=fix)
    raise NamedMeshError(
        f"{what}: {label} is not a variable",
        *([str(tensor)] if isinstance(tensor, Tensor) else []),
        fix="pass the tensor that nm.param or nm.state returned"
        + (f"; {did_you_mean(label, variables)}" if variables else ""),
    )


def parameters(trainable: bool | None = True) -> dict[str, Tensor]:
    """Return the parameters made so far, by name, scopes included.

    Args:
        trainable: True for those that are trained, False for those made with `trainable=False`,
            None for all of them.

    Example:
        >>> nm.evaluate(lambda: [nm.param("w", []), nm.parameters()][1])
        {'w': array(0., dtype=float32)}
    """
    if trainable is not None:
        check_flag("parameters: trainable", trainable)
    variables = current("parameters").root.variables
    roles = {None: ("param", "frozen"), True: ("param",), False: ("frozen",)}[trainable]
    return ByName({name: one.tensor for name, one in variables.items() if one.role in roles})


def assign(variable: Tensor, value: Operand) -> None:
    """Set a variable's value for the next step; its value in this step does not change.

    The outermost function assigns, and the body of `nm.scan(..., stack=True)` the slice of its
    iteration; return the value from other loop bodies, and from branches.

    Args:
        variable: What `nm.param` or `nm.state` returned.
        value: A tensor with the variable's dimensions, in any order, and its dtype, or a number.

    Example:
        >>> list(nm.trace(lambda: nm.assign(nm.state("steps", []), 1.0)).updates)
        ['steps']
    """
    trace = current("assign")
    if trace.stack is not None and _assign_slice(trace, variable, value):
        return
    target = _find_variable("assign", variable)
    if trace is not trace.root:
        problem = f"assign: {target.name} is assigned inside a loop body or branch"
        fix = "return the value and assign it outside"
        raise NamedMeshError(problem, str(target.tensor), fix=fix)
    tensor = as_tensor("assign", value, target.tensor)
    if {*tensor.shape} != {*target.shape} or tensor.dtype != target.dtype:
        raise NamedMeshError(
            f"assign: {target.name} is {target.dtype}{target.shape}, "
            f"the value {tensor.dtype}{tensor.shape}",
            fix="give it the variable's dimensions and dtype, e.g. with nm.cast",
        )
    if target.name in trace.updates:
        first = trace.assigned[target.name]
        raise NamedMeshError(
            f"assign: {target.name} is assigned twice in one step",
            str(target.tensor),
            f"first at {first}: {first.code}",
            fix="assign the final value once",
        )
    trace.assigned[target.name] = caller()
    trace.updates[target.name] = transpose(trace.bring(tensor), target.shape)


OPERATORS["assign"] = assign


def _assign_slice(trace: Trace, variable: Tensor, value: Operand) -> bool:
    """Set the next value of a slice of a stacked variable; return whether it is one."""
    for name, (_, own) in trace.stacked.items():
        if own is variable:
            tensor = as_tensor("assign", value, own)
            unlike = {*tensor.shape} != {*own.shape} or tensor.dtype != own.dtype
            if unlike or name in trace.next_slices:
                raise NamedMeshError(
                    f"assign: {name} is assigned twice, or not like itself",
                    str(own),
                    str(tensor),
                    fix="assign one value of the slice's dimensions and dtype",
                )
            around = trace.parent
            while around is not None and around is not around.root:
                if around.stack is None:
                    raise NamedMeshError(
                        f"assign: {name} is a slice of a stack in a loop body or branch",
                        str(own),
                        fix="stack layers in the outermost function, and not in a pipeline",
                    )
                around = around.parent
            trace.next_slices[name] = transpose(tensor, own.shape)
            return True
    return False


@contextlib.contextmanager
def update_in_loops() -> Iterator[None]:
    """Return a context manager in which assigned values are computed inside loops where possible.

    Layers in a loop are then updated while the backward loop runs: no gradient outlives it.

    Example:
        >>> L, M = nm.dims("layer=3 model=4")
        >>> def step(x):
        ...     layer = lambda x, _: (nm.sin(x * nm.param("w", [M])), None)
        ...     loss = nm.sum(nm.scan(layer, x, over=L, stack=True)[0])
        ...     with nm.update_in_loops():
        ...         for name, w in nm.parameters().items():
        ...             nm.assign(w, w - 0.1 * nm.grad(loss, w))
        >>> nm.trace(step, nm.spec([M])).ops[-1].kind
        'scan'
    """
    root = current("update_in_loops").root
    before = {*root.updates}
    yield
    root.updated_in_loops |= root.updates.keys() - before


def scope(name: str) -> contextlib.AbstractContextManager[None]:
    """Return a context manager that prefixes the names of variables and ops made within it.

    Args:
        name: The prefix, an identifier. Scopes nest.

    Example:
        >>> def network():
        ...     with nm.scope("layer_0"):
        ...         return nm.param("b", [])
        >>> list(nm.trace(network).parameters)
        ['layer_0/b']
    """
    check_identifier(name, "scope")
    return _enter_scope(name)


@contextlib.contextmanager
def _enter_scope(name: str) -> Iterator[None]:
    """Enter the scope when the block is entered; the name is checked before."""
    with current("scope").in_scope(name):
        yield


Dims = Dimension | Sequence[Dimension]
Initializer = Callable[[Tensor, Shape, str], Tensor]
"""Makes a variable's first value from a random key, its shape and its dtype.

Example:
    >>> ramp = lambda key, shape, dtype: nm.range(shape[0], dtype)
    >>> nm.evaluate(lambda: nm.param("w", nm.dims("model=3"), init=ramp))
    array([0., 1., 2.], dtype=float32)
"""


def constant_init(value: float) -> Initializer:
    """Return an initializer that fills a variable with one number.

    Args:
        value: The number.

    Example:
        >>> nm.evaluate(lambda: nm.param("gain", nm.dims("model=2"), init=nm.constant_init(1.0)))
        array([1., 1.], dtype=float32)
    """
    return lambda key, shape, dtype: full(shape, value, dtype)


def from_array(array: Any) -> Initializer:
    """Return an initializer that starts a variable as an array."""
    return lambda key, shape, dtype: constant(array, shape, dtype)


def normal_init(stddev: float) -> Initializer:
    """Return an initializer of normally distributed numbers around zero.

    Args:
        stddev: Their standard deviation.

    Example:
        >>> w = nm.evaluate(lambda: nm.param("w", nm.dims("sample=1000"), init=nm.normal_init(0.5)))
        >>> bool(0.4 < w.std() < 0.6)
        True
    """
    return lambda key, shape, dtype: random.normal(key, shape, stddev=stddev, dtype=dtype)


def uniform_init(limit: float) -> Initializer:
    """Return an initializer of numbers evenly spread from -`limit` to `limit`.

    Args:
        limit: The bound, greater than 0.

    Example:
        >>> w = nm.evaluate(lambda: nm.param("w", nm.dims("sample=9"), init=nm.uniform_init(0.5)))
        >>> bool(abs(w).max() <= 0.5)
        True
    """
    bound = check_number("uniform_init: limit", limit, "float32")
    if not bound > 0:
        raise NamedMeshError(f"uniform_init: limit={bound} is not above 0", fix="give a bound")
    return lambda key, shape, dtype: random.uniform(key, shape, -bound, bound, dtype)


def truncated_normal_init(stddev: float) -> Initializer:
    """Return an initializer of normal numbers, cut off at 2.27 standard deviations.

    Args:
        stddev: Their standard deviation.

    Example:
        >>> init = nm.truncated_normal_init(1.0)
        >>> bool(abs(nm.evaluate(lambda: nm.param("w", nm.dims("sample=9"), init))).max() < 2.28)
        True
    """
    number = check_number("truncated_normal_init: stddev", stddev, "float32")
    wide = number / 0.87962566103423978  # cut at two of its own, a normal distribution has less
    return lambda key, shape, dtype: random.truncated_normal(key, shape, stddev=wide, dtype=dtype)


def glorot_init(fan_in: Dims, fan_out: Dims, uniform: bool = True) -> Initializer:
    """Return Glorot's initializer, of variance 2 / (fan_in + fan_out).

    Args:
        fan_in: One dimension or several that the product with the weight sums over.
        fan_out: The dimensions that the product makes.
        uniform: Draw evenly spread numbers in place of normally distributed ones.

    Example:
        >>> M, H = nm.dims("model=100 hidden=60")
        >>> bool(nm.evaluate(lambda: nm.param("w", [M, H], nm.glorot_init(M, H))).std() < 0.12)
        True
    """
    variance = 2.0 / (_count("glorot_init", fan_in) + _count("glorot_init", fan_out))
    return uniform_init(math.sqrt(3.0 * variance)) if uniform else normal_init(math.sqrt(variance))


def he_init(*fan_in: Dimension) -> Initializer:
    """Return He's initializer for weights before a ReLU: `nm.fan_in_init` with a scale of 2.

    Args:
        *fan_in: The dimensions that the product with the weight sums over.

    Example:
        >>> M, H = nm.dims("model=100 hidden=50")
        >>> bool(0.13 < nm.evaluate(lambda: nm.param("w", [M, H], nm.he_init(M))).std() < 0.15)
        True
    """
    return fan_in_init(*fan_in, scale=2.0)


def orthogonal_init(rows: Dims, columns: Dims, scale: float = 1.0) -> Initializer:
    """Return an initializer of orthogonal matrices, one for each element of other dimensions.

    Args:
        rows: One dimension or several: one side of the matrix.
        columns: Those of the other side.
        scale: The length of the vectors.

    Example:
        >>> M, H = nm.dims("model=8 hidden=4")
        >>> w = nm.evaluate(lambda: nm.param("w", [M, H], init=nm.orthogonal_init(M, H)))
        >>> bool(abs(w[:, 0] @ w[:, 1]) < 1e-5)
        True
    """
    what = "orthogonal_init"
    sides = [[check_dimension(what, dim) for dim in as_tuple(side)] for side in (rows, columns)]
    factor = check_number(f"{what}: scale", scale, "float32")
    short = min(sides, key=lambda side: Shape(side).elements)

    def initialize(key: Tensor, shape: Shape, dtype: str) -> Tensor:
        drawn = random.normal(key, shape)
        check_has_dims(what, drawn, *sides[0], *sides[1])
        batch = [dim for dim in shape if dim not in (*sides[0], *sides[1])]
        twins = [name_apart(dim, "twin", drawn) for dim in short]

        def improve(matrix: Tensor, _: None) -> tuple[Tensor, None]:
            twin = rename(matrix, dict(zip(short, twins, strict=True)))
            gram = einsum([matrix, twin], [*batch, *short, *twins])
            return 1.5 * matrix - 0.5 * einsum([gram, twin], shape), None

        length = sum(square(drawn), [*sides[0], *sides[1]])
        matrix, _ = scan(improve, drawn * rsqrt(length), over=Dimension("iteration", 48))
        return cast(matrix * factor, dtype)

    return initialize


def _count(what: str, dims: Dims) -> int:
    """Multiply the sizes of one dimension or several."""
    return math.prod(check_dimension(what, dim).size for dim in as_tuple(dims))


def fan_in_init(*fan_in: Dimension, scale: float = 1.0) -> Initializer:
    """Return an initializer of normal numbers of variance `scale` / (size of `fan_in`).

    Args:
        *fan_in: The dimensions that the product with the weight sums over.
        scale: A factor of the variance.

    Example:
        >>> M, H = nm.dims("model=100 hidden=50")
        >>> bool(0.09 < nm.evaluate(lambda: nm.param("w", [M, H], nm.fan_in_init(M))).std() < 0.11)
        True
    """
    factor = check_number("fan_in_init: scale", scale, "float32")
    if not 0.0 <= factor < math.inf:
        raise NamedMeshError(
            f"fan_in_init: scale={factor} is not a variance", fix="give a number from 0.0"
        )
    return normal_init(math.sqrt(factor / _count("fan_in_init", fan_in)))
