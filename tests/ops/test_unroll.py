"""Unrolled loops: the numbers and bytes of the loop, and no loop in the code."""

from __future__ import annotations

import numpy as np
import pytest

import namedmesh as nm

A, B, M, H, L = nm.dims("micro=2 batch=8 model=8 hidden=16 layer=4")
X = np.random.default_rng(0).normal(size=(2, 8, 8)).astype(np.float32)


def loss_of(x, unroll, remat):
    def layer(h, _):
        wi, wo = nm.param("wi", [M, H]), nm.param("wo", [H, M])
        y = nm.einsum([nm.relu(nm.einsum([h, wi], [B, H])), wo], [B, M])
        return h + nm.softmax(y, over=M), nm.sum(y)

    y, sums = nm.scan(layer, x, over=L, stack=True, unroll=unroll, remat=remat)
    return nm.mean(nm.square(y)) + nm.mean(sums)


def train_step(unroll, outer, remat="none"):
    def step(x):
        add = lambda total, row: (total + loss_of(row, unroll, remat), None)
        loss, _ = nm.scan(add, nm.zeros([]), x, over=A, unroll=outer)
        grads = nm.grad(loss)
        for name, weight in nm.parameters().items():
            nm.assign(weight, weight - grads[name] * 0.1)
        return loss

    return nm.trace(step, x=nm.spec([A, B, M]))


LAYOUTS = [
    ("batch:data", None),
    ("batch:data, hidden:tensor", None),
    ("batch:data", "model:data"),
    ("batch:data, hidden:tensor", "model:data, hidden:tensor"),
    ("model:tensor, batch:data", None),
]


@pytest.mark.parametrize("layout, params", LAYOUTS)
@pytest.mark.parametrize("remat", ["none", "full"])
def test_numbers_and_bytes_are_those_of_the_loop(layout, params, remat):
    mesh = nm.Mesh(data=2, tensor=2)
    results, bytes_sent = [], []
    for unroll, outer in ((False, False), (True, False), (2, False), (2, True), (True, True)):
        program = train_step(unroll, outer, remat)
        plan = nm.plan(program, mesh, layout, params)
        step = nm.Step(plan, strict=True)
        assert step.audit.exact
        rng = np.random.default_rng(1)
        state = {
            name: rng.normal(size=variable.shape.sizes).astype(np.float32)
            for name, variable in program.variables.items()
        }
        state, loss = step(step.place(state), x=X)
        results.append([loss, *(np.asarray(state[name]) for name in sorted(state))])
        bytes_sent.append(sum(one.total_wire_bytes for one in plan.collectives))
        whiles = step.text.count(" while(")
        assert (whiles == 0) == (unroll is True and outer)
    for others in results[1:]:
        for one, other in zip(results[0], others, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    # Of the first iteration's backward pass, what nothing reads is not computed.
    assert all(sent <= bytes_sent[0] for sent in bytes_sent)


@pytest.mark.parametrize("unroll", [3, 0, -1, 8])
def test_a_round_divides_the_iterations(unroll):
    with pytest.raises(nm.NamedMeshError) as caught:
        train_step(unroll, False)
    assert f"unroll={unroll} does not divide the 4 iterations of layer=4" in str(caught.value)
    assert caught.value.fix == "give True for all of them, or 2"


@pytest.mark.parametrize("unroll", ["yes", None, 2.0])
def test_a_round_is_a_number(unroll):
    with pytest.raises(nm.NamedMeshError, match="does not divide the 4 iterations"):
        train_step(unroll, False)


def test_rounds_hand_over_iteration_by_iteration_and_stack_what_others_read():
    W = nm.Dimension("layer_iteration", 3)  # the name that the iterations of a round would have

    def step(x, rows):
        def iteration(carry, row):
            following = nm.sin(carry) * nm.sum(row, over=W)
            return following, following * 2.0

        last, all_of_them = nm.scan(iteration, x, rows, over=L, unroll=2, reverse=True)
        (slope,) = nm.grad(nm.sum(last) + nm.sum(nm.square(all_of_them)), [x])
        return last, all_of_them, slope

    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3, 4)).astype(np.float32)  # the loop's dimension is not the first
    program = nm.trace(step, x=nm.spec([B]), rows=nm.spec([W, L]))
    loops = [op for op in program.ops if op.kind == "scan"]
    assert [op.over.size for op in loops] == [2, 2]
    _, (last, all_of_them, slope) = program.evaluate({}, x=X[0, 0], rows=rows)
    carry, derivative, expected, total = X[0, 0], np.ones(8), [], np.zeros(8)
    for weight in rows.sum(axis=0)[::-1]:
        carry, derivative = np.sin(carry) * weight, derivative * np.cos(carry) * weight
        expected.insert(0, carry * 2.0)
        total += 8.0 * carry * derivative
    np.testing.assert_allclose(last, carry, rtol=1e-5)
    np.testing.assert_allclose(all_of_them, expected, rtol=1e-5)
    np.testing.assert_allclose(slope, total + derivative, rtol=1e-4)


def test_a_loop_of_one_iteration_is_none():
    one = nm.Dimension("once", 1)
    program = nm.trace(lambda x: nm.scan(lambda h, _: (nm.sin(h), h), x, over=one), nm.spec([B, M]))
    assert not any(op.kind == "scan" for op in program.ops)
    _, (last, all_of_them) = program.evaluate({}, x=X[0])
    np.testing.assert_allclose(last, np.sin(X[0]), rtol=1e-6)
    np.testing.assert_array_equal(all_of_them, X[:1])


def test_gradients_of_a_first_layer_go_to_where_its_weights_rest():
    # Nothing reads the first layer's weights in its backward pass: only a gradient knows of them.
    mesh = nm.Mesh(data=2)
    plan = nm.plan(train_step(True, True), mesh, "batch:data", "model:data")
    sums = [one for one in plan.collectives if one.phase == "backward" and one.reduction]
    assert {one.kind for one in sums} == {"ReduceScatter"}
    assert not [one for one in plan.collectives if one.tensor == "broadcast"]
