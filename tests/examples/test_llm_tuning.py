"""Fine-tuning: adapters over frozen weights in 16, 8 and 4 bits, packed rows, folders written."""

import importlib.util
import json
import pathlib

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

import namedmesh as nm
from benchmarks.llm_families import run_ours, run_theirs, valid, write_folder
from examples.llm import weights
from examples.llm.__main__ import _tuning_settings, parse_arguments
from examples.llm.adapters import Code, Tuning
from examples.llm.model import LanguageModel, trace_rows
from examples.llm.packing import Example, pack, read_examples, shuffle_rows
from examples.llm.sampling import continue_tokens
from examples.llm.settings import Settings
from examples.llm.training import compile_program, place_program
from examples.llm.tuning import load_tuned, tune

KEPT = json.loads((pathlib.Path(__file__).parent / "families.json").read_text())
# Counts up from where it starts: easy to learn.
EXAMPLES = [Example([1, *range(start, start + size)], 2) for start, size in zip(
    range(4, 20), (5, 9, 3, 7, 12, 4, 6, 8) * 2, strict=True)]  # fmt: skip


def folder_of(path: pathlib.Path, family: str = "llama") -> pathlib.Path:
    write_folder(path, KEPT[family]["config"], KEPT[family]["shapes"])
    return path


def settings_of(folder: pathlib.Path, **changes: object) -> Settings:
    architecture, _ = weights.read_model(folder)
    return Settings(
        architecture, batch=4, length=16, steps=8, warmup=1, learning_rate=1e-2, capacity_factor=0,
        layout="fsdp",
    ).but(**changes)  # fmt: skip


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("block", [0, 4])
def test_a_code_is_that_of_numpy(kind, block):
    L, N, K, M = nm.dims("layer=3 heads=2 key=8 model=12")
    x = np.random.default_rng(0).normal(size=(3, 2, 8, 12)).astype(np.float32)
    code = Code.of(Tuning(frozen=kind, block=block), [L, N, K, M], [N, K])
    back = nm.evaluate(lambda w: code.decode(*code.encode(w)), w=([L, N, K, M], x))
    most = {"int8": 127, "int4": 7}[kind]
    rows = x.reshape(3, 2, -1, block, 12) if block else x.reshape(3, 16, 12)
    largest = abs(rows).max(-2, keepdims=True)
    literal = np.round(rows * (most / largest)) * largest / most
    np.testing.assert_allclose(back, literal.reshape(x.shape), atol=1e-6)


