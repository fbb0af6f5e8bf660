"""Any jax function as a named op, Pallas kernels included: StableHLO that an Artifact carries."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any, overload

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.context import Context
from namedmesh.ir.format import count_noun, format_value
from namedmesh.ir.interface import InputSpec, spec
from namedmesh.ir.literal import as_tensor
from namedmesh.ir.op import Op
from namedmesh.ir.operands import check_callable
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import Operand, Tensor
from namedmesh.ops.broadcast import group_by_missing
from namedmesh.ops.custom import check_batch_dims, check_specs

CALL = "namedmesh_jax"  # as artifacts/foreign_code.py reads it
PLATFORMS = ("cpu", "cuda", "tpu")


class JaxCall(Op):
    """A jax function; dims in batch may be sharded; results are sums over those in summed."""

    manual = True
    late_sums = False
    function: Callable[..., Any]
    name: str
    specs: tuple[InputSpec, ...]
    batch: tuple[Dimension, ...]
    summed: tuple[Dimension, ...] = ()
    cotangents: int = 0  # in so many last operands it is linear: it is a derivative

    @property
    def linear_in(self) -> tuple[tuple[int, ...], ...]:
        count = len(self.inputs)
        return (tuple(range(count - self.cotangents, count)),) if self.cotangents else ()

    @property
    def kind(self) -> str:
        return "call_jax"

    def results(self) -> list[tuple[Shape, str]]:
        return [(one.shape, one.dtype) for one in self.specs]

    def lower(self, context: Context, *values: Any) -> Any:
        tf = context.tf
        made = [
            tf.TensorSpec(context.sizes(one.shape), context.dtype(one.dtype)) for one in self.specs
        ]
        if not context.compiled:
            return self._evaluate(tf, values, made)
        types = [(tuple(value.shape), value.dtype.as_numpy_dtype) for value in values]
        return context.xla.custom_call_v2(CALL, list(values), made, self._export(types))

    def _evaluate(self, tf: Any, values: Sequence[Any], made: Sequence[Any]) -> list[Any]:
        """Call the function itself, without TensorFlow knowing what it does."""
        import jax

        def call(*arrays: Any) -> list[Any]:
            return [jax.device_get(one) for one in self._call(*arrays)]

        results = tf.nest.flatten(
            tf.numpy_function(call, list(values), [one.dtype for one in made])
        )
        for result, one in zip(results, made, strict=True):
            result.set_shape(one.shape)
        return results

    def _call(self, *arrays: Any) -> list[Any]:
        """Call the function, and return a list whatever it returns."""
        import jax

        return jax.tree.leaves(self.function(*arrays))

    def _export(self, types: Sequence[tuple[tuple[int, ...], Any]]) -> str:
        """Write what the function is on every platform that jax can lower it for."""
        import jax

        arguments = [jax.ShapeDtypeStruct(sizes, dtype) for sizes, dtype in types]
        modules: dict[str, int] = {}
        code, missing = {}, {}
        for platform in PLATFORMS:
            export = jax.export.export(jax.jit(self._call, keep_unused=True), platforms=[platform])
            try:
                artifact = export(*arguments).mlir_module_serialized
            except Exception as error:  # jax and Pallas raise what they like
                missing[platform] = f"{type(error).__name__}: {str(error)[:300]}"
                continue
            text = base64.b64encode(artifact).decode()
            code[platform] = modules.setdefault(text, len(modules))
        if not code:
            raise self.error(
                f"jax cannot lower {self.name}",
                *(f"{platform}: {reason}" for platform, reason in missing.items()),
                fix="fix the function that nm.call_jax calls",
            )
        return json.dumps(
            {"name": self.name, "code": code, "missing": missing, "modules": list(modules)}
        )

    def vjp(self, *cotangents: Tensor) -> list[Tensor | None]:
        gradients: dict[int, Tensor] = {}
        for missing, group in group_by_missing(self.inputs, self.batch).items():
            wanted = [i for i in group if self.inputs[i].dtype in _FLOATING]
            if not wanted:
                continue
            results = JaxCall(
                (*self.inputs, *cotangents),
                _Derivative(self._call, len(self.inputs), tuple(wanted)),
                f"the derivative of {self.name}",
                tuple(spec(self.inputs[i].shape, self.inputs[i].dtype) for i in wanted),
                self.batch,
                missing,
                len(cotangents),
            ).outputs
            gradients.update(zip(wanted, results, strict=True))
        return [gradients.get(i) for i in range(len(self.inputs))]

    def vmap(self, inputs: tuple[Tensor, ...], over: Dimension) -> Sequence[Tensor]:
        axes = tuple(0 if over in x.shape else None for x in inputs)
        return JaxCall(
            inputs,
            _Mapped(self._call, axes),
            self.name,
            tuple(spec([over, *one.shape], one.dtype) for one in self.specs),
            (*self.batch, over),
            self.summed,
            self.cotangents,
        ).outputs

    def placement(self) -> Placement:
        batch = {dim.name for dim in self.batch}
        names = {name for tensor in (*self.inputs, *self.outputs) for name in tensor.shape.names}
        return Placement(whole=names - batch, reduced=[dim.name for dim in self.summed])


_FLOATING = ("float32", "bfloat16", "float16", "float64")


class _Mapped:
    """A jax function for every element along the first dimension of some arguments."""

    def __init__(self, function: Callable[..., list[Any]], axes: tuple[int | None, ...]):
        self._function, self._axes = function, axes

    def __call__(self, *values: Any) -> list[Any]:
        import jax

        return jax.vmap(self._function, self._axes)(*values)


class _Derivative:
    """The cotangents of some arguments of a jax function, given those of its results."""

    def __init__(self, function: Callable[..., list[Any]], count: int, wanted: tuple[int, ...]):
        self._function, self._count, self._wanted = function, count, wanted

    def __call__(self, *values: Any) -> list[Any]:
        import jax
        import jax.numpy as jnp

        arguments, cotangents = list(values[: self._count]), values[self._count :]

        def of_wanted(*some: Any) -> list[Any]:
            merged = list(arguments)
            for i, value in zip(self._wanted, some, strict=True):
                merged[i] = value
            results = self._function(*merged)
            return [one for one in results if jnp.issubdtype(one.dtype, jnp.floating)]

        _, pull = jax.vjp(of_wanted, *(arguments[i] for i in self._wanted))
        given = [one for one in cotangents if jnp.issubdtype(one.dtype, jnp.floating)]
        return list(pull(given))


@overload
def call_jax(
    function: Callable[..., Any],
    *tensors: Operand,
    result: InputSpec,
    batch: Sequence[Dimension] = (),
) -> Tensor: ...


@overload
def call_jax(
    function: Callable[..., Any],
    *tensors: Operand,
    result: Sequence[InputSpec],
    batch: Sequence[Dimension] = (),
) -> tuple[Tensor, ...]: ...


def call_jax(
    function: Callable[..., Any],
    *tensors: Operand,
    result: InputSpec | Sequence[InputSpec],
    batch: Sequence[Dimension] = (),
) -> Tensor | tuple[Tensor, ...]:
    """Return what any jax function makes, Pallas kernels included; jax differentiates it.

    All dimensions but those in `batch` are made whole first. The Artifact carries StableHLO for
    each of CPUs, GPUs and TPUs that jax can lower the function for, and runs without it. Prefer
    named ops where they exist: what a jax function does is not seen by the plan.

    Args:
        function: Takes jax arrays whose dimensions come in the order of the named ones.
        *tensors: The named tensors it is called with.
        result: The dimensions and dtype of what it returns: an `nm.spec`, or a list of them.
        batch: Dimensions that may stay sharded: the function sees one device's shard of them, and
            must treat their elements independently of each other.

    Example:
        >>> import jax.numpy as jnp
        >>> M = nm.Dimension("model", 2)
        >>> def flip(x):
        ...     return nm.call_jax(jnp.flip, x, result=nm.spec([M]))
        >>> nm.evaluate(flip, x=([M], [1.0, 2.0]))
        array([2., 1.], dtype=float32)
    """
    check_callable("call_jax", function)
    operands = tuple(as_tensor("call_jax", tensor) for tensor in tensors)
    specs = check_specs("call_jax", operands, result)
    split = check_batch_dims("call_jax", operands, specs, batch)
    name = getattr(function, "__name__", type(function).__name__)
    _check_function(function, name, operands, specs)
    outputs = JaxCall(operands, function, name, specs, split).outputs
    return outputs[0] if isinstance(result, InputSpec) else outputs


def _check_function(
    function: Callable[..., Any],
    name: str,
    operands: Sequence[Tensor],
    specs: Sequence[InputSpec],
) -> None:
    """Raise unless a function makes what its specs describe."""
    import jax

    types = [jax.ShapeDtypeStruct(x.shape.sizes, x.dtype) for x in operands]
    given = list(map(str, operands))
    try:
        made = jax.tree.leaves(jax.eval_shape(function, *types))
    except Exception as error:
        raise NamedMeshError(
            f"call_jax: {name} raised {type(error).__name__}: {str(error)[:500]}",
            *given,
            fix="fix the function; it is called with arrays of the tensors' sizes, in order",
        ) from error
    if len(made) != len(specs):
        raise NamedMeshError(
            f"call_jax: {name} returns {count_noun(len(made), 'array')}, expected {len(specs)}",
            *(f"expected: {format_value(one)}" for one in specs),
            fix="give one nm.spec in result= for each array it makes",
        )
    unlike = [
        f"{value.dtype}{list(value.shape)}, not {one.dtype}{one.shape}"
        for value, one in zip(made, specs, strict=True)
        if tuple(value.shape) != tuple(one.shape.sizes) or str(value.dtype) != one.dtype
    ]
    if unlike:
        raise NamedMeshError(
            f"call_jax: {name} makes {'; '.join(unlike)}",
            *given,
            fix="give the shape and dtype it makes, in order, as nm.spec",
        )
