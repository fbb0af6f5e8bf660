from examples.m4.corpus.__main__ import main


def test_a_synthetic_corpus_is_made_and_checked(tmp_path, capsys):
    out = str(tmp_path / "out")
    assert main(["synthetic", out, "--languages", "3", "--largest", "300", "--seed", "5"]) == 0
    assert main(["check", out]) == 0
    said = capsys.readouterr().out
    row = ["main", "train", "3", "700", "qaa", "300", "200", "qab", "200"]
    assert row in [line.split() for line in said.splitlines()]
    assert "no faults" in said and "train pairs whose English is in dev: 0" in said


def test_a_mistake_is_said_in_words(tmp_path, capsys):
    assert main(["check", str(tmp_path / "none")]) == 1
    assert "does not exist" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_named_without_a_traceback(capsys):
    assert main(["synthetic", "/proc/none/corpus", "--languages", "1"]) == 1
    assert capsys.readouterr().err == "/proc/none: No such file or directory\n"
