"""Program: the named ops of one traced function, with its inputs, variables, updates and results."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.dims.errors import NamedMeshError, checked_identifier, did_you_mean
from namedmesh.ir.nest import flatten
from namedmesh.ir.op import Op
from namedmesh.ir.operands import callback, several, shown, typed
from namedmesh.ir.tensor import FLOATS, INTEGERS, Tensor
from namedmesh.ir.trace import Trace, current, pushed, tracing


@dataclass(eq=False)
class Placeholder(Op):
    """A value given from outside: an input, a variable, a loop's carry, a captured tensor."""

    shape: Shape
    dtype: str

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.shape, self.dtype)]


@dataclass(frozen=True)
class InputSpec:
    """The shape and dtype of a program input; whole lists dimensions that stay unsplit under every layout."""

    shape: Shape
    dtype: str
    whole: frozenset[str]


Specs = (
    InputSpec | Mapping[str, InputSpec]
)  # an argument of the function: one input, or a dict of them


def checked_dtype(dtype: str) -> str:
    """Returns the name of a dtype we know, or raises."""
    known = (*FLOATS, *INTEGERS, "bool")
    if not isinstance(dtype, str) or dtype not in known:
        raise NamedMeshError(
            f"{shown(dtype)} is not a dtype of tensors", fix=did_you_mean(str(dtype), known)
        )
    return dtype


def whole_names(shape: Shape, whole: Sequence[Dimension], what: str) -> frozenset[str]:
    """The names of dimensions asked to stay whole, each checked to be in the shape."""
    whole = several(whole)
    for dim in whole:
        if not isinstance(dim, Dimension) or dim not in shape.dims:
            raise NamedMeshError(
                f"{what}: whole={getattr(dim, 'name', dim)!r} is not one of its dimensions",
                f"{what}: {shape}",
                fix=did_you_mean(getattr(dim, "name", str(dim)), shape.names),
            )
    return frozenset(dim.name for dim in whole)


def spec(
    dims: Sequence[Dimension], dtype: str = "float32", whole: Sequence[Dimension] = ()
) -> InputSpec:
    """Describes a program input."""
    shape = Shape(dims)
    return InputSpec(shape, checked_dtype(dtype), whole_names(shape, whole, "input"))


@dataclass(eq=False)
class Variable:
    """A tensor that lives from step to step: a parameter, or other state."""

    name: str
    shape: Shape
    dtype: str
    initializer: Callable[..., Tensor]
    trainable: bool
    whole: frozenset[str]
    at_rest: bool  # lies where the params layout says
    tensor: Tensor
    stack: tuple[str, ...] = ()  # the dimensions along which scan(stack=True) stacked it


