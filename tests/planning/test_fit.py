"""remat="fit": as little computed again as fits, by the estimate, and by the compiler."""

import dataclasses
import functools

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.errors.errors import NamedMeshError
from namedmesh.layers import Transformer, batch_of, config
from tests.checks import assert_same, number_leaves, uniform

B, M, H, L = nm.dims("batch=256 model=32 hidden=256 layer=6")
X = nm.spec([B, M])
pytestmark = pytest.mark.filterwarnings("ignore:no dimension is mapped")
TPU = nm.Hardware.parse("tpu-v3")


def layer(x, _=None):
    h = nm.tanh(nm.einsum([x, nm.param("wi", [M, H])], [B, H]))
    gate = nm.tanh(nm.einsum([x, nm.param("gate", [M, H])], [B, H]))
    y = nm.einsum([nm.exp(h) * gate, nm.param("wo", [H, M])], [B, M])
    more = nm.tanh(nm.einsum([y, nm.param("more", [M, H])], [B, H]))
    return x + nm.tanh(nm.einsum([more, nm.param("last", [H, M])], [B, M])), None


def train(remat: str | float = "fit"):
    def step(x):
        y, _ = nm.scan(layer, x, over=L, stack=True, remat=remat)
        return nm.grad(nm.mean(y * y))

    return nm.trace(step, x=X)


def peak_of(plan, hardware=TPU):
    return nm.cost(plan, hardware).memory.peak_bytes


def peak_with(remat, layout=""):
    return peak_of(nm.plan(train(remat), nm.Mesh(data=4), layout))


def with_memory(size):
    """Return hardware of which a step may use so many bytes."""
    return dataclasses.replace(TPU, name="small", memory_bytes=int(size / 0.9) + 1)


