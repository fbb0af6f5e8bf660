"""Families of models: against what transformers made of the same weights, and by their sizes.

`python -m benchmarks.llm_families --keep tests/examples/families.json` made the numbers.
"""

import json
import pathlib

import numpy as np
import pytest

import namedmesh as nm
from benchmarks.llm_families import VARIANTS, make_inputs, measure, run_ours, write_folder
from examples.llm.__main__ import parse_arguments, write
from examples.llm.model import LanguageModel
from examples.llm.sampling import continue_tokens
from examples.llm.settings import Settings
from examples.llm.sizes import CONFIGS, published

KEPT = json.loads((pathlib.Path(__file__).parent / "families.json").read_text())
FAST = ("llama", "deepseek_v3")
slow = pytest.mark.slow


@pytest.mark.parametrize(
    "family", [one if one in FAST else pytest.param(one, marks=slow) for one in KEPT]
)
def test_a_family_scores_and_writes_what_transformers_does(family, tmp_path):
    kept = KEPT[family]
    write_folder(tmp_path, kept["config"], kept["shapes"])
    logits, written, _ = run_ours(tmp_path, VARIANTS[family][2])
    np.testing.assert_allclose(logits[-1, -1], kept["logits"], atol=1e-4, rtol=0)
    assert written.tolist() == kept["written"]


@slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_is_that_of_transformers(variant):
    pytest.importorskip("transformers", reason="needs transformers: pip install 'namedmesh[llm]'")
    row = measure(variant)
    assert row["max_logit_difference"] < 1e-4 and row["round_trip"] and row["generated_equal"]


# As published with the models, in billions: all weights but those of further predictions.
BILLIONS = {
    "llama-3-8b": 8.03, "llama-3-70b": 70.55, "llama-3.1-405b": 405.85, "llama-3.2-1b": 1.24,
    "llama-3.2-3b": 3.21, "qwen3-0.6b": 0.596, "qwen3-1.7b": 1.72, "qwen3-4b": 4.02,
    "qwen3-8b": 8.19, "qwen3-14b": 14.77, "qwen3-32b": 32.76, "qwen3-30b-a3b": 30.53,
    "qwen3-235b-a22b": 235.09, "mixtral-8x7b": 46.70, "mixtral-8x22b": 140.63,
    "gemma-3-1b": 1.00, "gemma-3-4b": 3.88, "gemma-3-12b": 11.77, "gemma-3-27b": 27.01,
    "deepseek-v3": 671.03,
}  # fmt: skip


@pytest.mark.parametrize("name", BILLIONS)
def test_a_published_model_has_as_many_weights(name):
    model = LanguageModel(Settings(published(name), batch=1, length=8, layout="one"))
    program = nm.trace(model.logits, nm.spec([model.B, model.S], "int32"))
    weights = sum(one.shape.elements for one in program.parameters.values())
    assert weights / 1e9 == pytest.approx(BILLIONS[name], rel=2e-3, abs=5e-3)


def test_every_published_model_has_an_architecture():
    assert {*BILLIONS} < {*CONFIGS}
    for name in CONFIGS:
        assert published(name).runs


def test_prompts_of_a_folder_are_continued_up_to_its_end_token(tmp_path, capsys):
    """The prompts of the kept numbers, without their padding."""
    tokens, padding = make_inputs()
    write_folder(tmp_path, KEPT["llama"]["config"], KEPT["llama"]["shapes"])
    prompts = [row[skip:].tolist() for row, skip in zip(tokens, padding, strict=True)]
    assert continue_tokens(tmp_path, prompts, length=6) == KEPT["llama"]["written"]
    end = KEPT["llama"]["written"][0][2]
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [end]}))
    words = ["--weights", str(tmp_path), "--tokens", ",".join(map(str, prompts[0]))]
    write(parse_arguments(["write", *words, "--length", "6"]))
    assert capsys.readouterr().out == ",".join(map(str, KEPT["llama"]["written"][0][:3])) + "\n"