def test_texts_are_packed_into_few_rows_and_none_is_lost():
    rows = pack(EXAMPLES, 16)
    sizes = sorted(len(one.tokens) - 1 for one in EXAMPLES)
    assert len(rows["inputs"]) == -(-sum(sizes) // 16) or len(rows["inputs"]) <= 8
    found = []
    for inputs, targets, segments, positions, learned in zip(*rows.values(), strict=True):
        for number in range(1, segments.max() + 1):
            here = segments == number
            assert positions[here].tolist() == list(range(here.sum()))
            assert learned[here].tolist() == [0.0] + [1.0] * (here.sum() - 1)  # after the prompt
            found.append([*inputs[here].tolist(), int(targets[here][-1])])
    assert sorted(found) == sorted(one.tokens for one in EXAMPLES)
    seen = [shuffle_rows(rows, 2, 0).make_batch(i)["inputs"].tolist() for i in range(50)]
    assert {str(row) for batch in seen for row in batch} == {
        str(row.tolist()) for row in rows["inputs"]
    }


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("llama", "one"),
        ("llama", "context"),
        ("gemma3", "context"),  # windows, and latent attention: every device has all keys
        pytest.param("deepseek_v3", "context", marks=pytest.mark.slow),
    ],
)
def test_a_packed_row_has_the_loss_of_its_texts_alone(tmp_path, family, layout):
    settings = settings_of(folder_of(tmp_path, family), layout=layout, batch=1, length=24)
    model = LanguageModel(settings)
    step = compile_program(trace_rows(model, model.loss, packed=True), settings)
    state = weights.load(tmp_path, step)
    loss = lambda examples: float(step(state, **pack(examples, 24))[1]["cross_entropy"])
    texts = [
        Example([5, 9, 3, 11, 7, 8], 2),
        Example([6, 2, 30, 31, 4], 1),
        Example([9, 9, 1, 2], 1),
    ]
    counts = [len(one.tokens) - one.prompt for one in texts]
    assert len(pack(texts, 24)["inputs"]) == 1
    alone = sum(loss([one]) * count for one, count in zip(texts, counts, strict=True)) / sum(counts)
    assert loss(texts) == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize(
    ("family", "tuning"),
    [
        ("llama", None),
        ("llama", Tuning(frozen="int8", block=8)),
        pytest.param("llama", Tuning(frozen="float32"), marks=pytest.mark.slow),
        pytest.param("llama", Tuning(frozen="int4"), marks=pytest.mark.slow),
        pytest.param("deepseek_v3", Tuning(frozen="bfloat16"), marks=pytest.mark.slow),
        pytest.param("qwen3_moe", Tuning(frozen="int8"), marks=pytest.mark.slow),
    ],
    ids=lambda one: one.frozen if isinstance(one, Tuning) else one or "all",
)
def test_what_is_written_scores_as_what_was_trained(tmp_path, family, tuning):
    """The adapters are added to the weights of the folder, of which nothing frozen changes."""
    source = folder_of(tmp_path / "in", family)
    settings = settings_of(source, tuning=tuning, steps=3)
    losses = tune(source, tmp_path / "out", settings, EXAMPLES, say=lambda _: None)
    assert losses[-1] < losses[0]
    rows = {name: one[:4] for name, one in pack(EXAMPLES, 16).items()}

    def loss_of(folder: pathlib.Path, own: Settings) -> float:
        model = LanguageModel(own)
        step = compile_program(trace_rows(model, model.loss, packed=True), own)
        return float(step(load_tuned(folder, step, own), **rows)[1]["cross_entropy"])

    written = loss_of(tmp_path / "out", settings.but(tuning=None))
    assert written < loss_of(source, settings.but(tuning=None))
    files = [load_file(tmp_path / name / "model.safetensors") for name in ("in", "out")]
    assert {*files[0]} == {*files[1]}
    for name, before in files[0].items():
        if tuning and ("norm" in name or "embed" in name):
            narrow = tuning.frozen != "float32" and "embed" in name  # tables are in 16 bits
            before = before.astype(ml_dtypes.bfloat16 if narrow else before.dtype)
            np.testing.assert_array_equal(before.astype(files[1][name].dtype), files[1][name])


@pytest.mark.slow
def test_layouts_train_alike_and_transformers_loads_what_they_write(tmp_path):
    source = folder_of(tmp_path / "in")
    found, scores = {}, {}
    for layout in ("one", "fsdp", "megatron+sequence"):
        for tuning in (None, Tuning(frozen="int8")):
            settings = settings_of(source, layout=layout, tuning=tuning, steps=3)
            name = f"{layout} {tuning and tuning.frozen}"
            found[name] = tune(source, tmp_path / name, settings, EXAMPLES, say=lambda _: None)
            if importlib.util.find_spec("transformers"):
                scores[name] = run_theirs(tmp_path / name)[0]
    for name, losses in found.items():
        np.testing.assert_allclose(losses, found["one " + name.split()[1]], rtol=2e-4, err_msg=name)
    for name, logits in scores.items():
        ours, _, _ = run_ours(tmp_path / name, ("one=1", ""))
        np.testing.assert_allclose(valid(ours), valid(logits), atol=1e-4, err_msg=name)
    assert len(scores) in (0, 6)


