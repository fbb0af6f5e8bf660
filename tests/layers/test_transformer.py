"""The paper's model: its size, its communication, and the same training under every layout."""

import numpy as np
import pytest

import namedmesh as nm
from benchmarks.family import describe_model
from namedmesh.layers import CONFIGS, Adafactor, Transformer, batch_of, config

PAPER = {  # the paper's table
    "moe_2048e_36l": 600e9, "moe_2048e_12l": 200e9, "moe_512e_36l": 150e9, "moe_512e_12l": 50e9,
    "moe_128e_36l": 37e9, "moe_128e_12l": 12.5e9, "moe_2048e_60l": 1e12, "t_96l": 2.3e9,
}  # fmt: skip


@pytest.fixture(scope="module")
def family():
    return {name: describe_model(name, CONFIGS[name]) for name in (*PAPER, "moe_128e_60l")}


def test_every_model_has_the_weights_of_the_papers_table(family):
    for name, weights in PAPER.items():
        assert family[name]["weights"] == pytest.approx(weights, rel=0.08), name


def test_flops_per_token_hardly_depend_on_the_number_of_experts(family):
    for layers in (12, 36, 60):
        few, many = (
            family[f"moe_{experts}e_{layers}l"]["flops_per_token"] for experts in (128, 2048)
        )
        assert many == pytest.approx(few, rel=0.05), layers


def train_step(model: Transformer) -> nm.Program:
    def step(batch, seed):
        loss, metrics = model.loss(batch_of(batch), nm.random.key_from_seed(seed))
        return {**metrics, **Adafactor(unfactored=[model.E]).apply(nm.grad(loss))}

    return nm.trace(step, batch=model.specs(), seed=nm.spec([], "int32"))


def examples(model: Transformer) -> dict[str, np.ndarray]:
    """Two packed examples a row, then padding; the target is the source backwards."""
    rng = np.random.default_rng(0)
    G, S = model.G.size, model.S.size
    segments = np.repeat([[1] * (S // 2) + [2] * (S // 2 - 1) + [0]], G, 0).astype(np.int32)
    positions = np.repeat([[*range(S // 2), *range(S - S // 2)]], G, 0).astype(np.int32)
    tokens = rng.integers(1, model.V.size, size=(G, S)).astype(np.int32)
    each = {"_segments": segments, "_positions": positions}
    batch = {
        f"{side}{what}": array for side in ("source", "target") for what, array in each.items()
    }
    return {"source": tokens, "target": tokens[:, ::-1].copy(), **batch}


@pytest.mark.parametrize(("remat", "again"), [("none", 0), ("full", 2), ("dots", 0)])
def test_every_layer_of_experts_takes_two_all_to_alls_each_way(remat, again):
    model = Transformer(config("tiny").but(layers=8, remat=remat), group=8, source=16, target=16)
    plan = nm.plan(train_step(model), nm.Mesh(all=8), "group:all, expert:all")
    layers = 4
    assert plan.count("AllToAll", "forward") == 2 * layers
    assert plan.count("AllToAll", "backward") == (2 + again) * layers, (
        "full remat runs both again: the weights' gradient needs them"
    )
    assert plan.count("AllGather") == 0
    replicated = {
        f"d_{name}"
        for name, v in plan.program.parameters.items()
        if "expert" not in v.shape.names or v.whole
    }
    reduced = {
        one.tensor for one in plan.of_phase("backward") if one.kind == "AllReduce" and one.bytes > 4
    }
    assert reduced <= replicated | {f"d_{name}" for name in ("wg",)} | {
        name for name in reduced if "history" in name
    }


@pytest.mark.slow
def test_training_agrees_under_five_layouts():
    model = Transformer(config("tiny"), group=8, source=16, target=16)
    program, batch, losses = train_step(model), examples(model), {}
    for mesh, layout, params in (
        ("all=8", "group:all, expert:all", None),
        ("data=2 expert=4", "group:data+expert, expert:expert", None),
        ("data=2 model=4", "group:data, heads:model, hidden:model", None),
        ("data=8", "group:data", "model:data"),
        (
            "data=2 expert=2 model=2",
            "group:data+expert, expert:expert, hidden:model, target_vocab:model",
            None,
        ),
    ):
        step = nm.compile(
            program, mesh=nm.Mesh.parse(mesh), layout=layout, params=params, strict=True
        )
        state = step.init(0)
        for i in range(20):
            state, metrics = step(state, **batch, seed=np.int32(i))
        losses[layout] = float(metrics["loss"])
    assert max(losses.values()) == pytest.approx(min(losses.values()), rel=1e-4), losses
