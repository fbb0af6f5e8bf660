"""Gradients of microbatches are added up over devices once, whatever is on the way there."""

import numpy as np
import pytest

import namedmesh as nm
from tests.checks import uniform

MICRO, OUTER, LAYER, BATCH, MODEL, HIDDEN = nm.dims(
    "micro=3 outer=2 layer=2 batch=8 model=16 hidden=32"
)
STAGE, MEMBER = nm.dims("stage=2 member=2")
SHAPES = {"w": [LAYER, MODEL, HIDDEN], "v": [LAYER, HIDDEN, MODEL]}
MESH = nm.Mesh(data=4)


def layer(x):
    w = nm.cast(nm.param("w", [MODEL, HIDDEN], nm.normal_init(0.1)), x.dtype)
    v = nm.cast(nm.param("v", [HIDDEN, MODEL], nm.normal_init(0.1)), x.dtype)
    return x + nm.einsum([nm.tanh(nm.einsum([x, w], [BATCH, HIDDEN])), v], [BATCH, MODEL])


def loss_of(x, dtype="bfloat16", apply=layer):
    """The loss of layers in a loop, in a narrow dtype."""
    y, _ = nm.scan(
        lambda x, _: (apply(x), None), nm.cast(x, dtype), over=LAYER, stack=True, remat="full"
    )
    return nm.mean(nm.square(nm.cast(y, "float32")))


def zeros(dtype="float32"):
    return {name: nm.zeros(shape, dtype) for name, shape in SHAPES.items()}


def add(sums, gradients, term=lambda gradient: gradient):
    return {name: sums[name] + term(gradients[name]) for name in sums}


def accumulate(x, over=MICRO, start=None, loss=loss_of, term=lambda one: one, unroll=False):
    """Carry the sum of gradients that each iteration takes."""

    def iteration(sums, x):
        return add(sums, nm.grad(loss(x)), term), None

    start = zeros() if start is None else start
    return nm.scan(iteration, start, x, over=over, unroll=unroll)[0]


def differentiate_loop(x):
    total, _ = nm.scan(lambda total, x: (total + loss_of(x), None), 0.0, x, over=MICRO)
    return nm.grad(total)


def nest_loops(x):
    """One sum goes through two loops."""
    return nm.scan(lambda sums, x: (accumulate(x, start=sums), None), zeros(), x, over=OUTER)[0]


def write_out_the_first(x):
    """The sum starts with the gradients of the first microbatch."""
    first = nm.grad(loss_of(nm.take(x, MICRO, 0)))
    return accumulate(nm.slice(x, MICRO, 1, 2), MICRO.resized(2), first)


def stack_and_sum(x):
    """Every iteration returns its gradients, which are added up after the loop."""
    _, gradients = nm.scan(lambda _, x: ([], nm.grad(loss_of(x))), [], x, over=MICRO)
    return {name: nm.sum(one, over=MICRO) for name, one in gradients.items()}


def skip_layers(x):
    """Layers are in a branch, of whose weights the other branch has no gradient."""

    def skip(x):
        def body(x, _):
            w, v = nm.param("w", SHAPES["w"][1:]), nm.param("v", SHAPES["v"][1:])
            w, v = nm.cast(w, "bfloat16"), nm.cast(v, "bfloat16")
            positive = nm.sum(nm.cast(x, "float32")) > -1e6

            def yes():
                h = nm.tanh(nm.einsum([x, w], [BATCH, HIDDEN]))
                return x + nm.einsum([h, v], [BATCH, MODEL])

            return nm.cond(positive, yes, lambda: x), None

        y, _ = nm.scan(body, nm.cast(x, "bfloat16"), over=LAYER, stack=True)
        return nm.mean(nm.square(nm.cast(y, "float32")))

    return accumulate(x, loss=skip)


def choose_a_loss(x):
    """Both branches have gradients."""

    def loss(x):
        plain = lambda: loss_of(x)
        return nm.cond(nm.sum(x) > 0.0, plain, lambda: loss_of(x) * 2.0)

    return accumulate(x, loss=loss)


def repeat_while(x):
    def body(i, sums):
        return i + 1, add(sums, nm.grad(loss_of(nm.take(x, MICRO, i))))

    return nm.while_loop(lambda i, sums: i < 3, body, nm.zeros([], "int32"), zeros())[1]


def run_a_pipeline(x):
    """Layers are a loop in the stage of a pipeline."""

    def stage(x):
        return nm.scan(lambda x, _: (layer(x), None), x, over=LAYER, stack=True)[0]

    y = nm.pipeline(stage, nm.cast(x, "bfloat16"), stages=STAGE, batches=MICRO)
    return nm.grad(nm.mean(nm.square(nm.cast(y, "float32"))))


def batch_members(x):
    return nm.vmap(accumulate, MEMBER)(x)


