"""Gradient descent, Adam and Adagrad, which move nothing between devices except for clip_norm."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

import namedmesh as nm
from namedmesh.errors.errors import did_you_mean
from namedmesh.ir.interface import Variable
from namedmesh.layers.mistakes import Mistake, NonNegative, Positive, Share, check_dims
from namedmesh.layers.optimizer_base import Optimizer, ParameterUpdate, UpdateRule


@dataclass(frozen=True)
class Sgd(Optimizer):
    """Gradient descent, optionally with momentum.

    Of a parameter with rows (`nm.param(rows=)`) the momentum of rows that a step does not look up
    stays as it is.

    Attributes:
        momentum: The factor by which the sum of past gradients decays (slot momentum).
        nesterov: Whether to look one step ahead.

    Example:
        >>> def step(x):
        ...     loss = nm.sum(nm.param("w", x.shape) * x)
        ...     return Sgd(0.1, momentum=0.9).apply(nm.grad(loss))
        >>> list(nm.trace(step, nm.spec(nm.dims("model=8"))).updates)
        ['w', 'sgd/step', 'sgd/w/momentum']
    """

    _: KW_ONLY
    momentum: Share = 0.0
    nesterov: bool = False
    name: str = "sgd"

    by_rows = True

    @property
    def needs_unique_rows(self) -> bool:
        """True with momentum, which counts a row once."""
        return bool(self.momentum)

    @property
    def keeps_other_rows(self) -> bool:
        """True without momentum."""
        return not self.momentum

    def rule(self, step: nm.Tensor, rate: nm.Tensor) -> UpdateRule:
        """Return the update: value - rate * (gradient, or its decayed sum)."""

        def move(value: nm.Tensor, grad: nm.Tensor, slot: nm.Tensor) -> list[nm.Tensor]:
            velocity = slot * self.momentum + grad
            change = grad + velocity * self.momentum if self.nesterov else velocity
            return [value - change * rate, velocity]

        def update_parameter(update: ParameterUpdate) -> nm.Tensor:
            if self.momentum:
                return update.change({"momentum": None}, move)
            return update.descend(rate)

        return update_parameter


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam with bias correction, and AdamW with weight decay.

    Of a parameter with rows (`nm.param(rows=)`) it is the lazy form: moments and weights of rows
    that a step does not look up stay as they are.

    Attributes:
        beta1: The decay of the first moment (slot first).
        beta2: The decay of the second moment (slot second).
        epsilon: Added to the root of the second moment.
        weight_decay: Decoupled weight decay, multiplied by the learning rate.
        undecayed: Patterns of the names of parameters that do not decay: `["*scale", "*bias"]`.

    Example:
        >>> step = lambda x: Adam(1e-3).apply(nm.grad(nm.sum(nm.param("w", x.shape) * x)))
        >>> list(nm.trace(step, nm.spec(nm.dims("model=8"))).updates)
        ['w', 'adam/step', 'adam/w/first', 'adam/w/second']
    """

    _: KW_ONLY
    beta1: Share = 0.9
    beta2: Share = 0.999
    epsilon: Positive = 1e-8
    weight_decay: NonNegative = 0.0
    undecayed: Sequence[str] = ()
    name: str = "adam"

    by_rows = True

    def rule(self, step: nm.Tensor, rate: nm.Tensor) -> UpdateRule:
        """Return the update: value - rate * (first / (sqrt(second) + epsilon) + decay * value)."""
        count = nm.cast(step, "float32") + 1.0
        first_correction = 1.0 - self.beta1**count
        second_correction = 1.0 - self.beta2**count

        def update_parameter(update: ParameterUpdate) -> nm.Tensor:
            decay = 0.0 if self.matches(update, self.undecayed) else self.weight_decay

            def move(
                value: nm.Tensor, grad: nm.Tensor, first: nm.Tensor, second: nm.Tensor
            ) -> list[nm.Tensor]:
                first = first * self.beta1 + grad * (1.0 - self.beta1)
                second = second * self.beta2 + nm.square(grad) * (1.0 - self.beta2)
                scale = nm.sqrt(second / second_correction) + self.epsilon
                change = first / first_correction / scale
                change = change + value * decay if decay else change
                return [value - change * rate, first, second]

            return update.change({"first": None, "second": None}, move)

        return update_parameter

    def matches(self, update: ParameterUpdate, patterns: Sequence[str]) -> bool:
        """Return True if a pattern matches the name of the parameter."""
        name = update.prefix.removeprefix(f"{self.name}/")
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    def _find_mistakes(self, parameters: Mapping[str, Variable]) -> list[Mistake]:
        """Return the patterns that match nothing."""
        useless = [one for one in self.undecayed if not fnmatch.filter(parameters, one)]
        problem = f"{self.name}: undecayed={{!r}} matches no parameter".format
        return [(problem(one), did_you_mean(one.strip("*"), parameters)) for one in useless]


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad: gradients are divided by the root of the sum of all their squares so far.

    Rows that a step does not look up stay as they are in any case, so a parameter with rows
    (`nm.param(rows=)`) is trained as one without.

    Attributes:
        row_wise: A dimension: parameters that have it keep one sum for each of its elements, of the
            mean of the squares over their other dimensions. Otherwise all elements keep their own.
        epsilon: Added to the root.

    Example:
        >>> step = lambda x: Adagrad(0.1).apply(nm.grad(nm.sum(nm.param("w", x.shape) * x)))
        >>> list(nm.trace(step, nm.spec(nm.dims("model=8"))).updates)
        ['w', 'adagrad/step', 'adagrad/w/sum']
    """

    _: KW_ONLY
    row_wise: nm.Dimension | None = None
    epsilon: Positive = 1e-10
    name: str = "adagrad"

    by_rows = True

    @property
    def keeps_other_rows(self) -> bool:
        """True: zeros add nothing to the sums."""
        return True

    def rule(self, step: nm.Tensor, rate: nm.Tensor) -> UpdateRule:
        """Return the update: value - rate * gradient / (sqrt(sum) + epsilon)."""

        def move(
            value: nm.Tensor, grad: nm.Tensor, squares: nm.Tensor, total: nm.Tensor
        ) -> list[nm.Tensor]:
            total = total + squares
            return [value - grad / (nm.sqrt(total) + self.epsilon) * rate, total]

        def update_parameter(update: ParameterUpdate) -> nm.Tensor:
            squares, dims = nm.square(update.grad), None
            if self.row_wise is not None and self.row_wise in update.value.shape:
                dims = [self.row_wise]
                over = [dim for dim in update.value.shape if dim != self.row_wise]
                squares = update.mean("squares", squares, over)
            return update.change({"sum": dims}, move, squares)

        return update_parameter

    def _find_mistakes(self, parameters: Mapping[str, Variable]) -> list[Mistake]:
        """Return what `row_wise` is, if not a dimension of a parameter."""
        dims = [] if self.row_wise is None else [self.row_wise]
        return check_dims(f"{self.name}: row_wise", dims, parameters)
