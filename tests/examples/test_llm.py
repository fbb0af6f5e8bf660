"""The language model: against numpy, under every layout, step by step, resumed, and sampled."""

import functools
import math
import os
import pathlib
import signal
from collections import Counter

import numpy as np
import pytest

import namedmesh as nm
from examples.llm.architecture import Architecture, Experts
from examples.llm.model import LanguageModel, trace_rows, train_program
from examples.llm.sampling import continue_prompt
from examples.llm.settings import LAYOUTS, Settings
from examples.llm.text import Text, ngram_bits, read_text
from examples.llm.training import (
    compile_rows,
    fit,
    load_settings,
    place_program,
    save_settings,
)
from namedmesh.layers import Greedy
from namedmesh.training import read_metrics

SHAPE = Architecture(layers=2, model=16, hidden=32, heads=2, group=2, key=8)
TINY = Settings(SHAPE, batch=4, length=8, steps=4, warmup=2)
# With room for every byte, since a decoder step drops none either.
MIXTURE = TINY.but(architecture=SHAPE.but(experts=Experts(4, 2, 32)), capacity_factor=4.0)
UNTIED = TINY.but(architecture=SHAPE.but(tied=False))
TEXT = Text(*np.split(np.frombuffer(b"a fox, a hen and an egg. " * 40, np.uint8), [800]))


def state_of(settings: Settings) -> dict[str, np.ndarray]:
    """Random weights, the scales of norms too."""
    model = LanguageModel(settings.but(layout="one"))
    program = nm.trace(model.logits, nm.spec([model.B, model.S], "int32"))
    random = np.random.default_rng(0)
    return {
        name: random.normal(size=[dim.size for dim in variable.shape]).astype(np.float32) * 0.3
        + name.endswith("scale")
        for name, variable in program.parameters.items()
    }


def rows(settings: Settings) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    shape = settings.batch, settings.length
    return {name: random.integers(0, 256, shape).astype(np.int32) for name in ("inputs", "targets")}


