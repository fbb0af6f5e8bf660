"""Reference pages, one for each topic, generated from the public names of the package.

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
    """A reference page: public names of `nm` by name or by room, and packages documented whole."""

    file: str
    title: str
    text: str
    names: frozenset[str] = frozenset()
    rooms: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


# Names first, then rooms: no file is mentioned, so that files can be renamed inside a room.
TOPICS = (
    Topic(
        "tensors",
        "Tensors and dimensions",
        "Dimensions, shapes, tensors, and the one exception class.",
        names=words("Dimension Shape dims NamedMeshError Tensor"),
    ),
    Topic(
        "meshes",
        "Meshes and layouts",
        "Device meshes, layouts, the ops that annotate a sharding, and collectives by hand.",
        names=words("collective manual replicate reshard shard split"),
        rooms=("dims",),
    ),
    Topic(
        "programs",
        "Tracing and programs",
        "From a Python function to a program, and from a loss to its gradients.",
        rooms=("ir",),
    ),
    Topic(
        "elementwise",
        "Ops: elementwise",
        "Operands broadcast against each other by name. Python's operators on tensors call these.",
        names=words("""
            absolute add cast ceil clip complex compute_once conj cos digamma divide elu equal erf
            erfinv exp expm1 floor floor_divide gelu greater greater_equal imag is_finite
            is_nan isclose leaky_relu less less_equal lgamma log log1p maximum minimum
            multiply negative not_equal polygamma power real reciprocal relu remainder round
            rsqrt sigmoid sign sin softplus sqrt square stop_gradient subtract swish
            tanh where bitwise_and bitwise_not bitwise_or bitwise_xor shift_left
            shift_right logical_and logical_not logical_or logical_xor
        """),
    ),
    Topic(
        "contractions",
        "Ops: contractions and reductions",
        "Einsums, reductions over named dimensions, and attention. Reducing over a sharded "
        "dimension is an AllReduce or a ReduceScatter in the plan.",
        names=words("""
            all allclose any argmax argmin attention bincount cholesky count_nonzero cumprod cumsum
            dequantize det eigh einsum fft histogram ifft inv irfft log_softmax logsumexp max mean
            median
            min nanmax nanmean
            nanmin nanprod nanstd nansum nanvar norm prod qr quantile quantize rfft
            ring_attention scaled_einsum segment_max
            segment_mean segment_min segment_softmax segment_sum send_in_8_bits
            slogdet softmax solve std sum
            svd triangular_solve ulysses_attention var
        """),
    ),
    Topic(
        "shapes",
        "Ops: shapes and constants",
        "Constants, and ops that change names, order or number of dimensions.",
        names=words("""
            broadcast chunk concat constant diagonal eye full linspace ones range rename
            repeat reshape stack tile transpose tril triu unstack zeros
        """),
    ),
    Topic(
        "indexing",
        "Ops: indexing, sorting and windows",
        "Reading and writing at computed positions, sorting, convolutions and other windows.",
        names=words("""
            argsort compress conv conv_transpose dynamic_slice dynamic_update gather nonzero one_hot
            pad pool resize reverse roll row_gradient scatter
            scatter_add searchsorted shift slice sort take
            top_k unique update_rows windows
        """),
    ),
    Topic(
        "control",
        "Control flow",
        "Loops and branches decided at run time, functions of functions, and functions with a "
        "derivative of their own.",
        names=words("""
            associative_scan call_jax call_tf checkpoint cond custom_vjp hvp jacobian jvp map
            pipeline print reversible scan switch value_and_grad vmap while_loop
        """),
    ),
    Topic(
        "random",
        "Random numbers",
        "Counter-based random numbers, under `nm.random`. Every element hashes the key with its "
        "own index, so draws do not depend on the layout and need no communication.",
        names=words("random"),
    ),
    Topic(
        "state",
        "State and parameters",
        "Values that persist from step to step, and their initializers.",
        names=words("""
            Initializer assign param parameters scope state update_in_loops
            constant_init fan_in_init glorot_init he_init normal_init orthogonal_init
            truncated_normal_init uniform_init
        """),
    ),
    Topic(
        "more-ops",
        "Ops: others",
        "Ops that belong to none of the other pages.",
        rooms=("ops",),
    ),
    Topic(
        "plans",
        "Plans",
        "The sharding of every tensor and every collective of a step, before anything runs; what "
        "that costs, two plans side by side, the best one found, and a page of it all.",
        rooms=("planning", "records", "cost", "diff", "search", "report", "hardware", "inspect"),
    ),
    Topic(
        "running",
        "Running and Artifacts",
        "Compiled steps, their state, and the file format that needs no TensorFlow to run. The "
        "names of `namedmesh.runtime` are imported from there.",
        rooms=("lowering", "artifacts", "audit", "runtime", "processes"),
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
        "The parts that models are made of.",
        packages=("namedmesh.layers",),
    ),
    Topic(
        "training",
        "Training",
        "Batches, checkpoints, metrics, weights, and the training loop.",
        rooms=("training",),
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
    """Map every public name of `nm` to the path of the object it stands for."""
    # griffe would find the package `namedmesh.dims` in place of the function `nm.dims`.
    nodes = ast.parse(SOURCE.read_text()).body
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if not alias.name.startswith("_")
    }


def find_topic(name: str, path: str) -> Topic:
    """Return the topic of a public name: the one that has the name, or else its room."""
    room = path.split(".")[1]
    for topic in TOPICS:
        if name in topic.names:
            return topic
    return next((topic for topic in TOPICS if room in topic.rooms), MORE)


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
