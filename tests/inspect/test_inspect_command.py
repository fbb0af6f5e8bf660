"""`namedmesh inspect`: steps by reference and files of HLO, conditions and exit codes."""

import json

import jax
import pytest

from namedmesh.cli.main import main

STEP = "tests.inspect.steps:step"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("inspect") / "step.json"
    assert main(["inspect", STEP, "--devices", "8", "--save", str(path)]) == 0
    return str(path)


def test_a_step_against_a_saved_one(saved, capsys):
    words = ["inspect", STEP, "--set", "hidden=128", "--against", saved]
    assert main([*words, "--fail-if", "wire_bytes > +5%"]) == 1
    printed = capsys.readouterr()
    assert "backward AllReduce of dot_general in mlp over data" in printed.out
    assert "failed: wire_bytes > +5%" in printed.err
    assert main([*words, "--fail-if", "findings > 0", "--fail-if", "findings > +0"]) == 0
    assert main([*words, "--fail-if", "AllGather > 0", "--fail-if", "AllReduce > +0"]) == 0


def test_json_and_files(saved, capsys, tmp_path):
    import namedmesh as nm
    from tests.inspect import steps

    train, *arguments = steps.step()
    text = train.lower(*arguments).compile().as_text()
    dump = tmp_path / "after_optimizations.txt"
    dump.write_text(text)
    (tmp_path / "buffer-assignment.txt").write_text("BufferAssignment:\n")
    mesh = steps.make_mesh(data=2, model=4)
    zeros = jax.jit(lambda: jax.numpy.zeros(8), out_shardings=jax.NamedSharding(mesh, jax.P()))
    for name, small in (("zeros", zeros), ("key", jax.jit(lambda: jax.random.key(0)))):
        (tmp_path / f"{name}.txt").write_text(small.lower().compile().as_text())
    assert main(["inspect", *map(str, sorted(tmp_path.iterdir())), "--json"]) == 0
    printed = capsys.readouterr()
    row = json.loads(printed.out)
    assert "2 of the files are no compiled modules of several devices" in printed.err
    assert "1 others communicate nothing" in printed.err
    assert row["program"] == "train"
    assert [*row["findings"]] == []
    assert len(row["collectives"]) == len(nm.load_plan(saved).collectives)


def test_what_is_wrong_exits_with_2(capsys):
    for words in (
        ["inspect", STEP, "--devices", "8", "--target", "h100:1x8"],
        ["inspect", STEP, "--fail-if", "wire_bytes > +5%"],
        ["inspect", "tests/inspect/steps.py"],
        ["inspect", "tests.inspect.steps:make_mesh"],
        ["inspect", "tests.inspect.steps:stp"],
        ["inspect", "absent.txt"],
    ):
        assert main(words) == 2
    printed = capsys.readouterr().err
    assert "add --against FILE" in printed
    assert "there is no file 'absent.txt'" in printed
    assert "write tests/inspect/steps.py:function" in printed
    assert "expected a step and arguments" in printed
    assert "did you mean 'step'?" in printed
