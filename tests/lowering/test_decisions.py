"""Two dimensions that want one axis: the program decides, or else the order of the layout."""

import warnings

import numpy as np
import pytest

import namedmesh as nm

G, E, M = nm.dims("group=8 expert=4 model=10")
MESH = nm.Mesh(data=2, expert=4)


def scale(x):
    return x * nm.param("w", [G, E], nm.constant_init(2.0))


@pytest.mark.parametrize(
    "layout, holder",
    [("group:expert, expert:expert", "group"), ("expert:expert, group:expert", "expert")],
)
def test_the_layout_has_the_holder_first(layout, holder):
    program = nm.trace(
        lambda x: scale(nm.reshard(x, {"group": G, "expert": E}[holder])), x=nm.spec([G, E, M])
    )
    plan = nm.plan(program, MESH, layout)
    places = (program.inputs["x"], program.variables["w"].tensor)
    assert [plan.shardings[tensor].mapping for tensor in places] == [{holder: ("expert",)}] * 2
    other = "expert" if holder == "group" else "group"
    text = f"{holder} holds expert, {other} stays whole: the layout has {holder} first"
    assert plan.decisions == {text: ["x", "w"]}
    assert f"{text} (x, w)" in str(plan)
    assert plan.to_json()["decisions"] == {text: ["x", "w"]}
    assert not plan.collectives


@pytest.mark.parametrize("layout", ["group:expert, expert:expert", "expert:expert, group:expert"])
def test_numbers_do_not_depend_on_who_holds_it(layout):
    program = nm.trace(lambda x: nm.sum(scale(x), over=[G, M]), x=nm.spec([G, E, M]))
    x = np.arange(320, dtype=np.float32).reshape(8, 4, 10)
    step = nm.Step(nm.plan(program, MESH, layout), strict=True)
    _, total = step(step.init(0), x=x)
    np.testing.assert_allclose(total, 2 * x.sum((0, 2)))


def test_a_result_goes_where_its_reader_wants_it():
    def function(seed):
        noise = nm.random.uniform(nm.random.key_from_seed(seed), [G, E, M])
        return nm.reshard(noise, E)

    program = nm.trace(function, seed=nm.spec([], "int32"))
    plan = nm.plan(program, MESH, "group:expert, expert:expert")
    assert not plan.decisions and not plan.collectives


def sentences(layout, params=None, mesh=MESH):
    program = nm.trace(lambda x: scale(x), x=nm.spec([G, E, M]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan = nm.plan(program, mesh, layout, params)
    assert [str(one.message) for one in caught] == plan.warnings == plan.to_json()["warnings"]
    assert all(one.filename == __file__ for one in caught)
    assert all(f"warning: {sentence}" in str(plan) for sentence in plan.warnings)
    return plan.warnings


def test_what_a_layout_leaves_unused_is_said():
    assert sentences("group:data, expert:expert") == []
    assert sentences("group:data") == [
        "no dimension is mapped to mesh axis 'expert': its 4 devices all do the same work "
        "(layout: group:data)"
    ]
    assert sentences("group:data+expert, expert:expert") == [
        "the layout maps dimension expert to mesh axis 'expert', but every tensor keeps it whole "
        "there, such as x: [group=8/data+expert, expert=4, model=10]; write nm.reshard(x, expert) "
        "where expert should take it, or leave it out of the layout"
    ]
    assert sentences("group:data, expert:expert", "group:data, expert:data") == [
        "the params layout maps dimension expert to mesh axis 'data', but every tensor keeps it "
        "whole there, such as w: [group=8/data, expert=4]; write it before what takes the axis, "
        "or leave it out of the params layout"
    ]


def test_padding_above_a_tenth_is_said():
    assert sentences("group:data, model:expert") == [
        "model=10 over the 4 devices of expert is padded to 12: 17% of the work and memory is for "
        "nothing; choose a size that 4 divides, or map it to a smaller axis"
    ]
    assert sentences("model:data, group:expert") == []
