"""Weights in safetensors files, which other libraries write and read as well."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from namedmesh.errors.errors import NamedMeshError
from namedmesh.files import check_path, describe_os_error, open_file, replace_file
from namedmesh.runtime import Executable, State
from namedmesh.runtime.arrays import spread_shards
from namedmesh.training.arguments import check_executable, check_saveable
from namedmesh.training.saved_variables import SavedVariable, match_variables

LARGEST_FILE = 2**44  # bytes; values are mapped, and read as they are needed
Names = Mapping[str, str | None] | Callable[[str], str | None]
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
    """Save the weights of a state to a safetensors file, whole or not at all, without padding.

    All processes must call this; process 0 writes.

    Args:
        path: The file, e.g. "model.safetensors".
        state: The state; by default its parameters (`nm.param`) are saved, frozen ones too.
        names: The name in the file for each variable: a function of the variable's name, or a
            dict of the names that change. None leaves a variable out.
        everything: Save the other variables (`nm.state`) too, e.g. an optimizer's slots.
        metadata: Strings to store in the header of the file.

    Raises:
        NamedMeshError: If two variables get the same name, a name in the dict is not a variable,
            or the file cannot be written.

    Example:
        >>> import os, tempfile
        >>> import namedmesh as nm
        >>> use = lambda: nm.param("out/w", [], nm.constant_init(3.0)) * 2
        >>> step = nm.compile(use, mesh=nm.Mesh(data=1))
        >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
        >>> nm.save_weights(path, step.init(), names=lambda name: name.replace("/", "."))
        >>> float(nm.load_weights(path, step, names={"out/w": "out.w"})["out/w"])
        3.0
    """
    check_path(path, "the file of the weights")
    check_saveable(state)
    chosen = {
        name: spec
        for name, spec in state.specs.items()
        if name in state.arrays and (everything or getattr(spec, "parameter", True))
    }
    arrays = {}
    for name, label in map_names(names, chosen).items():
        array = state.fetch(name)
        arrays[label] = np.ascontiguousarray(array).reshape(array.shape)
    if jax.process_index() != 0:
        return
    try:
        pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
        with replace_file(os.fspath(path)) as temporary:
            save_file(arrays, temporary, metadata=dict(metadata) if metadata else None)
    except (OSError, SafetensorError) as error:
        raise NamedMeshError(
            f"cannot write the weights {os.fspath(path)!r}: {describe_os_error(error)}",
            fix="name another file",
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
    """Load the variables of a program from a safetensors file, each device its own shard.

    Args:
        path: The file.
        target: An Executable, to get a State; or specs by name (anything with `sizes` and `dtype`),
            to get whole numpy arrays.
        names: The name in the file for each variable, as for `save_weights`. None means that the
            variable is not in the file: it is initialized.
        missing: "error", or "init" to initialize variables that the file does not have, e.g. an
            optimizer's slots. With specs such variables are left out.
        cast: Convert other floating-point dtypes to those of the program.
        seed: The seed of the initialization.

    Returns:
        A State, or a dict of arrays if target is a mapping of specs.

    Raises:
        NamedMeshError: If the file cannot be read or is damaged, or if variables are missing or
            have another size or dtype; the error lists all of them.

    Example:
        >>> import os, tempfile
        >>> import numpy as np
        >>> import namedmesh as nm
        >>> from safetensors.numpy import save_file
        >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
        >>> save_file({"out.w": np.full(2, 3.0, np.float32)}, path)
        >>> specs = {"out/w": nm.training.SavedVariable((2,), "float32")}
        >>> nm.load_weights(path, specs, names={"out/w": "out.w"})
        {'out/w': array([3., 3.], dtype=float32)}
    """
    check_path(path, "the file of the weights")
    whole = isinstance(target, Mapping)
    specs = target if whole else check_executable(target, "the target of the weights").variables
    labels = map_names(names, specs)
    try:
        os.close(open_file(path, LARGEST_FILE))
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
                return {
                    name: np.asarray(file.get_tensor(labels[name]), jnp.dtype(specs[name].dtype))
                    for name in present
                }
            arrays = {
                name: _read_shards(file.get_slice(labels[name]), target, name) for name in present
            }
    except OSError as error:
        reason = "it is a folder" if os.path.isdir(path) else describe_os_error(error)
        raise NamedMeshError(
            f"cannot read the weights {os.fspath(path)!r}: {reason}", fix="name a file to read"
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


def map_names(names: Names | None, variables: Mapping[str, Any]) -> dict[str, str]:
    """Return the name in the file of each variable that is saved or loaded."""
    if isinstance(names, Mapping):
        unknown = [name for name in names if name not in variables]
        if unknown:
            raise NamedMeshError(
                f"names= has {len(unknown)} that are not variables of the program",
                *unknown,
                fix="give the names of variables as keys and the names in the file as values",
            )
        labels = {name: names.get(name, name) for name in variables}
    else:
        labels = {name: name if names is None else names(name) for name in variables}
    present = {name: label for name, label in labels.items() if label is not None}
    variables_by_label: dict[str, list[str]] = {}
    for name, label in present.items():
        variables_by_label.setdefault(label, []).append(name)
    clashes = {label: same for label, same in variables_by_label.items() if len(same) > 1}
    if clashes:
        raise NamedMeshError(
            "names= gives several variables the same name in the file",
            *(f"{label}: {', '.join(same)}" for label, same in clashes.items()),
            fix="give each variable a name of its own",
        )
    return present


def _read_shards(entry: Any, executable: Executable, name: str) -> jax.Array:
    """Read a variable, each device its own shard."""
    spec = executable.variables[name]
    dtype = jnp.dtype(spec.dtype)

    def read(*inside: slice) -> np.ndarray:
        if all(one.start < one.stop for one in inside):
            return np.asarray(entry[inside]).astype(dtype, copy=False)
        return np.zeros([one.stop - one.start for one in inside], dtype)  # nothing but padding

    return spread_shards(spec, executable.artifact.mesh, executable.sharding(spec), read)
