"""The README's example is the file it names, and prints what the README shows."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def block(language: str, after: str) -> str:
    """The first fenced block of a language after some text."""
    found = re.search(rf"```{language}\n(.*?)```", README[README.index(after) :], re.S)
    assert found
    return found.group(1)


def test_the_example_is_the_file():
    assert (
        block("python", "## Thirty lines").strip()
        in (ROOT / "examples" / "quickstart.py").read_text()
    )


def test_the_transformer_is_the_file():
    assert (
        block("python", "## Layers, and the paper's model").strip()
        in (ROOT / "examples" / "transformer.py").read_text()
    )


@pytest.mark.slow
def test_the_transformer_prints_what_is_shown():
    shown = block("text", "## Layers, and the paper's model").strip().splitlines()
    printed = printed_by("examples/transformer.py").splitlines()
    assert (printed[0], printed[-1]) == (shown[0], shown[-1])
    for one, other in zip(printed[1:-1], shown[1:-1], strict=True):
        assert one.split(":")[0] == other.split(":")[0]
        assert float(one.split()[-1]) == pytest.approx(float(other.split()[-1]), abs=0.05)


def test_the_example_prints_what_is_shown():
    assert (
        printed_by("examples/quickstart.py")
        == block("text", "prints the plan, the audit").strip("\n").strip()
    )


def printed_by(path: str) -> str:
    """What an example prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("XLA_FLAGS", None)
    done = subprocess.run(
        [sys.executable, path],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()
