"""Pipelines whose loop holds both passes, against the plain model and the papers' formulas."""

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.layers import dropout, feed_forward, layer_norm
from namedmesh.ops.pipeline_schedule import Schedule
from tests.checks import assert_same as same
from tests.checks import number_leaves
from tests.checks import uniform as numbers

L, B, M, H, V = nm.dims("layer=2 batch=4 model=8 hidden=16 vocab=24")
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero_bubble")


def layer(x, _):
    return x + feed_forward(layer_norm(x, M), M, H), None


def stage(x):
    return nm.scan(layer, x, over=L, stack=True)[0]


def embed(row):
    return nm.gather(nm.param("table", [V, M]), row["tokens"], V)


def loss(y, row):
    logits = nm.einsum([y, nm.param("out", [M, V])], [B, V])
    right = nm.sum(logits * nm.one_hot(row["targets"], V), over=V)
    return nm.mean(nm.logsumexp(logits, V) - right)


class Case:
    """A pipeline, the plain model with the same weights, and a batch."""

    def __init__(self, schedule, stages, micro):
        self.P, self.N = nm.dims(f"stage={stages} micro={micro}")
        self.R = nm.Dimension("round", 2) if schedule == "interleaved" else None
        self.options = {"schedule": schedule, "stages": self.P, "batches": self.N}
        if self.R:
            self.options["rounds"] = self.R
        self.specs = {name: nm.spec([self.N, B], "int32") for name in ("tokens", "targets")}
        draw = np.random.default_rng(0)
        self.x = {name: draw.integers(0, 24, (micro, 4)).astype("int32") for name in self.specs}

    def piped(self, x):
        total = nm.pipeline(stage, x, first=embed, loss=loss, **self.options)
        return total, nm.grad(total)

    def pass_stages(self, y):
        every = lambda y, _: (
            nm.scan(lambda y, _: (stage(y), None), y, over=self.P, stack=True)[0],
            None,
        )
        return nm.scan(every, y, over=self.R, stack=True)[0] if self.R else every(y, None)[0]

    def plain(self, x):
        def one(total, row):
            return total + loss(self.pass_stages(embed(row)), row), None

        total = nm.scan(one, 0.0, x, over=self.N)[0] / float(self.N.size)
        return total, nm.grad(total)

    def compile(self, function, mesh, layout, **options):
        program = nm.trace(function, x=self.specs)
        return nm.compile(program, mesh=mesh, layout=layout, strict=True, **options)

    def check(self, mesh, *layouts, **options):
        """Compare with the plain model on one device; strict."""
        plain = self.compile(self.plain, nm.Mesh(a=1), "")
        state = plain.init(3)
        expected = number_leaves(plain(state, x=self.x)[1])
        for layout in layouts:
            step = self.compile(self.piped, mesh, layout, **options)
            results = step(step.place(dict(plain.init(3))), x=self.x)[1]
            same(number_leaves(results), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "schedule, partitioner, layout",
    [
        ("1f1b", "gspmd", "stage:stage, vocab:stage, hidden:data"),
        ("interleaved", "shardy", "stage:stage, batch:data"),
        ("zero_bubble", "shardy", "stage:stage, hidden:data"),
    ],
)
def test_a_pipeline_is_the_plain_model(schedule, partitioner, layout):
    mesh = nm.Mesh(stage=4, data=2)
    Case(schedule, 4, 8).check(mesh, layout, partitioner=partitioner)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_gradients_of_several_pipelines_are_added_up_and_sent_once(schedule):
    case, A, mesh = Case(schedule, 2, 4), nm.Dimension("accumulate", 3), nm.Mesh(stage=2, data=4)
    case.specs = {name: nm.spec([A, case.N, B], "int32") for name in case.specs}
    draw = np.random.default_rng(0)
    case.x = {name: draw.integers(0, 24, (3, 4, 4)).astype("int32") for name in case.specs}

    def accumulate(loss_of):
        def train(x):
            add = lambda total, row: (total + loss_of(row)[0], None)
            total, _ = nm.scan(add, nm.zeros([]), x, over=A, remat="full")
            return total / A.size, nm.grad(total / A.size)

        return train

    case.piped, case.plain = accumulate(case.piped), accumulate(case.plain)
    layout = "stage:stage, batch:data"
    plan = nm.plan(nm.trace(case.piped, x=case.specs), mesh, layout)
    sent = {one.tensor: one.times for one in plan.collectives if one.axes == ("data",)}
    assert {sent[f"d_{name}"] for name in ("wi", "wo", "norm_scale", "norm_bias")} == {1}
    case.check(mesh, layout)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("micro", [4, 16, 64])
