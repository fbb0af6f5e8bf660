"""What XLA can tell while it compiles, the plan tells too: no collective of zeros and constants."""

import numpy as np
import pytest

import namedmesh as nm
from tests.checks import uniform

A, E, D, T = nm.dims("a=5 e=1 d=4 iteration=3")
X = uniform(1, 5, 1, 4)
pytestmark = pytest.mark.filterwarnings("ignore:.*padded to", "ignore:.*no dimension is mapped")


def run(function, specs, arrays, mesh, layout, partitioner=None):
    """The results of a strict run, checked against those of one device, and the plan."""
    program = nm.trace(function, **specs)
    plan = nm.plan(program, mesh, layout)
    _, found = nm.Step(plan, strict=True, partitioner=partitioner)(None, **arrays)
    _, wanted = program.evaluate({}, **arrays)
    for name, want in wanted.items():
        np.testing.assert_allclose(np.asarray(found[name]), want, rtol=1e-5, atol=1e-5)
    return found, plan


@pytest.mark.parametrize("exclusive", [False, True])
def test_running_sums_over_one_element(exclusive):
    """An exclusive one is zero: XLA made no AllGather of its sine, which was planned."""

    def step(x):
        y = nm.sin(nm.cumsum(x, E, exclusive=exclusive) * 0.3)
        return {"y": y, "dx": nm.grad(nm.sum(y * y), x)}

    found, _ = run(step, {"x": nm.spec([A, E, D])}, {"x": X}, nm.Mesh(y=8), "a:y")
    wanted = np.zeros_like(X) if exclusive else np.sin(X * 0.3)
    np.testing.assert_allclose(np.asarray(found["y"]), wanted, rtol=1e-5, atol=1e-6)


def test_running_sums_over_one_element_in_a_loop():
    """XLA reduced them once, before the loop; three AllReduces were planned."""

    def step(x):
        def iteration(total, row):
            return total + nm.mean(nm.square(nm.cumsum(row, E, exclusive=True) * 0.3)), None

        return {"total": nm.scan(iteration, 0.0, x, over=T)[0]}

    specs, x = {"x": nm.spec([T, nm.Dimension("c", 2), E])}, uniform(2, 3, 2, 1)
    found, plan = run(step, specs, {"x": x}, nm.Mesh(y=8), "c:y")
    assert float(found["total"]) == 0.0 and not plan.collectives


def test_windows_as_large_as_the_dimension():
    """A whole update is all there is afterwards, wherever it starts; XLA knew that."""

    def step(x):
        def iteration(total, row):
            row = nm.dynamic_update(row, nm.zeros([E, D]), 0, E)
            row = nm.dynamic_slice(row, nm.full([], 1, "int32"), E, 1)
            return total + nm.mean(nm.square(nm.pad(nm.reverse(row, E), D, 1, 2, 0.5))), None

        return {"total": nm.scan(iteration, 0.0, x, over=T)[0]}

    specs = {"x": nm.spec([T, E, D])}
    found, plan = run(step, specs, {"x": uniform(3, 3, 1, 4)}, nm.Mesh(x=2, y=4), "d:x+y")
    assert float(found["total"]) == pytest.approx(3 * 3 * 0.25 / 7) and not plan.collectives


def test_gradients_that_are_constants():
    """The gradient of a weighted sum is known, also where it is padded and is returned whole."""

    def step(x):
        weights = nm.cast(nm.range(D), "float32") * 0.1 + 1.0
        wide = nm.broadcast(x, [D, A]) * weights
        return {"dx": nm.grad(nm.sum(wide), x)}

    found, plan = run(step, {"x": nm.spec([A])}, {"x": X[:, 0, 0]}, nm.Mesh(x=2), "a:x")
    np.testing.assert_allclose(np.asarray(found["dx"]), np.full(5, 4.6), rtol=1e-6)
    assert not plan.collectives


