"""All bilingual models at once: equal to one after the other, under every layout, and resumed."""

import shutil

import numpy as np
import pytest

import namedmesh as nm
from examples.m4 import evaluation, programs, training
from examples.m4.bilingual import programs as together
from examples.m4.bilingual.rows import dev_batches, hold_out_dev, make_stream, read_rows
from examples.m4.run import Run
from examples.m4.settings import Settings, preset
from tests.m4 import runs

SHAPE = {
    "layers": 2, "model": 16, "hidden": 32, "heads": 2, "key": 8, "source_length": 48,
    "target_length": 32, "rows": 2, "dropout": 0.1, "log_every": 2, "save_every": 4, "steps": 8,
    "dev_every": 4, "patience": 1, "translation_rows": 4, "mesh": "all=1", "layout": "",
}  # fmt: skip


def settings_of(**changes) -> Settings:
    return preset("tiny_dense").but(**{**SHAPE, "by_language": True, **changes})


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, corpus):
    """A run of two languages before its first step."""
    folder = tmp_path_factory.mktemp("bilingual") / "run"
    Run(folder).start(settings_of(languages="qaa,qab"), str(corpus), lambda text: None)
    return folder


@pytest.fixture
def stream(prepared):
    codes = ["qaa", "qab"]
    return make_stream(read_rows(Run(prepared).data, codes, "train"), codes, rows=2, seed=0)


@pytest.fixture(scope="module")
def train_step(prepared):
    """The train step of both languages on one device."""
    return compile_step(together.trace_train(Run(prepared).settings))


def compile_step(program: nm.Program, layout: str = "", devices: int = 1):
    return nm.compile(program, mesh=nm.Mesh(all=devices), layout=layout)


def inputs_of(batch, number: int, dev_loss=(1e9, 1e9), measured: int = 0):
    losses = np.array(dev_loss, np.float32)
    return {
        "batch": batch, "seed": np.int32(number), "dev_loss": losses, "measured": np.int32(measured)
    }  # fmt: skip


def take_steps(step, state, stream, count: int, **options):
    losses = []
    for number, (batch, _) in zip(range(count), stream.read_from(None), strict=False):
        state, results = step(state, **inputs_of(batch, number, **options))
        losses.append(float(results["loss"]))
    return state, losses


def test_one_step_of_all_is_a_step_of_each(prepared, stream, train_step):
    compare_with_each_alone(Run(prepared).settings, train_step, stream)


def test_one_step_of_all_is_a_step_of_each_with_adafactor(prepared, stream):
    settings = Run(prepared).settings.but(optimizer="adafactor")
    compare_with_each_alone(settings, compile_step(together.trace_train(settings)), stream)


def compare_with_each_alone(settings, step, stream):
    """Four steps of both languages at once, and four of each with the same weights and batches."""
    first = step.init(3)
    weights = {name: np.asarray(first[name]) for name in first}
    last, losses = take_steps(step, first, stream, 4)
    alone = compile_step(programs.trace_train(settings))
    each = np.zeros((2, 4))
    for place in range(2):
        own = lambda array, place=place: array[place] if array.ndim else array
        state = alone.place({name: own(weights[name]) for name in alone.init(0)})
        for number, (batch, _) in zip(range(4), stream.read_from(None), strict=False):
            mine = {name: array[place] for name, array in batch.items()}
            state, results = alone(state, batch=mine, seed=np.int32(number))
            each[place, number] = results["loss"]
        for name in state:
            found, expected = own(np.asarray(last[name])), np.asarray(state[name])
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(losses, each.mean(0), rtol=1e-5)
    assert not np.allclose(*np.asarray(last["encoder/embedding"]))


def test_the_best_weights_are_kept_and_a_language_that_stops_stays(stream, train_step):
    step = train_step  # with a patience of one
    state = step.init(0)
    held = []
    for number, told in enumerate([None, (3.0, 3.0), (2.0, 4.0), (2.5, 1.0), (1.0, 0.5)]):
        held.append({name: np.asarray(state[name]) for name in state})
        batch, _ = next(stream.read_from(number))
        options = {} if told is None else {"dev_loss": told, "measured": 1}
        state, results = step(state, **inputs_of(batch, number, **options))
    last = {name: np.asarray(state[name]) for name in state}
    # The first language is best at 1.0, which comes after it stopped with the weights of step 3.
    assert last["best_loss"].tolist() == [1.0, 0.5]
    name = "decoder/embedding"
    np.testing.assert_array_equal(held[3][f"best/{name}"][0], held[2][name][0])
    np.testing.assert_array_equal(held[3][f"best/{name}"][1], held[1][name][1])
    np.testing.assert_array_equal(held[4][name][0], held[3][name][0])  # it does not learn
    np.testing.assert_array_equal(held[3][name][1], held[2][name][1])
    assert (held[4][name][1] != held[3][name][1]).any()  # it was better, and learns again
    assert float(results["learning"]) == 2.0


