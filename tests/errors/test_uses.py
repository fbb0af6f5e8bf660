"""What objects cannot be used for, as other libraries use theirs: called, indexed, added, entered.

Python's own errors name a class and nothing to write instead.
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

import copy
import pickle

import jax.numpy as jnp
import numpy as np
import pytest

import namedmesh as nm
from namedmesh.cli.main import main
from namedmesh.layers import decode

B, M, H = nm.dims("batch=4 model=8 hidden=2")
MESH, LAYOUT, ADAM = nm.Mesh(data=2), nm.Layout("batch:data"), nm.layers.Adam(0.1)
X = np.ones((4, 8), np.float32)


class Empty(nm.Op):
    """An op without anything."""


class Double(nm.Op):
    """An op whose placement is no Placement."""

    by: int

    def results(self):
        return [(self.inputs[0].shape, self.inputs[0].dtype)]

    def placement(self):
        return {"whole": ["model"]}


def train(x):
    loss = nm.mean(nm.square(x * nm.param("w", [M])))
    nm.assign(nm.parameters()["w"], nm.grad(loss)["w"])
    return loss


@pytest.fixture(scope="module")
def step() -> nm.Step:
    return nm.compile(train, nm.spec([B, M]), mesh=MESH, layout=LAYOUT)


def fix_of(use) -> str:
    """Returns the fix of what a wrong use raises, at the line of this file."""
    with pytest.raises(nm.NamedMeshError) as caught:
        use()
    assert caught.value.source.file == __file__
    return caught.value.fix


def enter(value):
    with value:
        pass


@pytest.mark.parametrize(
    ("use", "fix"),
    [
        (lambda: MESH["data"], "mesh.axes['data']"),
        (lambda: MESH.data, "mesh.axes['data']"),
        (lambda: MESH.axes["daat"], "did you mean 'data'?"),
        (lambda: MESH.shape, "mesh.axes"),
        (lambda: [*MESH], "mesh.devices"),
        (lambda: len(MESH), "mesh.devices"),
        (lambda: "data" in MESH, "mesh.axes['data']"),
        (lambda: enter(MESH), "give the mesh to nm.compile"),
        (lambda: MESH(), "leave the parentheses out"),
        (lambda: MESH * 2, "use its attributes: axes, "),
        (lambda: MESH < MESH, "use its attributes: axes, "),
        (lambda: nm.Mesh.parse(), "write Mesh.parse(text)"),
        (lambda: LAYOUT["batch"], "layout.axes('batch')"),
        (lambda: LAYOUT.batch, "layout.rules['batch']"),
        (lambda: LAYOUT.axes(), "write Layout.axes(name)"),
        (lambda: LAYOUT | {"model": "data"}, "nm.Layout({**layout.rules, "),
        (lambda: LAYOUT + LAYOUT, "nm.Layout({**layout.rules, "),
        (lambda: ADAM(1.0), "optimizer.apply(nm.grad(loss))"),
        (lambda: ADAM.step(), "use one of: apply, "),
        (lambda: setattr(ADAM, "learning_rate", 0.2), "dataclasses.replace(old, learning_rate="),
        (lambda: setattr(B, "size", 8), "dataclasses.replace(old, size=value)"),
        (lambda: B(), "use its size"),
        (lambda: len(B), "use its size"),
        (lambda: B | M, "use its size"),
        (lambda: divmod(B, 2), "use its size"),
        (lambda: B.resized(), "write Dimension.resized(size)"),
        (lambda: nm.Shape([B, M])[5], "it has positions 0 to 1"),
        (lambda: nm.Shape([B, M]).batch, "shape.named('batch')"),
        (lambda: nm.Shape([B, M]).ndim, "len(x.shape)"),
        (lambda: nm.Shape([B, M]).__add__([H]), "[*x.shape, B]"),
        (lambda: nm.Shape([B, M]).index(H), "use one of: batch, model"),
        (lambda: nm.Tensor([1, 2]), "nm.constant(array, dims)"),
        (lambda: nm.Tensor(data=[1, 2]), "nm.constant(array, dims)"),
        (lambda: nm.spec([B]).ndim, "use one of: dtype, shape, whole"),
        (lambda: nm.checkpoint(MESH), "pass a function"),
        (lambda: nm.Placement(whole=M), "write whole=['model']"),
        (lambda: nm.layers.CONFIGS["gpt2"], "use one of: base, "),
    ],
)
def test_the_fix_is_what_to_write(use, fix):
    assert fix in fix_of(use)


def test_steps_plans_and_states(step):
    state = step.init()
    for use, fix in (
        (lambda: step(), "start from step.init(seed)"),
        (lambda: step(x=X), "start from step.init(seed)"),
        (lambda: step(X), "start from step.init(seed)"),
        (lambda: step.plan(), "leave the parentheses out"),
        (lambda: step.plan["w"], "use its attributes: "),
        (lambda: step.plan - step.plan, "nm.diff(a, b)"),
        (lambda: step.plan.shardings["w"], "index it by a tensor"),
        (lambda: step.state, "state = step.init(seed)"),
        (lambda: step.inputs["y"], "use one of: x"),
        (lambda: step.variables["W"], "use one of: w"),
        (lambda: step.w, "step.variables['w']"),
        (lambda: step.program.inputs["y"], "use one of: x"),
        (lambda: nm.search(step.plan, 8, "h100"), "give what nm.trace returned"),
        (lambda: state.__setitem__("w", X), "step.place({**state, 'w': array})"),
        (lambda: state | {"w": X}, "step.place({**state, 'w': array})"),
        (lambda: state(), "state['w']"),
    ):
        assert fix in fix_of(use)


def test_a_program_without_variables_needs_no_state():
    step = nm.compile(lambda x: x * 2.0, nm.spec([M]), mesh=nm.Mesh(data=1))
    np.testing.assert_array_equal(step(x=np.ones(8, np.float32))[1], 2 * np.ones(8))
    assert "write step(None, ...)" in fix_of(lambda: step(np.ones(8, np.float32)))


@pytest.mark.parametrize(
    ("use", "fix"),
    [
        (lambda x: x.dtype.itemsize, "write x.itemsize"),
        (lambda x: x.dtype.is_floating, "a tensor has x.floating"),
        (lambda x: x.shape.batch, "shape.named('batch')"),
        (lambda x: x.at.__setitem__((M, 0), 1), "y = x.at[H, 3].set(value)"),
        (lambda x: x.at[M, 0] + 1, "x.at[H, 3].add(value)"),
        (lambda x: x.at(M, 0), "x.at[H, 3].set(value)"),
        (lambda x: x.at[M, 0].divide(2), "use one of: add, "),
        (lambda x: x.at[M, 0].set(), "write Place.set(value)"),
        (lambda x: nm.take(x, [0], 1), "pass the Dimension"),
        (lambda x: nm.checkpoint(lambda y: y)(x, x), "give a function of that many arguments"),
        (lambda x: nm.param("w", [M], lambda key: key), "define one as init(key, shape, dtype)"),
        (lambda x: nm.param("w", [M], nm.normal_init), "e.g. nm.normal_init(0.1)"),
        (lambda x: nm.param("w", [M], whole="modle"), "did you mean 'model'?"),
        (lambda x: nm.param("w", [M], rows="modle"), "did you mean 'model'?"),
        (lambda x: nm.cond(x[B, 0][M, 0] > 0, lambda y: y, lambda: x), "of that many arguments"),
        (lambda x: Double(x, x, x), "write Double(inputs, by)"),
        (lambda x: Double((x,)), "write Double(inputs, by)"),
        (lambda x: Empty((x,)), "define it, e.g. to return"),
        (
            lambda x: decode(None, (), nm.cast(x, "int32"), H),
            "a function of the last tokens and the cache",
        ),
        (lambda x: decode(nm.sin, (), x, 6), "pass a dimension"),
        (lambda x: decode(nm.sin, (), 3, H), "pass int32 tokens"),
    ],
)
def test_the_fix_while_tracing(use, fix):
    assert fix in fix_of(lambda: nm.trace(use, nm.spec([B, M])))


def test_the_fix_for_values_and_placements():
    assert "equal lengths" in fix_of(lambda: nm.evaluate(nm.sin, x=([B], [[1], [2, 3]])))
    assert "numbers" in fix_of(lambda: nm.evaluate(nm.sin, x=([B], ["a", "b", "c", "d"])))
    program = nm.trace(lambda x: Double((x,), 2).output, nm.spec([B, M]))
    assert "nm.Placement(whole=" in fix_of(lambda: nm.plan(program, MESH, LAYOUT))


def test_dtypes_are_texts_that_equal_types_of_that_name():
    dtype = nm.trace(lambda x: x, nm.spec([B], "bfloat16")).outputs[0].dtype
    assert dtype == "bfloat16" and dtype == jnp.bfloat16 and dtype == jnp.dtype("bfloat16")
    assert dtype != np.float32 and dtype != "float32" and dtype is not None
    assert {dtype: 1}["bfloat16"] == 1 and repr(dtype) == "'bfloat16'"
    assert "in " + dtype == "in bfloat16" and dtype + "?" == "bfloat16?" and f"{dtype}" == dtype
    assert pickle.loads(pickle.dumps(dtype)) == copy.deepcopy(dtype) == "bfloat16"


def test_objects_are_true_and_loops_over_shapes_end():
    plan = nm.plan(nm.trace(nm.sum, nm.spec([B])), MESH, LAYOUT)
    assert all([MESH, LAYOUT, ADAM, B, plan, nm.spec([B])])
    assert B in nm.Shape([B, M]) and H not in nm.Shape([B, M])
    assert list(reversed(nm.Shape([B, M]))) == [M, B] and nm.Shape([B, M]).index(M) == 1
    assert f"{B:3d}|{B:.1f}|{B:>9}" == "  4|4.0|  batch=4"


def test_a_misspelled_option_is_named_before_the_one_that_is_missing(capsys):
    assert main(["cost", "tests.diff.models:step", "--mesh", "data=4", "--traget", "h100"]) == 2
    message = capsys.readouterr().err
    assert "namedmesh cost has no argument --traget" in message
    assert "did you mean '--target'?" in message
    assert main(["cost", "tests.diff.models:step", "--mesh", "data=4"]) == 2
    assert "add --target" in capsys.readouterr().err
