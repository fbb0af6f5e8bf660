"""Weights in safetensors files, which other libraries write and read as well."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Mapping
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from namedmesh.errors.errors import NamedMeshError
from namedmesh.records.paths import sync_file
from namedmesh.runtime import Executable, State
from namedmesh.training.arguments import check_file_path, check_saveable
from namedmesh.training.saved_variables import SavedVariable, check_missing, match_variables
from namedmesh.training.weight_names import Names, map_names

# The dtypes of safetensors that a variable can have.
DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16",
    "U32": "uint32", "I32": "int32", "U64": "uint64", "I64": "int64",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
}  # fmt: skip


def save_weights(
    path: str | os.PathLike,
    state: State,
    names: Names | None = None,
    *,
    everything: bool = False,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Save the weights of a state to a safetensors file, without padding.

    The file is complete or not written at all. With several processes, all of them must call this,
    and the first one writes.

    Args:
        path: The file, e.g. "model.safetensors".
        state: The state; by default its trainable variables (`nm.param`) are saved.
        names: The name in the file for each variable: a function from the variable's name, or a
            dict, in which variables that keep their names need not be. None leaves a variable out.
        everything: Save the other variables (`nm.state`) too, e.g. the slots of an optimizer.
        metadata: Strings to store in the header of the file.

    Raises:
        NamedMeshError: If an argument is not what it should be, the state was used up, two
            variables get the same name, a name in the dict is not a variable, or the file cannot
            be written.

    Example:
        >>> import os, tempfile
        >>> import namedmesh as nm
        >>> from safetensors.numpy import load_file
        >>> from namedmesh.training import load_weights, save_weights
        >>> M = nm.Dimension("model", 2)
        >>> step = nm.compile(
        ...     lambda x: nm.sum(x * nm.param("out/w", [M], nm.constant_init(3.0))),
        ...     nm.spec([M]), mesh=nm.Mesh(data=1))
        >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
        >>> save_weights(path, step.init(), names=lambda name: name.replace("/", "."))
        >>> load_file(path)
        {'out.w': array([3., 3.], dtype=float32)}
        >>> load_weights(path, step, names={"out/w": "out.w"})["out/w"].tolist()
        [3.0, 3.0]
    """
    check_file_path(path, "the file of the weights")
    check_saveable(state)
    header = _check_metadata(metadata)
    if not isinstance(everything, bool):
        raise NamedMeshError(
            f"everything is a {type(everything).__name__}", fix="give True or False"
        )
    chosen = {
        name: spec
        for name, spec in state.specs.items()
        if name in state.arrays and (everything or getattr(spec, "trainable", True))
    }
    labels = map_names(names, chosen)
    arrays = {label: _fetch_array(state, name) for name, label in labels.items()}
    if jax.process_index() != 0:
        return
    target = pathlib.Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        save_file(arrays, temporary, metadata=header or None)
        sync_file(temporary)
        os.replace(temporary, target)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise NamedMeshError(
            f"cannot write the weights {os.fspath(path)!r}: {error}", fix="name another file"
        ) from None


@overload
def load_weights(
    path: str | os.PathLike,
    target: Executable,
    names: Names | None = None,
    *,
    missing: str = "error",
    cast: bool = False,
    seed: int = 0,
) -> State: ...


@overload
def load_weights(
    path: str | os.PathLike,
    target: Mapping[str, Any],
    names: Names | None = None,
    *,
    missing: str = "error",
    cast: bool = False,
    seed: int = 0,
) -> dict[str, np.ndarray]: ...


