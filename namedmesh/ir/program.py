"""Program: the named ops of one traced function, with inputs, variables, updates and results."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from namedmesh.dims.dimension import Shape
from namedmesh.display.html import html_block, html_details, html_table, html_text
from namedmesh.display.text import name_some
from namedmesh.errors.errors import NamedMeshError, check_word, did_you_mean, join_names
from namedmesh.errors.mistakes import ByName, Explained, explain_refusal
from namedmesh.ir.evaluate import Eager, convert_value
from namedmesh.ir.format import format_value
from namedmesh.ir.interface import (
    InputSpec,
    Specs,
    Variable,
    bind_specs,
    flatten_specs,
    is_example,
    spec,
)
from namedmesh.ir.loop_motion import hoist_invariants, sink_into_loops
from namedmesh.ir.op import Body, Op, every_op
from namedmesh.ir.operands import check_callable
from namedmesh.ir.prune import prune_ops
from namedmesh.ir.recorder import active_recorder, recording, set_variable
from namedmesh.ir.simplify import simplify_ops
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import FITTED, Trace, check_result
from namedmesh.ir.write_out import write_out_loops
from namedmesh.signature.inputs import name_inputs, name_leaves
from namedmesh.signature.nest import flatten, map_leaves, unflatten
from namedmesh.signature.printed import unwrap_results, wrap_results


@dataclass(frozen=True, eq=False, repr=False)
class Program(Explained):
    """A traced function: a value that passes read and none changes. Prints as its list of ops.

    Attributes:
        name: The function's name.
        ops: Every op, each after those it reads.
        inputs: The tensors that stand for the inputs, by name.
        specs: The inputs as they were declared.
        variables: Parameters and other state, by name.
        updates: The next value of each variable that the step changes.
        structure: What the function returned, tensors included.
        outputs: The tensors in it, in order.
        initializers: For each variable, the program that makes its first value from a seed.
        groups: The names of the inputs that each dict argument of the function has.
        notes: What plans print under every layout, such as the idle iterations of a pipeline.
        retrace: If it has `remat="fit"`: traces the function again with another remat in its place.

    Example:
        >>> B, M = nm.dims("batch=4 model=8")
        >>> program = nm.trace(lambda x: x * nm.param("w", [M]), x=nm.spec([B, M]))
        >>> list(program.inputs), list(program.variables), program.dims
        (['x'], ['w'], {'batch': [4], 'model': [8]})
    """

    name: str
    ops: tuple[Op, ...]
    inputs: dict[str, Tensor]
    specs: dict[str, InputSpec]
    variables: dict[str, Variable]
    updates: dict[str, Tensor]
    structure: Any
    outputs: tuple[Tensor, ...]
    initializers: dict[str, Program] = field(default_factory=dict)
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    retrace: Callable[[str | float], Program] | None = None

    @property
    def dims(self) -> dict[str, list[int]]:
        """Every dimension name with the sizes it has in the program."""
        return _sizes_by_name(x.shape for op in every_op(self.ops) for x in op.outputs)

    @property
    def resting_dims(self) -> dict[str, list[int]]:
        """Every dimension name of parameters and their slots, with its sizes."""
        sizes = _sizes_by_name(one.shape for one in self.variables.values() if one.at_rest)
        return dict(sorted(sizes.items()))

    @property
    def parameters(self) -> dict[str, Variable]:
        """The trainable variables."""
        return ByName({name: one for name, one in self.variables.items() if one.trainable})

    @property
    def body(self) -> Body:
        """The program as a function: inputs, then variables, to outputs, then updates."""
        variables = (variable.tensor for variable in self.variables.values())
        arguments = (*self.inputs.values(), *variables)
        return Body(self.ops, arguments, (), (), (*self.outputs, *self.updates.values()))

    def flops(self, phase: str | None = None) -> int:
        """Return the number of floating point operations of one run, over all devices.

        Args:
            phase: forward, backward or update alone; all of them by default.
        """
        if phase is not None:
            check_word("phase", phase, ("forward", "backward", "update"))
        return sum(op.flops() for op in self.ops if phase in (None, op.phase))

    @cached_property
    def on_host(self) -> set[Tensor]:
        """The tensors in the host's memory: what `offload=True` moves there, and its stacks."""
        found: set[Tensor] = set()

        def visit(ops: Iterable[Op]) -> None:
            for op in ops:
                if op.offloads:
                    found.add(op.output)
                if op.loop is not None and op.loop.test is None:
                    pairs = zip(op.loop.body.arguments, op.inputs, strict=True)
                    found.update(inner for inner, tensor in pairs if tensor in found)
                for body in op.bodies:
                    visit(body.ops)
                    pairs = zip(body.outputs, op.outputs, strict=False)
                    found.update(tensor for inner, tensor in pairs if inner in found)

        visit(self.ops)
        return found

    @property
    def histories(self) -> list[Tensor]:
        """The tensors that the forward pass's loops store on devices for the backward pass."""
        backward = (op for op in self.ops if op.phase == "backward")
        read = {tensor for op in backward for tensor in op.inputs} - self.on_host
        forward = (op for op in self.ops if op.phase == "forward")
        return [tensor for op in forward for tensor in op.histories if tensor in read]

    @cached_property
    def recomputed(self) -> dict[str, float]:
        """The share of a run's FLOPs that the backward pass computes again, by scope.

        What is stored instead is chosen by `remat=` of `nm.scan` and by `nm.checkpoint`. Ops that
        fuse are computed again in any case.

        Example:
            >>> B, M = nm.dims("batch=4 model=8")
            >>> def slope(x):
            ...     with nm.scope("layer"):
            ...         y = nm.checkpoint(lambda x: nm.tanh(nm.exp(x)))(x)
            ...     return nm.grad(nm.sum(y), x)
            >>> program = nm.trace(slope, x=nm.spec([B, M]))
            >>> {scope: round(share, 2) for scope, share in program.recomputed.items()}
            {'layer': 0.33}
        """
        total, flops = self.flops(), Counter[str]()
        for op, times in every_run(self.ops):
            if op.recomputed:
                flops[op.scope.rstrip("/")] += times * op.flops()
        return {scope: count / total for scope, count in flops.most_common() if count}

    def evaluate(self, state: Mapping[str, Any], /, **inputs: Any) -> tuple[dict[str, Any], Any]:
        """Return the next state and results, op by op in eager TensorFlow: the reference.

        Args:
            state: A value for each variable, e.g. from `initial_state`.
            **inputs: An array for each input, or a dict of them for a dict argument.

        Example:
            >>> M = nm.Dimension("model", 3)
            >>> program = nm.trace(lambda x: nm.sum(x * nm.param("w", [M])), x=nm.spec([M]))
            >>> state, total = program.evaluate({"w": [1.0, 2.0, 3.0]}, x=[1.0, 1.0, 2.0])
            >>> float(total)
            9.0
        """
        texts = {name: str(tensor) for name, tensor in self.inputs.items()}
        inputs = name_inputs(self.name, texts, self.groups, (), inputs)
        unknown = [name for name in inputs if name not in self.inputs]
        if unknown:
            problem = f"{self.name} has no input {unknown[0]}"
            raise NamedMeshError(problem, fix=did_you_mean(unknown[0], self.inputs))
        values = [convert_value("input", name, x, inputs) for name, x in self.inputs.items()]
        for name, variable in self.variables.items():
            values.append(convert_value("variable", name, variable.tensor, state))
        results = Eager().run(self.body, values)
        count = len(self.outputs)
        updated = dict(state) | dict(zip(self.updates, results[count:], strict=True))
        nested = unflatten(self.structure, iter(results[:count]))
        return updated, unwrap_results(nested)

    def __call__(self, *unused: Any, **named: Any) -> NoReturn:
        raise NamedMeshError(
            f"program {self.name} is not compiled, and has no values to run on",
            fix="write step = nm.compile(program, mesh=nm.Mesh(data=8)), then step(step.init(), x)"
            "; or program.evaluate(program.initial_state(), x=array) to try it",
        )

    def initial_state(self, seed: int = 0) -> dict[str, Any]:
        """Return the first value of every variable, by name, from eager TensorFlow.

        The random bits are those of `step.init`; what is computed from them differs by rounding.

        Args:
            seed: The seed of the random values.
        """
        return {
            name: program.evaluate({}, seed=seed)[1] for name, program in self.initializers.items()
        }

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield each op: its results, what it computes them of, and its line."""
        for op in self.ops:
            operands = ", ".join(tensor.label for tensor in op.inputs)
            yield ", ".join(map(str, op.outputs)), f"{op.kind}({operands})", str(op.source)

    def __str__(self) -> str:
        lines = (f"  {results}  <- {call}  {line}" for results, call, line in self._rows())
        return "\n".join([f"program {self.name}", *lines])

    def __repr__(self) -> str:
        variables = name_some([one.tensor.label for one in self.variables.values()]) or "none"
        return "\n".join(
            (
                f"program {self.name}: {len(self.ops)} ops",
                f"  inputs: {name_some(list(self.inputs)) or 'none'}",
                f"  variables: {variables}",
                f"  outputs: {name_some([one.label for one in self.outputs]) or 'none'}",
            )
        )

    def _repr_html_(self) -> str:
        table = html_table(("results", "op", "line"), list(self._rows()))
        summary, *details = repr(self).splitlines()
        return html_block(summary, html_text(*details), html_details("ops", table))


def every_run(ops: Iterable[Op], times: int = 1) -> Iterator[tuple[Op, int]]:
    """Yield every op without bodies and how often it runs; of branches those with most FLOPs."""
    for op in ops:
        bodies = op.bodies
        if op.branches:
            bodies = (max(bodies, key=lambda body: sum(one.flops() for one in body.ops)),)
        for body in bodies:
            yield from every_run(body.ops, times * (op.loop.length if op.loop else 1))
        if not bodies:
            yield op, times


def _sizes_by_name(shapes: Iterable[Shape]) -> dict[str, list[int]]:
    """Return the sizes of every dimension of some shapes."""
    sizes: dict[str, set[int]] = {}
    for dim in itertools.chain.from_iterable(shapes):
        sizes.setdefault(dim.name, set()).add(dim.size)
    return {name: sorted(several) for name, several in sizes.items()}


def trace(function: Callable[..., Any], /, *specs: Specs, **named: Specs) -> Program:
    """Run a function on named tensors and record it as a program.

    Args:
        function: Takes tensors and returns tensors, nested in tuples, lists, dicts and dataclasses.
            It may make parameters, differentiate and assign.
        *specs: For each positional argument an `nm.spec`, an example (dimensions and an array,
            `([B, M], array)`), or some of them, nested as you like: inputs are named after the keys
            of a dict and the fields of a dataclass, joined by underscores where it goes deeper.
        **named: The same, by the argument's name.

    Returns:
        The program, without the ops that no result depends on.

    Example:
        >>> B, M = nm.dims("batch=4 model=8")
        >>> def norm(x):
        ...     return nm.sqrt(nm.sum(x * x, over=M))
        >>> nm.trace(norm, x=nm.spec([B, M])).outputs[0].shape
        [batch=4]
    """
    if active_recorder() is not None:
        raise NamedMeshError(
            "nm.trace was called inside a traced function", fix="call the inner function directly"
        )
    check_callable("nm.trace", function)
    name = getattr(function, "__name__", "program")
    bound = bind_specs(function, name, specs, named)
    arguments, groups, nested = flatten_specs(function, name, bound)
    root = Trace()
    inputs = {key: root.placeholder(one.shape, one.dtype, key) for key, one in arguments.items()}
    for key, names in nested.items():
        bound.arguments[key] = map_leaves(names, inputs.__getitem__)
    with recording(root):
        try:
            made = function(*bound.args, **bound.kwargs)
        except TypeError as error:
            explain_refusal(error, error.__traceback__)
            raise
        structure = wrap_results(made, root.printed)
        leaves = [check_result(leaf, f"a result of {name}") for leaf in flatten(structure)]
        outputs = tuple(map(root.bring, leaves))
    _check_variable_names(name, inputs, root.variables)
    held = [*inputs.values(), *(variable.tensor for variable in root.variables.values())]
    needed = [*outputs, *root.updates.values()]
    ops, results = _rewrite(root.ops, needed, held)
    outputs, changed = results[: len(outputs)], results[len(outputs) :]
    new = dict(zip(root.updates, changed, strict=True))
    in_loops = {new[key]: root.variables[key].tensor for key in root.updated_in_loops}
    if in_loops:
        ops = prune_ops(sink_into_loops(ops, results, in_loops), results, held)
    updates = {key: new[key] for key in root.variables if key in new}
    initializers = {
        key: trace(variable.initialize, seed=spec([], "int32"))
        for key, variable in root.variables.items()
    }

    def retrace(remat: str | float) -> Program:
        with set_variable(FITTED, remat):
            return dataclasses.replace(trace(function, *specs, **named), retrace=None)

    inputs, arguments, variables, updates = map(
        ByName, (inputs, arguments, root.variables, updates)
    )
    return Program(
        name, ops, inputs, arguments, variables, updates, structure, outputs,
        initializers, groups, tuple(root.notes), retrace if root.fits else None,
    )  # fmt: skip


def _rewrite(
    ops: Sequence[Op], outputs: Sequence[Tensor], held: Sequence[Tensor]
) -> tuple[tuple[Op, ...], tuple[Tensor, ...]]:
    """Return fewer ops that compute the same, and the tensors that are then the outputs."""
    ops = prune_ops(ops, outputs, held)
    for rewrite in (write_out_loops, simplify_ops, hoist_invariants):
        changed, outputs = rewrite(ops, outputs)
        if changed is not ops:  # there may be ops that nothing needs any more
            ops = prune_ops(changed, outputs, held)
    return ops, tuple(outputs)


def _check_variable_names(
    name: str, inputs: Mapping[str, Tensor], variables: Mapping[str, Variable]
) -> None:
    """Raise for variables that have the name of an input."""
    both = [key for key in variables if key in inputs]
    if both:
        tensors = [tensor for key in both for tensor in (inputs[key], variables[key].tensor)]
        raise NamedMeshError(
            f"{join_names(both)} of {name} {'is' if len(both) == 1 else 'are'} "
            "an input and a variable at once",
            *dict.fromkeys(map(str, tensors)),
            source=variables[both[0]].tensor.source,
            fix="give the variable another name, or rename the argument",
        )


def evaluate(function: Callable[..., Any], /, **arguments: Any) -> Any:
    """Return what a function of named tensors makes of arrays, unsharded: to try an op or a layer.

    Args:
        function: Takes tensors by name and returns tensors. Parameters it makes start from seed 0.
        **arguments: The dimensions and values of each tensor, nested as the function takes them.
            float64 values become float32, int64 ones int32; those that do not fit are an error.

    Example:
        >>> B, M = nm.dims("batch=2 model=3")
        >>> nm.evaluate(lambda x: nm.mean(x, over=M), x=([B, M], [[1, 2, 3.5], [4, 5, 6]]))
        array([2.1666667, 5.       ], dtype=float32)
    """
    pairs: dict[str, Any] = {}
    for argument, value in arguments.items():
        for name, pair in name_leaves(value, argument, lambda _, one: is_example(one)).items():
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise NamedMeshError(
                    f"evaluate: {name} is {format_value(pair)}, expected dimensions and values",
                    fix=f"write {name}=([B, M], array)",
                )
            pairs[name] = pair
    program = trace(function, **arguments)
    arrays = {name: np.asarray(values) for name, (_, values) in pairs.items()}
    _, results = program.evaluate(program.initial_state(), **arrays)
    return unflatten(results, iter([np.asarray(leaf.numpy()) for leaf in flatten(results)]))


def every_op_with_times(ops: Iterable[Op], times: int = 1) -> Iterator[tuple[Op, int]]:
    """Yield every op, and how often it runs at most."""
    for op in ops:
        yield op, times
        for body in op.bodies:
            yield from every_op_with_times(body.ops, times * (op.loop.length if op.loop else 1))
