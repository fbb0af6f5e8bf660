"""Paths, names and commands in the documentation exist."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import pathlib
import re
from typing import Any

import pytest

import namedmesh as nm
import namedmesh.aot
import namedmesh.layers
import namedmesh.runtime
import namedmesh.training
from namedmesh.cli.main import COMMANDS

ROOT = pathlib.Path(__file__).parent.parent.parent
SOURCE_PAGES = ["CONTRIBUTING.md", "docs/architecture.md", "docs/reading-the-source.md"]
PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md"]
PAGES += sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0].isalpha()}
FOLDERS -= {"build", "dist", "runs"}
ROOMS = {path.name for path in (ROOT / "namedmesh").iterdir() if path.is_dir()}
PUBLIC = (nm, namedmesh.runtime, namedmesh.aot, namedmesh.layers, namedmesh.training)
TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.M))

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.S | re.M)
PATH = re.compile(r"(?<![\w./~-])((?:[\w-]+/)+[\w.*-]*)(?![\w/])")
DOTTED = re.compile(r"(?<![\w./\"'])((?:nm|namedmesh)(?:\.[A-Za-z_]\w*)+)")
MEMBER = re.compile(r"(?<![\w./])([A-Z]\w+)\.([a-z_]\w*)")


def read_code(text: str) -> tuple[list[str], list[str]]:
    """Return the inline code of a page, and its shell commands with the inline code."""
    shell = [found[3] for found in FENCE.finditer(text) if found[2] == "bash"]
    inline = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    return inline, [*inline, *shell]


def find_files(name: str) -> list[pathlib.Path]:
    """Return the files of a name in this repository."""
    return [path for folder in sorted(FOLDERS) for path in (ROOT / folder).rglob(name)]


def find_wrong_paths(code: list[str], *, bare_files: bool) -> list[str]:
    """Return the paths into this repository at which there is nothing."""
    wrong = []
    for span in code:
        for path in PATH.findall(span):
            top = path.split("/")[0]
            if top in ROOMS | FOLDERS and not any(
                [*folder.glob(path.rstrip("/"))] for folder in (ROOT, ROOT / "namedmesh")
            ):
                wrong.append(path)
        if bare_files and re.fullmatch(r"\w+\.pyi?", span) and not find_files(span):
            wrong.append(span)
        if bare_files and re.fullmatch(r"\w+/", span) and span[:-1] not in ROOMS | FOLDERS:
            wrong.append(span)
    return wrong


def resolve(name: str) -> Any:
    """Return what a dotted name stands for; raises AttributeError or ImportError."""
    found: Any = nm
    path = "namedmesh"
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        if not hasattr(found, part) and not has_field(found, part):
            found = importlib.import_module(path)
        else:
            found = getattr(found, part, None)
    return found


def has_field(owner: Any, name: str) -> bool:
    """Return whether a class has an attribute that only its instances have."""
    if not isinstance(owner, type):
        return False
    fields = dataclasses.fields(owner) if dataclasses.is_dataclass(owner) else ()
    return name in {one.name for one in fields} | {
        key for base in owner.__mro__ for key in getattr(base, "__annotations__", {})
    }


def find_wrong_names(code: list[str]) -> list[str]:
    """Return the dotted names that cannot be resolved."""
    wrong = []
    for span in code:
        for name in DOTTED.findall(span):
            try:
                resolve(name)
            except (AttributeError, ImportError):
                wrong.append(name)
        for owner, member in MEMBER.findall(span):
            classes = [getattr(package, owner) for package in PUBLIC if hasattr(package, owner)]
            if classes and not any(hasattr(c, member) or has_field(c, member) for c in classes):
                wrong.append(f"{owner}.{member}")
    return wrong


def find_wrong_commands(code: list[str]) -> list[str]:
    """Return the commands that do not exist."""
    wrong = []
    for span in code:
        for target in re.findall(r"(?:^|(?<=[;&|] ))make ([a-z][\w-]*)", span, re.M):
            if target not in TARGETS:
                wrong.append(f"make {target}")
        for name in re.findall(r"^namedmesh ([a-z]+)\b", span, re.M):
            if name not in COMMANDS:
                wrong.append(f"namedmesh {name}")
        for module in re.findall(
            r"python -m ((?:benchmarks|examples|tests|namedmesh|docs)[\w.]*)", span
        ):
            if importlib.util.find_spec(module) is None:
                wrong.append(f"python -m {module}")
    return wrong


def test_traits_in_the_guide_are_those_of_an_op():
    text = (ROOT / "docs" / "guides" / "ops.md").read_text()
    listed = re.findall(r"^\| `(\w+)[`(]", text, re.M)
    assert listed
    assert [name for name in listed if not hasattr(nm.Op, name)] == []


@pytest.mark.parametrize("page", PAGES)
def test_paths_names_and_commands_exist(page):
    inline, commands = read_code((ROOT / page).read_text())
    wrong = find_wrong_paths(commands, bare_files=page in SOURCE_PAGES)
    wrong += find_wrong_names(inline)
    wrong += find_wrong_commands(commands)
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("`ops/einsum.py` `ops/nothing.py`", ["ops/nothing.py"]),
        ("`tests/nowhere/` `runs/tiny` `path/to/tsv`", ["tests/nowhere/"]),
        ("`einsum.py` `nothing.py`", ["nothing.py"]),
        ("`planning/` `hlo/`", ["hlo/"]),
        ("`nm.einsum` `nm.Mesh.parse` `nm.enisum(x)`", ["nm.enisum"]),
        ("`namedmesh.layers.moe` `namedmesh.nothing.at_all`", ["namedmesh.nothing.at_all"]),
        ("`Plan.save` `Plan.svae`", ["Plan.svae"]),
        ("`make test` and `make tset`", ["make tset"]),
        ("```bash\nnamedmesh plan x\nnamedmesh paln x\n```\n", ["namedmesh paln"]),
        ("`python -m benchmarks.layer` `python -m benchmarks.no`", ["python -m benchmarks.no"]),
        ("```python\nnm.made_up\n```\n", []),
    ],
)
def test_what_does_not_exist_is_found(text, wrong):
    inline, commands = read_code(text)
    assert wrong == [
        *find_wrong_paths(commands, bare_files=True),
        *find_wrong_names(inline),
        *find_wrong_commands(commands),
    ]
