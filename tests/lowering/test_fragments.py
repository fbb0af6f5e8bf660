"""Ops of equal contents are lowered once; whatever may tell two ops apart does."""

import numpy as np
import pytest
from jaxlib.mlir.dialects import stablehlo

import namedmesh as nm
from namedmesh.ir.op import describe, describe_op
from namedmesh.jax_internals import module_context
from namedmesh.lowering import assemble, export, fragments

B, M = nm.dims("batch=8 model=4")
MESH = nm.Mesh(data=2)


class Shifted(nm.Op):
    """An op of a user's own, with an option of any kind."""

    by: object

    def results(self):
        return [(self.inputs[0].shape, self.inputs[0].dtype)]

    def lower(self, context, x):
        return x + context.tf.constant(np.float32(np.sum(np.asarray(self.by, np.float32))))


@pytest.fixture
def traced(monkeypatch):
    """The fragments of the last export."""
    made = []
    init = fragments.Fragments.__init__

    def note(self, *arguments):
        init(self, *arguments)
        made.append(self)

    monkeypatch.setattr(fragments.Fragments, "__init__", note)
    return lambda: len(made[-1].traced)


def test_a_hundred_equal_ops_are_lowered_as_one(traced):
    def chain(x, count):
        for _ in range(count):
            x = nm.tanh(x)
        return x

    counts = []
    for count in (2, 100):
        program = nm.trace(lambda x, count=count: chain(x, count), x=nm.spec([B, M]))
        artifact = nm.export(program, MESH, "batch:data")
        counts.append(traced())
    assert counts[0] == counts[1]
    with module_context() as context:
        module = str(stablehlo.deserialize_portable_artifact(context, artifact.step_module))
    assert module.count("stablehlo.tanh") == 100
    step = nm.Step(nm.plan(program, MESH, "batch:data"), strict=True)
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)
    wanted = x
    for _ in range(100):
        wanted = np.tanh(wanted)
    np.testing.assert_allclose(step(None, x)[1], wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (1, True),
        (1, 1.0),
        ((1, 2), [1, 2]),
        ({"a": 1}, {"a": 1.0}),
        ("1", 1),
        (np.zeros(2, np.float32), np.zeros(2, np.float64)),
        (np.array([0.0]), np.array([-0.0])),
        (lambda: 0, lambda: 0),
    ],
)
def test_what_differs_in_any_way_is_told_apart(one, other):
    assert describe(one) != describe(other)
    assert describe(one) == describe(one)


def test_equal_arrays_are_equal():
    assert describe(np.array([1, 2])) == describe(np.array([1, 2]))
    assert hash(describe(np.array([1, 2]))) == hash(describe(np.array([1, 2])))


def test_options_of_a_users_own_op_count():
    def step(x):
        return [Shifted((x,), by).output for by in (1.0, 2.0, 1.0, (1.0, 2.0), np.ones(5))]

    program = nm.trace(step, x=nm.spec([B]))
    contents = [describe_op(op) for op in program.ops if isinstance(op, Shifted)]
    assert len(contents) == 5 and len(set(contents)) == 4
    results = nm.Step(nm.plan(program, MESH, "batch:data"), strict=True)(None, np.zeros(8, "f"))[1]
    assert [float(value[0]) for value in results] == [1.0, 2.0, 1.0, 3.0, 5.0]


def test_the_same_op_in_two_places_is_two_fragments():
    def step(x):
        return nm.exp(x), nm.exp(nm.replicate(x, B))

    compiled = nm.compile(step, nm.spec([B]), mesh=MESH, layout="batch:data", strict=True)
    assert compiled.audit.exact, str(compiled.audit)
    x = np.arange(8, dtype=np.float32)
    for value in compiled(None, x)[1]:
        np.testing.assert_allclose(value, np.exp(x), rtol=1e-6)


def test_equal_programs_give_equal_bytes_whatever_was_exported_before():
    def make():
        return nm.trace(lambda x: nm.sum(nm.exp(x), over=M), x=nm.spec([B, M]))

    first = nm.export(make(), MESH, "batch:data")
    nm.export(nm.trace(lambda x: nm.sort(x, M), x=nm.spec([B, M])), MESH, "batch:data")
    again = nm.export(make(), MESH, "batch:data")
    assert first.step_module == again.step_module


def test_what_was_lowered_before_changes_no_byte(monkeypatch):
    """Programs of a mesh share fragments, alone and in the order in which they come."""
    bodies = [lambda x: nm.sum(nm.exp(x), over=M), lambda x: nm.softmax(nm.exp(x), over=M)]
    bodies += [lambda x: nm.grad(nm.sum(nm.square(nm.softmax(x, over=B))), [x]), nm.exp]
    programs = [nm.trace(body, x=nm.spec([B, M])) for body in bodies]
    alone = []
    for program in programs:
        monkeypatch.setattr(assemble, "_library", [])
        alone.append(nm.export(program, MESH, "batch:data").step_module)
    monkeypatch.setattr(assemble, "_library", [])
    for _ in range(2):
        together = [nm.export(program, MESH, "batch:data").step_module for program in programs]
        assert together == alone


def test_what_may_have_changed_is_lowered_again():
    """Contents that can change, and the lowering of a user's own op."""
    numbers = np.ones(1, object)
    program = nm.trace(lambda x: Shifted((x,), numbers).output, x=nm.spec([B]))
    found = []
    for numbers[0] in (1.0, 2.0):
        step = nm.Step(nm.plan(program, MESH, "batch:data"), strict=True)
        found.append(float(step(None, np.zeros(8, np.float32))[1][0]))
    assert found == [1.0, 2.0]


def test_a_large_library_is_closed(monkeypatch):
    monkeypatch.setattr(assemble, "_library", [])
    monkeypatch.setattr(assemble, "LARGEST", 0)
    opened = []
    for _ in range(2):
        nm.export(nm.trace(nm.exp, nm.spec([B])), MESH, "batch:data")
        opened += assemble._library
    assert opened[0] is not opened[1]


def test_names_do_not_tell_elementwise_ops_apart(traced):
    rows, columns = nm.dims("row=8 column=4")

    def count(*shapes):
        nm.export(nm.trace(lambda *xs: [nm.tanh(x) for x in xs], *map(nm.spec, shapes)), MESH, "")
        return traced()

    assert count([B, M], [rows, columns]) == count([B, M])
    assert count([B, M], [columns, rows]) > count([B, M])


def test_operands_that_broadcast_by_other_dims_are_told_apart():
    first, second = nm.dims("first=4 second=4")

    def function(x, a, b):
        return x * a, x * b, nm.transpose(x, [second, first]) * a

    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    a, b = np.arange(1, 9, dtype=np.float32).reshape(2, 4)
    specs = nm.spec([first, second]), nm.spec([first]), nm.spec([second])
    for layout in ("", "first:data", "second:data"):
        step = nm.compile(function, *specs, mesh=MESH, layout=layout, strict=True)
        results = [np.asarray(one) for one in step(step.init(), x, a, b)[1]]
        for got, wanted in zip(results, (x * a[:, None], x * b, x.T * a), strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_fragments_are_text_which_every_jaxlib_reads(monkeypatch):
    made = []

    def note(*arguments):
        made.append(fragments.compile_fragments(*arguments))
        return made[-1]

    monkeypatch.setattr(assemble, "_library", [])
    monkeypatch.setattr(export, "compile_fragments", note)
    nm.export(nm.trace(nm.exp, nm.spec([B])), MESH, "batch:data")
    assert made and all("stablehlo.exponential" in one.module for one in made)
