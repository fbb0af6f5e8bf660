"""Muon: momentum whose singular values are made about one (Jordan et al., 2024)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

import namedmesh as nm
from namedmesh.ir.interface import Variable
from namedmesh.layers.mistakes import Mistake, Positive, Share, check_dims
from namedmesh.layers.optimizer_base import ParameterUpdate, UpdateRule
from namedmesh.layers.optimizers import Adam

COEFFICIENTS = 3.4445, -4.7750, 2.0315  # of Newton and Schulz's iteration, as Jordan chose them


@dataclass(frozen=True)
class Muon(Adam):
    """Muon for weights that are matrices, and Adam for all others.

    A matrix has some of `rows` on one side and all other dimensions on the other; layers of a
    stack, and elements of `apart`, have a matrix each. Its products are those of any tensors: where
    a layout splits a weight at rest, the plan shows what they gather and add up.

    Attributes:
        rows: The dimensions of one side, such as `[model]`.
        apart: Dimensions of which each element has a matrix of its own, such as `[expert]`.
        others: Patterns of the names of parameters that Adam updates although they are matrices:
            `["*embedding", "output"]`.
        momentum: The decay of the average of gradients (slot momentum).
        nesterov: Whether to look one step ahead.
        iterations: How often Newton and Schulz's step is taken.
        scale: The root mean square of a change's elements, for a rate of one. With 0.2 it is much
            the same as Adam's, so that one rate and one decay serve both.

    Example:
        >>> M, H = nm.dims("model=8 hidden=4")
        >>> def step(x):
        ...     y = nm.sum(nm.param("w", [M, H]) * x) + nm.sum(nm.param("b", [H]))
        ...     return Muon(1e-3, rows=[M]).apply(nm.grad(y))
        >>> list(nm.trace(step, nm.spec([M, H])).updates)
        ['w', 'b', 'muon/step', 'muon/w/momentum', 'muon/b/first', 'muon/b/second']
    """

    _: KW_ONLY
    rows: Sequence[nm.Dimension]
    apart: Sequence[nm.Dimension] = ()
    others: Sequence[str] = ()
    momentum: Share = 0.95
    nesterov: bool = True
    iterations: int = 5
    scale: Positive = 0.2
    name: str = "muon"

    by_rows = False

    def rule(self, step: nm.Tensor, rate: nm.Tensor) -> UpdateRule:
        """Return the update: value - rate * (scaled change + decay * value), or Adam's."""
        adam = super().rule(step, rate)

        def update_parameter(update: ParameterUpdate) -> nm.Tensor:
            own = [dim for dim in update.value.shape if dim.name not in update.stack]
            rows = [dim for dim in own if dim in self.rows]
            columns = [dim for dim in own if dim not in (*self.rows, *self.apart)]
            if not rows or not columns or self.matches(update, self.others):
                return adam(update)
            change = update.average("momentum", update.grad, self.momentum)
            if self.nesterov:
                change = change * self.momentum + update.grad * (1.0 - self.momentum)
            small, large = sorted((rows, columns), key=lambda dims: nm.Shape(dims).elements)
            factor = self.scale * math.sqrt(nm.Shape(large).elements)
            change = self._orthogonalize(change, small, large) * factor
            decay = 0.0 if self.matches(update, self.undecayed) else self.weight_decay
            return update.value - (change + update.value * decay) * rate

        return update_parameter

    def _orthogonalize(
        self, x: nm.Tensor, small: Sequence[nm.Dimension], large: Sequence[nm.Dimension]
    ) -> nm.Tensor:
        """Move singular values towards one, by products of the smaller side with itself."""
        batch = [dim for dim in x.shape if dim not in (*small, *large)]
        twins, thirds = (
            {dim: nm.Dimension(f"{dim.name}_{role}", dim.size) for dim in small}
            for role in ("twin", "third")
        )
        back = {third: twins[dim] for dim, third in thirds.items()}
        first, second, third = COEFFICIENTS

        def iterate(x: nm.Tensor, _: None) -> tuple[nm.Tensor, None]:
            turned = nm.rename(x, twins)
            product = nm.einsum([x, turned], [*batch, *small, *twins.values()])
            other = nm.rename(product, thirds)
            squared = nm.einsum([product, other], [*batch, *small, *thirds.values()])
            factor = product * second + nm.rename(squared, back) * third
            return x * first + nm.einsum([factor, turned], x.shape.dims), None

        norm = nm.sqrt(nm.sum(nm.square(x), over=[*small, *large])) + 1e-8
        return nm.scan(iterate, x / norm, over=nm.Dimension("iteration", self.iterations))[0]

    def _find_mistakes(self, parameters: Mapping[str, Variable]) -> list[Mistake]:
        """Return what `rows` and `apart` have besides dimensions of parameters."""
        mistakes = super()._find_mistakes(parameters)
        for option in ("rows", "apart"):
            dims = getattr(self, option)
            mistakes += check_dims(f"{self.name}: {option}", dims, parameters)
        return mistakes
