"""The house: one meaning a room, arrows one way, no circles, no TensorFlow above lowering."""

from __future__ import annotations

import ast
import functools
import importlib
import json
import pathlib
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping

from namedmesh.ir.op import Op

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "namedmesh"
FILES = sorted(PACKAGE.rglob("*.py"))
# What each room may import, besides itself: arrows go one way.
ALLOWED = {
    "errors": set(),
    "dims": {"errors"},
    "display": {"errors"},
    "signature": {"errors"},
    "records": {"dims", "display", "errors"},
    "ir": {"dims", "display", "errors", "signature"},
    "ops": {"dims", "errors", "ir", "signature"},
    "layers": {"dims", "errors", "ir", "ops", "signature"},
    "planning": {"dims", "display", "errors", "ir", "records"},
    "artifacts": {"dims", "errors", "records", "signature"},
    "audit": {"dims", "display", "errors", "records"},
    "hardware": {"dims", "display", "errors", "ir", "records"},
    "processes": {"audit", "dims", "errors", "records"},
    "runtime": {
        "artifacts", "audit", "dims", "display", "errors", "processes", "records", "signature",
    },
    "lowering": {
        "artifacts", "dims", "errors", "ir", "planning", "records", "runtime", "processes",
        "signature",
    },
    "schedule": {"audit", "dims", "display", "errors", "hardware", "records"},
    "aot": {
        "artifacts", "audit", "dims", "display", "errors", "hardware", "processes", "records",
        "runtime", "schedule",
    },
    "calibration": {
        "artifacts", "dims", "errors", "hardware", "records", "runtime",
    },
    "training": {"dims", "display", "errors", "hardware", "processes", "records", "runtime"},
    "cost": {"dims", "display", "errors", "hardware", "ir", "planning", "records"},
    "diff": {"artifacts", "audit", "cost", "dims", "display", "errors", "planning", "records"},
    "inspect": {
        "aot", "artifacts", "audit", "dims", "display", "errors", "hardware", "planning",
        "processes", "records", "runtime", "schedule",
    },
    "report": {
        "artifacts", "audit", "cost", "diff", "dims", "errors", "hardware", "inspect", "ir",
        "planning", "records", "schedule",
    },
    "search": {
        "aot", "cost", "dims", "display", "errors", "hardware", "ir", "lowering", "planning",
        "records",
    },
    "cli": {
        "aot", "artifacts", "calibration", "cost", "diff", "dims", "display", "errors", "hardware",
        "inspect", "ir", "lowering", "planning", "processes", "records", "report", "runtime",
        "search",
    },
}  # fmt: skip
LONGEST_FILE = 700


def module_of(path: pathlib.Path) -> str:
    """The dotted name of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}


def imports_of(path: pathlib.Path) -> set[str]:
    """Every module that a file imports, inside functions and for type checking too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            module = str(node.module)
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                names.add(inner if inner in MODULES else module)
    return names


def imports_at_import(path: pathlib.Path) -> set[str]:
    """The modules that are imported when a file itself is: outside functions."""
    names: set[str] = set()
    pending: list[ast.AST] = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module))
        pending.extend(ast.iter_child_nodes(node))
    return names


@functools.cache
def graph() -> dict[str, set[str]]:
    """The modules of the package that each of them imports."""
    return {
        name: {one for one in imports_of(path) if one in MODULES} for name, path in MODULES.items()
    }