def test_every_number_of_stages_and_microbatches(schedule, stages, micro):
    case, mesh = Case(schedule, stages, micro), nm.Mesh(stage=stages, data=8 // stages)
    for partitioner in ("gspmd", "shardy"):
        case.check(mesh, "stage:stage, batch:data", partitioner=partitioner)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("stages, micro", [(2, 4), (4, 2), (4, 9), (8, 4)])
def test_ticks_idle_time_and_inputs_kept_are_those_of_the_formulas(schedule, stages, micro):
    """Devices walk through their units one by one, each after those it depends on."""
    P, N = nm.dims(f"stage={stages} micro={micro}")
    rounds = 3 if schedule == "interleaved" else 1
    plan = Schedule(schedule, P, N, rounds)
    groups = -(-micro // stages) * stages if rounds > 1 else micro
    assert plan.ticks == rounds * groups + stages - 1
    if schedule == "gpipe":
        assert plan.slots == plan.ticks
        return
    forward, backward, read, most = {}, {}, {}, dict.fromkeys(range(stages), 0)
    for device in range(stages):
        for unit in filter(plan.exists, range(plan.ticks)):
            batch, number = plan.batch_of(unit), plan.round_of(unit) if rounds > 1 else 0
            forward[batch, number * stages + device] = unit + device
            tick = next(t for t in range(3 * plan.ticks) if plan.backward_unit(t, device) == unit)
            chunk = (rounds - 1 - number) * stages + device
            backward[batch, chunk] = tick
            read[batch, chunk] = plan.forward_tick(unit, device)
    assert forward == read
    assert {*forward} == {*backward} == {(i, c) for i in range(micro) for c in range(plan.period)}
    for (batch, chunk), tick in forward.items():
        assert chunk == 0 or forward[batch, chunk - 1] == tick - 1
        later = backward.get((batch, chunk + 1))
        assert backward[batch, chunk] == (tick if later is None else later + 1)
        assert tick <= backward[batch, chunk] < tick + plan.slots or plan.slots == plan.ticks
    for device in range(stages):
        mine = [key for key in forward if key[1] % stages == device]
        for tick in range(2 * plan.ticks):
            alive = sum(forward[key] <= tick <= backward[key] for key in mine)
            most[device] = max(most[device], alive)
        assert most[device] <= plan.live(device)
        if (micro % stages == 0 and micro >= 2 * stages) or (rounds == 1):
            assert most[device] == plan.live(device)


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("micro", [1, 2, 4, 9, 16, 64])
def test_weight_gradients_fill_the_time_in_which_devices_would_be_idle(stages, micro):
    """Each after its backward unit, and the time of the paper's ZB-H1: (s - 1)(F + B - W) more."""
    P, N = nm.dims(f"stage={stages} micro={micro}")
    plan = Schedule("zero_bubble", P, N)
    ticks = range(plan.ticks + plan.warm_up)
    for device in range(stages):
        units = [(u, t) for t in ticks for u in plan.weight_units(t, device) if u >= 0]
        assert sorted(u for u, _ in units) == list(range(micro))
        for unit, tick in units:
            before = plan.backward_tick(unit, device)
            assert plan.backward_unit(before, device) == unit
            assert before <= tick < before + plan.slots
    if micro >= 2 * (stages - 1):
        assert plan.length == 3 * micro + stages - 1
    assert plan.length <= Schedule("1f1b", P, N).length


def test_devices_skip_what_they_have_no_unit_of():
    """The branches of the compiled program are chosen by each device for itself."""
    case = Case("zero_bubble", 4, 8)
    step = case.compile(case.piped, nm.Mesh(stage=4), "stage:stage")
    text = step.text
    assert text.count(" conditional(") >= 3
    assert "partition-id" in text


def deal_layers(case, layers, layer=layer):
    """A pipeline of one layer, and the plain loop over all, of the same variables."""
    D = nm.Dimension("layer", layers)
    one = lambda h, number: layer(h, number)[0] + 0.1 * nm.cast(number, "float32")

    def piped(x):
        total = nm.pipeline(one, x, layers=D, first=embed, loss=loss, **case.options)
        return total, nm.grad(total)

    def plain(x):
        def add(total, row):
            each = lambda h, number: (one(h, number), None)
            h = nm.scan(each, embed(row), nm.range(D), over=D, stack=True)[0]
            return total + loss(h, row), None

        total = nm.scan(add, 0.0, x, over=case.N)[0] / float(case.N.size)
        return total, nm.grad(total)

    piped, plain = (nm.trace(function, x=case.specs) for function in (piped, plain))
    names = [{name: one.shape for name, one in p.parameters.items()} for p in (piped, plain)]
    assert names[0] == names[1]
    state = plain.initial_state(3)
    return piped, state, number_leaves(plain.evaluate(state, x=case.x)[1])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stages_of_unequal_layers(schedule):
    case = Case(schedule, 2, 4)
    piped, state, expected = deal_layers(case, 5)
    found = number_leaves(piped.evaluate(state, x=case.x)[1])
    same(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_dropout_draws_the_bits_of_the_plain_model(schedule):
    """Keys of a microbatch and a layer; backward units that compute a stage again draw alike."""

    def drop(h, number):
        key = nm.random.fold_in(nm.random.key(7), number)
        return h + dropout(feed_forward(layer_norm(h, M), M, H), 0.5, key), None

    case = Case(schedule, 2, 3)
    piped, state, expected = deal_layers(case, 5, drop)
    found = number_leaves(piped.evaluate(state, x=case.x)[1])
    same(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_layers_stay_where_their_stages_are(schedule):
    """10 layers over 4 stages: weights are sharded by layers, and no collective moves them."""
    case, mesh = Case(schedule, 4, 8), nm.Mesh(stage=4, data=2)
    piped, state, expected = deal_layers(case, 10)
    layout = "layer:stage, stage:stage, batch:data"
    with pytest.warns(UserWarning, match="layer=10"):
        step = nm.compile(piped, mesh=mesh, layout=layout, strict=True)
    same(number_leaves(step(step.place(state), x=case.x)[1]), expected, rtol=1e-5, atol=1e-5)
    if schedule != "interleaved":  # whose rounds are dealt in another order
        moved = [one for one in step.plan.collectives if "stage" in one.axes and one.times == 1]
        assert all(one.kind == "AllReduce" for one in moved)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_gradient_of_a_split_table_is_split_where_only_it_is_left_in_the_loop(schedule):
    case, mesh = Case(schedule, 2, 4), nm.Mesh(stage=2, data=2, tensor=2)
    layout = "stage:stage, batch:data, vocab:tensor"
    plan = nm.plan(nm.trace(case.piped, x=case.specs), mesh, layout)
    gathers = [one for one in plan.collectives if one.kind == "AllGather"]
    assert all(one.elements < V.size * M.size for one in gathers), gathers
    case.check(mesh, layout)


def test_a_loss_without_a_gradient_is_forward_alone():
    case = Case("1f1b", 4, 8)
    program = nm.trace(lambda x: case.piped(x)[0], x=case.specs)
    plan = nm.plan(program, nm.Mesh(stage=4), "stage:stage")
    found = [(one.kind, one.times, one.phase) for one in plan.collectives]
    assert found == [
        ("CollectivePermute", 3, "forward"),
        ("CollectivePermute", 8, "forward"),
        ("AllReduce", 8, "forward"),
    ]
    (note,) = program.notes
    idle, kept = "idle in 3 of 11 iterations (27%)", "7 inputs of 128 bytes kept"
    assert note == f"pipeline (1f1b), stage=4, micro=8: {idle}, {kept}"


def test_memory_does_not_grow_with_the_microbatches():
    """The temporaries of XLA for CPUs, for 8 and 64 microbatches of wide activations."""
    found = {}
    rows, model = nm.dims("row=64 model=32")
    for schedule in ("gpipe", "1f1b", "zero_bubble"):
        for micro in (8, 64):
            case = Case(schedule, 4, micro)

            def step(x, case=case):
                first = lambda row: nm.broadcast(
                    nm.cast(row["tokens"], "float32"), [rows, B, model]
                )
                work = lambda h: nm.tanh(h * nm.param("w", [model]))
                end = lambda y, row: nm.mean(nm.square(y))
                total = nm.pipeline(work, x, first=first, loss=end, **case.options)
                return total, nm.grad(total)

            compiled = case.compile(step, nm.Mesh(stage=4), "stage:stage")
            found[schedule, micro] = compiled.report.temporary_bytes
    assert found["1f1b", 64] < 1.1 * found["1f1b", 8]
    assert found["zero_bubble", 64] < 1.1 * found["zero_bubble", 8]
    assert found["gpipe", 64] > 3 * found["gpipe", 8]
    assert found["1f1b", 64] < found["gpipe", 64]


def test_gradients_of_inputs_scales_rest_and_what_is_captured():
    """Floating point rows have gradients; the loss may be scaled; its rest is stacked."""
    for schedule in SCHEDULES:
        case = Case(schedule, 2, 4)
        N = case.N

        def piped(x, c, case=case):
            work = lambda h: nm.tanh(h * nm.param("w", [M], nm.normal_init(1.0)) + c)
            end = lambda y, row: (nm.mean(nm.square(y - row * c)), {"top": nm.max(y)})
            mean, rest = nm.pipeline(work, x, loss=end, **case.options)
            total = 3.0 * mean * mean
            return total, rest["top"], nm.grad(total, [x, c, *nm.parameters().values()])

        def plain(x, c, case=case):
            work = lambda h, _: (nm.tanh(h * nm.param("w", [M], nm.normal_init(1.0)) + c), None)
            every = lambda h, _: (nm.scan(work, h, over=case.P, stack=True)[0], None)
            y = nm.scan(every, x, over=case.R, stack=True)[0] if case.R else every(x, None)[0]
            mean = nm.mean(nm.square(y - x * c))
            total = 3.0 * mean * mean
            top = nm.max(y, over=[B, M])
            return total, top, nm.grad(total, [x, c, *nm.parameters().values()])

        specs = {"x": nm.spec([N, B, M]), "c": nm.spec([M])}
        arrays = {"x": numbers(1, 4, 4, 8), "c": numbers(2, 8)}
        one, other = (nm.trace(function, **specs) for function in (piped, plain))
        state = other.initial_state(1)
        found, expected = (p.evaluate(state, **arrays)[1] for p in (one, other))
        same(number_leaves(found), number_leaves(expected), rtol=1e-5, atol=1e-6)


X = nm.spec([nm.Dimension("micro", 4), B, M])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"schedule": "2f2b"}, "schedule"),
        ({"schedule": "1f1b"}, "before its loss is known"),
        ({"schedule": "1f1b", "loss": lambda y, row: nm.mean(y), "remat": "none"}, "remat='none'"),
        ({"schedule": "interleaved", "loss": lambda y, row: nm.mean(y)}, "give rounds="),
        ({"schedule": "1f1b", "loss": lambda y, row: y}, "not a floating point scalar"),
    ],
)
def test_options_that_do_not_go_together(options, message):
    P, N = nm.dims("stage=2 micro=4")
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(lambda x: nm.pipeline(nm.sin, x, stages=P, batches=N, **options), x=X)


def test_a_stage_returns_what_it_takes():
    P, N = nm.dims("stage=2 micro=4")
    end = lambda y, row: nm.mean(y)
    with pytest.raises(nm.NamedMeshError, match="a stage's result"):
        nm.trace(
            lambda x: nm.pipeline(
                lambda x: nm.sum(x, M), x, stages=P, batches=N, schedule="1f1b", loss=end
            ),
            x=X,
        )
