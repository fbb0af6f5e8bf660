"""MkDocs hook: one reference page for each topic, generated from the public names of the package.

The names are read from the files, so nothing is imported. A name that is added to the package, or
to the `__init__` of one of the packages below, appears on a page without an edit here.
"""

from __future__ import annotations

import ast
import functools
import pathlib
from dataclasses import dataclass, field
from typing import Any

import griffe

ROOT = pathlib.Path(__file__).parent.parent.parent
SOURCE = ROOT / "namedmesh" / "__init__.pyi"


@dataclass(frozen=True)
class Topic:
    """A reference page.

    Attributes:
        file: The name of the page's file, without the ending.
        title: The page's title.
        text: What the page says before its first entry.
        modules: The modules whose public names of `nm` belong here; a package stands for all of
            its modules.
        names: Public names of `nm` that belong here whatever module they are from.
        packages: Packages and modules that are documented whole, beside `nm`.
    """

    file: str
    title: str
    text: str
    modules: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


TOPICS = (
    Topic(
        "tensors",
        "Tensors and dimensions",
        "What a name is: dimensions, shapes, tensors, and the one exception class.",
        modules=("namedmesh.dims.dimension", "namedmesh.errors.errors", "namedmesh.ir.tensor"),
    ),
    Topic(
        "meshes",
        "Meshes and layouts",
        "Where dimensions live: device meshes, layouts, the ops that state a placement, and "
        "collectives by hand.",
        modules=(
            "namedmesh.dims",
            "namedmesh.ops.collective",
            "namedmesh.ops.manual",
            "namedmesh.ops.move",
        ),
    ),
    Topic(
        "programs",
        "Tracing and programs",
        "From a Python function to a program, and from a loss to its gradients.",
        modules=("namedmesh.ir",),
    ),
    Topic(
        "elementwise",
        "Ops: elementwise",
        "Operands broadcast against each other by name. Python's operators on tensors call these.",
        modules=(
            "namedmesh.ops.activation",
            "namedmesh.ops.arithmetic",
            "namedmesh.ops.bitwise",
            "namedmesh.ops.elementwise",
            "namedmesh.ops.logic",
            "namedmesh.ops.mathematics",
            "namedmesh.ops.rounding",
        ),
    ),
    Topic(
        "contractions",
        "Ops: contractions and reductions",
        "Einsums and reductions over named dimensions. Reducing over a split dimension is an "
        "AllReduce or a ReduceScatter in the plan.",
        modules=(
            "namedmesh.ops.einsum",
            "namedmesh.ops.reduce",
            "namedmesh.ops.arg_reduce",
            "namedmesh.ops.cumulative",
            "namedmesh.ops.moments",
            "namedmesh.ops.ring_attention",
            "namedmesh.ops.softmax",
            "namedmesh.ops.softmax_attention",
            "namedmesh.ops.ulysses",
        ),
        names=("sum",),
    ),
    Topic(
        "shapes",
        "Ops: shapes and constants",
        "Constants, and ops that change names, order or number of dimensions.",
        modules=(
            "namedmesh.ops.broadcast",
            "namedmesh.ops.constants",
            "namedmesh.ops.join",
            "namedmesh.ops.shape",
        ),
    ),
    Topic(
        "indexing",
        "Ops: indexing, sorting and windows",
        "Reading and writing at computed positions, sorting, convolutions and other windows.",
        modules=(
            "namedmesh.ops.dynamic",
            "namedmesh.ops.compress",
            "namedmesh.ops.conv",
            "namedmesh.ops.index",
            "namedmesh.ops.indexing",
            "namedmesh.ops.order",
            "namedmesh.ops.pool",
            "namedmesh.ops.resize",
            "namedmesh.ops.sorting",
            "namedmesh.ops.windows",
        ),
    ),
    Topic(
        "control",
        "Control flow",
        "Loops and branches decided at run time, functions of functions, and functions with a "
        "derivative of their own.",
        modules=(
            "namedmesh.ops.control",
            "namedmesh.ops.associative",
            "namedmesh.ops.custom",
            "namedmesh.ops.jax_code",
            "namedmesh.ops.loops",
            "namedmesh.ops.pipeline",
            "namedmesh.ops.recompute",
            "namedmesh.ops.scan",
            "namedmesh.ops.show",
            "namedmesh.ops.transforms",
            "namedmesh.ops.vmap",
        ),
    ),
    Topic(
        "random",
        "Random numbers",
        "Counter-based random numbers, under `nm.random`. Every element hashes the key with its "
        "own index, so draws do not depend on the layout and need no communication.",
        names=("random",),
    ),
    Topic(
        "state",
        "State and parameters",
        "What lives from step to step.",
        modules=("namedmesh.ops.initializers", "namedmesh.ops.variables"),
    ),
    Topic(
        "plans",
        "Plans",
        "Where every tensor lies and every collective of a step, before anything runs; what that "
        "costs, two of them side by side, the best one found, and a page of it all.",
        modules=(
            "namedmesh.lowering",
            "namedmesh.search",
            "namedmesh.cost",
            "namedmesh.diff",
            "namedmesh.report",
        ),
    ),
    Topic(
        "running",
        "Running and Artifacts",
        "Compiled steps, their state, and the file format that needs no TensorFlow to run. The "
        "names of `namedmesh.runtime` are imported from there.",
        modules=(
            "namedmesh.runtime",
            "namedmesh.lowering.compile",
            "namedmesh.lowering.export",
            "namedmesh.lowering.saved_model",
        ),
        packages=("namedmesh.runtime",),
    ),
    Topic(
        "ahead-of-time",
        "Ahead of time",
        "Compiling an Artifact for devices that are not here; `namedmesh aot` on the command "
        "line does the same.",
        packages=("namedmesh.aot",),
    ),
    Topic(
        "layers",
        "Layers",
        "What models are made of.",
        packages=("namedmesh.layers",),
    ),
    Topic(
        "training",
        "Training",
        "What every trainer needs.",
        modules=("namedmesh.training",),
        packages=("namedmesh.training",),
    ),
)
MORE = Topic("more", "More", "Public names that belong to none of the other pages.")


