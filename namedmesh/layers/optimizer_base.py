"""The base of all optimizers: apply(grads) assigns parameters, slots and the step counter."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Real
from typing import ClassVar, TypeAlias

import namedmesh as nm
from namedmesh.errors.errors import did_you_mean
from namedmesh.errors.mistakes import Explained
from namedmesh.ir.interface import Variable
from namedmesh.ir.trace import Trace, current
from namedmesh.layers.learning_rate import RateSchedule, as_schedule
from namedmesh.layers.mistakes import (
    Mistake,
    Positive,
    Share,
    check_grads,
    check_options,
    raise_mistakes,
)
from namedmesh.ops.rows import descend_rows


def global_norm(grads: Mapping[str, nm.Tensor]) -> nm.Tensor:
    """Return the norm of all gradients together, a float32 scalar.

    Args:
        grads: Gradients by name.

    Example:
        >>> M = nm.Dimension("model", 2)
        >>> float(nm.evaluate(lambda g: global_norm({"w": g}), g=([M], [3.0, 4.0])))
        5.0
    """
    total = nm.full([], 0.0)
    for name, grad in check_grads("global_norm", grads).items():
        squares = nm.square(nm.cast(grad, "float32"))
        if len(grad.shape):  # one number for each sharded gradient is summed between devices
            squares = nm.sum(squares)
            squares.describe(name=f"grad_norm/{name}")
        total = total + squares
    return nm.sqrt(total)


def clip_by_global_norm(
    grads: Mapping[str, nm.Tensor], limit: float
) -> tuple[dict[str, nm.Tensor], nm.Tensor]:
    """Scale all gradients down together so that their norm is at most a limit.

    Args:
        grads: Gradients by name.
        limit: The largest norm, a positive number.

    Returns:
        The gradients by name, each in its own dtype, and the norm before clipping.

    Example:
        >>> M = nm.Dimension("model", 2)
        >>> clip = lambda g: clip_by_global_norm({"w": g}, 2.5)[0]["w"]
        >>> nm.evaluate(clip, g=([M], [3.0, 4.0])).tolist()
        [1.5, 2.0]
    """
    check_grads("clip_by_global_norm", grads)
    if not isinstance(limit, Real) or isinstance(limit, bool) or not 0 < limit < math.inf:
        raise nm.NamedMeshError(
            f"clip_by_global_norm: limit={limit} is not positive", fix="pass a positive number"
        )
    norm = global_norm(grads)
    scale = limit / nm.maximum(norm, float(limit))
    clipped = {
        name: nm.cast(nm.cast(grad, "float32") * scale, grad.dtype) for name, grad in grads.items()
    }
    return clipped, norm


AVERAGE = "average"  # the scope of averaged parameters
FEW_ROWS = 4  # of a table for each of its lookups, of which all are updated
ElementRule: TypeAlias = "Callable[..., Sequence[nm.Tensor]]"


@dataclass(frozen=True)
class ParameterUpdate:
    """One parameter in an update.

    Attributes:
        value: The parameter before the update.
        grad: Its gradient, float32.
        prefix: The prefix of its slots' names.
        stack: The names of the dimensions along which `nm.scan(stack=True)` stacked it.

    Example:
        >>> def step(x):
        ...     w = nm.param("w", x.shape)
        ...     return ParameterUpdate(w, x, "adam/w").average("first", x, 0.9)
        >>> list(nm.trace(step, nm.spec(nm.dims("model=8"))).updates)
        ['adam/w/first']
    """

    value: nm.Tensor
    grad: nm.Tensor
    prefix: str
    stack: tuple[str, ...] = ()

    def slot(self, name: str, dims: Sequence[nm.Dimension] | None = None) -> nm.Tensor:
        """Return a slot: float32 state that the optimizer keeps for the parameter, zero at first.

        Args:
            name: The slot's name.
            dims: The slot's dimensions; by default those of the parameter.
        """
        shape = self.value.shape if dims is None else dims
        return nm.state(f"{self.prefix}/{name}", shape, of=self.value)

    def change(
        self,
        slots: Mapping[str, Sequence[nm.Dimension] | None],
        function: ElementRule,
        *values: nm.Tensor,
    ) -> nm.Tensor:
        """Assign slots and return the parameter's next value, as a function of elements makes them.

        Args:
            slots: The dimensions of the slots by name, as `slot` takes them.
            function: Called with the parameter, its gradient, `values` and the slots; returns the
                next parameter and slots. Of a parameter with rows, with rows of each.
            *values: What it is called with besides, with dimensions of the gradient.
        """
        held = [self.slot(name, dims) for name, dims in slots.items()]
        value, *following = self._call(function, held, *values)
        for slot, one in zip(held, following, strict=True):
            nm.assign(slot, one)
        return value

    def _call(
        self, function: ElementRule, held: Sequence[nm.Tensor], *values: nm.Tensor
    ) -> Sequence[nm.Tensor]:
        """Call the function of `change` with the whole parameter and its slots."""
        return function(self.value, self.grad, *values, *held)

    def descend(self, rate: nm.Tensor) -> nm.Tensor:
        """Return the parameter less a rate times its gradient.

        Args:
            rate: A scalar.
        """
        return self.value - self.grad * rate

    def average(self, name: str, value: nm.Tensor, beta: nm.Tensor | float) -> nm.Tensor:
        """Assign slot * beta + value * (1 - beta) to a slot, a moving average, and return it.

        Args:
            name: The slot's name.
            value: The new value to average in.
            beta: The share of the average so far.
        """
        slot = self.slot(name, value.shape)
        average = slot * beta + value * (1.0 - beta)
        nm.assign(slot, average)
        return average

    def mean(self, name: str, x: nm.Tensor, over: Sequence[nm.Dimension]) -> nm.Tensor:
        """Compute the mean of x over some dimensions, under a name that the plan shows."""
        if not over:
            return x
        total = nm.sum(x, over=over)
        total.describe(name=f"{self.prefix}/{name}")
        return total * (1.0 / nm.Shape(over).elements)


@dataclass(frozen=True)
class RowUpdate(ParameterUpdate):
    """A table in an update of the rows that were looked up; `grad` has their gradients.

    Attributes:
        dim: The dimension that indexes rows.
        indices: The rows that change.
        whole: The gradient of the whole table, if rows may be there several times.

    Example:
        >>> V, B, M = nm.dims("vocab=8 batch=2 model=4")
        >>> def step(ids, rows):
        ...     update = RowUpdate(nm.param("w", [V, M]), rows, "sgd/w", dim=V, indices=ids)
        ...     return update.change({}, lambda row, grad: [row - grad])
        >>> nm.trace(step, nm.spec([B], "int32"), nm.spec([B, M])).outputs[0].shape
        [vocab=8, model=4]
    """

    _: KW_ONLY
    dim: nm.Dimension
    indices: nm.Tensor
    whole: nm.Tensor | None = None

    def _call(
        self, function: ElementRule, held: Sequence[nm.Tensor], *values: nm.Tensor
    ) -> Sequence[nm.Tensor]:
        """Call the function of `change` with the rows that change alone."""

        def change_rows(value: nm.Tensor, *others: nm.Tensor) -> Sequence[nm.Tensor]:
            return function(value, *others[len(held) :], *others[: len(held)])

        tables = [self.value, *held]
        return nm.update_rows(change_rows, tables, self.indices, self.dim, self.grad, *values)

    def descend(self, rate: nm.Tensor) -> nm.Tensor:
        """Do as `ParameterUpdate.descend`; rows may be there several times."""
        indices, rows = self.indices, self.grad
        if self.whole is None:
            change = rows * -rate
        else:  # what is computed of one row of a bag is computed before it is repeated
            indices, change = nm.row_gradient(self.whole * -rate, self.dim, sum_duplicates=False)
        add = lambda _, change: change
        (value,) = nm.update_rows(add, self.value, indices, self.dim, change, adds=True)
        return value


@dataclass(frozen=True)
class _SmallTableUpdate(ParameterUpdate):
    """A table of few rows in an update, of all of them where devices have shards.

    Attributes:
        dim: The dimension that indexes rows.
    """

    _: KW_ONLY
    dim: nm.Dimension

    def descend(self, rate: nm.Tensor) -> nm.Tensor:
        """Do as `ParameterUpdate.descend`; where nothing is split, add rows to the table."""
        return descend_rows(self.value, self.grad, rate, self.dim)


UpdateRule: TypeAlias = "Callable[[ParameterUpdate], nm.Tensor]"


@dataclass(frozen=True)
class Optimizer(Explained):
    """The base of optimizers; a subclass defines `rule`.

    Parameters are float32 (cast them to bfloat16 where they are used). Slots are named
    optimizer/parameter/slot, and are sharded at rest like their parameter.

    Attributes:
        learning_rate: A number or a schedule.
        clip_norm: The largest norm of all gradients together, or None.
        layer_by_layer: Whether the weights of layers in a loop are updated in the backward loop, so
            that gradients of all layers never exist at once. It excludes `clip_norm`.
        average: The decay of a moving average of each parameter, e.g. 0.999 (less in the first
            steps), or None. That of w is the state average/w, which a model uses that is traced in
            `nm.scope("average")`.
        name: The prefix of the optimizer's state, which differs between two in one step.

    Example:
        >>> class SignDescent(Optimizer):
        ...     def rule(self, step, rate):
        ...         return lambda update: update.value - nm.sign(update.grad) * rate
        >>> def step(x):
        ...     loss = nm.sum(nm.param("w", x.shape) * x)
        ...     return SignDescent(0.1, name="sign").apply(nm.grad(loss))
        >>> list(nm.trace(step, nm.spec(nm.dims("model=8"))).updates)
        ['w', 'sign/step']
    """

    learning_rate: float | RateSchedule
    _: KW_ONLY
    clip_norm: Positive | None = None
    layer_by_layer: bool = False
    average: Share | None = None
    name: str = "optimizer"

    by_rows: ClassVar[bool] = False  # whether the rule works on the rows of `nm.param(rows=)`

    def __post_init__(self) -> None:
        owner, rate = type(self).__name__, self.learning_rate
        mistakes = check_options(f"{owner}: ", self)
        if not callable(rate) and not (isinstance(rate, (int, float)) and 0 < rate < math.inf):
            text = "a positive number or a schedule"
            mistakes.append((f"{owner}: learning_rate={rate!r} is not {text}", f"pass {text}"))
        if self.layer_by_layer and self.clip_norm is not None:
            problem = "layer_by_layer=True with clip_norm: no norm is known before all gradients"
            mistakes.append((f"{owner}: {problem}", "leave out one of them"))
        raise_mistakes(owner, mistakes)

    def apply(self, grads: Mapping[str, nm.Tensor]) -> dict[str, nm.Tensor]:
        """Assign every parameter that has a gradient, its slots, and the step counter.

        Args:
            grads: Gradients by parameter name, as `nm.grad` returns them.

        Returns:
            Scalars to watch: `learning_rate`, and with `clip_norm` the `grad_norm` before clipping.
        """
        trace = current("apply")
        if not check_grads(self.name, grads):
            raise nm.NamedMeshError(
                f"{self.name}: there are no gradients, so that no parameter would change",
                fix="pass what nm.grad(loss) returns",
            )
        updates = self._find_updates(trace, grads)
        step = self._count_step(trace)
        rate = as_schedule(self.learning_rate)(step)
        if not isinstance(rate, nm.Tensor) or len(rate.shape) or not rate.floating:
            raise nm.NamedMeshError(
                f"{self.name}: the schedule returned {rate}, not a floating point scalar",
                fix="compute it from the step alone, e.g. nm.rsqrt(nm.cast(step, 'float32') + 1.0)",
            )
        rate = nm.cast(rate, "float32")
        metrics = {"learning_rate": rate}
        clipped = {name: update.grad for name, update in updates.items()}
        if self.clip_norm is not None:
            clipped, metrics["grad_norm"] = clip_by_global_norm(clipped, self.clip_norm)
        rule = self.rule(step, rate)
        with nm.update_in_loops() if self.layer_by_layer else nullcontext():
            for name, update in updates.items():
                value = rule(replace(update, grad=clipped[name]))
                nm.assign(update.value, value)
                if self.average is not None:
                    average, taken = ParameterUpdate(update.value, update.grad, AVERAGE), step + 1
                    early = nm.cast(taken, "float32") / nm.cast(taken + 9, "float32")
                    average.average(name, value, nm.minimum(early, self.average))
        return metrics

    @property
    def needs_unique_rows(self) -> bool:
        """True if gradients of a row that was looked up several times are added up first."""
        return True

    @property
    def keeps_other_rows(self) -> bool:
        """True if rows whose gradient is zero stay as they are, in updates of a whole table too."""
        return False

    def rule(self, step: nm.Tensor, rate: nm.Tensor) -> UpdateRule:
        """Return the function from a ParameterUpdate to the new value, which assigns slots too.

        Args:
            step: The number of steps taken so far, int32.
            rate: The learning rate of this step, float32.
        """
        raise NotImplementedError

    def _count_step(self, trace: Trace) -> nm.Tensor:
        """Return the number of steps taken so far, and assign one more."""
        if f"{trace.scope}{self.name}/step" in trace.updates:
            raise nm.NamedMeshError(
                f"two optimizers named {self.name} are applied in one step",
                fix="apply once, or give one of them another name=",
            )
        step = nm.state(f"{self.name}/step", [], dtype="int32")
        nm.assign(step, step + 1)
        return step

    def _find_mistakes(self, parameters: Mapping[str, Variable]) -> list[Mistake]:
        """Return the wrong options, given all parameters by name."""
        return []

    def _find_updates(
        self, trace: Trace, grads: Mapping[str, nm.Tensor]
    ) -> dict[str, ParameterUpdate]:
        """Pair gradients with parameters, each checked to be float32 and of the same shape."""
        variables = trace.root.variables
        parameters = {name: variable for name, variable in variables.items() if variable.trainable}
        mistakes: list[Mistake] = []
        for name, grad in grads.items():
            variable = parameters.get(name)
            if variable is None:
                frozen = name in variables and variables[name].role == "frozen"
                problem = f"{self.name}: {name} is not a parameter" + " that is trained" * frozen
                fix = "leave its gradient out, or make it with trainable=True"
                mistakes.append((problem, fix if frozen else did_you_mean(name, parameters)))
                continue
            if variable.dtype != "float32":
                problem = f"parameter {name} is {variable.dtype}, in which small updates are lost"
                fix = f"make it float32 and use nm.cast({name}, '{variable.dtype}')"
                mistakes.append((f"{self.name}: {problem}", fix))
            if variable.rows is not None and not self.by_rows:
                problem = f"parameter {name} has rows={variable.rows}, which {type(self).__name__}"
                fix = "use Sgd, Adam or Adagrad for it, or leave out rows="
                mistakes.append((f"{self.name}: {problem} does not update one by one", fix))
            if {*grad.shape} != {*variable.shape}:
                problem = f"parameter {name} is {variable.shape}, its gradient {grad.shape}"
                fix = "pass gradients as nm.grad returns them"
                mistakes.append((f"{self.name}: {problem}", fix))
        mistakes += self._find_mistakes(parameters)
        raise_mistakes(self.name, mistakes)
        updates = {}
        for name, grad in grads.items():
            variable, prefix = parameters[name], f"{self.name}/{name}"
            value, stack, wide = variable.tensor, variable.stack, nm.cast(grad, "float32")
            updates[name] = ParameterUpdate(value, wide, prefix, stack)
            if variable.rows is None:
                continue
            dim = next(dim for dim in variable.shape if dim.name == variable.rows)
            unique = self.needs_unique_rows or self.clip_norm is not None
            indices, rows = nm.row_gradient(wide, dim, unique)
            # Of a small table all rows are as quick, and send less: their gradients are added up.
            if self.keeps_other_rows and dim.size <= FEW_ROWS * indices.shape.elements:
                updates[name] = _SmallTableUpdate(value, wide, prefix, stack, dim=dim)
            else:
                whole = None if unique else wide
                updates[name] = RowUpdate(
                    value, rows, prefix, stack, dim=dim, indices=indices, whole=whole
                )
        return updates