def load_weights(
    path: str | os.PathLike,
    target: Executable | Mapping[str, Any],
    names: Names | None = None,
    *,
    missing: str = "error",
    cast: bool = False,
    seed: int = 0,
) -> State | dict[str, np.ndarray]:
    """Load the variables of a program from a safetensors file; what else the file has is not read.

    Args:
        path: The file.
        target: An Executable, to get a State in which each device has read its own shard; or specs
            by name (anything with `sizes` and `dtype`), to get whole numpy arrays.
        names: The name in the file for each variable, in the same direction as for `save_weights`:
            a function from the variable's name, or a dict, in which variables that keep their names
            need not be. None means that the variable is not in the file: it is initialized.
        missing: "error", or "init" to initialize variables that the file does not have, e.g. the
            slots of an optimizer. With specs such variables are left out of the result.
        cast: Convert other floating-point dtypes to those of the program.
        seed: The seed of the initialization.

    Returns:
        A State, or a dict of arrays if target is a mapping of specs.

    Raises:
        NamedMeshError: If an argument is not what it should be, the file cannot be read or is
            damaged, or if variables are missing or have another size or dtype; the error lists
            all of them.

    Example:
        >>> import os, tempfile
        >>> import numpy as np
        >>> import namedmesh as nm
        >>> from safetensors.numpy import save_file
        >>> from namedmesh.training import SavedVariable
        >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
        >>> save_file({"out.w": np.full(2, 3.0, np.float32)}, path)
        >>> specs = {"out/w": SavedVariable((2,), "float32")}  # or a compiled step, for a State
        >>> nm.load_weights(path, specs, names={"out/w": "out.w"})
        {'out/w': array([3., 3.], dtype=float32)}
    """
    check_missing(missing)
    check_file_path(path, "the file of the weights")
    specs = _find_specs(target)
    labels = map_names(names, specs)
    try:
        with safe_open(path, framework="numpy") as file:
            saved = {}
            for label in file.keys():  # noqa: SIM118 - a safetensors file is not iterable
                header = file.get_slice(label)
                dtype = str(header.get_dtype())
                saved[label] = SavedVariable(tuple(header.get_shape()), DTYPES.get(dtype, dtype))
            fix = "map names with names=, save the file again, or allow missing='init' or cast=True"
            where = f"the file {os.fspath(path)!r}"
            present = match_variables(
                where, saved, specs, names=labels, missing=missing, cast=cast, fix=fix
            )
            if isinstance(target, Mapping):
                whole = lambda name: np.asarray(file.get_tensor(labels[name]))
                return {
                    name: whole(name).astype(jnp.dtype(specs[name].dtype), copy=False)
                    for name in present
                }
            arrays = {
                name: _read_shards(file.get_slice(labels[name]), target, name) for name in present
            }
    except OSError as error:
        folder = os.path.isdir(path)
        raise NamedMeshError(
            f"cannot read the weights {os.fspath(path)!r}: "
            + ("it is a folder" if folder else str(error)),
            fix="name a file" if folder else "check the path",
        ) from None
    except SafetensorError as error:
        raise NamedMeshError(
            f"the file {os.fspath(path)!r} is damaged, or not a safetensors file",
            str(error),
            fix="save it again with save_weights, or copy it again",
        ) from None
    if len(arrays) < len(specs):
        arrays = target.init(seed).arrays | arrays
    return State({name: arrays[name] for name in specs}, target.variables)


def _find_specs(target: Executable | Mapping[str, Any]) -> Mapping[str, Any]:
    """The variables to load, each with sizes and a dtype, or an error that says what was given."""
    if isinstance(target, Executable):
        return target.variables
    fix = (
        "give a compiled step for a State; for whole arrays give step.variables, or "
        "{name: SavedVariable(sizes, dtype)}"
    )
    if not isinstance(target, Mapping):
        if type(target).__name__ == "Program":
            fix = "compile it first: nm.compile(program, mesh=mesh, layout=layout)"
        raise NamedMeshError(
            f"the target of the weights is a {type(target).__name__}, "
            "expected an Executable or specs by name",
            fix=fix,
        )
    wrong = [
        f"{name}: {type(value).__name__}"
        for name, value in target.items()
        if not (hasattr(value, "sizes") and hasattr(value, "dtype"))
    ]
    if wrong:
        raise NamedMeshError(
            "the target of the weights has entries that are not specs (with sizes and dtype)",
            *wrong,
            fix=fix,
        )
    return target


def _check_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """The metadata of a file as a dict, whose names and values must be strings."""
    if metadata is not None and not isinstance(metadata, Mapping):
        raise NamedMeshError(
            f"metadata= is a {type(metadata).__name__}, expected a dict of strings",
            fix="give a dict, e.g. {'step': '1000'}",
        )
    entries = dict(metadata or {})
    wrong = [
        f"{name!r}: {value!r}"
        for name, value in entries.items()
        if not (isinstance(name, str) and isinstance(value, str))
    ]
    if wrong:
        raise NamedMeshError(
            "metadata= has entries that are not strings",
            *wrong,
            fix="give strings only, e.g. str(value), or json.dumps(value)",
        )
    return entries


def _fetch_array(state: State, name: str) -> np.ndarray:
    """A variable whole on this host, without padding."""
    array = state.fetch(name)
    return np.ascontiguousarray(array).reshape(array.shape)


def _read_shards(entry: Any, executable: Executable, name: str) -> jax.Array:
    """Read a variable, each device its own shard, padded with zeros where the layout needs it."""
    spec = executable.variables[name]
    shape, dtype = spec.padded(executable.artifact.mesh), jnp.dtype(spec.dtype)

    def read(index: Any) -> np.ndarray:
        bounds = [one.indices(size)[:2] for one, size in zip(index, shape, strict=True)]
        inside = tuple(
            slice(min(start, size), min(stop, size))
            for (start, stop), size in zip(bounds, spec.sizes, strict=True)
        )
        empty = any(one.start == one.stop for one in inside)
        shard = np.zeros([stop - start for start, stop in bounds], dtype)
        if not empty:
            values = np.asarray(entry[inside] if inside else entry[()])
            shard[tuple(slice(size) for size in values.shape)] = values.astype(dtype, copy=False)
        return shard

    return jax.make_array_from_callback(shape, executable.sharding(spec), read)
