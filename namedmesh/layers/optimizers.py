"""Optimizers: after nm.grad, apply(grads) assigns every parameter, its slots and the step counter.

Parameters are float32 (cast them to bfloat16 where they are used); gradients of another dtype are cast. Slots
are float32, named optimizer/parameter/slot, and rest where their parameter rests. Sgd and Adam therefore move
nothing. Adafactor adds up over devices only its means over dimensions that the parameter is split along: the
row and column means of the squared gradient, the mean of the row means, and the mean squares of the update
and of the parameter. clip_norm adds one number for each split gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any

import namedmesh as nm
from namedmesh.dims.errors import did_you_mean
from namedmesh.ir.interface import Variable
from namedmesh.ir.trace import current
from namedmesh.layers.clipping import clip_by_global_norm
from namedmesh.layers.schedules import Schedule, as_schedule, inverse_square_root


@dataclass(frozen=True)
class Target:
    """One parameter in an update: the variable, its gradient in float32, and the prefix its slots are named with."""

    variable: Variable
    grad: nm.Tensor
    prefix: str

    @property
    def value(self) -> nm.Tensor:
        """The parameter before the update."""
        return self.variable.tensor

    def slot(self, name: str, dims: Sequence[nm.Dimension] | None = None) -> nm.Tensor:
        """A slot of the parameter, of its shape unless dims are given; zero at first."""
        return nm.state(
            f"{self.prefix}/{name}", self.value.shape if dims is None else dims, of=self.value
        )

    def average(self, name: str, value: nm.Tensor, beta: nm.Tensor | float) -> nm.Tensor:
        """A slot's moving average with a new value in it: slot * beta + value * (1 - beta), assigned."""
        slot = self.slot(name, value.shape)
        new = slot * beta + value * (1.0 - beta)
        nm.assign(slot, new)
        return new

    def mean(self, name: str, x: nm.Tensor, over: Sequence[nm.Dimension]) -> nm.Tensor:
        """The mean over some dimensions, under a name the plan shows."""
        if not over:
            return x
        total = nm.sum(x, over=over)
        total.describe(name=f"{self.prefix}/{name}")
        return total * (1.0 / nm.Shape(over).elements)


Rule = Callable[[Target], nm.Tensor]
PAPER_RATE = inverse_square_root(1.0, after=10_000)


SHARES = ("momentum", "beta1", "beta2")  # from 0 to below 1
POSITIVE = (
    "clip_norm",
    "epsilon",
    "clipping_threshold",
    "beta2_exponent",
    "epsilon_scale",
    "min_dim_size_to_factor",
)


