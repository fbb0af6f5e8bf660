"""A derivative of the user's own, and any TensorFlow function as a named op."""

from __future__ import annotations

import dataclasses
import functools
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any, Self, overload

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError, join_names, name_all
from namedmesh.errors.source import Source, caller
from namedmesh.ir.context import Context, import_tensorflow
from namedmesh.ir.format import count_noun, describe_type, format_value
from namedmesh.ir.interface import InputSpec
from namedmesh.ir.literal import as_tensor
from namedmesh.ir.op import Op, with_dim
from namedmesh.ir.operands import as_tuple, check_callable, check_dimension
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import Operand, Tensor
from namedmesh.ops.broadcast import group_by_missing, sum
from namedmesh.ops.recompute import PassThrough
from namedmesh.ops.shape import transpose
from namedmesh.ops.vmap import vmap
from namedmesh.signature.nest import flatten, unflatten

Dims = Sequence[Dimension]


class CustomVjp(PassThrough):
    """Results, arguments and residuals: the results passed on, with the user's own derivative."""

    own_backward = True
    arguments: int
    residuals: Any
    structure: Any
    backward: Callable[..., Any]
    declared: Source

    kind = "custom_vjp"

    def vjp(self, *cotangents: Tensor) -> list[Tensor | None]:
        arguments = self.inputs[self.count : self.count + self.arguments]
        saved = unflatten(self.residuals, iter(self.inputs[self.count + self.arguments :]))
        several = as_list(self.backward(saved, unflatten(self.structure, iter(cotangents))))
        if len(several) != self.arguments:
            raise self.error(
                f"the backward function returned {count_noun(len(several), 'cotangent')} "
                f"for {count_noun(self.arguments, 'argument')}",
                *map(str, arguments),
                f"declared at {self.declared}: {self.declared.code}",
                fix="return one cotangent (or None) for each argument of the function, in order",
            )
        pairs = [
            (None if dx is None else as_tensor("custom_vjp", dx, x), x)
            for dx, x in zip(several, arguments, strict=True)
        ]
        unlike = {
            str(x): f"cotangent of {x.label} is {dx.dtype}{dx.shape}"
            for dx, x in pairs
            if dx is not None and ({*dx.shape} != {*x.shape} or dx.dtype != x.dtype)
        }
        if unlike:
            raise self.error(
                f"the backward function's {'; its '.join(unlike.values())}",
                *unlike,
                f"declared at {self.declared}: {self.declared.code}",
                fix="give it the shape and dtype of its argument",
            )
        gradients = [None if dx is None else transpose(dx, x.shape) for dx, x in pairs]
        rest = len(self.inputs) - self.count - self.arguments
        return [*[None] * self.count, *gradients, *[None] * rest]

    def vmap(self, inputs: tuple[Tensor, ...], over: Dimension) -> Sequence[Tensor]:
        count, last = self.count, self.count + self.arguments
        pairs = zip(inputs[:count], self.inputs, strict=False)
        results = [with_dim(x, over, old.shape) for x, old in pairs]

        def backward(saved: Any, dy: Any) -> list[Tensor | None]:
            present: list[bool] = []  # arguments that have a cotangent

            def alone(saved: Any, dy: Any) -> list[Tensor]:
                returned = as_list(self.backward(saved, dy))
                present.extend(one is not None for one in returned)
                return [one for one in returned if one is not None]

            cotangents = iter(vmap(alone, over)(saved, dy))
            gradients: list[Tensor | None] = []
            triples = zip(present, inputs[count:last], self.inputs[count:last], strict=True)
            for exists, x, old in triples:
                dx = next(cotangents) if exists else None
                if dx is not None and over not in x.shape:  # all elements share the argument
                    dx = transpose(sum(dx, over), old.shape)
                gradients.append(dx)
            return gradients

        inputs = (*results, *inputs[count:])
        return dataclasses.replace(self, inputs=inputs, backward=backward).outputs


