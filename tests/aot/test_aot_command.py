"""The command that compiles Artifacts ahead of time, and what it refuses."""

# pyright: reportArgumentType=false, reportOptionalMemberAccess=false
# pyright: reportOptionalOperand=false, reportOptionalIterable=false

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

import namedmesh as nm
from namedmesh.aot import (
    Target,
    Torus,
    compilation,
    compile_for,
)
from namedmesh.cli import aot_command
from namedmesh.cli.main import main
from namedmesh.hardware.assignment import assign_devices, traffic_of
from namedmesh.runtime.compiling import lower_step
from tests.aot.stack import B, M
from tests.runtime.blocked import BLOCK


def test_the_command_needs_no_tensorflow(artifact, tmp_path):
    artifact.save(tmp_path / "one.nmesh")
    artifact.save(tmp_path / "two.nmesh")
    code = BLOCK + "from namedmesh.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    files = [str(tmp_path / name) for name in ("one.nmesh", "two.nmesh")]
    options = ["--target", "cpu:8", "--json", str(tmp_path / "out.json")]
    done = subprocess.run(
        [sys.executable, "-c", code, "aot", *files, *options],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "one on cpu:8, 8 cores" in done.stdout and "two on cpu:8" in done.stdout
    assert [row["model"] for row in json.loads((tmp_path / "out.json").read_text())] == [
        "one",
        "two",
    ]


def test_the_command_goes_on_after_an_artifact_that_does_not_compile(artifact, tmp_path, capsys):
    artifact.save(tmp_path / "good.nmesh")
    other = nm.export(nm.trace(lambda x: nm.sin(x), nm.spec([B])), nm.Mesh(all=2), "batch:all")
    other.save(tmp_path / "small.nmesh")
    out = tmp_path / "out.json"
    paths = [str(tmp_path / "small.nmesh"), str(tmp_path / "good.nmesh")]
    assert main(["aot", *paths, "--target", "cpu:8", "--json", str(out)]) == 2
    rows = json.loads(out.read_text())
    assert [(row["fits"], row["error"]) for row in rows] == [
        (None, "<lambda> is planned for 2 devices, and cpu:8 has 8"),
        (True, None),
    ]
    assert {
        "peak_bytes",
        "hbm_bytes",
        "flops_per_core",
        "compile_seconds",
        "collectives_match_plan",
        "weights",
    } <= rows[0].keys()
    said = capsys.readouterr().err
    assert (
        said.startswith(f"{paths[0]}: <lambda> is planned for 2 devices")
        and "fix: use --target cpu:2" in said
    )


def test_the_command_goes_on_after_an_artifact_that_cannot_be_read(artifact, tmp_path, capsys):
    good, bad, gone = (str(tmp_path / f"{name}.nmesh") for name in ("good", "bad", "gone"))
    artifact.save(good)
    pathlib.Path(bad).write_bytes(b"not an artifact")
    out = tmp_path / "out.json"
    assert main(["aot", bad, gone, good, "--target", "cpu:8", "--json", str(out)]) == 2
    rows = json.loads(out.read_text())
    assert [(row["model"], row["artifact"], row["fits"]) for row in rows] == [
        ("bad", bad, None),
        ("gone", gone, None),
        ("good", good, True),
    ]
    assert "is not a namedmesh artifact" in rows[0]["error"]
    assert "cannot read artifact" in rows[1]["error"] and rows[1]["weights"] is None
    assert capsys.readouterr().out.startswith("good on cpu:8, 8 cores")


def test_a_fault_of_the_compiler_loses_no_other_report(artifact, tmp_path, capsys, monkeypatch):
    paths = [str(tmp_path / name) for name in ("one.nmesh", "two.nmesh")]
    for path in paths:
        artifact.save(path)
    out = tmp_path / "out.json"

    def fail_once(artifact, target, name, **choices):
        rows = json.loads(out.read_text())
        assert len(rows) == 2 and rows[1]["error"] == "not compiled yet", "never left empty"
        if name == "one":
            raise KeyError("a fault")
        return compile_for(artifact, target, name=name, **choices)

    monkeypatch.setattr(aot_command, "compile_for", fail_once)
    assert main(["aot", *paths, "--target", "cpu:8", "--json", str(out)]) == 2
    rows = json.loads(out.read_text())
    assert [(row["model"], row["error"]) for row in rows] == [
        ("one", "KeyError: 'a fault'"),
        ("two", None),
    ]
    assert "KeyError" in capsys.readouterr().err


def test_the_command_takes_either_partitioner(artifact, tmp_path, monkeypatch):
    path, out = str(tmp_path / "one.nmesh"), tmp_path / "out.json"
    artifact.save(path)
    used, rows = [], []

    def note(artifact, devices, partitioner):
        used.append(partitioner)
        return lower_step(artifact, devices, partitioner)

    monkeypatch.setattr(compilation, "lower_step", note)
    for name in ("gspmd", "shardy"):
        command = ["aot", path, "--target", "cpu:8", "--json", str(out), "--partitioner", name]
        assert main(command) == 0
        rows += json.loads(out.read_text())
    assert used == ["gspmd", "shardy"]
    assert rows[0]["collectives"] == rows[1]["collectives"]
    assert all(row["collectives_match_plan"] for row in rows)


def test_the_assignment_for_the_torus_is_saved_and_used_by_a_run(
    artifact, tmp_path, capsys, monkeypatch
):
    """CPU devices stand for a TPU: they lie where its cores would."""
    source, out = str(tmp_path / "a.nmesh"), str(tmp_path / "b.nmesh")
    artifact.save(source)
    target = Target.parse("tpu-v3:2x2")
    torus = Torus.of_target(target)
    # A torus listed in another order, so that the listed order is not the best one.
    order = [0, 7, 2, 5, 4, 3, 6, 1]
    mixed = dataclasses.replace(
        torus,
        places=tuple(torus.places[i] for i in order),
        cores=tuple(torus.cores[i] for i in order),
    )
    monkeypatch.setattr(compilation, "devices_of", lambda target: jax.devices())
    monkeypatch.setattr(Torus, "of_devices", lambda devices, target: mixed)
    monkeypatch.setattr(aot_command, "prepare_target", lambda target: None)
    assert main(["aot", source, "--target", str(target), "--save", out]) == 0
    assert f"saved with this device assignment as {out}" in capsys.readouterr().out
    saved = nm.Artifact.load(out)
    chosen = assign_devices(artifact.mesh, mixed, traffic_of(artifact.collectives))
    assert saved.mesh.device_assignment == chosen.order != tuple(range(8))
    assert chosen.hops is not None and chosen.listed_hops is not None
    assert chosen.hops < chosen.listed_hops
    assert saved == artifact.with_device_assignment(chosen.order)

    plain, moved = nm.runtime.Executable(artifact), nm.runtime.load(out)
    assert [device.id for device in moved.mesh.devices.flat] == [
        jax.devices()[i].id for i in chosen.order
    ]
    x = np.random.default_rng(0).normal(size=(B.size, M.size)).astype(np.float32)
    one, loss = plain(plain.init(3), x)
    other, same_loss = moved(moved.init(3), x)
    assert float(loss) == float(same_loss)
    for name in one:
        np.testing.assert_array_equal(np.asarray(one[name]), np.asarray(other[name]))
        assert other.arrays[name].sharding.is_equivalent_to(
            moved.sharding(moved.variables[name]), other.arrays[name].ndim
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "cpu:8", "--save", "{0}/out.nmesh"], "target cpu:8 has no torus"),
        (["{0}/a.nmesh", "--target", "tpu-v3:2x2", "--save", "{0}/o.nmesh"], "writes one artifact"),
        (["--target", "tpu-v3:2x2", "--save", "{0}/a.nmesh"], "is one of the artifacts"),
        (["--target", "tpu-v3:2x2", "--save", "{0}/no/o.nmesh"], "its folder is not there"),
    ],
)
def test_a_save_that_makes_no_sense_is_refused(arguments, message, artifact, tmp_path, capsys):
    artifact.save(tmp_path / "a.nmesh")
    given = [text.format(tmp_path) for text in ("{0}/a.nmesh", *arguments)]
    assert main(["aot", *given]) == 2
    assert message in capsys.readouterr().err