def test_parts_of_a_sum_are_reshaped_before_they_are_split():
    """The lowering of the reshape failed: it was to make a split dimension of whole ones."""
    B, C, K, R, S = nm.dims("b=1 c=4 k=6 r=2 s=2")

    def step(x):
        rows = nm.reshape(x, C, [R, S])
        spread = nm.scatter_add(rows, nm.range(B) * 3, K)
        return {"dx": nm.grad(nm.mean(nm.square(spread)) + nm.mean(x), x)}

    specs, x = {"x": nm.spec([B, C, D])}, uniform(4, 1, 4, 4)
    run(step, specs, {"x": x}, nm.Mesh(x=2, y=2, z=2), "c:x+z, k:y")


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_running_sums_of_constants(partitioner):
    """XLA exchanges nothing of one number everywhere; the totals of shards were gathered."""

    def step(x):
        return {
            "dx": nm.grad(nm.mean(nm.cumsum(x, D)), x),
            "ones": x * nm.cumsum(nm.ones([D]), D, reverse=True),
            "range": x + nm.cumsum(nm.cast(nm.range(D), "float32"), D),
        }

    program = nm.trace(step, x=nm.spec([A, D]))
    plan = nm.plan(program, nm.Mesh(x=2, y=2), "d:y+x")
    assert not plan.collectives
    x = X[:, 0]
    _, found = nm.Step(plan, strict=True, partitioner=partitioner)(None, x=x)
    np.testing.assert_allclose(found["dx"], np.tile([0.2, 0.15, 0.1, 0.05], (5, 1)), rtol=1e-5)
    np.testing.assert_allclose(found["ones"], x * np.array([4, 3, 2, 1]), rtol=1e-5)
    np.testing.assert_allclose(found["range"], x + np.array([0, 1, 3, 6]), rtol=1e-5)


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_running_sums_and_products_of_constants(partitioner):
    """The gradient of a mean of running sums is known; an AllGather of it was planned."""
    C, G = nm.dims("c=8 g=8")

    def step(x):
        means = nm.mean(nm.cumsum(nm.replicate(x, G), C)) + nm.mean(nm.cumsum(x, C, reverse=True))
        weights = nm.cumprod(nm.full([G, C], 1.1), C) + nm.cumsum(nm.full([G, C], 0.5), G)
        return {"dx": nm.grad(means, x), "weights": nm.replicate(weights)}

    specs, x = {"x": nm.spec([C, G])}, uniform(5, 8, 8)
    found, plan = run(step, specs, {"x": x}, nm.Mesh(x=2, y=4), "c:x, g:y", partitioner)
    wanted = np.broadcast_to(np.full(8, 9)[:, None] / 64, (8, 8))
    np.testing.assert_allclose(np.asarray(found["dx"]), wanted, rtol=1e-5)
    assert not plan.collectives


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_slices_of_what_is_padded_or_shifted(partitioner):
    """All, or nothing, of a slice is what the program put around a tensor; XLA tells which."""
    C, G = nm.dims("c=8 g=8")

    def step(x):
        joined = nm.concat([x, nm.replicate(nm.tanh(x), G)], C)
        front = nm.slice(joined, nm.Dimension("c", 16), 0, 8)
        padded = nm.pad(nm.reshard(nm.sin(x), C), C, 4, 2, 0.5)
        outside = nm.slice(padded, nm.Dimension("c", 14), 0, 3)
        inside = nm.slice(nm.shift(nm.cos(x), C, 2), C, 3, 4)
        loss = nm.sum(nm.square(front)) + nm.sum(inside * inside)
        dx = nm.grad(loss, x)
        again = nm.grad(nm.sum(dx * dx), x)
        row = nm.take(nm.shift(x * nm.sum(x), C, 2, 0.25), C, 1)
        return {"dx": dx, "again": again, "outside": nm.replicate(outside), "row": row}

    specs, x = {"x": nm.spec([C, G])}, uniform(6, 8, 8)
    _, plan = run(step, specs, {"x": x}, nm.Mesh(x=2, y=4), "g:x, c:y", partitioner)
    assert not [one for one in plan.collectives if one.kind == "AllGather"]


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_regions_that_read_constants_alone(partitioner):
    """Nothing tells where they run: XLA computed the second one, and gathered nothing of it."""
    C, G, H = nm.dims("c=8 g=8 h=8")

    def step(x):
        weights = nm.range(H, "float32") * 0.1 + 0.5
        spread = lambda x: nm.collective.scatter_sum(nm.sin(x) * weights, C, H) * 0.3
        y = nm.manual(spread, x, over=C)
        return {"y": y, "dx": nm.grad(nm.mean(y), x)}

    specs, x = {"x": nm.spec([G, C])}, uniform(7, 8, 8)
    run(step, specs, {"x": x}, nm.Mesh(x=2, y=4), "g:x, c:y", partitioner)


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_a_cotangent_goes_back_to_where_it_was(partitioner):
    """It goes where its primal is, and from there to where it was: XLA has it there still."""
    B, C, G = nm.dims("b=3 c=8 g=3")

    def step(x):
        def body(carry, row):
            chain = nm.sin(carry) + nm.mean(row, B)
            return chain, chain * 2.0

        rows = nm.shard(x, {C: ["y", "z"]})
        last, rows = nm.scan(body, nm.zeros([C]), rows, over=G)
        dx = nm.grad(nm.sum(nm.square(last)) + nm.sum(rows), x)
        return {"dx": dx, "again": nm.grad(nm.sum(dx * dx), x)}

    program = nm.trace(step, x=nm.spec([G, B, C]))
    plan = nm.plan(program, nm.Mesh(x=2, y=2, z=2), "c:z+y", conflicts="cheapest")
    x = uniform(7, 3, 3, 8)
    _, found = nm.Step(plan, strict=True, partitioner=partitioner)(None, x=x)
    _, wanted = program.evaluate({}, x=x)
    for name, want in wanted.items():
        np.testing.assert_allclose(found[name], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_what_a_region_makes_of_constants_is_its_own(partitioner):
    """The update split the number 0.1, and with it the numbers that the region makes of it."""
    C, D, H = nm.dims("c=8 d=2 h=8")

    def step(x):
        w = nm.param("w", [C], nm.constant_init(0.3))
        numbers = lambda x: nm.sin(x) * (nm.range(H, "float32") * 0.1 + 0.5)
        y = nm.manual(numbers, x, over=D)
        loss = nm.sum(nm.square(nm.rename(nm.sum(y, C), H, C) * w))
        nm.assign(w, w - nm.grad(loss)["w"] * 0.1)
        return loss

    program = nm.trace(step, x=nm.spec([D, C]))
    plan = nm.plan(program, nm.Mesh(x=2, y=2, z=2), "", params="c:y")
    compiled = nm.Step(plan, strict=True, partitioner=partitioner)
    state, x = {"w": uniform(9, 8)}, uniform(8, 2, 8)
    after, _ = compiled(compiled.place(state), x=x)
    wanted, _ = program.evaluate(state, x=x)
    np.testing.assert_allclose(after["w"], wanted["w"], rtol=1e-5)


def a_loop_in_a_loop(x, w):
    """The inner loop reads nothing that changes, so XLA runs it once, not once for each row."""
    rotate = lambda c, _: (nm.tanh(nm.roll(c, A8, 1)) * 2.0, nm.reverse(c, A8))

    def body(total, row):
        last, rows = nm.scan(rotate, w, over=T)
        return total + nm.sum(row * last) + nm.sum(rows * row), None

    return nm.scan(body, 0.0, x, over=T)[0]


def a_branch_in_a_loop(x, w):
    def body(total, row):
        turned = nm.cond(nm.sum(w) > 0.0, lambda: nm.roll(w, A8, 1), lambda: nm.reverse(w, A8))
        return total + nm.sum(row * turned), None

    return nm.scan(body, 0.0, x, over=T)[0]


def a_result_of_a_region_in_loops(x, w):
    """Of two cotangents that a region makes, one depends on the iteration and one does not."""
    region = lambda w: nm.manual(lambda w: nm.sin(w), w, over=A8)

    def inner(c, _):
        return c * 0.5 + nm.sum(region(w)), None

    def body(c, row):
        return nm.scan(inner, c, over=T)[0] + nm.sum(row), None

    dw = nm.grad(nm.sin(nm.scan(body, 0.0, x, over=T)[0]), w)
    return nm.sum(nm.square(dw)) + nm.sum(nm.grad(nm.sum(nm.square(dw)), w))


def a_gradient_in_a_loop(x, w):
    """What flows back through the inner loop is known, and so the same for each row."""

    def body(total, row):
        turned = nm.scan(lambda c, _: (nm.roll(c, A8, 1), None), nm.sin(row * w), over=T)[0]
        loss = nm.sum(turned * nm.range(A8, "float32"))
        return total + nm.sum(nm.grad(loss, w)), None

    return nm.scan(body, 0.0, x, over=T)[0]


A8 = nm.Dimension("a", 8)


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_what_never_changes_in_loops(partitioner):
    """Loops and branches of what loops capture are run once, as XLA runs them."""
    functions = (
        a_loop_in_a_loop, a_branch_in_a_loop, a_result_of_a_region_in_loops, a_gradient_in_a_loop
    )  # fmt: skip

    def step(x, w):
        return {one.__name__: one(x, w) for one in functions}

    specs = {"x": nm.spec([T, A8]), "w": nm.spec([A8])}
    arrays = {"x": uniform(8, 3, 8), "w": uniform(9, 8)}
    _, plan = run(step, specs, arrays, nm.Mesh(x=8), "a:x", partitioner)
    times = [one.times for one in plan.collectives if one.kind == "CollectivePermute"]
    assert sorted(times)[-2] <= 3, "but for the forward pass of the last"


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_whatever_is_made_of_one_number(partitioner):
    """XLA gathered, exchanged and reduced nothing of it; the plan did behind these ops."""
    C, G, K = nm.dims("c=8 g=8 k=2")
    softmax = lambda x: nm.softmax(x, over=C)
    spread = lambda x: nm.transpose(nm.broadcast(x, [G, *x.shape]), [C, G])

    def step(x):
        half, row = nm.full([C, G], 0.5), nm.full([C], 0.5)
        made = {
            "einsum": nm.einsum([half, half], [C]),
            "max": nm.vmap(lambda x: nm.max(x, G), C)(half),
            "top_k": nm.top_k(half, C, K)[0],
            "row": nm.stack([half, half * 2.0], K)[K, 0],
            "softmax": nm.checkpoint(softmax)(half),
            "own": nm.custom_vjp(lambda x: (softmax(x), x), lambda x, dy: (dy,))(half),
            "gradient": nm.grad(nm.sum(nm.square(softmax(half))), half),
            "product": nm.grad(nm.sum(nm.prod(half, C)), half),
            "region": nm.manual(lambda x: nm.broadcast(nm.max(x, G), x.shape), half, over=C),
            "swap": nm.manual(lambda x: nm.collective.all_to_all(spread(x), C, G), row, over=C),
            "function": nm.call_jax(lambda x: x * x, half, result=nm.spec([C, G]), batch=[C]),
        }
        return {name: nm.replicate(y) * nm.replicate(x) for name, y in made.items()}

    specs, x = {"x": nm.spec([])}, np.float32(1.5)
    _, plan = run(step, specs, {"x": x}, nm.Mesh(x=2, y=4), "c:x, g:y", partitioner)
    assert not plan.collectives


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_conditions_that_are_known(partitioner):
    """XLA computed them and dropped a branch, of which two AllReduces were planned."""

    def step(x, u):
        conditions = [
            nm.sum(nm.ones([A])) > 3.0, nm.max(nm.range(A)) > 3, nm.sum(u) >= 0,
            nm.sum(x) ** 0.0 > 0.5, nm.any(nm.range(A) >= nm.range(D)), u >= 0, nm.range(A) >= 0,
            nm.mean(nm.range(A, "float32")) > 1.5,
        ]  # fmt: skip
        heavy = nm.softmax(x, over=A)
        results = [nm.where(one, nm.sin(x) * i, heavy) for i, one in enumerate(conditions)]
        choice = nm.cond(conditions[0], lambda: nm.sin(x), lambda: nm.softmax(x, over=A))
        return {"where": nm.stack(results, nm.Dimension("case", 8)), "cond": choice}

    specs = {"x": nm.spec([A, D]), "u": nm.spec([A], "uint32")}
    arrays = {"x": uniform(4, 5, 4), "u": np.arange(5, dtype=np.uint32)}
    found, plan = run(step, specs, arrays, nm.Mesh(y=4), "a:y", partitioner)
    np.testing.assert_allclose(np.asarray(found["cond"]), np.sin(arrays["x"]), rtol=1e-5)
    assert {one.kind for one in plan.collectives} <= {"AllGather"}, "results that do not divide"
