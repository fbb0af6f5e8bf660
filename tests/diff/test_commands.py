"""The commands plan, diff, cost and completion: what they print, their exit status, and errors."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

import namedmesh as nm
from namedmesh.cli import doctor
from namedmesh.cli.main import COMMANDS, main
from tests.diff.models import plan

ROOT = pathlib.Path(__file__).parent.parent.parent
STEP = "tests.diff.models:step"
DATA = ["--mesh", "data=4", "--layout", "batch:data"]


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)


def run(*words, status=0):
    assert main(list(words)) == status


def test_planning_prints_what_the_library_plans(capsys):
    run("plan", STEP, *DATA)
    printed = capsys.readouterr().out
    assert printed.strip().endswith(plan("data").communication.strip())
    run("plan", STEP, *DATA, "--communication")
    assert capsys.readouterr().out.strip() == plan("data").communication.strip()
    run("plan", STEP, *DATA, "--params", "model:data", "--json")
    document = json.loads(capsys.readouterr().out)
    assert document["params"] == "model:data" and len(document["collectives"]) == 5


def test_inputs_of_a_function_with_specs_are_at_its_line(capsys):
    run("plan", STEP, *DATA, "--json")
    rows = {row["tensor"]: row["source"] for row in json.loads(capsys.readouterr().out)["tensors"]}
    code = (ROOT / "tests/diff/models.py").read_text().splitlines()
    line = next(i for i, text in enumerate(code, 1) if text.startswith("def step("))
    assert rows["x"] == f"models.py:{line}"


@pytest.mark.parametrize(
    ("reference", "settings", "mesh"),
    [
        ("tests/diff/models.py:step", (), DATA),
        ("tests.diff.models:trace_step", (), DATA),
        ("tests.diff.models:PROGRAM", (), DATA),
        ("tests.diff.models:PLANS.data", (), []),
        ("tests.diff.models:trace_stack", ("sizes.rows=16", "scale=0.5"), ["--mesh", "d=2"]),
        ("tests.diff.models:trace_stack", (), ["--mesh", "d=2", "--layout", "rows:d"]),
        ("examples.unet.model:train_program", ("learning_rate=0.1", "steps=9", "model.rows=32"),
         ["--mesh", "data=2,space=2", "--layout", "batch:data, rows:space"]),
        ("examples/m4/programs.py:trace_evaluate", ("settings=@examples.m4.settings:PRESETS.tiny",),
         ["--mesh", "all=4", "--layout", "group:all, expert:all"]),
        ("benchmarks.llama_plans:trace_stack",
         ("case=@benchmarks.llama_plans:CASES.tp", "layers=2"),
         ["--mesh", "tensor=4", "--layout", "head:tensor, hidden:tensor"]),
    ],
)  # fmt: skip
def test_programs_are_found_in_every_form(reference, settings, mesh, capsys):
    words = [word for one in settings for word in ("--set", one)]
    run("plan", reference, *words, *mesh)
    assert capsys.readouterr().out.startswith("plan of ")


def test_arguments_reach_the_function(capsys):
    words = ["--mesh", "d=2", "--layout", "rows:d", "--json"]
    sizes = []
    for rows in (16, 64):
        run("plan", "tests.diff.models:trace_stack", "--set", f"sizes.rows={rows}", *words)
        tensors = json.loads(capsys.readouterr().out)["tensors"]
        sizes.append(next(row["place"] for row in tensors if row["tensor"] == "x"))
    assert sizes == [f"float32[rows={rows}/d, model=32]" for rows in (16, 64)]


WRONG = [
    ("plan nothing", "'nothing' does not name a program", "module:function"),
    ("plan no.module:x", "there is no module 'no.module'", "module:function"),
    ("plan no/file.py:x", "there is no file 'no/file.py'", "check the path"),
    ("plan tests.diff.models:stop --mesh data=4", "has no 'stop'", "did you mean 'step'"),
    ("plan tests.diff.models:PLANS.dat", "has no 'dat'", "did you mean 'data'"),
    ("plan tests.diff.models:B", "is a Dimension, expected a program", "module:function"),
    ("plan tests.diff.models:number", "returned a int, expected a Program", "nm.trace"),
    ("plan tests.diff.models:broken", "raised ValueError: no", "traceback"),
    ("plan tests.diff.models:plan", "needs name", "--set name=..."),
    ("plan tests.diff.models:step", "there is no mesh", "--mesh data=4"),
    ("plan tests.diff.models:step --mesh data", "cannot read 'data'", "data=2"),
    ("plan tests.diff.models:step --mesh data=4 --layout bath:data", "'bath'", "'batch'"),
    ("plan tests.diff.models:step --mesh data=4 --mesh data=2", "given 2 times", "diff"),
    ("plan tests.diff.models:step --set z=1", "has no parameter 'z'", "x, y"),
    ("plan tests.diff.models:step --set z", "cannot read --set 'z'", "name=value"),
    ("plan tests.diff.models:PROGRAM --set z=1", "is not a function", "leave --set out"),
    ("plan tests.diff.models:trace_stack --set scale=1 --set scale=2", "twice", "once"),
    ("plan tests.diff.models:trace_stack --set sizes=1 --set sizes.rows=2",
     "given as a whole", "either"),
    ("plan tests.diff.models:trace_stack --set scale.x=2", "scale is not", "scale=@"),
    ("plan tests.diff.models:trace_stack --set sizes.row=2", "no parameter 'row'", "'rows'"),
    ("plan tests.diff.models:step --mesh data=4 --save no/folder/x", "cannot write", "path"),
    ("diff nothing nothing", "neither a file nor a program", "module:function"),
    ("diff tests/diff/models.py tests/golden/unet.json --mesh a=2",
     "does not name a program", "tests/diff/models.py:function"),
    ("diff tests.diff.models:step --layout batch:data", "with nothing", "--layout"),
    ("diff tests.diff.models:step --layout batch:data --layout hidden:data",
     "there is no mesh", "--mesh"),
    ("diff README.md README.md", "is not a saved plan", "plan.save"),
    ("diff tests/golden/unet.json tests/golden/unet.json --mesh a=2", "both sides are files",
     "leave --mesh out"),
    ("diff tests/golden/unet.json tests/golden/unet.json --fail-if memory>3", "is not known",
     "--target"),
    ("diff tests/golden/unet.json tests/golden/unet.json --fail-if memori>3", "no metric",
     "memory"),
    ("diff tests.diff.models:step --mesh a=1 --mesh a=2 --mesh a=4", "given 3 times",
     "leave"),
    ("cost tests/golden/unet.json --target h200", "a saved plan does not have its ops", "target="),
]  # fmt: skip


@pytest.mark.parametrize(("words", "problem", "fix"), WRONG, ids=[one[0] for one in WRONG])
def test_what_is_wrong_is_said_with_a_fix_and_status_two(words, problem, fix, capsys):
    run(*words.split(), status=2)
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: ") and problem in said.err
    assert fix in said.err.partition("fix: ")[2]


def test_conflicts_are_shown_with_the_line_and_can_be_settled(capsys):
    layout = ["--mesh", "data=4", "--layout", "batch:data, hidden:data"]
    run("plan", STEP, *layout, status=2)
    said = capsys.readouterr().err
    assert "shards dimension batch" in said and "at models.py:" in said
    run("plan", STEP, *layout, "--conflicts", "cheapest")


def test_two_layouts_of_one_program(capsys, tmp_path):
    out = tmp_path / "diff.json"
    run("diff", STEP, *DATA, "--layout", "hidden:data", "--json", str(out))
    printed = capsys.readouterr().out
    assert printed.strip() == str(nm.diff(plan("data"), plan("hidden")))
    document = json.loads(out.read_text())
    expected = plan("data").total_wire_bytes(), plan("hidden").total_wire_bytes()
    assert tuple(document["totals"]["wire_bytes"].values()) == expected
    run("diff", STEP, *DATA, "--layout", "hidden:data", "--all")
    assert " more" not in capsys.readouterr().out
    run("diff", STEP, *DATA, "--params", "", "--params", "model:data")
    assert "AllReduce -> ReduceScatter of d_wi" in capsys.readouterr().out
    run("diff", STEP, "--mesh", "data=4", "--mesh", "data=8", "--layout", "batch:data")
    assert "mesh: Mesh(data=4) -> Mesh(data=8)" in capsys.readouterr().out


def test_conditions_decide_the_exit_status(capsys, tmp_path):
    before = str(tmp_path / "before.json")
    run("plan", STEP, *DATA, "--save", before, "--without-lines")
    hidden = ["--mesh", "data=4", "--layout", "hidden:data"]
    run("diff", before, STEP, *DATA, "--fail-if", "different", "--fail-if", "wire_bytes > +0")
    run("diff", before, STEP, *hidden, "--fail-if", "wire_bytes > +5%")
    capsys.readouterr()
    run("diff", before, STEP, *hidden, "--fail-if", "wire_bytes > 0", "--fail-if", "different",
        "--fail-if", "AllReduce > +0", status=1)  # fmt: skip
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "failed: wire_bytes > 0: 48.0 KiB -> 3.0 KiB (-93.8%)",
        "failed: different: the plans are not the same",
    ]


def test_every_command_helps_with_examples(capsys):
    for name in COMMANDS:
        with pytest.raises(SystemExit) as raised:
            main([name, "--help"])
        assert raised.value.code == 0 and "examples:\n" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    assert all(f"\n    {name}" in printed for name in COMMANDS)
    assert main(["plna"]) == 2
    assert capsys.readouterr().err == (
        "error: namedmesh: there is no 'plna'\n"
        "  fix: did you mean 'plan'?; namedmesh --help prints the options, with examples\n"
    )


def test_planning_from_the_shell_imports_neither_tensorflow_nor_jax(tmp_path):
    code = (
        "import sys; from namedmesh.cli.main import main; status = main(sys.argv[1:]);"
        "print([name for name in ('tensorflow', 'jax') if name in sys.modules]); sys.exit(status)"
    )
    words = ["diff", STEP, *DATA, "--layout", "hidden:data", "--fail-if", "different"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1] == "[]" and "failed: different" in done.stderr


def test_a_reader_that_stops_early_is_no_error():
    words = [sys.executable, "-m", "namedmesh", "diff", STEP, *DATA, "--layout", "hidden:data"]
    done = subprocess.run(
        ["bash", "-c", '"$@" --all --fail-if different | head -n 1; exit ${PIPESTATUS[0]}', "-",
         *words],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stdout.startswith("step on Mesh(data=4)")


def complete(script, *words):
    """What bash offers for the last of some words."""
    code = f"""