@dataclass(frozen=True, eq=False)
class Program:
    """A traced function. Immutable; prints as its list of ops."""

    name: str
    ops: tuple[Op, ...]
    inputs: dict[str, Tensor]
    specs: dict[str, InputSpec]
    variables: dict[str, Variable]
    updates: dict[str, Tensor]
    structure: Any
    outputs: tuple[Tensor, ...]

    @property
    def dims(self) -> dict[str, list[int]]:
        """Every dimension name with the sizes it has in the program."""
        found: dict[str, set[int]] = {}
        for op in every_op(self.ops):
            for tensor in op.outputs:
                for dim in tensor.shape:
                    found.setdefault(dim.name, set()).add(dim.size)
        return {name: sorted(sizes) for name, sizes in found.items()}

    @property
    def resting_dims(self) -> dict[str, list[int]]:
        """Every dimension name of parameters and their slots, with its sizes."""
        dims = {
            dim
            for variable in self.variables.values()
            if variable.at_rest
            for dim in variable.shape
        }
        return {
            name: sorted(dim.size for dim in dims if dim.name == name)
            for name in sorted({dim.name for dim in dims})
        }

    @property
    def parameters(self) -> dict[str, Variable]:
        """The trainable variables."""
        return {name: variable for name, variable in self.variables.items() if variable.trainable}

    def flops(self, phase: str | None = None) -> int:
        """Floating point operations of one run, over all devices."""
        return sum(op.flops() for op in self.ops if phase in (None, op.phase))

    def evaluate(self, state: Mapping[str, Any], **inputs: Any) -> tuple[dict[str, Any], Any]:
        """Runs op by op in eager TensorFlow, unsharded: the reference every sharded run is tested against."""
        from namedmesh.ir.evaluate import evaluate

        return evaluate(self, state, inputs)

    def initial_state(self, seed: int = 0) -> dict[str, Any]:
        """Runs the initializers in eager TensorFlow, unsharded."""
        return {name: self.initializer(name).evaluate({}, seed=seed)[1] for name in self.variables}

    def initializer(self, name: str) -> Program:
        """The program that makes one variable from a seed."""
        from namedmesh.ops.random import fold_in_name, key_from_seed

        variable = self.variables[name]

        def initialize(seed: Tensor) -> Tensor:
            value = variable.initializer(
                fold_in_name(key_from_seed(seed), name), variable.shape, variable.dtype
            )
            if (
                not isinstance(value, Tensor)
                or value.shape != variable.shape
                or value.dtype != variable.dtype
            ):
                made = f"{value.dtype}{value.shape}" if isinstance(value, Tensor) else typed(value)
                raise NamedMeshError(
                    f"the initializer of {name} made {made}, not {variable.dtype}{variable.shape}",
                    fix="return a tensor of the shape and dtype the initializer is called with",
                    source=variable.tensor.producer.source,
                )
            return value

        return trace(initialize, seed=spec([], "int32"))

    def __str__(self) -> str:
        lines = [f"program {self.name}"]
        for op in self.ops:
            made = ", ".join(map(str, op.outputs))
            lines.append(
                f"  {made}  <- {op.kind}({', '.join(tensor.label for tensor in op.inputs)})  {op.source}"
            )
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class Body:
    """The ops of a loop body, a branch or a manual region: a function of its inputs and captures."""

    ops: tuple[Op, ...]
    inputs: tuple[Tensor, ...]
    captures: tuple[Tensor, ...]  # stand-ins inside for ...
    captured: tuple[Tensor, ...]  # ... these tensors outside
    outputs: tuple[Tensor, ...]
    stacked: tuple[
        Tensor, ...
    ] = ()  # outside, for the last inputs: variables made inside, one slice an iteration


def every_op(ops: Iterable[Op]) -> Iterable[Op]:
    """Every op, those of loop bodies and branches included."""
    for op in ops:
        yield op
        for body in getattr(op, "bodies", ()):
            yield from every_op(body.ops)


def live(ops: Sequence[Op], outputs: Iterable[Tensor], keep: Iterable[Op] = ()) -> tuple[Op, ...]:
    """The ops that some output depends on, in order."""
    needed = {tensor.producer for tensor in outputs} | set(keep)
    kept = []
    for op in reversed(ops):
        if op in needed:
            kept.append(op)
            needed.update(tensor.producer for tensor in op.inputs)
    return tuple(reversed(kept))


def pruned(ops: Sequence[Op], outputs: Iterable[Tensor], keep: Iterable[Op] = ()) -> tuple[Op, ...]:
    """As live, and what no output depends on inside loops and branches is left out too."""
    needed: set[Tensor] = set(outputs)
    kept = live(ops, needed, keep)
    for op in reversed(kept):
        op.prune(needed)
        needed.update(op.inputs)
    return live(kept, outputs, keep)


