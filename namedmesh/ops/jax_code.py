"""Any jax function as a named op, Pallas kernels included: StableHLO that an Artifact carries."""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, overload

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.context import Context
from namedmesh.ir.interface import InputSpec, spec
from namedmesh.ir.literal import as_tensor
from namedmesh.ir.operands import check_callable
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import Operand, Tensor
from namedmesh.ops.broadcast import group_by_missing
from namedmesh.ops.custom import (
    Dims,
    Foreign,
    check_batch_dims,
    check_specs,
    place_batch,
)

CALL = "namedmesh_jax"  # as artifacts/foreign_code.py reads it
PLATFORMS = ("cpu", "cuda", "tpu")


class JaxCall(Foreign):
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
        total = len(self.inputs) + len(self.ignored)
        missing = {position for position, _, _ in self.ignored}
        positions = [i for i in range(total) if i not in missing]
        group = [i for i, at in enumerate(positions) if at >= total - self.cotangents]
        return (tuple(group),) if self.cotangents and group else ()

    kind = "call_jax"

    def results(self) -> list[tuple[Shape, str]]:
        return [(one.shape, one.dtype) for one in self.specs]

    def lower(self, context: Context, *values: Any) -> Any:
        tf, values = context.tf, tuple(self.fill_in(context, values))
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
        linear = 0 if self._has_own_backward() else len(cotangents)
        for missing, group in group_by_missing(self.inputs, self.batch).items():
            wanted = [i for i in group if self.inputs[i].floating]
            if not wanted:
                continue
            call = dataclasses.replace(
                self,
                inputs=(*self.inputs, *cotangents),
                function=_derive(self._call, len(self.inputs), wanted),
                name=f"the derivative of {self.name}",
                specs=tuple(spec(self.inputs[i].shape, self.inputs[i].dtype) for i in wanted),
                summed=missing,
                cotangents=linear,
            )
            gradients.update(zip(wanted, call.outputs, strict=True))
        return [gradients.get(i) for i in range(len(self.inputs))]

    def _has_own_backward(self) -> bool:
        """Return whether a jax.custom_vjp is in the function: its derivative may be anything."""
        import jax

        types = [jax.ShapeDtypeStruct(x.shape.sizes, x.dtype) for x in self.inputs]
        return "custom_vjp" in str(jax.make_jaxpr(self._call)(*types))

    def vmap(self, inputs: tuple[Tensor, ...], over: Dimension) -> Sequence[Tensor]:
        axes = tuple(0 if over in x.shape else None for x in inputs)

        def function(*values: Any) -> list[Any]:
            import jax

            return jax.vmap(self._call, axes)(*values)

        specs = tuple(spec([over, *one.shape], one.dtype) for one in self.specs)
        batch = (*self.batch, over)
        return dataclasses.replace(
            self, inputs=inputs, function=function, specs=specs, batch=batch
        ).outputs

    def placement(self) -> Placement:
        return place_batch(self, self.batch, self.summed)

    @property
    def sensitive_operands(self) -> list[set[int]] | None:
        return None if self._has_own_backward() else self.read_operands

    @functools.cached_property
    def read_operands(self) -> list[set[int]] | None:
        import jax
        from jax.interpreters.partial_eval import dce_jaxpr

        if self.ignored:
            return None
        types = [jax.ShapeDtypeStruct(x.shape.sizes, x.dtype) for x in self.inputs]
        jaxpr, count = jax.make_jaxpr(self._call)(*types).jaxpr, len(self.specs)
        read = [dce_jaxpr(jaxpr, [i == j for j in range(count)])[1] for i in range(count)]
        return [{i for i, used in enumerate(one) if used} for one in read]


def _derive(
    function: Callable[..., list[Any]], count: int, wanted: Sequence[int]
) -> Callable[..., list[Any]]:
    """Return the function of the cotangents of some arguments, given those of the results."""

    def derivative(*values: Any) -> list[Any]:
        import jax
        import jax.numpy as jnp

        def of_wanted(*some: Any) -> list[Any]:
            merged = list(values[:count])
            for i, value in zip(wanted, some, strict=True):
                merged[i] = value
            return choose_floating(function(*merged))

        def choose_floating(arrays: Sequence[Any]) -> list[Any]:
            return [one for one in arrays if jnp.issubdtype(one.dtype, jnp.floating)]

        _, pull = jax.vjp(of_wanted, *(values[i] for i in wanted))
        return list(pull(choose_floating(values[count:])))

    return derivative


@overload
def call_jax(
    function: Callable[..., Any], *tensors: Operand, result: InputSpec, batch: Dims = ()
) -> Tensor: ...


@overload
def call_jax(
    function: Callable[..., Any], *tensors: Operand, result: Sequence[InputSpec], batch: Dims = ()
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
    function: Callable[..., Any], name: str, operands: Sequence[Tensor], specs: Sequence[InputSpec]
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
    types = [f"{value.dtype}{list(value.shape)}" for value in made]
    if types != [f"{one.dtype}{list(one.shape.sizes)}" for one in specs]:
        expected = ", ".join(f"{one.dtype}{one.shape}" for one in specs)
        raise NamedMeshError(
            f"call_jax: {name} makes {', '.join(types)}, not {expected}",
            *given,
            fix="give one nm.spec in result= for each array it makes, in order",
        )
