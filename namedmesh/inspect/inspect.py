"""nm.inspect: compile any step of JAX, or take what was compiled, and read what it does."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

from namedmesh.aot.absent_devices import devices_of, prepare_target
from namedmesh.aot.toolkit import toolkit_options
from namedmesh.audit.hlo.arithmetic import count_flops
from namedmesh.audit.hlo.communication import find_collectives
from namedmesh.audit.hlo.module import Module, parse_module
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError
from namedmesh.files import check_path, read_file
from namedmesh.hardware.topology import Target
from namedmesh.inspect.arguments import (
    Leaf,
    count_devices,
    divide_memory,
    find_mesh,
    list_leaves,
    list_tensors,
    name_arguments,
    name_packed,
)
from namedmesh.inspect.attribution import Attribution
from namedmesh.inspect.findings import CompiledStep, find_all
from namedmesh.inspect.inspection import Inspection
from namedmesh.inspect.intent import Intent
from namedmesh.jax_internals import (
    compile_module,
    hear_warnings,
    keep_whole_stacks,
    parse_stablehlo,
)
from namedmesh.processes.devices import use_cpu_devices
from namedmesh.records.collective import KINDS
from namedmesh.runtime.compiling import report_failure

LARGEST_TEXT = 2**30  # bytes of HLO
_FORMS = (
    "a jitted function and its arguments, what it lowers or compiles to, or HLO as text or file"
)


class _Code(NamedTuple):
    """Compiled code, and what is known of its arguments."""

    text: str
    stats: Any = None  # what the compiler counts of its memory
    leaves: Sequence[Leaf] = ()
    named: str = ""  # text that names the mesh, where the compiled one does not
    lowered: Any = None  # the module of StableHLO that it was compiled from
    warnings: str = ""  # what the compiler wrote meanwhile


def inspect(
    step: Any,
    *arguments: Any,
    mesh: Mesh | jax.sharding.Mesh | None = None,
    target: str | None = None,
    **named: Any,
) -> Inspection:
    """Show what the compiler made of a step of JAX: what it communicates, and for which line.

    Nothing of the step has to be changed, and nothing of it runs.

    Args:
        step: A function, jitted or not; what `lower` or `compile` return; or HLO or StableHLO, as
            text or as the path of a file.
        *arguments: What the function is called with: arrays, or `jax.ShapeDtypeStruct`s that have
            a sharding.
        mesh: The mesh whose axes are to be named; by default that of the arguments' shardings.
        target: Compile for devices that are not here, such as `h100:16x8` or `tpu-v5e:4x4`. The
            step's own mesh is then of as many virtual CPU devices.
        **named: What the function is called with by name.

    Returns:
        Collectives, arguments, memory and FLOPs; prints as a table, and has the methods of a plan.

    Raises:
        NamedMeshError: The step is none of these, cannot be compiled, or has other devices than
            the mesh or the target.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import namedmesh as nm
        >>> seen = nm.inspect(jax.jit(lambda x: jnp.sum(x * x)), jnp.ones([8, 8]))
        >>> seen.count("AllReduce"), seen.tensor_rows[0].place
        (0, 'float32[8, 8]')
    """
    chosen = prepare_devices(target)
    text = isinstance(step, (str, os.PathLike))
    code = _read_text(step, chosen) if text else _compile(step, arguments, named, chosen)
    return _read_code(code, mesh, chosen)


def prepare_devices(target: str | None) -> Target | None:
    """Make as many virtual CPU devices as a target has, before jax has any."""
    chosen = Target.parse(target) if target is not None else None
    if chosen is not None:
        prepare_target(chosen)
        use_cpu_devices(chosen.cores)
    return chosen


def _read_code(code: _Code, mesh: Any, target: Target | None) -> Inspection:
    """Read compiled code."""
    with _without_collection():  # of which all that is read would cause much, for nothing
        return _describe_code(parse_module(code.text), code, mesh, target)


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Pause Python's garbage collection."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _describe_code(module: Module, code: _Code, mesh: Any, target: Target | None) -> Inspection:
    """Return all that is shown of a module."""
    devices = count_devices(module)
    hosts = target.shape[0] if target is not None and target.platform == "gpu" else 1
    shardings = [one.sharding for one in code.leaves]
    if isinstance(mesh, jax.sharding.Mesh):
        shardings = [jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())]
    own = mesh if isinstance(mesh, Mesh) else None
    found = own or find_mesh(module, code.text + code.named, shardings, hosts)
    if found.devices != devices:
        fix = "give the mesh that the step's shardings have"
        problem = f"the step is compiled for {devices} devices"
        raise NamedMeshError(problem, f"mesh: {found}", fix=fix)
    name_arguments(module, code.leaves)
    leaves = [one._replace(path=one.name or one.path) for one in code.leaves]
    attribution = Attribution(module)
    compiled = [one for one in find_collectives(module, found) if one.axes != () and one.times]
    unknown = dict.fromkeys(one.name for one in compiled if one.kind not in KINDS)
    parts = (part for one in compiled for part in one.parts or (one,))
    known = [one for one in parts if one.kind in KINDS]
    collectives = tuple(attribution.describe(one, found) for one in known)
    tensors = tuple(list_tensors(module, found, leaves))
    pairs = [*zip(known, collectives, strict=True)]
    step = CompiledStep(pairs, tensors, found, attribution, Intent(code.lowered), code.warnings)
    notes = [f"{name} may communicate too: its text does not tell" for name in unknown]
    if narrow := sum(step.sends_wide(one) for one in collectives):
        notes.append(
            f"{narrow} collectives of bfloat16 are sent as float32, as CPUs do: GPUs and TPUs send "
            "half as much, which target= shows"
        )
    return Inspection(
        name=module.name.removeprefix("jit_"),
        mesh=found,
        collectives=collectives,
        compiled=tuple(known),
        tensor_rows=tensors,
        memory=divide_memory(code.stats, tensors),
        flops=count_flops(module) * devices,
        module=module,
        target=str(target or ""),
        findings=find_all(step),
        notes=tuple(notes),
    )


def _read_text(step: str | os.PathLike[str], target: Target | None) -> _Code:
    """Return HLO as it is, and StableHLO compiled."""
    text = str(step)
    if "\n" not in text:
        path = check_path(step, "the file of HLO")
        text = read_file(path, "HLO", LARGEST_TEXT).decode(errors="replace")
    if "HloModule " in text[:10_000]:
        return _Code(text)
    if "func.func" in text:
        return _compile_stablehlo(parse_stablehlo(text), text, [], target)
    fix = "give compiled.as_text() or lowered.as_text(), or a file ..after_optimizations.txt of XLA"
    if str(step).endswith(".py"):
        fix = f"write {step}:function, of a function that returns a step and its arguments"
    raise NamedMeshError(f"{text.strip()[:60]!r} ... is neither HLO nor StableHLO", fix=fix)


def _compile(step: Any, arguments: Any, named: Any, target: Target | None) -> _Code:
    """Lower and compile a step as far as that is left to do."""
    step = _unwrap(step)
    done = hasattr(step, "as_text")
    finished = done and (target is not None and not hasattr(step, "compiler_ir"))
    usable = done or callable(step) or hasattr(step, "lower")
    if finished or not usable or (done and (arguments or named)):
        raise NamedMeshError(
            f"nm.inspect: expected a step of JAX, not {type(step).__name__} with "
            f"{len(arguments) + len(named)} arguments for {target or 'the devices here'}",
            fix=f"give {_FORMS}",
        )
    if (
        not done and not hasattr(step, "lower") and _is_model(step)
    ):  # a model, whose weights would be constants
        step, arguments = _call_of(step), (step, *arguments)
    lowered = step if done else _unwrap(_lower(step, arguments, named, target))
    own = name_packed(step, arguments, named)
    with report_failure("the step cannot be compiled"):
        leaves = filter(_is_value, jax.tree.leaves((arguments, named)))
        given = [getattr(one, "sharding", None) for one in leaves]
        if target is not None:
            leaves = list_leaves(lowered, given, own)
            return _compile_stablehlo(lowered.compiler_ir("stablehlo"), "", leaves, target)
        with hear_warnings() as heard:
            compiled = _unwrap(lowered.compile()) if hasattr(lowered, "compile") else lowered
    known, leaves = False, []
    for shardings in (compiled.input_shardings, given):  # GSPMD's have no names
        if not known:
            leaves = list_leaves(compiled, shardings, own)
            known = any(hasattr(one.sharding, "mesh") for one in leaves)
    # Where a mesh is around the step, the module that jax lowered has the names of its axes.
    module = None if lowered is compiled else lowered.compiler_ir("stablehlo")
    text = "" if known or module is None else lowered.as_text()
    seen = (compiled.as_text(), compiled.memory_analysis(), leaves, text)
    return _Code(*seen, module, "".join(heard))


def _unwrap(step: Any) -> Any:
    """Return what jax lowered or compiled, which Equinox and others wrap."""
    return getattr(step, "compiled", getattr(step, "lowered", step))


def _lower(step: Any, arguments: Any, named: Any, target: Target | None) -> Any:
    """Lower a function, with the whole stack of each op."""
    # jax would not trace a function again that calls what has been defined anew, as in notebooks.
    described = jax.ShapeDtypeStruct in map(type, jax.tree.leaves((arguments, named)))
    if described and type(step).__module__.startswith("equinox"):  # whose jit takes arrays alone
        step = step.__wrapped__
    if not hasattr(step, "lower"):
        step, arguments, named = _jit(step, arguments, named)
    with keep_whole_stacks():
        if target is None or not hasattr(step, "trace"):
            return step.lower(*arguments, **named)
        platform = "cuda" if target.platform == "gpu" else target.platform
        return step.trace(*arguments, **named).lower(lowering_platforms=(platform,))


def _jit(function: Callable[..., Any], arguments: Any, named: Any) -> tuple[Any, Any, Any]:
    """Jit a function; what no array is, such as a model's activation functions, is constant.

    Returns:
        The jitted function, and the arguments that it takes.
    """
    copied, given = _copy_function(function), (arguments, named)
    if nnx := _find_nnx([*arguments, *named.values()]):
        return nnx.jit(copied), arguments, named
    if all(map(_is_value, jax.tree.leaves(given))):
        return jax.jit(copied), arguments, named
    values = jax.tree.map(lambda one: one if _is_value(one) else None, given)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        fill = lambda value, constant: constant if value is None else value
        whole = jax.tree.map(fill, (arguments, named), given, is_leaf=lambda one: one is None)
        return [*filter(_is_value, jax.tree.leaves(copied(*whole[0], **whole[1])))]

    return jax.jit(call), *values


def _is_value(one: Any) -> bool:
    """Return whether jax takes something as an array."""
    return hasattr(one, "dtype") or isinstance(one, (bool, int, float, complex))


def _find_nnx(values: Sequence[Any]) -> Any:
    """Return flax.nnx, whose own jit keeps what a step changes, if a value is a model of it."""
    nnx = sys.modules.get("flax.nnx")
    kinds = (nnx.Module, nnx.Optimizer) if nnx else ()
    return nnx if any(isinstance(one, kinds) for one in values) else None


def _is_model(step: Any) -> bool:
    """Return whether a callable has weights, which would be constants of the step."""
    return bool(_find_nnx([step])) or any(hasattr(one, "dtype") for one in jax.tree.leaves(step))


def _call_of(model: Any) -> Callable[..., Any]:
    """Return a function that calls a model, which is its first argument."""
    call = lambda model, *given, **named: model(*given, **named)
    call.__name__ = type(model).__name__
    return call


def _copy_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return another function that does the same."""
    return functools.wraps(function)(lambda *given, **named: function(*given, **named))


def _compile_stablehlo(module: Any, text: str, leaves: list[Leaf], target: Target | None) -> _Code:
    """Compile a StableHLO module for a target, or for CPU devices."""
    count = int(getattr(module.operation.attributes.get("mhlo.num_partitions"), "value", 1))
    target = target or Target("cpu", "", (count,))
    if target.cores != count:
        problem = f"the step is for {count} devices, and {target} has {target.cores}"
        raise NamedMeshError(problem, fix=target.suggest(count))
    devices = devices_of(target)
    options = toolkit_options(devices) if target.platform == "gpu" else {}
    with hear_warnings() as heard:
        compiled = compile_module(module, devices, options)
    stats = compiled.get_compiled_memory_stats()
    code = compiled.hlo_modules()[0].to_string()
    return _Code(code, stats, leaves, text, module, "".join(heard))