def test_a_file_of_examples_is_read(tmp_path):
    path = tmp_path / "examples.jsonl"
    path.write_text('{"tokens": [1, 5, 9], "prompt": 1}\n\n{"tokens": [2, 3]}\n')
    assert read_examples(path) == [Example([1, 5, 9], 1), Example([2, 3], 0)]
    wrong = {
        '{"words": 1}': 'is not an example: {"words": 1}',
        "[1, 2]": r"is not an example: \[1, 2\]",
        '{"prompt": 3, "completion": "b"}': "is not an example",
        '{"tokens": [1, 2': "examples.jsonl:2 is not JSON",
        '{"tokens": "a"}': "tokens is not a list of token numbers: a",
        '{"tokens": [1.5, 2]}': "tokens is not a list of token numbers",
        '{"tokens": [1, -2]}': "the model has no token -2",
        '{"tokens": [1, 40]}': "the model has no token 40: its vocab=40",
        '{"tokens": [1, 2], "prompt": 3}': "prompt is 3, beside 2 tokens",
        '{"tokens": [1, 2], "prompt": "a"}': "prompt is 'a', beside 2 tokens",
    }
    for line, message in wrong.items():
        path.write_text(f'{{"tokens": [1, 2]}}\n{line}\n')
        with pytest.raises(nm.NamedMeshError, match=message):
            read_examples(path, folder_of(tmp_path / "model"))
    path.write_text('{"prompt": "a", "completion": "b"}\n')
    with pytest.raises(nm.NamedMeshError, match="texts need the model's tokenizer"):
        read_examples(path, tmp_path)
    with pytest.raises(nm.NamedMeshError, match="no such way to fine-tune"):
        Tuning(frozen="int5")


def test_what_the_command_line_cannot_mean_is_said_plainly(tmp_path, capsys):
    """What was trained or written otherwise than asked for, or was a traceback."""
    folder, path = folder_of(tmp_path / "model"), tmp_path / "examples.jsonl"
    path.write_text('{"tokens": [1, 2]}\n')
    words = ["tune", "--weights", str(folder), "--examples", str(path), "--to", "other"]
    with pytest.raises(nm.NamedMeshError, match="--frozen int8 --block 0 without adapters"):
        _tuning_settings(parse_arguments([*words, "--frozen", "int8"]))
    with pytest.raises(SystemExit):
        parse_arguments(["write", "--weights", str(folder), "--tokens", "1,a"])
    assert "'1,a' is not token numbers" in capsys.readouterr().err
    wrong: dict[str, dict[str, object]] = {
        "prompt 2: the model has no token 40": {"prompts": [[1], [2, 40]]},
        "prompt 1 has no tokens": {"prompts": [[]]},
        "the model has no token 99": {"end": (99,)},
        "temperature=-1": {"temperature": -1.0},
        "top_p=0": {"top_p": 0.0},
    }
    for message, options in wrong.items():
        with pytest.raises(nm.NamedMeshError, match=message):
            continue_tokens(folder, **{"prompts": [[1]], "length": 2, **options})


def test_a_pipeline_takes_batches_that_its_microbatches_divide(tmp_path):
    """And one text is written under it, for which there are no microbatches."""
    folder = folder_of(tmp_path)
    settings = settings_of(folder, layout="pipeline", batch=6)
    with pytest.raises(nm.NamedMeshError, match="a pipeline of 4 microbatches cannot cut batch=6"):
        tune(folder, tmp_path / "out", settings, EXAMPLES, say=lambda _: None)
    alone = continue_tokens(folder, [[5, 9]], length=3)
    assert continue_tokens(folder, [[5, 9]], length=3, mesh="stage=2", layout="pipeline") == alone


@pytest.mark.parametrize("layout", ["megatron+sequence", "fsdp+megatron"])
def test_dropless_mixtures_are_planned_where_tokens_are_sharded_between_parts(tmp_path, layout):
    """What a layout says of `row`, a row's tokens, is not about the rows of an expert's block."""
    settings = settings_of(folder_of(tmp_path, "qwen3_moe"), layout=layout)
    model = LanguageModel(settings)
    program = trace_rows(model, model.train, packed=True)
    assert nm.plan(program, **place_program(program, settings)).collectives
