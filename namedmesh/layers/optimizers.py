"""Gradient descent and Adam, which move nothing between devices except for clip_norm."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import namedmesh as nm
from namedmesh.errors.errors import did_you_mean
from namedmesh.layers.mistakes import Mistake, NonNegative, Positive, Share
from namedmesh.layers.optimizer_base import Optimizer, ParameterUpdate, UpdateRule


@dataclass(frozen=True)
class Sgd(Optimizer):
    """Gradient descent, optionally with momentum.

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

    def rule(self, step: nm.Tensor, rate: nm.Tensor) -> UpdateRule:
        """Return the update: value - rate * (gradient, or its decayed sum)."""

        def update_parameter(update: ParameterUpdate) -> nm.Tensor:
            change = update.grad
            if self.momentum:
                slot = update.slot("momentum")
                velocity = slot * self.momentum + update.grad
                nm.assign(slot, velocity)
                change = update.grad + velocity * self.momentum if self.nesterov else velocity
            return update.value - change * rate

        return update_parameter


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam with bias correction, and AdamW with weight decay.

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

    def rule(self, step: nm.Tensor, rate: nm.Tensor) -> UpdateRule:
        """Return the update: value - rate * (first / (sqrt(second) + epsilon) + decay * value)."""
        count = nm.cast(step, "float32") + 1.0
        first_correction = 1.0 - self.beta1**count
        second_correction = 1.0 - self.beta2**count

        def update_parameter(update: ParameterUpdate) -> nm.Tensor:
            first = update.average("first", update.grad, self.beta1) / first_correction
            second = update.average("second", nm.square(update.grad), self.beta2)
            change = first / (nm.sqrt(second / second_correction) + self.epsilon)
            name = update.prefix.removeprefix(f"{self.name}/")
            exempt = any(fnmatch.fnmatchcase(name, pattern) for pattern in self.undecayed)
            if self.weight_decay and not exempt:
                change = change + update.value * self.weight_decay
            return update.value - change * rate

        return update_parameter

    def _find_mistakes(self, parameters: Sequence[str]) -> list[Mistake]:
        """Return the patterns that match nothing."""
        useless = [one for one in self.undecayed if not fnmatch.filter(parameters, one)]
        problem = f"{self.name}: undecayed={{!r}} matches no parameter".format
        return [(problem(one), did_you_mean(one.strip("*"), parameters)) for one in useless]
