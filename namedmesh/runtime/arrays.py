"""Arrays to devices and back: checked against what a program takes, padded, sharded, fetched."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding

from namedmesh.artifacts.description import TensorSpec, dtype_of
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError, did_you_mean
from namedmesh.runtime.compiling import report_failure

# The sizes of padded arrays without their padding, by the array's id, since jax arrays cannot be
# hashed; an entry goes when its array does.
_sizes: dict[int, tuple[weakref.ref[Any], tuple[int, ...]]] = {}
_LARGEST = float(np.finfo(np.float32).max)
FEW_BYTES = 3 << 17  # to copy so many takes as long as what Python does while a step runs


def remember_sizes(array: Any, sizes: tuple[int, ...]) -> None:
    """Note the sizes of an array without its padding."""
    if tuple(array.shape) == tuple(sizes):
        return
    key = id(array)
    _sizes[key] = (weakref.ref(array, lambda _: _sizes.pop(key, None)), tuple(sizes))


def unpadded_sizes(array: Any) -> tuple[int, ...]:
    """Return the sizes of an array without padding: its own, unless it is known to be padded."""
    reference, sizes = _sizes.get(id(array), (None, ()))
    if reference is None or reference() is not array:
        return tuple(array.shape)
    return sizes


class PaddedResult(np.lib.mixins.NDArrayOperatorsMixin):
    """A result of a step that stays split where its size does not divide, padded on the devices.

    Its size is the true one, and numpy gets it without padding: `np.asarray(result)`, `result[0]`,
    `result.sum()`. Another step takes it as it is, where it wants it so.

    Attributes:
        array: The array on the devices, padding included.
        shape: The sizes without padding.
    """

    def __init__(self, array: jax.Array, sizes: tuple[int, ...]):
        remember_sizes(array, sizes)
        self.array, self.shape, self.dtype, self.ndim = array, sizes, array.dtype, array.ndim

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        whole = np.asarray(self.array)[tuple(map(slice, self.shape))]
        return np.array(whole, dtype, copy=copy)

    def __jax_array__(self) -> jax.Array:
        return self.array[tuple(map(slice, self.shape))]

    def __array_ufunc__(self, ufunc: Any, method: str, *values: Any, **options: Any) -> Any:
        plain = (np.asarray(one) if isinstance(one, PaddedResult) else one for one in values)
        return getattr(ufunc, method)(*plain, **options)

    def __getitem__(self, index: Any) -> Any:
        return np.asarray(self)[index]

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return repr(np.asarray(self)) if self.array.is_fully_addressable else repr(self.array)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "array":
            raise AttributeError(name)
        return getattr(np.asarray(self) if hasattr(np.ndarray, name) else self.array, name)


def unwrap(value: Any) -> Any:
    """Return the array of a padded result; anything else as it is."""
    return value.array if type(value) is PaddedResult else value


class Mismatch(Exception):
    """A value that does not fit: the problem, and details of it."""

    def __init__(self, problem: str, *details: str):
        super().__init__(problem)
        self.problem, self.details = problem, details


@dataclass(frozen=True)
class ArrayPlacer:
    """The inputs or the variables of a program, and how they are laid out on devices."""

    program: str
    what: str  # "input" or "variable"
    specs: Mapping[str, TensorSpec]
    mesh: Mesh
    sharding: Callable[[TensorSpec], NamedSharding]

    def put(
        self, values: Mapping[str, Any], donated: Collection[str] = (), rows_only: bool = False
    ) -> dict[str, jax.Array]:
        """Lay arrays out on devices, whole ones or the rows that each process has."""
        # Everything is checked, then moved; no result shares memory that its owner can change.
        self._check_names(values)
        values = {name: unwrap(value) for name, value in values.items()}
        checked: dict[str, tuple[Any, int]] = {}  # an array, and the first row that it has
        mismatches: list[tuple[str, Mismatch]] = []
        for name, spec in self.specs.items():
            if self._is_placed(spec, values[name]):
                continue
            rows = self.own_rows(spec) if rows_only and spec.sizes else None
            try:
                array = self._check_array(spec, values[name], rows)
            except Mismatch as mismatch:
                fix = f"give an array of shape {spec.sizes} and dtype {spec.dtype}"
                if rows_only:
                    whole = f"array[step.rows({name!r})] of the whole array"
                    sizes = f"{(rows.stop - rows.start, *spec.sizes[1:])}" if rows else "()"
                    fix = f"give rows of shape {sizes} and dtype {spec.dtype}: {whole}"
                mismatches.append((fix, mismatch))
            else:
                checked[name] = (array, rows.start if rows else 0)
        self._raise_mismatches(mismatches)
        arrays: dict[str, jax.Array] = {}
        for name, spec in self.specs.items():
            if name in checked:
                arrays[name] = self._spread(spec, *checked[name])
            else:
                arrays[name] = jnp.copy(values[name]) if name in donated else values[name]
            remember_sizes(arrays[name], spec.sizes)
        return arrays

    def own_rows(self, spec: TensorSpec) -> slice:
        """Return the rows of an input that the devices of this process read."""
        if not spec.sizes:
            raise NamedMeshError(
                f"input {spec.name} is a scalar and has no rows",
                f"{spec.name}: {spec.text}",
                fix="feed scalars as they are, the same in every process",
            )
        padded, rows = spec.padded(self.mesh), spec.sizes[0]
        shards = self.sharding(spec).addressable_devices_indices_map(padded).values()
        bounds = [index[0].indices(padded[0])[:2] for index in shards if index is not None]
        starts, stops = zip(*bounds, strict=True)
        return slice(min(*starts, rows), min(max(stops), rows))

    def _is_placed(self, spec: TensorSpec, value: Any) -> bool:
        """Return whether a value is sharded as the program wants it, padding included."""
        return (
            isinstance(value, jax.Array)
            and not value.is_deleted()
            and value.shape == spec.padded(self.mesh)
            and unpadded_sizes(value) == spec.sizes  # else: an array of the padded size itself
            and value.dtype == dtype_of(spec.dtype)
            and value.sharding.is_equivalent_to(self.sharding(spec), value.ndim)
        )

    def _check_array(self, spec: TensorSpec, value: Any, rows: slice | None) -> Any:
        """Return a value as an array if it fits; arrays on devices are not fetched for it."""
        label = f"{self.what} {spec.name}"
        if isinstance(value, jax.Array):
            problem = ""
            if value.is_deleted():
                problem = "an earlier step used up"
            elif not (value.is_fully_addressable or value.is_fully_replicated):
                problem = "other processes have shards of"
            if problem:
                raise Mismatch(f"{label} is an array that {problem}", f"expected {spec.text}")
        array = _as_array(label, spec, value)
        sizes = unpadded_sizes(array)
        right_dtype = array.dtype == dtype_of(spec.dtype) or fits_dtype(value, spec.dtype)
        expected, text = spec.sizes, spec.text
        if rows and rows != slice(0, spec.sizes[0]):
            expected = (rows.stop - rows.start, *spec.sizes[1:])
            text = f"rows {rows.start} to {rows.stop} of {spec.text}"
        if sizes != expected or not right_dtype:
            raise Mismatch(f"{label} was given as {array.dtype}{list(sizes)}, not {text}")
        return array

    def _spread(self, spec: TensorSpec, array: Any, first: int) -> jax.Array:
        """Make an array over all devices, of which this process has the rows from one on."""
        sizes = tuple(slice(size) for size in unpadded_sizes(array))
        own = np.asarray(array)[sizes].astype(dtype_of(spec.dtype), copy=False)

        def read(rows: slice | None = None, *others: slice) -> np.ndarray:
            # On CPU jax takes over the memory it is given, and elsewhere it reads it later: a user
            # who writes the next batch into the same array would change this one.
            if rows is None:
                return own.copy()
            return own[slice(rows.start - first, rows.stop - first), *others].copy()

        return spread_shards(spec, self.mesh, self.sharding(spec), read)

    def _check_names(self, values: Mapping[str, Any]) -> None:
        """Raise if a name is unknown or missing, naming every such one."""
        unknown = [name for name in values if name not in self.specs]
        missing = [name for name in self.specs if name not in values]
        if not unknown and not missing:
            return
        problems = []
        if unknown:
            problems.append(f"{self.program} has no {self.what} {', '.join(map(repr, unknown))}")
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            owner = "" if unknown else f"of {self.program} "
            problems.append(f"{self.what} {', '.join(map(repr, missing))} {owner}{verb} missing")
        known = [f"{name}: {spec.text}" for name, spec in list(self.specs.items())[:8]]
        close = [did_you_mean(str(name), missing or self.specs) for name in unknown]
        meant = [text for text in close if text.startswith("did you mean")]
        fix = "; ".join(dict.fromkeys(meant)) or f"give all of: {', '.join(self.specs)}"
        raise NamedMeshError(", and ".join(problems), *known, fix=fix)

    def _raise_mismatches(self, mismatches: list[tuple[str, Mismatch]]) -> None:
        """Raise if there are values that do not fit, naming all of them."""
        if len(mismatches) == 1:
            fix, mismatch = mismatches[0]
            raise NamedMeshError(mismatch.problem, *mismatch.details, fix=fix)
        if mismatches:
            raise NamedMeshError(
                f"{len(mismatches)} {self.what}s of {self.program} do not fit",
                *(mismatch.problem for _, mismatch in mismatches),
                fix="give arrays of these shapes and dtypes",
            )


def _as_array(label: str, spec: TensorSpec, value: Any) -> np.ndarray | jax.Array:
    """Return a value as an array, without fetching it from devices."""
    if isinstance(value, np.ma.MaskedArray):
        raise Mismatch(f"{label} is a masked array, whose mask would be lost")
    if isinstance(value, (np.ndarray, jax.Array)):
        return value
    try:
        return np.asarray(value)
    except ValueError:
        problem = f"is a ragged {type(value).__name__}, not {spec.text}"
    except Exception as error:  # whatever the conversion of a user's own class raises
        problem = f"is a {type(value).__name__} that is not an array: {type(error).__name__}"
    raise Mismatch(f"{label} {problem}")


def fits_dtype(value: Any, dtype: str) -> bool:
    """Return whether a plain Python number can stand for a scalar of a dtype."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or dtype == "bool":
        return False
    if not dtype.lstrip("u").startswith("int"):
        finite = isinstance(value, int) or math.isfinite(value)
        return not finite or abs(value) <= float(ml_dtypes.finfo(dtype_of(dtype)).max)
    limits = np.iinfo(dtype)
    return limits.min <= value <= limits.max and int(value) == value