def test_languages_on_devices_send_numbers_alone(prepared):
    program = together.trace_train(Run(prepared).settings)
    plan = nm.plan(program, mesh=nm.Mesh(all=2), layout="language:all")
    assert {one.kind for one in plan.collectives} == {"AllReduce"}
    assert sum(one.bytes for one in plan.collectives) < 64


def test_layouts_agree(prepared, stream, train_step):
    program = together.trace_train(Run(prepared).settings)
    found = []
    for step in (train_step, compile_step(program, "language:all", 2)):
        state, losses = take_steps(step, step.init(0), stream, 3, dev_loss=(2.0, 3.0), measured=1)
        found.append((losses, {name: np.asarray(state[name]) for name in state}))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-5)
    for name, array in found[0][1].items():
        np.testing.assert_allclose(array, found[1][1][name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_language_with_few_dev_pairs_holds_out_some_of_its_own():
    train = [(f"s{number}", f"t{number}") for number in range(1000)]
    for dev in ([], [("a", "b")] * 7, [("a", "b")] * 50):
        kept, held = hold_out_dev(train, dev)
        assert len(held) == max(30, len(dev)) and held[: len(dev)] == dev
        assert sorted([*kept, *held[len(dev) :]]) == sorted(train)


def test_dev_batches_have_every_row_once():
    rows = [{"source": np.arange(1, 1 + count * 3).reshape(count, 3)} for count in (5, 2)]
    batches = dev_batches(rows, rows=2, most=9)
    assert [batch["source"].shape for batch in batches] == [(2, 2, 3)] * 3
    whole = np.concatenate([batch["source"] for batch in batches], axis=1)
    np.testing.assert_array_equal(whole[0, :5], rows[0]["source"])
    np.testing.assert_array_equal(whole[1, :2], rows[1]["source"])
    assert not whole[1, 2:].any()


def test_a_run_that_goes_on_is_as_one_that_was_not_stopped(prepared, tmp_path):
    quiet = lambda text: None
    whole = runs.copied(prepared, tmp_path / "whole")
    settings = Run(whole).settings
    training.train(Run(whole), settings, quiet)
    parts = runs.copied(whole, tmp_path / "parts")
    for step in (8, 9):  # it goes on at a step that measures
        shutil.rmtree(parts / "checkpoints" / str(step))
    training.train(Run(parts), settings, quiet)
    found = [runs.checkpoint(folder, 9) for folder in (whole, parts)]
    for name, array in found[0].items():
        np.testing.assert_array_equal(array, found[1][name], err_msg=name)
    assert (found[0]["best_loss"] < 1e9).all()
    result = evaluation.evaluate(Run(whole), settings, sentences=3, say=quiet)
    assert [row["language"] for row in result["languages"]] == ["qaa", "qab"]
    for row, loss in zip(result["languages"], found[0]["best_loss"], strict=True):
        assert row["dev_loss"] == pytest.approx(loss) and len(row["samples"]) == 3


def test_all_translate_as_each_alone(prepared):
    settings = Run(prepared).settings
    step = compile_step(together.trace_translate(settings))
    state = step.init(0)
    rng = np.random.default_rng(0)
    length = settings.translation_length
    weights = {
        name: rng.normal(size=np.shape(state[name])).astype(np.float32) * 0.3 for name in state
    }
    source = rng.integers(3, 60, (2, 4, length)).astype(np.int32)
    segments = (np.arange(length) < rng.integers(3, length, (2, 4, 1))).astype(np.int32)
    inputs = {"source": source * segments, "source_segments": segments}
    _, found = step(step.place(weights), **inputs)
    alone = compile_step(programs.trace_translate(settings))
    for place in range(2):
        own = {name: weights[f"best/{name}"][place] for name in alone.init(0)}
        mine = {name: array[place] for name, array in inputs.items()}
        _, expected = alone(alone.place(own), **mine)
        np.testing.assert_array_equal(found["sequences"][place], expected["sequences"])
        np.testing.assert_allclose(found["scores"][place], expected["scores"], rtol=1e-4)