def room_of(module: str) -> str | None:
    """The folder that a module is in; None for files of the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else None


def test_every_room_is_known():
    assert {room for module in MODULES if (room := room_of(module))} == set(ALLOWED)


def test_arrows_between_rooms_go_one_way():
    wrong = [
        f"{module} imports {other}"
        for module, others in graph().items()
        for other in sorted(others)
        if (room := room_of(module))
        and (there := room_of(other))
        and there not in {room, *ALLOWED[room]}
        and not module.endswith("__main__")
    ]
    assert wrong == []


def test_no_circle_of_files():
    state: dict[str, str] = {}
    circles: list[list[str]] = []

    def visit(module: str, path: list[str]) -> None:
        state[module] = "open"
        for other in sorted(graph()[module]):
            if state.get(other) == "open":
                circles.append([*path[path.index(other) :], other])
            elif other not in state:
                visit(other, [*path, other])
        state[module] = "closed"

    for module in sorted(graph()):
        if module not in state:
            visit(module, [module])
    assert circles == []


def test_nothing_but_lowering_imports_tensorflow_when_it_is_imported():
    wrong = [
        module
        for module, path in MODULES.items()
        if room_of(module) != "lowering"
        and any(name.split(".")[0] == "tensorflow" for name in imports_at_import(path))
    ]
    assert wrong == []


def test_one_file_touches_the_private_parts_of_jax():
    private = [module for module, path in MODULES.items() if "jax._src" in path.read_text()]
    assert private == ["namedmesh.jax_internals"]


def test_planning_imports_neither_tensorflow_nor_jax():
    code = """
import json, sys
import namedmesh as nm
B, M = nm.dims("batch=8 model=4")
def step(x):
    w = nm.param("w", [M])
    nm.assign(w, w - nm.grad(nm.sum(x * w), w))
program = nm.trace(step, x=nm.spec([B, M]))
plan = nm.plan(program, nm.Mesh(data=8), "batch:data")
text, document = str(plan), json.dumps(plan.to_json())
heavy = [name for name in ("tensorflow", "jax", "flatbuffers") if name in sys.modules]
print(json.dumps([plan.count("AllReduce"), heavy]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [1, []]


def op_classes() -> dict[str, str]:
    """Every class of op in the package, with the module that defines it."""
    for module in MODULES:
        if room_of(module) in ("ir", "ops", "layers"):
            importlib.import_module(module)
    found, pending = {}, [Op]
    while pending:
        cls = pending.pop()
        found[cls.__name__] = cls.__module__
        pending += cls.__subclasses__()
    return {name: module for name, module in found.items() if module in MODULES}


def class_questions(module: str, owners: Mapping[str, str]) -> Iterator[str]:
    """Find where a file asks for the class of an op that it does not define, or for its rule."""
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        text = ""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names = [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]
            if node.func.id == "isinstance":
                text = ", ".join(name for name in names[1:] if owners.get(name, module) != module)
            elif node.func.id == "type" and len(node.args) == 1 and names[1:] == ["op"]:
                text = "" if module == "namedmesh.ir.op" else "type(op)"
        elif isinstance(node, ast.Attribute) and node.attr == "rule":
            text = "op.rule" if ast.unparse(node.value) == "op" else ""
        if text:
            yield f"{module}:{node.lineno}: {text}"


def test_no_pass_asks_for_the_class_of_an_op():
    owners = op_classes()
    assert {"Einsum", "Scan", "Conv", "Manual"} <= owners.keys()
    assert [one for module in MODULES for one in class_questions(module, owners)] == []


def definitions() -> dict[str, set[str]]:
    """The public classes and functions at the top of files, by name, with the files they are in."""
    places = defaultdict(set)
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
                # Of nm.collective the module is the name that users write before it.
                owner = "collective." if module == "namedmesh.ops.collective" else ""
                places[owner + node.name].add(module)
    return places


def test_one_name_has_one_place():
    twice = {name: places for name, places in definitions().items() if len(places) > 1}
    assert twice == {}


def test_files_stay_small():
    lengths = {path.name: len(path.read_text().splitlines()) for path in FILES}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE} == {}


def test_docstrings_begin_with_a_verb_or_a_noun():
    questions = {"What", "Where", "Whether", "How", "Which", "Who", "When"}
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    wrong = [
        f"{module}: {text.splitlines()[0]}"
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, kinds) and (text := ast.get_docstring(node))
        if text.split()[0] in questions
    ]
    assert wrong == []
