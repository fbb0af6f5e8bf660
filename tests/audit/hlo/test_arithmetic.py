"""Operations of products, counted in compiled text."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from namedmesh.audit.hlo import parse_module
from namedmesh.audit.hlo.arithmetic import count_flops


def count_pairs(size, kernel, made, low, stride, holes, apart):
    """Count results and elements of a kernel that meet in an element of what is convolved."""
    read = [
        at * stride + i * apart - low for at, i in itertools.product(range(made), range(kernel))
    ]
    return sum(0 <= one <= (size - 1) * holes and one % holes == 0 for one in read)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_multiplied_by_padding_and_holes_is_not_counted(seed):
    random = np.random.default_rng(seed)
    draw = lambda low, high: [int(one) for one in random.integers(low, high, 2, endpoint=True)]
    sizes, kernel, stride = draw(3, 9), draw(1, 4), draw(1, 3)
    holes, apart = draw(1, 3), draw(1, 2)
    pads = list(zip(draw(-1, 6), draw(2, 6), strict=True))

    def convolve(x, w):
        return lax.conv_general_dilated(x, w, stride, pads, lhs_dilation=holes, rhs_dilation=apart)

    x, w = jnp.zeros((2, 3, *sizes)), jnp.zeros((5, 3, *kernel))
    lowered = jax.jit(convolve).lower(x, w)
    made = lowered.out_info.shape[2:]
    lows = [low for low, _ in pads]
    pairs = map(count_pairs, sizes, kernel, made, lows, stride, holes, apart)
    hlo: Any = lowered.compiler_ir("hlo")
    text = hlo.as_hlo_text()
    assert count_flops(parse_module(text)) == pytest.approx(2 * 2 * 5 * 3 * np.prod([*pairs]))