def batch_layers(x):
    def loss(x):
        return nm.sum(nm.vmap(loss_of, MEMBER, stack=True)(x))

    total, _ = nm.scan(lambda total, x: (total + loss(x), None), 0.0, x, over=MICRO)
    return nm.grad(total)


def decay_weights(x):
    """A term that every device has is added to one of partial sums."""

    def iteration(sums, x):
        gradients, weights = nm.grad(loss_of(x)), nm.parameters()
        return {n: sums[n] + (gradients[n] + 0.01 * weights[n]) for n in sums}, None

    return nm.scan(iteration, zeros(), x, over=MICRO)[0]


def flatten_gradients(x):
    flat = nm.Dimension("flat", 2 * 16 * 32)

    def iteration(sums, x):
        gradients = nm.grad(loss_of(x))
        return add(sums, gradients, lambda one: nm.reshape(one, list(one.shape), [flat])), None

    return nm.scan(iteration, {name: nm.zeros([flat]) for name in SHAPES}, x, over=MICRO)[0]


def write_out_microbatches(x):
    """No loop: the gradients of all microbatches are added up one after the other."""
    gradients = [nm.grad(loss_of(nm.take(x, MICRO, i))) for i in range(MICRO.size)]
    total = {name: one * 0.5 for name, one in gradients[0].items()}
    for more in gradients[1:]:
        total = add(total, more, lambda one: one * 0.5)
    return total


def recompute_microbatches(x):
    return accumulate(x, loss=nm.checkpoint(loss_of))


def terms(function):
    return lambda x: accumulate(x, term=function)


def reverse(x):
    return nm.transpose(x, list(reversed(list(x.shape))))


ROWS = nm.spec([MICRO, BATCH, MODEL])
PROGRAMS = {
    "carried": (accumulate, ROWS),
    "scaled": (terms(lambda one: one * 0.25), ROWS),
    "divided": (terms(lambda one: one / 3.0), ROWS),
    "negated": (terms(lambda one: -one), ROWS),
    "transposed": (terms(lambda one: nm.transpose(reverse(one), one.shape)), ROWS),
    "masked": (terms(lambda one: nm.where(nm.range(MODEL) > 1, one, 0.0)), ROWS),
    "stopped": (terms(nm.stop_gradient), ROWS),
    "differentiated": (differentiate_loop, ROWS),
    "nested": (nest_loops, nm.spec([OUTER, MICRO, BATCH, MODEL])),
    "first written out": (write_out_the_first, ROWS),
    "stacked": (stack_and_sum, ROWS),
    "skipped": (skip_layers, ROWS),
    "chosen": (choose_a_loss, ROWS),
    "while": (repeat_while, ROWS),
    "pipeline": (run_a_pipeline, ROWS),
    "vmap outside": (batch_members, nm.spec([MEMBER, MICRO, BATCH, MODEL])),
    "vmap inside": (batch_layers, nm.spec([MICRO, MEMBER, BATCH, MODEL])),
    "decayed": (decay_weights, ROWS),
    "flat": (flatten_gradients, ROWS),
    "recomputed": (recompute_microbatches, ROWS),
    "written out": (write_out_microbatches, ROWS),
    "unrolled": (lambda x: accumulate(x, unroll=True), ROWS),
}


def place(name):
    """The mesh and layout of a program: data parallel, and a pipeline's stages apart."""
    if name == "pipeline":
        return nm.Mesh(data=2, stage=2), "batch:data, stage:stage"
    return MESH, "batch:data"


def list_sums(plan):
    """How gradients are added up over devices: kind, dtype and times of each."""
    large = [one for one in plan.collectives if one.elements >= 256]
    return [(one.kind, one.dtype, one.times) for one in large]


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_in_bfloat16_are_added_up_once_in_float32(name):
    function, spec = PROGRAMS[name]
    mesh, layout = place(name)
    plan = nm.plan(nm.trace(function, x=spec), mesh, layout)
    assert list_sums(plan) == 2 * [("AllReduce", "float32", 1)], plan.communication


@pytest.mark.parametrize("name", ["carried", "nested", "skipped", "while", "pipeline", "decayed"])
def test_the_sums_are_made_as_planned_and_right(name):
    function, spec = PROGRAMS[name]
    mesh, layout = place(name)
    program = nm.trace(function, x=spec)
    step = nm.Step(nm.plan(program, mesh, layout), strict=True)
    x = np.random.default_rng(0).normal(size=spec.shape.sizes).astype(np.float32)
    state = {key: np.asarray(value) for key, value in program.initial_state(0).items()}
    _, wanted = program.evaluate(state, x=x)
    _, found = step(step.place(state), x)
    for key, one in wanted.items():
        scale = np.abs(one).max()
        np.testing.assert_allclose(found[key] / scale, one / scale, atol=2e-2)