@dataclass(frozen=True)
class Optimizer:
    """What every optimizer has: a learning rate (a number or a schedule), and a limit on the norm of all gradients.

    Two optimizers in one step, for different parameters, need different names.
    """

    learning_rate: float | Schedule
    _: KW_ONLY
    clip_norm: float | None = None
    name: str = "optimizer"

    def __post_init__(self) -> None:
        for one in fields(self):
            _check(type(self).__name__, one.name, getattr(self, one.name))

    def apply(self, grads: Mapping[str, nm.Tensor]) -> dict[str, nm.Tensor]:
        """Assigns what the gradients (by parameter name) lead to; parameters without one stay as they are.

        Returns scalars to watch: learning_rate, and with clip_norm the grad_norm before clipping.
        """
        targets = self._targets(grads)
        step = self._counter()
        rate = as_schedule(self.learning_rate)(step)
        if not isinstance(rate, nm.Tensor) or len(rate.shape) or not rate.floating:
            raise nm.NamedMeshError(
                f"{self.name}: the schedule gave {rate}, not a floating point scalar",
                fix="compute it from the step alone, e.g. nm.rsqrt(nm.cast(step, 'float32') + 1.0)",
            )
        rate = nm.cast(rate, "float32")
        metrics = {"learning_rate": rate}
        kept = {name: target.grad for name, target in targets.items()}
        if self.clip_norm is not None:
            kept, metrics["grad_norm"] = clip_by_global_norm(kept, self.clip_norm)
        rule = self.rule(step, rate)
        for name, target in targets.items():
            nm.assign(target.value, rule(Target(target.variable, kept[name], target.prefix)))
        return metrics

    def rule(self, step: nm.Tensor, rate: nm.Tensor) -> Rule:
        """The function from one target to its new value, given the steps taken so far; it assigns the slots."""
        raise NotImplementedError

    def _counter(self) -> nm.Tensor:
        """The number of steps taken so far, one more for the next."""
        trace = current("apply")
        if f"{trace.scope}{self.name}/step" in trace.updates:
            raise nm.NamedMeshError(
                f"two optimizers named {self.name} are applied in one step",
                fix="apply once, or give one of them another name=",
            )
        step = nm.state(f"{self.name}/step", [], dtype="int32")
        nm.assign(step, step + 1)
        return step

    def _targets(self, grads: Mapping[str, nm.Tensor]) -> dict[str, Target]:
        """The parameters that have gradients, each checked to be a float32 parameter of that shape."""
        variables = {
            name: found
            for name, found in current("apply").root.variables.items()
            if found.trainable
        }
        targets = {}
        for name, grad in grads.items():
            if name not in variables:
                raise nm.NamedMeshError(
                    f"{self.name}: {name} is not a parameter", fix=did_you_mean(name, variables)
                )
            variable = variables[name]
            if variable.dtype != "float32":
                raise nm.NamedMeshError(
                    f"{self.name}: parameter {name} is {variable.dtype}, in which small updates are lost",
                    fix=f"make it float32 and use nm.cast({name}, '{variable.dtype}')",
                )
            if {*grad.shape} != {*variable.shape}:
                raise nm.NamedMeshError(
                    f"{self.name}: parameter {name} is {variable.shape}, its gradient {grad.shape}",
                    fix="pass gradients as nm.grad returns them",
                )
            targets[name] = Target(variable, nm.cast(grad, "float32"), f"{self.name}/{name}")
        return targets


def _check(owner: str, name: str, value: Any) -> None:
    """Raises when an option cannot be what it is for."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if name in SHARES and not (number and 0 <= value < 1):
        raise nm.NamedMeshError(f"{owner}: {name}={value!r}", fix="give a number from 0 to below 1")
    if name == "weight_decay" and not (number and 0 <= value < float("inf")):
        raise nm.NamedMeshError(f"{owner}: {name}={value!r}", fix="give 0 or a positive number")
    if name == "learning_rate" and callable(value):
        return
    if (
        name in (*POSITIVE, "learning_rate")
        and value is not None
        and not (number and 0 < value < float("inf"))
    ):
        raise nm.NamedMeshError(
            f"{owner}: {name}={value!r}",
            fix="give a positive number" + " or a schedule" * (name == "learning_rate"),
        )


@dataclass(frozen=True)
class Sgd(Optimizer):
    """Gradient descent; momentum sums decayed gradients (slot momentum), nesterov looks one step ahead."""

    _: KW_ONLY
    momentum: float = 0.0
    nesterov: bool = False
    name: str = "sgd"

    def rule(self, step: nm.Tensor, rate: nm.Tensor) -> Rule:
        """value - rate * (gradient, or its decayed sum)."""

        def updated(target: Target) -> nm.Tensor:
            change = target.grad
            if self.momentum:
                slot = target.slot("momentum")
                velocity = slot * self.momentum + target.grad
                nm.assign(slot, velocity)
                change = target.grad + velocity * self.momentum if self.nesterov else velocity
            return target.value - change * rate

        return updated


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam with bias correction (slots first and second); with weight_decay, decoupled and times the rate, it is AdamW."""

    _: KW_ONLY
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    name: str = "adam"

    def rule(self, step: nm.Tensor, rate: nm.Tensor) -> Rule:
        """value - rate * (first / (sqrt(second) + epsilon) + weight_decay * value), both moments corrected."""
        count = nm.cast(step, "float32") + 1.0
        first_share = 1.0 - self.beta1**count
        second_share = 1.0 - self.beta2**count

        def updated(target: Target) -> nm.Tensor:
            first = target.average("first", target.grad, self.beta1) / first_share
            second = target.average("second", nm.square(target.grad), self.beta2) / second_share
            change = first / (nm.sqrt(second) + self.epsilon)
            if self.weight_decay:
                change = change + target.value * self.weight_decay
            return target.value - change * rate

        return updated


