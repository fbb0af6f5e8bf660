"""Two dimensions that want one axis: the program decides, or else the order of the layout."""

import warnings
from typing import Any

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.planning.plan_program import RulePlanner, plan_step

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
    text = f"{holder} takes expert, {other} stays whole: the layout has {holder} first"
    assert plan.decisions == {text: ("x", "w")}
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
    assert [str(one.message) for one in caught] == list(plan.warnings) == plan.to_json()["warnings"]
    assert all(one.filename == __file__ for one in caught)
    assert all(f"warning: {sentence}" in str(plan) for sentence in plan.warnings)
    return list(plan.warnings)


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
        "whole there, such as w: [group=8/data, expert=4/expert]; take the axis away from group "
        "with group:-data, or leave it out of the params layout"
    ]


def test_padding_above_a_tenth_is_said():
    assert sentences("group:data, model:expert") == [
        "model=10 over the 4 devices of expert is padded to 12: 17% of the work and memory is for "
        "nothing; choose a size that 4 divides, or map it to a smaller axis"
    ]
    assert sentences("model:data, group:expert") == []


def meet(x, w):
    return nm.einsum([x, w], [G, E])


@pytest.mark.parametrize(
    "layout, kept, whole",
    [
        ("group:expert, expert:expert", "group", "expert"),
        ("expert:expert, group:expert", "expert", "group"),
    ],
)
def test_of_inputs_that_meet_the_one_that_the_layout_has_first_keeps_the_axis(layout, kept, whole):
    program = nm.trace(meet, x=nm.spec([G, M]), w=nm.spec([E, M]))
    plan = nm.plan(program, MESH, layout)
    names = {"group": "x", "expert": "w"}
    assert plan.shardings[program.inputs[names[kept]]].mapping == {kept: ("expert",)}
    assert plan.shardings[program.inputs[names[whole]]].mapping == {}
    text = f"{kept} takes expert in an op with {whole}, which stays whole"
    assert plan.decisions == {text: (names[whole],)} and not plan.collectives
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=size).astype(np.float32) for size in ((8, 10), (4, 10)))
    _, result = nm.Step(plan, strict=True)(None, x=x, w=w)
    np.testing.assert_allclose(result, x @ w.T, rtol=1e-5, atol=1e-5)


def test_a_parameter_does_not_yield_to_what_was_computed():
    """Tokens on their way to the experts' weights: the program has to say that they travel."""

    def function(x):
        w = nm.param("w", [E, M])
        return meet(nm.tanh(x), w)

    program = nm.trace(function, x=nm.spec([G, M]))
    with pytest.raises(
        nm.LayoutConflict, match="shards dimension group in tanh and dimension expert"
    ):
        nm.plan(program, MESH, "group:expert, expert:expert")


def test_what_the_program_says_does_not_yield():
    program = nm.trace(lambda x, w: meet(x, nm.split(w, E)), x=nm.spec([G, M]), w=nm.spec([E, M]))
    for layout in ("group:expert, expert:expert", "expert:expert, group:expert"):
        with pytest.raises(nm.LayoutConflict):
            nm.plan(program, MESH, layout)


def test_an_axis_that_became_free_yields_to_one_that_is_held():
    """The maximum over a split dimension leaves the axis idle; the softmax reads both."""
    program = nm.trace(lambda x: nm.softmax(x, over=G), x=nm.spec([G, E, M], whole=[E]))
    plan = nm.plan(program, MESH, "group:expert, expert:expert")
    assert {one.kind for one in plan.collectives} == {"AllReduce"}
    x = np.random.default_rng(0).normal(size=(8, 4, 10)).astype(np.float32)
    _, result = nm.Step(plan, strict=True)(None, x=x)
    powers = np.exp(x)
    np.testing.assert_allclose(result, powers / powers.sum(0), rtol=1e-5)


def test_all_that_inherited_an_axis_yields_in_one_pass(monkeypatch):
    """The sum leaves the axis idle, and every op after it would take it for the other dimension."""
    passes, plan_program = [], RulePlanner.plan_program
    monkeypatch.setattr(
        RulePlanner, "plan_program", lambda self: (passes.append(self), plan_program(self))
    )

    def scaled(x):
        scale = nm.sum(x, over=G)
        for _ in range(6):
            scale = nm.tanh(scale)
        return x * scale

    program = nm.trace(scaled, x=nm.spec([G, E, M]))
    plan = plan_step(program, MESH, "group:expert, expert:expert")
    assert [(one.kind, one.bytes) for one in plan.collectives] == [("AllReduce", 4 * 10 * 4)]
    assert len(passes) == 2


