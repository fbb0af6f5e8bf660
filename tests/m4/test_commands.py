"""The commands from export to translations; after export none of them can import TensorFlow."""

import json
import re
import shutil

import pytest
import sacrebleu

from examples.m4.run import Run
from namedmesh.training import read_metrics
from tests.m4.runs import DENSE, copied, good, run

pytestmark = pytest.mark.slow

FLAGS = {**DENSE, "dev_every": 10, "steps": 20}


@pytest.fixture(scope="module")
def exported(corpus, tmp_path_factory):
    """A run with its lowered programs."""
    folder = tmp_path_factory.mktemp("exported") / "run"
    said = good(run("export", folder, {**FLAGS, "data": corpus}))
    assert {path.name.split("-")[0] for path in (folder / "artifacts").iterdir()} == {
        "train",
        "evaluate",
        "translate",
    }
    assert all(str(path) in said for path in (folder / "artifacts").iterdir())
    return folder


@pytest.fixture(scope="module")
def trained(exported, tmp_path_factory):
    """The run on another host, trained there with no flag but its folder."""
    folder = copied(exported, tmp_path_factory.mktemp("trained") / "elsewhere")
    said = good(run("train", folder, {}, blocked=True))
    assert "lowering" not in said and "trained 20 steps" in said
    return folder


def test_training_logs_the_loss_on_dev_sentences(trained):
    found = {
        row["step"]: row["dev_loss"]
        for row in read_metrics(trained / "metrics.jsonl")
        if "dev_loss" in row
    }
    assert [*found] == [10, 20] and found[20] < found[10] < 6.5
    assert (trained / "plots" / "loss.png").stat().st_size > 1000


def test_a_finished_run_is_left_as_it_is(trained, tmp_path):
    folder = copied(trained, tmp_path / "run")
    good(run("train", folder, {}, blocked=True))
    assert (folder / "metrics.jsonl").read_text() == (trained / "metrics.jsonl").read_text()


