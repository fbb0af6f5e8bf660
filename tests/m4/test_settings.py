"""Settings: what does not fit a run, is unknown or is missing is said before anything is done."""

import dataclasses
import re
import subprocess
import sys

import pytest

from examples.m4.flags import MODEL_HELP, describe_default
from examples.m4.run import Run
from examples.m4.settings import DIMENSIONS, PRESETS, Settings, preset
from namedmesh.errors.errors import NamedMeshError
from namedmesh.layers import Config
from tests.m4.runs import ROOT, copied, run


def said(error) -> str:
    return str(error.value)


def start(started, settings: Settings) -> Settings:
    return Run(started).start(settings, "")


def test_every_flag_has_a_help_text_of_its_own():
    done = subprocess.run(
        [sys.executable, "-m", "examples.m4", "--help"], cwd=ROOT, capture_output=True, text=True
    )
    fields = [field.name for owner in (Settings, Config) for field in dataclasses.fields(owner)]
    entries = re.split(r"\n  --(?:\[no\])?(\w+): ", done.stdout)[1:]
    texts = {name: " ".join(text.split()) for name, text in zip(*[iter(entries)] * 2, strict=True)}
    assert {*fields} <= {*texts}
    assert len({*texts.values()}) == len(texts) and min(map(len, texts.values())) > 12
    assert texts["rows"].startswith("packed rows in a batch")
    assert {*MODEL_HELP} == {field.name for field in dataclasses.fields(Config)}


def test_the_dimensions_that_a_layout_can_place_are_those_of_the_programs():
    from examples.m4.bilingual.programs import trace_evaluate
    from examples.m4.programs import PROGRAMS

    variants = ({}, {"positions": "relative"}, {"positions": "learned"})
    programs = [
        trace(preset("tiny").but(**changes)) for changes in variants for trace in PROGRAMS.values()
    ]
    programs.append(trace_evaluate(preset("tiny_dense").but(languages="de,fr")))
    piped = preset("tiny").but(layers=8, stages=2, microbatches=2)
    programs.append(PROGRAMS["evaluate"](piped))
    names = {name for program in programs for name in program.dims}
    resting = {name for program in programs for name in program.resting_dims}
    assert resting <= {*DIMENSIONS} <= names


@pytest.mark.parametrize("flag", ["layout", "params"])
def test_a_layout_that_names_no_dimension_of_the_model_is_an_error(flag):
    with pytest.raises(NamedMeshError) as error:
        preset("tiny").but(**{flag: "grup:all, hiden:all, expert:all"})
    assert error.value.problem == f"--{flag} names 'grup', 'hiden', which no model has"
    assert error.value.fix == "did you mean 'group'?"
    preset("tiny_dense").but(**{flag: "expert:all"})  # though it has no experts


def test_every_value_out_of_range_is_reported_at_once():
    with pytest.raises(NamedMeshError) as error:
        preset("tiny").but(rows=0, beam=-1)
    assert error.value.problem == "rows=0, beam=-1"


@pytest.mark.parametrize("name", PRESETS)
def test_settings_are_the_same_from_their_file(name):
    assert Settings.from_json(preset(name).to_json()) == preset(name)


def test_the_same_settings_go_on_with_the_sizes_of_the_vocabularies(started):
    found = start(started, preset("tiny"))
    assert found == Run(started).settings
    sizes = found.model.source_vocab, found.model.target_vocab
    assert sizes != (400, 400) and all(size % 64 == 0 for size in sizes)


@pytest.mark.parametrize(
    "changes, problem, detail",
    [
        ({"rows": 16}, "rows", "rows: 8 there, 16 here"),
        ({"seed": 3}, "seed", "seed: 0 there, 3 here"),
        ({"languages": "qaa"}, "languages", "languages: '' there, 'qaa' here"),
        (
            {"hidden": 128, "optimizer": "adafactor"},
            "optimizer, hidden",
            "optimizer: 'adam' there, 'adafactor' here",
        ),
        ({"experts": 4}, "experts", "experts: 8 there, 4 here"),
    ],
)
def test_settings_that_do_not_fit_the_run_are_an_error(started, changes, problem, detail):
    with pytest.raises(NamedMeshError) as error:
        start(started, preset("tiny").but(**changes))
    assert f"is a run with other settings: {problem}\n  {detail}\n" in said(error)
    assert Run(started).settings.but(**changes) != Run(started).settings


def test_how_it_is_computed_and_how_long_may_change(started, tmp_path):
    folder = copied(started, tmp_path / "run")
    free = {
        "steps": 99,
        "learning_rate": 0.5,
        "mesh": "all=2",
        "remat": "full",
        "dispatch": "einsum",
        "evaluation_capacity_factor": 4.0,
        "evaluation_second": "none",
        "decoding_capacity_factor": 2.0,
        "save_every": 1,
    }
    chosen = start(folder, preset("tiny").but(**free))
    assert Run(folder).settings == Run(started).settings, "until they are known to work"
    Run(folder).save_settings(chosen)
    assert chosen == Run(folder).settings
    assert (
        dataclasses.asdict(Run(folder).settings).items() >= {"steps": 99, "mesh": "all=2"}.items()
    )


