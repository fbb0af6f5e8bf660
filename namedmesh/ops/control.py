"""Choices and loops decided at run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from namedmesh.dims.dimension import Shape
from namedmesh.errors.errors import NamedMeshError, join_names
from namedmesh.ir.context import Context
from namedmesh.ir.differentiate import body_vjp, find_sensitive, zeros_like
from namedmesh.ir.format import format_value
from namedmesh.ir.literal import as_int32_scalar, as_tensor
from namedmesh.ir.op import Body, LoopSpec, Op, PlacementRules
from namedmesh.ir.operands import check_callable
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import current, trace_body
from namedmesh.ops.shape import transpose
from namedmesh.signature.nest import flatten, format_nest, match_leaves, unflatten


class Cond(Op):
    """One of two branches."""

    control = True
    branches = True
    yes: Body
    no: Body

    @property
    def bodies(self) -> tuple[Body, ...]:
        """Both branches, for passes that look at every op."""
        return self.yes, self.no

    def results(self) -> list[tuple[Shape, str]]:
        return [(tensor.shape, tensor.dtype) for tensor in self.yes.outputs]

    def lower(self, context: Context, condition: Any, *values: Any) -> Any:
        count = len(self.yes.captures)

        def run(body: Body, values: Sequence[Any]) -> Any:
            # A compiled branch takes in the condition, too: where what it takes in is of the shapes
            # of what it gives out, XLA's propagation splits the one like the other, whatever the
            # annotations say.
            barrier = lambda *both: context.xla.optimization_barrier(*both)[1]
            if context.compiled:
                values = [context.compute("barrier", barrier, condition, x) for x in values]
            return context.run(body, values)

        branches = (lambda: run(self.yes, values[:count])), (lambda: run(self.no, values[count:]))
        return context.cond(condition, *branches)

    @property
    def sensitive_operands(self) -> list[set[int]]:
        second = 1 + len(self.yes.captures)
        pairs = zip(find_sensitive(self.yes), find_sensitive(self.no), strict=True)
        return [{1 + i for i in yes} | {second + i for i in no} for yes, no in pairs]

    def vjp(self, *cotangents: Tensor) -> list[Tensor | None]:
        count = len(self.yes.captures)
        sides = self.inputs[1 : 1 + count], self.inputs[1 + count :]
        wanted = [[i for i, tensor in enumerate(side) if tensor.floating] for side in sides]

        def branch(body: Body, which: int) -> Callable[[], list[Tensor]]:
            """Make the backward branch of one side, with zeros for what the other captures."""

            def backward() -> list[Tensor]:
                trace = current("cond")
                incoming = [trace.bring(cotangent) for cotangent in cotangents]
                captured = [trace.bring(tensor) for tensor in sides[which]]
                own = body_vjp(body, captured, incoming, wanted[which])
                other = [zeros_like(sides[1 - which][i]) for i in wanted[1 - which]]
                return own + other if which == 0 else other + own

            return backward

        gradients = cond(self.inputs[0], branch(self.yes, 0), branch(self.no, 1))
        positions = [1 + i for i in wanted[0]] + [1 + count + i for i in wanted[1]]
        by_position = dict(zip(positions, gradients, strict=True))
        return [by_position.get(i) for i in range(len(self.inputs))]

    def flops(self) -> int:
        return max(sum(op.flops() for op in body.ops) for body in self.bodies)

    def plan(self, rules: PlacementRules, times: int) -> None:
        rules.place_branches(self, times)


class AnyHere(Op):
    """True if an element of a device's own shard of a mask is; devices may disagree on it.

    It may only decide whether work is done whose results are masked, so that they are the same on
    one device, where it is any element of all. Collectives in that work must be between devices
    that agree: not along the axes of the mask. The second operand says how the mask is sharded.
    """

    manual = True
    differs = True
    stops_gradient = True

    def results(self) -> list[tuple[Shape, str]]:
        return [(Shape(), "bool")]

    def lower(self, context: Context, mask: Any, like: Any) -> Any:
        return context.tf.reduce_any(mask)


class While(Op):
    """A body repeated while a condition holds."""

    control = True
    test: Body
    body: Body

    @property
    def bodies(self) -> tuple[Body, ...]:
        """Condition and body, for passes that look at every op."""
        return self.test, self.body

    @property
    def loop(self) -> LoopSpec:
        return LoopSpec(self.body, len(self.body.inputs), test=self.test)

    def results(self) -> list[tuple[Shape, str]]:
        return [(tensor.shape, tensor.dtype) for tensor in self.body.inputs]

    def lower(self, context: Context, *values: Any) -> Any:
        carries, tests = len(self.body.inputs), len(self.test.captures)
        start, rest = values[:carries], values[carries:]
        return context.while_loop(
            lambda *carry: context.run(self.test, [*carry, *rest[:tests]])[0],
            lambda *carry: context.run(self.body, [*carry, *rest[tests:]]),
            start,
        )

    def vjp(self, *cotangents: Tensor) -> list[Tensor | None]:
        raise self.error(
            "a loop of unknown length has no derivative",
            *map(str, self.inputs[: len(self.body.inputs)]),
            fix="give most=, a bound of its length, use nm.scan, or nm.stop_gradient on its start",
        )

    def plan(self, rules: PlacementRules, times: int) -> None:
        rules.place_loop(self, times)


def match_structure(what: str, result: Any, expected: Any, structure: str) -> list[Tensor]:
    """Return a result's leaves in the order, dims and dtypes of the expected ones, or raise."""
    leaves, wanted = match_leaves(expected, result), flatten(expected)
    if leaves is None:
        label = lambda leaf: leaf.label if isinstance(leaf, Tensor) else format_value(leaf)
        raise NamedMeshError(
            f"{what} is {format_nest(result, label)}, expected {format_nest(expected, label)}",
            *(f"got: {format_value(leaf)}" for leaf in flatten(result)),
            *(f"expected: {leaf}" for leaf in wanted),
            fix=f"return the structure of {structure}",
        )
    tensors = [as_tensor(what, leaf, want) for leaf, want in zip(leaves, wanted, strict=True)]
    problems: list[str] = []
    unlike: list[str] = []
    for leaf, want in zip(tensors, wanted, strict=True):
        if {*leaf.shape} != {*want.shape} or leaf.dtype != want.dtype:
            expectation = f"expected {want.dtype}{want.shape}"
            problems.append(f"{leaf.label} is {leaf.dtype}{leaf.shape}, {expectation}")
            unlike.append(want.label)
    if problems:
        pronoun = "it" if len(unlike) == 1 else "them"
        raise NamedMeshError(
            f"{what}: {'; '.join(problems)}",
            fix=f"make {pronoun} like {join_names(unlike)}, "
            "e.g. with nm.cast, nm.sum or nm.broadcast",
        )
    return [transpose(leaf, want.shape) for leaf, want in zip(tensors, wanted, strict=True)]


