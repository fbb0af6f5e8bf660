"""Expected messages that one command rewrites in the test files: `make messages`.

With WRITE_MESSAGES=1 in the environment, a comparison with another text passes, and the text is
written in place of the literal when the tests end. Read the diff before you commit it.
"""

from __future__ import annotations

import ast
import atexit
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

WIDTH = 100  # of a line, as ruff checks it

# By file: the new text of each decorated function. Files change at exit alone, since errors read
# the source lines of functions that have yet to run.
_new: defaultdict[Path, dict[str, str]] = defaultdict(dict)


class Message(str):
    """The text beside a decorated function, which records what it is compared with."""

    path: Path
    function: str

    @classmethod
    def of(cls, text: str, function: Callable[..., object]) -> Message:
        message = cls(text.strip("\n"))
        message.path = Path(function.__code__.co_filename)
        message.function = function.__name__
        return message

    def __eq__(self, other: object) -> bool:
        if str.__eq__(self, other) is True:
            return True
        if not os.environ.get("WRITE_MESSAGES") or not isinstance(other, str):
            return False
        if not _new:
            atexit.register(write_all)
        _new[self.path][self.function] = str(other)
        return True

    __hash__ = str.__hash__


def write_all() -> None:
    """Write every text that has been recorded."""
    for path, texts in _new.items():
        path.write_text(rewrite(path.read_text(), texts))
        print(f"{path}: {len(texts)} messages written")
    _new.clear()


def rewrite(source: str, texts: Mapping[str, str]) -> str:
    """Return source with new texts as the first argument of functions' decorators, by name."""
    lines = source.encode().splitlines(keepends=True)  # ast counts columns in bytes
    functions = {node.name: node for node in ast.parse(source).body if hasattr(node, "name")}
    last_first = sorted(texts, key=lambda name: -functions[name].lineno)
    for name in last_first:
        literal = functions[name].decorator_list[0].args[0]
        start, end = literal.lineno - 1, literal.end_lineno
        before = lines[start][: literal.col_offset]
        after = lines[end - 1][literal.end_col_offset :]
        lines[start:end] = [before + f'"""\n{_escape(texts[name])}\n"""'.encode() + after]
    return b"".join(lines).decode()


def _escape(text: str) -> str:
    """Return what stands between triple quotes, long lines continued after a backslash."""
    lines = []
    for line in text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"').split("\n"):
        while len(line) > WIDTH and " " in line[: WIDTH - 1].strip():
            head = line[: WIDTH - 1].rpartition(" ")[0]
            lines.append(f"{head} \\")
            line = line[len(head) + 1 :]
        lines.append(line)
    return "\n".join(lines)
