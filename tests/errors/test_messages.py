"""`make messages` writes what errors say now in place of what the tables of this folder expect."""

import os
import subprocess
import sys
from pathlib import Path

from tests import errors
from tests.messages import rewrite

ROOT = Path(__file__).parents[2]


def run_tests(path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:xdist", "-c", ROOT / "pyproject.toml", path],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
    )


def test_a_copy_with_other_messages_is_rewritten(tmp_path):
    right = (Path(errors.__file__).parent / "test_host_errors.py").read_text()
    wrong = right.replace("is a positive whole number", "is nothing of the kind")
    copy = tmp_path / "test_host_errors.py"
    copy.write_text(wrong)
    assert run_tests(copy).returncode == 1
    assert copy.read_text() == wrong, "nothing is written without the command"
    done = run_tests(copy, WRITE_MESSAGES="1")
    assert done.returncode == 0, done.stdout
    assert copy.read_text() == right


def test_quotes_backslashes_and_long_lines_are_written_as_they_are_read():
    source = '@wrong("""\nold\n""")\ndef größe():\n    "ß" * 3\n\n\n@wrong("b")\ndef other(): ...\n'
    texts = {"größe": 'a "b" \\n """c"""\n' + "word " * 40 + "end", "other": "new"}
    written = rewrite(source, texts)
    seen = []
    exec(written, {"wrong": lambda text: lambda function: seen.append(text)})
    assert seen == [f"\n{text}\n" for text in texts.values()]
    assert all(len(line) <= 100 for line in written.splitlines())