def test_an_accumulator_may_be_narrower_than_the_gradients():
    def iteration(sums, x):
        gradients = nm.grad(loss_of(x, "float32"))
        return add(sums, gradients, lambda one: nm.cast(one, "bfloat16")), None

    def train(x):
        return nm.scan(iteration, zeros("bfloat16"), x, over=MICRO)[0]

    plan = nm.plan(nm.trace(train, x=ROWS), MESH, "batch:data")
    assert list_sums(plan) == 2 * [("AllReduce", "bfloat16", 1)], plan.communication


def test_without_accumulation_gradients_are_sent_in_the_narrow_dtype():
    plan = nm.plan(
        nm.trace(lambda x: nm.grad(loss_of(x)), x=nm.spec([BATCH, MODEL])), MESH, "batch:data"
    )
    assert list_sums(plan) == 2 * [("AllReduce", "bfloat16", 2)], plan.communication


def test_what_reads_a_gradient_in_every_iteration_has_it_added_up_there():
    def iteration(sums, x):
        gradients = nm.grad(loss_of(x))
        norm = nm.sqrt(sum(nm.sum(nm.square(one)) for one in gradients.values()))
        return add(sums, gradients, lambda one: one / norm), None

    def train(x):
        return nm.scan(iteration, zeros(), x, over=MICRO)[0]

    plan = nm.plan(nm.trace(train, x=ROWS), MESH, "batch:data")
    assert list_sums(plan) == 2 * [("AllReduce", "bfloat16", 6)], plan.communication


def test_shards_over_an_inner_axis_are_added_up_over_the_outer_one_once():
    mesh = nm.Mesh(outer=2, inner=2)
    plan = nm.plan(nm.trace(accumulate, x=ROWS), mesh, "batch:outer+inner", params="model:inner")
    sums = [one for one in list_sums(plan) if one[0] != "AllGather"]
    assert sorted(sums) == [
        *2 * [("AllReduce", "float32", 1)],
        *2 * [("ReduceScatter", "bfloat16", 6)],
    ]


@pytest.mark.parametrize("over", ["iterations", "groups of them"])
def test_sums_over_loops_in_loops_are_scattered_to_where_they_rest(over):
    """Weights that are gathered once, before all loops, left whole sums, and whole moments."""

    def iteration(sums, x):
        return add(sums, nm.grad(loss_of(x))), None

    def group(sums, x):
        return nm.scan(iteration, sums, x, over=MICRO, gather_once=True)

    def train(x):
        if over == "iterations":
            sums, _ = group(zeros(), x[OUTER, 0])
        else:
            sums, _ = nm.scan(group, zeros(), x, over=OUTER, gather_once=True)
        nm.layers.Adam(1e-2).apply(sums)

    program = nm.trace(train, x=nm.spec([OUTER, *ROWS.shape]))
    plan = nm.plan(program, MESH, "batch:data", params="model:data")
    kinds = [(one.kind, one.phase, one.times) for one in plan.collectives]
    assert sorted({kind for kind, phase, times in kinds}) == ["AllGather", "ReduceScatter"]
    assert len(kinds) == 4 and all(times == 1 for *_, times in kinds), plan.communication


@pytest.mark.parametrize("schedule, dtype", [("1f1b", "bfloat16"), ("zero_bubble", "float32")])
def test_a_pipeline_of_two_stages_sends_each_gradient_once(schedule, dtype):
    """Its last microbatch comes back after the loop, which has one iteration left then."""

    def step(x):
        loss = lambda y, _: nm.mean(nm.square(nm.cast(y, "float32")))
        total = nm.pipeline(
            lambda x, _: layer(x), x, stages=STAGE, batches=MICRO, layers=LAYER, schedule=schedule,
            first=lambda x: nm.cast(x, dtype), loss=loss,
        )  # fmt: skip
        return total, nm.grad(total)

    def plain(x):
        total, _ = nm.scan(
            lambda total, x: (total + loss_of(x, dtype) / MICRO.size, None), 0.0, x, over=MICRO
        )
        return total, nm.grad(total)

    spec = nm.spec([MICRO, BATCH, MODEL])
    plan = nm.plan(
        nm.trace(step, spec), nm.Mesh(stage=2, data=2), "stage:stage, layer:stage, batch:data"
    )
    sums = [one for one in plan.collectives if one.phase == "backward" and "data" in one.axes]
    assert [(one.times, one.dtype) for one in sums] == [(1, "float32")] * 2
    compiled = nm.Step(plan, strict=True)
    state, x = compiled.init(seed=0), uniform(0, *spec.shape.sizes)
    weights = {name: np.asarray(value) for name, value in state.items()}
    _, (loss, gradients) = compiled(state, x)
    _, (expected, others) = nm.trace(plain, spec).evaluate(weights, x=x)
    np.testing.assert_allclose(loss, expected, rtol=1e-2)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, others[name], atol=2e-2 * np.abs(others[name]).max())
