"""The command `namedmesh report`."""

import json
import pathlib

import pytest

from namedmesh.cli.main import main
from tests.report.models import LAYOUT
from tests.report.page import read_page

ROOT = pathlib.Path(__file__).parent.parent.parent
STEP = ("report", "tests.report.models:small_program", "--mesh", "data=2,tensor=4")


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_a_page_of_one_plan(tmp_path, capsys):
    out = tmp_path / "plan.html"
    assert main([*STEP, "--layout", LAYOUT, "--target", "h200", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"wrote {out}\n"
    _, (data,) = read_page(out)
    assert data["layout"] == LAYOUT and data["cost"]["target"] == "h200"


def test_a_page_of_two_layouts(tmp_path):
    out = tmp_path / "plans.html"
    both = ("--layout", LAYOUT, "--layout", "batch:data+tensor")
    assert main([*STEP, *both, "--out", str(out)]) == 0
    page, plans = read_page(out)
    assert [data["layout"] for data in plans] == [LAYOUT, "batch:data+tensor"]
    assert {data["cost"]["target"] for data in plans} == {"tpu-v3"}
    assert json.loads(page.scripts[0])["differences"]["tensors"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--layout", "bach:data"), "bach"),
        (("--target", "tpu-v33"), "did you mean 'tpu-v3'?"),
        (("--layout", "", "--layout", "", "--layout", ""), "--layout is given 3 times"),
    ],
)
def test_mistakes_are_told_in_words(tmp_path, capsys, words, told):
    assert main([*STEP, *words, "--out", str(tmp_path / "plan.html")]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "plan.html").exists()