def trace(function: Callable[..., Any], /, *specs: Specs, **named: Specs) -> Program:
    """Runs a function on named tensors and records what it does."""
    if tracing():
        raise NamedMeshError(
            "nm.trace was called inside a traced function", fix="call the inner function directly"
        )
    callback("nm.trace", function)
    name = getattr(function, "__name__", "program")
    try:
        bound = inspect.signature(function).bind(*specs, **named)
    except TypeError as error:
        raise NamedMeshError(
            f"the inputs do not fit {name}{inspect.signature(function)}: {error}",
            fix="give one nm.spec for each argument of the function",
        ) from None
    arguments = _flat_arguments(function, bound)
    for argument, given in arguments.items():
        if not isinstance(given, InputSpec):
            dims = (
                ", ".join(dim.name for dim in several(given) if isinstance(dim, Dimension))
                or "dims"
            )
            raise NamedMeshError(
                f"input {argument} of {name} is {shown(given)}, not a spec",
                fix=f"pass {argument}=nm.spec([{dims}])",
            )
    root = Trace()
    inputs = {
        arg: root.placeholder(given.shape, given.dtype, arg) for arg, given in arguments.items()
    }
    for key in list(bound.arguments):
        if key in inputs:
            bound.arguments[key] = inputs[key]
        elif isinstance(bound.arguments[key], dict):
            bound.arguments[key] = {inner: inputs[inner] for inner in bound.arguments[key]}
        else:
            bound.arguments[key] = tuple(
                inputs[f"{key}_{i}"] for i in range(len(bound.arguments[key]))
            )
    with pushed(root):
        structure = function(*bound.args, **bound.kwargs)
        outputs = tuple(
            root.bring(checked_tensor(leaf, f"a result of {name}")) for leaf in flatten(structure)
        )
    held = [variable.tensor.producer for variable in root.variables.values()] + [
        t.producer for t in inputs.values()
    ]
    ops = pruned(root.ops, [*outputs, *root.updates.values()], held)
    updates = {key: root.updates[key] for key in root.variables if key in root.updates}
    return Program(name, ops, inputs, dict(arguments), root.variables, updates, structure, outputs)


def _flat_arguments(function: Callable[..., Any], bound: inspect.BoundArguments) -> dict[str, Any]:
    """The specs by name; a dictionary argument contributes its entries, *args are numbered."""
    kinds = {
        key: parameter.kind for key, parameter in inspect.signature(function).parameters.items()
    }
    flat: dict[str, Any] = {}
    for key, value in bound.arguments.items():
        if kinds[key] is inspect.Parameter.VAR_POSITIONAL:
            items = {f"{key}_{i}": item for i, item in enumerate(value)}
        else:
            items = value if isinstance(value, dict) else {key: value}
        for inner, item in items.items():
            checked_identifier(inner, "input")
            if inner in flat:
                raise NamedMeshError(
                    f"two inputs are named {inner}", fix="give each input its own name"
                )
            flat[inner] = item
    return flat


def trace_body(
    function: Callable[..., Any],
    specs: Sequence[tuple[Shape, str, str]],
    stack: Dimension | None = None,
) -> tuple[Body, Any]:
    """Traces a loop body or a branch, and what it captures, inside the program being traced.

    With stack, variables made inside are stacked along that dimension and sliced for each iteration.
    """
    inner = Trace(current("a loop body"))
    inner.stack = stack
    inputs = tuple(inner.placeholder(shape, dtype, name) for shape, dtype, name in specs)
    with pushed(inner):
        structure = function(*inputs)
        outputs = tuple(
            inner.bring(checked_tensor(leaf, "a result of the body")) for leaf in flatten(structure)
        )
    inputs += tuple(slice_ for _, slice_ in inner.stacked.values())
    stand_ins = tuple(inner.captures.values())
    ops = live(inner.ops, outputs, [tensor.producer for tensor in (*inputs, *stand_ins)])
    stacks = tuple(stack_ for stack_, _ in inner.stacked.values())
    return Body(ops, inputs, stand_ins, tuple(inner.captures), outputs, stacks), structure


def checked_tensor(value: Any, what: str) -> Tensor:
    """Returns value when it is a Tensor or a plain number, or raises."""
    from namedmesh.ops.constants import as_tensor, plain

    if isinstance(value, Tensor) or plain(value) is not None:
        return as_tensor(what, value)
    raise NamedMeshError(
        f"{what} is {shown(value)}, not a Tensor",
        fix="return tensors, or tuples, lists and dicts of them",
    )
