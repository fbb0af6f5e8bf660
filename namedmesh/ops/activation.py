"""Activation functions."""

from __future__ import annotations

import math

from namedmesh.ir.literal import as_tensor
from namedmesh.ir.tensor import Operand, Tensor
from namedmesh.ops.arithmetic import minimum, where
from namedmesh.ops.elementwise import elementwise
from namedmesh.ops.mathematics import erf, exp


@elementwise(lambda tf: tf.tanh, lambda dy, y, x: [dy * (1.0 - y * y)], takes="float")
def tanh(x: Operand) -> Tensor:
    """Takes the hyperbolic tangent."""
    ...


@elementwise(lambda tf: tf.sigmoid, lambda dy, y, x: [dy * y * (1.0 - y)], takes="float")
def sigmoid(x: Operand) -> Tensor:
    """Takes the logistic function, 1 / (1 + exp(-x))."""
    ...


@elementwise(
    lambda tf: tf.math.softplus, lambda dy, y, x: [dy * sigmoid(x)], takes="float", long=True
)
def softplus(x: Operand) -> Tensor:
    """Takes log(1 + exp(x)), without overflow."""
    ...


@elementwise(lambda tf: tf.nn.relu, lambda dy, y, x: [where(y > 0, dy, 0.0)])
def relu(x: Operand) -> Tensor:
    """Takes x where positive, zero elsewhere."""
    ...


def gelu(x: Operand) -> Tensor:
    """Takes the Gaussian error linear unit, exactly: x times the normal distribution function of x."""
    x = as_tensor("gelu", x)
    return x * 0.5 * (erf(x * math.sqrt(0.5)) + 1.0)


def swish(x: Operand) -> Tensor:
    """Takes x times its sigmoid."""
    x = as_tensor("swish", x)
    return x * sigmoid(x)


def leaky_relu(x: Operand, slope: float = 0.2) -> Tensor:
    """Takes x where positive, a small slope elsewhere."""
    x = as_tensor("leaky_relu", x)
    return where(x > 0, x, x * slope)


def elu(x: Operand) -> Tensor:
    """Takes x where positive, exp(x) - 1 elsewhere."""
    x = as_tensor("elu", x)
    return where(x > 0, x, exp(minimum(x, 0.0)) - 1.0)
