"""The wheel: what is in it, what it asks for, and that it works installed, outside the checkout."""

import email
import email.message
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile

import pytest

import namedmesh

ROOT = pathlib.Path(__file__).parent.parent
PLAN = """
import pathlib, sys
import namedmesh as nm
assert pathlib.Path(nm.__file__).is_relative_to(sys.prefix), nm.__file__
B, M, H = nm.dims("batch=8 model=4 hidden=6")

def layer(x):
    return nm.sum(nm.einsum([x, nm.param("w", [M, H])], [B, H]), over=B)

plan = nm.plan(nm.trace(layer, nm.spec([B, M])), nm.Mesh(data=8), "batch:data")
print([(one.kind, one.axes, one.bytes) for one in plan.collectives])
"""


RUNTIME = """
import sys
sys.modules["tensorflow"] = None  # what importing it then raises is what a host without it raises
import namedmesh.aot, namedmesh.audit.hlo, namedmesh.runtime
print(namedmesh.runtime.load.__module__)
"""


def run(*command: str | os.PathLike, cwd: pathlib.Path) -> str:
    """Runs a command without the checkout on its path, and returns what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> pathlib.Path:
    """The wheel, built from a copy so that the build leaves nothing in the checkout."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "namedmesh", source / "namedmesh", ignore=ignored)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel")
    offline = ("--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", "dist")
    run(*pip, *offline, ".", cwd=source)
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def metadata(wheel) -> email.message.Message:
    """The wheel's metadata."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_string(archive.read(name).decode())


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> pathlib.Path:
    """An environment with the wheel alone; its dependencies are ours, nothing is downloaded."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    run(*pip, "install", "--no-index", "--no-deps", wheel, cwd=folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    ours = {sysconfig.get_path(which) for which in ("purelib", "platlib")}
    (packages / "dependencies.pth").write_text("\n".join(sorted(ours)) + "\n")
    return folder


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel):
    package = ROOT / "namedmesh"
    expected = {
        path.relative_to(ROOT).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == expected
    assert "namedmesh/py.typed" in names


def test_the_metadata_names_version_python_and_license(wheel, metadata):
    assert metadata["Name"] == "namedmesh"
    assert metadata["Version"] == namedmesh.__version__
    assert metadata["Requires-Python"] == ">=3.11"
    assert "Apache-2.0" in (metadata["License"], metadata["License-Expression"])
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("LICENSE"))
        assert archive.read(name) == (ROOT / "LICENSE").read_bytes()


def test_only_an_extra_asks_for_tensorflow(metadata):
    required = metadata.get_all("Requires-Dist") or []
    base = [one for one in required if "extra ==" not in one]
    assert any(one.startswith("jax") for one in base)
    assert not any("tensorflow" in one for one in base)
    asking = [one for one in required if one.lower().startswith("tensorflow")]
    assert len(asking) == 1
    assert "extra == 'tensorflow'" in asking[0].replace('"', "'")


def test_there_are_extras_for_every_use(metadata):
    assert {*metadata.get_all("Provides-Extra")} == {
        "tensorflow", "training", "m4", "gpu-aot", "completion", "docs", "test", "all",
    }  # fmt: skip


def test_the_installed_package_plans_outside_the_checkout(installed, tmp_path):
    printed = run(installed / "bin" / "python", "-c", PLAN, cwd=tmp_path)
    assert printed.strip() == "[('AllReduce', ('data',), 24)]"


def test_the_installed_runtime_needs_no_tensorflow(installed, tmp_path):
    printed = run(installed / "bin" / "python", "-c", RUNTIME, cwd=tmp_path)
    assert printed.strip().startswith("namedmesh.runtime.")


def test_the_installed_command_explains_itself(installed, tmp_path):
    printed = run(installed / "bin" / "namedmesh", "--help", cwd=tmp_path)
    assert "usage: namedmesh" in printed
    assert "aot" in printed