def literal_logits(settings: Settings, state: dict[str, np.ndarray], row: np.ndarray) -> np.ndarray:
    """A Llama in numpy, for one row of bytes: position by position, head by head."""
    s, length = settings.architecture, len(row)

    def norm(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale

    def rotate(x: np.ndarray, position: int) -> np.ndarray:
        half = s.key // 2
        angle = position * 10_000.0 ** (-np.arange(half) / half)
        one, two = x[:half], x[half:]
        cos, sin = np.cos(angle), np.sin(angle)
        return np.concatenate([one * cos - two * sin, one * sin + two * cos])

    def network(x: np.ndarray, gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> np.ndarray:
        h = x @ gate
        return (h / (1 + np.exp(-h)) * (x @ up)) @ down

    def mix(x: np.ndarray, wg: np.ndarray, *experts: np.ndarray) -> np.ndarray:
        gates = np.exp(x @ wg) / np.exp(x @ wg).sum()
        best = np.argsort(-gates)[:2]
        outputs = [gates[e] * network(x, *(weight[e] for weight in experts)) for e in best]
        return sum(outputs) / gates[best].sum()

    h = state["embedding"][row] * math.sqrt(s.model)
    for layer in range(s.layers):
        own = {name: value[layer] for name, value in state.items() if "/" in name}
        x = norm(h, own["attention/norm_scale"])
        wq, wk, wv, wo = (own[f"attention/{name}"] for name in ("wq", "wk", "wv", "wo"))
        for t in range(length):
            for n in range(s.heads):
                keys = [rotate(x[u] @ wk[:, n], u) for u in range(t + 1)]
                for g in range(s.group):
                    query = rotate(x[t] @ wq[:, n, g], t)
                    weights = np.exp([query @ key / math.sqrt(s.key) for key in keys])
                    weights /= weights.sum()
                    value = sum(w * (x[u] @ wv[:, n]) for u, w in enumerate(weights))
                    h[t] += value @ wo[n, g]
        x = norm(h, own["network/norm_scale"])
        names = ("wi", "wi_gate", "wo")
        if s.experts:
            mixture = [own[f"network/{name}"] for name in ("wg", *names)]
            h = h + np.stack([mix(one, *mixture) for one in x])
        else:
            h = h + network(x, *(own[f"network/{name}"] for name in names))
    return norm(h, state["final_scale"]) @ state["embedding" if s.tied else "output"].T


@pytest.mark.parametrize("settings", [UNTIED, MIXTURE], ids=["dense", "mixture"])
def test_logits_are_those_of_a_llama_in_numpy(settings):
    settings = settings.but(layout="one")
    model, state, inputs = LanguageModel(settings), state_of(settings), rows(settings)["inputs"]
    program = nm.trace(lambda tokens: model.logits(tokens)[0], nm.spec([model.B, model.S], "int32"))
    logits = np.asarray(program.evaluate(state, tokens=inputs)[1])
    for row, ours in zip(inputs, logits, strict=True):
        literal = literal_logits(settings, {k: v.astype(float) for k, v in state.items()}, row)
        np.testing.assert_allclose(ours, literal, rtol=1e-4, atol=1e-4)


@functools.cache
def under(settings: Settings, layout: str, learn: bool) -> dict[str, np.ndarray]:
    """The losses of a batch under a layout, and the gradients of all weights."""
    model = LanguageModel(settings.but(layout=layout))

    def step(inputs, targets):
        losses = model.loss(inputs, targets)
        return {**losses, **(nm.grad(losses["loss"]) if learn else {})}

    compiled = compile_rows(model, step)
    results = compiled(compiled.place(state_of(settings)), **rows(settings))[1]
    return {name: np.asarray(value) for name, value in results.items()}


@pytest.mark.parametrize(
    ("settings", "layout"),
    [
        (TINY, "data"),
        (TINY, "megatron"),
        (TINY, "fsdp+megatron"),
        (TINY, "context"),
        (MIXTURE, "expert"),
        (MIXTURE, "folded"),
        (TINY, "pipeline"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_layout_gives_the_loss_of_one_device(settings, layout):
    one, split = (under(settings, name, learn=False) for name in ("one", layout))
    for name, value in one.items():
        assert split[name] == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize(
    ("layout", "forward", "backward"),
    [
        ("megatron", {"AllReduce": 2}, {"AllReduce": 2}),
        (
            "megatron+sequence",
            {"AllGather": 2, "ReduceScatter": 2},
            {"AllGather": 2, "ReduceScatter": 2},
        ),
        ("expert", {"AllToAll": 2}, {"AllToAll": 2}),
    ],
)
def test_a_layer_sends_as_often_as_megatrons(layout, forward, backward):
    """A layer more is so many collectives of activations more: those of a loop, by iteration."""
    settings = (MIXTURE if layout == "expert" else TINY).but(layout=layout)
    plans = []
    for layers in (2, 3):
        program = train_program(settings.but(architecture=settings.architecture.but(layers=layers)))
        plans.append(nm.plan(program, **place_program(program, settings)))
    for phase, expected in (("forward", forward), ("backward", backward)):
        counts = [
            Counter({
                kind: sum(one.times for one in plan.collectives
                          if (one.phase, one.kind) == (phase, kind) and one.bytes >= 1024)
                for kind in ("AllReduce", "AllGather", "ReduceScatter", "AllToAll")
            })
            for plan in plans
        ]  # fmt: skip
        assert dict(counts[1] - counts[0]) == expected


@pytest.mark.parametrize("balance", ["loss", "bias"])
def test_experts_of_a_folded_layout_are_on_the_axes_of_attention_too(balance):
    """Tokens take the axis of attention's heads and come back, and go to experts along both."""
    experts = Experts(4, 2, 32, balance=balance)
    settings = MIXTURE.but(architecture=SHAPE.but(experts=experts), layout="folded")
    program = train_program(settings)
    plan = nm.plan(program, **place_program(program, settings))
    sent = Counter()
    for one in plan.collectives:
        if (one.phase, one.kind) == ("forward", "AllToAll"):
            sent[one.axes] += one.times
    assert sent == {("tensor",): 2 * SHAPE.layers, ("data", "tensor"): 2 * SHAPE.layers}
    found = {
        name: dict(plan.shardings[program.parameters[name].tensor].mapping)
        for name in ("network/wi", "attention/wq")
    }
    assert found == {
        "network/wi": {"expert": ("data", "tensor")},
        "attention/wq": {"model": ("data",), "heads": ("tensor",)},
    }


@pytest.mark.parametrize(
    "layout",
    ["fsdp+megatron", *(pytest.param(x, marks=pytest.mark.slow) for x in ("context", "pipeline"))],
)
def test_chunks_of_the_loss_give_the_same_gradients(layout):
    whole = under(TINY, layout, learn=True)
    chunked = under(TINY.but(loss_chunks=2, offload=True), layout, learn=True)
    assert whole.keys() == chunked.keys()
    for name, value in chunked.items():
        np.testing.assert_allclose(value, whole[name], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [TINY, MIXTURE], ids=["dense", "mixture"])
def test_every_layout_gives_the_gradients_of_one_device(settings):
    one = under(settings, "one", learn=True)
    for layout in LAYOUTS:
        for name, value in under(settings, layout, learn=True).items():
            np.testing.assert_allclose(
                value, one[name], rtol=1e-3, atol=1e-5, err_msg=f"{layout} {name}"
            )


@pytest.mark.slow
@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble"])
@pytest.mark.parametrize("settings", [TINY, MIXTURE], ids=["dense", "mixture"])
def test_pipelines_of_any_layers(settings, schedule, partitioner, monkeypatch):
    """With batches, heads, hidden layers and experts sharded inside, and weights at rest."""
    monkeypatch.setenv("NAMEDMESH_PARTITIONER", partitioner)
    inside = "batch:data, heads:tensor, hidden:tensor, expert:data"
    changes = {"schedule": schedule, "microbatches": 2, "mesh": "stage=2, data=2, tensor=2"}
    one = under(settings, "one", learn=True)
    model = LanguageModel(settings.but(**changes, layout=f"layer:stage, stage:stage, {inside}"))

    def step(inputs, targets):
        losses = model.loss(inputs, targets)
        return {**losses, **nm.grad(losses["loss"])}

    program, (mesh, layout) = trace_rows(model, step), model.settings.devices
    layout, params = layout.only(program.dims), nm.Layout("model:data")
    compiled = nm.compile(program, mesh=mesh, layout=layout, params=params, strict=True)
    results = compiled(compiled.place(state_of(settings)), **rows(settings))[1]
    for name, value in results.items():
        np.testing.assert_allclose(value, one[name], rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_a_checkpoint_fits_any_number_of_stages(tmp_path):
    """Three layers: saved with a pipeline of four stages, one of which has none."""
    quiet, four = (
        lambda message: None,
        TINY.but(architecture=SHAPE.but(layers=3), layout="pipeline", mesh="stage=4"),
    )
    found = {}
    for name, layout, mesh in (("two", "pipeline", "stage=2"), ("none", "one", "one=1")):
        for settings in (four.but(steps=2), four.but(layout=layout, mesh=mesh)):
            model = LanguageModel(settings)
            step, evaluation = (compile_rows(model, one) for one in (model.train, model.loss))
            fit(tmp_path / name, step, evaluation, settings, TEXT, say=quiet)
        found[name] = read_metrics(tmp_path / name / "metrics.jsonl")
    steps = [[row["loss"] for row in rows if "loss" in row] for rows in found.values()]
    assert len(steps[0]) == 4
    np.testing.assert_allclose(*steps, rtol=1e-4)


@pytest.mark.parametrize("settings", [TINY, MIXTURE], ids=["dense", "mixture"])
def test_byte_by_byte_is_all_at_once(settings):
    model = LanguageModel(settings.but(layout="one"))
    N, B, S = nm.Dimension("hypothesis", 1), model.B, model.S

    def both(tokens):
        step, cache = model.decoding([B, N], nm.Dimension("position", S.size))

        def iteration(cache, token):
            logits, cache = step(nm.broadcast(token, [B, N]), cache)
            return cache, nm.sum(logits, over=N)

        _, one_by_one = nm.scan(iteration, cache, tokens, over=S)
        return nm.transpose(one_by_one, [B, S, model.V]), model.logits(tokens)[0]

    program = nm.trace(both, nm.spec([B, S], "int32"))
    one_by_one, whole = program.evaluate(state_of(settings), tokens=rows(settings)["inputs"])[1]
    np.testing.assert_allclose(one_by_one, whole, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> pathlib.Path:
    """A run that was trained at once, and one that was stopped by a signal and continued."""
    folder, settings = tmp_path_factory.mktemp("runs"), MIXTURE.but(layout="expert")
    model = LanguageModel(settings)
    step, evaluation = (compile_rows(model, function) for function in (model.train, model.loss))

    def stop_once(message: str) -> None:
        if message.startswith("dev:"):
            os.kill(os.getpid(), signal.SIGTERM)

    save_settings(folder / "whole", settings)
    fit(folder / "whole", step, evaluation, settings, TEXT, say=lambda message: None)
    with pytest.raises(SystemExit):
        fit(folder / "halves", step, evaluation, settings, TEXT, say=stop_once)
    fit(folder / "halves", step, evaluation, settings, TEXT, say=lambda message: None)
    return folder


def test_a_resumed_run_is_one_that_was_not_interrupted(runs):
    whole, halves = (read_metrics(runs / name / "metrics.jsonl") for name in ("whole", "halves"))
    names = ("step", "loss", "cross_entropy", "dev_loss")
    choose = lambda rows: [{name: row[name] for name in names if name in row} for row in rows]
    assert choose(whole) == choose(halves)
    assert whole[-1]["step"] == TINY.steps


def test_a_checkpoint_of_two_devices_writes_on_one(runs):
    texts = continue_prompt(runs / "whole", "a fox", length=6, count=2)
    assert [text[:5] for text in texts] == ["a fox"] * 2
    (best,) = continue_prompt(runs / "whole", "a fox", length=3, count=1, beam=2)
    assert best.startswith("a fox")


@pytest.mark.slow
@pytest.mark.parametrize("products", ["float8", "float8-delayed", "float8-blocks", "float8-sent"])
def test_a_run_in_eight_bits_is_trained_and_evaluated(products, tmp_path):
    metrics = {}
    for name in ("", products):
        settings = MIXTURE.but(layout="expert", products=name)
        model = LanguageModel(settings)
        step, evaluation = (compile_rows(model, function) for function in (model.train, model.loss))
        fit(tmp_path / f"run{name}", step, evaluation, settings, TEXT, say=lambda message: None)
        logged = read_metrics(tmp_path / f"run{name}" / "metrics.jsonl")
        metrics[name] = {key: value for row in logged for key, value in row.items()}
    for name in ("loss", "dev_loss"):
        assert metrics[products][name] != metrics[""][name]
        assert metrics[products][name] == pytest.approx(metrics[""][name], rel=0.02)


def test_a_run_keeps_its_settings(tmp_path):
    save_settings(tmp_path, TINY.but(steps=0))  # failed, before it wrote anything
    save_settings(tmp_path, TINY)
    (tmp_path / "checkpoints" / "5").mkdir(parents=True)
    save_settings(tmp_path, TINY.but(layout="one"))  # where a run lies may change
    assert load_settings(tmp_path) == TINY.but(layout="one")
    changed = rf"a run with other settings\n  steps: {TINY.steps} there, 5 here\n"
    with pytest.raises(nm.NamedMeshError, match=changed):
        save_settings(tmp_path, TINY.but(steps=5))
    with pytest.raises(nm.NamedMeshError, match="is not a run"):
        load_settings(tmp_path / "other")
    with pytest.raises(nm.NamedMeshError, match="needs a mesh"):
        _ = TINY.but(layout="batch:rows").devices


def test_greedy_writing_is_the_likeliest_byte_after_each_prefix():
    settings = TINY.but(layout="one")
    model, state = LanguageModel(settings), state_of(settings)
    P, B, N, T = nm.dims("prompt=3 batch=1 hypothesis=1 step=4")
    specs = {"prompt": nm.spec([P], "int32"), "last": nm.spec([], "int32")}
    write = lambda prompt, last: model.write_on(prompt, last, [B, N], T, Greedy())
    written = nm.trace(write, **specs).evaluate(state, prompt=[5, 6, 7], last=8)[1]["sequences"]
    row = [5, 6, 7, 8]
    for _ in range(T.size):
        row.append(int(literal_logits(settings, state, np.array(row))[-1].argmax()))
    assert np.asarray(written).ravel().tolist() == row[4:]


def test_counts_predict_a_text_they_have_seen():
    random = np.random.default_rng(0)
    noise = random.integers(0, 4, 20_000).astype(np.uint8)
    assert ngram_bits(Text(noise[:10_000], noise[10_000:]), 1) == pytest.approx(2.0, abs=0.01)
    assert ngram_bits(TEXT, 5) < 0.5 < ngram_bits(TEXT, 0)


def test_the_text_is_there():
    text = read_text(most=1 << 20)
    assert len(text.train) == 1 << 20 and len(text.dev) > 1 << 14
    assert text.dev.tobytes()[:200] not in text.train.tobytes()
