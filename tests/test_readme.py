"""The README's example is the file it names, and prints what the README shows."""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def block(language: str, after: str) -> str:
    """The first fenced block of a language after some text."""
    found = re.search(rf"```{language}\n(.*?)```", README[README.index(after) :], re.S)
    assert found
    return found.group(1)


def test_the_example_is_the_file():
    assert block("python", "## Thirty lines").strip() in (ROOT / "examples" / "quickstart.py").read_text()


def test_the_example_prints_what_is_shown():
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("XLA_FLAGS", None)
    done = subprocess.run(
        [sys.executable, "examples/quickstart.py"], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == block("text", "prints the plan, the audit").strip("\n").strip()