def test_the_command_is_a_module_too(artifact, tmp_path):
    artifact.save(tmp_path / "one.nmesh")
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-m", "namedmesh.aot", str(tmp_path / "one.nmesh"), "--target", "cpu:8"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("one on cpu:8, 8 cores, Mesh(data=2, model=4): compiles")


def test_a_report_that_cannot_be_written_is_told_before_anything_is_compiled(
    artifact, tmp_path, capsys, monkeypatch
):
    path = str(tmp_path / "good.nmesh")
    artifact.save(path)
    monkeypatch.setattr(aot_command, "compile_for", lambda *_, **__: pytest.fail("compiled"))
    refused = {
        "/nowhere/x.json": "cannot write --json",
        str(tmp_path): "cannot write",
        path: "is one of",
        "": "--json ''",
    }
    for out, message in refused.items():
        assert main(["aot", path, "--target", "cpu:8", "--json", out]) == 2
        assert message in capsys.readouterr().err
    assert nm.Artifact.load(path).digest == artifact.digest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.nmesh", "--target", "cpu:8"], "cannot read artifact"),
        (["a.nmesh", "--target", "cpu"], "as a target"),
    ],
)
def test_the_command_refuses_what_it_cannot_read(arguments, message, capsys):
    assert main(["aot", *arguments]) == 2
    assert message in capsys.readouterr().err