source {script}
COMP_WORDS=({" ".join(f"'{word}'" for word in words)})
COMP_CWORD={len(words) - 1}
_shtab_namedmesh
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_bash_completes_commands_options_choices_and_files(capsys, tmp_path):
    pytest.importorskip("shtab", reason="completion needs shtab")
    run("completion", "bash")
    script = tmp_path / "completion.bash"
    script.write_text(capsys.readouterr().out)
    assert complete(script, "namedmesh", "") == [*COMMANDS]
    assert complete(script, "namedmesh", "diff", "--fa") == ["--fail-if"]
    assert complete(script, "namedmesh", "plan", "--conflicts", "") == ["error", "cheapest"]
    assert complete(script, "namedmesh", "diff", "tests/golden/un") == ["tests/golden/unet.json"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script_that_names_the_commands(shell, capsys):
    pytest.importorskip("shtab", reason="completion needs shtab")
    run("completion", shell)
    printed = capsys.readouterr().out
    assert all(name in printed for name in COMMANDS) and "--fail-if" in printed.replace(
        "-l fail-if", "--fail-if"
    )


def test_completion_without_its_library_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    run("completion", "bash", status=2)
    assert "pip install 'namedmesh[completion]'" in capsys.readouterr().err


def test_a_file_of_no_package_is_found_with_what_lies_beside_it(tmp_path, capsys):
    (tmp_path / "beside_it.py").write_text("ROWS = 8\n")
    (tmp_path / "alone.py").write_text(
        "import namedmesh as nm\nfrom beside_it import ROWS\n"
        "R = nm.Dimension('rows', ROWS)\n\n\n"
        "def total(x: nm.spec([R])):\n    return nm.sum(x)\n"
    )
    run("plan", f"{tmp_path}{os.sep}alone.py:total", "--mesh", "d=2", "--layout", "rows:d")
    assert "1 AllReduce" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["help"]])
