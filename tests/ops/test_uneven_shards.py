"""Reshapes and reversals of uneven shards: neighbours send what crosses a boundary."""

import math
import random

import ml_dtypes
import numpy as np
import pytest

import namedmesh as nm

pytestmark = pytest.mark.filterwarnings("ignore:.*is padded to")

MESHES = [nm.Mesh(x=n) for n in (2, 3, 4, 5, 8)] + [nm.Mesh(x=2, y=2), nm.Mesh(y=2, x=3)]


def count_crossing(size: int, other: int, elements: int, ways: int) -> list[int]:
    """Count element by element what each distance between two devices sends at most."""
    before, after = (-(-n // ways) * (elements // n) for n in (size, other))
    moved: dict[int, dict[int, int]] = {}
    for element in range(elements):
        sender, receiver = element // before, element // after
        if sender != receiver:
            pairs = moved.setdefault(sender - receiver, {})
            pairs[receiver] = pairs.get(receiver, 0) + 1
    return sorted(max(pairs.values()) for pairs in moved.values())


def factor(rng: random.Random, number: int) -> list[int]:
    """Write a number as a product of one to three, the first of which is not one."""
    parts = []
    while number > 1 and len(parts) < 2:
        divisors = [n for n in range(2, number + 1) if number % n == 0]
        parts.append(rng.choice(divisors))
        number //= parts[-1]
    return [*parts, number] if number > 1 else parts


def make_case(rng: random.Random, i: int):
    """Make two groupings of equally many elements, and what is around them."""
    number = rng.choice([6, 12, 15, 18, 20, 21, 28, 30, 35, 36, 42, 60, 66, 70, 84, 90, 105])
    old, new = factor(rng, number), factor(rng, number)
    batch = [nm.Dimension(f"batch{i}", rng.choice([2, 3, 4]))] * rng.choice([0, 1])
    last = [nm.Dimension(f"last{i}", rng.choice([1, 3]))] * rng.choice([0, 1])
    dims = [[nm.Dimension(f"{name}{i}_{j}", n) for j, n in enumerate(side)]
            for name, side in (("old", old), ("new", new))]  # fmt: skip
    return batch, *dims, last, rng.choice(["float32", "float32", "bfloat16", "int32"])


def check_reshapes(seed: int, partitioner: str) -> None:
    """Compare five reshapes in one step, and their derivatives, with numpy, and the plan."""
    rng = random.Random(seed)
    mesh = rng.choice(MESHES)
    cases = [make_case(rng, i) for i in range(5)]
    axes = rng.choice(["x", "x+y", "y+x"]) if "y" in mesh.axes else "x"
    rules = [f"{dims[0].name}:{axes}" for _, old, new, _, _ in cases for dims in (old, new)]
    if axes == "x" and "y" in mesh.axes:
        rules += [f"{dim.name}:y" for batch, *_ in cases for dim in batch]

    def step(*values):
        results = []
        for (_, old, new, _, dtype), x, w in zip(cases, values[::2], values[1::2], strict=True):
            y = nm.reshape(x, old, new)
            back = nm.grad(y, x, cotangent=w) if dtype != "int32" else nm.reshape(w, new, old)
            results.append((y, back))
        return results

    specs, inputs = [], []
    for batch, old, new, last, dtype in cases:
        for side in (old, new):
            specs.append(nm.spec([*batch, *side, *last], dtype))
            values = np.random.default_rng(seed).integers(-99, 99, specs[-1].shape.sizes)
            inputs.append(values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype))
    compiled = nm.compile(
        step, *specs, mesh=mesh, layout=", ".join(rules), strict=True, partitioner=partitioner
    )
    assert compiled.audit.exact
    _, results = compiled(None, *inputs)
    for (y, back), x, w in zip(results, inputs[::2], inputs[1::2], strict=True):
        assert np.array_equal(np.asarray(y), x.reshape(w.shape))
        assert np.array_equal(np.asarray(back), w.reshape(x.shape))
    ways, expected = mesh.size(axes.split("+")), []
    for batch, old, new, last, dtype in cases:
        split = [dim for dim in batch if len(rules) > 2 * len(cases)]
        size = math.prod(-(-d.size // (2 if d in split else 1)) for d in (*batch, *last))
        size *= {"bfloat16": 2}.get(dtype, 4)
        elements = math.prod(dim.size for dim in old)
        for one, other in ((old, new), (new, old)):
            counts = count_crossing(one[0].size, other[0].size, elements, ways)
            expected += [size * count for count in counts]
    sent = sorted(c.bytes for c in compiled.plan.collectives)
    assert {c.kind for c in compiled.plan.collectives} <= {"CollectivePermute"}
    assert sent == sorted(expected)


@pytest.mark.parametrize("seed", range(5))
def test_reshapes_send_what_crosses_a_boundary(seed):
    check_reshapes(seed, ("gspmd", "shardy")[seed % 2])


@pytest.mark.parametrize("seed", range(100, 200))
def test_many_reshapes_send_what_crosses_a_boundary(seed):
    check_reshapes(seed, ("gspmd", "shardy")[seed % 2])


@pytest.mark.parametrize("back", [False, True])
def test_the_example_of_the_paper(back):
    """[3, 2] to [6] on two devices: one element crosses, there and back."""
    A, B, C = nm.dims("rows=3 columns=2 all=6")

    def step(x, w):
        y = nm.reshape(x, [A, B], C)
        return nm.grad(y, x, cotangent=w) if back else y

    program = nm.trace(step, x=nm.spec([A, B]), w=nm.spec([C]))
    plan = nm.plan(program, nm.Mesh(x=2), "rows:x, all:x")
    assert [(c.kind, c.bytes) for c in plan.collectives] == [("CollectivePermute", 4)]


def test_dimensions_that_begin_together_keep_their_axes():
    A, B, C, D, E, F = nm.dims("a=5 b=3 c=4 d=3 e=15 f=12")
    step = nm.compile(
        lambda x: nm.reshape(x, [A, B, C, D], [E, F]), nm.spec([A, B, C, D]),
        mesh=nm.Mesh(x=2, y=2), layout="a:x, e:x, c:y, f:y", strict=True,
    )  # fmt: skip
    assert {c.kind for c in step.plan.collectives} == {"CollectivePermute"}
    x = np.arange(180, dtype=np.float32).reshape(5, 3, 4, 3)
    assert np.array_equal(step(None, x)[1], x.reshape(15, 12))


def test_in_loops_and_in_vmap():
    A, B, C, T, V = nm.dims("a=7 b=3 c=3 time=3 v=2")
    D = nm.Dimension("d", 7)

    def body(x, w):
        y = nm.reshape(x, [A, B], [C, D]) * w
        return nm.reshape(y, [C, D], [A, B]), nm.sum(y)

    def step(x, ws):
        end, sums = nm.vmap(lambda x: nm.scan(body, x, ws, over=T), V)(x)
        return end, sums, nm.grad(nm.sum(end * end), x)

    specs = [nm.spec([V, A, B]), nm.spec([T])]
    make = np.random.default_rng(0).normal
    x, ws = (make(size=one.shape.sizes).astype(np.float32) for one in specs)
    compiled = nm.compile(step, *specs, mesh=nm.Mesh(x=4), layout="a:x, c:x", strict=True)
    assert compiled.plan.count("AllGather") == 0 and compiled.plan.count("CollectivePermute")
    _, found = compiled(None, x, ws)
    factor = np.prod(ws)
    assert np.allclose(found[0], x * factor, atol=1e-5)
    assert np.allclose(found[2], 2 * x * factor**2, atol=1e-5)


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize(("size", "ways"), [(3, 2), (5, 2), (3, 4), (7, 3), (9, 8), (5, 8)])
def test_reversing_sends_no_more_than_a_shard(size, ways, partitioner):
    A = nm.Dimension("a", size)

    def step(x, w):
        return nm.reverse(x, A), nm.grad(nm.reverse(x, A), x, cotangent=w)

    spec = nm.spec([A], "bfloat16")
    compiled = nm.compile(
        step,
        x=spec,
        w=spec,
        mesh=nm.Mesh(x=ways),
        layout="a:x",
        strict=True,
        partitioner=partitioner,
    )
    assert {c.kind for c in compiled.plan.collectives} == {"CollectivePermute"}
    assert sum(c.elements for c in compiled.plan.collectives) <= 2 * -(-size // ways)
    x = np.arange(size).astype(ml_dtypes.bfloat16)
    _, (y, back) = compiled(None, x, x + x)
    assert np.array_equal(np.asarray(y), x[::-1]) and np.array_equal(
        np.asarray(back), (x + x)[::-1]
    )
