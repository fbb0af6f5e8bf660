"""Adafactor, the paper's optimizer: a factored second moment.

Devices add up only its means over dimensions that a parameter is split along: the row and column
means of the squared gradient, the mean of the row means, and the mean squares of the update and of
the parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

import namedmesh as nm
from namedmesh.errors.errors import did_you_mean
from namedmesh.layers.learning_rate import RateSchedule, inverse_square_root
from namedmesh.layers.mistakes import Count, Mistake, Positive, Share, raise_mistakes
from namedmesh.layers.optimizer_base import Optimizer, ParameterUpdate, UpdateRule

PAPER_RATE = inverse_square_root(1.0, after=10_000)


@dataclass(frozen=True)
class Adafactor(Optimizer):
    """Adafactor as the paper uses it: no first moment, and clipped updates relative to parameters.

    Where the two largest dimensions of a parameter both have `min_dim_size_to_factor`, its second
    moment is kept as means over the largest (slot row) and over the other (slot column), elsewhere
    in full (slot second).

    Attributes:
        learning_rate: A number or a schedule; the paper's by default.
        beta1: The decay of an average of the updates (slot first); 0 keeps none.
        beta2: The largest decay of the second moment, which is min(1 - t ** -beta2_exponent, beta2)
            for t = 1, 2, ...
        beta2_exponent: See beta2.
        clipping_threshold: The largest root mean square of an update, or None.
        multiply_by_parameter_scale: Whether updates are multiplied by the root mean square of the
            parameter.
        min_dim_size_to_factor: The smallest dimension that is factored.
        unfactored: Dimensions along which every slice is a tensor of its own, never averaged,
            clipped or scaled with another: name the experts' here. Those that
            `nm.scan(stack=True)` stacked a parameter along always are.
        epsilon: Added to the squared gradient.
        epsilon_scale: The smallest root mean square of a parameter.

    Example:
        >>> M, H = nm.dims("model=128 hidden=256")
        >>> def step(x):
        ...     loss = nm.sum(nm.param("w", [M, H]) * x)
        ...     return Adafactor().apply(nm.grad(loss))
        >>> program = nm.trace(step, nm.spec([M]))
        >>> {name: str(variable.shape) for name, variable in program.variables.items()}
        {'w': '[model=128, hidden=256]', 'adafactor/step': '[]', \
    'adafactor/w/row': '[model=128]', 'adafactor/w/column': '[hidden=256]'}
    """

    learning_rate: float | RateSchedule = PAPER_RATE
    _: KW_ONLY
    beta1: Share = 0.0
    beta2: Share = 0.99
    beta2_exponent: Positive = 0.8
    clipping_threshold: Positive | None = 1.0
    multiply_by_parameter_scale: bool = True
    min_dim_size_to_factor: Count = 128
    unfactored: Sequence[nm.Dimension] = ()
    epsilon: Positive = 1e-30
    epsilon_scale: Positive = 1e-3
    name: str = "adafactor"

    def apply(self, grads: Mapping[str, nm.Tensor]) -> dict[str, nm.Tensor]:
        """Assign every parameter that has a gradient, its slots, and the step counter.

        Args:
            grads: Gradients by parameter name, as `nm.grad` returns them.

        Returns:
            Scalars to watch, as `Optimizer.apply` does.

        Example:
            >>> M, E = nm.dims("model=8 expert=4")
            >>> def step(x):
            ...     loss = nm.sum(nm.param("w", [E, M]) * x)
            ...     return Adafactor(unfactored=[E]).apply(nm.grad(loss))
            >>> list(nm.trace(step, nm.spec([M])).updates)
            ['w', 'adafactor/step', 'adafactor/w/second']
        """
        known = {name for grad in grads.values() for name in grad.shape.names}
        mistakes: list[Mistake] = []
        for dim in self.unfactored:
            if isinstance(dim, nm.Dimension) and dim.name in known:
                continue
            label = dim.name if isinstance(dim, nm.Dimension) else str(dim)
            problem = f"{self.name}: unfactored={label!r} is not a dimension of any parameter"
            mistakes.append((problem, did_you_mean(label, known)))
        raise_mistakes(self.name, mistakes)
        return super().apply(grads)

    def rule(self, step: nm.Tensor, rate: nm.Tensor) -> UpdateRule:
        """Return the update: value - rate * parameter scale * clip(gradient / sqrt(second)).

        Args:
            step: The number of steps taken so far.
            rate: The learning rate of this step.

        Example:
            >>> def step(x):
            ...     update = ParameterUpdate(nm.param("w", x.shape), x, "adafactor/w")
            ...     rule = Adafactor(0.1).rule(nm.zeros([], "int32"), nm.full([], 0.1))
            ...     return rule(update)
            >>> nm.trace(step, nm.spec(nm.dims("model=8"))).outputs[0].shape
            [model=8]
        """
        count = nm.cast(step, "float32") + 1.0
        beta2 = nm.minimum(1.0 - count**-self.beta2_exponent, self.beta2)

        def update_parameter(update: ParameterUpdate) -> nm.Tensor:
            separate = {*update.stack, *(dim.name for dim in self.unfactored)}
            own = [dim for dim in update.value.shape if dim.name not in separate]
            change = self._normalize(update, own, beta2)
            if self.clipping_threshold is not None:
                size = update.mean("update_square", nm.square(change), own)
                # A GPU would compute these roots again in every tile of the update.
                size = nm.compute_once(nm.sqrt(size))
                change = change / nm.maximum(size * (1.0 / self.clipping_threshold), 1.0)
            scale = rate
            if self.multiply_by_parameter_scale:
                size = update.mean("parameter_square", nm.square(update.value), own)
                size = nm.compute_once(nm.sqrt(size))
                scale = nm.maximum(size, self.epsilon_scale) * rate
            change = change * scale
            if self.beta1:
                change = update.average("first", change, self.beta1)
            return update.value - change

        return update_parameter

    def _normalize(
        self, update: ParameterUpdate, own: Sequence[nm.Dimension], beta2: nm.Tensor
    ) -> nm.Tensor:
        """Divide the gradient by the root of its second moment, factored if large enough."""
        squares = nm.square(update.grad) + self.epsilon
        factors = sorted(own, key=lambda dim: dim.size)[-2:]
        if len(factors) < 2 or factors[0].size < self.min_dim_size_to_factor:
            return update.grad * nm.rsqrt(update.average("second", squares, beta2))
        second, largest = factors
        row = update.average("row", update.mean("row_mean", squares, [largest]), beta2)
        column = update.average("column", update.mean("column_mean", squares, [second]), beta2)
        relative = row / update.mean("row_mean_mean", row, [second])
        return update.grad * nm.rsqrt(relative) * nm.rsqrt(column)