H = nm.Dimension("hidden", 16)


def normalized(x):
    scale = nm.param("norm_scale", [M], nm.constant_init(1.0))
    w = nm.param("w", [M, H], nm.normal_init(1.0))
    loss = nm.mean(nm.square(nm.einsum([x * scale, w], [G, H])))
    nm.layers.Adam(0.1).apply(nm.grad(loss))
    return loss


def test_parameters_are_exempt_from_params_by_name():
    program = nm.trace(normalized, x=nm.spec([G, M]))
    mesh, layout = nm.Mesh(data=2), "group:data"

    def gathered(params) -> list[str]:
        plan = nm.plan(program, mesh, layout, params)
        return [one.tensor for one in plan.collectives if one.kind == "AllGather"]

    assert gathered("model:data") == ["norm_scale", "w"]
    assert gathered("model:data, !*scale") == ["w"]
    assert gathered(nm.Layout({"model": "data"}, exempt=["*scale", "w"])) == []
    plan = nm.plan(program, mesh, layout, "model:data, !*scale")
    for name, variable in program.variables.items():
        at_rest = plan.shardings[variable.tensor].mapping
        exempt = "norm_scale" in name or not len(variable.tensor.shape)
        assert at_rest == ({} if exempt else {"model": ("data",)}), name
    assert nm.Layout(plan.params.text) == plan.params
    results = []
    for params in (None, "model:data, !*scale"):
        step = nm.compile(program, mesh=mesh, layout=layout, params=params, strict=True)
        state, loss = step(step.init(0), x=np.ones((8, 10), np.float32))
        results.append((np.asarray(state["w"]), np.asarray(state["norm_scale"]), loss))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize(
    "layout, params, problem, fix",
    [
        (
            "group:data",
            "model:data, !*scales",
            "params exempts '*scales'",
            "did you mean '!*scale'?",
        ),
        ("group:data", "model:data, !*bias", "params exempts '*bias'", "a * stands for any part"),
        ("group:data, !w", None, "the layout exempts parameters by name: w", "exempt names in"),
    ],
)
def test_a_pattern_that_exempts_nothing_is_an_error(layout, params, problem, fix):
    program = nm.trace(normalized, x=nm.spec([G, M]))
    with pytest.raises(nm.NamedMeshError) as caught:
        nm.plan(program, nm.Mesh(data=2), layout, params)
    assert caught.value.problem.startswith(problem)
    assert caught.value.fix.startswith(fix)


def test_the_totals_take_one_phase_or_several():
    program = nm.trace(lambda x: nm.sum(x, over=G), x=nm.spec([G, M]))
    plan = nm.plan(program, nm.Mesh(data=4, hosts=2), "group:data")
    totals = (
        plan.total_bytes,
        plan.total_wire_bytes,
        plan.total_host_bytes,
        plan.total_slice_bytes,
    )
    for total in totals:
        assert total("forward") == total(["forward"]) == total()


def test_a_plan_cannot_be_changed():
    program = nm.trace(lambda x: nm.sum(x), x=nm.spec([G]))
    plan = nm.plan(program, nm.Mesh(data=4), "group:data")
    assert isinstance(plan.collectives, tuple) and isinstance(plan.warnings, tuple)
    mappings: list[Any] = [plan.shardings, plan.decisions, plan.initializers]
    for mapping in mappings:
        with pytest.raises(TypeError):
            mapping["x"] = None


def test_the_repr_of_a_plan_is_a_few_lines():
    program = nm.trace(lambda x: nm.sum(x), x=nm.spec([G]))
    assert repr(nm.plan(program, nm.Mesh(data=4), "group:data")).splitlines() == [
        "plan of <lambda> on Mesh(data=4), layout 'group:data'",
        "  total forward: 1 AllReduce, 4 B per device, 6 B on the wire",
        "  total backward: nothing, 0 B per device",
        "  total update: nothing, 0 B per device",
        "  total init: nothing, 0 B per device",
    ]


def test_a_program_is_a_few_lines_and_a_table_in_a_notebook():
    program = nm.trace(scale, x=nm.spec([G, E]))
    assert repr(program).splitlines() == [
        f"program scale: {len(program.ops)} ops",
        "  inputs: x",
        "  variables: w",
        "  outputs: multiply",
    ]
    assert "<table>" in program._repr_html_() and "w: float32[group=8, expert=4]" in str(program)
