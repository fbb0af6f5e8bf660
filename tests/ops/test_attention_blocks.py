"""Attention by blocks of keys: the numbers of all keys at once, and memory linear in length."""

import functools

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.artifacts.stablehlo import prepare
from tests.checks import assert_same, evaluated, uniform
from tests.ops.attention_cases import ARRAYS, LAYOUTS, SPECS, B, K, N, S, T, by_matrices, make_step

BY_BLOCKS = functools.partial(nm.attention, block=8)
# With smaller scores, so that float32 rounds both ways alike to 1e-5 on any processor.
CALM = {name: x / 2 if x.dtype == np.float32 else x for name, x in ARRAYS.items()}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("block", [4, 8, 16])
def test_numbers_are_those_of_all_keys_at_once(block, rate, masked):
    by_blocks = functools.partial(nm.attention, block=block)
    found = evaluated(nm.trace(make_step(rate, masked, by_blocks), **SPECS), CALM)
    assert_same(found, evaluated(nm.trace(make_step(rate, masked), **SPECS), CALM))


def test_second_derivatives_are_those_of_all_keys_at_once():
    def step(attend):
        def function(q, k, v):
            y = attend(q, k, v, T, K)
            dq, dk = nm.grad(nm.sum(nm.square(y)), [q, k])
            return dict(zip("qkv", nm.grad(nm.sum(dq * dq) + nm.sum(dk), [q, k, v]), strict=True))

        specs = {name: SPECS[name] for name in "qkv"}
        arrays = {name: ARRAYS[name] / 4 for name in "qkv"}
        return evaluated(nm.trace(function, **specs), arrays)

    assert_same(step(BY_BLOCKS), step(nm.attention))


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("layout", [*LAYOUTS, "seq:b, memory:b", "seq:a, memory:b"])
@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.filterwarnings("ignore:no dimension is mapped", "ignore:.*by blocks")
def test_layouts_and_kernels_change_no_number(layout, kernels, partitioner, monkeypatch):
    find_kernel = lambda name, options, reads, platforms: (
        by_matrices(options, reads)[name] if kernels else None
    )
    monkeypatch.setattr(prepare, "find_kernel", find_kernel)
    program = nm.trace(make_step(0.3, True, BY_BLOCKS), **SPECS)
    plan = nm.plan(program, nm.Mesh(a=2, b=4), layout)
    step = nm.Step(plan, strict=True, partitioner=partitioner)
    _, found = step(None, **ARRAYS)
    wanted = evaluated(nm.trace(make_step(0.3), **SPECS), ARRAYS)
    assert_same(found, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.filterwarnings("ignore:no dimension is mapped")
def test_split_keys_are_gathered_once_for_all_blocks():
    program = nm.trace(make_step(0.0, False, BY_BLOCKS), **SPECS)
    plan = nm.plan(program, nm.Mesh(b=4), "seq:b, memory:b")
    whole = 8 * 32 * 4 * 16 * 4
    gathered = [one for one in plan.collectives if one.kind == "AllGather"]
    assert [(one.times, one.bytes) for one in gathered] == [(1, whole)] * 2


def test_a_plan_warns_where_blocks_leave_devices_idle():
    def plan(block, layout):
        attend = lambda q, k, v: nm.attention(q, k, v, T, K, block=block)
        program = nm.trace(attend, **{name: SPECS[name] for name in "qkv"})
        return nm.plan(program, nm.Mesh(b=4), layout)

    with pytest.warns(UserWarning, match="block=32 keeps it split"):
        (k, v) = plan(8, "memory:b").warnings
    assert k.startswith("k is split along memory=32 over b, but a loop takes it by blocks")
    assert v.startswith("v is split")
    assert not plan(32, "memory:b").warnings
    assert not plan(8, "seq:b, memory:b").warnings
    assert not plan(8, "seq:b").warnings


def make_long_step(length, block):
    """Attention within a long sequence, its mask made of positions and segments, with gradients."""
    S, T, N, K = nm.dims(f"seq={length} memory={length} heads=2 key=8")

    def step(x, segments):
        def layer(x, _):
            memory = nm.rename(x, S, T)
            y = nm.attention(x, memory, memory, T, K, mask=mask, block=block)
            return x + y, None

        apart = nm.equal(segments, nm.rename(segments, S, T))
        mask = apart & (nm.range(T) <= nm.range(S))  # made outside of the loop that reads it
        y, _ = nm.scan(layer, x, over=nm.Dimension("layer", 2), remat="full")
        return nm.grad(nm.sum(nm.square(y)), x)

    return nm.trace(step, nm.spec([S, N, K]), nm.spec([S], "int32"))


def test_memory_grows_with_the_length_and_not_with_its_square():
    bytes_of = {}
    for block in (256, None):  # None: all at once, at these lengths
        for length in (1024, 2048):
            step = nm.compile(make_long_step(length, block), mesh=nm.Mesh(all=1), layout="")
            bytes_of[block, length] = step.report.temporary_bytes
    assert bytes_of[256, 2048] < 2.2 * bytes_of[256, 1024], bytes_of
    assert bytes_of[None, 2048] > 3.5 * bytes_of[None, 1024], bytes_of
    assert bytes_of[256, 2048] < 0.2 * bytes_of[None, 2048], bytes_of


def test_long_sequences_are_taken_by_blocks_unless_said_otherwise():
    def sizes(length, block):
        program = make_long_step(length, block)
        (layer, *_) = [op for op in program.ops if op.kind == "scan"]
        return [op.over.size for op in layer.body.ops if op.kind == "scan"]

    assert sizes(2048, None) == []
    assert sizes(4096, None) == [4]
    assert sizes(4096, 4096) == []
    assert sizes(3073, None) == [7]  # blocks of 439 keys
    assert sizes(3001, None) == []  # a prime number
    assert sizes(256, 64) == [4]


@pytest.mark.parametrize("layout", ["seq:a", "seq:a, memory:b"])
@pytest.mark.filterwarnings("ignore:no dimension is mapped")
def test_a_mask_that_is_moved_is_moved_once(layout):
    """A rename may gather: it is not made again for every block."""

    def step(q, k, mask):
        other = nm.Dimension("other", 16)
        mask = nm.rename(nm.rename(mask, S, other), other, S)
        return nm.attention(q, k, k, T, K, mask=mask, block=8)

    program = nm.trace(step, SPECS["q"], SPECS["k"], nm.spec([S, T], "bool"))
    run = nm.compile(program, mesh=nm.Mesh(a=2, b=2), layout=layout, strict=True)
    arrays = {"q": ARRAYS["q"], "k": ARRAYS["k"], "mask": uniform(9, 16, 32) > 0}
    wanted = program.evaluate({}, **arrays)[1]
    np.testing.assert_allclose(run(None, **arrays)[1], wanted, rtol=1e-4, atol=1e-5)


def test_a_block_divides_the_keys():
    with pytest.raises(nm.NamedMeshError, match="block=5 does not divide memory=32") as caught:
        nm.trace(make_step(0.0, True, functools.partial(nm.attention, block=5)), **SPECS)
    assert caught.value.fix == "give 1, 2, 4, 8, 16, 32"


def test_a_mask_that_is_given_whole_is_cut():
    mask = uniform(9, 16, 32) > 0
    attend = lambda block: lambda q, k, v, mask: nm.attention(q, k, v, T, K, mask=mask, block=block)
    specs = {**{name: SPECS[name] for name in "qkv"}, "mask": nm.spec([S, T], "bool")}
    arrays = {**{name: CALM[name] for name in "qkv"}, "mask": mask}
    found, wanted = (evaluated(nm.trace(attend(block), **specs), arrays) for block in (8, None))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("block", [None, 8])
def test_gradients_of_gathered_keys_are_scattered(block):
    """As where attention is written out: devices add up only what they keep."""

    def step(x):
        q, k, v = (nm.einsum([x, nm.param(name, [K, M])], [B, S, N, M]) for name in "qkv")
        k, v = nm.rename(k, S, L), nm.rename(v, S, L)
        loss = nm.sum(nm.square(nm.attention(q, k, v, L, M, block=block)))
        return nm.grad(loss, [nm.parameters()["k"]])

    L, M = nm.dims("memory=16 inner=16")
    program = nm.trace(step, nm.spec([B, S, N, K]))
    plan = nm.plan(program, nm.Mesh(all=4), "seq:all")
    run = nm.Step(plan, strict=True)
    _, (found,) = run(run.init(0), x=ARRAYS["q"])
    _, (wanted,) = program.evaluate(program.initial_state(0), x=ARRAYS["q"])
    assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()
    sent = [(one.kind, one.bytes, one.times) for one in plan.collectives]
    whole, weights = 8 * 16 * 4 * 16 * 4, 16 * 16 * 4
    gathered, scattered = ("AllGather", whole, 1), ("ReduceScatter", whole, 1)
    assert sent == [gathered, gathered, scattered, ("AllReduce", weights, 1)]
