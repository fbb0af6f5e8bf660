"""Programs are values: nothing that was recorded is changed, and threads trace side by side."""

import dataclasses
import json
import threading

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.ir.op import Op, every_op
from namedmesh.ir.prune import prune_ops
from namedmesh.ir.trace import current

B, M, L = nm.dims("batch=8 model=4 layer=3")


def snapshot(op: Op) -> tuple[object, ...]:
    """Every attribute of an op, bodies' ops included."""
    fields = tuple(getattr(op, one.name) for one in dataclasses.fields(op))
    return (*fields, *(snapshot(inner) for body in op.bodies for inner in body.ops))


def same(one: object, other: object) -> bool:
    """Whether two snapshots hold the very same objects."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(same(a, b) for a, b in pairs)
    return one is other or (not isinstance(one, nm.Tensor) and one == other)


def stack(x):
    def layer(h, _):
        return nm.tanh(h * nm.param("w", [M])), None

    return nm.scan(layer, x, over=L, stack=True)[0]


def test_ops_are_frozen():
    program = nm.trace(stack, x=nm.spec([B, M]))
    for op in every_op(program.ops):
        with pytest.raises(dataclasses.FrozenInstanceError):
            op.inputs = ()  # type: ignore[misc]


def test_differentiating_changes_no_op_that_was_recorded():
    recorded = []

    def step(x):
        loss = nm.sum(stack(x))
        recorded.extend((op, snapshot(op)) for op in current("test").ops)
        first = nm.grad(loss, x)
        return first, nm.grad(nm.sum(first * first), x)

    nm.trace(step, x=nm.spec([B, M]))
    assert any(op.kind == "scan" for op, _ in recorded)
    assert all(same(snapshot(op), before) for op, before in recorded)


def test_passes_over_a_program_leave_it_as_it_is():
    def step(x):
        loss = nm.sum(stack(x))
        nm.grad(loss)
        return loss

    program = nm.trace(step, x=nm.spec([B, M]))
    before = [(op, snapshot(op)) for op in program.ops]
    text = str(program)
    prune_ops(program.ops, program.outputs[:0], tuple(program.inputs.values()))
    plan = nm.plan(program, nm.Mesh(data=4), "batch:data")
    nm.export(program, nm.Mesh(data=4), "batch:data")
    assert all(same(snapshot(op), earlier) for op, earlier in before)
    assert str(program) == text
    assert json.dumps(plan.to_json()) == json.dumps(
        nm.plan(program, nm.Mesh(data=4), "batch:data").to_json()
    )


def test_facts_about_a_tensor_are_written_once():
    def name_twice(x):
        y = nm.exp(x).describe(name="first")
        y.describe(name="second")

    with pytest.raises(RuntimeError, match="the name of first"):
        nm.trace(name_twice, x=nm.spec([B]))


def test_threads_trace_side_by_side():
    inside, programs = threading.Barrier(4), {}

    def work(number: int) -> None:
        def function(x):
            inside.wait(timeout=60)  # all four are in the middle of a trace
            y = x * float(number)
            inside.wait(timeout=60)
            return nm.sum(y)

        programs[number] = nm.trace(function, x=nm.spec([B]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    values = {n: float(p.evaluate({}, x=np.ones(8))[1]) for n, p in programs.items()}
    assert values == {0: 0.0, 1: 8.0, 2: 16.0, 3: 24.0}


def test_initialisation_is_part_of_program_and_plan():
    def unit(key, shape, dtype):
        value = nm.random.normal(key, shape, dtype=dtype)
        norm = nm.sqrt(nm.sum(nm.square(value)))
        return value / norm

    def scale(x):
        return x * nm.param("w", [B, M], unit)

    program = nm.trace(scale, x=nm.spec([B, M]))
    assert list(program.initializers) == ["w"]
    plan = nm.plan(program, nm.Mesh(data=4), "model:data")
    assert [(one.kind, one.axes) for one in plan.initial_collectives] == [("AllReduce", ("data",))]
    assert "init" in {line.split(" ")[2] for line in str(plan).splitlines() if "AllReduce" in line}
    assert "total init: 1 AllReduce, 4 B per device" in str(plan)
    assert plan.collectives == ()
    weight = nm.Step(plan, strict=True).init(0)["w"]
    np.testing.assert_allclose(np.square(weight).sum(), 1.0, rtol=1e-5)


def test_saved_plans_of_equal_programs_are_equal_files(tmp_path):
    for name in ("one", "other"):
        program = nm.trace(stack, x=nm.spec([B, M]))
        nm.plan(program, nm.Mesh(data=4), "batch:data").save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    document = json.loads((tmp_path / "one").read_text())
    assert document["mesh"] == {"data": 4}
    table = document["tensors"]
    named = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    assert {row["tensor"] for row in named} >= {"x", "w"}


@pytest.mark.parametrize("function", [nm.mean, nm.var, nm.logsumexp, nm.softmax, nm.log_softmax])
def test_tensors_are_labelled_by_the_function_that_was_called(function):
    B, M = nm.dims("batch=4 model=8")

    def loss(x):
        return nm.sum(nm.square(function(x * nm.param("w", [M]), over=B)))

    program = nm.trace(lambda x: nm.grad(loss(x))["w"], nm.spec([B, M]))
    labels = {tensor.label for op in program.ops for tensor in op.outputs}
    assert {function.__name__, f"d_{function.__name__}"} <= labels
