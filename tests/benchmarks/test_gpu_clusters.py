"""The benchmark of models on clusters of GPUs: cases, rows and the page of them, no compiler."""

import argparse
import json
import sys

from benchmarks import gpu_clusters, gpu_versions
from benchmarks.gpu_cluster_cases import CASES
from namedmesh.dims.mesh import Mesh


def test_cases_have_as_many_gpus_as_their_meshes():
    for case in CASES.values():
        assert Mesh.parse(case.mesh).devices == case.gpus
    assert len({case.model for case in CASES.values()}) >= 10
    assert sum(case.gpus == 2048 for case in CASES.values()) >= 6


def test_rows_are_kept_in_the_order_of_the_cases_and_failures_do_not_stop_the_others(
    tmp_path, monkeypatch, capsys
):
    first, second, third = list(CASES)[:3]
    row = {
        "weights": 8e9, "peak_gib": 2.5, "hbm_gib": 80.0, "compile_seconds": 3.0, "fits": True,
        "collectives": 5, "as_planned": 5, "unplanned": 0, "not_made": 0, "different": 0,
        "params": None, "layout": "batch:data", "jax": "0.10.2",
    }  # fmt: skip

    def run(command, timeout, **_):
        name, part = command[5], command[-1]
        if name == second:
            raise gpu_clusters.subprocess.TimeoutExpired(command, timeout)
        case = CASES[name]
        made = {"model": case.model, "target": case.target, "mesh": case.mesh}
        wrong = {"not_made": 2, "as_planned": 3} if name == first else {}
        with open(part, "w") as file:
            json.dump(row | made | wrong, file)

    monkeypatch.setattr(gpu_clusters.subprocess, "run", run)
    path = tmp_path / "rows" / "clusters.json"
    options = argparse.Namespace(folder=tmp_path, json=path, jobs=1, limit=9.0, partitioner=None)
    assert not gpu_clusters.compile_all([third, second, first], options)
    said = capsys.readouterr().out
    assert f"exact: {third}" in said and f"FAILED: {second}" in said
    assert f"NOT as planned: {first}" in said
    meshes = [one["mesh"] for one in json.loads(path.read_text())]
    assert meshes == [CASES[first].mesh, CASES[third].mesh]
    there = tmp_path / "elsewhere"
    for name, exact in ((first, False), (third, True)):
        there.mkdir(exist_ok=True)
        seconds = {"exact": exact, "compile_seconds": 1.25, "jax": "0.11.2"}
        (there / f"{name}.plain.json").write_text(json.dumps(seconds))
    for action in (["seconds", str(there), "--machine", "16 cores"], ["table"]):
        monkeypatch.setattr(sys, "argv", ["gpu_clusters", *action, "--json", str(path)])
        gpu_clusters.main()
    page = (path.parent / "README.md").read_text()
    assert (
        "1 of 2 rows are exactly as planned" in page
        and "2.5 of 80.0 | 3.0 | 1.2 | 5 | all |" in page
    )
    assert "2.5 of 80.0 | 3.0 |  | 5 | 3 |" in page  # of a row that is not exact there
    assert "those of jax 0.11.2 on 16 cores, of 1 rows" in page


def test_differences_between_versions_are_told():
    common = {
        "step": "s", "model": "m", "parallelism": "FSDP", "gpus": 64, "mesh": "data=64",
        "collectives": 2, "unplanned": 0, "not_made": 0, "different": 0, "peak_gib": 1.5,
        "problems": [], "made": {"AllReduce": 2}, "partitioner": "gspmd", "rules": {},
    }  # fmt: skip
    same = [common | {"jax": version} for version in ("0.10.2", "0.11.2")]
    assert "2, exact, 1.5 | 2, exact, 1.5 | nothing |" in gpu_versions.format_table(same)
    assert "2 of 2 compiles are exactly as planned" in gpu_versions.format_table(same)
    other = {"jax": "0.12.0", "not_made": 1, "problems": ["not made"], "made": {"AllReduce": 1}}
    table = gpu_versions.format_table([*same, common | other])
    assert "1, NOT as planned, 1.5" in table and "2 of 3 compiles" in table
    assert (
        "| AllReduce: 2 by 0.10.2 and 0.11.2, 1 by 0.12.0<br>not as planned: 0 by 0.10.2" in table
    )
    shardy = {"jax": "0.11.2", "partitioner": "shardy", "peak_gib": 1.25}
    table = gpu_versions.format_table([*same, common | shardy])
    assert "| GiB: 1.5 by 0.10.2 and 0.11.2 gspmd, 1.25 by 0.11.2 shardy |" in table