class ReadyInputs:
    """The inputs that go into a step as they are: those of nearly every step.

    These are arrays in place already, and numpy arrays and ints, which jax lays out in the call.
    On CPUs large numpy arrays are read in place, and the step must be over when the call returns:
    then their owner may write to them again. Small ones, and all of them elsewhere, are copied.
    """

    def __init__(self, placement: ArrayPlacer, updated: Sequence[TensorSpec], on_cpu: bool):
        mesh, specs = placement.mesh, placement.specs.values()
        donated = {(spec.padded(mesh), spec.dtype) for spec in updated}
        shardings = [placement.sharding(spec) for spec in specs]
        # For several processes, what is not on devices yet is laid out shard by shard.
        alone = all(sharding.is_fully_addressable for sharding in shardings)
        self._inputs = [
            (
                name,
                dtype_of(spec.dtype),
                spec.sizes if alone and spec.sizes == spec.padded(mesh) else None,  # of numpy's
                spec.sizes,
                spec.padded(mesh),
                sharding,
                (spec.padded(mesh), spec.dtype) in donated,  # may be the memory of a variable
            )
            for (name, spec), sharding in zip(placement.specs.items(), shardings, strict=True)
        ]
        sizes = (spec.shape.elements * dtype_of(spec.dtype).itemsize for spec in specs)
        self.copies = not on_cpu or (mesh.devices == 1 and sum(sizes) <= FEW_BYTES)
        # The dtypes and sizes of numpy arrays that are read in place; None where they are not.
        self.plain = [(one[1], one[2] if on_cpu else None) for one in self._inputs]

    def take(self, values: Mapping[str, Any]) -> tuple[list[Any], bool] | None:
        """Return a call's operands, and whether any is read in place; None if one is not ready."""
        if len(values) != len(self._inputs):
            return None
        operands, in_place = [], False
        for name, dtype, plain, sizes, padded, sharding, risky in self._inputs:
            value = unwrap(values.get(name))
            if type(value) is np.ndarray:
                if value.shape != plain or value.dtype != dtype:
                    return None
                in_place = not self.copies
                operands.append(value if in_place else value.copy())
            elif type(value) is int and plain == () and dtype == np.int32:
                if not -(2**31) <= value < 2**31:
                    return None
                operands.append(np.asarray(value, dtype))
            elif type(value) is float and plain == () and dtype == np.float32:
                if not abs(value) <= _LARGEST:
                    return None
                operands.append(np.asarray(value, dtype))
            elif isinstance(value, jax.Array) and not risky:
                if (
                    value.shape != padded
                    or value.dtype != dtype
                    or value.sharding != sharding
                    or unpadded_sizes(value) != sizes
                    or value.is_deleted()
                ):
                    return None
                operands.append(value)
            else:
                return None
        return operands, in_place