def as_list(returned: Any) -> list[Any]:
    """Return what a backward function returned, one cotangent or several, as a list."""
    return list(returned) if isinstance(returned, (tuple, list)) else [returned]


def custom_vjp(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with a derivative of its own.

    Args:
        forward: Called with tensors; return (result, residuals), both nested as you like. The
            residuals are the tensors that the backward function needs; None for none.
        backward: Called with the residuals and the cotangent of the result; return a cotangent, or
            None, for each argument of `forward`: a tuple or list where there are several.

    Example:
        >>> M = nm.Dimension("model", 2)
        >>> clip_gradient = nm.custom_vjp(
        ...     lambda x: (x, None),
        ...     lambda residuals, dy: nm.clip(dy, -1.0, 1.0),
        ... )
        >>> def slope(x):
        ...     return nm.grad(nm.sum(clip_gradient(x) * 5.0), x)
        >>> nm.evaluate(slope, x=([M], [2.0, 3.0]))
        array([1., 1.], dtype=float32)
    """
    check_callable("custom_vjp", forward, backward)
    declared = caller()

    def function(*arguments: Operand) -> Any:
        tensors = tuple(as_tensor("custom_vjp", argument) for argument in arguments)
        pair = forward(*tensors)
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise NamedMeshError(
                "custom_vjp: forward did not return (result, residuals)",
                *map(str, tensors),
                f"declared at {declared}: {declared.code}",
                fix="return (result, residuals); residuals may be None",
            )
        structure, residuals = pair
        results = [as_tensor("custom_vjp", leaf) for leaf in flatten(structure)]
        saved = [as_tensor("custom_vjp", leaf) for leaf in flatten(residuals)]
        inputs = (*results, *tensors, *saved)
        outputs = CustomVjp(
            inputs, len(results), len(tensors), residuals, structure, backward, declared
        ).outputs
        return unflatten(structure, iter(outputs))

    return function


def place_batch(op: Op, batch: Dims, summed: Dims = ()) -> Placement:
    """Return what an op asks that takes shards of some dimensions, and results summed over some."""
    names = {name for tensor in (*op.inputs, *op.outputs) for name in tensor.shape.names}
    whole = names.difference(dim.name for dim in batch)
    return Placement(whole=whole, reduced=[dim.name for dim in summed if dim.name in names])


def find_read_by_tensorflow(
    function: Callable[..., Any], operands: Sequence[Tensor]
) -> list[set[int]] | None:
    """Return the operands that each result of a TensorFlow function is made of, None if unknown."""
    tf = import_tensorflow()
    eager = tf.config.functions_run_eagerly()
    try:
        tf.config.run_functions_eagerly(True)  # what decorated functions do is part of the graph
        with tf.Graph().as_default():
            arguments = [tf.compat.v1.placeholder(x.dtype, x.shape.sizes) for x in operands]
            results = list(map(tf.convert_to_tensor, tf.nest.flatten(function(*arguments))))
    except Exception:  # it is not for graphs, or wrong: that is told when it is lowered
        return None
    finally:
        tf.config.run_functions_eagerly(eager)
    numbers = {argument.op: i for i, argument in enumerate(arguments)}
    read = []
    for result in results:
        seen, pending = {result.op}, [result.op]
        while pending:
            op = pending.pop()
            before = {*(tensor.op for tensor in op.inputs), *op.control_inputs}.difference(seen)
            seen |= before
            pending += before
        read.append({numbers[op] for op in seen if op in numbers})
    return read


_FIX = "fix the function that nm.call_tf calls; devices run what XLA can compile"


class Foreign(Op):
    """A call of a function that may ignore arguments: those are zeros, and no operands."""

    # The arguments that were operands before: position, shape and dtype.
    _: dataclasses.KW_ONLY
    ignored: tuple[tuple[int, Shape, str], ...] = ()

    def fill_in(self, context: Context, values: Sequence[Any]) -> list[Any]:
        """Return all arguments, given the values of those that are operands."""
        arguments = list(values)
        for position, shape, dtype in self.ignored:
            zeros = context.tf.zeros(context.sizes(shape), context.dtype(dtype))
            arguments.insert(position, zeros)
        return arguments

    def drop_operands(self, ignored: Collection[int]) -> Self:
        dropped = [(i, self.inputs[i].shape, self.inputs[i].dtype) for i in sorted(ignored)]
        inputs = tuple(x for i, x in enumerate(self.inputs) if i not in ignored)
        shorter = self.rebuild(inputs=inputs, ignored=tuple(dropped))
        vars(shorter).pop("read_operands", None)  # which counts the operands of before
        return shorter


class TfFunction(Foreign):
    """A TensorFlow function; dimensions in batch may be split, all others are whole."""

    manual = True
    lowering_fix = _FIX
    batch: tuple[Dimension, ...]

    @abstractmethod
    def call(self, *values: Any) -> list[Any]:
        """Call the function, and return a list whatever it returns."""

    def vjp(self, *cotangents: Tensor) -> list[Tensor | None]:
        gradients: dict[int, Tensor] = {}
        inputs = (*self.inputs, *cotangents)
        for missing, wanted in group_by_missing(self.inputs, self.batch).items():
            results = TfVjp(inputs, self.batch, self, tuple(wanted), missing).outputs
            gradients.update(zip(wanted, results, strict=True))
        return [gradients.get(i) for i in range(len(self.inputs))]

    @functools.cached_property
    def read_operands(self) -> Sequence[set[int]] | None:
        if self.ignored:
            return None
        read = find_read_by_tensorflow(self.call, self.inputs) or ()
        return read if len(read) == len(self.outputs) else None  # other results: told by lower()


class TfCall(TfFunction):
    """A TensorFlow function of the user."""

    function: Callable[..., Any]
    specs: tuple[InputSpec, ...]

    kind = "call_tf"

    def results(self) -> list[tuple[Shape, str]]:
        return [(one.shape, one.dtype) for one in self.specs]

    def lower(self, context: Context, *values: Any) -> Any:
        results = self.call(*self.fill_in(context, values))
        made = [
            f"{one.dtype.name}{one.shape.as_list()}"
            if context.tf.is_tensor(one)
            else describe_type(one)
            for one in results
        ]
        expected = [f"{one.dtype}{context.sizes(one.shape)}" for one in self.specs]
        if made != expected:
            raise self.error(
                f"the function made {', '.join(made)}, not {', '.join(expected)}",
                *map(str, self.inputs),
                fix="give an nm.spec in result= for each tensor that the function makes, in order",
            )
        return results

    def call(self, *values: Any) -> list[Any]:
        return import_tensorflow().nest.flatten(self.function(*values))

    def placement(self) -> Placement:
        return place_batch(self, self.batch)


class TfVjp(TfFunction):
    """TensorFlow's gradient of a function in some arguments, summed over batch dims they lack."""

    # Not linear in the cotangents: the function may have a tf.custom_gradient of any kind.
    of: TfFunction
    wanted: tuple[int, ...]
    summed: tuple[Dimension, ...]

    kind = "call_tf_vjp"

    def results(self) -> list[tuple[Shape, str]]:
        arguments = self.of.inputs
        return [(arguments[i].shape, arguments[i].dtype) for i in self.wanted]

    def lower(self, context: Context, *values: Any) -> Any:
        function = functools.partial(self.of.lower, context)
        return self._differentiate(function, self.fill_in(context, values))

    def call(self, *values: Any) -> list[Any]:
        return self._differentiate(self.of.call, values)

    def _differentiate(self, function: Callable[..., Any], values: Sequence[Any]) -> list[Any]:
        """Return the gradients of the function in the wanted arguments."""
        tf, count = import_tensorflow(), len(self.of.inputs)
        watched = [values[i] for i in self.wanted]
        with tf.GradientTape() as tape:
            tape.watch(watched)
            results = function(*values[:count])
        pairs = zip(results, values[count:], strict=True)
        floating = [(y, dy) for y, dy in pairs if y.dtype.is_floating]
        gradients = tape.gradient(
            [y for y, _ in floating],
            watched,
            [dy for _, dy in floating],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return [tf.convert_to_tensor(gradient) for gradient in gradients]

    def placement(self) -> Placement:
        return place_batch(self, self.batch, self.summed)


@overload
def call_tf(
    function: Callable[..., Any], *tensors: Operand, result: InputSpec, batch: Dims = ()
) -> Tensor: ...


@overload
def call_tf(
    function: Callable[..., Any], *tensors: Operand, result: Sequence[InputSpec], batch: Dims = ()
) -> tuple[Tensor, ...]: ...


def call_tf(
    function: Callable[..., Any],
    *tensors: Operand,
    result: InputSpec | Sequence[InputSpec],
    batch: Sequence[Dimension] = (),
) -> Tensor | tuple[Tensor, ...]:
    """Return what any TensorFlow function makes; TensorFlow differentiates it.

    All dimensions but those in `batch` are made whole first. Prefer named ops where they exist:
    what a TensorFlow function does is not seen by the plan.

    Args:
        function: Takes TensorFlow tensors whose dimensions come in the order of the named ones.
        *tensors: The named tensors it is called with.
        result: The dimensions and dtype of what it returns: an `nm.spec`, or a list of them.
        batch: Dimensions that may stay sharded: the function sees one device's shard of them, and
            must treat their elements independently of each other.

    Example:
        >>> import tensorflow as tf
        >>> M = nm.Dimension("model", 2)
        >>> def flip(x):
        ...     return nm.call_tf(lambda value: tf.reverse(value, [0]), x, result=nm.spec([M]))
        >>> nm.evaluate(flip, x=([M], [1.0, 2.0]))
        array([2., 1.], dtype=float32)
    """
    check_callable("call_tf", function)
    operands = tuple(as_tensor("call_tf", tensor) for tensor in tensors)
    specs = check_specs("call_tf", operands, result)
    split = check_batch_dims("call_tf", operands, specs, batch)
    outputs = TfCall(operands, split, function, specs).outputs
    return outputs[0] if isinstance(result, InputSpec) else outputs


def check_specs(
    what: str, operands: Sequence[Tensor], result: InputSpec | Sequence[InputSpec]
) -> tuple[InputSpec, ...]:
    """Return the specs of what a function makes, or raise."""
    specs = as_tuple(result)
    if not specs or not all(isinstance(one, InputSpec) for one in specs):
        raise NamedMeshError(
            f"{what}: result={format_value(result)} is not a spec",
            *map(str, operands),
            fix="describe what the function makes, e.g. result=nm.spec([B, M])",
        )
    return specs


def check_batch_dims(
    what: str,
    operands: Sequence[Tensor],
    specs: Sequence[InputSpec],
    batch: Dimension | Sequence[Dimension],
) -> tuple[Dimension, ...]:
    """Return the dimensions that may stay sharded for a function, or raise."""
    split = tuple(check_dimension(what, dim, *operands) for dim in as_tuple(batch))
    unknown = [dim.name for dim in split if not any(dim in x.shape for x in operands)]
    missing = [dim.name for dim in split if any(dim not in one.shape for one in specs)]
    if unknown or missing:
        subject = "no tensor has" if unknown else "a result lacks"
        raise NamedMeshError(
            f"{what}: {subject} the batch {name_all('dimension', unknown or missing)}",
            *map(str, operands),
            *(f"result: {one.shape}" for one in specs),
            fix=f"leave {join_names(unknown or missing)} out of batch=",
        )
    return split
