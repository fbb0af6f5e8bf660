"""Weights in safetensors files, which other libraries write and read as well."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import math
import os
import pathlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from namedmesh.errors.errors import NamedMeshError
from namedmesh.files import check_path, describe_os_error, open_file, replace_file
from namedmesh.runtime import Executable, State
from namedmesh.runtime.arrays import fetch_array, spread_shards
from namedmesh.training.arguments import check_executable, check_saveable
from namedmesh.training.saved_variables import SavedVariable, match_variables
from namedmesh.training.weight_rules import (
    WeightRule,
    check_rule,
    name_tensors,
    read_part,
    tensor_shape,
    write_part,
)

LARGEST_FILE = 2**44  # bytes; values are mapped, and read as they are needed
Label = str | WeightRule | None
Names = Mapping[str, Label] | Callable[[str], Label]
INDEX = "model.safetensors.index.json"  # of a folder: the file of every tensor
# The dtypes of safetensors that a variable can have.
DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16",
    "U32": "uint32", "I32": "int32", "U64": "uint64", "I64": "int64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
}  # fmt: skip


def save_weights(
    path: str | os.PathLike,
    state: State,
    names: Names | None = None,
    *,
    everything: bool = False,
    metadata: Mapping[str, str] | None = None,
    dtype: str | None = None,
    largest: int | None = None,
) -> None:
    """Save the weights of a state to a safetensors file, whole or not at all, without padding.

    All processes must call this; process 0 writes.

    Args:
        path: The file, e.g. "model.safetensors", or with `largest` a folder.
        state: The state; by default its parameters (`nm.param`) are saved, frozen ones too.
        names: The name in the file for each variable: a function of the variable's name, or a
            dict of the names that change. None leaves a variable out, and a `WeightRule` splits,
            transposes or fuses.
        everything: Save the other variables (`nm.state`) too, e.g. an optimizer's slots.
        metadata: Strings to store in the header of the file.
        dtype: Convert floating-point values to this dtype.
        largest: The most bytes of a file of the folder, such as 5 * 2**30; only so much is in host
            memory at once. `model.safetensors.index.json` then says which tensor is where.

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
    tensors = _collect_tensors(map_names(names, chosen), chosen, dtype)
    files = _share_out(tensors, math.inf if largest is None else largest)
    where = {}
    for i, labels in enumerate(files):
        file, details = pathlib.Path(path), dict(metadata or {})
        if largest is not None:
            of = "" if len(files) == 1 else f"-{i + 1:05}-of-{len(files):05}"
            file, details = file / f"model{of}.safetensors", {"format": "pt"} | details
        arrays = {label: _assemble(state, tensors[label]) for label in labels}
        where |= dict.fromkeys(labels, file.name)
        if jax.process_index() == 0:
            _write(file, functools.partial(save_file, arrays, metadata=details or None))
    if largest is not None and len(files) > 1 and jax.process_index() == 0:
        total = sum(one.bytes for one in tensors.values())
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": where}, indent=1)
        _write(
            pathlib.Path(path) / INDEX, lambda temporary: pathlib.Path(temporary).write_text(text)
        )


@dataclass(frozen=True)
class _Tensor:
    """A tensor for a file, and the variables it is made of: which part, and by which rule."""

    shape: tuple[int, ...]
    dtype: Any
    parts: list[tuple[str, dict[str, int], WeightRule]]

    @property
    def bytes(self) -> int:
        """The bytes that it takes."""
        return math.prod(self.shape) * self.dtype.itemsize