def check_condition(what: str, condition: Any) -> Tensor:
    """Return the condition when it is a bool scalar, or raise."""
    scalar = isinstance(condition, Tensor) and not len(condition.shape)
    if not scalar or condition.dtype != "bool":
        raise NamedMeshError(
            f"{what}: the condition {format_value(condition)} is not a bool scalar",
            fix="reduce it with nm.any or nm.all; use Python's own if for what is known",
        )
    return condition


def cond(
    condition: Tensor, yes: Callable[..., Any], no: Callable[..., Any], *operands: Tensor
) -> Any:
    """Run one of two functions, chosen by a bool scalar when the step runs.

    Use Python's own `if` for a choice that is known while tracing, and `nm.where` for a choice per
    element. The gradient flows through the function that ran.

    Args:
        condition: A bool tensor without dimensions.
        yes: Called with the operands where the condition is true.
        no: Called with the operands where it is false; return tensors nested as those of `yes`,
            each of the same dimensions and dtype.
        *operands: Tensors that both functions take; both may also use tensors from outside.

    Returns:
        What the function that ran returned.

    Example:
        >>> M = nm.Dimension("model", 2)
        >>> def halve_if_large(x):
        ...     return nm.cond(nm.sum(x) > 5.0, lambda x: x / 2.0, lambda x: x, x)
        >>> nm.evaluate(halve_if_large, x=([M], [2.0, 4.0]))
        array([1., 2.], dtype=float32)
    """
    check_condition("cond", condition)
    check_callable("cond", yes, no)
    first, structure = trace_body(lambda: yes(*operands), [])
    expected = unflatten(structure, iter(first.outputs))
    second, _ = trace_body(
        lambda: match_structure(
            "cond: the second branch's result", no(*operands), expected, "the first branch"
        ),
        [],
    )
    outputs = Cond((condition, *first.captured, *second.captured), first, second).outputs
    return unflatten(structure, iter(outputs))


def switch(index: Tensor, branches: Sequence[Callable[..., Any]], *operands: Tensor) -> Any:
    """Run one of several functions, chosen by its number when the step runs.

    Args:
        index: An int32 scalar: the number of the function, the nearest one if there is none.
        branches: Called with the operands; all return tensors nested alike, of the same dimensions
            and dtypes.
        *operands: Tensors that the functions take; they may also use tensors from outside.

    Returns:
        What the function that ran returned.

    Example:
        >>> def change(i, x):
        ...     return nm.switch(i, [lambda x: x, lambda x: x * x, lambda x: -x], x)
        >>> nm.evaluate(change, i=([], 1), x=([], 5.0))
        array(25., dtype=float32)
    """
    index = as_int32_scalar("switch", "the number of the function", index)
    if not branches:
        raise NamedMeshError("switch: there is no function to run", fix="give one or more")
    if len(branches) == 1:
        check_callable("switch", *branches)
        return branches[0](*operands)
    half = len(branches) // 2  # so that no branch is deeper than need be
    low = lambda: switch(index, branches[:half], *operands)
    return cond(index < half, low, lambda: switch(index - half, branches[half:], *operands))