def test_evaluate_scores_every_language(trained, tmp_path):
    folder = copied(trained, tmp_path / "run")
    said = good(
        run("evaluate", folder, {**FLAGS, "sentences": 5}, blocked=True)
    )  # with the preset's flags as well
    result = json.loads((folder / "evaluation.json").read_text())
    assert result["step"] == 20
    assert [(row["language"], row["sentences"]) for row in result["languages"]] == [
        ("qaa", 5),
        ("qab", 5),
        ("qac", 5),
    ]
    for row in result["languages"]:
        made, wanted = (
            [sample[key] for sample in row["samples"]] for key in ("translation", "english")
        )
        pairs = Run(folder).tests["main"][row["language"]]
        spread = [pairs[fifth * len(pairs) // 5] for fifth in range(5)]  # evenly over the file
        assert wanted == [english for _, english in spread]
        assert row["chrf"] == sacrebleu.corpus_chrf(made, [wanted]).score
        assert re.search(rf"^main +{row['language']} ", said, re.MULTILINE)
    assert f"plot: {folder / 'plots' / 'bleu.png'}" in said


def test_an_older_checkpoint_can_be_evaluated_and_one_that_is_not_there_is_an_error(
    trained, tmp_path
):
    folder = copied(trained, tmp_path / "run")
    said = good(
        run(
            "evaluate",
            folder,
            {"checkpoint": 15, "sentences": 1, "baselines": _baseline(tmp_path)},
            blocked=True,
        )
    )
    assert "with the model of step 15" in said and "delta BLEU" in said and "delta_bleu.png" in said
    done = run("evaluate", folder, {"checkpoint": 999}, blocked=True)
    assert done.returncode == 1
    assert (
        "has no complete checkpoint of step 999" in done.stderr
        and "fix: it has 10, 15 and 20" in done.stderr
    )


def _baseline(folder) -> str:
    (folder / "baseline").mkdir()
    (folder / "baseline" / "evaluation.json").write_text(
        '{"languages": [{"set": "main", "language": "qaa", "sentences": 1, "bleu": 50.0}]}'
    )
    return str(folder / "baseline")


def test_translate_keeps_the_order_and_empty_lines(trained, tmp_path):
    sentences = [source for source, _ in Run(trained).tests["main"]["qab"]][:9]
    sentences[4] = ""
    (tmp_path / "in.txt").write_text("\n".join(sentences) + "\n")
    files = {"input": tmp_path / "in.txt", "output": tmp_path / "out.txt"}
    assert good(run("translate", trained, files, blocked=True)) == ""
    made = (tmp_path / "out.txt").read_text().split("\n")
    assert len(made) == 10 and made[4] == made[9] == "" and all(made[:4])
    reverse = good(
        run("translate", trained, {}, blocked=True, given="\n".join(reversed(sentences)) + "\n")
    )
    assert reverse.split("\n")[:9] == made[8::-1]


def test_details_are_languages_scores_and_other_hypotheses(trained, tmp_path):
    sentences = [*[source for source, _ in Run(trained).tests["main"]["qab"]][:5], ""]
    given = "\n".join(sentences) + "\n"
    plain = good(run("translate", trained, {}, blocked=True, given=given)).split("\n")
    said = good(run("translate", trained, {"details": True}, blocked=True, given=given))
    rows = [json.loads(line) for line in said.splitlines()]
    assert [row["source"] for row in rows] == sentences
    assert [row["translations"][0]["text"] for row in rows[:5]] == plain[:5]
    for row in rows[:5]:
        scores = [translation["score"] for translation in row["translations"]]
        assert scores == sorted(scores, reverse=True) and len(scores) == 2 and scores[0] < 0
        assert row["languages"][0]["language"] == "qab"
        tokens = Run(trained).vocabularies.source.encode([row["source"]])[0]
        assert row["cut"] == (len(tokens) > Run(trained).settings.translation_length)
    assert rows[5]["translations"] == [] and rows[5]["languages"] == []


def test_what_a_run_cannot_have_leaves_it_as_it_is(trained, tmp_path):
    folder = copied(trained, tmp_path / "run")
    before = (folder / "settings.json").read_text()
    for flags, message in (
        ({"mesh": "all=3x"}, "cannot read 'all=3x'"),
        ({"layout": "group:nope"}, "nope"),
        ({"layout": "grup:all"}, "did you mean 'group'?"),
        ({"mesh": "all=1", "layout": ""}, "making it needs TensorFlow"),
        ({"data": "elsewhere"}, "is a run on other data"),
        ({"minutes": -1}, "minutes=-1"),
    ):
        done = run("train", folder, flags, blocked=True)
        assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr, (
            done.stderr[-2000:]
        )
        assert (folder / "settings.json").read_text() == before
    other = run(
        "train",
        tmp_path / "other",
        {"preset": "tiny_dense", "data": folder, "languages": "qaa"},
        blocked=True,
    )
    assert other.returncode == 1 and "not qaa alone" in other.stderr


def test_bytes_that_are_no_text_and_lines_that_are_too_long_are_translated_as_far_as_they_go(
    trained, tmp_path
):
    source = tmp_path / "lines.txt"
    source.write_bytes(b"\xff\xfe\n" + b"mira " * 500 + b"\n")
    done = run("translate", trained, {"input": source}, blocked=True)
    assert (
        len(good(done).splitlines()) == 2
        and "1 of 2 texts are longer than 16 tokens and were cut" in done.stderr
    )
    done = run(
        "translate",
        trained,
        {"input": source, "output": tmp_path / "nowhere" / "out.txt"},
        blocked=True,
    )
    assert done.returncode == 1 and "cannot write" in done.stderr and "Traceback" not in done.stderr


def test_a_file_that_is_not_there_cannot_be_translated(trained):
    done = run("translate", trained, {"input": "nowhere.txt"}, blocked=True)
    assert done.returncode == 1
    assert "error: cannot read 'nowhere.txt': No such file" in done.stderr


def test_a_damaged_compilation_is_made_again(trained, tmp_path):
    folder = copied(trained, tmp_path / "run")
    for path in (folder / "compiled").iterdir():
        path.write_bytes(path.read_bytes()[:-100])
    shutil.rmtree(folder / "checkpoints" / "20")
    good(run("train", folder, {}, blocked=True))
    assert [row["loss"] for row in read_metrics(folder / "metrics.jsonl") if "loss" in row] == [
        row["loss"] for row in read_metrics(trained / "metrics.jsonl") if "loss" in row
    ]
