"""The runtime alone: an Artifact saved here runs in a process that cannot import TensorFlow."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import namedmesh as nm
from benchmarks.moe import Sizes, program
from namedmesh.ir.context import import_tensorflow
from tests.runtime.blocked import BLOCK


def run(code: str, *arguments: str) -> str:
    """The output of a fresh Python in which TensorFlow cannot be imported."""
    environment = {**os.environ, "NAMEDMESH_STRICT": "1"}
    # The same code generation, for equal numbers; the devices are its own affair.
    flags = os.environ.get("XLA_FLAGS", "").split()
    environment["XLA_FLAGS"] = " ".join(flag for flag in flags if "device_count" not in flag)
    done = subprocess.run(
        [sys.executable, "-c", BLOCK + code, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_importing_the_runtime_imports_no_tensorflow():
    heavy = "[m for m in sys.modules if m.split('.')[0] in ('tensorflow', 'keras')]"
    code = f"import namedmesh.runtime; print({heavy})"
    assert run(code).strip() == "[]"
    assert "namedmesh.ops" not in run("import namedmesh.runtime; print(list(sys.modules))")


RUN = """
import numpy as np
from namedmesh.runtime import load
step = load(sys.argv[1])
given = np.load(sys.argv[2])
state = step.init(5)
_, out = step(state, given["x"], given["dy"])
np.savez(sys.argv[3], **{name: np.asarray(value) for name, value in out.items()})
print(step.audit.exact, len(step.mesh.devices.flat))
"""


@pytest.mark.parametrize("layout", ["group:all, expert:all", "hidden:all"])
def test_an_artifact_runs_in_another_process(tmp_path, layout):
    traced = program(Sizes(seq=16, model=16, hidden=32))
    step = nm.compile(traced, mesh=nm.Mesh(all=8), layout=layout)
    step.artifact.save(tmp_path / "layer.nmesh")
    rng = np.random.default_rng(1)
    inputs: dict[str, Any] = {
        name: rng.normal(size=spec.shape.sizes).astype(np.float32)
        for name, spec in traced.specs.items()
    }
    np.savez(tmp_path / "in.npz", **inputs)
    printed = run(
        RUN, str(tmp_path / "layer.nmesh"), str(tmp_path / "in.npz"), str(tmp_path / "out.npz")
    )
    assert printed.split() == ["True", "8"]
    _, wanted = step(step.init(5), **inputs)
    with np.load(tmp_path / "out.npz") as got:
        for name, value in wanted.items():
            np.testing.assert_array_equal(got[name], np.asarray(value))


FLIGHT = """
import numpy as np
from namedmesh.runtime import load
step = load(sys.argv[1])
state = step.init(0)
for _ in range(300):
    state, out = step(state, np.ones((8, 16), np.float32))
print(float(np.asarray(out).sum()) > 0)
"""


def test_many_steps_in_a_row_never_deadlock(tmp_path):
    B, M = nm.dims("batch=8 model=16")

    def step(x):
        w = nm.param("w", [M], nm.constant_init(1.0), whole=[M])
        loss = nm.sum(nm.square(nm.reshard(nm.reshard(x * w, M), B)))
        nm.assign(w, w - nm.grad(loss, w) * 1e-4)
        return loss

    compiled = nm.compile(
        step, nm.spec([B, M], whole=[M]), mesh=nm.Mesh(all=8), layout="batch:all, model:all"
    )
    compiled.artifact.save(tmp_path / "step.nmesh")
    assert run(FLIGHT, str(tmp_path / "step.nmesh")).strip() == "True"


def test_asking_for_more_devices_than_the_first_mesh_needs_holds():
    code = """
from namedmesh.dims.mesh import Mesh
from namedmesh.runtime import use_cpu_devices
from namedmesh.processes.devices import device_mesh
use_cpu_devices(8)
print(device_mesh(Mesh(a=1)).devices.size, device_mesh(Mesh(a=8)).devices.size)
"""
    assert run(code).split() == ["1", "8"]


def test_lowering_without_tensorflow_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(nm.NamedMeshError, match=r"(?s)needs TensorFlow.*namedmesh\[tensorflow\]"):
        import_tensorflow()