def test_an_unknown_preset_has_a_suggestion():
    with pytest.raises(
        NamedMeshError, match=r"there is no preset 'tinny'\n.*\n.*did you mean 'tiny'"
    ):
        preset("tinny")


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"optimizer": "sgd"}, "optimizer='sgd' is not a choice"),
        ({"rows": 0}, "rows=0"),
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"learning_rate": float("nan")}, "learning_rate=nan"),
        ({"wings": 2}, "a configuration has no 'wings'"),
        ({"dropout": 1.0}, "dropout=1.0"),
    ],
)
def test_a_value_out_of_range_is_an_error(changes, problem):
    with pytest.raises(NamedMeshError) as error:
        preset("tiny").but(**changes)
    assert problem in said(error)


def test_a_damaged_settings_file_is_an_error(started, tmp_path):
    folder = copied(started, tmp_path / "run")
    (folder / "settings.json").write_text('{"preset": "tiny"')
    with pytest.raises(NamedMeshError, match=r"settings\.json cannot be read"):
        start(folder, preset("tiny"))


@pytest.mark.parametrize(
    "command, flags, problem",
    [
        ("trian", {}, "error: 'trian' is not a command\n"),
        ("train", {"preset": "tinny"}, "flag --preset=tinny: value should be one of"),
        ("train", {"router": "dice"}, "flag --router=dice: value should be one of"),
        ("train", {"preset": "tiny", "rows": "many"}, "flag --rows=many"),
        ("train", {"preset": "tiny", "layers": 5}, "error: a model of 5 layers cannot be halved"),
        ("evaluate", {}, "is not a run: it has no settings.json"),
        ("translate", {}, "is not a run: it has no settings.json"),
    ],
)
def test_a_mistake_on_the_command_line_is_said_in_words(tmp_path, command, flags, problem):
    done = run(command, tmp_path / "run", flags, blocked=True)
    assert done.returncode == 1
    assert problem in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_other_settings_for_a_run_are_said_in_words(started):
    done = run("translate", started, {"preset": "tiny_dense"}, blocked=True)
    assert done.returncode == 1
    assert (
        "is a run with other settings: experts, hidden\n  experts: 8 there, 0 here\n" in done.stderr
    )
    assert "fix: use the settings of the run, or name another folder with --run" in done.stderr


def test_a_missing_artifact_without_tensorflow_is_an_error(started):
    done = run("train", started, {"preset": "tiny"}, blocked=True)
    assert done.returncode == 1
    assert "is missing, and making it needs TensorFlow" in done.stderr
    assert "mesh: all=4; layout: group:all, expert:all" in done.stderr
    assert "fix: make it with `export`" in done.stderr and "Traceback" not in done.stderr


def test_groups_that_no_batch_can_make_are_refused_with_a_divisor_of_all():
    tiny = preset("tiny")  # 8 rows of 64 and 48 tokens; 8 translations of 16
    with pytest.raises(
        NamedMeshError, match=r"source: 512 tokens\n(.*\n)*.*choose a divisor of 128"
    ):
        tiny.but(group_tokens=512)
    assert tiny.but(group_tokens=128).model.group_tokens == 128
    with pytest.raises(NamedMeshError, match="choose a divisor of 384"):
        tiny.but(group_tokens=512, expert_sides="decoder")
    assert tiny.but(group_tokens=512, experts=0).model.experts == 0


def test_help_has_the_default_of_every_hyperparameter_in_every_preset():
    for owner in (Settings, Config):
        for field in dataclasses.fields(owner):
            if owner is Settings and field.name in ("preset", "model"):
                continue
            text = describe_default(owner, field.name)
            for name in ("small", "tiny", "base", "moe_512e_12l"):
                holder = PRESETS[name] if owner is Settings else PRESETS[name].model
                value = getattr(holder, field.name)
                shown = {"": "empty", "None": "none", "True": "on", "False": "off"}
                assert shown.get(str(value), str(value)) in text, (name, text)
    assert describe_default(Config, "k") == "default: 2"
    assert describe_default(Config, "model") == (
        "default: 64 in small, 32 in tiny, 512 in base, 1024 in the paper's"
    )
    assert describe_default(Settings, "beam") == (
        "default: 4 in small, base and the paper's, 2 in tiny"
    )


def test_the_same_data_may_be_written_in_another_way(started, corpus, monkeypatch):
    monkeypatch.chdir(corpus.parent)
    for data in (f"{corpus}/", corpus.name):
        Run(started).start(Run(started).settings, data)
    with pytest.raises(NamedMeshError, match="a run on other data"):
        Run(started).start(Run(started).settings, str(corpus.parent))