def _collect_tensors(
    labels: Mapping[str, str | WeightRule], specs: Mapping[str, Any], dtype: str | None
) -> dict[str, _Tensor]:
    """Return the tensors of the files by name; raise if variables make up only a part of one."""
    tensors: dict[str, _Tensor] = {}
    filled: Counter[str] = Counter()
    for variable, rule in _as_rules(labels, specs).items():
        sizes, kind = _sizes_of(specs[variable]), jnp.dtype(specs[variable].dtype)
        if jnp.issubdtype(kind, jnp.floating):
            kind = jnp.dtype(rule.dtype or dtype or kind)
        for index, label in name_tensors(rule, _whole(sizes)):
            one = tensors.setdefault(label, _Tensor(tensor_shape(rule, sizes), kind, []))
            one.parts.append((variable, index, rule))
            filled[label] += math.prod(size for dim, size in sizes.items() if dim not in index)
    for label, one in tensors.items():
        if filled[label] != math.prod(one.shape):
            raise NamedMeshError(
                f"{label} of {list(one.shape)} has {filled[label]} elements by the rules",
                *(f"{variable}: {rule.axes!r}" for variable, _, rule in one.parts),
                fix="give rules to all the variables that make up the tensor",
            )
    return tensors


def _share_out(tensors: Mapping[str, _Tensor], largest: float) -> list[list[str]]:
    """Share tensors out to files of at most so many bytes, in order."""
    files: list[list[str]] = [[]]
    size = 0
    for label, one in tensors.items():
        size += one.bytes
        if files[-1] and size > largest:
            files.append([])
            size = one.bytes
        files[-1].append(label)
    return files


def _assemble(state: State, tensor: _Tensor) -> np.ndarray:
    """Fetch a tensor for a file; of a stack of layers, only the layer that it is of."""
    into = np.empty(tensor.shape, tensor.dtype)
    for variable, index, rule in tensor.parts:
        array, sizes = state.arrays[variable], _sizes_of(state.specs[variable])
        rest = {dim: size for dim, size in sizes.items() if dim not in index}
        if index:
            array = array[tuple(index.get(dim, slice(None)) for dim in sizes)]
        write_part(rule, into, fetch_array(array, tuple(rest.values())), list(rest), sizes)
    return into


