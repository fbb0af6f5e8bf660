"""Optimizers given something else than gradients, and parameters that are not theirs."""

# pyright: reportArgumentType=false

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.layers import Adafactor, Adam, Sgd, clip_by_global_norm, global_norm
from namedmesh.layers.optimizers import Optimizer
from tests.errors.wrong import H, M, Table, message_of

wrong = Table()


@wrong("""
adam: the gradients are [x: float32[batch=4, seq=6, model=8]] of type list
  at LINE: Adam(0.1).apply([x])
  fix: pass what nm.grad(loss) returns, or a dict of gradients by parameter name
""")
def gradients_in_a_list(x):
    Adam(0.1).apply([x])


@wrong("""
adam: the gradient of w is 3.0 of type float, not a floating point tensor
  at LINE: Adam(0.1).apply({"w": 3.0})
  fix: pass what nm.grad(loss) returns, or a dict of gradients by parameter name
""")
def a_gradient_that_is_a_number(x):
    nm.param("w", [M])
    Adam(0.1).apply({"w": 3.0})


@wrong("""
sgd: the gradient of w is k: int32[batch=4, seq=6], not a floating point tensor
  at LINE: Sgd(0.1).apply({"w": k})
  fix: pass what nm.grad(loss) returns, or a dict of gradients by parameter name
""")
def a_gradient_of_integers(k):
    nm.param("w", [M])
    Sgd(0.1).apply({"w": k})


@wrong("""
adam: w is not a parameter that is trained
  at LINE: Adam(0.1).apply({"w": nm.grad(nm.sum(x * w), w)})
  fix: leave its gradient out, or make it with trainable=True
""")
def a_gradient_of_a_frozen_parameter(x):
    w = nm.param("w", [M], trainable=False)
    Adam(0.1).apply({"w": nm.grad(nm.sum(x * w), w)})


@wrong("""
grad: there is nothing to differentiate with respect to
  at LINE: nm.grad(nm.sum(x * nm.param("w", [M], trainable=False)))
  fix: make parameters with nm.param (trainable=True), or name tensors in wrt=
""")
def only_frozen_parameters(x):
    nm.grad(nm.sum(x * nm.param("w", [M], trainable=False)))


@wrong("""
Adam: undecayed='*scale' is not a list
  at LINE: Adam(0.1, undecayed="*scale")
  fix: pass a list
""")
def a_pattern_that_is_not_in_a_list(x):
    Adam(0.1, undecayed="*scale")


@wrong("""
clip_by_global_norm: limit=1 is not positive
  at LINE: clip_by_global_norm({"x": x}, "1")
  fix: pass a positive number
""")
def a_limit_that_is_text(x):
    clip_by_global_norm({"x": x}, "1")


@wrong("""
parameter w: trainable='no' is not a choice
  at LINE: nm.param("w", [M], trainable="no")
  fix: write True or False
""")
def trainable_as_text(x):
    nm.param("w", [M], trainable="no")


@wrong("""
variable w exists already with another shape, dtype or role
  before: frozen parameter float32[model=8, hidden=16] at LINE
  now: parameter float32[model=8, hidden=16]
  at LINE: nm.param("w", [M, H])
  fix: give the new one its own name, or put it in its own nm.scope
""")
def frozen_and_then_trained(x):
    nm.param("w", [M, H], trainable=False)
    nm.param("w", [M, H])


@wrong("""
state w: at_rest='yes' is not a choice
  at LINE: nm.state("w", [M], at_rest="yes")
  fix: write True or False
""")
def at_rest_as_text(x):
    nm.state("w", [M], at_rest="yes")


@wrong.rows
def test_message(function, message):
    assert message_of(function) == message


class SignDescent(Optimizer):
    """An optimizer of a user's own."""

    def rule(self, step, rate):
        return lambda update: update.value - nm.sign(update.grad) * rate


ANYTHING = [
    None, 3, 2.5, "w", b"w", [], [1], (), {1}, object(), np.zeros(8), lambda: 1, M, {"w": None},
    {"w": 1.0}, {"w": "x"}, {"w": np.zeros(8)}, {"w": [1]}, {1: 2}, {None: None}, {"w": {}},
    {"v": None}, iter([]), ...,
]  # fmt: skip


@pytest.mark.parametrize(
    "apply",
    [
        Sgd(0.1).apply, Sgd(0.1, momentum=0.9, clip_norm=1.0).apply, Adam(0.1).apply,
        Adam(0.1, average=0.9, weight_decay=0.1).apply, Adafactor().apply,
        Adafactor(unfactored=[M]).apply, SignDescent(0.1, name="sign").apply, global_norm,
        lambda grads: clip_by_global_norm(grads, 1.0),
    ],
)  # fmt: skip
def test_anything_else_than_gradients_is_refused(apply):
    for value in ANYTHING:

        def program(x, value=value):
            nm.param("w", [M])
            apply(value)
            return x

        with pytest.raises(nm.NamedMeshError, match="the gradient") as error:
            nm.trace(program, nm.spec([M]))
        assert error.value.fix
