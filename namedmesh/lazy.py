"""Lazy names: a package serves the public names of its stub file on first use."""

import ast
import difflib
import importlib
import pathlib
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from namedmesh.errors.mistakes import explain_public

# Modules that a user may mean when a name is not found in the package itself.
_NEIGHBOURS = ("layers", "random", "training", "runtime")


def read_stub(file: str) -> dict[str, str]:
    """Map every name that the stub beside an `__init__.py` imports to the module it is from."""
    stub = pathlib.Path(file).with_suffix(".pyi").read_text(encoding="utf-8")
    imports = (node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom))
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def serve_names(
    package: str, file: str, prepare: Callable[[str], None] = lambda module: None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package with a stub file."""
    # `prepare` is called with the module of a name before it is imported.
    names: dict[str, str] = {}

    def load_name(name: str) -> Any:
        names.update(names or read_stub(file))
        if name not in names:
            advice = _suggest_name(name, names)
            raise AttributeError(f"module {package!r} has no attribute {name!r}{advice}")
        module = names[name]
        prepare(module)
        owner = importlib.import_module(module)
        if hasattr(owner, "__path__"):  # a package: the name is a module that is public itself
            value = importlib.import_module(f"{module}.{name}")
        else:
            value = getattr(owner, name)
        prefix = "nm" if package == "namedmesh" else package
        value = explain_public(value, f"{prefix}.{name}")
        return vars(sys.modules[package]).setdefault(name, value)

    def list_names() -> list[str]:
        return sorted(names or read_stub(file))

    return load_name, list_names


# What to write for names of jax, PyTorch, Mesh TensorFlow and Haliax: no spelling is close to ours.
_FOREIGN = {
    "nm.compile": "jit pjit pmap named_jit Lowering",
    "nm.einsum": "dot dot_general matmul mm bmm tensordot", "nm.range": "iota arange linspace",
    "nm.constant": "array asarray tensor as_tensor", "nm.absolute": "abs", "nm.negative": "neg",
    "nm.power": "pow", "nm.remainder": "mod fmod", "nm.concat": "cat concatenate hstack vstack",
    "nm.clip": "clamp", "nm.swish": "silu", "nm.is_finite": "isnan isinf isfinite",
    "nm.sum": "reduce_sum", "nm.mean": "reduce_mean", "nm.max": "reduce_max amax",
    "nm.transpose": "permute swapaxes moveaxis", "nm.reshape": "view flatten ravel",
    "nm.reverse": "flip fliplr flipud", "nm.broadcast": "broadcast_to expand expand_dims unsqueeze",
    "x[D, 0] of a dimension D": "squeeze",
    "nm.zeros(x.shape, x.dtype)": "zeros_like empty_like empty",
    "nm.ones(x.shape, x.dtype)": "ones_like", "nm.full(x.shape, value, x.dtype)": "full_like",
    "nm.checkpoint": "remat recompute_grad", "nm.scan": "fori_loop fold Stacked",
    "nm.stop_gradient": "no_grad detach", "nm.grad": "gradients backward",
    "nm.manual": "shard_map slicewise",
    "nm.manual, in which nm.sum adds up over devices,": "psum all_reduce pmean",
    "nm.reshard": "with_sharding_constraint device_put distribute_tensor auto_sharded",
    "nm.Mesh": "make_mesh DeviceMesh init_device_mesh", "nm.Dimension": "Axis axis",
    "a layout, such as layout='batch:data'": "PartitionSpec NamedSharding axis_mapping",
    "nm.spec": "ShapeDtypeStruct import_tf_tensor placeholder InputSpec",
    "nm.param": "get_variable Variable Parameter parameter",
    "a function that calls nm.param": "Module", "nm.training.Checkpoints": "save",
    "nm.Artifact.load": "load", "nm.layers": "nn optim", "the functions of nm": "numpy np lax",
    "nm.layers.dense": "Linear", "nm.layers.moe": "MoE",
    "nm.layers.self_attention": "MultiHeadAttention MultiheadAttention",
    "nm.layers.causal_mask": "tril triu", "nm.layers.Adam(weight_decay=...)": "AdamW adamw",
    "nm.random.key": "PRNGKey manual_seed", "nm.random.fold_in": "split",
    "nm.random.normal": "randn", "nm.random.uniform": "rand", "the text 'float32'": "float32",
    "the text 'bfloat16'": "bfloat16", "the text 'int32'": "int32",
}  # fmt: skip


def explain_names(package: str, alias: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Explain wrong calls of what a module has; return `__getattr__` and `__dir__` for it."""
    space = vars(sys.modules[package])
    names = [name for name, value in space.items() if name[0] != "_" and not _is_helper(value)]
    if "__path__" not in space:  # not a package, whose names are all imported
        names = [name for name in names if getattr(space[name], "__module__", "") == package]
    space.update({name: explain_public(space[name], f"{alias}.{name}") for name in names})

    def refuse(name: str) -> Any:
        raise AttributeError(
            f"module {alias!r} has no attribute {name!r}{_suggest_name(name, names)}"
        )

    return refuse, lambda: names


def _is_helper(value: Any) -> bool:
    return isinstance(value, ModuleType) or value in (explain_names, serve_names)


def _suggest_name(name: str, names: Iterable[str]) -> str:
    """Suggest a public name in place of one that a module lacks, of nm and nm.layers too."""
    for ours, theirs in _FOREIGN.items():
        if name in theirs.split():
            return f"; did you mean {ours}?"
    if name.startswith("_"):
        return ""
    choices = {one: repr(one) for one in names}
    nm = sys.modules["namedmesh"]
    for one in dir(nm):
        choices.setdefault(one, f"nm.{one}")
    for neighbour in _NEIGHBOURS:
        try:
            module = getattr(nm, neighbour)
        except ImportError:  # of a package that it needs
            continue
        for one in dir(module):
            if not one.startswith("_"):
                choices.setdefault(one, f"nm.{neighbour}.{one}")
    # layernorm is as close to layer_norm as two spellings can be.
    plain = {one.replace("_", "").lower(): one for one in sorted(choices, reverse=True)}
    close = difflib.get_close_matches(name.replace("_", "").lower(), plain, n=1, cutoff=0.7)
    return f"; did you mean {choices[plain[close[0]]]}?" if close else ""
