"""Dispatch by one-hot einsum and by index: equal results, gradients and communication."""

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.layers import expert_choice_gating, moe, top_k_gating

G, S, E, C, M, H = nm.dims("group=8 seq=16 expert=4 capacity=6 model=8 hidden=16")
GATES = {
    "top2": lambda logits, draws: top_k_gating(logits, S, E, C, draws=[draws]),
    "switch": lambda logits, draws: top_k_gating(logits, S, E, C, k=1, normalize="none"),
    "top3": lambda logits, draws: top_k_gating(logits, S, E, C, k=3, second="all"),
    "expert choice": lambda logits, draws: expert_choice_gating(logits, S, E, C),
}
LAYOUTS = {
    "one axis": ("all=4", "group:all, expert:all", None),
    "two axes": ("data=2 expert=4", "group:data+expert, expert:expert", None),
    "hidden too": (
        "data=2 expert=2 model=2",
        "group:data+expert, expert:expert, hidden:model",
        None,
    ),
    "at rest": ("data=8", "group:data", "model:data"),
}


def layer(gate: str, form: str) -> nm.Program:
    def step(x, draws):
        y, routing = moe(
            x, lambda logits: GATES[gate](logits, draws), (G, S, E, C, M, H), form=form
        )
        loss = nm.sum(y * nm.tanh(y)) + getattr(routing, "aux_loss", 0.0) * 10.0
        return {"y": y, **nm.grad(loss, {"x": x, **nm.parameters()})}

    return nm.trace(step, nm.spec([G, S, M]), nm.spec([G, S]))


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(0)
    return {
        "x": rng.normal(size=(8, 16, 8)).astype(np.float32),
        "draws": rng.uniform(size=(8, 16)).astype(np.float32),
    }


@pytest.mark.parametrize("gate", GATES)
def test_both_forms_agree_in_values_and_gradients(gate, inputs):
    one, other = layer(gate, "einsum"), layer(gate, "gather")
    state = one.initial_state(0)
    wanted, got = one.evaluate(state, **inputs)[1], other.evaluate(state, **inputs)[1]
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("label", LAYOUTS)
def test_both_forms_communicate_alike_and_run_sharded(label, inputs):
    mesh, layout, params = LAYOUTS[label]
    plans = {}
    for form in ("einsum", "gather"):
        program = layer("top2", form)
        step = nm.compile(
            program, mesh=nm.Mesh.parse(mesh), layout=layout, params=params, strict=True
        )
        assert step.audit.exact, str(step.audit)
        state = {name: np.asarray(value) for name, value in program.initial_state(0).items()}
        _, got = step(step.place(state), **inputs)
        for name, value in program.evaluate(state, **inputs)[1].items():
            np.testing.assert_allclose(
                got[name], value, rtol=1e-4, atol=5e-5, err_msg=f"{form} {name}"
            )
        plans[form] = step.plan
    kinds = {
        form: sorted((one.kind, one.axes) for one in plan.collectives)
        for form, plan in plans.items()
    }
    assert kinds["einsum"] == kinds["gather"]
    # Parts of a sum over the hidden dimension pass through an einsum, which makes them smaller.
    sent = {form: plan.total_bytes() for form, plan in plans.items()}
    split_sums = "hidden" in plans["einsum"].layout.rules
    assert sent["einsum"] < sent["gather"] if split_sums else sent["einsum"] == sent["gather"]


def test_the_index_form_makes_no_mask_of_tokens_by_places():
    sizes = {
        form: max(t.shape.elements for op in layer("top2", form).ops for t in op.outputs)
        for form in ("einsum", "gather")
    }
    assert sizes["einsum"] >= G.size * S.size * E.size * C.size > sizes["gather"] / 2
    for op in layer("top2", "gather").ops:
        for tensor in op.outputs:
            assert not {"seq", "expert", "capacity"} <= {*tensor.shape.names}, str(tensor)


def test_an_unknown_form_is_named():
    with pytest.raises(nm.NamedMeshError, match="dispatch: 'scatter' is not a form"):
        layer("top2", "scatter")
