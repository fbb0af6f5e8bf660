"""What a loop stores for its backward pass: the fewest bytes that suffice, found here by trying."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import namedmesh as nm
from namedmesh.ir.trace import current
from namedmesh.layers import Heads, dropout, layer_norm, self_attention
from namedmesh.ops.loop_storage import find_needed, tensors_to_store
from tests.checks import uniform

B, M, N, L = nm.dims("batch=4 model=8 other=8 layer=3")


def normalized(h, w):
    wide = nm.cast(h, "float32")
    centred = wide - nm.mean(wide, over=M)
    unit = nm.cast(centred * nm.rsqrt(nm.mean(nm.square(centred), over=M) + 1e-6), "bfloat16")
    return nm.einsum([nm.rename(unit, M, N), w], [B, M])


def activated(h, w):
    y = nm.einsum([nm.rename(h, M, N), w], [B, M])
    return nm.cast(nm.tanh(nm.exp(nm.cast(y, "float32")) * 0.1), "bfloat16") + h


def softened(h, w):
    y = nm.einsum([nm.rename(h, M, N), w], [B, M])
    return nm.cast(nm.softmax(nm.cast(y, "float32") * 2.0, over=M), "bfloat16") * h


def widened(h, w):
    y = nm.cast(nm.einsum([nm.rename(h, M, N), w], [B, M]), "float32")
    return nm.cast(nm.sin(y) * nm.mean(y, over=M) * nm.sin(y * y), "bfloat16")


@pytest.mark.parametrize("layer", [normalized, activated, softened, widened])
def test_no_choice_that_suffices_is_smaller(layer):
    found = []

    def step(x, k):
        nm.scan(lambda h, w: (layer(h, w), None), x, k, over=L)
        (loop,) = (op for op in current("a test").ops if op.kind == "scan")
        floating = range(len(loop.inputs))
        stored = tensors_to_store(loop.body, floating, "none", L.name)
        found.append((loop.body, find_needed(loop.body, floating), {*stored}))
        return x

    nm.trace(step, nm.spec([B, M], "bfloat16"), nm.spec([L, N, M], "bfloat16"))
    ((body, needed, stored),) = found
    made = [tensor for op in body.ops for tensor in op.outputs]
    choices = (
        {*choice}
        for count in range(len(made) + 1)
        for choice in itertools.combinations(made, count)
    )
    assert suffices(body, needed, stored)
    assert size(stored) == min(size(choice) for choice in choices if suffices(body, needed, choice))


def suffices(body, needed, stored):
    """Whether everything needed follows from what is stored, by ops that fuse.

    What an iteration is given may be renamed again as well.
    """
    known = {*body.arguments, *stored}
    for op in body.ops:
        given = op.kind == "rename" and {*op.inputs} <= {*body.arguments}
        if (op.repeatable or given) and known.issuperset(op.inputs):
            known.update(op.outputs)
    return known.issuperset(needed)


def size(tensors):
    return sum(tensor.shape.elements * tensor.itemsize for tensor in tensors)


def test_attention_stores_nothing_of_its_scores_size():
    S, D, H, K = nm.dims("seq=32 width=8 heads=2 key=4")

    def step(x):
        def layer(h, i):
            key = nm.random.fold_in(nm.random.key(0), i)
            y = self_attention(
                layer_norm(h, D), S, Heads(D, H, K), rate=0.1, dropout_key=nm.random.fold_in(key, 1)
            )
            return h + dropout(y, 0.1, nm.random.fold_in(key, 2)), None

        y, _ = nm.scan(layer, x, nm.range(L), over=L, stack=True)
        return nm.grad(nm.sum(nm.cast(y, "float32")))

    program = nm.trace(step, nm.spec([B, S, D], "bfloat16"))
    (loop,) = (op for op in program.ops if op.kind == "scan" and op.phase == "forward")
    large = [t for t in loop.histories if {"seq", "seq_memory"} <= {*t.shape.names}]
    assert large == []
    assert not any({"batch", "seq", "width"} < {*t.shape.names} for t in loop.histories if wide(t))


def wide(tensor):
    return tensor.dtype != "bfloat16"


@pytest.mark.parametrize("layer", [normalized, activated, softened, widened])
def test_gradients_are_those_of_everything_computed_again(layer):
    def step(x, k, remat):
        y, _ = nm.scan(lambda h, w: (layer(h, w), None), x, k, over=L, remat=remat)
        return nm.grad(nm.sum(nm.cast(y, "float32")), [x, k])

    rng = np.random.default_rng(0)
    values = {
        "x": ([B, M], rng.normal(size=(4, 8)).astype(np.float32)),
        "k": ([L, N, M], rng.normal(size=(3, 8, 8)).astype(np.float32)),
    }
    wide_step = lambda x, k, remat: step(nm.cast(x, "bfloat16"), nm.cast(k, "bfloat16"), remat)
    few, again = (
        nm.evaluate(lambda x, k, remat=remat: wide_step(x, k, remat), **values)
        for remat in ("none", "full")
    )
    for one, other in zip(few, again, strict=True):
        np.testing.assert_array_equal(np.asarray(one, np.float32), np.asarray(other, np.float32))


def test_what_a_rename_gathers_is_not_gathered_again():
    """As sequence parallelism has it: a norm of split rows, gathered under another name."""
    S, R = nm.dims("seq=16 row=16")

    def step(x, k):
        def layer(h, w):
            unit = h * nm.rsqrt(nm.mean(nm.square(h), over=M) + 1e-6)
            y = nm.einsum([nm.rename(unit, R, S), w], [S, N])
            y = nm.einsum([nm.tanh(y), w], [S, M])
            return h + nm.rename(y, S, R), None

        return nm.grad(nm.sum(nm.scan(layer, x, k, over=L)[0]), k)

    program = nm.trace(step, nm.spec([R, M]), nm.spec([L, M, N]))
    plan = nm.plan(program, nm.Mesh(tensor=4), "row:tensor, other:tensor")
    gathered = [one.phase for one in plan.collectives if one.kind == "AllGather"]
    # Forward what products read; backward the cotangent of what they made.
    assert gathered == ["forward", "backward"], plan.communication
    assert nm.Step(plan, strict=True).audit.exact


@pytest.mark.parametrize("outer, inner, products", [
    ("none", "none", 3), ("none", "dots", 3), ("none", "full", 4), ("full", "none", 4),
])  # fmt: skip
def test_loops_in_loops_run_again_only_where_asked(outer, inner, products):
    """A product and the two of its derivative in each of 2 x 3 iterations, or one more."""
    T = nm.Dimension("time", 2)

    def step(x, k):
        def iteration(h, row):
            h, _ = nm.scan(lambda h, w: (activated(h, w), None), h + row, k, over=L, remat=inner)
            return h, None

        last, _ = nm.scan(iteration, nm.zeros([B, M]), x, over=T, remat=outer)
        return nm.grad(nm.sum(last * last), [x, k])

    def activated(h, w):
        return nm.tanh(nm.einsum([nm.rename(h, M, N), w], [B, M])) + h

    program = nm.trace(step, nm.spec([T, B, M]), nm.spec([L, N, M]))
    times = {loop: T.size for loop in program.ops if loop.bodies}
    count = sum(
        times[loop] * inner_loop.over.size * [op.kind for op in inner_loop.body.ops].count("einsum")
        for loop in times
        for inner_loop in loop.body.ops
        if inner_loop.bodies
    )
    assert count == products * T.size * L.size
    x, k = uniform(1, 2, 4, 8), uniform(2, 3, 8, 8) * 0.3

    def by_jax(x, k):
        h = jnp.zeros((4, 8))
        for row in x:
            h = h + row
            for w in k:
                h = jnp.tanh(h @ w) + h
        return jnp.sum(h * h)

    found = nm.evaluate(step, x=([T, B, M], x), k=([L, N, M], k))
    for one, wanted in zip(found, jax.grad(by_jax, (0, 1))(x, k), strict=True):
        np.testing.assert_allclose(one, wanted, rtol=2e-5, atol=2e-5)
