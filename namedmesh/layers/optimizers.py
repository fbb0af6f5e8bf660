"""Gradient descent and Adam, which move nothing between devices except for clip_norm.

With clip_norm, each gradient that is split adds one number to a sum over devices.
"""

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
        >>> (M,) = nm.dims("model=8")
        >>> def step(x):
        ...     loss = nm.sum(nm.param("w", [M]) * x)
        ...     return Sgd(0.1, momentum=0.9).apply(nm.grad(loss))
        >>> list(nm.trace(step, nm.spec([M])).updates)
        ['w', 'sgd/step', 'sgd/w/momentum']
    """

    _: KW_ONLY
    momentum: Share = 0.0
    nesterov: bool = False
    name: str = "sgd"

    def rule(self, step: nm.Tensor, rate: nm.Tensor) -> UpdateRule:
        """Return the update: value - rate * (gradient, or its decayed sum).

        Args:
            step: The number of steps taken so far.
            rate: The learning rate of this step.

        Example:
            >>> def step(x):
            ...     update = ParameterUpdate(nm.param("w", x.shape), x, "sgd/w")
            ...     rule = Sgd(0.1).rule(nm.zeros([], "int32"), nm.full([], 0.1))
            ...     return rule(update)
            >>> nm.trace(step, nm.spec(nm.dims("model=8"))).outputs[0].shape
            [model=8]
        """

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
        >>> (M,) = nm.dims("model=8")
        >>> def step(x):
        ...     loss = nm.sum(nm.param("w", [M]) * x)
        ...     return Adam(1e-3).apply(nm.grad(loss))
        >>> list(nm.trace(step, nm.spec([M])).updates)
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
        """Return the update: value - rate * (first / (sqrt(second) + epsilon) + decay * value).

        Both moments are divided by 1 - beta ** t, which corrects their bias towards zero.

        Args:
            step: The number of steps taken so far.
            rate: The learning rate of this step.

        Example:
            >>> def step(x):
            ...     update = ParameterUpdate(nm.param("w", x.shape), x, "adam/w")
            ...     rule = Adam(0.1).rule(nm.zeros([], "int32"), nm.full([], 0.1))
            ...     return rule(update)
            >>> nm.trace(step, nm.spec(nm.dims("model=8"))).outputs[0].shape
            [model=8]
        """
        count = nm.cast(step, "float32") + 1.0
        first_correction = 1.0 - self.beta1**count
        second_correction = 1.0 - self.beta2**count

        def update_parameter(update: ParameterUpdate) -> nm.Tensor:
            first = update.average("first", update.grad, self.beta1) / first_correction
            second = update.average("second", nm.square(update.grad), self.beta2)
            second = second / second_correction
            change = first / (nm.sqrt(second) + self.epsilon)
            if self.weight_decay and not self._exempts(update.prefix.removeprefix(f"{self.name}/")):
                change = change + update.value * self.weight_decay
            return update.value - change * rate

        return update_parameter

    def _exempts(self, parameter: str) -> bool:
        """Return whether a parameter does not decay."""
        return any(fnmatch.fnmatchcase(parameter, pattern) for pattern in self.undecayed)

    def _find_mistakes(self, parameters: Sequence[str]) -> list[Mistake]:
        """Return the patterns that match nothing."""
        return [
            (
                f"{self.name}: undecayed={pattern!r} matches no parameter",
                did_you_mean(pattern.strip("*"), parameters),
            )
            for pattern in self.undecayed
            if not fnmatch.filter(parameters, pattern)
        ]
