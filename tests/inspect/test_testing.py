"""nm.testing: what a step communicates, stated in a test or in a golden file."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

import namedmesh as nm
from tests.inspect import steps

ROOT = pathlib.Path(__file__).parent.parent.parent
# Three layers, Megatron's layout: a sum of activations forward and one backward in each, a sum of
# the gradients of two weights in each, of the bias' once; and of loss and norm, of single numbers.
TRUE = """3 AllReduce of 1024 bytes over model in forward, 3 over model in backward,
7 over data in backward, no AllGather"""


@pytest.fixture(scope="module")
def seen():
    return nm.inspect(*steps.step())


def test_what_is_true_passes(seen):
    assert nm.testing.assert_collectives(seen, (), TRUE, smallest=64) is seen
    text = "14 AllReduce in forward and 2 in update"
    with pytest.raises(AssertionError):
        nm.testing.assert_collectives(seen, (), text)
    nm.testing.assert_collectives(
        seen, (), "3 AllReduce over model in forward, 1 over data in forward, 10 in backward; 2"
    )
    step, *arguments = steps.step()
    nm.testing.assert_collectives(step, arguments, TRUE, smallest=64)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("13 AllReduce", []),
        ("2 AllReduce over model in forward, 10", ["- 2 AllReduce over model in forward"]),
        ("nothing", ["not expected:"]),
        ("no AllReduce over data, 6", ["- 0 AllReduce over data"]),
        ("13 AllReduce, 1 AllGather over data", ["- 1 AllGather over data"]),
        ("13 AllReduce of 4 bytes", ["- 13 AllReduce of 4 bytes", "not expected:"]),
    ],
)
def test_what_differs_is_said_with_its_line(seen, text, lines):
    if not lines:
        nm.testing.assert_collectives(seen, (), text, smallest=64)
        return
    with pytest.raises(AssertionError) as caught:
        nm.testing.assert_collectives(seen, (), text, smallest=64)
    said = str(caught.value).splitlines()
    assert said[0] == "train on Mesh(data=2, model=4) does not communicate as the text says:"
    assert [line for line in said if line[0] in "-n"] == lines
    assert all("steps.py:" in line for line in said if line.startswith("+"))


@pytest.mark.parametrize(
    "text",
    ["two AllReduce", "2 AllReduces", "1 AllReduce in forwards", "2", "3 AllReduce over modle"],
)
def test_what_cannot_be_read_is_an_error(seen, text):
    with pytest.raises(nm.NamedMeshError):
        nm.testing.assert_collectives(seen, (), text)


def test_an_inspection_has_no_arguments(seen):
    assert nm.testing.assert_collectives(seen, TRUE, smallest=64) is seen
    with pytest.raises(nm.NamedMeshError, match=r"no golden file 'absent\.txt'"):
        nm.testing.assert_collectives(seen, pathlib.Path("absent.txt"))
    with pytest.raises(nm.NamedMeshError, match="smallest='1KiB' is not a count"):
        nm.testing.assert_collectives(seen, TRUE, smallest="1KiB")  # pyright: ignore
    with pytest.raises(nm.NamedMeshError, match="nothing says which collectives are expected"):
        nm.testing.assert_collectives(seen)


def test_a_golden_file_survives_renames_and_shows_what_came(tmp_path):
    (tmp_path / "model.py").write_text(pathlib.Path(steps.__file__).read_text())
    (tmp_path / "test_step.py").write_text(
        "import pathlib, jax\n"
        "jax.config.update('jax_num_cpu_devices', 8)\n"
        "import model, namedmesh as nm\n"
        "def test_step():\n"
        "    path = pathlib.Path(__file__).parent / 'golden' / 'step.txt'\n"
        "    nm.testing.assert_collectives(model.train, model.step()[1:], path)\n"
    )

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "namedmesh_pytest", *words]
        # Where the plugin is installed, it would be there twice.
        here = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
        here |= {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        return subprocess.run(
            command, cwd=tmp_path, env=here, capture_output=True, text=True, check=False
        )

    missing = run()
    assert "write it with pytest --update-collectives" in missing.stdout
    assert run("--update-collectives").returncode == 0
    golden = (tmp_path / "golden" / "step.txt").read_text()
    assert "3 AllReduce of 1024 bytes of float32 over model in forward" in golden.splitlines()
    text = (tmp_path / "model.py").read_text()
    (tmp_path / "model.py").write_text(
        "# a new line\n"
        + text.replace("hidden =", "inner =")
        .replace("x + hidden @", "x + inner @")
        .replace("def loss", "def objective")
        .replace("grad(loss)", "grad(objective)")
    )
    assert run().returncode == 0, run().stdout
    (tmp_path / "model.py").write_text(
        text.replace("jnp.mean((y", "jnp.sum(y, axis=0).max() + jnp.mean((y")
    )
    changed = run()
    assert changed.returncode == 1
    assert "does not communicate as step.txt says:" in changed.stdout
    assert "test_step.py:6" in changed.stdout
    assert "jnp.sum(y, axis=0).max()" in changed.stdout
    assert "def assert_collectives" not in changed.stdout
