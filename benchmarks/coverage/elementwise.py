"""Ops that work element by element."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import namedmesh as nm
from benchmarks.coverage.entry import CONSTANT, ELEMENTWISE, FIRST, SECOND, Entry
from benchmarks.coverage.kit import Kit

STOPPED = "no gradient flows through it: that is what it is for"


def entries(kit: Kit) -> dict[str, Entry]:
    """Arithmetic, mathematics, activations, comparisons, logic and bits."""
    B, R, C = kit.B, kit.R, kit.C
    real, positive, unit = (make(B, R, C) for make in (kit.real, kit.positive, kit.unit))
    eighths, whole, truth = kit.eighths(B, R, C), kit.whole(B, R, C), kit.truth(B, R, C)
    row, row_whole = kit.real(R, C), kit.whole(C, below=4)

    def one(named, reference, *inputs, also=None, **options):
        reasons = ELEMENTWISE | (also or {})
        return Entry(named, reference, inputs or (real,), reasons=reasons, **options)

    stopped = {FIRST: STOPPED, SECOND: STOPPED}
    floats = {
        "add": one(nm.add, jnp.add, real, row),
        "subtract": one(nm.subtract, jnp.subtract, real, row),
        "multiply": one(nm.multiply, jnp.multiply, real, row),
        "divide": one(nm.divide, jnp.divide, real, positive),
        "floor_divide": one(
            nm.floor_divide, jnp.floor_divide, eighths, kit.powers(B, R, C), also=CONSTANT
        ),
        "remainder": one(nm.remainder, jnp.remainder, eighths, kit.powers(B, R, C)),
        "power": one(nm.power, jnp.power, positive, row),
        "maximum": one(nm.maximum, jnp.maximum, kit.distinct(B, R, C), kit.eighths(R, C)),
        "minimum": one(nm.minimum, jnp.minimum, kit.distinct(B, R, C), kit.eighths(R, C)),
        "clip": one(lambda x: nm.clip(x, -1.0, 1.25), lambda x: jnp.clip(x, -1, 1.25), eighths),
        "negative": one(nm.negative, jnp.negative),
        "absolute": one(nm.absolute, jnp.abs),
        "sign": one(nm.sign, jnp.sign, also=CONSTANT),
        "square": one(nm.square, jnp.square),
        "exp": one(nm.exp, jnp.exp),
        "expm1": one(nm.expm1, jnp.expm1),
        "log": one(nm.log, jnp.log, positive),
        "log1p": one(nm.log1p, jnp.log1p, positive),
        "sqrt": one(nm.sqrt, jnp.sqrt, positive),
        "rsqrt": one(nm.rsqrt, lambda x: x**-0.5, positive),
        "reciprocal": one(nm.reciprocal, jnp.reciprocal, positive),
        "sin": one(nm.sin, jnp.sin),
        "cos": one(nm.cos, jnp.cos),
        "tanh": one(nm.tanh, jnp.tanh),
        "erf": one(nm.erf, jax.scipy.special.erf),
        "erfinv": one(nm.erfinv, jax.scipy.special.erfinv, unit),
        "sigmoid": one(nm.sigmoid, jax.nn.sigmoid),
        "softplus": one(nm.softplus, jax.nn.softplus),
        "relu": one(nm.relu, jax.nn.relu),
        "leaky_relu": one(nm.leaky_relu, lambda x: jax.nn.leaky_relu(x, 0.2)),
        "elu": one(nm.elu, jax.nn.elu),
        "gelu": one(nm.gelu, lambda x: jax.nn.gelu(x, approximate=False)),
        "swish": one(nm.swish, jax.nn.swish),
        "lgamma": one(nm.lgamma, jax.scipy.special.gammaln, kit.positive(B, R, C), roundings=16),
        "digamma": one(nm.digamma, jax.scipy.special.digamma, kit.positive(B, R, C), roundings=64),
        "polygamma": one(
            lambda x: nm.polygamma(1.0, x),
            lambda x: jax.scipy.special.polygamma(1, x),
            kit.positive(B, R, C),
            roundings=64,
        ),
        "floor": one(nm.floor, jnp.floor, eighths, also=CONSTANT),
        "ceil": one(nm.ceil, jnp.ceil, eighths, also=CONSTANT),
        "round": one(nm.round, jnp.round, eighths, also=CONSTANT),
        "is_finite": one(lambda x: nm.is_finite(1.0 / nm.relu(x)), lambda x: x > 0),
        "where": one(nm.where, jnp.where, truth, real, row),
        "cast": one(
            lambda x: nm.cast(x, "bfloat16"),
            lambda x: x.astype("bfloat16").astype(x.dtype),
            narrow=True,
        ),
        "cast (to whole numbers)": one(
            lambda x: nm.cast(x, "int32"), lambda x: jnp.trunc(x).astype("int32")
        ),
        "stop_gradient": one(nm.stop_gradient, jax.lax.stop_gradient, also=stopped),
        "compute_once": one(
            lambda x: nm.sin(nm.compute_once(nm.exp(x))), lambda x: jnp.sin(jnp.exp(x))
        ),
    }
    comparisons = {
        name: one(getattr(nm, name), getattr(jnp, name), eighths, kit.eighths(R, C))
        for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
    }
    logic = {
        name: one(getattr(nm, name), getattr(jnp, name), truth, kit.truth(R, C))
        for name in ("logical_and", "logical_or", "logical_xor")
    }
    bits = {
        name: one(getattr(nm, name), getattr(jnp, name), whole, kit.whole(R, C, low=-9))
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor")
    }
    return (
        floats
        | comparisons
        | logic
        | bits
        | {
            "logical_not": one(nm.logical_not, jnp.logical_not, truth),
            "bitwise_not": one(nm.bitwise_not, jnp.bitwise_not, whole),
            "shift_left": one(nm.shift_left, jnp.left_shift, whole, row_whole),
            "shift_right": one(
                nm.shift_right, jnp.right_shift, kit.whole(B, R, C, low=-99, below=99), row_whole
            ),
        }
    )
