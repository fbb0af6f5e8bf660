"""A GPU of this machine: when kernels are tuned on it, and what reports say."""

import os
import re
from types import SimpleNamespace

import jax
import pytest

from namedmesh.aot import Target, absent_devices, compile_for, local_gpu
from namedmesh.jax_internals import find_gpu_compiler


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with a GPU, jax's CUDA plugin or not, and jax started or not."""
    asked = []

    def pretend(name, plugin=True, started=False):
        driver = tmp_path / "nvidia-smi"
        driver.write_text(f"#!/bin/sh\necho '{name}'\necho '{name}'\n")
        driver.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("JAX_PLATFORMS", raising=False)
        monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        monkeypatch.setenv("XLA_FLAGS", "--xla_dump_max_hlo_modules=1")
        local_gpu.find_local_gpu.cache_clear()
        found = lambda one: object() if plugin and one == "jax_cuda12_plugin" else None
        monkeypatch.setattr(local_gpu.importlib.util, "find_spec", found)
        monkeypatch.setattr(local_gpu, "devices_are_fixed", lambda: started)
        monkeypatch.setattr(local_gpu, "simulate_gpus", asked.append)
        return asked

    yield pretend
    local_gpu.find_local_gpu.cache_clear()


@pytest.mark.parametrize(
    ("name", "target", "topologies"),
    [
        ("NVIDIA H200", "h200:32x8", ["32x8x1"]),
        ("NVIDIA H100 80GB HBM3", "h100:1x8", ["1x8x1"]),
        ("NVIDIA H100 PCIe", "h100:1x8", []),  # another board
        ("NVIDIA H200", "h100:1x8", []),
        ("NVIDIA GB200", "b200:1x8", []),
    ],
)
def test_a_gpu_of_the_same_kind_tunes(machine, name, target, topologies):
    asked = machine(name)
    assert local_gpu.start_tuning(Target.parse(target)) == bool(topologies)
    assert asked == topologies
    flags = "--xla_dump_max_hlo_modules=1" + " --xla_gpu_shard_autotuning=false" * len(topologies)
    assert os.environ["XLA_FLAGS"] == flags


@pytest.mark.parametrize("case", [{"plugin": False}, {"started": True}])
def test_it_takes_the_plugin_and_a_new_process(machine, case):
    asked = machine("NVIDIA H200", **case)
    assert not local_gpu.start_tuning(Target.parse("h200:32x8")) and not asked
    reason = {"plugin": r"pip install 'jax\[cuda12\]'", "started": "jax had started before"}
    said = local_gpu.describe_tuning(Target.parse("h200:32x8"), [object()])
    assert re.search(reason[next(iter(case))], said)


@pytest.mark.parametrize("variable", ["CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS"])
def test_a_hidden_gpu_is_not_used(machine, monkeypatch, variable):
    asked = machine("NVIDIA H200")
    monkeypatch.setenv(variable, {"JAX_PLATFORMS": "cpu"}.get(variable, ""))
    assert not local_gpu.start_tuning(Target.parse("h200:32x8")) and not asked


def test_the_devices_that_jax_started_with_are_taken(machine, monkeypatch):
    machine("NVIDIA H200")
    make = lambda i: SimpleNamespace(platform="gpu", device_kind="NVIDIA H200", process_index=i)
    here = [make(i) for i in reversed(range(16))]
    monkeypatch.setattr(jax, "devices", lambda *_: here)
    monkeypatch.setattr(absent_devices, "load_gpu_compiler", lambda library: None)
    monkeypatch.setattr(absent_devices, "find_gpu_compiler", lambda: "plugin.so")
    absent_devices._gpu_devices.cache_clear()
    target = Target.parse("h200:2x8")
    devices = absent_devices._gpu_devices(target)
    assert [one.process_index for one in devices] == [*range(16)]
    said = local_gpu.describe_tuning(target, devices)
    assert said == "kernels tuned on this machine's NVIDIA H200"
    assert not local_gpu.list_tuning(Target.parse("h200:4x8"))  # jax has others by now
    absent_devices._gpu_devices.cache_clear()


@pytest.mark.skipif(find_gpu_compiler() is None, reason="XLA's GPU compiler is not here")
def test_a_report_says_that_nothing_was_tuned(artifact):
    report = compile_for(artifact, "h100:1x8")
    assert report.tuning.startswith("kernels not tuned") and report.tuning in str(report)
    assert report.row()["tuning"] == report.tuning