def _write(path: pathlib.Path, write: Callable[[str], Any]) -> None:
    """Write a file, whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(os.fspath(path)) as temporary:
            write(temporary)
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
        path: The file, or a folder of them, as large models have.
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
    rules = _as_rules(map_names(names, specs), specs)
    try:
        with _open(path) as entries:
            saved = {}
            for label, entry in entries.items():
                dtype = str(entry.get_dtype())
                saved[label] = SavedVariable(tuple(entry.get_shape()), DTYPES.get(dtype, dtype))
            present = _match(path, saved, specs, rules, missing, cast)
            if isinstance(target, Mapping):
                return {
                    name: _reader(entries, rules[name], specs[name])(
                        *_whole(_sizes_of(specs[name])).values()
                    )
                    for name in present
                }
            arrays = {}
            for name in present:
                spec = target.variables[name]
                sharding, read = target.sharding(spec), _reader(entries, rules[name], spec)
                arrays[name] = spread_shards(spec, target.artifact.mesh, sharding, read)
    except OSError as error:
        raise NamedMeshError(
            f"cannot read the weights {os.fspath(path)!r}: {describe_os_error(error)}",
            fix="name a file to read, or a folder of model.safetensors or model-*.safetensors",
        ) from None
    except (SafetensorError, json.JSONDecodeError, KeyError) as error:
        raise NamedMeshError(
            f"the file {os.fspath(path)!r} is damaged, or not a safetensors file",
            str(error),
            fix="save it again with save_weights, or copy it again",
        ) from None
    if len(arrays) < len(specs):
        arrays = target.init(seed).arrays | arrays
    return State({name: arrays[name] for name in specs}, target.variables)


@contextlib.contextmanager
def _open(path: str | os.PathLike) -> Iterator[dict[str, Any]]:
    """Open a file, or the files of a folder, and return the entry of every tensor."""
    files = [pathlib.Path(path)]
    if files[0].is_dir():
        (folder,), index = files, files[0] / INDEX
        files = sorted(folder.glob("*.safetensors"))
        if index.exists():
            weight_map = json.loads(index.read_text())["weight_map"]
            files = [folder / name for name in sorted({*weight_map.values()})]
        if not files:
            raise FileNotFoundError(errno.ENOENT, "the folder has no safetensors files")
    entries: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        for file in files:
            os.close(open_file(file, LARGEST_FILE))
            opened = stack.enter_context(safe_open(file, framework="numpy"))
            entries |= {label: opened.get_slice(label) for label in opened.keys()}  # noqa: SIM118
        yield entries


def _match(
    path: str | os.PathLike,
    saved: Mapping[str, SavedVariable],
    specs: Mapping[str, Any],
    rules: Mapping[str, WeightRule],
    missing: str,
    cast: bool,
) -> list[str]:
    """Return the variables that the files have; raise for all that are missing or do not fit."""
    pieces, labels, counts = {}, {}, Counter()
    for name, rule in rules.items():
        sizes, spec = _sizes_of(specs[name]), specs[name]
        shape = tensor_shape(rule, sizes)
        for index, label in name_tensors(rule, _whole(sizes)):
            piece = f"{name}{list(index.values())}" if index else name
            plain = shape == tuple(spec.sizes)
            pieces[piece] = spec if plain else SavedVariable(shape, str(spec.dtype))
            labels[piece] = label
            counts[name] += 1
    fix = "map names with names=, save the file again, or allow missing='init' or cast=True"
    where = f"the {'folder' if os.path.isdir(path) else 'file'} {os.fspath(path)!r}"
    found = Counter(
        piece.partition("[")[0]
        for piece in match_variables(
            where, saved, pieces, names=labels, missing=missing, cast=cast, fix=fix
        )
    )
    partly = [name for name, count in found.items() if count < counts[name]]
    if partly:
        raise NamedMeshError(
            f"{where} has some of the tensors of {len(partly)} variables only",
            *(f"{name}: {found[name]} of {counts[name]}" for name in partly),
            fix=fix,
        )
    return [name for name in rules if name in found]


def _reader(entries: Mapping[str, Any], rule: WeightRule, spec: Any) -> Callable[..., np.ndarray]:
    """Return a function that reads a part of a variable, a slice of each dimension."""
    sizes, dtype = _sizes_of(spec), jnp.dtype(spec.dtype)
    over = [dim for dim, _ in rule.indices]
    rest = [dim for dim in sizes if dim not in over]

    def read(*slices: slice) -> np.ndarray:
        inside = dict(zip(sizes, slices, strict=True))
        values = np.empty([one.stop - one.start for one in slices], dtype)
        if values.size:
            for index, label in name_tensors(rule, inside):
                place = {dim: i - inside[dim].start for dim, i in index.items()}
                part = read_part(rule, entries[label], rest, inside, sizes)
                values[tuple(place.get(dim, slice(None)) for dim in sizes)] = part
        return values

    return read


def _whole(sizes: Mapping[str, int]) -> dict[str, slice]:
    """Return slices of everything."""
    return {dim: slice(0, size) for dim, size in sizes.items()}


def _sizes_of(spec: Any) -> dict[str, int]:
    """Return the sizes of a variable by dimension, which get numbers where nothing names them."""
    names = spec.shape.names if hasattr(spec, "shape") else getattr(spec, "dims", ())
    names = names or [f"axis{i}" for i in range(len(spec.sizes))]
    return dict(zip(names, spec.sizes, strict=True))


def _as_rules(
    labels: Mapping[str, str | WeightRule], specs: Mapping[str, Any]
) -> dict[str, WeightRule]:
    """Return a rule for every variable: of a name, that the tensor is as it is."""
    rules = {}
    for name, label in labels.items():
        dims = list(_sizes_of(specs[name]))
        if isinstance(label, WeightRule):
            check_rule(label, name, dims)
        else:
            label = WeightRule(label, " ".join(dims))
        rules[name] = label
    return rules


def map_names(names: Names | None, variables: Mapping[str, Any]) -> dict[str, Any]:
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
    variables_by_label: dict[Any, list[str]] = {}
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
