"""Parameters at rest have the axes of the layout, and those that params= adds."""

from collections import Counter

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.display.text import human

BATCH, MODEL, HIDDEN, EXPERT = nm.dims("batch=8 model=16 hidden=32 expert=4")
MESH = nm.Mesh(data=2, tensor=4)
LAYOUT = "batch:data, hidden:tensor"


def train(x):
    wi = nm.param("wi", [MODEL, HIDDEN], nm.normal_init(0.1))
    wo = nm.param("wo", [HIDDEN, MODEL], nm.normal_init(0.1))
    y = nm.einsum([nm.relu(nm.einsum([x, wi], [BATCH, HIDDEN])), wo], [BATCH, MODEL])
    loss = nm.mean(nm.square(y))
    nm.layers.Adam(0.01).apply(nm.grad(loss))
    return loss


PROGRAM = nm.trace(train, x=nm.spec([BATCH, MODEL]))


def places(plan):
    """The shardings of parameters and slots, by name."""
    variables = plan.program.variables.values()
    return {one.name: dict(plan.shardings[one.tensor].held) for one in variables if one.at_rest}


def kinds(plan):
    return [(one.kind, one.axes, one.elements, one.times) for one in plan.collectives]


def test_params_add_to_the_layout():
    """Weights at rest used to lose tensor: four times the memory, and more was sent."""
    plan = nm.plan(PROGRAM, MESH, LAYOUT, params="model:data")
    rest = {"model": ("data",), "hidden": ("tensor",)}
    assert places(plan)["wi"] == places(plan)["wo"] == rest
    assert all(held == rest for name, held in places(plan).items() if "w" in name)
    both = nm.plan(PROGRAM, MESH, LAYOUT, params="hidden:tensor, model:data")
    assert kinds(plan) == kinds(both)
    # Each weight is gathered and its gradient scattered over data alone; activations as without.
    weights = [one for one in plan.collectives if one.kind in ("AllGather", "ReduceScatter")]
    assert [(one.axes, one.elements) for one in weights] == 4 * [(("data",), 16 * 32 // 4)]


def test_a_minus_takes_an_axis_away():
    plan = nm.plan(PROGRAM, MESH, LAYOUT, params="model:data, hidden:-tensor")
    assert places(plan)["wi"] == {"model": ("data",)}
    swapped = nm.plan(PROGRAM, MESH, LAYOUT, params={"model": "tensor", "hidden": "-tensor"})
    assert places(swapped)["wi"] == {"model": ("tensor",)}
    assert swapped.params.text == "model:tensor, hidden:-tensor"


def test_nothing_is_added_by_nothing():
    assert kinds(nm.plan(PROGRAM, MESH, LAYOUT, params="")) == kinds(nm.plan(PROGRAM, MESH, LAYOUT))


@pytest.mark.filterwarnings("ignore:the layout maps dimension hidden")
def test_axes_in_use_come_first_so_that_one_gather_is_enough():
    mesh = nm.Mesh(data=2, tensor=2)
    layout = "batch:data, model:tensor, hidden:tensor"
    plan = nm.plan(PROGRAM, mesh, layout, params="model:data+tensor", conflicts="cheapest")
    assert places(plan)["wi"] == {"model": ("tensor", "data")}
    assert "CollectivePermute" not in {one.kind for one in plan.collectives}


def test_a_dimension_that_holds_the_axis_in_use_keeps_it():
    def mix(x):
        w = nm.param("experts", [EXPERT, MODEL, HIDDEN])
        h = nm.einsum([x, nm.param("dense", [MODEL, HIDDEN])], [EXPERT, BATCH, HIDDEN])
        return nm.sum(h + nm.einsum([x, w], [EXPERT, BATCH, HIDDEN]))

    program = nm.trace(mix, x=nm.spec([EXPERT, BATCH, MODEL]))
    plan = nm.plan(program, nm.Mesh(data=4), "expert:data", params="model:data")
    assert places(plan) == {"experts": {"expert": ("data",)}, "dense": {"model": ("data",)}}


@pytest.mark.parametrize("params", ["model:data", "model:data, hidden:-tensor", "hidden:data"])
def test_a_step_runs_as_planned_and_trains_as_one_device(params):
    step = nm.compile(PROGRAM, mesh=MESH, layout=LAYOUT, params=params, strict=True)
    x = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
    state = {name: np.asarray(one) for name, one in PROGRAM.initial_state(0).items()}
    wanted, loss = PROGRAM.evaluate(state, x=x)
    found, result = step(step.place(state), x)
    np.testing.assert_allclose(result, loss, rtol=1e-5)
    for name in ("wi", "wo"):
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-3, atol=1e-5)


def test_an_artifact_keeps_what_was_written(tmp_path):
    artifact = nm.export(PROGRAM, MESH, LAYOUT, params="model:data, hidden:-tensor")
    artifact.save(tmp_path / "step.nmesh")
    assert nm.Artifact.load(tmp_path / "step.nmesh").params == "model:data, hidden:-tensor"


@pytest.mark.parametrize(
    "text", ["model:data, hidden:-tensor", "hidden:data+-tensor, !*scale", "model:-data+-tensor"]
)
def test_a_layout_with_a_minus_reads_back(text):
    layout = nm.Layout(text)
    assert nm.Layout(layout.text) == nm.Layout(layout) == layout
    assert layout != nm.Layout(text.replace("-", ""))
    assert layout.only(["hidden"]).removed.keys() <= {"hidden"}
    assert nm.Layout.from_yaml("hidden: [data, -tensor]") == nm.Layout("hidden:data+-tensor")


@pytest.mark.parametrize(
    "layout, params, problem",
    [
        ("batch:data, hidden:-tensor", None, "the layout takes axes away: hidden"),
        (LAYOUT, "model:-tensor", "params takes axis 'tensor' away from model"),
        (LAYOUT, "hidden:-tensr", "the mesh has no axis 'tensr'"),
        (LAYOUT, "hidden:--tensor", "'-tensor' is not an identifier"),
    ],
)
def test_an_axis_that_is_not_there_cannot_be_taken_away(layout, params, problem):
    with pytest.raises(nm.NamedMeshError, match=problem):
        nm.plan(PROGRAM, MESH, layout, params)


STEPS, LAYER = nm.dims("step=6 layer=3")


def read_prompt(x, **options):
    """A loop over tokens, of which each passes through a stack of layers."""

    def token(state, x):
        def apply(h, _):
            w, v = nm.param("w", [MODEL, HIDDEN]), nm.param("v", [HIDDEN, MODEL])
            h = nm.tanh(nm.einsum([h, w], [BATCH, HIDDEN]))
            return nm.einsum([h, v], [BATCH, MODEL]), None

        h, _ = nm.scan(apply, state + x, over=LAYER, stack=True)
        return h, None

    return nm.scan(token, nm.zeros([BATCH, MODEL]), x, over=STEPS, **options)[0]


def test_a_loop_that_gathers_in_every_iteration_says_so_with_the_cheaper_form():
    spec, mesh = nm.spec([STEPS, BATCH, MODEL]), nm.Mesh(data=4)
    plan = nm.plan(nm.trace(read_prompt, x=spec), mesh, "batch:data", params="model:data")
    once = nm.plan(
        nm.trace(lambda x: read_prompt(x, gather_once=True), x=spec),
        mesh, "batch:data", params="model:data",
    )  # fmt: skip
    (text,) = plan.decisions
    assert "each iteration over step=6 gathers weights at rest" in text
    assert plan.decisions[text] == ("w", "v") and not once.decisions
    assert human(once.total_wire_bytes()) in text
    assert plan.total_wire_bytes() == 6 * once.total_wire_bytes()


@pytest.mark.parametrize("once", [False, True])
def test_gathering_once_changes_no_number(once):
    def step(x):
        loss = nm.mean(nm.square(read_prompt(x, gather_once=once)))
        return loss, nm.grad(loss)

    program = nm.trace(step, x=nm.spec([STEPS, BATCH, MODEL]))
    compiled = nm.compile(
        program, mesh=nm.Mesh(data=4), layout="batch:data", params="model:data", strict=True
    )
    gathers = {one.times for one in compiled.plan.collectives if one.kind == "AllGather"}
    assert gathers == ({1} if once else {18})
    x = np.random.default_rng(0).normal(size=(6, 8, 16)).astype(np.float32)
    state = {name: np.asarray(one) for name, one in program.initial_state(0).items()}
    _, (loss, gradients) = program.evaluate(state, x=x)
    _, (found, others) = compiled(compiled.place(state), x)
    np.testing.assert_allclose(found, loss, rtol=1e-5)
    for name, one in gradients.items():
        np.testing.assert_allclose(others[name], one, rtol=1e-3, atol=1e-5)


GROUP, MICRO = nm.dims("group=2 micro=4")


def apply_narrow(x, tied=False):
    """A layer in bfloat16, whose weights are float32 at rest."""
    w = nm.param("w", [MODEL, HIDDEN], nm.normal_init(0.1))
    v = w if tied else nm.param("v", [HIDDEN, MODEL], nm.normal_init(0.1))
    h = nm.tanh(nm.einsum([x, nm.cast(w, "bfloat16")], [BATCH, HIDDEN]))
    return x + nm.einsum([h, nm.cast(v, "bfloat16")], [BATCH, MODEL])


def stack_narrow(layer=apply_narrow, **options):
    """The loss of a stack of such layers."""

    def loss(x):
        stacked = nm.scan(
            lambda x, _: (layer(x), None), nm.cast(x, "bfloat16"), over=LAYER, stack=True, **options
        )
        return nm.mean(nm.square(nm.cast(stacked[0], "float32")))

    return loss


def group_narrow(x):
    """The loss of a stack of groups of layers."""

    def group(x, _):
        return nm.scan(lambda x, _: (apply_narrow(x), None), x, over=LAYER, stack=True)[0], None

    y, _ = nm.scan(group, nm.cast(x, "bfloat16"), over=GROUP, stack=True)
    return nm.mean(nm.square(nm.cast(y, "float32")))


def add_inside(loss):
    """Gradients of microbatches, added up in a loop that gathers once."""
    shapes = nm.trace(loss, x=nm.spec([BATCH, MODEL])).parameters

    def iteration(sums, x):
        gradients = nm.grad(loss(x))
        return {name: sums[name] + gradients[name] for name in sums}, None

    def train(x):
        zeros = {name: nm.zeros(one.shape) for name, one in shapes.items()}
        return nm.scan(iteration, zeros, x, over=MICRO, gather_once=True)[0]

    return train


def add_outside(loss, **options):
    """Gradients of the loss of all microbatches."""

    def train(x):
        total, _ = nm.scan(
            lambda total, x: (total + loss(x), None),
            0.0,
            x,
            over=MICRO,
            gather_once=True,
            **options,
        )
        return nm.grad(total)

    return train


NARROW = {
    "inside": add_inside(stack_narrow()),
    "computed again": add_inside(stack_narrow(remat="full")),
    "checkpoints": add_inside(stack_narrow(nm.checkpoint(apply_narrow))),
    "three at a time": add_inside(stack_narrow(unroll=3)),
    "tied": add_inside(stack_narrow(lambda x: apply_narrow(x, tied=True))),
    "groups": add_inside(group_narrow),
    "outside": add_outside(stack_narrow()),
    "outside, computed again": add_outside(stack_narrow(remat="full"), remat="full"),
    "outside, checkpoint": add_outside(nm.checkpoint(stack_narrow())),
}


@pytest.mark.parametrize("name", NARROW)
def test_what_is_gathered_once_is_gathered_as_narrow_as_it_is_read(name):
    """Stacks were gathered in float32, and cast row by row in the loop."""
    program = nm.trace(NARROW[name], x=nm.spec([MICRO, BATCH, MODEL]))
    plan = nm.plan(program, nm.Mesh(data=4), "batch:data", params="model:data")
    sent = Counter()
    for one in plan.collectives:
        sent[one.kind, one.tensor, one.dtype] += one.elements * one.times
    wanted = {}
    for label, one in program.parameters.items():
        wanted["AllGather", label, "bfloat16"] = one.shape.elements
        wanted["ReduceScatter", f"d_{label}", "float32"] = one.shape.elements
    assert sent == wanted, plan.communication
    if name in ("three at a time", "groups", "outside, checkpoint"):
        check_gradients(program, nm.Step(plan, strict=True))


def check_gradients(program, step):
    """A step returns the gradients that one device does."""
    x = np.random.default_rng(0).normal(size=(4, 8, 16)).astype(np.float32)
    state = {name: np.asarray(one) for name, one in program.initial_state(0).items()}
    _, gradients = program.evaluate(state, x=x)
    _, found = step(step.place(state), x)
    for name in program.parameters:
        wanted = np.asarray(gradients[name])
        np.testing.assert_allclose(found[name], wanted, atol=0.03 * np.abs(wanted).max())


def test_stacks_that_are_also_read_as_they_are_stay_so():
    def layer(x):
        w = nm.param("w", [MODEL, HIDDEN])
        h = nm.einsum([x, nm.cast(w, "bfloat16")], [BATCH, HIDDEN])
        return nm.cast(nm.einsum([nm.cast(h, "float32"), w], [BATCH, MODEL]), "bfloat16")

    program = nm.trace(add_inside(stack_narrow(layer)), x=nm.spec([MICRO, BATCH, MODEL]))
    plan = nm.plan(program, nm.Mesh(data=4), "batch:data", params="model:data")
    gathers = [one.dtype for one in plan.collectives if one.kind == "AllGather"]
    assert gathers == ["float32"]


def update(optimizer, gradient=lambda g: g):
    """A step that is given a gradient, and computes none."""

    def step(g, x):
        w = nm.param("w", [MODEL, HIDDEN], nm.normal_init(0.1))
        optimizer.apply({"w": gradient(g)})
        return nm.sum(nm.einsum([x, w], [BATCH, HIDDEN]))

    return step


OPTIMIZERS = {
    "sgd": nm.layers.Sgd(0.1),
    "adam": nm.layers.Adam(0.1),
    "clipped": nm.layers.Adam(0.1, clip_norm=0.5),
    "adagrad": nm.layers.Adagrad(0.1),
    "adafactor": nm.layers.Adafactor(0.1),
}


@pytest.mark.filterwarnings("ignore:.* is padded")
@pytest.mark.parametrize("where", ["whole", "shared", "uneven"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_devices_cut_their_shards_of_a_gradient_that_is_an_input(name, where):
    """The slots at rest were gathered, updated as a whole and cut again."""
    mesh = {"whole": nm.Mesh(data=4), "shared": MESH, "uneven": nm.Mesh(data=3)}[where]
    layout = LAYOUT if where == "shared" else "batch:data"
    specs = {"g": nm.spec([MODEL, HIDDEN]), "x": nm.spec([BATCH, MODEL])}
    program = nm.trace(update(OPTIMIZERS[name]), **specs)
    check_update(program, mesh, layout, [], runs=name == "clipped")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_sum_that_updates_what_rests_is_scattered_to_it(name):
    """A gradient that is no cotangent was reduced as a whole on every device."""
    step = update(OPTIMIZERS[name], lambda g: nm.mean(g, over=BATCH))
    specs = {"g": nm.spec([BATCH, MODEL, HIDDEN]), "x": nm.spec([BATCH, MODEL])}
    program = nm.trace(step, **specs)
    mesh, runs = nm.Mesh(data=4), name in ("clipped", "adafactor")
    check_update(program, mesh, "batch:data", ["ReduceScatter"], runs)


def check_update(program, mesh, layout, kinds, runs):
    """What is sent of a step's tensors: the parameter for the loss, and besides some kinds."""
    plan = nm.plan(program, mesh, layout, params="model:data")
    large = [one for one in plan.collectives if one.elements > 1]
    assert sorted(one.kind for one in large) == ["AllGather", *kinds], plan.communication
    if not runs:
        return
    step = nm.Step(plan, strict=True)
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.normal(size=one.shape.sizes).astype(np.float32)
        for name, one in program.inputs.items()
    }
    state = {name: np.asarray(one) for name, one in program.initial_state(0).items()}
    wanted, _ = program.evaluate(state, **arrays)
    found, _ = step(step.place(state), **arrays)
    for name, one in wanted.items():
        np.testing.assert_allclose(found[name], one, rtol=1e-3, atol=1e-5)


def remat_in_remat(x):
    """Layers that are computed again, in each of which a part is computed again by itself."""

    def part(x):
        w, v = nm.param("w", [MODEL, HIDDEN]), nm.param("v", [HIDDEN, MODEL])
        h = nm.tanh(nm.einsum([x, w], [BATCH, HIDDEN]))
        return nm.tanh(nm.einsum([h, v], [BATCH, MODEL]))

    def apply(x, _):
        return nm.tanh(x + nm.checkpoint(part)(x)), None

    y, _ = nm.scan(apply, x, over=LAYER, stack=True, remat="full")
    return nm.grad(nm.mean(nm.square(y)))


def test_what_is_computed_again_twice_is_gathered_once():
    program = nm.trace(remat_in_remat, x=nm.spec([BATCH, MODEL]))
    step = nm.compile(
        program, mesh=nm.Mesh(data=4), layout="batch:data", params="model:data", strict=True
    )
    gathers = [one for one in step.plan.collectives if one.kind == "AllGather"]
    phases = [(one.phase, one.tensor, one.times) for one in gathers]
    assert sorted(phases) == [(p, w, 3) for p in ("backward", "forward") for w in ("v", "w")]
    x = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
    state = {name: np.asarray(one) for name, one in program.initial_state(0).items()}
    _, wanted = program.evaluate(state, x=x)
    _, found = step(step.place(state), x)
    for name, one in wanted.items():
        np.testing.assert_allclose(found[name], one, rtol=1e-3, atol=1e-6)


def test_layers_that_are_computed_again_twice_say_what_that_sends():
    GROUP = nm.Dimension("group", 2)

    def train(x):
        def apply(x, _):
            w = nm.param("w", [MODEL, HIDDEN])
            return x + nm.sum(nm.tanh(nm.einsum([x, w], [BATCH, HIDDEN])), over=HIDDEN), None

        def group(x, _):
            return nm.scan(apply, x, over=LAYER, stack=True, remat="full")[0], None

        y, _ = nm.scan(group, x, over=GROUP, stack=True, remat="full")
        return nm.grad(nm.mean(nm.square(y)))

    program = nm.trace(train, x=nm.spec([BATCH, MODEL]))
    plan = nm.plan(program, nm.Mesh(data=4), "batch:data", params="model:data")
    gathers = [one for one in plan.collectives if one.kind == "AllGather"]
    assert [one.times for one in gathers] == [6, 6, 6]
    (text,) = plan.decisions
    assert text.endswith(f"sends {human(gathers[0].total_wire_bytes)} less")


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_what_only_a_kernel_would_read_stays_at_rest(partitioner):
    """A loop gathered it, and XLA, which has no such kernel on a CPU, did not."""
    T, MEMORY = nm.dims("time=3 memory=4")

    def train(x):
        k, v = (nm.param(name, [MEMORY, MODEL], nm.normal_init(0.1)) * 2.0 for name in "kv")

        def read(total, row):
            y = nm.attention(row, k, v, MEMORY, MODEL, block=2)
            return total + nm.cond(total > 1.0, lambda: nm.sum(y), lambda: nm.mean(y)), None

        return nm.scan(read, 0.0, x, over=T)[0]

    program = nm.trace(train, x=nm.spec([T, BATCH, MODEL]))
    plan = nm.plan(program, nm.Mesh(data=2, tensor=4), "batch:data", params="model:tensor")
    step = nm.Step(plan, strict=True, partitioner=partitioner)
    x = np.random.default_rng(0).normal(size=(3, 8, 16)).astype(np.float32)
    state = {name: np.asarray(one) for name, one in program.initial_state(0).items()}
    _, wanted = program.evaluate(state, x=x)
    np.testing.assert_allclose(step(step.place(state), x)[1], wanted, rtol=1e-4)
