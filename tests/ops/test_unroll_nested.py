"""Loops that are written out around loops, branches and attention: the numbers of plain loops."""

from __future__ import annotations

import numpy as np
import pytest

import namedmesh as nm

S, T, K, D, J, X = nm.dims("seq=8 memory=8 key=4 depth=4 inner=2 model=4")
REMAT = ["none", "full", "dots"]


def branch_in_an_inner_loop(unroll, remat):
    def step(x):
        def inner(g, j):
            yes, no = (lambda g, by=by: nm.sin(g) * by for by in (2.0, 3.0))
            return nm.cond(j > 0.5, yes, no, g), None

        def layer(h, _):
            iterations = nm.cast(nm.range(J), "float32")
            return nm.scan(inner, h, iterations, over=J, remat=remat)[0], None

        h, _ = nm.scan(layer, nm.sum(x, over=S), over=D, unroll=unroll, remat=remat)
        return nm.grad(nm.sum(h), x)

    return step


def attention_by_blocks_with_dropout(unroll, remat):
    def step(x):
        def layer(h, i):
            k = nm.rename(h, S, T)
            key = nm.random.fold_in(nm.random.key(3), i)
            y = nm.attention(h, k, k, T, K, block=4, rate=0.2, dropout_key=key)
            return h + y, None

        h, _ = nm.scan(layer, x, nm.range(D), over=D, remat=remat, unroll=unroll)
        return nm.grad(nm.sum(nm.square(h)), x)

    return step


def attention_in_a_branch(unroll, remat):
    def step(x):
        def layer(h, i):
            k = nm.rename(h, S, T)
            yes = lambda q, k: nm.attention(q, k, k, T, K)
            no = lambda q, k: nm.attention(q, k, k, T, K, scale=1.0)
            y = nm.cond(nm.equal(i, 1), yes, no, h, k)
            y = nm.einsum([y, nm.rename(x, S, T)], [S, T])
            return h + nm.einsum([y, k], [S, K]), None

        h, _ = nm.scan(layer, x, nm.range(D), over=D, remat=remat, unroll=unroll)
        return nm.grad(nm.sum(nm.sin(h)), x)

    return step


@pytest.mark.parametrize("remat", REMAT)
@pytest.mark.parametrize(
    "make", [branch_in_an_inner_loop, attention_by_blocks_with_dropout, attention_in_a_branch]
)
def test_numbers_are_those_of_plain_loops(make, remat):
    x = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32) / 4
    results = []
    for unroll in (False, 2, True):
        program = nm.trace(make(unroll, remat), nm.spec([S, K]))
        results.append(program.evaluate({}, x=x)[1])
        step = nm.compile(program, mesh=nm.Mesh(all=2), layout="seq:all", strict=True)
        results.append(step(None, x=x)[1])
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], rtol=1e-4, atol=1e-5)
