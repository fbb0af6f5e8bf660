"""The benchmark of the paper's models on TPU v3: cases, files, table and plots, no compiler."""

import json

import pytest

from benchmarks import tpu_v3
from namedmesh.errors.errors import NamedMeshError
from namedmesh.hardware.topology import Target
from namedmesh.layers import config


def row(case: tpu_v3.Case, fits: bool = True) -> dict:
    """A made-up result."""
    made = {
        "model": case.name,
        "cores": case.experts,
        "weights": 10**9 * case.layers,
        "fits": fits,
        "hbm_bytes": 16 * 2**30,
    }
    made |= {
        "peak_bytes": 2**30 * case.layers,
        "flops_per_core": 1e12,
        "compile_seconds": 2.5,
        "collectives_match_plan": True,
    }
    made["memory"] = dict.fromkeys(
        ("weights", "state", "inputs", "results", "activations", "temporaries", "code"), 2**30
    )
    stated = {
        "experts": case.experts,
        "layers": case.layers,
        "dtype": case.dtype,
        "remat": case.remat,
        "error": None,
    }
    return {**made, **stated}


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(tpu_v3, "RESULTS", tmp_path)
    return tmp_path


def test_cases_are_the_papers_models_on_as_many_cores_as_experts():
    for case in tpu_v3.CASES.values():
        assert Target.parse(tpu_v3.TARGETS[case.experts]).cores == case.experts
        assert config(f"moe_{case.experts}e_12l").but(layers=case.layers).experts == case.experts
    tokens = {
        name: tpu_v3.CASES[name].tokens
        for name in ("moe_128e_12l", "moe_512e_12l", "moe_2048e_12l")
    }
    assert tokens == {"moe_128e_12l": 2**20, "moe_512e_12l": 2**20, "moe_2048e_12l": 2**22}
    assert {case.tokens // case.experts for case in tpu_v3.SCALING} == {2048}


def test_rows_go_into_their_file_in_the_order_of_the_cases(results):
    wanted = ["moe_2048e_36l", "moe_128e_12l_scaling", "moe_128e_12l"]
    for name in wanted:
        tpu_v3.record(row(tpu_v3.CASES[name], fits=False), tpu_v3.CASES[name])
    tpu_v3.record(row(tpu_v3.CASES["moe_2048e_36l"]), tpu_v3.CASES["moe_2048e_36l"])
    family = json.loads((results / "family.json").read_text())
    assert [(one["model"], one["fits"]) for one in family] == [
        ("moe_128e_12l", False),
        ("moe_2048e_36l", True),
    ]
    assert [one["model"] for one in json.loads((results / "scaling.json").read_text())] == [
        "moe_128e_12l_scaling"
    ]


def test_the_table_and_the_plots_are_made_of_what_is_there(results, capsys):
    for case in tpu_v3.CASES.values():
        tpu_v3.record(row(case), case)
    broken = tpu_v3.CASES["moe_2048e_60l"]
    unknown = dict.fromkeys(
        ("peak_bytes", "hbm_bytes", "flops_per_core", "compile_seconds", "collectives_match_plan")
    )
    refused = {**row(broken, fits=False), **unknown}
    del refused["memory"]
    tpu_v3.record(refused, broken)
    tpu_v3.draw()
    lines = capsys.readouterr().out.splitlines()
    assert "| moe_128e_12l | 128 | 12.0 B | 12.00 of 16.00 | yes | 1.00 | 2.5 | yes |" in lines
    assert "| moe_2048e_60l | 2,048 | 60.0 B | - | no | - | - | - |" in lines
    assert {path.name for path in results.glob("*.png")} == {"memory.png", "scaling.png"}


def test_a_case_that_is_not_there_is_named(tmp_path):
    with pytest.raises(NamedMeshError, match="there is no case 'moe_128e_13l'"):
        tpu_v3.main(["export", str(tmp_path), "moe_128e_13l"])


def test_without_its_artifact_or_the_compiler_nothing_is_recorded(results, tmp_path, monkeypatch):
    with pytest.raises(NamedMeshError, match=r"is not there\n[\s\S]*export .* moe_128e_12l"):
        tpu_v3.main(["compile", str(tmp_path), "moe_128e_12l"])

    def absent(target):
        raise NamedMeshError("no libtpu", fix="install it")

    monkeypatch.setattr("namedmesh.aot.absent_devices.devices_of", absent)
    monkeypatch.setattr("namedmesh.artifacts.artifact.Artifact.load", lambda path: None)
    (tmp_path / "moe_128e_12l.nmesh").touch()
    with pytest.raises(NamedMeshError, match="no libtpu"):
        tpu_v3.main(["compile", str(tmp_path), "moe_128e_12l"])
    assert not (results / "family.json").exists()


def test_recorded_results_have_every_key():
    keys = {"model", "cores", "weights", "fits", "peak_bytes", "hbm_bytes", "flops_per_core",
            "compile_seconds", "collectives_match_plan", "error"}  # fmt: skip
    for name, cases in (("family.json", tpu_v3.FAMILY), ("scaling.json", tpu_v3.SCALING)):
        rows = tpu_v3.read(tpu_v3.RESULTS / name)
        assert [one["model"] for one in rows] == [case.name for case in cases]
        assert all(keys <= one.keys() for one in rows)
