"""SOAP: Adam in the eigenbases of the gradients' second moments (Vyas et al., 2024)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import namedmesh as nm
from namedmesh.layers.mistakes import NonNegative, Positive, Share
from namedmesh.layers.optimizer_base import Optimizer, ParameterUpdate, UpdateRule


@dataclass(frozen=True)
class Soap(Optimizer):
    """SOAP: for each dimension of a weight a basis, in which Adam's second moments are kept.

    The first step finds the bases and changes nothing: in those of a single gradient most of what
    it makes is zero, and would be divided by zero.

    The slots statistics_D and basis_D of a dimension D are matrices of D by D_twin and D_basis,
    which a layout shards as any others; what is decomposed is gathered in steps that do it.

    Attributes:
        beta1: The decay of the first moment (slot first).
        beta2: The decay of the second moment (slot second), and of the statistics.
        epsilon: Added to the root of the second moment.
        weight_decay: Decoupled weight decay, multiplied by the learning rate.
        every: After how many steps bases follow their statistics.
        largest: The size up to which a dimension has a basis. Vectors have none.

    Example:
        >>> step = lambda x: Soap(1e-3).apply(nm.grad(nm.sum(nm.param("w", x.shape) * x)))
        >>> list(nm.trace(step, nm.spec(nm.dims("model=8 hidden=4"))).updates)[2:5]
        ['soap/w/first', 'soap/w/statistics_model', 'soap/w/basis_model']
    """

    _: KW_ONLY
    beta1: Share = 0.95
    beta2: Share = 0.95
    epsilon: Positive = 1e-8
    weight_decay: NonNegative = 0.0
    every: int = 10
    largest: int = 4096
    name: str = "soap"

    def rule(self, step: nm.Tensor, rate: nm.Tensor) -> UpdateRule:
        """Return the update: Adam's, of the gradient in its basis, and turned back."""
        count = nm.cast(nm.maximum(step, 1), "float32")
        corrections = 1.0 - self.beta1**count, 1.0 - self.beta2**count

        def update_parameter(update: ParameterUpdate) -> nm.Tensor:
            own = [dim for dim in update.value.shape if dim.name not in update.stack]
            chosen = [dim for dim in own if len(own) > 1 and 1 < dim.size <= self.largest]
            grad = nm.where(step > 0, update.grad, 0.0)
            first = update.average("first", grad, self.beta1)
            bases = {dim: self._find_basis(update, dim, step) for dim in chosen}
            turned = _turn(grad, bases)
            second = update.average("second", nm.square(turned), self.beta2)
            scale = nm.sqrt(second / corrections[1]) + self.epsilon
            change = _turn(_turn(first, bases) / corrections[0] / scale, bases, back=True)
            change = change + update.value * self.weight_decay if self.weight_decay else change
            return update.value - change * rate

        return update_parameter

    def _find_basis(self, update: ParameterUpdate, dim: nm.Dimension, step: nm.Tensor) -> nm.Tensor:
        """Average the statistics of a dimension, refresh its basis, and return that of before."""
        batch = [one for one in update.value.shape if one.name in update.stack]
        twin, basis = (nm.Dimension(f"{dim.name}_{role}", dim.size) for role in ("twin", "basis"))
        products = nm.einsum([update.grad, nm.rename(update.grad, dim, twin)], [*batch, dim, twin])
        statistics = update.average(f"statistics_{dim.name}", products, self.beta2)
        before = update.slot(f"basis_{dim.name}", [*batch, dim, basis])

        def follow() -> nm.Tensor:
            """Take one step of the power iteration."""
            known = nm.rename(before, dim, twin)
            moved = nm.einsum([statistics, known], [*batch, dim, basis])
            number = nm.Dimension(f"{dim.name}_number", dim.size)
            return nm.rename(nm.qr(moved, dim, basis, number)[0], number, basis)

        start = lambda: nm.eigh(statistics, dim, twin, basis)[1]
        refresh = lambda: nm.cond(nm.equal(step, 0), start, follow)
        nm.assign(before, nm.cond(nm.equal(step % self.every, 0), refresh, lambda: before))
        return before


def _turn(x: nm.Tensor, bases: dict[nm.Dimension, nm.Tensor], back: bool = False) -> nm.Tensor:
    """Express a tensor in the bases of its dimensions, or again without them."""
    for dim, matrix in bases.items():
        basis = matrix.shape.dims[-1]
        old, new = (basis, dim) if back else (dim, basis)
        x = nm.einsum([x, matrix], [new if one == old else one for one in x.shape])
    return x
