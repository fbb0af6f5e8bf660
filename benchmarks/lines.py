"""Count lines of code, docstrings and files, room by room, by ast and tokenize.

A line of code is one that has a token of a statement other than an import: blank lines, comments
and docstrings do not count, and imports are counted apart.

python -m benchmarks.lines [--json OUT]
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import pathlib
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = "namedmesh"
TREES = (PACKAGE, "tests", "examples", "benchmarks")
LAYOUT_TOKENS = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True)
class Count:
    """Numbers of lines and files; counts of several files add up."""

    code: int = 0
    docstrings: int = 0
    imports: int = 0
    files: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(
            self.code + other.code,
            self.docstrings + other.docstrings,
            self.imports + other.imports,
            self.files + other.files,
        )


def count_source(source: str) -> Count:
    """Count the lines of one file."""
    tree = ast.parse(source)
    docstrings = {line for node in ast.walk(tree) for line in docstring_lines(node)}
    imports = {
        line
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = {
        line
        for token in tokens
        if token.type not in LAYOUT_TOKENS
        for line in range(token.start[0], token.end[0] + 1)
    }
    return Count(len(code - docstrings - imports), len(docstrings), len(imports), 1)


def docstring_lines(node: ast.AST) -> Iterator[int]:
    """Yield the lines of the docstring that a module, class or function has."""
    if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    if ast.get_docstring(node, clean=False) is not None:
        text = node.body[0]
        yield from range(text.lineno, (text.end_lineno or text.lineno) + 1)


def count_tree(tree: pathlib.Path) -> dict[str, Count]:
    """Count the files of a folder by its subfolders; files beside those count as `.`."""
    rooms: dict[str, Count] = {}
    for path in sorted((*tree.rglob("*.py"), *tree.rglob("*.pyi"))):
        parts = path.relative_to(tree).parts
        room = parts[0] if len(parts) > 1 else "."
        rooms[room] = rooms.get(room, Count()) + count_source(path.read_text(encoding="utf-8"))
    return rooms


def add_counts(counts: Iterable[Count]) -> Count:
    """Add counts up."""
    return sum(counts, Count())


def summarize(package: dict[str, Count]) -> dict[str, Any]:
    """Return the counts of the package and of what is beside it, as JSON has them."""
    trees = {PACKAGE: package} | {name: count_tree(ROOT / name) for name in TREES[1:]}

    def describe(name: str) -> dict[str, Any]:
        rooms = {room: asdict(count) for room, count in trees[name].items()}
        return asdict(add_counts(trees[name].values())) | {"rooms": rooms}

    return describe(PACKAGE) | {name: describe(name) for name in TREES[1:]}


def print_table(rooms: dict[str, Count]) -> None:
    """Print a line for each room, and their sum."""
    row = "{:<12} {:>7} {:>11} {:>8} {:>6}".format
    print(row("room", "code", "docstrings", "imports", "files"))
    for room, count in (*sorted(rooms.items()), ("total", add_counts(rooms.values()))):
        print(row(room, count.code, count.docstrings, count.imports, count.files))


def main() -> None:
    """Print the table of the package, and write the JSON file that was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=pathlib.Path, help="where to write the counts as JSON")
    arguments = parser.parse_args()
    package = count_tree(ROOT / PACKAGE)
    print_table(package)
    if arguments.json:
        text = json.dumps(summarize(package), indent=2)
        arguments.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
