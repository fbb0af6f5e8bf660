"""Ops of the user's own: a derivative of one's own, and any TensorFlow function as a named op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension
from namedmesh.dims.errors import NamedMeshError
from namedmesh.dims.source import Source, caller
from namedmesh.ir.context import Context
from namedmesh.ir.format import count_noun, format_value
from namedmesh.ir.interface import InputSpec
from namedmesh.ir.literal import as_tensor
from namedmesh.ir.nest import flatten, unflatten
from namedmesh.ir.op import Op, Placement
from namedmesh.ir.operands import as_tuple, check_callable, check_dimension
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.manual import grouped_by_lack
from namedmesh.ops.shape import transpose


class CustomVjp(Op):
    """Results passed on as they are, whose cotangents go to the user's own backward function."""

    elementwise = True
    rule = "pass_through"
    count: int  # results first, then the arguments, then the residuals
    arguments: int
    residuals: Any
    structure: Any
    backward: Callable[..., Any]
    declared: Source

    @property
    def kind(self) -> str:
        return "custom_vjp"

    def results(self):
        return [(x.shape, x.dtype) for x in self.inputs[: self.count]]

    def lower(self, context: Context, *values: Any) -> Any:
        return [context.tf.identity(value) for value in values[: self.count]]

    def vjp(self, *cotangents: Tensor) -> list[Tensor | None]:
        arguments = self.inputs[self.count : self.count + self.arguments]
        saved = unflatten(self.residuals, iter(self.inputs[self.count + self.arguments :]))
        made = self.backward(saved, unflatten(self.structure, iter(cotangents)))
        made = list(made) if isinstance(made, (tuple, list)) else [made]
        if len(made) != self.arguments:
            raise self.error(
                f"the backward function returned {count_noun(len(made), 'cotangent')} for {count_noun(self.arguments, 'argument')}",
                *map(str, arguments),
                f"declared at {self.declared}: {self.declared.code}",
                fix="return one cotangent (or None) for each argument of the function, in order",
            )
        made = [
            None if dx is None else as_tensor("custom_vjp", dx, x)
            for dx, x in zip(made, arguments, strict=True)
        ]
        for dx, x in zip(made, arguments, strict=True):
            if dx is not None and ({*dx.shape} != {*x.shape} or dx.dtype != x.dtype):
                raise self.error(
                    f"the backward function's cotangent of {x.label} is {dx.dtype}{dx.shape}",
                    str(x),
                    f"declared at {self.declared}: {self.declared.code}",
                    fix="give it the shape and dtype of its argument",
                )
        made = [
            None if dx is None else transpose(dx, x.shape)
            for dx, x in zip(made, arguments, strict=True)
        ]
        return (
            [None] * self.count + made + [None] * (len(self.inputs) - self.count - self.arguments)
        )


