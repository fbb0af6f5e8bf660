"""Pipelines whose loop holds both passes, against the plain model and the papers' formulas."""

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.layers import feed_forward, layer_norm
from namedmesh.ops.pipeline_schedule import Schedule
from tests.checks import assert_same as same
from tests.checks import number_leaves
from tests.checks import uniform as numbers

L, B, M, H, V = nm.dims("layer=2 batch=4 model=8 hidden=16 vocab=24")
SCHEDULES = ("gpipe", "1f1b", "interleaved")


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
    ],
)
def test_a_pipeline_is_the_plain_model(schedule, partitioner, layout):
    mesh = nm.Mesh(stage=4, data=2)
    Case(schedule, 4, 8).check(mesh, layout, partitioner=partitioner)


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
    for schedule in SCHEDULES[:2]:
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