@dataclass(frozen=True)
class Adafactor(Optimizer):
    """Adafactor as the paper uses it: factored second moment, no first moment, clipped updates relative to the parameter.

    The second moment decays by min(1 - t ** -beta2_exponent, beta2), t = 1, 2, ...; where a parameter's two largest
    dimensions both have min_dim_size_to_factor, it is kept as means over the largest (slot row) and over the
    second (slot column), elsewhere in full (slot second). Updates whose root mean square is above clipping_threshold are
    scaled down to it, then multiplied by the learning rate and the root mean square of the parameter, at least
    epsilon_scale. beta1 averages what comes of that (slot first).

    Along the dimensions in unfactored (name the experts' here) and those that scan(stack=True) stacked a
    parameter along, every slice is a tensor of its own: it is never averaged, clipped or scaled with another.
    """

    learning_rate: float | Schedule = PAPER_RATE
    _: KW_ONLY
    beta1: float = 0.0
    beta2: float = 0.99
    beta2_exponent: float = 0.8
    clipping_threshold: float | None = 1.0
    multiply_by_parameter_scale: bool = True
    min_dim_size_to_factor: int = 128
    unfactored: Sequence[nm.Dimension] = ()
    epsilon: float = 1e-30
    epsilon_scale: float = 1e-3
    name: str = "adafactor"

    def apply(self, grads: Mapping[str, nm.Tensor]) -> dict[str, nm.Tensor]:
        """As Optimizer.apply; a dimension in unfactored that no parameter has is an error."""
        known = {name for grad in grads.values() for name in grad.shape.names}
        for dim in self.unfactored:
            if not isinstance(dim, nm.Dimension) or dim.name not in known:
                label = dim.name if isinstance(dim, nm.Dimension) else str(dim)
                raise nm.NamedMeshError(
                    f"{self.name}: unfactored={label!r} is not a dimension of any parameter",
                    fix=did_you_mean(label, known),
                )
        return super().apply(grads)

    def rule(self, step: nm.Tensor, rate: nm.Tensor) -> Rule:
        """value - rate * scale of the parameter * clipped(gradient / root of its second moment)."""
        count = nm.cast(step, "float32") + 1.0
        beta2 = nm.minimum(1.0 - count**-self.beta2_exponent, self.beta2)

        def updated(target: Target) -> nm.Tensor:
            apart = {*target.variable.stack, *(dim.name for dim in self.unfactored)}
            own = [dim for dim in target.value.shape if dim.name not in apart]
            change = self._normalized(target, own, beta2)
            if self.clipping_threshold is not None:
                size = nm.sqrt(target.mean("update_square", nm.square(change), own))
                change = change / nm.maximum(size * (1.0 / self.clipping_threshold), 1.0)
            scale = rate
            if self.multiply_by_parameter_scale:
                size = nm.sqrt(target.mean("parameter_square", nm.square(target.value), own))
                scale = nm.maximum(size, self.epsilon_scale) * rate
            change = change * scale
            if self.beta1:
                change = target.average("first", change, self.beta1)
            return target.value - change

        return updated

    def _normalized(
        self, target: Target, own: Sequence[nm.Dimension], beta2: nm.Tensor
    ) -> nm.Tensor:
        """The gradient over the root of its second moment, factored where the dimensions are large enough."""
        squares = nm.square(target.grad) + self.epsilon
        factors = sorted(own, key=lambda dim: dim.size)[-2:]
        if len(factors) < 2 or factors[0].size < self.min_dim_size_to_factor:
            return target.grad * nm.rsqrt(target.average("second", squares, beta2))
        second, largest = factors
        row = target.average("row", target.mean("row_mean", squares, [largest]), beta2)
        column = target.average("column", target.mean("column_mean", squares, [second]), beta2)
        relative = row / target.mean("row_mean_mean", row, [second])
        return target.grad * nm.rsqrt(relative) * nm.rsqrt(column)