def test_the_less_is_stored_the_more_is_computed_again():
    plans = [nm.plan(train(share), nm.Mesh(data=1)) for share in (1.0, 0.6, 0.3, 0.0)]
    stored = [plan.activation_bytes for plan in plans]
    flops = [plan.program.flops() for plan in plans]
    assert stored == sorted(stored, reverse=True) and flops == sorted(flops)
    assert len({*stored}) == len({*flops}) == 4
    for share, word in ((1.0, "none"), (0.0, "full")):
        named = nm.plan(train(word), nm.Mesh(data=1))
        plan = plans[0 if share else -1]
        assert (plan.activation_bytes, plan.program.flops()) == (
            named.activation_bytes,
            named.program.flops(),
        )


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_gradients_do_not_depend_on_what_is_stored(share):
    x = uniform(0, 256, 32)
    expected, ours = train("none"), train(share)
    state = expected.initial_state(1)
    assert_same(
        number_leaves(ours.evaluate(state, x=x)[1]),
        number_leaves(expected.evaluate(state, x=x)[1]),
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.parametrize("room", [0.1, 0.4, 0.8, 1.0])
def test_as_much_is_stored_as_fits(room):
    full, none = peak_with("full"), peak_with("none")
    hardware = with_memory(full + room * (none - full))
    plan = nm.plan(train(), nm.Mesh(data=4), target=hardware)
    (told,) = (text for text in plan.decisions if "remat" in text)
    parts = int(told.split("stores ")[1].split("/")[0])
    usable = 0.9 * hardware.memory_bytes
    assert peak_of(plan) <= usable
    assert (parts == 8) == (room == 1.0)
    assert parts == 8 or peak_with((parts + 1) / 8) > usable
    assert peak_of(plan) == peak_with(parts / 8) and told in str(plan)


def test_another_layout_chooses_again():
    hardware = with_memory(peak_with("full") * 1.05)
    program = train()
    whole, split = (
        nm.plan(program, nm.Mesh(data=4), layout, target=hardware) for layout in ("", "batch:data")
    )
    assert sum(whole.recomputed.values()) > sum(split.recomputed.values())
    assert max(peak_of(whole), peak_of(split)) <= 0.9 * hardware.memory_bytes


def test_without_a_target_everything_is_computed_again_and_that_is_told():
    plan = nm.plan(train(), nm.Mesh(data=1))
    assert plan.program.flops() == train("full").flops()
    assert any("without target= the memory is not known" in text for text in plan.decisions)


def test_a_step_that_does_not_fit_at_all_says_what_it_needs():
    hardware = with_memory(peak_with("full") * 0.8)
    with pytest.raises(NamedMeshError) as error:
        nm.plan(train(), nm.Mesh(data=4), target=hardware)
    assert "does not fit with everything computed again" in error.value.problem
    assert f"{peak_with('full') / 2**20:.1f} MiB by estimate" in str(error.value)
    assert "params=" in str(error.value.fix)


def test_a_checkpointed_function_fits_too():
    def step(x, policy):
        one = nm.checkpoint(lambda x: layer(x)[0], policy)
        return nm.grad(nm.mean(one(x) ** 2.0))

    program = nm.trace(lambda x: step(x, "fit"), x=X)
    roomy = nm.plan(program, nm.Mesh(data=1), target="tpu-v3")
    assert sum(roomy.recomputed.values()) == 0
    full = nm.trace(lambda x: step(x, "full"), x=X)
    assert nm.plan(program, nm.Mesh(data=1)).program.flops() == full.flops()


def test_compile_takes_the_memory_of_the_devices_here():
    x = uniform(0, 256, 32)
    steps = [nm.compile(train(one), mesh=nm.Mesh(data=2), layout="batch:data", strict=True)
             for one in ("fit", "full")]  # fmt: skip
    assert any("8/8" in text and "on cpu" in text for text in steps[0].plan.decisions)
    results = [number_leaves(step(step.init(0), x=x)[1]) for step in steps]
    assert_same(*results, rtol=1e-5, atol=1e-6)


def test_the_compiler_verifies_and_less_is_stored_where_it_refuses(monkeypatch):
    plan = nm.plan(train(), nm.Mesh(data=1), target="cpu", verify=True)
    assert any("8/8" in text and " by the compiler" in text for text in plan.decisions)
    compile_for, refused = nm.aot.compile_for, []

    def refuse_twice(*given):
        report = compile_for(*given)
        if len(refused) < 2:
            refused.append(report)
            report = dataclasses.replace(report, fits=False)
        return report

    monkeypatch.setattr(nm.aot, "compile_for", refuse_twice)
    plan = nm.plan(train(), nm.Mesh(data=1), target="cpu", verify=True)
    assert any("stores 6/8" in text for text in plan.decisions)


def test_a_search_chooses_what_is_stored():
    search = functools.partial(nm.search, train(), 4, "tpu-v3", axes=1, pin="batch:data")
    stored = [one.memory_bytes for one in search().front if one.choices["remat"] == "none"]
    assert max(stored) == peak_with("none", "batch:data")
    (first, *_) = search(memory=min(stored) - 1).front
    assert first.choices["remat"] in (0.5, "full")


def test_a_models_config_takes_it():
    model = Transformer(config("tiny").but(remat="fit"), group=4, source=8, target=8)

    def step(batch, seed):
        return nm.grad(model.loss(batch_of(batch), nm.random.key_from_seed(seed))[0])

    program = nm.trace(step, batch=model.specs(), seed=nm.spec([], "int32"))
    plan = nm.plan(program, nm.Mesh(all=4), "group:all, expert:all", target="tpu-v3")
    assert sum(plan.recomputed.values()) < 0.05
    standing = nm.plan(program, nm.Mesh(all=4), "group:all, expert:all")
    assert sum(standing.recomputed.values()) > 0.15


@pytest.mark.parametrize("remat", [1.5, -0.1, True, "fits", np.nan])
def test_what_is_no_remat_is_refused(remat):
    with pytest.raises(NamedMeshError, match="remat"):
        train(remat)


@pytest.mark.parametrize("kind, name", [("NVIDIA H200", "h200"), ("TPU v5 lite", "tpu-v5e")])
def test_devices_are_known_by_the_kind_that_jax_names(kind, name):
    ours, expected = nm.Hardware.parse(kind), nm.Hardware.parse(name)
    assert (ours.memory_bytes, ours.flops) == (expected.memory_bytes, expected.flops)
