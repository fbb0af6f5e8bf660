"""The paired bootstrap: a better system is found, the same system is not."""

import pytest
import sacrebleu

from examples.m4.experiment.significance import compare, compare_in_language

WORDS = [*"abcdefghijklmn"]


def evaluation(spoil, languages=6, sentences=30):
    """Translations of which every so manieth word is wrong."""
    rows = []
    for number in range(languages):
        samples = []
        for place in range(sentences):
            words = [WORDS[(number * 7 + place * 3 + i * i) % len(WORDS)] for i in range(9)]
            said = ["wrong" if (i + place) % spoil == 0 else word for i, word in enumerate(words)]
            text = {"english": " ".join(words), "translation": " ".join(said)}
            samples.append({"source": f"{number} {place}", **text})
        rows.append({"language": f"l{number}", "train_pairs": number, "samples": samples})
    return {"languages": rows}


def test_a_better_system_is_told_from_a_worse_one():
    found = compare(evaluation(3), evaluation(5), samples=200)
    assert [(row["languages"], row["score"]) for row in found[:2]] == [
        ("all", "BLEU"),
        ("all", "chrF"),
    ]
    assert {row["languages"] for row in found} == {"all", "high", "mid", "low"}
    assert all(row["system"] > row["baseline"] + 5 and row["p"] < 0.02 for row in found)


def test_one_language_is_compared_alone():
    alone, every = evaluation(3), evaluation(5)
    alone["languages"] = alone["languages"][2:3]
    found = compare_in_language(alone, every, "l2", samples=200)
    assert [(row["languages"], row["score"]) for row in found] == [("l2", "BLEU"), ("l2", "chrF")]
    assert all(row["system"] > row["baseline"] + 5 and row["p"] < 0.02 for row in found)
    reference = [[sample["english"] for sample in alone["languages"][0]["samples"]]]
    for row, metric in zip(found, (sacrebleu.BLEU(), sacrebleu.CHRF()), strict=True):
        for key, rows in (("baseline", alone["languages"][0]), ("system", every["languages"][2])):
            said = [sample["translation"] for sample in rows["samples"]]
            assert row[key] == round(metric.corpus_score(said, reference).score, 2)


def test_the_same_translations_do_not_differ():
    found = compare(evaluation(4), evaluation(4), samples=200)
    assert all(row["system"] == row["baseline"] and row["p"] > 0.5 for row in found)


def test_other_sentences_are_not_compared():
    other = evaluation(4)
    other["languages"][2]["samples"][0]["source"] = "another"
    with pytest.raises(ValueError, match="l2: the models translated other sentences"):
        compare(evaluation(4), other, samples=10)


def test_zeros_do_not_differ():
    one, other = evaluation(1), evaluation(1)
    for row in other["languages"]:
        for sample in row["samples"]:
            sample["translation"] = "never"
    found = compare(one, other, samples=50)
    assert all(row["system"] == row["baseline"] == 0 for row in found if row["score"] == "BLEU")
    assert all(row["p"] == 1 for row in found if row["score"] == "BLEU")