@dataclass(frozen=True)
class Shard:
    """A shard of an array on devices of this process, without padding.

    Attributes:
        index: Its place in the whole array, a slice for each dimension.
        data: Its elements.
        devices: The numbers of the devices of this process that have it, as jax counts them.

    Example:
        >>> import numpy as np
        >>> import namedmesh as nm
        >>> (B,) = nm.dims("batch=4")
        >>> def step(x):
        ...     nm.assign(nm.state("total", [B]), x)
        >>> compiled = nm.compile(step, nm.spec([B]), mesh=nm.Mesh(data=2), layout="batch:data")
        >>> state = compiled.place({"total": np.arange(4, dtype=np.float32)})
        >>> for shard in state.shards("total"):
        ...     print(shard.index, shard.data, shard.devices)
        (slice(0, 2, None),) [0. 1.] (0,)
        (slice(2, 4, None),) [2. 3.] (1,)
    """

    index: tuple[slice, ...]
    data: np.ndarray
    devices: tuple[int, ...]


def spread_shards(
    spec: TensorSpec, mesh: Mesh, sharding: NamedSharding, read: Callable[..., np.ndarray]
) -> jax.Array:
    """Make an array over all devices, each of which reads its own shard; padding is zero."""
    padded = spec.padded(mesh)

    def read_shard(index: Any) -> np.ndarray:
        bounds = [one.indices(size)[:2] for one, size in zip(index, padded, strict=True)]
        ends = zip(bounds, spec.sizes, strict=True)
        shard = read(*(slice(min(start, size), min(stop, size)) for (start, stop), size in ends))
        missing = [b - a - size for (a, b), size in zip(bounds, shard.shape, strict=True)]
        return np.pad(shard, [(0, more) for more in missing]) if any(missing) else shard

    return jax.make_array_from_callback(padded, sharding, read_shard)