def custom_vjp(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a function a derivative of its own.

    Args:
        forward: Called with tensors; returns (result, residuals), both nested as you like. The
            residuals are the tensors that the backward function needs; None for none.
        backward: Called with the residuals and the cotangent of the result; returns a cotangent, or
            None, for each argument of `forward`: a tuple or list where there are several.

    Returns:
        A function of the arguments of `forward` that returns its result.

    Raises:
        NamedMeshError: `forward` does not return a pair, or `backward` returns too many or too few
            cotangents, or some of another shape or dtype than the argument. This is raised when the
            function is called or differentiated.

    Example:
        >>> import namedmesh as nm
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

    def function(*arguments):
        tensors = tuple(as_tensor("custom_vjp", argument) for argument in arguments)
        made = forward(*tensors)
        if not isinstance(made, tuple) or len(made) != 2:
            raise NamedMeshError(
                "custom_vjp: forward did not return (result, residuals)",
                *map(str, tensors),
                f"declared at {declared}: {declared.code}",
                fix="return (result, residuals); residuals may be None",
            )
        structure, residuals = made
        results, saved = (
            [as_tensor("custom_vjp", leaf) for leaf in flatten(part)] for part in made
        )
        inputs = (*results, *tensors, *saved)
        outputs = CustomVjp(
            inputs, len(results), len(tensors), residuals, structure, backward, declared
        ).outputs
        return unflatten(structure, iter(outputs))

    return function


class TfCall(Op):
    """A TensorFlow function of positional tensors; dimensions in batch are left split, all others are whole."""

    manual = True
    function: Callable[..., Any]
    specs: tuple[InputSpec, ...]
    batch: tuple[Dimension, ...]

    @property
    def kind(self) -> str:
        return "call_tf"

    def results(self):
        return [(one.shape, one.dtype) for one in self.specs]

    def lower(self, context: Context, *values: Any) -> Any:
        tf = context.tf
        results = tf.nest.flatten(self.function(*values))
        if len(results) != len(self.specs):
            raise self.error(
                f"the function returned {count_noun(len(results), 'tensor')}, expected {len(self.specs)}",
                *(f"expected: {format_value(one)}" for one in self.specs),
                fix="give one nm.spec in result= for each tensor it makes",
            )
        for value, one in zip(results, self.specs, strict=True):
            if value.shape.as_list() != context.sizes(one.shape) or value.dtype != tf.as_dtype(
                one.dtype
            ):
                raise self.error(
                    f"the function made {value.dtype.name}{value.shape.as_list()}, not {one.dtype}{one.shape}",
                    *(
                        f"a device sees {context.size(d)} of {d} (batch=)"
                        for d in one.shape
                        if context.size(d) != d.size
                    ),
                    fix="give the shape and dtype it makes, in order, as nm.spec",
                )
        return results

    def vjp(self, *cotangents: Tensor):
        found: dict[int, Tensor] = {}
        for lacking, wanted in grouped_by_lack(self.inputs, self.batch).items():
            made = TfVjp((*self.inputs, *cotangents), self, tuple(wanted), lacking).outputs
            found.update(zip(wanted, made, strict=True))
        return [found.get(i) for i in range(len(self.inputs))]

    def placement(self) -> Placement:
        batch = {dim.name for dim in self.batch}
        named = {name for tensor in (*self.inputs, *self.outputs) for name in tensor.shape.names}
        return Placement(whole=frozenset(named - batch))


class TfVjp(Op):
    """TensorFlow's own gradient of a TensorFlow function, in arguments that lack the batch dimensions in summed."""

    manual = True
    of: TfCall
    wanted: tuple[int, ...]
    summed: tuple[Dimension, ...]

    @property
    def kind(self) -> str:
        return "call_tf_vjp"

    def results(self):
        return [(self.inputs[i].shape, self.inputs[i].dtype) for i in self.wanted]

    def lower(self, context: Context, *values: Any) -> Any:
        tf = context.tf
        count = len(self.of.inputs)
        watched = [values[i] for i in self.wanted]
        with tf.GradientTape() as tape:
            tape.watch(watched)
            results = tf.nest.flatten(self.of.function(*values[:count]))
        kept = [
            (y, dy) for y, dy in zip(results, values[count:], strict=True) if y.dtype.is_floating
        ]
        results, seeds = [y for y, _ in kept], [dy for _, dy in kept]
        made = tape.gradient(
            results, watched, seeds, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return [tf.convert_to_tensor(one) for one in made]

    def placement(self) -> Placement:
        return Placement(
            self.of.placement().whole, reduced=frozenset(dim.name for dim in self.summed)
        )


def call_tf(
    function: Callable[..., Any],
    *tensors: Tensor,
    result: InputSpec | Sequence[InputSpec],
    batch: Sequence[Dimension] = (),
) -> Any:
    """Calls any TensorFlow function as a named op, differentiated by TensorFlow.

    All dimensions but those in `batch` are made whole first. Prefer named ops where they exist:
    what a TensorFlow function does is not seen by the plan.

    Args:
        function: Takes TensorFlow tensors whose dimensions come in the order of the named ones.
        *tensors: The named tensors it is called with.
        result: The dimensions and dtype of what it returns: an `nm.spec`, or a list of them.
        batch: Dimensions that may stay split: the function sees one device's piece of them, and
            must treat their elements independently of each other.

    Returns:
        A tensor, or a tuple of them where `result` is a list.

    Raises:
        NamedMeshError: `result` holds no spec, or a batch dimension is in no tensor or is missing
            in a result. When the step is compiled: the function returns other shapes or dtypes.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> import tensorflow as tf
        >>> def flip(x):
        ...     return nm.call_tf(lambda value: tf.reverse(value, [0]), x, result=nm.spec([M]))
        >>> nm.evaluate(flip, x=([M], [1.0, 2.0]))
        array([2., 1.], dtype=float32)
    """
    check_callable("call_tf", function)
    given = tuple(as_tensor("call_tf", tensor) for tensor in tensors)
    specs = as_tuple(result)
    for one in specs:
        if not isinstance(one, InputSpec):
            raise NamedMeshError(
                f"call_tf: result={format_value(result)} is not a spec",
                *map(str, given),
                fix="describe what the function makes, e.g. result=nm.spec([B, M])",
            )
    split = tuple(check_dimension("call_tf", dim, *given) for dim in as_tuple(batch))
    for dim in split:
        if not any(dim in tensor.shape for tensor in given):
            raise NamedMeshError(
                f"call_tf: no tensor has the batch dimension {dim.name}",
                *map(str, given),
                fix=f"leave {dim.name} out of batch=",
            )
    for one in specs:
        for dim in split:
            if dim not in one.shape:
                raise NamedMeshError(
                    f"call_tf: a result lacks the batch dimension {dim.name}",
                    f"result: {one.shape}",
                    fix=f"leave {dim.name} out of batch=, so that the function sees all of it",
                )
    outputs = TfCall(given, function, specs, split).outputs
    return outputs[0] if isinstance(result, InputSpec) else outputs
