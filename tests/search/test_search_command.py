"""namedmesh search: what it prints, and its status."""

import json

import pytest

from namedmesh.cli.main import main

PROGRAM = "tests.search.models:trace_step"


def test_it_prints_the_front(capsys):
    assert (
        main(["search", PROGRAM, "--devices", "4", "--target", "tpu-v3", "--processes", "1"]) == 0
    )
    assert "search of train on 4 devices of tpu-v3" in capsys.readouterr().out


def test_choices_pins_and_json(capsys):
    words = ["search", PROGRAM, "--set", "layers=2", "--try", "remat=none,full", "--devices", "4"]
    words += ["--target", "h200", "--pin", "batch:data", "--processes", "1", "--json"]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert {one["choices"]["remat"] for one in document["front"]} <= {"none", "full"}
    assert all("batch:data" in one["layout"] for one in document["front"])


def test_hosts_and_slices(capsys):
    words = ["search", PROGRAM, "--devices", "8", "--processes", "1", "--json", "--target"]
    assert main([*words, "h200", "--hosts", "4"]) == 0
    front = json.loads(capsys.readouterr().out)["front"]
    assert {one["mesh"]["hosts"] for one in front} == {4}
    assert main([*words, "tpu-v5e", "--slices", "2"]) == 0
    front = json.loads(capsys.readouterr().out)["front"]
    assert {one["mesh"]["slices"] for one in front} == {2}
    assert main([*words, "h200", "--hosts", "3"]) == 2
    assert "fix: use one of hosts=1, 2, 4, 8" in capsys.readouterr().err


def test_nothing_fits(capsys):
    words = ["search", PROGRAM, "--devices", "4", "--target", "tpu-v3", "--memory", "1KiB"]
    assert main([*words, "--processes", "1"]) == 1
    assert "nothing fits" in capsys.readouterr().out


@pytest.mark.parametrize(
    "more",
    [["--try", "remat"], ["--try", "axes=1,2"], ["--pin", "rows:data"], ["--memory", "much"]],
)
def test_what_is_wrong_is_said_with_a_fix(capsys, more):
    assert main(["search", PROGRAM, "--devices", "4", "--target", "tpu-v3", *more]) == 2
    assert "fix: " in capsys.readouterr().err


def test_an_interruption_is_one_word(capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("namedmesh.cli.search_command.search", interrupt)
    assert main(["search", PROGRAM, "--devices", "4", "--target", "tpu-v3"]) == 130
    assert capsys.readouterr().err == "interrupted\n"
