"""Scores: against sacrebleu called directly, and averages worked out by hand."""

import json

import numpy as np
import pytest
import sacrebleu

from examples.m4 import evaluation
from examples.m4.evaluation import average_scores, split_in_thirds
from examples.m4.run import Run
from examples.m4.scores import (
    format_samples,
    format_scores,
    read_baselines,
    select_comparable,
)
from examples.m4.translation import Scored, Translation
from namedmesh.errors.errors import NamedMeshError
from tests.m4.runs import copied
from tests.m4.scored import RESULT, ROWS, row


class Echo:
    """A translator that gets most words of the English right: it has seen the tests."""

    step = 7

    def __init__(self, tests):
        self.known = {
            source: english for pairs in tests["main"].values() for source, english in pairs
        }

    def translate(self, texts, report=None):
        return [
            Translation(text, [Scored(" ".join(self.known[text].split()[: 3 + i % 4]), 0)], False)
            for i, text in enumerate(texts)
        ]


@pytest.fixture
def run(started, tmp_path, monkeypatch):
    run = Run(copied(started, tmp_path / "run"))
    monkeypatch.setattr(
        evaluation.Translator, "open", classmethod(lambda cls, run, *_: Echo(run.tests))
    )
    return run


def test_scores_are_those_of_sacrebleu(run):
    result = evaluation.evaluate(run, run.settings, sentences=10, say=lambda text: None)
    assert [one["language"] for one in result["languages"]] == ["qaa", "qab", "qac"]
    for one in result["languages"]:
        every = run.tests["main"][one["language"]]
        places = np.linspace(0, len(every), 10, endpoint=False).astype(int)
        assert len(every) > 10 and places[-1] == len(every) - 2
        pairs = [every[place] for place in places]
        assert [(sample["source"], sample["english"]) for sample in one["samples"]] == pairs
        made, wanted = (
            [sample["translation"] for sample in one["samples"]],
            [english for _, english in pairs],
        )
        assert one["bleu"] == sacrebleu.corpus_bleu(made, [wanted]).score
        assert one["chrf"] == sacrebleu.corpus_chrf(made, [wanted]).score
        assert 5 < one["bleu"] < 95 and one["sentences"] == 10
    assert [one["train_pairs"] for one in result["languages"]] == [300, 150, 100]
    assert json.loads((run.folder / "evaluation.json").read_text()) == result


def test_the_signature_says_which_bleu_and_chrf(run):
    signatures = evaluation.evaluate(run, run.settings, sentences=2, say=lambda text: None)[
        "signatures"
    ]
    assert (
        "tok:13a" in signatures["bleu"] and f"version:{sacrebleu.__version__}" in signatures["bleu"]
    )
    assert "nc:6" in signatures["chrf"]


def test_a_set_that_is_not_there_is_an_error(run):
    with pytest.raises(
        NamedMeshError, match=r"the run has no test set 'mian'\n.*\n.*did you mean 'main'"
    ):
        evaluation.evaluate(run, run.settings, sets=["mian"])


def test_thirds_are_by_resources():
    counts = {"a": 5, "b": 100, "c": 50, "d": 7, "e": 6, "f": 90, "g": 1}
    highest, middle, lowest = {"b", "f", "c"}, {"d", "e"}, {"a", "g"}
    found = split_in_thirds(counts)
    assert {code for code in counts if found[code] == "high"} == highest
    assert {code for code in counts if found[code] == "mid"} == middle
    assert {code for code in counts if found[code] == "low"} == lowest


def test_equal_resources_are_in_the_order_of_codes_and_one_language_is_high():
    assert split_in_thirds({"b": 1, "c": 1, "a": 1}) == {"a": "high", "b": "mid", "c": "low"}
    assert split_in_thirds({"a": 3}) == {"a": "high"}
    assert split_in_thirds({}) == {}


def test_averages_are_by_set_and_third():
    found = average_scores([*ROWS, row("aa", 10, 7.0, 5.0, "other")])
    assert found == [  # by pairs: bb, dd | cc | aa
        {"set": "main", "resources": "high", "languages": 2, "bleu": 8.5, "chrf": 13.0},
        {"set": "main", "resources": "mid", "languages": 1, "bleu": 3.0, "chrf": 4.0},
        {"set": "main", "resources": "low", "languages": 1, "bleu": 1.0, "chrf": 2.0},
        {"set": "main", "resources": "all", "languages": 4, "bleu": 5.25, "chrf": 8.0},
        {"set": "other", "resources": "high", "languages": 1, "bleu": 7.0, "chrf": 5.0},
        {"set": "other", "resources": "all", "languages": 1, "bleu": 7.0, "chrf": 5.0},
    ]


def test_the_table_has_a_row_for_each_language_from_high_to_low_resource():
    lines = format_scores(RESULT).splitlines()
    assert lines[0].split() == ["set", "language", "train", "pairs", "BLEU", "chrF"]
    assert [line.split() for line in lines[1:5]] == [
        ["main", "bb", "400", "9.0", "10.0"],
        ["main", "dd", "300", "8.0", "16.0"],
        ["main", "cc", "20", "3.0", "4.0"],
        ["main", "aa", "10", "1.0", "2.0"],
    ]
    assert [line.split() for line in lines[5:9]] == [
        ["main", "high", "(2)", "8.5", "13.0"],
        ["main", "mid", "(1)", "3.0", "4.0"],
        ["main", "low", "(1)", "1.0", "2.0"],
        ["main", "all", "(4)", "5.2", "8.0"],
    ]
    assert lines[9:] == ["bleu: SIGNED"]


def test_delta_bleu_is_the_difference_to_the_baselines(tmp_path):
    for code, bleu in (("bb", 10.5), ("aa", 0.25)):
        (tmp_path / code).mkdir()
        (tmp_path / code / "evaluation.json").write_text(
            json.dumps({"languages": [row(code, 1, bleu, 0.0)]})
        )
    others = read_baselines([str(tmp_path / "bb"), str(tmp_path / "aa")])
    known = select_comparable(others, RESULT)
    assert known == {"main/bb": 10.5, "main/aa": 0.25}
    said: list[str] = []
    others["main/bb"]["sentences"] = 3
    assert select_comparable(others, RESULT, said.append) == {"main/aa": 0.25}
    assert said == ["main/bb: no delta BLEU, since the baseline has 3 sentences and this run 1"]
    lines = format_scores(RESULT, known).splitlines()
    assert lines[0].endswith("delta BLEU")
    assert [line.split()[5:] for line in lines[1:5]] == [["-1.5"], [], [], ["+0.8"]]


def test_a_baseline_that_was_not_evaluated_is_an_error(tmp_path):
    with pytest.raises(NamedMeshError, match=r"has no evaluation\.json"):
        read_baselines([str(tmp_path)])


@pytest.mark.parametrize(
    "count, languages", [(8, ["bb", "dd", "cc", "aa"]), (2, ["bb", "aa"]), (3, ["bb", "cc", "aa"])]
)
def test_samples_are_each_of_another_language(count, languages):
    lines = format_samples(RESULT, count).splitlines()
    assert lines[::3] == [f"{code}: {code} source" for code in languages]
    assert lines[1:3] == ["  reference:   bb english", "  translation: bb made"]