def fetch_array(array: Any, sizes: tuple[int, ...] | None = None) -> np.ndarray:
    """Fetch a whole array; if other processes have shards of it, each must call this."""
    array = unwrap(array)
    if not isinstance(array, jax.Array):
        if isinstance(array, (np.ndarray, np.generic, bool, int, float, complex)):
            return np.asarray(array)
        raise NamedMeshError(
            f"fetch was given a {type(array).__name__}, not an array",
            fix="give results of a step, or a part of them",
        )
    if array.is_deleted() or jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        what = "that a step has used up" if array.is_deleted() else f"of dtype {array.dtype}"
        raise NamedMeshError(
            f"fetch was given an array {what}", fix="give results of the latest step"
        )
    with report_failure("an array cannot be fetched from the devices"):
        if array.is_fully_addressable:
            whole = np.asarray(array)
        elif array.is_fully_replicated:
            whole = np.asarray(array.addressable_data(0))
        else:
            whole = np.asarray(multihost_utils.process_allgather(array, tiled=True))
    return whole[tuple(slice(size) for size in sizes or unpadded_sizes(array))]


def fetch_nested(results: Any) -> Any:
    """Fetch every array of nested results; every process must call it."""
    return jax.tree.map(fetch_array, results)


def unpadded_bounds(
    shard: Any, array: jax.Array, sizes: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Return where a shard begins and ends along each dimension, without padding."""
    bounds = (one.indices(size)[:2] for one, size in zip(shard.index, array.shape, strict=True))
    pairs = zip(bounds, sizes, strict=True)
    return tuple((min(start, size), min(stop, size)) for (start, stop), size in pairs)


def own_shards(array: jax.Array, sizes: tuple[int, ...]) -> list[Shard]:
    """Return the different shards of an array that devices of this process have."""
    replicas: dict[tuple[tuple[int, int], ...], list[Any]] = {}
    for shard in array.addressable_shards:
        replicas.setdefault(unpadded_bounds(shard, array, sizes), []).append(shard)
    shards = []
    for bounds, copies in sorted(replicas.items(), key=lambda item: item[0]):
        if all(start < stop for start, stop in bounds):
            data = np.asarray(copies[0].data)[tuple(slice(b - a) for a, b in bounds)]
            devices = tuple(sorted(shard.device.id for shard in copies))
            shards.append(Shard(tuple(slice(a, b) for a, b in bounds), data, devices))
    return shards