@dataclass
class Page:
    """A topic and its entries: the heading of each, and the object it documents."""

    topic: Topic
    entries: dict[str, str] = field(default_factory=dict)

    @property
    def markdown(self) -> str:
        """The page, with a mkdocstrings directive for each entry."""
        parts = [f"# {self.topic.title}", self.topic.text]
        for heading, path in self.entries.items():
            parts.append(
                f"::: {path}\n    options:\n      heading: {heading}\n      toc_label: {heading}"
            )
        return "\n\n".join(parts) + "\n"


@functools.cache
def load_package() -> griffe.Module:
    """Read the package from its files, stubs included, without importing it."""
    loader = griffe.GriffeLoader(search_paths=[str(ROOT)])
    package = loader.load("namedmesh")
    loader.resolve_aliases(implicit=True, external=False)
    assert isinstance(package, griffe.Module)
    return package


def find_module(path: str) -> griffe.Module | None:
    """Return the module of a dotted path, or None if there is none."""
    found: Any = load_package()
    for part in path.split(".")[1:]:
        if part not in found.members:
            return None
        found = found.members[part]
    return found if isinstance(found, griffe.Module) else None


def find_exports(module: griffe.Module) -> dict[str, str]:
    """Map the public names that a package re-exports to the paths of what they stand for."""
    listed = None if module.exports is None else {str(name) for name in module.exports}
    return {
        name: member.target_path
        for name, member in module.members.items()
        if isinstance(member, griffe.Alias)
        and (not name.startswith("_") if listed is None else name in listed)
        and member.target_path.startswith("namedmesh.")
    }


def find_public_names() -> dict[str, str]:
    """Map every public name of `nm` to the path of the object it stands for.

    This reads the imports instead of asking griffe, for which the package `namedmesh.dims` hides
    the function `nm.dims`.
    """
    nodes = ast.parse(SOURCE.read_text()).body
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if not alias.name.startswith("_")
    }


def find_topic(name: str, path: str) -> Topic:
    """Return the topic of a public name: the one that names it, or that has the nearest module."""
    best, length = MORE, 0
    for topic in TOPICS:
        if name in topic.names:
            return topic
        for module in topic.modules:
            if f"{path}.".startswith(f"{module}.") and len(module) > length:
                best, length = topic, len(module)
    return best


def describe_package(path: str) -> dict[str, str]:
    """Map headings to the objects of a package: its exports, or its modules where it has none."""
    package = find_module(path)
    if package is None:
        return {}
    exports = find_exports(package)
    if exports:
        short = path.removeprefix("namedmesh.")
        return {f"{short}.{name}": target for name, target in exports.items()}
    return {
        f"{path.removeprefix('namedmesh.')}.{name}": f"{path}.{name}"
        for name, member in sorted(package.members.items())
        if isinstance(member, griffe.Module) and not name.startswith("_")
    }


def make_pages() -> dict[str, Page]:
    """Make the pages that have entries, by the name of their file."""
    pages = {topic.file: Page(topic) for topic in (*TOPICS, MORE)}
    whole = {package for topic in TOPICS for package in topic.packages}
    for name, path in find_public_names().items():
        if path in whole:
            continue
        page, module = pages[find_topic(name, path).file], find_module(path)
        if module is None:
            page.entries[f"nm.{name}"] = path
            continue
        for member in module.members.values():
            if isinstance(member, griffe.Function) and member.is_public:
                page.entries[f"nm.{name}.{member.name}"] = member.path
    for topic in TOPICS:
        page = pages[topic.file]
        for package in topic.packages:
            known = set(page.entries.values())
            for heading, path in describe_package(package).items():
                if path not in known:
                    page.entries[heading] = path
    return {file: page for file, page in pages.items() if page.entries}


def on_config(config: Any) -> Any:
    """Put the pages into the navigation."""
    load_package.cache_clear()
    pages = [{page.topic.title: f"reference/{file}.md"} for file, page in make_pages().items()]
    for entry in config.nav:
        if "Reference" in entry:
            entry["Reference"] = pages
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to the site."""
    from mkdocs.structure.files import File

    for file, page in make_pages().items():
        files.append(File.generated(config, f"reference/{file}.md", content=page.markdown))
    return files
