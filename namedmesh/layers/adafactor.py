"""Adafactor, the paper's optimizer: a factored second moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

import namedmesh as nm
from namedmesh.ir.interface import Variable
from namedmesh.layers.learning_rate import RateSchedule, inverse_square_root
from namedmesh.layers.mistakes import Count, Mistake, Positive, Share, check_dims
from namedmesh.layers.optimizer_base import Optimizer, ParameterUpdate, UpdateRule

PAPER_RATE = inverse_square_root(1.0, after=10_000)


@dataclass(frozen=True)
class Adafactor(Optimizer):
    """Adafactor as the paper uses it: no first moment, and clipped updates relative to parameters.

    The second moment of a parameter whose two largest dimensions both have
    `min_dim_size_to_factor` is stored as means over the largest (slot row) and over the other (slot
    column); otherwise it is stored in full (slot second).

    Attributes:
        learning_rate: A number or a schedule; the paper's by default.
        beta1: The decay of an average of the updates (slot first); 0 for none.
        beta2: The largest decay of the second moment: min(1 - t ** -beta2_exponent, beta2).
        beta2_exponent: See beta2; t counts steps from 1.
        clipping_threshold: The largest root mean square of an update, or None.
        multiply_by_parameter_scale: Whether updates are scaled by the parameter's root mean square.
        min_dim_size_to_factor: The smallest dimension that is factored.
        unfactored: Dimensions whose slices are separate tensors, never averaged, clipped or scaled
            together, e.g. that of experts. Dimensions that `nm.scan(stack=True)` adds always are.
        epsilon: Added to the squared gradient.
        epsilon_scale: The smallest root mean square of a parameter.

    Example:
        >>> M, H, x = *nm.dims("model=128 hidden=256"), nm.spec([])
        >>> step = lambda x: Adafactor().apply(nm.grad(nm.sum(nm.param("w", [M, H]) * x)))
        >>> list(nm.trace(step, x).variables)
        ['w', 'adafactor/step', 'adafactor/w/row', 'adafactor/w/column']
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

    def _find_mistakes(self, parameters: Mapping[str, Variable]) -> list[Mistake]:
        """Return what of `unfactored` is not a dimension of a parameter."""
        return check_dims(f"{self.name}: unfactored", self.unfactored, parameters)

    def rule(self, step: nm.Tensor, rate: nm.Tensor) -> UpdateRule:
        """Return the update: value - rate * parameter scale * clip(gradient / sqrt(second))."""
        count = nm.cast(step, "float32") + 1.0
        beta2 = nm.minimum(1.0 - count**-self.beta2_exponent, self.beta2)

        def update_parameter(update: ParameterUpdate) -> nm.Tensor:
            separate = {*update.stack, *(dim.name for dim in self.unfactored)}
            own = [dim for dim in update.value.shape if dim.name not in separate]

            def root_mean_square(name: str, x: nm.Tensor) -> nm.Tensor:
                # A GPU would compute the root again in every tile of the update.
                return nm.compute_once(nm.sqrt(update.mean(name, nm.square(x), own)))

            change = self._normalize(update, own, beta2)
            if self.clipping_threshold is not None:
                size = root_mean_square("update_square", change)
                change = change / nm.maximum(size * (1.0 / self.clipping_threshold), 1.0)
            scale = rate
            if self.multiply_by_parameter_scale:
                size = root_mean_square("parameter_square", update.value)
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
        # Devices add up only these means, along dimensions over which a parameter is sharded.
        squares = nm.square(update.grad) + self.epsilon
        factors = sorted(own, key=lambda dim: dim.size)[-2:]
        if len(factors) < 2 or factors[0].size < self.min_dim_size_to_factor:
            return update.grad * nm.rsqrt(update.average("second", squares, beta2))
        second, largest = factors
        row = update.average("row", update.mean("row_mean", squares, [largest]), beta2)
        column = update.average("column", update.mean("column_mean", squares, [second]), beta2)
        relative = row / update.mean("row_mean_mean", row, [second])
        return update.grad * nm.rsqrt(relative) * nm.rsqrt(column)
