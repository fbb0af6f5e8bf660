"""Artifacts exported here run with each version of jax, in an environment with nothing else.

Environments are made in a folder that goes with the test, or in NAMEDMESH_TEST_ENVIRONMENTS, where
they stay for the next run.
"""

import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.artifacts.partitioned import CASES, make_inputs
from tests.checks import number_leaves

ROOT = pathlib.Path(__file__).parent.parent.parent
VERSIONS = {"0.10": "jax==0.10.*", "0.11": "jax==0.11.*", "newest": "jax"}
NAMES = (
    "layer on two axes",
    "stack at rest",
    "looked up",
    "uneven",
    "branches",
    "moved in another order",
    "neighbours",
)
RUN = """
import sys
import jax
import numpy as np
from namedmesh.runtime import load

def leaves(results):
    if isinstance(results, (tuple, list, dict)):
        items = results.values() if isinstance(results, dict) else results
        return [leaf for item in items for leaf in leaves(item)]
    return [results]

for path in sys.argv[1:]:
    saved = np.load(path.replace(".nmesh", ".npz"))
    part = lambda kind: {
        key.removeprefix(kind): saved[key] for key in saved.files if key.startswith(kind)
    }
    for partitioner in ("gspmd", "shardy"):
        step = load(path, strict=True, partitioner=partitioner)
        assert step.audit.exact, f"{path} {partitioner} {step.audit}"
        step.init(0)
        _, results = step(step.place(part("state/")), **part("input/"))
        for i, leaf in enumerate(leaves(results)):
            np.testing.assert_allclose(leaf, saved[f"result/{i}"], rtol=1e-4, atol=1e-5)
        print(jax.__version__, partitioner)
assert "tensorflow" not in sys.modules
"""


def find_python(requirement: str, folder: pathlib.Path) -> str | None:
    """A Python for which there is a version of jax that fits; None if there is none.

    Newer Pythons go first: for an old one, the newest jax is an old one too.
    """
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    for name in ("3.13", "3.12"):
        pythons = [shutil.which(f"python{name}"), *pyenv.glob(f"versions/{name}.*/bin/python")]
        for path in (str(one) for one in pythons if one):
            if can_install(path, requirement, folder):
                return path
    return sys.executable if can_install(sys.executable, requirement, folder) else None


def can_install(python: str, requirement: str, folder: pathlib.Path) -> bool:
    """Whether a Python runs and finds a version of jax that fits."""
    command = [python, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), requirement]
    return subprocess.run(command, capture_output=True, timeout=300).returncode == 0


def make_environment(version: str, folder: pathlib.Path) -> str:
    """The Python of an environment that has one version of jax."""
    python = folder / f"jax-{version}" / "bin" / "python"
    if not python.exists():
        base = find_python(VERSIONS[version], folder)
        if base is None:
            pytest.skip(f"no Python here can install {VERSIONS[version]}")
        made = folder / f"making-{version}"
        subprocess.run([base, "-m", "venv", "--clear", str(made)], check=True)
        install = [str(made / "bin" / "python"), "-m", "pip", "install", "-q"]
        install += ["cattrs", VERSIONS[version]]
        done = subprocess.run(install, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr[-2000:]
        made.rename(python.parent.parent)
    return str(python)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory) -> list[str]:
    """Artifacts, each with its inputs and the results of an unsharded run beside it."""
    folder = tmp_path_factory.mktemp("artifacts")
    paths = []
    for name in NAMES:
        program = CASES[name].trace()
        inputs = make_inputs(program)
        state = {key: np.asarray(value) for key, value in program.initial_state(1).items()}
        _, expected = program.evaluate(state, **inputs)
        path = folder / f"{name.replace(' ', '_')}.nmesh"
        CASES[name].export(program).save(path)
        arrays = {f"input/{key}": value for key, value in inputs.items()}
        arrays |= {f"state/{key}": value for key, value in state.items()}
        arrays |= {f"result/{i}": np.asarray(v) for i, v in number_leaves(expected).items()}
        np.savez(path.with_suffix(".npz"), **arrays)  # type: ignore[arg-type]
        paths.append(str(path))
    return paths


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_both_partitioners_keep_the_plan_with_this_jax(version, artifacts, tmp_path):
    kept = os.environ.get("NAMEDMESH_TEST_ENVIRONMENTS")
    folder = pathlib.Path(kept) if kept else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    python = make_environment(version, folder)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("XLA_FLAGS", None)
    done = subprocess.run(
        [python, "-c", RUN, *artifacts],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    printed = [line.split() for line in done.stdout.splitlines()]
    assert [partitioner for _, partitioner in printed] == ["gspmd", "shardy"] * len(artifacts)
    if version != "newest":
        assert all(number.startswith(f"{version}.") for number, _ in printed)