def test_without_a_command_help_is_printed(words, capsys):
    run(*words)
    printed = capsys.readouterr().out
    assert printed.startswith("usage: namedmesh") and all(name in printed for name in COMMANDS)


def test_help_of_a_command(capsys):
    with pytest.raises(SystemExit) as raised:
        main(["help", "plan"])
    assert raised.value.code == 0 and "usage: namedmesh plan" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["plan", "model.py:train", "--mesh", "data=2", "--layuot", "batch:data"],
            "error: namedmesh plan has no argument --layuot\n  fix: did you mean '--layout'?\n",
        ),
        (
            ["cost", "model.py:train", "--mesh", "data=2"],
            "error: namedmesh cost: the following arguments are required: --target\n"
            "  fix: add --target: tpu-v3, tpu-v5p:4x4x4, h100:32x8, ..., or a YAML file; "
            "namedmesh cost --help prints the options, with examples\n",
        ),
        (
            ["plan", "broken.py:train", "--mesh", "data=2"],
            "error: running broken.py raised SyntaxError: invalid syntax\n"
            "  at broken.py:2: def train(:\n",
        ),
        (["plan", "broken.py"], "error: 'broken.py' does not name a program\n"),
    ],
)
def test_mistakes_are_one_message(words, said, capsys, tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("import namedmesh as nm\ndef train(:\n    pass\n")
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    printed = capsys.readouterr()
    lines = printed.err.splitlines(keepends=True)  # in a shell the line of this test is not there
    error = "".join(line for line in lines if not line.startswith("  at test_commands.py"))
    assert error.startswith(said) and printed.out == ""
    assert "usage:" not in error and "Traceback" not in error


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A file model.py in the working folder, as a new user has one."""
    (tmp_path / "model.py").write_text(
        "import namedmesh as nm\n"
        "B, M = nm.dims('batch=8 model=4')\n\n\n"
        "def train(x=nm.spec([B, M])):\n"
        "    return nm.sum(x)\n\n\n"
        "def predict(x: nm.spec([B, M])):\n"
        "    return nm.sum(x)\n\n\n"
        "def plain(x):\n"
        "    return nm.sum(x)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "model", raising=False)
    yield
    sys.modules.pop("model", None)


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("reference", ["model.py:train", "model:train", "./model.py:predict"])
def test_a_file_in_the_working_folder(reference, capsys):
    run("plan", reference, "--mesh", "data=4", "--layout", "batch:data")
    assert "1 AllReduce" in capsys.readouterr().out


@pytest.mark.usefixtures("model")
def test_inputs_may_be_described_by_an_option(capsys):
    words = ["--mesh", "data=4", "--layout", "batch:data"]
    run("plan", "model.py:plain", "--spec", "x=batch=8 model=4 bfloat16", *words)
    printed = capsys.readouterr().out
    assert "1 AllReduce" in printed and "bfloat16[batch=8/data, model=4]" in printed
    run("plan", "model.py:plain", *words, status=2)
    assert "--spec 'x=batch=8 model=4'" in capsys.readouterr().err
    run("plan", "model.py:plain", "--spec", "x", *words, status=2)
    assert "cannot read --spec 'x'" in capsys.readouterr().err
    run("plan", "model.py:train", status=2)
    assert "fix: add e.g. --mesh data=4,model=2" in capsys.readouterr().err


def test_the_doctor_names_what_is_there_and_what_is_missing(capsys, monkeypatch):
    monkeypatch.setenv("NAMEDMESH_PARTITIONER", "gspmd")
    run("doctor")
    printed = capsys.readouterr().out
    assert "✓  Python" in printed and "$NAMEDMESH_PARTITIONER" in printed
    requires = ["jax<0.13,>=0.10", "numpy>=2", 'tensorflow==2.21.*; extra == "tensorflow"']
    monkeypatch.setattr(doctor.importlib.metadata, "requires", lambda name: requires)
    monkeypatch.setattr(
        doctor, "_version_of", lambda name: {"jax": "0.5.1", "tensorflow": ""}.get(name, "99")
    )
    run("doctor", "--json", status=1)
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["jax"]["ok"] is False and rows["jax"]["found"] == "0.5.1, supported: <0.13,>=0.10"
    assert rows["jax"]["fix"] == "pip install 'jax<0.13,>=0.10'"
    assert rows["tensorflow"]["ok"] is None and "namedmesh[tensorflow]" in rows["tensorflow"]["fix"]
    assert rows["numpy"]["ok"] is True and rows["devices"]["found"].endswith("cpu: cpu")
